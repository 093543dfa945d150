//! Latencies of single operations.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// Maximum latency that is recorded, an hour; longer latencies are recorded as an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Histogram of latencies in ns, to three digits.
pub(super) struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    pub(super) fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Latency(histogram.expect("an hour at three digits"))
    }

    pub(super) fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Adds the latencies of another histogram.
    pub(super) fn add(&mut self, other: &Latency) {
        self.0.add(&other.0).expect("the same bounds");
    }

    /// Returns the mean, the quantiles and the maximum in ms, as metrics whose names start with
    /// `of`.
    pub(super) fn figures(&self, of: &str) -> BTreeMap<String, f64> {
        let ms = |ns: f64| ns / 1e6;
        let at = |quantile: f64| ms(self.0.value_at_quantile(quantile) as f64);
        let all = [
            ("mean", ms(self.0.mean())),
            ("p50", at(0.5)),
            ("p99", at(0.99)),
            ("p999", at(0.999)),
            ("max", ms(self.0.max() as f64)),
        ];
        let named = all.into_iter();
        named
            .map(|(name, value)| (format!("{of}_{name}_ms"), value))
            .collect()
    }
}
