//! Tests of a mirror as its user sees it: from `format` through a clean stop and a crash.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{MIRROR, Scratch, Served, arg, assert_refused, stdout_of, with_homes};
use serde_json::{Value, json};

fn check(config: &std::path::Path) -> Value {
    serde_json::from_str(&stdout_of(&["check", arg(config), "--json"])).unwrap()
}

#[test]
fn format_prepares_once_and_check_says_so() {
    let dir = Scratch::new("format");
    let config = dir.text("c.toml", &with_homes(MIRROR));
    assert_refused(&["check", arg(&config)], 1, &["device a", "bimetal format"]);
    assert_eq!(dir.names(), ["c.toml"], "check creates nothing");
    let said = stdout_of(&["format", arg(&config)]);
    for line in ["a: created ", "b: created ", "vol: volume "] {
        assert!(said.lines().any(|l| l.starts_with(line)), "{said}");
    }
    assert_eq!(dir.names(), ["a.img", "b.img", "c.toml"]);
    let report = check(&config);
    let [a, b, vol] = ["a", "b", "vol"].map(|name| &report["devices"][name]);
    assert_eq!(vol["state"], "clean");
    assert!(a["data_offset_bytes"].as_u64().unwrap() > 0);
    assert_eq!(a["data_offset_bytes"], b["data_offset_bytes"]);
    assert_ne!(a["side"], b["side"], "sides are told apart by UUID");
    assert_eq!((&a["epoch"], &b["epoch"]), (&json!(1), &json!(1)));
    // The volume occupies the space between the start of the data area and the superblock in the
    // last block.
    let room = (32 << 20) - 4096 - a["data_offset_bytes"].as_u64().unwrap();
    assert_eq!(vol["size_bytes"].as_u64(), Some(room));
    assert_refused(&["format", arg(&config)], 1, &["side a", "--force"]);
    assert_eq!(check(&config), report, "a refusal changes nothing");
    stdout_of(&["format", arg(&config), "--force"]);
    assert_ne!(check(&config)["devices"]["vol"]["volume"], vol["volume"]);
}

/// Without the key `layout`, the sides of a new volume are logged, and `format` says what that
/// costs.
#[test]
fn the_sides_of_a_new_volume_are_logged() {
    let dir = Scratch::new("default");
    let config = dir.text("c.toml", MIRROR);
    let said = stdout_of(&["format", arg(&config)]);
    // A device of 32 MiB has 123 segments of 256 KiB behind 1 MiB of metadata, of 63 usable blocks
    // each. The log of 4 MiB and a quarter takes 21, and 12 are reserved. Of 90 segments with 62
    // blocks, 4,464 stay for data, and 12 of these for pages.
    let room = 4_452 * 4096;
    let report = check(&config);
    let devices = &report["devices"];
    assert_eq!(devices["vol"]["size_bytes"], json!(room));
    for side in ["a", "b"] {
        assert_eq!(devices[side]["layout"], "log", "{}", devices[side]);
        assert_eq!(devices[side]["data_offset_bytes"], Value::Null);
        let line = said
            .lines()
            .find(|line| line.contains(&format!("side {side}: ")));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        assert!(
            line.ends_with("logged, room for 17.4 MiB on 32 MiB"),
            "{line}"
        );
    }
    // With homes, the data begins at 5 MiB, and the last block is a superblock.
    let lines = said
        .lines()
        .filter(|line| line.contains("layout = \"home\""));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].ends_with("would have 27.0 MiB"), "{said}");

    let homes = dir.text("c.toml", &with_homes(MIRROR));
    let said = stdout_of(&["format", arg(&homes), "--force"]);
    assert!(said.contains("data from 5 MiB on"), "{said}");
    assert!(!said.contains("logged"), "{said}");
}

