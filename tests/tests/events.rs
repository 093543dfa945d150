//! `bimetal events`: what has happened to the volumes of a running server.

use bimetal_tests::client::Client;
use bimetal_tests::deadline::eventually;
use bimetal_tests::server::binary;
use bimetal_tests::volume::{MIB, Volume, assert_refused, mirror_toml};
use serde_json::Value;

#[test]
fn a_later_reader_is_told_that_a_side_is_absent() {
    let volume = Volume::mirror("events", 64 * MIB);
    std::fs::remove_file(volume.dir().file("b.img")).expect("it was formatted");
    let events = |words: &[&str]| {
        let client = Client::new(binary()).arg("events").arg(volume.config());
        client.args(words).within_s(60).run()
    };
    assert_refused(&events(&[]), &["no server answers", "bimetal serve"]);
    let _server = volume.serve();
    // The server looks for events from time to time.
    let shown = eventually(30, "the event", || {
        let outcome = events(&[]);
        assert_eq!(outcome.status, Some(0), "{outcome}");
        (!outcome.stdout.is_empty()).then_some(outcome.stdout)
    });
    assert!(shown.contains("vol: side b: is absent"), "{shown}");
    assert_eq!(shown.lines().count(), 1, "{shown}");
    let json = events(&["--json"]).stdout;
    let event: Value = serde_json::from_str(json.trim_end()).expect("one line of JSON");
    assert_eq!(event["event"], "side-absent");
    assert_eq!(
        (&event["volume"], &event["side"]),
        (&"vol".into(), &"b".into())
    );
    assert_eq!(event["number"], 1);
}

/// A report has what happened, the status and the configuration, but no secret. Without a server,
/// it has the rest.
#[test]
fn a_report_has_what_a_helper_needs_and_no_secret() {
    let toml =
        mirror_toml() + "\n[server]\nalert = \"notify --token hunter2 # $BIMETAL_MESSAGE\"\n";
    let volume = Volume::from_toml("report", &toml);
    for side in ["a.img", "b.img"] {
        volume.dir().sparse(side, 64 * MIB);
    }
    volume.verb("format").ok();
    let report = || {
        let text = volume.verb("report").ok().stdout;
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("sides = [\"a\", \"b\"]"), "{text}");
        text
    };
    let text = report();
    assert!(text.contains("no server answers"), "{text}");
    std::fs::remove_file(volume.dir().file("b.img")).expect("it was formatted");
    let server = volume.serve();
    let text = eventually(30, "the event", || {
        Some(report()).filter(|text| text.contains("\"side-absent\""))
    });
    for words in ["gone  vol: side b", "## status", "VmRSS", "\"driver\""] {
        assert!(text.contains(words), "{words}: {text}");
    }
    server.stop();
}

/// With `log = "json"`, each line of the server is an object with the same keys, and an event has
/// its name, its side and what to do.
#[test]
fn a_log_of_json_has_an_object_on_each_line() {
    let toml = mirror_toml() + "\n[server]\nlog = \"json\"\n";
    let volume = Volume::from_toml("log-json", &toml);
    for side in ["a.img", "b.img"] {
        volume.dir().sparse(side, 64 * MIB);
    }
    volume.verb("format").ok();
    std::fs::remove_file(volume.dir().file("b.img")).expect("it was formatted");
    let server = volume.serve();
    let said = eventually(30, "the event", || {
        Some(server.said()).filter(|said| said.contains("side-absent"))
    });
    let keys = [
        "unix_s", "event", "priority", "volume", "side", "cause", "advice",
    ];
    let mut events = Vec::new();
    for line in said.lines().filter(|line| !line.starts_with("---")) {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let found: Vec<&str> = object
            .as_object()
            .expect(line)
            .keys()
            .map(String::as_str)
            .collect();
        assert_eq!(keys.len(), found.len(), "{line}");
        assert!(keys.iter().all(|key| found.contains(key)), "{line}");
        events.push(object);
    }
    let absent = events.iter().find(|event| event["event"] == "side-absent");
    let absent = absent.expect("the event");
    assert_eq!(
        (&absent["volume"], &absent["side"]),
        (&"vol".into(), &"b".into())
    );
    // An error, as in syslog(3).
    assert_eq!(absent["priority"], 3);
    let advice = absent["advice"].as_str().expect("a sentence");
    assert!(advice.contains("replace the side"), "{advice}");
    server.stop();
}
