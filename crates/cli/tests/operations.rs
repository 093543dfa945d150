//! Tests of operations on a served volume, as their user sees them.

#[allow(dead_code, reason = "every test file uses its part")]
mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Client, MIRROR, Scratch, Served, arg, assert_refused, stdout_of, with_homes};
use serde_json::Value;

const NEW: &str = "[device.c]\ntype = \"file\"\npath = \"c.img\"\nsize = \"32MiB\"\n";

fn status(config: &Path) -> Value {
    let said = common::bimetal(&["status", arg(config), "--json"]);
    serde_json::from_slice(&said.stdout).unwrap()
}

/// Polls the status of the server until `is_so` returns true. The test fails after 2,000 polls.
fn until(config: &Path, what: &str, is_so: impl Fn(&Value) -> bool) {
    for _ in 0..2_000 {
        if is_so(&status(config)) {
            return;
        }
    }
    panic!("never {what}: {}", status(config));
}

fn sides(status: &Value) -> Vec<String> {
    let parts = status["devices"]["vol"]["parts"].as_object().unwrap();
    parts.keys().cloned().collect()
}

#[test]
fn a_scrub_is_asked_for_and_told() {
    let dir = Scratch::new("scrub");
    let config = dir.text("c.toml", &with_homes(MIRROR));
    stdout_of(&["format", arg(&config)]);
    let file = arg(&config);
    let served = Served::start(&config);
    assert_refused(&["scrub", file, "vol", "--show"], 1, &["not scrubbed"]);
    assert_refused(&["scrub", file, "a"], 1, &["a is not a mirror"]);
    assert_refused(&["scrub", file, "x"], 1, &["no mirror `x`"]);
    assert_refused(&["scrub", file, "vol", "--cancel"], 1, &["no scrub runs"]);
    let said = stdout_of(&["scrub", file, "vol", "--wait", "--json"]);
    let scrub: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(scrub["state"], "done");
    assert_eq!(
        (&scrub["found"], &scrub["position_bytes"]),
        (
            &Value::from(0),
            &status(&config)["devices"]["vol"]["size_bytes"]
        )
    );
    // Corrupts a metadata page on one side. The page holds the bits that tell which blocks have
    // been written.
    let side = std::fs::OpenOptions::new()
        .write(true)
        .open(dir.path("b.img"))
        .unwrap();
    side.write_all_at(&[0xEE; 4096], 192 << 10).unwrap();
    let said = stdout_of(&["scrub", file, "vol", "--wait"]);
    assert!(said.contains("corrupt 1, repaired 1,"), "{said}");
    let said = stdout_of(&["scrub", file, "vol", "--show"]);
    assert!(said.starts_with("done: "), "{said}");
    assert_eq!(served.end("TERM").0, Some(0));
}

#[test]
fn a_side_is_replaced_and_the_command_is_told() {
    let dir = Scratch::new("replace");
    let alert = "alert = \"echo $BIMETAL_EVENT $BIMETAL_VOLUME $BIMETAL_SIDE >> TOLD\"\n";
    let told = dir.path("told");
    let text = format!("{MIRROR}{}{NEW}", alert.replace("TOLD", arg(&told)));
    let config = dir.text("c.toml", &text);
    stdout_of(&["format", arg(&config)]);
    let file = arg(&config);
    let served = Served::start(&config);
    let refused = ["could not", "there is no [device.x]"];
    assert_refused(&["side", "add", file, "vol", "x"], 1, &refused);
    let refused = ["could not", "no side x; there are: a, b"];
    assert_refused(&["side", "remove", file, "vol", "x"], 1, &refused);
    let said = stdout_of(&["side", "replace", file, "vol", "b", "c"]);
    assert!(said.starts_with("started: replace b of vol by c"), "{said}");
    let edit = "write into [device.vol]: sides = [\"a\", \"c\"]\n";
    assert!(said.contains(edit), "{said}");
    until(&config, "replaced", |status| {
        sides(status) == ["a", "c"] && status["health"] == "healthy"
    });
    let has_been_told = || std::fs::read_to_string(&told).unwrap_or_default();
    until(&config, "told", |_| {
        has_been_told().contains("side-rebuilt vol c\n")
    });
    let (status, said) = served.end("TERM");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("vol: side c: is complete again"), "{said}");
    let edited = text.replace("[\"a\", \"b\"]", "[\"a\", \"c\"]");
    dir.text("c.toml", &edited);
    let served = Served::start(&config);
    assert_eq!(sides(&self::status(&config)), ["a", "c"]);
    assert_eq!(self::status(&config)["health"], "healthy");
    assert_eq!(served.end("TERM").0, Some(0));
}

