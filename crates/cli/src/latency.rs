//! The latencies of an export or a device, as a table for people.

use bimetal_block::units::{show_count, show_size};
use bimetal_console::latency::show_latency;
use bimetal_console::table::{Align, Table};
use serde_json::{Map, Value};

/// Windows of which the first with requests is shown, with their headings.
const WINDOWS: [(&str, &str); 3] = [
    ("last_10_s", "last 10 s"),
    ("last_10_min", "last 10 min"),
    ("since_start", "since start"),
];
/// Time for which a request has to wait to be mentioned.
const WAITING_NS_MIN: u64 = 1_000_000_000;

/// Formats the latencies of an export or a device, by operation. Operations that did not occur are
/// omitted.
pub(crate) fn lines(latency: &Map<String, Value>) -> Vec<String> {
    let occurs = |of_op: &Value, window: &str| of_op[window]["requests"].as_u64() > Some(0);
    let mut windows = WINDOWS.into_iter();
    let shown = windows.find(|(window, _)| latency.values().any(|of_op| occurs(of_op, window)));
    let mut lines = Vec::new();
    if let Some((window, heading)) = shown {
        let mut columns = vec![(heading, Align::Left)];
        let numbers = ["", "/s", "queue", "median", "99 %", "99.9 %", "longest"];
        columns.extend(numbers.map(|name| (name, Align::Right)));
        let mut table = Table::new(&columns);
        for (op, of_op) in latency.iter().filter(|(_, of_op)| occurs(of_op, window)) {
            table.row(row(op, &of_op[window]));
        }
        lines.extend(table.lines());
    }
    lines.extend(latency.iter().filter_map(|(op, of_op)| waiting(op, of_op)));
    lines.into_iter().map(|line| format!("  {line}")).collect()
}

fn row(op: &str, of_window: &Value) -> Vec<String> {
    let number = |name: &str| of_window[name].as_f64().unwrap_or(0.0);
    let seconds = number("seconds").max(f64::MIN_POSITIVE);
    let requests_per_s = number("requests") / seconds;
    let bytes_per_s = (number("bytes") / seconds) as u64;
    let latency = |name: &str| match number(name) as u64 {
        // Within a turn of the thread, there is no time.
        0..1_000 => "< 1 us".to_owned(),
        latency_ns => show_latency(latency_ns),
    };
    vec![
        op.replace('-', " "),
        match bytes_per_s {
            0 => String::new(),
            bytes_per_s => format!("{}/s", show_size(bytes_per_s)),
        },
        match requests_per_s < 10.0 {
            true => format!("{requests_per_s:.1}"),
            false => show_count(requests_per_s as u64),
        },
        format!("{:.1}", number("queue")),
        latency("p50_ns"),
        latency("p99_ns"),
        latency("p999_ns"),
        latency("max_ns"),
    ]
}

/// Returns a line about the oldest request in flight, if it has been waiting for long.
fn waiting(op: &str, of_op: &Value) -> Option<String> {
    let waiting_ns = of_op["waiting_ns"].as_u64()?;
    let in_flight = of_op["in_flight"].as_u64()?;
    (waiting_ns >= WAITING_NS_MIN).then(|| {
        let time = show_latency(waiting_ns);
        match in_flight {
            1 => format!("{op}: a request has had no answer for {time}"),
            _ => format!("{op}: {in_flight} requests have no answer, the oldest for {time}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_op(requests: [u64; 3], waiting_ns: u64) -> Value {
        let window = |requests: u64, seconds: u64| {
            json!({
                "seconds": seconds, "requests": requests, "errors": 0, "bytes": requests * 4096,
                "queue": 1.5, "p50_ns": 90_000, "p99_ns": 2_000_000, "p999_ns": 30_000_000,
                "max_ns": 86_000_000,
            })
        };
        json!({
            "in_flight": 2,
            "waiting_ns": waiting_ns,
            "last_10_s": window(requests[0], 10),
            "last_10_min": window(requests[1], 600),
            "since_start": window(requests[2], 6000),
        })
    }

    fn shown(latency: &Value) -> Vec<String> {
        lines(latency.as_object().expect("it is an object"))
    }

    #[test]
    fn the_newest_window_with_requests_is_shown() {
        let latency =
            json!({ "read": of_op([0, 0, 9], 0), "write": of_op([20_000, 30_000, 40_000], 0) });
        assert_eq!(
            shown(&latency),
            [
                "  last 10 s                /s  queue   median    99 %   99.9 %  longest",
                "  write      7.8 MiB/s  2,000    1.5  90.0 us  2.0 ms  30.0 ms  86.0 ms",
            ]
        );
        let idle = json!({ "read": of_op([0, 0, 9], 0) });
        assert!(shown(&idle)[0].starts_with("  since start"), "{idle}");
        assert_eq!(shown(&json!({})), Vec::<String>::new());
    }

    #[test]
    fn a_request_without_an_answer_is_mentioned() {
        let latency = json!({ "flush": of_op([0, 0, 0], 12_000_000_000) });
        assert_eq!(
            shown(&latency),
            ["  flush: 2 requests have no answer, the oldest for 12.00 s"]
        );
    }
}
