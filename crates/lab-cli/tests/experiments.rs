//! Tests of experiments as a person or a script runs them.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use program::{Scratch, arg, assert_refused, bimetal, stdout_of};
use serde_json::Value;

const PLAN: &str = "name = \"small\"\nrepeats = 1\nscale = 0.01\nmemory = \"4GiB\"\n\
    baseline = { scheduler = \"noop\" }\n\
    [axes]\ndevice = [\"disk\"]\nscheduler = [\"noop\", \"cfq\"]\nworkload = [\"mail\"]\n\
    [device.disk]\ntype = \"hdd\"\nprofile = \"hdd-5400\"\nsize = \"1GiB\"\n\
    [workload.mail]\ntype = \"postmark\"\n";

#[test]
fn a_plan_is_shown_run_reported_and_compared() {
    let scratch = Scratch::new("lab");
    let file = scratch.text("small.toml", PLAN);
    let shown = stdout_of(&["plan", arg(&file)]);
    assert!(
        shown.contains("2 cells, 1 runs of each; 2 of 2 runs are to be made"),
        "{shown}"
    );
    assert_eq!(scratch.names(), ["small.toml"], "a plan writes nothing");

    let table = stdout_of(&["run", arg(&file), "--jobs", "1"]);
    assert!(table.starts_with("scheduler  workload"), "{table}");
    let folder = scratch.path("small.results");
    for name in ["plan.toml", "report.html", "report.json", "runs.csv"] {
        assert!(folder.join(name).is_file(), "{name}");
    }
    let shown = stdout_of(&["plan", arg(&file)]);
    assert!(shown.contains("0 of 2 runs are to be made"), "{shown}");

    let report: Value =
        serde_json::from_str(&stdout_of(&["report", arg(&folder), "--json"])).unwrap();
    assert_eq!(report["schema"], 1);
    for cell in report["cells"].as_array().unwrap() {
        for way in ["reads", "writes"] {
            let count = |name: &str| cell[way][name].as_u64().unwrap();
            let merges = count("back_merges") + count("front_merges") + count("request_merges");
            assert_eq!(count("issued"), count("bios") + count("splits") - merges);
        }
    }
    let lines = stdout_of(&["report", arg(&folder), "--csv"]);
    assert_eq!(lines.lines().count(), 3);

    let same = stdout_of(&[
        "compare",
        arg(&folder),
        arg(&folder),
        "--fail-if",
        "value<-5%",
    ]);
    assert!(same.contains("+0.0 %") && !same.contains("FAILS"), "{same}");
}

/// Tests a comparison with a rule that forbids a decrease of the transactions per second by more
/// than 1 %. The second plan has larger files, so it violates the rule.
#[test]
fn a_comparison_that_breaks_a_rule_has_status_1() {
    let scratch = Scratch::new("lab-compare");
    let slow = PLAN.replace("[workload.mail]", "[workload.mail]\nhigh = \"64KiB\"");
    let (before, after) = (scratch.text("a.toml", PLAN), scratch.text("b.toml", &slow));
    for file in [&before, &after] {
        stdout_of(&["run", arg(file)]);
    }
    let (a, b) = (scratch.path("a.results"), scratch.path("b.results"));
    let output = bimetal(&["compare", arg(&a), arg(&b), "--fail-if", "value<-1%"]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("FAILS"), "{out}");
}

#[test]
fn mistakes_are_one_line_and_change_nothing() {
    let scratch = Scratch::new("lab-bad");
    let file = scratch.text("bad.toml", &PLAN.replace("hdd-5400", "hdd-54"));
    let place = format!("{}:10:1: ", arg(&file));
    assert_refused(
        &["run", arg(&file)],
        1,
        &[&place, "hdd-54", "known profiles"],
    );
    assert_eq!(scratch.names(), ["bad.toml"]);
    let missing = scratch.path("missing.toml");
    assert_refused(&["plan", arg(&missing)], 1, &["missing.toml"]);
    assert_refused(&["report", arg(&missing)], 1, &["plan.toml"]);
    let rule = ["compare", "a", "b", "--fail-if", "value"];
    assert_refused(&rule, 2, &["expected a figure"]);
}

