//! Latencies of the requests of a run: a histogram, and the longest latency itself.
//!
//! A histogram has each value to three digits only. A maximum that was taken from it would be the
//! end of a class, which no request took.

use hdrhistogram::Histogram;

/// Maximum latency of the histogram in ns, an hour. Longer latencies are counted as an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The latencies in ns of some requests.
pub struct LatencyHistogram {
    all: Histogram<u64>,
    longest_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        let all = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        LatencyHistogram {
            all: all.expect("an hour at three digits"),
            longest_ns: 0,
        }
    }
}

impl LatencyHistogram {
    /// Counts a latency.
    pub fn record(&mut self, ns: u64) {
        self.all.saturating_record(ns.max(1));
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds the latencies of another histogram.
    pub fn add(&mut self, other: &LatencyHistogram) {
        self.all.add(&other.all).expect("the same bounds");
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.all.len()
    }

    /// Returns the mean in ns; 0 without latencies.
    pub fn mean_ns(&self) -> f64 {
        self.all.mean()
    }

    /// Returns the latency in ns, to three digits, that a share of the requests does not exceed; 0
    /// without latencies.
    pub fn at_ns(&self, share: f64) -> u64 {
        self.all.value_at_quantile(share)
    }

    /// Returns the longest latency in ns, to the digit; 0 without latencies.
    pub fn longest_ns(&self) -> u64 {
        self.longest_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_latency_has_all_of_its_digits_also_after_an_addition() {
        let (mut one, mut other) = (LatencyHistogram::default(), LatencyHistogram::default());
        one.record(55_555_555);
        other.record(123_456_789);
        other.record(0);
        one.add(&other);
        assert_eq!((one.count(), one.longest_ns()), (3, 123_456_789));
        // The median of 0, 55.6 and 123.5 ms is the second, to a thousandth.
        assert!(one.at_ns(0.5).abs_diff(55_555_555) <= 55_556);
    }
}