/// Sides that cannot be logged are refused, with the figures and the way out. Nothing is written.
#[test]
fn what_only_homes_can_do_is_refused_with_the_way_out() {
    let dir = Scratch::new("homes-only");
    let grow = ["--grow-to", "1GiB"];
    let long_log = ["--log", "14MiB"];
    let no_checksums = MIRROR.replace("\"mirror\"\n", "\"mirror\"\nchecksums = false\n");
    for (text, options, words) in [
        (MIRROR, &grow[..], ["side a", "grow_to", "room for"]),
        (
            MIRROR,
            &long_log[..],
            ["a log of 14 MiB does not fit", "4 MiB to 8 MiB", "room for"],
        ),
        (
            &no_checksums,
            &[][..],
            ["side a", "needs checksums", "room for"],
        ),
    ] {
        let config = dir.text("c.toml", text);
        let format = [&["format", arg(&config)], options].concat();
        let ways_out = ["layout = \"log\" is the default", "with layout = \"home\""];
        assert_refused(&format, 1, &[&words[..], &ways_out].concat());
        assert_eq!(dir.names(), ["c.toml"], "nothing is left behind");
        // Who asks for a log is told only why it cannot be.
        let asked = text.replace("\"mirror\"\n", "\"mirror\"\nlayout = \"log\"\n");
        dir.text("c.toml", &asked);
        let refused = common::bimetal(&format);
        assert_eq!(refused.status.code(), Some(1));
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(!said.contains("default"), "{said}");
        dir.text("c.toml", &with_homes(text));
        assert!(stdout_of(&format).contains("data from "));
        for image in ["a.img", "b.img"] {
            std::fs::remove_file(dir.path(image)).unwrap();
        }
    }
}

/// A volume with homes, and a configuration that does not say so, as every configuration before
/// sides were logged by default.
#[test]
fn a_volume_with_homes_is_served_without_the_key() {
    let dir = Scratch::new("old-volume");
    let config = dir.text("c.toml", &with_homes(MIRROR));
    stdout_of(&["format", arg(&config)]);
    dir.text("c.toml", MIRROR);
    let report = check(&config);
    let offset = &report["devices"]["a"]["data_offset_bytes"];
    assert_eq!(*offset, json!(5 << 20));
    assert_eq!(report["devices"]["vol"]["state"], "clean");
    let served = Served::start(&config);
    let said = stdout_of(&["scrub", arg(&config), "vol", "--wait", "--json"]);
    let scrub: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&scrub["state"], &scrub["found"]),
        (&json!("done"), &json!(0))
    );
    let status = stdout_of(&["status", arg(&config), "--json"]);
    let status: Value = serde_json::from_str(&status).unwrap();
    let part = &status["devices"]["vol"]["parts"]["a"];
    assert_eq!(
        part["patience_seconds"],
        Value::Null,
        "writes wait: {part:#}"
    );
    assert_eq!(served.end("TERM"), (Some(0), String::new()), "no warning");
}

#[test]
fn the_log_is_as_long_as_asked_for() {
    let dir = Scratch::new("log");
    let config = dir.text("c.toml", &with_homes(MIRROR));
    assert_refused(
        &["format", arg(&config), "--log", "17MiB"],
        1,
        &["side a", "17 MiB", "4 MiB to 16 MiB"],
    );
    stdout_of(&["format", arg(&config), "--log", "9MiB"]);
    // 192 KiB of metadata precede the log. The data area begins at the next multiple of 1 MiB after
    // the log.
    let offset = check(&config)["devices"]["a"]["data_offset_bytes"].clone();
    assert_eq!(offset, json!(10 << 20));
    assert_eq!(Served::start(&config).end("TERM").0, Some(0));
}

#[test]
fn sides_that_each_ran_alone_are_split() {
    let dir = Scratch::new("split");
    let config = dir.text("c.toml", MIRROR);
    stdout_of(&["format", arg(&config)]);
    for (alone, other) in [("a", "b"), ("b", "a")] {
        let image = dir.path(&format!("{other}.img"));
        std::fs::rename(&image, dir.path("away.img")).unwrap();
        // Both sides are clean, so the server accepts either side without the other one, but prints
        // a warning.
        let served = Served::start(&config);
        let output = common::bimetal(&["status", arg(&config), "--json"]);
        assert_eq!(output.status.code(), Some(1), "a side is missing");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["health"], "degraded");
        let parts = &status["devices"]["vol"]["parts"];
        assert_eq!(parts[other]["health"], "absent", "{parts:#}");
        assert_eq!(parts[other]["mark"], "none", "{parts:#}");
        // The only present side holds the only copy of the volume.
        let size_bytes = status["devices"]["vol"]["size_bytes"].as_f64();
        assert_eq!(parts[alone]["sole_copy_bytes"].as_f64(), size_bytes);
        let (code, said) = served.end("TERM");
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        let words = format!("warning: device vol: degraded: side {other} is absent");
        assert!(said.contains(&words), "{said}");
        assert!(said.contains(&format!("{other}.img")), "{said}");
        std::fs::rename(dir.path("away.img"), &image).unwrap();
    }
    let report = check(&config);
    assert_eq!(report["devices"]["vol"]["state"], "split");
    let next = report["devices"]["vol"]["next"].as_str().unwrap();
    assert!(next.contains("--rebuild"), "{next}");
    let words = ["split", "a and b", "--rebuild"];
    assert_refused(&["serve", arg(&config)], 1, &words);
    let force = ["serve", arg(&config), "--force-open", "fork"];
    assert_refused(&force, 1, &words);
    let unknown = ["serve", arg(&config), "--rebuild", "c"];
    assert_refused(&unknown, 1, &["cannot rebuild c", "no side with that name"]);
    // After the operator has chosen a side, the sides are one volume again.
    let served = Served::start_with(&config, &["--rebuild", "b"]);
    eventually_healthy(&config);
    assert_eq!(served.end("TERM").0, Some(0));
    assert_eq!(check(&config)["devices"]["vol"]["state"], "clean");
    assert_eq!(Served::start(&config).end("TERM"), (Some(0), String::new()));
}