const ADOPTING: &str = "[device.disk]\ntype = \"file\"\npath = \"disk.img\"\n\
    [device.notes]\ntype = \"file\"\npath = \"notes.img\"\nsize = \"6MiB\"\n\
    [device.old]\ntype = \"adopted\"\ndata = \"disk\"\nmetadata = \"notes\"\n";

/// Tests that a disk with content is adopted and copied to a second side while it is served, and
/// that after a clean stop the disk alone has the content of the volume. The content is longer than
/// the logs.
#[test]
fn a_disk_is_adopted_and_copied() {
    let dir = Scratch::new("adopt");
    let content: Vec<u8> = (0..20u32 << 18)
        .flat_map(|word| (word * 7 + 1).to_le_bytes())
        .collect();
    std::fs::write(dir.path("disk.img"), &content).unwrap();
    let text = MIRROR.replace("[\"a\", \"b\"]", "[\"old\", \"b\"]") + ADOPTING;
    let text = text.replace(
        "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"32MiB\"\n",
        "",
    );
    let config = dir.text("c.toml", &text);
    let file = arg(&config);
    assert_refused(
        &["format", file],
        1,
        &["side old", "--adopt old", "--force"],
    );
    // The superblock of XFS has this magic number. The remedy that keeps the content comes before
    // the option that destroys it.
    let mut formatted = content.clone();
    formatted[..4].copy_from_slice(b"XFSB");
    std::fs::write(dir.path("disk.img"), &formatted).unwrap();
    let refused = ["disk: holds XFS", "`format --adopt old` keeps it"];
    assert_refused(&["format", file], 1, &refused);
    std::fs::write(dir.path("disk.img"), &content).unwrap();
    assert_refused(&["format", file, "--adopt", "b"], 1, &["side b", "adopted"]);
    assert_refused(
        &["format", file, "--adopt", "x"],
        1,
        &["no mirror has a side `x`"],
    );
    assert_eq!(dir.names(), ["c.toml", "disk.img"], "what was refused");
    // The other side is logged by default, and has room for four fifths of less than 32 MiB.
    let refused = [
        "side b",
        "has room for 17.4 MiB",
        "the volume has 20 MiB",
        "needs at least",
        "with layout = \"home\" this device of 32 MiB has room for 27.0 MiB",
    ];
    assert_refused(&["format", file, "--adopt", "old"], 1, &refused);
    assert_eq!(dir.names(), ["c.toml", "disk.img"], "what was refused");
    dir.text("c.toml", &with_homes(&text));
    let said = stdout_of(&["format", file, "--adopt", "old"]);
    for words in ["notes: created ", "of 20 MiB", "its content is"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let again = ["side old", "already holds a side", "--force"];
    assert_refused(&["format", file, "--adopt", "old"], 1, &again);
    assert!(std::fs::read(dir.path("disk.img")).unwrap() == content);

    let served = Served::start(&config);
    until(&config, "whole", |status| status["health"] == "healthy");
    assert_eq!(status(&config)["devices"]["vol"]["size_bytes"], 20 << 20);
    let scrub = stdout_of(&["scrub", file, "vol", "--wait", "--json"]);
    let scrub: Value = serde_json::from_str(&scrub).unwrap();
    assert_eq!(
        (&scrub["state"], &scrub["found"]),
        (&"done".into(), &0.into())
    );
    assert_eq!(scrub["learned_blocks"], 20 << 8, "all blocks of one side");
    assert_eq!(served.end("TERM").0, Some(0));

    assert!(
        std::fs::read(dir.path("disk.img")).unwrap() == content,
        "the disk is the volume"
    );
    let said: Value = serde_json::from_str(&stdout_of(&["check", file, "--json"])).unwrap();
    let devices = &said["devices"];
    assert_eq!(devices["vol"]["state"], "clean");
    assert_eq!(devices["old"]["data_offset_bytes"], 0);
    assert_eq!(devices["old"]["data_path"], arg(&dir.path("disk.img")));
    assert_eq!(devices["old"]["state"], "clean");
    let offset = devices["b"]["data_offset_bytes"].as_u64().unwrap();
    let mut copy = vec![0; content.len()];
    let other = std::fs::File::open(dir.path("b.img")).unwrap();
    other.read_exact_at(&mut copy, offset).unwrap();
    assert!(copy == content, "the other side has the content");
}

/// Tests that a logged disk can be the other side of an adopted one without a key `layout`, which
/// would be refused for the adopted one.
#[test]
fn an_adopted_disk_has_a_home_beside_a_logged_side() {
    let dir = Scratch::new("adopt-default");
    std::fs::write(dir.path("disk.img"), vec![7; 16 << 20]).unwrap();
    let text = MIRROR.replace("[\"a\", \"b\"]", "[\"old\", \"b\"]") + ADOPTING;
    let config = dir.text("c.toml", &text);
    let said = stdout_of(&["format", arg(&config), "--adopt", "old"]);
    assert!(
        said.contains("logged, room for 17.4 MiB on 32 MiB"),
        "{said}"
    );
    assert!(!said.contains("would have"), "the disk decides: {said}");
    let served = Served::start(&config);
    until(&config, "whole", |status| status["health"] == "healthy");
    assert_eq!(served.end("TERM").0, Some(0));
    let said: Value = serde_json::from_str(&stdout_of(&["check", arg(&config), "--json"])).unwrap();
    assert_eq!(said["devices"]["old"]["data_offset_bytes"], 0);
    assert_eq!(said["devices"]["b"]["layout"], "log");
}

/// Tests that a volume grows after both sides were replaced by larger ones, and again after a
/// restart with longer files.
#[test]
fn a_volume_grows_with_its_sides() {
    let dir = Scratch::new("grow");
    let new = "[device.NAME]\ntype = \"file\"\npath = \"NAME.img\"\nsize = \"48MiB\"\n";
    let text = [MIRROR, &new.replace("NAME", "c"), &new.replace("NAME", "d")].concat();
    let config = dir.text("c.toml", &with_homes(&text));
    stdout_of(&["format", arg(&config)]);
    // Without the key, the sides that replace sides with homes have homes, too.
    dir.text("c.toml", &text);
    let file = arg(&config);
    let served = Served::start(&config);
    let (full, unknown) = (["side a has room for", "only"], ["no mirror `x`"]);
    assert_refused(&["grow", file, "vol"], 1, &full);
    assert_refused(&["grow", file, "x"], 1, &unknown);
    let socket = dir.path("vol.sock");
    let mut before = Client::connect(&socket);
    let old_bytes = before.size_bytes;
    before.write(old_bytes - 4096, 7).unwrap();
    for (old, new) in [("a", "c"), ("b", "d")] {
        stdout_of(&["side", "replace", file, "vol", old, new]);
        until(&config, "replaced", |status| {
            let sides = sides(status);
            !sides.contains(&old.to_owned()) && status["health"] == "healthy"
        });
    }
    let said = stdout_of(&["grow", file, "vol", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["state"], "done", "{said}");
    let new_bytes = status(&config)["devices"]["vol"]["size_bytes"]
        .as_u64()
        .unwrap();
    assert_eq!(new_bytes, old_bytes + (16 << 20));
    // The old connection keeps the old size, so a read beyond that size fails, with EINVAL or
    // ENOSPC.
    assert!(before.read(old_bytes).is_err());
    assert_eq!(before.read(old_bytes - 4096), Ok(vec![7; 4096]));
    let mut after = Client::connect(&socket);
    assert_eq!(after.size_bytes, new_bytes);
    assert_eq!(after.read(old_bytes), Ok(vec![0; 4096]));
    after.write(new_bytes - 4096, 8).unwrap();
    assert_eq!(served.end("KILL").0, None);

    let text = text.replace("[\"a\", \"b\"]", "[\"c\", \"d\"]");
    dir.text("c.toml", &text);
    for name in ["c.img", "d.img"] {
        let file = std::fs::OpenOptions::new().write(true).open(dir.path(name));
        file.unwrap().set_len(56 << 20).unwrap();
    }
    let served = Served::start(&config);
    let mut client = Client::connect(&socket);
    assert_eq!(client.size_bytes, new_bytes);
    assert_eq!(client.read(old_bytes - 4096), Ok(vec![7; 4096]));
    assert_eq!(client.read(new_bytes - 4096), Ok(vec![8; 4096]));
    let said = stdout_of(&["grow", file, "vol"]);
    assert!(said.contains("done: grow vol"), "{said}");
    let mut client = Client::connect(&socket);
    assert_eq!(client.size_bytes, new_bytes + (8 << 20));
    client.write(client.size_bytes - 4096, 9).unwrap();
    assert_eq!(client.read(new_bytes), Ok(vec![0; 4096]));
    assert_eq!(served.end("TERM").0, Some(0));
    let served = Served::start(&config);
    let mut client = Client::connect(&socket);
    assert_eq!(client.read(new_bytes + (8 << 20) - 4096), Ok(vec![9; 4096]));
    assert_eq!(client.read(new_bytes - 4096), Ok(vec![8; 4096]));
    assert_eq!(served.end("TERM").0, Some(0));
}
