//! Metrics of the real program: what a reader of `GET /metrics` gets, and what is refused.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use bimetal_tests::client::Client;
use bimetal_tests::nbd::Wire;
use bimetal_tests::server::binary;
use bimetal_tests::volume::{MIB, Volume, assert_refused};
use serde_json::Value;

/// Adds the key `metrics` to the configuration of a volume.
fn listen(volume: &Volume, address: &str) {
    let text = std::fs::read_to_string(volume.config()).expect("the configuration");
    let server = format!("{text}\n[server]\nmetrics = \"{address}\"\n");
    volume.dir().text("vol.toml", &server);
}

/// Returns the body of the answer to `GET /metrics`.
fn scrape(socket: &Path, accept: &str) -> String {
    let mut stream = UnixStream::connect(socket).expect("the server listens");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it is read");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it is text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// Returns the values of the samples, by their names with labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
        (name.to_owned(), value)
    };
    lines.map(sample).collect()
}

#[test]
fn what_clients_do_is_in_the_metrics_and_each_metric_is_on_the_page() {
    let volume = Volume::mirror("metrics", 64 * MIB);
    listen(&volume, "unix:vol.metrics");
    let _server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for block in 0..20 {
        wire.write(block * 4096, &[7; 4096]);
    }
    let socket = volume.dir().file("vol.metrics");
    let text = scrape(&socket, "text/plain");
    let found = samples(&text);
    let of = |name: &str| found.get(name).copied();
    for place in ["export=\"vol\"", "device=\"vol\""] {
        let kind = if place.starts_with("export") {
            "export"
        } else {
            "device"
        };
        let name = format!("bimetal_{kind}_request_duration_seconds");
        let labels = format!("{place},operation=\"write\"");
        assert_eq!(
            of(&format!("{name}_count{{{labels}}}")),
            Some(20.0),
            "{text}"
        );
        let all = format!("{name}_bucket{{le=\"+Inf\",{labels}}}");
        assert_eq!(of(&all), Some(20.0), "{text}");
    }
    let written = "bimetal_device_request_bytes_total{device=\"vol\",operation=\"write\"}";
    assert_eq!(of(written), Some(20.0 * 4096.0));
    assert_eq!(of("bimetal_health{is=\"healthy\"}"), Some(1.0));
    assert_eq!(of("bimetal_health{is=\"degraded\"}"), Some(0.0));

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let families: Vec<&str> = families.filter_map(|line| line.split(' ').next()).collect();
    assert!(families.len() > 50, "{families:?}");
    for family in families {
        // The page lists the metrics of requests once for exports, attached devices and devices.
        let listed = family.replace("bimetal_export_request_", "bimetal_device_request_");
        assert!(
            page.contains(&format!("`{listed}`")),
            "{family} is not on the page"
        );
    }
    let open = scrape(&socket, "application/openmetrics-text; version=1.0.0");
    assert!(open.ends_with("# EOF\n"), "{open}");
}

#[test]
fn an_address_for_metrics_that_cannot_be_used_is_refused_with_a_reason() {
    let volume = Volume::mirror("metrics-refused", 64 * MIB);
    let text = std::fs::read_to_string(volume.config()).expect("the configuration");
    let serve = || {
        Client::new(binary())
            .arg("serve")
            .arg(volume.config())
            .within_s(60)
            .run()
    };
    listen(&volume, "tcp:0.0.0.0:9751");
    assert_refused(&serve(), &["can be reached from other machines"]);
    volume.dir().text("vol.toml", &text);
    listen(&volume, "unix:kept.txt");
    volume.dir().text("kept.txt", "somebody's file");
    assert_refused(&serve(), &["cannot listen at"]);
    let kept = std::fs::read_to_string(volume.dir().file("kept.txt"));
    assert_eq!(kept.expect("it is there"), "somebody's file");
}

/// The alerts are written in another language, which knows nothing of the names of the metrics.
#[test]
fn each_alert_uses_metrics_that_exist_and_has_a_place_on_the_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("it is in the tree");
    let page = read("docs/metrics.md");
    let rules = read("contrib/prometheus/bimetal.rules.yml");
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics: Vec<&str> = words.filter(|word| word.starts_with("bimetal_")).collect();
    assert!(metrics.len() > 10, "{metrics:?}");
    for metric in metrics {
        let listed = metric.replace("_export_request_", "_device_request_");
        let listed = listed.replace("_attached_request_", "_device_request_");
        let listed = listed.trim_end_matches("_bucket");
        assert!(page.contains(&format!("`{listed}`")), "{metric}");
    }
    let lines = rules.lines().map(str::trim);
    let alerts: Vec<&str> = lines
        .filter_map(|line| line.strip_prefix("- alert: "))
        .collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(page.contains(&format!("\n### {alert}\n")), "{alert}");
        let place = format!("page: docs/metrics.md#{}\n", alert.to_lowercase());
        assert!(rules.contains(&place), "{alert}");
    }
}

/// Grafana replaces its variables before Prometheus sees an expression. So does this test, which
/// has Prometheus read each of them, and a real server answer for each metric.
#[test]
fn each_panel_of_the_dashboard_has_metrics_that_exist_and_expressions_that_are_right() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).expect("it is in the tree");
    let page = read("docs/metrics.md");
    let board: Value = serde_json::from_str(&read("contrib/grafana/bimetal.json")).expect("JSON");
    assert_eq!(board["uid"], "bimetal");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let panels = list(&board["panels"]);
    assert!(panels.len() > 10);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let expressions: Vec<String> = targets.map(|target| text(&target["expr"])).collect();
    let variables = list(&board["templating"]["list"]);
    let queries = variables
        .iter()
        .map(|variable| text(&variable["definition"]));
    let all: Vec<String> = expressions.iter().cloned().chain(queries).collect();

    let volume = Volume::mirror("dashboard", 64 * MIB);
    listen(&volume, "unix:vol.metrics");
    let _server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &[7; 4096]);
    let scraped = scrape(&volume.dir().file("vol.metrics"), "text/plain");
    // Of a volume whose sides have room for all of it, and without a rebuild, there are none.
    let at_times = ["room_bytes", "content_bytes", "resync_left_seconds"];
    for all in &all {
        let words = all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for metric in words.filter(|word| word.starts_with("bimetal_")) {
            let listed = metric.replace("_export_request_", "_device_request_");
            let listed = listed
                .trim_end_matches("_bucket")
                .trim_end_matches("_count");
            assert!(
                page.contains(&format!("`{listed}`")),
                "{metric} is not on the page"
            );
            let is_there = scraped.contains(&format!("\n{metric}{{"))
                || scraped.contains(&format!("\n{metric} "));
            let is_rare = at_times.iter().any(|end| metric.ends_with(end));
            assert!(is_there || is_rare, "{metric} is not scraped: {scraped}");
        }
    }

    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (at, expression) in expressions.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m");
        let expression = ["$job", "$volume", "$device"]
            .iter()
            .fold(expression, |all, variable| all.replace(variable, ".*"));
        assert!(
            !expression.contains('$'),
            "a variable is not known: {expression}"
        );
        let quoted = Value::String(expression);
        rules += &format!("      - record: panel_{at}\n        expr: {quoted}\n");
    }
    let rules = volume.dir().text("rules.yml", &rules);
    let checked = Client::new("promtool")
        .args(["check", "rules"])
        .arg(rules)
        .ok();
    let found = format!("{} rules found", expressions.len());
    assert!(checked.stdout.contains(&found), "{checked}");
}