/// Waits until the volume is healthy. It is degraded while a side is being rebuilt.
fn eventually_healthy(config: &std::path::Path) {
    let status = || common::bimetal(&["status", arg(config)]).status.code();
    let over = (0..10_000).find_map(|_| status().filter(|status| *status != 1));
    assert_eq!(over, Some(0));
}

#[test]
fn a_side_of_another_volume_is_refused() {
    let dir = Scratch::new("foreign");
    let config = dir.text("c.toml", MIRROR);
    stdout_of(&["format", arg(&config)]);
    std::fs::copy(dir.path("b.img"), dir.path("kept.img")).unwrap();
    stdout_of(&["format", arg(&config), "--force"]);
    std::fs::copy(dir.path("kept.img"), dir.path("b.img")).unwrap();
    for verb in ["check", "serve"] {
        assert_refused(&[verb, arg(&config)], 1, &["vol", "side b"]);
    }
}

#[test]
fn a_mirror_that_was_killed_recovers_by_itself() {
    let dir = Scratch::new("killed");
    let config = dir.text("c.toml", MIRROR);
    stdout_of(&["format", arg(&config)]);
    assert_eq!(Served::start(&config).end("TERM").0, Some(0));
    assert_eq!(check(&config)["devices"]["vol"]["state"], "clean");
    let served = Served::start(&config);
    // The superblocks of a volume in use are the same as those of a volume whose server was killed.
    // Only the presence of a running server tells the two cases apart.
    let devices = check(&config)["devices"].clone();
    assert_eq!(devices["vol"]["state"], "in use, open");
    assert_eq!(devices["a"]["state"], "in use, healthy");
    let next = devices["vol"]["next"].as_str().unwrap();
    assert!(next.contains("the server with pid "), "{next}");
    assert!(stdout_of(&["check", arg(&config)]).contains(next));
    let status: Value =
        serde_json::from_str(&stdout_of(&["status", arg(&config), "--json"])).unwrap();
    let a = &status["devices"]["vol"]["parts"]["a"];
    assert_eq!(a["health"], "healthy");
    assert_eq!(a["sole_copy_bytes"], 0.0);
    assert!(a["log_bytes"].as_f64() >= Some((4 << 20) as f64), "{a:#}");
    assert_eq!(
        (&a["corrupt_found"], &a["corrupt_repaired"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(served.end("KILL").0, None);
    let vol = check(&config)["devices"]["vol"].clone();
    assert_eq!(vol["state"], "in use or not cleanly stopped");
    let next = vol["next"].as_str().unwrap();
    for words in ["no server answers at ", "recovers"] {
        assert!(next.contains(words), "{next}");
    }
    let served = Served::start(&config);
    // No write is pending and no side lags, so no side is reported as stuck or delayed.
    let output = common::bimetal(&["status", arg(&config), "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    for side in ["a", "b"] {
        let side = &status["devices"]["vol"]["parts"][side];
        assert_eq!(
            (&side["stuck"], &side["mode"]),
            (&json!(0.0), &json!("in time"))
        );
    }
    assert_eq!(served.end("TERM"), (Some(0), String::new()));
    assert_eq!(check(&config)["devices"]["vol"]["state"], "clean");
}

#[test]
fn a_mirror_that_was_killed_wants_all_its_sides() {
    let dir = Scratch::new("lone");
    let config = dir.text("c.toml", MIRROR);
    stdout_of(&["format", arg(&config)]);
    assert_eq!(Served::start(&config).end("KILL").0, None);
    std::fs::rename(dir.path("b.img"), dir.path("away.img")).unwrap();
    // The whole volume may have changed on the missing side.
    let bytes = std::fs::metadata(dir.path("a.img")).unwrap().len();
    let words = [
        "b is missing",
        "the last known change is",
        "b.img",
        "--force-open fork",
    ];
    assert_refused(&["serve", arg(&config)], 1, &words);
    let said = common::bimetal(&["serve", arg(&config)]).stderr;
    let said = String::from_utf8(said).unwrap();
    let list: Vec<&str> = said.lines().skip(1).collect();
    let [range] = list[..] else {
        panic!("{said}");
    };
    let (offset, length) = range.trim().split_once('+').unwrap();
    assert_eq!(offset, "0");
    assert!(length.parse::<u64>().unwrap() > bytes / 2, "{said}");
    // Opening with `read-only` changes nothing. Opening with `fork` makes the missing side out of
    // sync.
    let before = std::fs::read(dir.path("a.img")).unwrap();
    let served = Served::start_with(&config, &["--force-open", "read-only"]);
    assert_eq!(served.end("TERM").0, Some(0));
    assert!(std::fs::read(dir.path("a.img")).unwrap() == before);
    let served = Served::start_with(&config, &["--force-open", "fork"]);
    assert_eq!(served.end("TERM").0, Some(0));
    std::fs::rename(dir.path("away.img"), dir.path("b.img")).unwrap();
    assert_eq!(check(&config)["devices"]["b"]["state"], "out of sync");
    let served = Served::start(&config);
    eventually_healthy(&config);
    assert_eq!(served.end("TERM").0, Some(0));
    assert_eq!(check(&config)["devices"]["vol"]["state"], "clean");
}

#[test]
fn format_wants_a_mirror() {
    let dir = Scratch::new("none");
    let config = dir.text("c.toml", "[device.a]\ntype = \"null\"\nsize = \"1MiB\"\n");
    assert_refused(&["format", arg(&config)], 1, &["no mirror"]);
}

#[test]
fn the_demo_ends_with_equal_sides_and_leaves_nothing() {
    let dir = Scratch::new("demo");
    let output = common::command(&["demo", "--seconds", "1", "--json"])
        .env("TMPDIR", dir.path("."))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let targets = report["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 3);
    let written = |at: usize| targets[at]["write"]["count"].as_u64();
    assert!(written(0) > Some(0) && written(0) == written(1) && written(1) == written(2));
    assert!(targets.iter().all(|target| target["errors"] == 0));
    // The whole volume is compared. The load writes anywhere in its first 128 MiB. A side has 768
    // MiB in 3,066 segments of 63 usable blocks, of which a log of 164 MiB and a quarter takes 834
    // and 12 are reserved. Of the other 2,220, with 62 blocks for data, four fifths stay.
    let four_fifths = 2220 * 62 * 4096 / 5 * 4;
    let compared = report["compared_bytes"].as_u64().unwrap();
    assert!((128 << 20..=four_fifths).contains(&compared), "{compared}");
    assert!(
        four_fifths - compared < 1 << 20,
        "the pages of the maps: {compared}"
    );
    assert!(dir.names().is_empty());
}

/// Tests that `format`, `check` and `serve` each report that the logs reduce the exposure bound,
/// with the configured and the reduced value.
#[test]
fn a_reduced_exposure_is_said() {
    let dir = Scratch::new("reduced");
    let text = MIRROR.replace("exposure = { bytes = \"512KiB\" }\n", "");
    let config = dir.text("c.toml", &text);
    let formatted = stdout_of(&["format", arg(&config)]);
    let checked = stdout_of(&["check", arg(&config)]);
    let (status, served) = Served::start(&config).end("TERM");
    assert_eq!(status, Some(0), "{served}");
    for said in [formatted, checked, served] {
        let lines = said
            .lines()
            .filter(|line| line.contains("the exposure is limited to "));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].contains("instead of 64 MiB"), "{said}");
        // The reduced exposure bound is less than 1 MiB: a quarter of a log of 4 MiB, minus the
        // writes that can be in flight at a crash.
        assert!(lines[0].contains(" KiB instead"), "{said}");
    }
}
