//! The statistics of a server as families of metrics, by the conventions of Prometheus: names in
//! base units with the unit last, and labels from small sets. `docs/metrics.md` lists them.
//!
//! A label must never have a value of which there can be arbitrarily many, such as the words of an
//! error.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use bimetal_block::Statistic;
use bimetal_block::latency::{OpLatency, Window};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Upper bounds of the buckets of the histograms, in seconds. A latency is counted in a bucket only
/// if it is certainly not longer.
const BOUNDS_S: [f64; 17] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
];
/// Statistics in words that have few values.
const STATES: [&str; 6] = ["state", "health", "mode", "mark", "operation", "scrub"];
/// Suffixes that can follow the unit in the name of a statistic, and stand before it in a metric.
const WHICH: [&str; 3] = ["_peak", "_max", "_min"];

/// Label of a sample: its name and value.
pub(super) type Label = (&'static str, String);

#[derive(Clone, Debug)]
enum Value {
    Counter(f64),
    Gauge(f64),
    Histogram {
        sum_s: f64,
        count: u64,
        buckets: Vec<(f64, u64)>,
    },
}

#[derive(Debug)]
struct Family {
    help: String,
    samples: Vec<(Vec<Label>, Value)>,
}

/// Families of metrics, by their names without the suffix `_total`.
#[derive(Debug, Default)]
pub(super) struct Families(BTreeMap<String, Family>);

impl Families {
    fn add(&mut self, name: String, help: &str, labels: Vec<Label>, value: Value) {
        let family = self.0.entry(name).or_insert_with(|| Family {
            help: help.to_owned(),
            samples: Vec::new(),
        });
        family.samples.push((labels, value));
    }

    /// Adds a gauge.
    pub(super) fn gauge(&mut self, name: &str, help: &str, labels: Vec<Label>, value: f64) {
        self.add(name.to_owned(), help, labels, Value::Gauge(value));
    }

    /// Adds a statistic of something of a kind, such as an export or a mirror, or of a part of it.
    pub(super) fn statistic(
        &mut self,
        kind: &str,
        mut labels: Vec<Label>,
        (part, name): (&str, &str),
        statistic: &Statistic,
    ) {
        let kind = kind.replace('-', "_");
        let (scope, what) = match (part, kind.as_str()) {
            ("", _) => (kind.clone(), "It"),
            (_, "mirror") => (format!("{kind}_side"), "Its side"),
            _ => (format!("{kind}_part"), "Its part"),
        };
        if !part.is_empty() {
            let label = if kind == "mirror" { "side" } else { "part" };
            labels.push((label, part.to_owned()));
        }
        let (metric, scale) = metric_of(name);
        let full = format!("bimetal_{scope}_{metric}");
        let help = format!("{what}: the figure {name} of the page of this {kind}");
        match statistic {
            Statistic::Counter(count) => {
                self.add(full, &help, labels, Value::Counter(*count as f64 * scale));
            }
            Statistic::Gauge(value) if value.is_finite() => {
                self.add(full, &help, labels, Value::Gauge(value * scale));
            }
            Statistic::State(word) if STATES.contains(&name) => {
                labels.push(("is", word.clone()));
                self.add(full, &help, labels, Value::Gauge(1.0));
            }
            Statistic::Gauge(_) | Statistic::State(_) => {}
            Statistic::Latency(latency) => {
                labels.push(("operation", name.replace('-', "_")));
                self.latency(&scope, labels, latency);
            }
        }
    }

    fn latency(&mut self, scope: &str, labels: Vec<Label>, latency: &OpLatency) {
        let all = &latency.windows[Window::Start as usize];
        let name = |what: &str| format!("bimetal_{scope}_request_{what}");
        self.add(
            name("duration_seconds"),
            "Time from the request to its answer",
            labels.clone(),
            Value::Histogram {
                sum_s: all.queue * all.seconds,
                count: all.requests,
                buckets: buckets(&latency.buckets),
            },
        );
        for (what, help, value) in [
            ("bytes", "Bytes of successful requests", all.bytes as f64),
            ("errors", "Failed requests", all.errors as f64),
        ] {
            self.add(name(what), help, labels.clone(), Value::Counter(value));
        }
        for (what, help, value) in [
            (
                "in_flight",
                "Requests without an answer",
                latency.in_flight as f64,
            ),
            (
                "oldest_seconds",
                "Time for which the oldest request without an answer has been in flight",
                latency.waiting_ns as f64 / 1e9,
            ),
        ] {
            self.add(name(what), help, labels.clone(), Value::Gauge(value));
        }
    }

    /// Returns the metrics as text, in the format of OpenMetrics or of Prometheus.
    ///
    /// # Errors
    /// Never: a string takes everything.
    pub(super) fn text(self, is_open_metrics: bool) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        match is_open_metrics {
            true => Ok(text),
            false => plain(&text),
        }
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, family) in &self.0 {
            let kind = match family.samples.first() {
                Some((_, Value::Counter(_))) => MetricType::Counter,
                Some((_, Value::Histogram { .. })) => MetricType::Histogram,
                _ => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(name, &family.help, None, kind)?;
            for (labels, value) in &family.samples {
                encode(&mut metric.encode_family(&labels.as_slice())?, value)?;
            }
        }
        Ok(())
    }
}

