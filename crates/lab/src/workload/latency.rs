//! Latencies of single operations.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// Maximum latency that is recorded, an hour; longer latencies are recorded as an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Histogram of latencies in ns, to three digits, and the longest of them.
pub(super) struct Latency {
    all: Histogram<u64>,
    longest_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    pub(super) fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Latency {
            all: histogram.expect("an hour at three digits"),
            longest_ns: 0,
        }
    }

    pub(super) fn record(&mut self, ns: u64) {
        self.all.saturating_record(ns.max(1));
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds the latencies of another histogram.
    pub(super) fn add(&mut self, other: &Latency) {
        self.all.add(&other.all).expect("the same bounds");
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Returns the mean, the quantiles and the maximum in ms, as metrics whose names start with
    /// `of`.
    pub(super) fn figures(&self, of: &str) -> BTreeMap<String, f64> {
        let ms = |ns: f64| ns / 1e6;
        let at = |quantile: f64| ms(self.all.value_at_quantile(quantile) as f64);
        let all = [
            ("mean", ms(self.all.mean())),
            ("p50", at(0.5)),
            ("p99", at(0.99)),
            ("p999", at(0.999)),
            ("max", ms(self.longest_ns as f64)),
        ];
        let named = all.into_iter();
        named
            .map(|(name, value)| (format!("{of}_{name}_ms"), value))
            .collect()
    }
}
