//! Quantiles of recent latencies, in constant space and without floating point when a latency is
//! recorded.
//!
//! The estimator is a log-linear histogram (16 steps per power of two, so the error of a value is
//! about 6 %) over two windows: the current window and the previous one. Old samples are forgotten
//! after one to two windows. Once a window is full, a quantile is never based on fewer samples than
//! one window has.

const STEPS: usize = 16;
const BUCKETS: usize = 61 * STEPS;

/// An estimator of quantiles; see the module.
#[derive(Clone, Debug)]
pub struct Quantiles {
    window_samples: u32,
    filling: Window,
    before: Window,
}

#[derive(Clone, Debug)]
struct Window {
    counts: Vec<u32>,
    samples: u32,
}

impl Window {
    fn new() -> Window {
        Window {
            counts: vec![0; BUCKETS],
            samples: 0,
        }
    }
}

impl Quantiles {
    /// Creates an estimator over two windows, the current one and the previous one. Each window has
    /// up to `window_samples` samples.
    pub fn new(window_samples: u32) -> Quantiles {
        assert!(window_samples > 0, "a window holds a sample");
        Quantiles {
            window_samples,
            filling: Window::new(),
            before: Window::new(),
        }
    }

    /// Records one latency.
    pub fn record(&mut self, latency_ns: u64) {
        if self.filling.samples == self.window_samples {
            std::mem::swap(&mut self.filling, &mut self.before);
            self.filling.counts.fill(0);
            self.filling.samples = 0;
        }
        self.filling.counts[bucket(latency_ns)] += 1;
        self.filling.samples += 1;
    }

    /// Returns the number of samples on which a quantile is currently based.
    pub fn samples(&self) -> u32 {
        self.filling.samples + self.before.samples
    }

    /// Returns the latency in nanoseconds that the share `quantile` (0 to 1) of the recent samples
    /// does not exceed; `None` without samples.
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let samples = self.samples();
        if samples == 0 {
            return None;
        }
        let rank = ((quantile * f64::from(samples)).ceil() as u32).clamp(1, samples);
        let mut seen = 0;
        for index in 0..BUCKETS {
            seen += self.filling.counts[index] + self.before.counts[index];
            if seen >= rank {
                return Some(upper_ns(index));
            }
        }
        unreachable!("the buckets hold every sample")
    }
}

/// Returns the index of the bucket for a value. The index is computed from the value's power of two
/// and the four bits below its leading bit.
fn bucket(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let power = value.ilog2() as usize;
    let step = (value >> (power - 4)) as usize & (STEPS - 1);
    (power - 3) * STEPS + step
}

/// Returns the largest value of a bucket.
fn upper_ns(index: usize) -> u64 {
    if index < STEPS {
        return index as u64;
    }
    let (power, step) = (index / STEPS + 3, (index % STEPS) as u64);
    let width = 1u64 << (power - 4);
    (1u64 << power) + step * width + (width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let mut values: Vec<u64> = (0..64)
            .flat_map(|p| [1u64 << p, (1 << p) + (1 << p) / 3])
            .collect();
        values.extend([0, 15, 16, 17, u64::MAX]);
        for value in values {
            let index = bucket(value);
            assert!(index < BUCKETS, "{value}");
            let upper = upper_ns(index);
            assert!(
                upper >= value && upper - value <= value / 16,
                "{value} -> {upper}"
            );
            assert!(index == 0 || upper_ns(index - 1) < value, "{value}");
        }
    }

    #[test]
    fn quantiles_of_a_known_sample() {
        let mut quantiles = Quantiles::new(1000);
        assert_eq!(quantiles.quantile_ns(0.5), None);
        for value in 1..=1000u64 {
            quantiles.record(value * 1_000_000);
        }
        for (quantile, exact_ms) in [(0.5, 500u64), (0.9, 900), (0.99, 990), (1.0, 1000)] {
            let got_ms = quantiles.quantile_ns(quantile).unwrap() / 1_000_000;
            assert!(
                got_ms >= exact_ms && got_ms <= exact_ms + exact_ms / 15,
                "{got_ms}"
            );
        }
    }

    #[test]
    fn old_windows_are_forgotten() {
        let mut quantiles = Quantiles::new(100);
        (0..100).for_each(|_| quantiles.record(1_000_000));
        (0..201).for_each(|_| quantiles.record(10));
        assert_eq!(quantiles.quantile_ns(1.0), Some(10));
    }
}
