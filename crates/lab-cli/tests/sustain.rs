//! Tests of `bimetal-lab sustain` as a person or a script uses it.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use program::{assert_refused, stdout_of};
use serde_json::Value;

const SMALL: [&str; 11] = [
    "sustain",
    "--fast-size",
    "1GiB",
    "--slow-size",
    "1GiB",
    "--span",
    "32MiB",
    "--log",
    "16MiB",
    "--seconds",
    "8",
];

fn small(more: &[&str]) -> String {
    stdout_of(&[&SMALL[..], more].concat())
}

#[test]
fn a_person_sees_the_load_over_time_and_what_the_devices_were_given() {
    let shown = small(&["--rate", "40", "--flush-every", "4"]);
    assert!(
        shown.starts_with("a mirror of nvme-tlc of 1 GiB and hdd-7200 of 1 GiB: 40 writes/s"),
        "{shown}"
    );
    for row in [
        "second",
        "write, p99.9",
        "flush, longest",
        "longest time without an answer",
        "per byte of the client",
    ] {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    let alone = small(&["--on", "slow", "--pattern", "hot:90/10"]);
    assert!(alone.starts_with("hdd-7200 of 1 GiB: writes"), "{alone}");
    assert!(!alone.contains("flush"), "{alone}");
}

#[test]
fn json_has_the_setting_and_every_second() {
    let words = [
        "--json", "--on", "fast", "--rate", "100", "--block", "16KiB",
    ];
    let all: Value = serde_json::from_str(&small(&words)).unwrap();
    assert_eq!(all["version"], 1);
    assert_eq!(all["setting"]["load"]["pattern"], "uniform");
    assert_eq!(all["setting"]["load"]["write_bytes"], 16384);
    let seconds = all["result"]["seconds"].as_array().unwrap();
    let done: u64 = seconds.iter().filter_map(|s| s["done"].as_u64()).sum();
    assert_eq!(seconds.len(), 8);
    // 800 arrivals are expected, with a standard deviation of 28.
    assert!((650..=950).contains(&done), "{done}");
    assert_eq!(all["result"]["writes"]["count"], done);
}

#[test]
fn what_cannot_be_run_is_refused_with_the_reason() {
    let refused = |more: &[&str], status: i32, words: &[&str]| {
        assert_refused(&[&SMALL[..], more].concat(), status, words);
    };
    refused(
        &["--fast", "floppy"],
        1,
        &["floppy", "nvme-tlc", "hdd-7200"],
    );
    refused(&["--slow-set", "heads = 3"], 1, &["heads"]);
    refused(&["--pattern", "zipf:2"], 2, &["zipf:2", "zipf:0.9"]);
    refused(&["--block", "1000B"], 1, &["multiple of 4096"]);
    assert_refused(
        &[
            "sustain",
            "--fast-size",
            "1GiB",
            "--log",
            "16MiB",
            "--span",
            "2GiB",
        ],
        1,
        &["span", "the volume has"],
    );
}