fn encode(sample: &mut MetricEncoder<'_>, value: &Value) -> Result<(), fmt::Error> {
    match value {
        Value::Counter(count) => sample.encode_counter::<NoLabelSet, _, f64>(count, None),
        Value::Gauge(value) => sample.encode_gauge(value),
        Value::Histogram {
            sum_s,
            count,
            buckets,
        } => sample.encode_histogram::<NoLabelSet>(*sum_s, *count, buckets, None),
    }
}

/// Returns the numbers of requests in the buckets of a metric, by the longest latencies of the
/// buckets of a histogram.
fn buckets(of_histogram: &[(u64, u64)]) -> Vec<(f64, u64)> {
    let mut buckets: Vec<(f64, u64)> = BOUNDS_S.iter().map(|bound| (*bound, 0)).collect();
    buckets.push((f64::MAX, 0));
    for (longest_ns, count) in of_histogram {
        let longest_s = *longest_ns as f64 / 1e9;
        let at = buckets.partition_point(|(bound, _)| *bound < longest_s);
        buckets[at].1 += count;
    }
    buckets
}

/// Returns the name of the metric of a statistic, without prefix, and the factor by which its value
/// is multiplied: times are in seconds, and the unit stands last.
fn metric_of(name: &str) -> (String, f64) {
    let name = name.replace('-', "_");
    let which = WHICH.iter().find(|which| name.ends_with(*which));
    let which = which.copied().unwrap_or("");
    let stem = name.strip_suffix(which).unwrap_or(&name);
    for (suffix, unit, scale) in [
        ("_per_s", "_per_second", 1.0),
        ("_ns", "_seconds", 1e-9),
        ("_us", "_seconds", 1e-6),
        ("_ms", "_seconds", 1e-3),
        ("_seconds", "_seconds", 1.0),
        ("_s", "_seconds", 1.0),
        ("_bytes", "_bytes", 1.0),
    ] {
        if let Some(stem) = stem.strip_suffix(suffix) {
            return (format!("{stem}{which}{unit}"), scale);
        }
    }
    (name, 1.0)
}

/// Converts text in the format of OpenMetrics to that of Prometheus, in which a counter is declared
/// with its suffix, and which has neither units nor an end.
fn plain(text: &str) -> Result<String, fmt::Error> {
    let mut plain = String::new();
    let mut counters = std::collections::BTreeSet::new();
    for line in text.lines() {
        let of_type = line.strip_prefix("# TYPE ");
        let counter = of_type.and_then(|of| of.strip_suffix(" counter"));
        counters.extend(counter);
    }
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("EOF" | "UNIT"), _, _) => {}
            (Some("#"), Some(what), Some(name), Some(rest)) if counters.contains(name) => {
                writeln!(plain, "# {what} {name}_total {rest}")?;
            }
            _ => writeln!(plain, "{line}")?,
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_base_units_last() {
        for (statistic, metric, scale) in [
            ("exposed_bytes", "exposed_bytes", 1.0),
            ("exposed_bytes_peak", "exposed_peak_bytes", 1.0),
            ("late_ns_max", "late_max_seconds", 1e-9),
            ("write_median_ns", "write_median_seconds", 1e-9),
            ("rate_bytes_per_s", "rate_bytes_per_second", 1.0),
            ("age_s", "age_seconds", 1.0),
            ("seeks", "seeks", 1.0),
        ] {
            assert_eq!(metric_of(statistic), (metric.to_owned(), scale));
        }
    }

    fn sample() -> Families {
        let mut families = Families::default();
        let device = || vec![("device", "vol".to_owned())];
        let of = |name| ("", name);
        families.statistic(
            "mirror",
            device(),
            of("backpressured_writes"),
            &Statistic::Counter(3),
        );
        let side = ("fast", "health");
        families.statistic(
            "mirror",
            device(),
            side,
            &Statistic::State("healthy".to_owned()),
        );
        // Words of which there can be any number are no label.
        let reason = Statistic::State("silent for 1.0 s".to_owned());
        families.statistic("mirror", device(), ("fast", "absent_reason"), &reason);
        families
    }

    #[test]
    fn both_formats_declare_a_counter_as_they_should() {
        let open = sample().text(true).expect("a string takes it");
        assert!(
            open.contains("# TYPE bimetal_mirror_backpressured_writes counter\n"),
            "{open}"
        );
        assert!(open.contains("bimetal_mirror_backpressured_writes_total{device=\"vol\"} 3"));
        assert!(open.ends_with("# EOF\n"));
        let plain = sample().text(false).expect("a string takes it");
        let declared = "# TYPE bimetal_mirror_backpressured_writes_total counter\n";
        assert!(plain.contains(declared), "{plain}");
        assert!(!plain.contains("EOF"));
        let health = "bimetal_mirror_side_health{device=\"vol\",side=\"fast\",is=\"healthy\"} 1";
        assert!(plain.contains(health), "{plain}");
        assert!(!plain.contains("silent"), "{plain}");
    }

    /// 10 requests of up to 100 us, 5 of up to 110 us, 1 of up to 20 s.
    #[test]
    fn a_latency_is_in_a_bucket_only_if_it_is_not_longer() {
        let found = buckets(&[(100_000, 10), (110_000, 5), (20_000_000_000, 1)]);
        let filled: Vec<(f64, u64)> = found.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.000_1, 10), (0.000_25, 5), (f64::MAX, 1)]);
    }
}
