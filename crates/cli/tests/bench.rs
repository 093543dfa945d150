//! Tests of `bimetal bench`: it runs the requested load, and never overwrites data without
//! permission.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, assert_refused, stdout_of};
use serde_json::Value;

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(args)).unwrap()
}

#[test]
fn writing_needs_permission() {
    let dir = Scratch::new("destroy");
    let image = dir.zeroes("a.img", 1 << 20);
    let config = dir.text("c.toml", "[device.a]\ntype = \"file\"\npath = \"a.img\"\n");
    for pattern in ["write", "randwrite", "randrw"] {
        let args = ["bench", arg(&config), "--device", "a", "--rw", pattern];
        assert_refused(&args, 1, &["device a", "--destroy-data"]);
    }
    let zeroes = |path| std::fs::read(path).unwrap().iter().all(|byte| *byte == 0);
    assert!(zeroes(&image), "a refused load writes nothing");
    let args = ["bench", arg(&config), "--device", "a", "--rw", "write"];
    let more = ["--ops", "256", "--destroy-data", "--json"];
    let report = json(&[&args[..], &more[..]].concat());
    assert_eq!(report["write"]["count"], 256);
    assert!(!zeroes(&image), "a load that may write does");
}

#[test]
fn virtual_time_repeats_itself() {
    let dir = Scratch::new("virtual");
    let config = dir.text(
        "c.toml",
        "[device.null]\ntype = \"null\"\nsize = \"64MiB\"\n\
         [device.disk]\ntype = \"hdd\"\nprofile = \"hdd-7200\"\nbelow = \"null\"\n",
    );
    let run = |seed: &str| {
        let args = ["bench", arg(&config), "--device", "disk", "--virtual"];
        let more = ["--json", "--time", "10s", "--depth", "1", "--seed", seed];
        json(&[&args[..], &more[..]].concat())
    };
    let (first, again, other) = (run("7"), run("7"), run("8"));
    assert_eq!(first["read"], again["read"]);
    assert_ne!(first["read"], other["read"]);
    // The load has one random read in flight. A rotation takes 8.33 ms, and a read waits for half a
    // rotation on average. A seek takes at least 1 ms. The mean is therefore between 5 ms and the
    // time of a full stroke with a full rotation.
    let mean_ns = first["read"]["mean_ns"].as_f64().unwrap();
    assert!((5e6..25e6).contains(&mean_ns), "{mean_ns}");
}

#[test]
fn loads_that_cannot_be_are_refused() {
    let dir = Scratch::new("refused");
    dir.zeroes("a.img", 1 << 20);
    let config = dir.text(
        "c.toml",
        "[device.a]\ntype = \"file\"\npath = \"a.img\"\n\
         [device.m]\ntype = \"memory\"\nsize = \"1MiB\"\n",
    );
    let bench = |device: &str, more: &[&str], words: &[&str]| {
        let args = ["bench", arg(&config), "--device", device];
        assert_refused(&[&args[..], more].concat(), 1, words);
    };
    bench("x", &[], &["no device `x`", "a, m"]);
    bench("a", &["--virtual"], &["device a", "real time"]);
    bench("m", &["--virtual"], &["--ops"]);
    bench("m", &["--bs", "1000B"], &["--bs", "4096"]);
    bench("m", &["--bs", "2MiB"], &["does not fit"]);
    bench("m", &["--size", "2MiB"], &["--size", "1 MiB"]);
}
