//! Tests of `bimetal index` on whole block devices, and on devices of a configuration.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, assert_refused, bimetal, stdout_of};
use serde_json::Value;
use std::path::Path;

fn scan(index: &Path, options: &[&str]) -> String {
    let mut args = vec!["index", "scan", arg(index)];
    args.extend(options);
    stdout_of(&args)
}

/// A loop device over a file, which is detached when the value is dropped.
struct Loop(String);

impl Loop {
    /// Creates a loop device over a file. If loop devices do not exist, or if this user cannot use
    /// them, prints the reason and returns `None`.
    fn over(file: &Path) -> Option<Loop> {
        let made = std::process::Command::new("losetup")
            .args(["--find", "--show", arg(file)])
            .output();
        match made {
            Ok(made) if made.status.success() => Some(Loop(
                String::from_utf8(made.stdout).unwrap().trim().to_owned(),
            )),
            Ok(made) => {
                println!("skipped: {}", String::from_utf8_lossy(&made.stderr));
                None
            }
            Err(error) => {
                println!("skipped: losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let ended = std::process::Command::new("losetup")
            .args(["--detach", &self.0])
            .status();
        assert!(
            ended.is_ok_and(|status| status.success()),
            "{} stays",
            self.0
        );
    }
}

#[test]
fn an_index_takes_a_whole_block_device() {
    let dir = Scratch::new("index-device");
    let file = dir.zeroes("disk", 8 << 20);
    let Some(device) = Loop::over(&file) else {
        return;
    };
    let path = Path::new(&device.0);
    let csv = dir.text("in.csv", "a,1\nb,2\n");
    assert_refused(
        &["index", "load", &device.0, arg(&csv)],
        1,
        &["not an index", "create"],
    );
    let create = [
        "index",
        "create",
        &device.0,
        "--log-bytes",
        "1MiB",
        "--segment-bytes",
        "64KiB",
    ];
    assert!(stdout_of(&create).contains("8 MiB"));
    assert!(stdout_of(&["index", "load", &device.0, arg(&csv)]).contains("2 records"));
    assert_eq!(scan(path, &[]), "a,1\nb,2\n");
    assert!(stdout_of(&["index", "verify", &device.0]).contains("whole"));
    stdout_of(&["index", "compact", &device.0]);
    assert_refused(&create, 1, &["the device holds data", "--destroy-data"]);
    // A load that does not fit is refused, and the existing records remain.
    let many: String = (0..9000)
        .map(|n| format!("{n:06},{}\n", "v".repeat(900)))
        .collect();
    let many = dir.text("many.csv", &many);
    assert_refused(
        &["index", "load", &device.0, arg(&many)],
        1,
        &["no space left"],
    );
    assert_eq!(stdout_of(&["index", "get", &device.0, "b"]), "2\n");
    let again = [&create[..], &["--destroy-data"]].concat();
    assert!(stdout_of(&again).contains("an empty index"));
    assert_eq!(scan(path, &[]), "");
}

#[test]
fn an_index_on_a_device_of_a_configuration() {
    let dir = Scratch::new("index-config");
    let config = dir.text("c.toml", common::MIRROR);
    stdout_of(&["format", arg(&config)]);
    let rows: String = (0..2000).map(|n| format!("{n},value {n}\n")).collect();
    let file = dir.text("in.csv", &rows);
    let on = ["vol", "--config", arg(&config)];
    let said = |verb: &str, rest: &[&str]| stdout_of(&[&["index", verb], &on[..], rest].concat());
    let form = ["--key", "u64"];
    let lengths = ["--log-bytes", "1MiB", "--segment-bytes", "64KiB"];
    assert!(said("create", &lengths).contains("an empty index"));
    let again = [&["index", "create"], &on[..], &lengths[..]].concat();
    assert_refused(&again, 1, &["the device holds data"]);
    let loaded = said("load", &[&[arg(&file)], &form[..]].concat());
    assert!(loaded.starts_with("vol: 2,000 records"), "{loaded}");
    assert_eq!(said("get", &["1234", "--key", "u64"]), "value 1234\n");
    assert_eq!(said("scan", &form), rows);
    assert!(said("verify", &[]).starts_with("vol: whole"));
    let stats: Value = serde_json::from_str(&said("stats", &["--count", "--json"])).unwrap();
    assert_eq!(stats["keys"], 2000);
    // The index is on both sides, so it can be read when one side is missing.
    std::fs::rename(dir.path("a.img"), dir.path("away.img")).unwrap();
    let output = bimetal(&[&["index", "get"], &on[..], &["7", "--key", "u64"]].concat());
    let refused = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.stdout, b"value 7\n", "{refused}");
}

#[test]
fn a_device_that_cannot_be_had_is_refused_in_a_line() {
    let dir = Scratch::new("index-no-device");
    let config = dir.text("c.toml", common::MIRROR);
    let config = arg(&config);
    assert_refused(
        &["index", "get", "nothing", "--config", config, "key"],
        1,
        &["no device `nothing`", "vol"],
    );
    assert_refused(
        &["index", "get", "vol", "--config", config, "key"],
        1,
        &["device vol", "a.img"],
    );
    stdout_of(&["format", config]);
    assert_refused(
        &["index", "get", "vol", "--config", config, "key"],
        1,
        &["vol", "not an index"],
    );
    let served = common::Served::start(Path::new(config));
    assert_refused(
        &["index", "get", "vol", "--config", config, "key"],
        1,
        &["in use by process"],
    );
    assert_eq!(served.end("TERM").0, Some(0));
}
