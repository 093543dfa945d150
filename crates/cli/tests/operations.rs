//! Operations on a volume that is served, as their user sees them.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{MIRROR, Scratch, Served, arg, assert_refused, stdout_of};
use serde_json::Value;

const NEW: &str = "[device.c]\ntype = \"file\"\npath = \"c.img\"\nsize = \"32MiB\"\n";

fn status(config: &Path) -> Value {
    let said = common::bimetal(&["status", arg(config), "--json"]);
    serde_json::from_slice(&said.stdout).unwrap()
}

/// Waits until the status of the server is as it should be; the test fails at its deadline.
fn until(config: &Path, what: &str, is_so: impl Fn(&Value) -> bool) {
    for _ in 0..2_000 {
        if is_so(&status(config)) {
            return;
        }
    }
    panic!("never {what}: {}", status(config));
}

fn sides(status: &Value) -> Vec<String> {
    let parts = status["devices"]["vol"]["parts"].as_object().unwrap();
    parts.keys().cloned().collect()
}

#[test]
fn a_scrub_is_asked_for_and_told() {
    let dir = Scratch::new("scrub");
    let config = dir.text("c.toml", MIRROR);
    stdout_of(&["format", arg(&config)]);
    let file = arg(&config);
    let served = Served::start(&config);
    assert_refused(&["scrub", file, "vol", "--show"], 1, &["not scrubbed"]);
    assert_refused(&["scrub", file, "a"], 1, &["a is not a mirror"]);
    assert_refused(&["scrub", file, "x"], 1, &["no mirror `x`"]);
    assert_refused(&["scrub", file, "vol", "--cancel"], 1, &["no scrub runs"]);
    let said = stdout_of(&["scrub", file, "vol", "--wait", "--json"]);
    let scrub: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(scrub["state"], "done");
    assert_eq!(
        (&scrub["found"], &scrub["position_bytes"]),
        (
            &Value::from(0),
            &status(&config)["devices"]["vol"]["size_bytes"]
        )
    );
    // A page of checksums of one side goes bad.
    let side = std::fs::OpenOptions::new()
        .write(true)
        .open(dir.path("b.img"))
        .unwrap();
    side.write_all_at(&[0xEE; 4096], 128 << 10).unwrap();
    let said = stdout_of(&["scrub", file, "vol", "--wait"]);
    assert!(said.contains("found wrong 1, repaired 1,"), "{said}");
    let said = stdout_of(&["scrub", file, "vol", "--show"]);
    assert!(said.starts_with("done: "), "{said}");
    assert_eq!(served.end("TERM").0, Some(0));
}

#[test]
fn a_side_is_replaced_and_the_command_is_told() {
    let dir = Scratch::new("replace");
    let alert = "alert = \"echo $BIMETAL_EVENT $BIMETAL_VOLUME $BIMETAL_SIDE >> TOLD\"\n";
    let told = dir.path("told");
    let text = format!("{MIRROR}{}{NEW}", alert.replace("TOLD", arg(&told)));
    let config = dir.text("c.toml", &text);
    stdout_of(&["format", arg(&config)]);
    let file = arg(&config);
    let served = Served::start(&config);
    let refused = ["could not", "there is no [device.x]"];
    assert_refused(&["side", "add", file, "vol", "x"], 1, &refused);
    let refused = ["could not", "no side x; there are: a, b"];
    assert_refused(&["side", "remove", file, "vol", "x"], 1, &refused);
    let said = stdout_of(&["side", "replace", file, "vol", "b", "c"]);
    assert!(said.starts_with("begun: replace b of vol by c"), "{said}");
    let edit = "add \"c\" to and take \"b\" once it has gone out of `sides` of [device.vol]";
    assert!(said.contains(edit), "{said}");
    until(&config, "replaced", |status| {
        sides(status) == ["a", "c"] && status["health"] == "healthy"
    });
    let has_been_told = || std::fs::read_to_string(&told).unwrap_or_default();
    until(&config, "told", |_| {
        has_been_told().contains("side-rebuilt vol c\n")
    });
    let (status, said) = served.end("TERM");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("vol: side c: has everything again"), "{said}");
    let edited = text.replace("[\"a\", \"b\"]", "[\"a\", \"c\"]");
    dir.text("c.toml", &edited);
    let served = Served::start(&config);
    assert_eq!(sides(&self::status(&config)), ["a", "c"]);
    assert_eq!(self::status(&config)["health"], "healthy");
    assert_eq!(served.end("TERM").0, Some(0));
}