/// Tests a plan on devices of bimetal's own stack. Its runs are executed one at a time in real
/// time, and the report says so.
#[test]
fn a_plan_on_a_stack_is_run_once() {
    let scratch = Scratch::new("lab-stack");
    let (device, load) = PLAN.split_once("[device.disk]").unwrap();
    let load = load.split_once("[workload.mail]").unwrap().1;
    let text = format!(
        "backend = \"stack\"\n{device}[device.disk]\ntype = \"stack\"\ntop = \"vol\"\noverwrite = true\n\
         [device.disk.device.vol]\ntype = \"memory\"\nsize = \"64MiB\"\n[workload.mail]{load}"
    );
    let file = scratch.text("ours.toml", &text);
    let table = stdout_of(&["run", arg(&file)]);
    assert!(table.starts_with("scheduler  workload"), "{table}");
    let shown = stdout_of(&["plan", arg(&file)]);
    assert!(shown.contains("0 of 2 runs are to be made"), "{shown}");
    let page = std::fs::read_to_string(scratch.path("ours.results/report.html")).unwrap();
    assert!(
        page.contains("in real time on our stack"),
        "the page says where"
    );
    let several = ["run", arg(&file), "--jobs", "2"];
    assert_refused(&several, 1, &["--jobs", "stack"]);
}

#[test]
fn a_pair_that_is_only_measured_with_logs_needs_logs() {
    let args = ["mirror", "--pair", "qlc", "--seconds", "1"];
    assert_refused(&args, 1, &["qlc", "--log"]);
}

/// A mirror on small sides with short logs, under one load of the paper.
const MIRROR: [&str; 14] = [
    "mirror",
    "--pair",
    "b",
    "--loads",
    "80",
    "--seeds",
    "1",
    "--seconds",
    "20",
    "--fast-size",
    "1GiB",
    "--slow-size",
    "1GiB",
    "--json",
];

#[test]
fn both_layouts_of_the_sides_are_measured_beside_the_ssd() {
    let more = ["--log", "64MiB", "--span", "700MiB", "--fill"];
    let rows = |more: &[&str]| {
        let all = stdout_of(&[&MIRROR[..], more].concat());
        let all: Value = serde_json::from_str(&all).unwrap();
        let rows = all["runs"][0]["comparison"]["rows"].as_array().unwrap();
        let row = |row: &Value| {
            let done = row["outcome"]["done_per_s"].as_f64().unwrap();
            let moved = row["outcome"]["moved_share"].as_f64().unwrap();
            (row["scheme"].as_str().unwrap().to_owned(), done, moved)
        };
        rows.iter().map(row).collect::<Vec<_>>()
    };
    let both = rows(&more);
    let names: Vec<&str> = both.iter().map(|row| row.0.as_str()).collect();
    let layouts = ["bounded, home", "bounded, log"];
    assert_eq!(names[..2], ["single SSD", "SSD mirror"]);
    assert_eq!(names[2..], layouts);
    for (name, done, moved) in &both {
        assert!(*done > 0.0, "{name}");
        // The load writes 400 MB to sides of which less is free, so logged sides are cleaned.
        assert_eq!(*moved > 0.0, name == "bounded, log", "{name}: {moved}");
    }
    let chosen = rows(&[&more[..], &["--layout", "log"]].concat());
    assert_eq!(chosen.last(), both.last());
    assert_eq!(chosen.len(), 3);
}

/// In earlier versions, a short span ended the program with a panic, a span beyond the end of the
/// volume was loaded, and a span without logs had no effect.
#[test]
fn a_span_that_cannot_be_loaded_is_refused_with_the_reason() {
    let refused = |more: &[&str], status: i32, words: &[&str]| {
        assert_refused(&[&MIRROR[..], more].concat(), status, words);
    };
    let log = ["--log", "64MiB"];
    let span = |span| [&log[..], &["--span", span]].concat();
    refused(&span("400kB"), 1, &["span", "390.6 KiB", "496 KiB"]);
    refused(&span("100TB"), 1, &["span", "90.9 TiB", "the volume has"]);
    // A logged side of 1 GiB has room for at most four fifths of it.
    let more = [&span("900MiB")[..], &["--layout", "log"]].concat();
    refused(&more, 1, &["bounded, log", "900 MiB", "the volume has"]);
    for without_log in [&["--span", "1GiB"][..], &["--layout", "log"], &["--fill"]] {
        refused(without_log, 2, &["--log"]);
    }
}
