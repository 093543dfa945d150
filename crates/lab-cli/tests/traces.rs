//! Tests of `bimetal-lab cache` and `bimetal-lab trace` as a person or a script uses them.

#[allow(dead_code, reason = "every test file uses its part")]
#[path = "../../cli/tests/common/program.rs"]
mod program;

use program::Scratch;
use serde_json::Value;
use std::process::{Command, Output};

fn bimetal(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bimetal-lab"));
    command.args(args).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("the program speaks UTF-8")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// A trace with six accesses to three pages: write 0, read 1, write 2, read 0, write 1, read 2.
const PAGES: &str = "op,lpn,npages\nW,0,1\nR,1,1\nW,2,1\nR,0,1\nW,1,1\nR,2,1\n";

#[test]
fn a_grid_as_json_has_what_scripts_rely_on() {
    let scratch = Scratch::new("grid");
    let trace = scratch.text("small.csv", PAGES);
    let trace = trace.to_str().expect("a plain path");
    let list = json(&bimetal(&[
        "cache",
        "--trace",
        trace,
        "--policy",
        "lru,abm-lru-clc",
        "--size",
        "2,100%",
        "--json",
    ]));
    let list = list.as_array().expect("a list");
    assert_eq!(list.len(), 4);
    // LRU with 2 pages never hits, because the trace accesses 3 pages in turn. The trace has 3
    // reads, and each of its 3 writes reaches the device once.
    let lru = &list[0];
    assert_eq!(lru["trace"], "small.csv");
    assert_eq!(
        (&lru["policy"], &lru["ftl"]),
        (&Value::from("lru"), &Value::from("none"))
    );
    assert_eq!(
        (lru["size_pages"].as_u64(), lru["accesses"].as_u64()),
        (Some(2), Some(6))
    );
    assert_eq!(
        (lru["misses"].as_u64(), lru["miss_ratio"].as_f64()),
        (Some(6), Some(1.0))
    );
    assert_eq!(
        (lru["host_writes"].as_u64(), lru["programs"].as_u64()),
        (Some(3), Some(3))
    );
    assert_eq!(
        (lru["erases"].as_u64(), lru["write_amplification"].as_f64()),
        (Some(0), Some(1.0))
    );
    assert_eq!(
        lru["device_time_us"].as_f64(),
        Some(3.0 * 25.0 + 3.0 * 200.0)
    );
    // With space for all 3 pages, only the first access to each page misses.
    assert_eq!(
        (list[2]["size_pages"].as_u64(), list[2]["misses"].as_u64()),
        (Some(3), Some(3))
    );
}

#[test]
fn a_table_has_device_time_first_and_csv_a_heading() {
    let scratch = Scratch::new("table");
    let trace = scratch.text("small.csv", PAGES);
    let trace = trace.to_str().expect("a plain path");
    let table = bimetal(&["cache", "--trace", trace, "--size", "2"]);
    let heading = text(&table.stdout)
        .lines()
        .next()
        .expect("a heading")
        .to_owned();
    assert!(heading.starts_with("device s"), "{heading}");
    let csv = bimetal(&["cache", "--trace", trace, "--size", "2", "--csv"]);
    let lines: Vec<&str> = text(&csv.stdout).lines().collect();
    assert!(lines[0].starts_with("trace,policy,size_pages,ftl,"));
    assert_eq!(lines.len(), 4, "three policies by default");
    let fields = |line: &str| line.split(',').count();
    assert!(lines.iter().all(|line| fields(line) == fields(lines[0])));
}

#[test]
fn records_can_be_counted_as_objects() {
    // The trace has two requests of two pages. They are four accesses to three pages, or two
    // accesses to two objects.
    let scratch = Scratch::new("objects");
    let trace = scratch.text("two.csv", "op,lpn,npages\nR,0,2\nR,1,2\n");
    let trace = trace.to_str().expect("a plain path");
    let counted = |key: &str| {
        let run = [
            "cache", "--trace", trace, "--size", "10", "--policy", "lru", "--json",
        ];
        let list = json(&bimetal(&[&run[..], &["--key", key]].concat()));
        (list[0]["accesses"].as_u64(), list[0]["misses"].as_u64())
    };
    assert_eq!(counted("page"), (Some(4), Some(3)));
    assert_eq!(counted("record"), (Some(2), Some(2)));
}

#[test]
fn a_converted_trace_is_the_same_trace() {
    let scratch = Scratch::new("convert");
    let trace = scratch.text("small.csv", PAGES);
    let compact = scratch.path("small.trace");
    let (from, to) = (
        trace.to_str().expect("plain"),
        compact.to_str().expect("plain"),
    );
    assert!(bimetal(&["trace", "convert", from, to]).status.success());
    let summary = |file: &str| {
        let mut value = json(&bimetal(&["trace", "summary", file, "--json"]));
        // Ignore the values that must differ between the two traces: the name, the format, the
        // number of lines, and the lines that were passed over. Only the text trace has a heading
        // line, which is passed over.
        for name in ["trace", "format", "lines", "passed_over"] {
            value[name] = Value::Null;
        }
        value
    };
    assert_eq!(summary(from), summary(to));
    assert_eq!(summary(to)["requests"]["write"], 3);
    assert_eq!(summary(to)["footprint_pages"], 3);
    // An existing file is not overwritten.
    let again = bimetal(&["trace", "convert", from, to]);
    assert_eq!(again.status.code(), Some(1));
    let points = json(&bimetal(&[
        "trace",
        "stack-distance",
        to,
        "--size",
        "2,3",
        "--json",
    ]));
    let ratios: Vec<_> = (0..2).map(|at| points[at]["miss_ratio"].as_f64()).collect();
    assert_eq!(ratios, [Some(1.0), Some(0.5)]);
}

/// Tests the warning about an estimate from fewer than 100 pages. With 100 pages, the estimate is
/// the exact result for a cache of another size, which differs from the requested size by about a
/// tenth at most. At a rate of 0.01, a cache of 10,000 pages is simulated with 100 pages.
#[test]
fn a_sample_that_says_little_is_warned_of() {
    let scratch = Scratch::new("sample");
    let trace = scratch.text("long.csv", "op,lpn,npages\nR,0,30000\nR,0,30000\n");
    let trace = trace.to_str().expect("a plain path");
    let said = |size: &str, more: &[&str]| {
        let words = ["cache", "--trace", trace, "--policy", "lru", "--size", size];
        let output = bimetal(&[&words, more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr).to_owned()
    };
    assert_eq!(said("10000", &["--sample", "0.01"]), "");
    assert_eq!(said("10000", &["--sample", "1"]), "");
    assert_eq!(said("10", &[]), "", "nothing is estimated");
    let few = said("20000,5000", &["--sample", "0.01"]);
    assert_eq!(few.lines().count(), 1, "{few}");
    for words in [
        "long.csv",
        "5000 pages",
        "from 50 pages",
        "--sample 0.02 or more",
    ] {
        assert!(few.contains(words), "{few}");
    }
    let hopeless = said("90", &["--sample", "0.5"]);
    assert!(hopeless.contains("omit --sample"), "{hopeless}");
    // A larger cache does not help, because the sample has only about 30 pages.
    let short = said("100000", &["--sample", "0.001"]);
    assert!(short.contains("warning"), "{short}");
}

#[test]
fn bad_input_is_one_line_with_the_place() {
    let scratch = Scratch::new("bad");
    let bad = scratch.text("bad.csv", "op,lpn,npages\nR,0,1\nR,x,1\nW,1,1\n");
    let bad = bad.to_str().expect("a plain path");
    let failed = |args: &[&str], status: i32, words: &str| {
        let output = bimetal(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        let message = text(&output.stderr);
        assert!(message.contains(words), "{message}");
        assert!(output.stdout.is_empty());
    };
    failed(
        &["cache", "--trace", bad],
        1,
        "bad.csv: line 3: lpn `x` is not a number",
    );
    failed(&["trace", "summary", bad], 1, "line 3");
    failed(&["cache", "--trace", "nowhere.csv"], 1, "nowhere.csv");
    let missing = bimetal(&["trace", "summary", "nowhere.csv"]);
    assert_eq!(
        text(&missing.stderr).matches("os error").count(),
        1,
        "the reason is said once"
    );
    let noise = scratch.text("noise", "what is\nthis\n");
    let noise = noise.to_str().expect("a plain path");
    failed(&["cache", "--trace", noise], 1, "format is not recognized");
    let empty = scratch.text("empty", "");
    failed(
        &["cache", "--trace", empty.to_str().expect("plain")],
        1,
        "no reads",
    );
    failed(
        &["cache", "--trace", bad, "--policy", "lru9"],
        2,
        "no policy `lru9`",
    );
    failed(&["cache", "--trace", bad, "--size", "0"], 2, "not a size");
    failed(&["cache", "--trace", bad, "--ftl", "magic"], 2, "magic");
    // On request, the bad record is skipped and counted.
    let skipped = bimetal(&["cache", "--trace", bad, "--skip-bad", "1", "--json"]);
    assert_eq!(
        text(&skipped.stderr).trim_end(),
        format!("bimetal-lab: {bad}: 1 bad records skipped")
    );
    assert_eq!(json(&skipped)[0]["accesses"], 2);
}

/// Tests that a reader reports its decisions and skipped lines, and refuses input that it cannot
/// interpret.
#[test]
fn a_reader_says_what_it_does_not_take_for_a_request() {
    let scratch = Scratch::new("notes");
    let summary = |name: &str, content: &str, more: &[&str]| {
        let trace = scratch.text(name, content);
        let trace = trace.to_str().expect("a plain path").to_owned();
        let args = [&["trace", "summary", "--json", &trace], more].concat();
        (bimetal(&args), format!("bimetal-lab: {trace}: "))
    };
    let issued = "8,0 0 1 0.1 7 D R 8 + 8 [cat]\n8,0 0 1 0.2 7 C R 8 + 8 [0]\nCPU0 (8,0):\n";
    let (output, about) = summary("issued", issued, &[]);
    assert_eq!(json(&output)["requests"]["read"], 1);
    assert_eq!(
        text(&output.stderr),
        format!(
            "{about}the trace has no events Q, so its events D are used as the requests\n\
             {about}not requests, of 3 lines: 1 other events; 1 no events\n"
        )
    );
    let (output, about) = summary(
        "plugged",
        "8,0 0 1 0.1 7 P N [cat]\n",
        &["--format", "blkparse"],
    );
    assert_eq!(output.status.code(), Some(1));
    let refused = format!("{about}no request: it has no event Q, I, D or C\n");
    assert_eq!(text(&output.stderr), refused);
    // The first column of a `--columns` description can be a column to skip.
    let columns = ["--columns", "-,op,offset_sectors"];
    let (output, about) = summary("heading", "who,what,where\nx,read,8\n", &columns);
    assert_eq!(json(&output)["requests"]["read"], 1);
    let heading = format!("{about}line 1 is treated as a heading: `who,what,where`\n");
    assert_eq!(text(&output.stderr), heading);
    let (output, about) = summary("data", "x,peek,8\nx,read,8\n", &columns);
    assert_eq!(output.status.code(), Some(1));
    let refused = format!("{about}line 1: column 2: type `peek` is not read, write or trim\n");
    assert_eq!(text(&output.stderr), refused);
}
