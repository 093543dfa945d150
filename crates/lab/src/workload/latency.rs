//! Latencies of single operations, as metrics of a run.

use std::collections::BTreeMap;

use bimetal_sim::experiment::latency::LatencyHistogram;

/// Returns the mean, the quantiles and the maximum in ms, as metrics whose names start with `of`.
pub(super) fn figures(latencies: &LatencyHistogram, of: &str) -> BTreeMap<String, f64> {
    let ms = |ns: f64| ns / 1e6;
    let at = |share: f64| ms(latencies.at_ns(share) as f64);
    let all = [
        ("mean", ms(latencies.mean_ns())),
        ("p50", at(0.5)),
        ("p99", at(0.99)),
        ("p999", at(0.999)),
        ("max", ms(latencies.longest_ns() as f64)),
    ];
    let named = all.into_iter();
    named
        .map(|(name, value)| (format!("{of}_{name}_ms"), value))
        .collect()
}
