//! Statistics of devices, formatted as JSON for programs and as text for people.

use bimetal_block::Statistic;
use bimetal_block::latency::{OpLatency, Window};
use bimetal_block::layers::shard::Seen;
use serde_json::{Map, Value, json};

/// Converts the statistics of a device to
/// `{"statistics": {NAME: VALUE}, "parts": {PART: {NAME: VALUE}}, "latency": {OPERATION: {...}}}`.
/// A counter is an integer, a gauge is any number, and a state is a string.
pub(crate) fn of(seen: Vec<(String, String, Statistic)>) -> Value {
    let (mut own, mut parts, mut latency) = (Map::new(), Map::new(), Map::new());
    for (part, name, statistic) in seen {
        let value = value(&statistic);
        if let Statistic::Latency(_) = statistic {
            latency.insert(name, value);
        } else if part.is_empty() {
            own.insert(name, value);
        } else if let Value::Object(of_part) = parts.entry(part).or_insert_with(|| json!({})) {
            of_part.insert(name, value);
        }
    }
    json!({ "statistics": own, "parts": parts, "latency": latency })
}

/// Converts statistics that all describe the same thing, such as an export, to
/// `{"statistics": {NAME: VALUE}, "latency": {OPERATION: {...}}}`.
pub(crate) fn of_whole(seen: Vec<(String, String, Statistic)>) -> Value {
    let mut value = of(seen);
    if let Value::Object(fields) = &mut value {
        fields.remove("parts");
    }
    value
}

/// Converts one statistic. A gauge that is not finite becomes `null`, because JSON has no number
/// for it.
fn value(statistic: &Statistic) -> Value {
    match statistic {
        Statistic::Counter(count) => json!(count),
        Statistic::Gauge(value) => json!(value),
        Statistic::State(word) => json!(word),
        Statistic::Latency(latency) => latency_value(latency),
    }
}

/// Converts the latencies of an operation.
fn latency_value(latency: &OpLatency) -> Value {
    let mut value = json!({
        "in_flight": latency.in_flight,
        "waiting_ns": latency.waiting_ns,
        "answered_ns": latency.answered_ns,
        "longest": { "latency_ns": latency.longest.latency_ns, "unix_s": latency.longest.unix_s },
        "buckets": latency.buckets,
    });
    for (window, of_window) in Window::ALL.iter().zip(&latency.windows) {
        value[window.name()] = json!({
            "seconds": of_window.seconds,
            "requests": of_window.requests,
            "errors": of_window.errors,
            "bytes": of_window.bytes,
            "queue": of_window.queue,
            "p50_ns": of_window.p50_ns,
            "p99_ns": of_window.p99_ns,
            "p999_ns": of_window.p999_ns,
            "max_ns": of_window.max_ns,
        });
    }
    value
}

/// Converts open devices to `{DEVICE: {"type": .., "size_bytes": .., "children": [..], ..}}` with
/// their statistics.
pub(crate) fn of_devices(devices: Vec<Seen>) -> Map<String, Value> {
    let devices = devices.into_iter().map(|seen| {
        let shown = json!({
            "type": seen.kind,
            "size_bytes": seen.size_bytes,
            "children": seen.children,
        });
        (seen.name, with(shown, of(seen.statistics)))
    });
    devices.collect()
}

/// Returns an object with the entries of another one in addition.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(into), Value::Object(from)) = (&mut object, more) {
        into.extend(from);
    }
    object
}

/// Beginnings of the names of internal counters.
const INTERNAL: [&str; 15] = [
    "log_entries",
    "log_records",
    "log_paced",
    "logged_bytes",
    "log_written",
    "destage",
    "replaced",
    "checksum_",
    "map_",
    "mode_switches",
    "write_median",
    "merged",
    "rewritten",
    "written_damaged",
    "segments_cleaned",
];
/// Suffixes that can follow the unit in the name of a statistic. A suffix says that the statistic
/// is the peak, the maximum or the minimum of a value.
const WHICH: [&str; 3] = ["_peak", "_max", "_min"];

/// Returns true for a counter of work inside a device, which people do not need in operation.
pub(crate) fn is_internal(name: &str) -> bool {
    INTERNAL.iter().any(|prefix| name.starts_with(prefix))
}

