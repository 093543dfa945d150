//! Tests of `bimetal rescue` as its user sees it: one side is left, and the volume is needed.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use std::os::unix::fs::FileExt;

use common::{Client, MIRROR, Scratch, Served, arg, assert_refused, bimetal, stdout_of};
use serde_json::Value;

const BLOCK: u64 = 4096;

/// Makes a volume of two sides with a layout, and writes some blocks. Returns the offsets.
fn written(dir: &Scratch, layout: &str) -> Vec<u64> {
    let keys = format!("type = \"mirror\"\nlayout = \"{layout}\"\n");
    let text = MIRROR.replace("type = \"mirror\"\n", &keys);
    let config = dir.text("c.toml", &text);
    stdout_of(&["format", arg(&config)]);
    let served = Served::start(&config);
    let mut client = Client::connect(&dir.path("vol.sock"));
    let offsets: Vec<u64> = (0..200u64).map(|n| n * 7 % 200 * 16 * BLOCK).collect();
    for offset in &offsets {
        client
            .write(*offset, (offset / BLOCK % 251) as u8 + 1)
            .unwrap();
    }
    drop(client);
    assert_eq!(served.end("TERM").0, Some(0));
    offsets
}

fn byte_at(file: &std::path::Path, offset: u64) -> u8 {
    let mut byte = [0];
    let file = std::fs::File::open(file).unwrap();
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

#[test]
fn a_volume_is_copied_from_one_side_without_anything_else() {
    for layout in ["home", "log"] {
        let dir = Scratch::new(&format!("rescue-{layout}"));
        let offsets = written(&dir, layout);
        // Nothing but the side is left.
        for lost in ["a.img", "c.toml"] {
            std::fs::remove_file(dir.path(lost)).unwrap();
        }
        let (side, copy) = (dir.path("b.img"), dir.path("copy.img"));
        let before = std::fs::read(&side).unwrap();
        let rescue = ["rescue", arg(&side), "--output", arg(&copy)];
        let output = bimetal(&rescue);
        assert_eq!(output.status.code(), Some(0));
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.contains("nothing is missing"), "{said}");
        for offset in &offsets {
            let expected = (offset / BLOCK % 251) as u8 + 1;
            assert_eq!(byte_at(&copy, *offset), expected, "{layout}: {offset}");
            assert_eq!(byte_at(&copy, offset + BLOCK), 0, "{layout}: {offset}");
        }
        assert!(
            std::fs::read(&side).unwrap() == before,
            "the side is as it was"
        );
        assert_refused(&rescue, 1, &["copy.img", "exists", "--overwrite"]);
        let again = bimetal(&[&rescue[..], &["--overwrite", "--json"]].concat());
        let result: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(result["copied_bytes"], 200 * BLOCK);
        assert_eq!(result["layout"], layout);
        assert_eq!(result["missing"], serde_json::json!([]));
        let told = String::from_utf8(again.stderr).unwrap();
        assert!(
            told.contains("volume vol") && told.contains("2 sides"),
            "{told}"
        );
    }
}

#[test]
fn what_is_missing_is_listed() {
    let dir = Scratch::new("rescue-missing");
    let offsets = written(&dir, "log");
    let (side, copy) = (dir.path("b.img"), dir.path("copy.img"));
    // Spoils one block: the only place on the side with its content.
    let content = (offsets[9] / BLOCK % 251) as u8 + 1;
    let bytes = std::fs::read(&side).unwrap();
    let blocks = bytes.chunks(BLOCK as usize);
    let mut same = blocks
        .enumerate()
        .filter(|(_, b)| b.iter().all(|x| *x == content));
    let (place, _) = same.next().expect("it was written");
    assert_eq!(same.next(), None, "no other block has this content");
    let file = std::fs::OpenOptions::new().write(true).open(&side).unwrap();
    file.write_all_at(&[0xEE; 64], place as u64 * BLOCK)
        .unwrap();
    let rescue = ["rescue", arg(&side), "--output", arg(&copy)];
    let output = bimetal(&rescue);
    assert_eq!(output.status.code(), Some(3));
    let said = String::from_utf8(output.stdout).unwrap();
    let line = format!("  4 KiB at {}", offsets[9]);
    assert!(
        said.contains("MISSING: 4 KiB") && said.contains(&line),
        "{said}"
    );
    assert_eq!(byte_at(&copy, offsets[9]), 0);
}

#[test]
fn what_cannot_be_rescued_is_refused() {
    let dir = Scratch::new("rescue-refused");
    let copy = dir.path("copy.img");
    let blank = dir.zeroes("blank.img", 32 << 20);
    let rescue = ["rescue", arg(&blank), "--output", arg(&copy)];
    assert_refused(&rescue, 1, &["blank.img", "no side"]);
    let missing = dir.path("none.img");
    let rescue = ["rescue", arg(&missing), "--output", arg(&copy)];
    assert_refused(&rescue, 1, &["none.img"]);
    assert!(!copy.exists(), "a refusal makes no file");
    let config = dir.text("c.toml", MIRROR);
    stdout_of(&["format", arg(&config)]);
    let served = Served::start(&config);
    let side = dir.path("a.img");
    let rescue = ["rescue", arg(&side), "--output", arg(&copy)];
    assert_refused(&rescue, 1, &["a.img", "in use"]);
    assert_eq!(served.end("TERM").0, Some(0));
}
