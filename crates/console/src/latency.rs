//! Latency histograms and their formatting.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Histogram of latencies in ns, with a precision of three decimal digits.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// Longest latency, which the histogram has to three digits only.
    longest_ns: u64,
}

/// The percentiles of a latency distribution that every report shows, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percentiles {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// Creates an empty histogram.
    pub fn new() -> Latencies {
        let mut histogram = Histogram::new(3).expect("three digits are in the range");
        histogram.auto(true);
        Latencies {
            histogram,
            longest_ns: 0,
        }
    }

    /// Records one latency.
    pub fn record(&mut self, latency_ns: u64) {
        // The latency is limited to the largest value that the histogram can hold, which is more
        // than a century.
        let latency_ns = latency_ns.min(u64::MAX >> 2);
        self.longest_ns = self.longest_ns.max(latency_ns);
        self.histogram
            .record(latency_ns)
            .expect("a histogram that grows takes every value");
    }

    /// Returns the number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the mean latency in ns.
    pub fn mean_ns(&self) -> f64 {
        self.histogram.mean()
    }

    /// Returns the percentiles; all are zero if no latency was recorded.
    pub fn percentiles(&self) -> Percentiles {
        if self.histogram.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| self.histogram.value_at_quantile(quantile);
        Percentiles {
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.longest_ns,
        }
    }

    /// Returns the number of latencies, their mean and their percentiles as JSON.
    pub fn to_json(&self) -> Value {
        let p = self.percentiles();
        json!({
            "count": self.count(),
            "mean_ns": self.mean_ns(),
            "p50_ns": p.p50_ns,
            "p99_ns": p.p99_ns,
            "p999_ns": p.p999_ns,
            "max_ns": p.max_ns,
        })
    }
}

/// Formats a latency for people, as a number with two to four digits and a unit.
pub fn show_latency(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..100_000 => format!("{:.1} us", ns as f64 / 1e3),
        100_000..1_000_000 => format!("{:.0} us", ns as f64 / 1e3),
        1_000_000..100_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        100_000_000..1_000_000_000 => format!("{:.0} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_known_row() {
        let mut latencies = Latencies::new();
        for us in 1..=1000u64 {
            latencies.record(us * 1000);
        }
        let p = latencies.percentiles();
        // The values are 500, 990, 999 and 1000 us, within the precision of three digits (0.1 %).
        for (got, want) in [
            (p.p50_ns, 500_000.0),
            (p.p99_ns, 990_000.0),
            (p.p999_ns, 999_000.0),
            (p.max_ns, 1_000_000.0),
        ] {
            assert!((got as f64 / want - 1.0).abs() < 0.001, "{p:?}");
        }
        assert_eq!(Latencies::new().percentiles(), Percentiles::default());
    }

    /// The histogram has the longest latency to three digits only: it would name the end of its
    /// class, which no request took.
    #[test]
    fn the_maximum_is_the_longest_latency_itself() {
        let mut latencies = Latencies::new();
        for ns in [1_000, 123_456_789, 55_555_555] {
            latencies.record(ns);
        }
        assert_eq!(latencies.percentiles().max_ns, 123_456_789);
    }

    #[test]
    fn the_extremes_are_counted() {
        let mut latencies = Latencies::new();
        latencies.record(0);
        latencies.record(u64::MAX);
        assert_eq!(latencies.count(), 2);
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(show_latency(999), "999 ns");
        assert_eq!(show_latency(1_500), "1.5 us");
        assert_eq!(show_latency(150_400), "150 us");
        assert_eq!(show_latency(12_345_678), "12.3 ms");
        assert_eq!(show_latency(450_000_000), "450 ms");
        assert_eq!(show_latency(2_345_000_000), "2.35 s");
    }
}