/// Formats one statistic for people. The unit is taken from the end of its name.
pub(crate) fn show(name: &str, value: &Value) -> String {
    let Some(number) = value.as_f64() else {
        return value.as_str().unwrap_or("-").to_owned();
    };
    // A suffix after the unit (peak, maximum, minimum) is removed.
    let name = WHICH
        .iter()
        .find_map(|which| name.strip_suffix(which))
        .unwrap_or(name);
    let unit = |suffix: &str| name.ends_with(suffix);
    if unit("_bytes_per_s") {
        return format!("{}/s", bimetal_block::units::show_size(number as u64));
    }
    if unit("_bytes") {
        return bimetal_block::units::show_size(number as u64);
    }
    let scale_ns = [
        ("_ns", 1.0),
        ("_us", 1e3),
        ("_ms", 1e6),
        ("_seconds", 1e9),
        ("_s", 1e9),
    ]
    .into_iter()
    .find(|(suffix, _)| unit(suffix) && !unit("_per_s"));
    match (scale_ns, value.as_u64()) {
        (Some((_, scale)), _) => bimetal_console::latency::show_latency((number * scale) as u64),
        (None, Some(count)) => bimetal_block::units::show_count(count),
        (None, None) if number.fract() == 0.0 => format!("{number:.0}"),
        (None, None) => format!("{number:.2}"),
    }
}

/// Returns the name of a statistic for people, as words. The unit is omitted, because the formatted
/// value contains it.
pub(crate) fn label(name: &str) -> String {
    // This statistic is the age of `exposed_bytes` and is shown next to it.
    if name == "exposed_seconds" {
        return "exposed for".to_owned();
    }
    if name == "exposed_seconds_max" {
        return "exposed for at most".to_owned();
    }
    // This one is the time for which `health` is what it is.
    if name == "health_seconds" {
        return "health for".to_owned();
    }
    let name = name.replace("_bytes_", " ");
    let suffixes = ["_bytes", "_ns", "_us", "_ms", "_seconds"];
    let stem = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
    let stem = stem.or_else(|| match name.strip_suffix("_s") {
        Some(stem) if !stem.ends_with("per") => Some(stem),
        _ => None,
    });
    stem.unwrap_or(&name).replace('_', " ")
}

/// Lays figures out, several on each line of at most `width` columns. Those that are 0, such as
/// counters of what did not happen and empty queues, are left out; `--json` has them.
pub(crate) fn flowing<'a>(
    figures: impl Iterator<Item = (&'a String, &'a Value)>,
    width: usize,
) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in figures.filter(|(_, value)| value.as_f64() != Some(0.0)) {
        let words = format!("{} {}", label(name), show(name, value));
        match lines.last_mut() {
            Some(line) if line.len() + words.len() + 3 <= width => {
                line.push_str(" | ");
                line.push_str(&words);
            }
            _ => lines.push(words),
        }
    }
    lines
}

/// Returns a duration in words, with its two largest units.
pub(crate) fn show_uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptimes_have_two_units() {
        for (seconds, shown) in [
            (59.9, "59 s"),
            (61.0, "1 min 1 s"),
            (3_661.0, "1 h 1 min"),
            (90_000.0, "1 d 1 h"),
        ] {
            assert_eq!(show_uptime(seconds), shown);
        }
    }

    #[test]
    fn units_are_read_from_names() {
        assert_eq!(show("exposed_bytes", &json!(1 << 20)), "1 MiB");
        for bound in ["exposed_bytes_peak", "exposed_bytes_max", "free_bytes_min"] {
            assert_eq!(show(bound, &json!(30_402_560.0)), "29.0 MiB", "{bound}");
        }
        assert_eq!(label("exposed_bytes_max"), "exposed max");
        assert_eq!(show("connections_max", &json!(3)), "3");
        assert_eq!(show("rate_bytes_per_s", &json!(2048.0)), "2 KiB/s");
        assert_eq!(show("lag_ns", &json!(1_500_000)), "1.5 ms");
        assert_eq!(show("age_s", &json!(0.25)), "250 ms");
        assert_eq!(show("switches_per_s", &json!(0.5)), "0.50");
        assert_eq!(show("reads", &json!(12_345)), "12,345");
        assert_eq!(show("lag_seconds", &json!(1.5)), "1.50 s");
        assert_eq!(show("connections", &json!(3.0)), "3");
        assert_eq!(show("mode", &json!("delayed")), "delayed");
        assert_eq!(label("exposed_bytes"), "exposed");
        assert_eq!(label("exposed_seconds_max"), "exposed for at most");
        assert_eq!(label("exposed_bytes_peak"), "exposed peak");
        assert_eq!(label("rate_bytes_per_s"), "rate per s");
        assert_eq!(label("age_s"), "age");
        assert_eq!(label("switches_per_s"), "switches per s");
    }
}
