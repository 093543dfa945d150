//! Tests of `bimetal-lab index` as a person or a script uses it.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use program::{assert_refused, stdout_of};
use serde_json::Value;

const SMALL: [&str; 9] = [
    "index",
    "--keys",
    "100000",
    "--warm-up",
    "2000",
    "--operations",
    "1000",
    "--seeds",
    "1",
];

fn small(more: &[&str]) -> String {
    stdout_of(&[&SMALL[..], more].concat())
}

#[test]
fn json_has_every_scheme_under_every_load() {
    let all: Value = serde_json::from_str(&small(&["--area", "same", "--json"])).unwrap();
    assert_eq!(all["version"], 1);
    let rows = all["comparison"]["rows"].as_array().unwrap();
    // There are eight loads for each of searches, mix and updates, and each is run with four
    // schemes.
    assert_eq!(rows.len(), 8 * 3 * 4);
    assert!(
        rows.iter()
            .all(|row| row["served"]["done_per_s"].as_f64() > Some(0.0))
    );
    let over: Vec<&str> = all["gains"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gain| gain["over"].as_str().unwrap())
        .collect();
    assert_eq!(over, ["btr_n", "btr_f", "ours"]);
}

#[test]
fn tables_say_what_was_run_and_what_is_not_charged() {
    let text = small(&["--area", "own"]);
    assert!(text.starts_with("100000 keys, 2000 updates before, 1000 operations of each kind"));
    assert!(text.contains("CPU is not charged"));
    assert!(text.contains("Area: own") && !text.contains("Area: same"));
    for word in [
        "CHCTR", "BTR_N", "BTR_F", "ours", "mix/s", "update/s", "search/s",
    ] {
        assert!(text.contains(word), "{word}");
    }
}

#[test]
fn too_few_keys_and_unknown_areas_are_refused() {
    assert_refused(&["index", "--keys", "5"], 2, &["--keys", "100000"]);
    assert_refused(&["index", "--area", "large"], 2, &["--area", "same"]);
}
