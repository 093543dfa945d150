//! Tests of `bimetal index` as a person or a script uses it: loaded records are returned unchanged,
//! and every mistake is reported.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use common::{Scratch, arg, assert_refused, bimetal, command, stdout_of};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::process::Stdio;

/// Loads a file into an index. If the index is new, it gets a short log and short segments, so that
/// its file stays small.
fn load(index: &Path, file: &Path, options: &[&str]) -> String {
    let mut args = vec!["index", "load", arg(index), arg(file)];
    if !index.exists() {
        args.extend(["--log-bytes", "1MiB", "--segment-bytes", "64KiB"]);
    }
    args.extend(options);
    stdout_of(&args)
}

fn scan(index: &Path, options: &[&str]) -> String {
    let mut args = vec!["index", "scan", arg(index)];
    args.extend(options);
    stdout_of(&args)
}

fn json_of(args: &[&str], status: i32) -> Value {
    let output = bimetal(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}");
    assert_eq!(output.stderr, b"");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Returns records in the format `binary`. No key is text. The values include quotes, line ends and
/// one long value.
fn binary_records() -> Vec<u8> {
    let mut file = Vec::new();
    let long = vec![b'\n'; 20_000];
    let values: [&[u8]; 5] = [b"", b"\"", b"a,b\r\n", b"\xFF\x00", &long];
    for (number, value) in (0u8..).zip(values) {
        let key = [0, number, 0xFF];
        file.extend((key.len() as u32).to_le_bytes());
        file.extend((value.len() as u32).to_le_bytes());
        file.extend(key);
        file.extend(value);
    }
    file
}

#[test]
fn what_a_scan_writes_is_loaded_again_in_every_format() {
    let dir = Scratch::new("index-formats");
    let binary = dir.path("in.bin");
    std::fs::write(&binary, binary_records()).unwrap();
    let first = dir.path("first.index");
    assert!(load(&first, &binary, &[]).contains("5 records"));
    for (format, forms) in [
        ("binary", &[][..]),
        ("csv", &["--key", "hex", "--value", "hex"]),
        ("csv", &["--key", "text", "--value", "text"]),
        ("json", &["--key", "hex", "--value", "hex"]),
    ] {
        let mut args = vec!["index", "scan", arg(&first), "--format", format];
        args.extend(forms);
        let dumped = bimetal(&args);
        assert!(dumped.status.success());
        let (dump, next) = (dir.path("dump"), dir.path("next.index"));
        std::fs::write(&dump, dumped.stdout).unwrap();
        let mut options = vec!["--format", format];
        options.extend(forms);
        load(&next, &dump, &options);
        let again = bimetal(&["index", "scan", arg(&next), "--format", "binary"]);
        assert_eq!(again.stdout, binary_records(), "{format} {forms:?}");
        std::fs::remove_file(&next).unwrap();
    }
}

#[test]
fn keys_that_are_not_text_come_as_hex_and_it_is_said() {
    let dir = Scratch::new("index-hex");
    let index = dir.path("x.index");
    let file = dir.text("in.csv", "0001,one\nff,two\n");
    load(&index, &file, &["--key", "hex"]);
    let output = bimetal(&["index", "scan", arg(&index)]);
    assert_eq!(output.stdout, b"0001,one\nff,two\n");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("--key hex") && !said.contains("--value"),
        "{said}"
    );
    // With `--key hex` the form is not guessed, so no message about a guess is printed.
    assert_eq!(scan(&index, &["--key", "hex"]), "0001,one\nff,two\n");
}

#[test]
fn a_mark_of_byte_order_is_part_of_a_key() {
    let dir = Scratch::new("index-mark");
    let (first, second) = (dir.path("1.index"), dir.path("2.index"));
    let hex = dir.text("in.csv", "efbbbf61,1\n");
    load(&first, &hex, &["--key", "hex"]);
    let dump = dir.text("dump.csv", &scan(&first, &[]));
    load(&second, &dump, &[]);
    assert_eq!(scan(&second, &["--key", "hex"]), "efbbbf61,1\n");
}

