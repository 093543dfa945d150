//! Tests of `bimetal-lab papers` as a person or a script uses it.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use std::path::Path;

use program::{Scratch, arg, assert_refused, stdout_of};
use serde_json::Value;

/// The values of the small scale. They are our own output, so this file says nothing about whether
/// they are right. It is only an alarm for a change that moves a figure of the papers without
/// anybody noticing. After a change that is meant to move one, the file is replaced by
/// `values.json` of `bimetal-lab papers --scale small`.
const STORED: &str = include_str!("papers-small.json");

/// Largest relative difference between a value and the stored one, for the last digits of
/// logarithms and powers, which processors compute differently.
const DIGITS: f64 = 1e-6;

/// Items whose runs take little time.
const FEW: [&str; 5] = ["papers", "--scale", "small", "--only", "1.9,3.3,4.6"];
/// An item whose runs take longer, for one comparison.
const TREE: [&str; 2] = ["--only", "2.1"];

fn text(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn few(folder: &Path, more: &[&str]) -> String {
    stdout_of(&[&FEW[..], &["--out", arg(folder)], more].concat())
}

/// Calls `check` for each pair of numbers at the same place of two values. Both values must have
/// the same shape.
fn compare(ours: &Value, stored: &Value, place: &str, check: &mut dyn FnMut(&str, f64, f64)) {
    match (ours, stored) {
        (Value::Object(a), Value::Object(b)) => {
            let keys = |of: &serde_json::Map<String, Value>| of.keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(a), keys(b), "{place}");
            for (key, value) in a {
                compare(value, &b[key], &format!("{place} / {key}"), check);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{place}");
            for (a, b) in a.iter().zip(b) {
                compare(a, b, place, check);
            }
        }
        (Value::Number(a), Value::Number(b)) => {
            check(place, a.as_f64().unwrap(), b.as_f64().unwrap());
        }
        (a, b) => assert_eq!(a, b, "{place}"),
    }
}

#[test]
fn no_figure_of_the_papers_drifts() {
    let scratch = Scratch::new("papers-drift");
    let folder = scratch.path("all");
    let table = stdout_of(&["papers", "--scale", "small", "--out", arg(&folder)]);
    assert!(
        table.starts_with("source  reproduced  sign only  not reproduced"),
        "{table}"
    );
    let ours: Value = serde_json::from_str(&text(&folder, "values.json")).unwrap();
    let stored: Value = serde_json::from_str(STORED).unwrap();
    let mut drifted = Vec::new();
    compare(&ours, &stored, "", &mut |place, ours, stored| {
        if (ours - stored).abs() > DIGITS * stored.abs().max(1e-3) {
            drifted.push(format!("{place}: {ours}, stored {stored}"));
        }
    });
    assert!(drifted.is_empty(), "moved:\n{}", drifted.join("\n"));
    let report: Value = serde_json::from_str(&text(&folder, "report.json")).unwrap();
    let items = report["items"].as_array().unwrap();
    let counts = report["counts"].as_object().unwrap().values();
    let counted: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(items.len() as u64, counted, "every item has a verdict");
    assert!(
        items
            .iter()
            .all(|item| !item["why"].as_str().unwrap().is_empty())
    );
    let page = text(&folder, "report.html");
    for loaded in ["<script", "<img", "<link", "url(", "@import"] {
        assert!(!page.contains(loaded), "the page loads something: {loaded}");
    }
    for item in items {
        let anchor = format!("id=\"item-{}\"", item["id"].as_str().unwrap());
        assert!(page.contains(&anchor), "{anchor}");
    }
}

#[test]
fn one_seed_gives_the_same_digits_and_another_gives_others() {
    let scratch = Scratch::new("papers-seed");
    let [one, two, other] = ["one", "two", "other"].map(|name| scratch.path(name));
    few(&one, &[&TREE[..], &["--jobs", "1"]].concat());
    few(&two, &[&TREE[..], &["--jobs", "2"]].concat());
    for name in ["report.json", "report.html", "values.json", "plan.json"] {
        assert_eq!(text(&one, name), text(&two, name), "{name}");
    }
    few(&other, &["--seed", "7"]);
    assert_ne!(text(&one, "values.json"), text(&other, "values.json"));
}

#[test]
fn parts_put_together_equal_one_run() {
    let scratch = Scratch::new("papers-parts");
    let [whole, first, second, merged] =
        ["whole", "first", "second", "merged"].map(|name| scratch.path(name));
    few(&whole, &[]);
    let said = few(&first, &["--shard", "1/2"]);
    assert!(said.starts_with("part 1 of 2: "), "{said}");
    assert!(!first.join("report.json").exists(), "a part has no report");
    let alone = ["papers", "--out", arg(&merged), "--merge", arg(&first)];
    assert_refused(&alone, 1, &["runs are in none of the folders"]);
    few(&second, &["--shard", "2/2"]);
    stdout_of(&[&alone[..], &[arg(&second)]].concat());
    for name in ["report.json", "report.html", "values.json", "plan.json"] {
        assert_eq!(text(&whole, name), text(&merged, name), "{name}");
    }
    let runs = |folder: &Path| std::fs::read_dir(folder.join("runs")).unwrap().count();
    assert_eq!(runs(&whole), runs(&first) + runs(&second));
    assert_eq!(runs(&whole), runs(&merged));
}

/// An interruption leaves some runs, and a file that was begun.
#[test]
fn an_interrupted_report_continues() {
    let scratch = Scratch::new("papers-resume");
    let folder = scratch.path("runs");
    few(&folder, &[]);
    let before = text(&folder, "report.json");
    let files = std::fs::read_dir(folder.join("runs")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let (lost, kept) = files.split_at(files.len() / 2);
    for path in lost {
        std::fs::remove_file(path).unwrap();
    }
    std::fs::write(lost[0].with_extension("part"), "{\"schema\":1").unwrap();
    let changed = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let times: Vec<_> = kept.iter().map(|path| changed(path)).collect();
    few(&folder, &[]);
    assert_eq!(before, text(&folder, "report.json"));
    let now: Vec<_> = kept.iter().map(|path| changed(path)).collect();
    assert_eq!(times, now, "what was there is not run again");
}

#[test]
fn mistakes_are_one_line() {
    let scratch = Scratch::new("papers-bad");
    let folder = scratch.path("out");
    let refused = |more: &[&str], status, words: &[&str]| {
        let args = [&["papers", "--scale", "small", "--out", arg(&folder)], more].concat();
        assert_refused(&args, status, words);
    };
    refused(&["--source", "9"], 1, &["no source 9", "1 to 5"]);
    refused(&["--only", "7.7"], 1, &["no item `7.7`", "1.t1"]);
    refused(&["--only", "1.70"], 1, &["no item `1.70`", "1.10"]);
    refused(
        &["--source", "2", "--only", "1.7"],
        1,
        &["no item of source 2"],
    );
    refused(&["--shard", "3/2"], 2, &["expected I/N"]);
    refused(&["--traces", arg(&scratch.path("none"))], 1, &["none"]);
    assert!(!folder.exists(), "a refusal makes nothing");
    let file = scratch.text("file", "");
    let args = [
        "papers",
        "--only",
        "1.9",
        "--scale",
        "small",
        "--out",
        arg(&file),
    ];
    assert_refused(&args, 1, &["file"]);
    let merge = ["papers", "--out", arg(&folder), "--merge", arg(&file)];
    assert_refused(&merge, 1, &["plan.json"]);
}

#[test]
fn a_run_that_was_edited_is_refused() {
    let scratch = Scratch::new("papers-edited");
    let folder = scratch.path("runs");
    let args = [
        "papers",
        "--only",
        "1.9",
        "--scale",
        "small",
        "--out",
        arg(&folder),
    ];
    stdout_of(&args);
    let mut files = std::fs::read_dir(folder.join("runs")).unwrap();
    let path = files.next().unwrap().unwrap().path();
    let run = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, run.replacen("\"writes\":", "\"writes\":1", 1)).unwrap();
    assert_refused(
        &args,
        1,
        &["edited or damaged", "remove it to repeat the run"],
    );
    std::fs::remove_file(&path).unwrap();
    stdout_of(&args);
    let (other, together) = (scratch.path("other"), scratch.path("both"));
    stdout_of(&[
        "papers",
        "--only",
        "2.1",
        "--scale",
        "small",
        "--out",
        arg(&other),
    ]);
    let both = [
        "papers",
        "--out",
        arg(&together),
        "--merge",
        arg(&folder),
        arg(&other),
    ];
    assert_refused(&both, 1, &["another plan"]);
}