#[test]
fn numbers_are_in_order_and_bounds_are_numbers() {
    let dir = Scratch::new("index-numbers");
    let index = dir.path("n.index");
    let file = dir.text("n.csv", "id,n\n10,x\n9,y\n18446744073709551615,z\n256,\n");
    load(&index, &file, &["--key", "u64", "--header"]);
    let u64s = |options: &[&str]| scan(&index, &[&["--key", "u64"], options].concat());
    assert_eq!(u64s(&[]), "9,y\n10,x\n256,\n18446744073709551615,z\n");
    assert_eq!(
        u64s(&["--reverse", "--limit", "2"]),
        "18446744073709551615,z\n256,\n"
    );
    assert_eq!(u64s(&["--from", "10", "--to", "256"]), "10,x\n");
    assert_eq!(u64s(&["--from", "11", "--limit", "1"]), "256,\n");
    let line = scan(
        &index,
        &["--key", "u64", "--format", "json", "--limit", "1"],
    );
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["key"], 9);
    let json = dir.text("n.json", &u64s(&["--format", "json"]));
    let again = dir.path("again.index");
    load(&again, &json, &["--key", "u64"]);
    assert_eq!(scan(&again, &["--key", "u64"]), u64s(&[]));
    assert_refused(
        &[
            "index",
            "scan",
            arg(&index),
            "--key",
            "u64",
            "--prefix",
            "1",
        ],
        1,
        &["--prefix", "--from"],
    );
}

#[test]
fn lines_and_standard_input_and_prefixes() {
    let dir = Scratch::new("index-lines");
    let index = dir.path("w.index");
    load(&index, &dir.text("words.txt", "car\ncat\r\ndog\n"), &[]);
    let mut child = command(&["index", "load", arg(&index), "-", "--format", "csv"])
        .args(["--delimiter", "tab"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"cat\tmeows\ncow\t\"\"\n").unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(scan(&index, &[]), "car,\ncat,meows\ncow,\ndog,\n");
    assert_eq!(scan(&index, &["--prefix", "ca"]), "car,\ncat,meows\n");
    assert_eq!(scan(&index, &["--prefix", "x"]), "");
}

#[test]
fn get_prints_values_and_names_what_is_missing() {
    let dir = Scratch::new("index-get");
    let index = dir.path("g.index");
    load(&index, &dir.text("g.csv", "a,1\nb,\"x\ny\"\n"), &[]);
    let get = |options: &[&str]| {
        let output = bimetal(&[&["index", "get", arg(&index)], options].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    assert_eq!(
        get(&["b", "a"]),
        (Some(0), "x\ny\n1\n".into(), String::new())
    );
    assert_eq!(get(&["--key", "hex", "61", "--hex"]).1, "31\n");
    let (status, out, said) = get(&["nothing", "a"]);
    assert_eq!((status, &*out), (Some(1), "1\n"));
    assert!(
        said.contains("g.index: there is no key `nothing`"),
        "{said}"
    );
    assert_eq!(get(&["a", "--value", "u64"]).0, Some(1));
}

/// Asserts that loading `content` fails with a message that contains `words`, and that the index
/// then contains exactly the records `left`.
fn assert_load_refused(name: &str, content: &[u8], options: &[&str], words: &[&str], left: &str) {
    let dir = Scratch::new(&format!("index-bad-{name}"));
    let (index, file) = (dir.path("x.index"), dir.path(name));
    std::fs::write(&file, content).unwrap();
    let mut args = vec![
        "index",
        "load",
        arg(&index),
        arg(&file),
        "--log-bytes",
        "256KiB",
    ];
    args.extend(options);
    assert_refused(&args, 1, words);
    assert_eq!(scan(&index, &["--key", "text", "--value", "text"]), left);
}

#[test]
fn a_bad_record_has_its_place_and_what_was_before_it_is_there() {
    let one = ["before that: 1 record"];
    let none = ["nothing was loaded"];
    let refused = |name: &str, content: &[u8], options: &[&str], words: &[&str]| {
        let (said, left) = match name.starts_with('1') {
            true => (one, "a,b\n"),
            false => (none, ""),
        };
        assert_load_refused(name, content, options, &[words, &said].concat(), left);
    };
    refused(
        "1one.csv",
        b"a,b\n\nc\nd,e\n",
        &[],
        &["1one.csv:3:", "found 1"],
    );
    refused(
        "1three.csv",
        b"a,b\nc,d,e\n",
        &[],
        &["1three.csv:2:", "found 3"],
    );
    refused(
        "1quote.csv",
        b"a,b\nc,\"d\ne,f\n",
        &[],
        &["1quote.csv:2:", "never closed"],
    );
    refused(
        "number.csv",
        b"a,b\n",
        &["--value", "u64"],
        &["number.csv:1:", "value `b`"],
    );
    refused(
        "digits.csv",
        b"abc,b\n",
        &["--key", "hex"],
        &["digits.csv:1:", "key `abc`"],
    );
    let long = format!("a,b\n{},1\n", "k".repeat(4097));
    refused(
        "1long.csv",
        long.as_bytes(),
        &[],
        &["1long.csv:2:", "4097", "4096"],
    );
    let huge = format!("a,b\nc,{}\n", "v".repeat(40_000));
    refused(
        "1huge.csv",
        huge.as_bytes(),
        &[],
        &["1huge.csv:2:", "--log-bytes"],
    );
    let cut = b"\x01\0\0\0\x01\0\0\0ab\x01\0\0\0\x05\0\0\0cde";
    refused("1cut.bin", cut, &[], &["record 2 at byte 10", "at byte 21"]);
    refused("noise.bin", &[0xAA; 100], &[], &["record 1 at byte 0"]);
    refused(
        "1.json",
        b"{\"key\":\"a\",\"value\":\"b\"}\n{}\n",
        &[],
        &["1.json:2:", "key"],
    );
}

#[test]
fn a_mistake_on_the_command_line_makes_no_index() {
    let dir = Scratch::new("index-usage");
    let (index, csv) = (dir.path("x.index"), dir.text("in.csv", "a,1\n"));
    let refused = |options: &[&str], words: &[&str]| {
        let args = [&["index", "load", arg(&index)], options].concat();
        assert_refused(&args, 1, words);
        assert!(!index.exists(), "{options:?}");
    };
    refused(&[], &["standard input", "--format"]);
    refused(&["missing.csv"], &["missing.csv"]);
    refused(
        &[arg(&csv), arg(&dir.text("in.dat", ""))],
        &["in.dat", "--format"],
    );
    refused(
        &[arg(&csv), "--log-bytes", "1KiB"],
        &["--log-bytes", "256 KiB"],
    );
    refused(
        &[arg(&csv), "--segment-bytes", "3MiB"],
        &["--segment-bytes", "power of two"],
    );
    refused(&[arg(&csv), "--memory", "1KiB"], &["--memory", "256 KiB"]);
    let wrong = ["index", "load", "x", arg(&csv), "--delimiter", "ab"];
    assert_refused(&wrong, 2, &["ab", "tab"]);
    load(&index, &csv, &[]);
    assert_refused(
        &[
            "index",
            "load",
            arg(&index),
            arg(&csv),
            "--segment-bytes",
            "1MiB",
        ],
        1,
        &["64 KiB", "--segment-bytes", "new index"],
    );
}

/// Returns the command lines of all verbs that open an existing index.
fn verbs(index: &Path) -> [Vec<&str>; 5] {
    let index = arg(index);
    [
        vec!["index", "get", index, "a"],
        vec!["index", "scan", index],
        vec!["index", "verify", index],
        vec!["index", "compact", index],
        vec!["index", "stats", index],
    ]
}

#[test]
fn what_is_no_index_is_refused_and_left_as_it_is() {
    let dir = Scratch::new("index-none");
    let missing = dir.path("missing");
    let text = dir.text("notes.txt", "not an index\n");
    let zeroes = dir.zeroes("zeroes", 1 << 20);
    for (path, words) in [
        (&missing, ["missing", "no such file"]),
        (&text, ["notes.txt", "not an index"]),
        (&zeroes, ["zeroes", "not an index"]),
    ] {
        let before = std::fs::read(path).ok();
        for verb in verbs(path) {
            assert_refused(&verb, 1, &words);
        }
        assert_eq!(std::fs::read(path).ok(), before);
    }
    let csv = dir.text("in.csv", "a,1\n");
    let args = ["index", "load", arg(&text), arg(&csv)];
    assert_refused(&args, 1, &["notes.txt", "not an index"]);
    // An index is created in a file of zeroes, because an interrupted creation of an index leaves
    // such a file.
    load(&zeroes, &csv, &[]);
    assert_eq!(scan(&zeroes, &[]), "a,1\n");
    let created = dir.zeroes("created", 1 << 20);
    stdout_of(&["index", "create", arg(&created)]);
    assert_refused(
        &["index", "create", arg(&created)],
        1,
        &["already has content"],
    );
}

const BLOCK: usize = 4096;

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes[at..at + len].iter().rev();
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[test]
fn an_index_of_another_version_is_refused() {
    let dir = Scratch::new("index-version");
    let index = dir.path("v.index");
    load(&index, &dir.text("in.csv", "a,1\n"), &[]);
    let mut content = std::fs::read(&index).unwrap();
    for block in content[..2 * BLOCK].chunks_mut(BLOCK) {
        if block.starts_with(b"bimetidx") {
            block[8] = 9;
            let crc = crc32c::crc32c(&block[..BLOCK - 4]);
            block[BLOCK - 4..].copy_from_slice(&crc.to_le_bytes());
        }
    }
    std::fs::write(&index, content).unwrap();
    for verb in verbs(&index) {
        assert_refused(&verb, 1, &["v.index", "version 9", "supports version 6"]);
    }
}

#[test]
fn an_index_that_is_open_elsewhere_is_refused_and_it_is_said_by_whom() {
    let dir = Scratch::new("index-locked");
    let index = dir.path("l.index");
    let csv = dir.text("in.csv", "a,1\n");
    load(&index, &csv, &[]);
    let file = std::fs::File::open(&index).unwrap();
    file.lock().unwrap();
    let me = format!("process {}", std::process::id());
    let words = [
        "l.index",
        &me,
        "only while no other program has it open",
        "when that program has closed it",
    ];
    for verb in verbs(&index) {
        assert_refused(&verb, 1, &words);
    }
    let args = ["index", "load", arg(&index), arg(&csv)];
    assert_refused(&args, 1, &words);
    let new = dir.path("new.index");
    assert_refused(&["index", "rebuild", arg(&index), arg(&new)], 1, &words);
    assert!(!new.exists());
    file.unlock().unwrap();
    // Several readers can have the index open, but a writer is refused while a reader has it open.
    file.lock_shared().unwrap();
    assert!(stdout_of(&["index", "verify", arg(&index)]).contains("whole"));
    assert_eq!(scan(&index, &[]), "a,1\n");
    assert_eq!(stdout_of(&["index", "get", arg(&index), "a"]), "1\n");
    assert!(stdout_of(&["index", "stats", arg(&index), "--count"]).contains("1 key"));
    assert_refused(&args, 1, &words);
}

#[test]
fn what_only_reads_changes_no_byte() {
    let dir = Scratch::new("index-reads");
    let index = dir.path("r.index");
    load(&index, &dir.text("in.csv", "a,1\nb,2\n"), &[]);
    let before = std::fs::read(&index).unwrap();
    scan(&index, &[]);
    stdout_of(&["index", "get", arg(&index), "b"]);
    stdout_of(&["index", "stats", arg(&index)]);
    stdout_of(&["index", "verify", arg(&index)]);
    assert!(std::fs::read(&index).unwrap() == before);
}

#[test]
fn a_new_index_is_made_where_nothing_is() {
    let dir = Scratch::new("index-create");
    let index = dir.path("c.index");
    let args = [
        "index",
        "create",
        arg(&index),
        "--log-bytes",
        "1MiB",
        "--segment-bytes",
        "64KiB",
    ];
    assert!(stdout_of(&args).contains("an empty index"));
    assert_eq!(scan(&index, &[]), "");
    assert_refused(&args, 1, &["c.index", "the file already has content"]);
    let other = dir.path("d.index");
    let wrong = ["index", "create", arg(&other), "--log-bytes", "1KiB"];
    assert_refused(&wrong, 1, &["--log-bytes", "256 KiB"]);
    assert!(!other.exists());
}

#[test]
fn a_damaged_index_is_built_anew_and_what_is_lost_is_listed() {
    let dir = Scratch::new("index-rebuild");
    let (index, new) = (dir.path("x.index"), dir.path("new.index"));
    let rows: String = (0..20_000)
        .map(|n| format!("{n:06},{}\n", "v".repeat(90)))
        .collect();
    load(&index, &dir.text("in.csv", &rows), &[]);
    let whole = std::fs::read(&index).unwrap();
    // Rebuild without superblocks.
    let mut content = whole.clone();
    content[..2 * BLOCK].fill(0);
    std::fs::write(&index, &content).unwrap();
    let rebuild = ["index", "rebuild", arg(&index), arg(&new)];
    let value = json_of(&[&rebuild[..], &["--json"]].concat(), 1);
    let said = (&value["keys"], &value["lost_found"], &value["proven"]);
    assert_eq!(said, (&20_000.into(), &0.into(), &false.into()));
    assert_eq!(scan(&new, &[]), rows);
    assert_refused(&rebuild, 1, &["new.index", "exists"]);
    std::fs::remove_file(&new).unwrap();
    // The older superblock is erased and the newer one is kept. With this one intact superblock,
    // the rebuild can still prove that no record is lost.
    let mut with_one = whole.clone();
    let older = match number(&whole, 32, 8) < number(&whole, BLOCK + 32, 8) {
        true => 0,
        false => BLOCK,
    };
    with_one[older..older + BLOCK].fill(0);
    std::fs::write(&index, &with_one).unwrap();
    let said = stdout_of(&rebuild);
    assert!(said.contains("20,000 keys, nothing is lost"), "{said}");
    assert_eq!(scan(&new, &[]), rows);
    std::fs::remove_file(&new).unwrap();
    std::fs::write(&index, &content).unwrap();
    // A leaf in every segment is damaged as well. Some of these leaves are the newest images of
    // their keys.
    for segment in content[(256 << 10) + (64 << 10)..].chunks_mut(64 << 10) {
        if let Some(at) = segment.windows(9).position(|bytes| bytes == b"vvvvvvvvv") {
            segment[at] ^= 1;
        }
    }
    std::fs::write(&index, &content).unwrap();
    let value = json_of(&[&rebuild[..], &["--json", "--key", "text"]].concat(), 1);
    assert!(value["lost_found"].as_u64().unwrap() > 0, "{value}");
    let found = scan(&new, &[]);
    let lost = value["lost"].as_array().unwrap();
    let is_lost = |key: &str| {
        lost.iter().any(|lost| {
            let is_before = lost["to"].as_str().is_none_or(|to| key < to);
            lost["from"].as_str().unwrap() <= key && is_before
        })
    };
    let left: String = rows
        .lines()
        .filter(|row| !is_lost(&row[..6]))
        .map(|row| format!("{row}\n"))
        .collect();
    // All rows outside the listed ranges must exist. Rows inside the ranges can come from the
    // remaining log.
    let found: BTreeSet<&str> = found.lines().collect();
    let all: BTreeSet<&str> = rows.lines().collect();
    let left: BTreeSet<&str> = left.lines().collect();
    assert!(left.is_subset(&found) && found.is_subset(&all));
    assert!(left.len() > all.len() / 2);
    // If the source is not an index, no new file is left.
    let none = dir.zeroes("none", 1 << 20);
    let third = dir.path("third.index");
    assert_refused(
        &["index", "rebuild", arg(&none), arg(&third)],
        1,
        &["not an index"],
    );
    assert!(!third.exists());
}

/// Returns the byte range of the root's image. The search follows docs/format/index.md: from the
/// newer superblock to the checkpoint, and from the checkpoint to the node.
fn root_image(content: &[u8]) -> Range<usize> {
    let blocks = content[..2 * BLOCK].chunks(BLOCK);
    let newest = blocks.max_by_key(|block| number(block, 32, 8)).unwrap();
    let segment_bytes = number(newest, 12, 4);
    let front_end = (64 << 10) + number(newest, 248, 4) * BLOCK as u64;
    let segments_at = front_end.next_multiple_of(segment_bytes);
    let offset = |segment: u64| (segments_at + segment * segment_bytes) as usize;
    let checkpoint = offset(number(newest, 256, 4));
    assert_eq!(&content[checkpoint..checkpoint + 8], b"bimetlay");
    let root = number(content, checkpoint + 8, 4) as usize;
    let place = number(content, checkpoint + 32 + 8 * root, 8);
    let granule = |shift: u32| ((place >> shift & 0xFFFF) * 64) as usize;
    let start = offset(place >> 32) + granule(16);
    start..start + granule(0)
}

#[test]
fn verify_says_where_a_node_is_damaged_and_changes_nothing() {
    let dir = Scratch::new("index-damage");
    let index = dir.path("d.index");
    let rows: String = (0..100).map(|n| format!("{n},value {n}\n")).collect();
    load(&index, &dir.text("in.csv", &rows), &[]);
    stdout_of(&["index", "compact", arg(&index)]);
    let verify = ["index", "verify", arg(&index)];
    assert!(stdout_of(&verify).starts_with(&format!("{}: whole\n", arg(&index))));
    let whole = json_of(&[&verify[..], &["--json"]].concat(), 0);
    assert_eq!(
        (&whole["whole"], &whole["problems_found"]),
        (&true.into(), &0.into())
    );
    // All rows are in nodes, because a compaction writes buffered changes into nodes.
    assert_eq!(whole["examined"]["rows"], 100);

    let mut content = std::fs::read(&index).unwrap();
    let image = root_image(&content);
    content[image.end - 70] ^= 1;
    std::fs::write(&index, &content).unwrap();
    let damaged = json_of(&[&verify[..], &["--json"]].concat(), 1);
    assert_eq!(
        (&damaged["whole"], &damaged["problems_found"]),
        (&false.into(), &1.into())
    );
    assert_eq!(damaged["problems"][0]["offset_bytes"], image.start);
    let output = bimetal(&verify);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("damaged, 1 problem"), "{text}");
    assert!(text.contains(&format!("{}  node", image.start)), "{text}");
    assert_eq!(std::fs::read(&index).unwrap(), content, "it only reads");
    assert_refused(
        &["index", "get", arg(&index), "7"],
        1,
        &["d.index", "verify"],
    );

    // Without a superblock no node is reachable, which is also reported as damage.
    for block in [0, BLOCK] {
        content[block + 100] ^= 1;
    }
    std::fs::write(&index, &content).unwrap();
    let lost = json_of(&[&verify[..], &["--json"]].concat(), 1);
    assert_eq!(lost["problems"][0]["what"], "both superblocks");
}

#[test]
fn a_reader_of_a_scan_may_leave() {
    let dir = Scratch::new("index-pipe");
    let index = dir.path("p.index");
    let rows: String = (0..30_000).map(|n| format!("{n:08},value {n}\n")).collect();
    load(&index, &dir.text("in.csv", &rows), &[]);
    for format in ["csv", "json", "binary"] {
        let mut child = command(&["index", "scan", arg(&index), "--format", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::with_capacity(16, child.stdout.take().unwrap());
        assert!(!out.fill_buf().unwrap().is_empty());
        // The pipe is closed while far more output is pending than a pipe can hold.
        drop(out);
        let mut said = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        assert_eq!(
            (child.wait().unwrap().code(), &*said),
            (Some(0), ""),
            "{format}"
        );
    }
    assert_eq!(scan(&index, &[]), rows);
}

#[test]
fn compaction_gives_space_back_and_stats_add_up() {
    let dir = Scratch::new("index-space");
    let index = dir.path("s.index");
    let rows =
        |value: &str| -> String { (0..6000).map(|n| format!("{n:06},{n}{value}\n")).collect() };
    load(&index, &dir.text("long.csv", &rows(&"x".repeat(1000))), &[]);
    load(&index, &dir.text("short.csv", &rows("")), &[]);
    let stats = || json_of(&["index", "stats", arg(&index), "--count", "--json"], 0);
    let before = stats();
    let said = stdout_of(&["index", "compact", arg(&index)]);
    assert!(
        said.contains(" before, ") && said.contains(" now, "),
        "{said}"
    );
    let after = stats();
    let bytes = |stats: &Value, name: &str| stats["space"][name].as_u64().unwrap();
    assert!(
        bytes(&after, "total_bytes") < bytes(&before, "total_bytes") / 2,
        "{said}"
    );
    assert_eq!(
        bytes(&after, "total_bytes"),
        index.metadata().unwrap().len()
    );
    let of_segments = ["live_bytes", "dead_bytes", "reserve_bytes"].map(|n| bytes(&after, n));
    let segments = bytes(&after, "segments") * bytes(&after, "segment_bytes");
    assert_eq!(of_segments.iter().sum::<u64>(), segments);
    // The log is at the start of the file again. The log at this place has 64 blocks of 4 KiB.
    assert_eq!(bytes(&after, "log_bytes"), 256 << 10);
    assert_eq!(after["log"]["bytes_max"], 1 << 20);
    assert_eq!(after["keys"], 6000);
    assert_eq!(scan(&index, &[]), rows(""));
    let text = stdout_of(&["index", "stats", arg(&index), "--count"]);
    for words in [
        "6,000 keys",
        "  space",
        "reserve",
        "1 MiB",
        "  memory",
        "  log",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Tests a load that fills the disk. The test simulates a full disk with a file size limit of 4
/// MiB.
#[test]
fn a_full_disk_ends_a_load_with_what_was_loaded() {
    let dir = Scratch::new("index-full");
    let index = dir.path("f.index");
    let rows: String = (0..8000)
        .map(|n| format!("{n:06},{}\n", format!("{n:010}").repeat(100)))
        .collect();
    let file = dir.text("in.csv", &rows);
    load(&index, &dir.text("none.csv", ""), &[]);
    // SIGXFSZ is ignored, so that the write fails instead of killing the program. The shell counts
    // file sizes in units of 512 bytes.
    let limited = "trap '' XFSZ; ulimit -f 8192; exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_bimetal");
    let output = std::process::Command::new("sh")
        .args([
            "-c",
            limited,
            "sh",
            program,
            "index",
            "load",
            arg(&index),
            arg(&file),
        ])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no space left"), "{said}");
    let (_, loaded) = said.split_once(" before that: ").expect("it says how many");
    let loaded = loaded.split(' ').next().unwrap().replace(',', "");
    let loaded: usize = loaded.parse().unwrap();
    // The file, which includes the log, is limited to 4 MiB. At most 4,161 records of 1,008 bytes
    // fit in it.
    assert!((1..=4161).contains(&loaded), "{said}");
    let there = scan(&index, &[]);
    assert_eq!(there.lines().count(), loaded);
    assert!(rows.starts_with(&there), "it is the beginning of the file");
}
