//! Conversion of the sides of a served volume to the other layout, in place, with the real program:
//! from homes to logs and back, with `kill -9` in the middle.

use bimetal_tests::client::{Client, Outcome};
use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::Wire;
use bimetal_tests::server::{Server, binary};
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume, assert_refused};
use serde_json::Value;

/// Size of one piece of the content in bytes. The content has one piece at the start of each MiB.
const PIECE_BYTES: u64 = 64 << 10;
const PIECES: u64 = 40;
/// Size of the sides when they are formatted. A volume with homes has 59 MiB of that.
const FORMATTED_BYTES: u64 = 64 * MIB;
/// Size to which the files of the sides are enlarged, so that logged sides have room for the
/// volume.
const ENLARGED_BYTES: u64 = 96 * MIB;

/// Returns the configuration of a mirror of two files whose rebuilds are slow. The key `layout`
/// stays absent: it has no effect on sides that exist.
fn toml() -> String {
    let file = |name: &str| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n");
    let mirror = "[device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\
                  rebuild = { floor = \"0B/s\", ceiling = \"64KiB/s\" }\n";
    ["a", "b"].map(file).concat() + mirror + EXPORT_VOL
}

fn content(piece: u64) -> Vec<u8> {
    (piece + 1).to_le_bytes().repeat(PIECE_BYTES as usize / 8)
}

fn put(volume: &Volume, pieces: std::ops::Range<u64>) {
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for piece in pieces {
        wire.write(piece * MIB, &content(piece));
    }
    wire.flush();
}

fn assert_content(volume: &Volume, pieces: u64) {
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for piece in 0..pieces {
        let found = wire.read(piece * MIB, PIECE_BYTES as u32);
        assert!(found == content(piece), "piece {piece} is what was written");
    }
    let never_written = wire.read(pieces * MIB, PIECE_BYTES as u32);
    assert!(never_written.iter().all(|byte| *byte == 0));
}

/// Runs `bimetal side convert` on the mirror `vol`.
fn convert(volume: &Volume, words: &[&str]) -> Outcome {
    let verb = Client::new(binary()).args(["side", "convert"]);
    verb.arg(volume.config())
        .arg("vol")
        .args(words)
        .within_s(60)
        .run()
}

fn begin(volume: &Volume, side: &str, layout: &str) -> String {
    let outcome = convert(volume, &[side, "--layout", layout, "--yes"]);
    assert_eq!(outcome.status, Some(0), "{outcome}");
    outcome.stdout
}

fn operations(volume: &Volume) -> Value {
    volume.status()["devices"]["vol"]["statistics"]["operations"].clone()
}

/// Removes the ceiling of the rebuild rate, and waits until both sides are healthy.
fn until_complete(volume: &Volume) {
    let fast = ["vol", "--ceiling", "none"];
    volume.verb("rebuild").args(fast).ok();
    eventually(60, "both sides are healthy", || {
        let healthy = ["a", "b"].map(|side| volume.health(side) == "healthy");
        (healthy == [true; 2] && operations(volume).is_null()).then_some(())
    });
}

/// Returns the layouts of both sides, as `check` shows them: a side with a home has an offset of
/// its data.
fn layouts(volume: &Volume) -> [&'static str; 2] {
    let devices = &volume.json("check")["devices"];
    ["a", "b"].map(|side| match &devices[side] {
        found if found["layout"] == "log" => "log",
        found if found["data_offset_bytes"].is_u64() => "home",
        found => panic!("{side} is no side: {found}"),
    })
}

fn enlarge(volume: &Volume) {
    for image in ["a.img", "b.img"] {
        let path = volume.dir().file(image);
        let file = std::fs::OpenOptions::new().write(true).open(path);
        let file = file.expect("a side");
        file.set_len(ENLARGED_BYTES).expect("enlarged");
    }
}

/// Returns a stopped volume with content on two sides with homes, whose files were enlarged.
fn filled(name: &str) -> Volume {
    let volume = Volume::from_toml(name, &toml());
    for image in ["a.img", "b.img"] {
        volume.dir().sparse(image, FORMATTED_BYTES);
    }
    volume.format_homes();
    let server = volume.serve();
    put(&volume, 0..PIECES);
    // A logged side of 64 MiB has room for four fifths of what its log and twelve segments leave.
    let refused = convert(&volume, &["a", "--layout", "log", "--yes"]);
    let figures = [
        "side a: has room for",
        "but the volume has 59.0 MiB",
        "at least",
    ];
    assert_refused(&refused, &figures);
    server.stop();
    assert_eq!(layouts(&volume), ["home", "home"]);
    enlarge(&volume);
    volume
}

/// Kills the server when the rebuild of a side has begun and has copied something, and starts it
/// again: the side must still be rebuilt, with its new layout.
fn killed_while_rebuilt(volume: &Volume, mut server: Server, side: &str) -> Server {
    eventually(60, "the rebuild has begun", || {
        let status = volume.status();
        let part = &status["devices"]["vol"]["parts"][side];
        let copied = part["resynced_bytes"].as_u64().unwrap_or(0);
        (part["health"] == "resyncing" && copied > 0).then_some(())
    });
    server.kill();
    let server = volume.serve();
    assert_eq!(volume.health(side), "resyncing", "{}", server.said());
    server
}

#[test]
fn both_sides_are_converted_one_after_the_other_and_back() {
    let volume = filled("convert");
    let server = volume.serve();
    let before = std::fs::read(volume.dir().file("a.img")).expect("a side");
    let planned = convert(&volume, &["a", "--layout", "log"]);
    assert_eq!(planned.status, Some(1), "{planned}");
    let said = &planned.stderr;
    assert!(
        said.contains("nothing was changed") && said.contains("--yes"),
        "{said}"
    );
    for words in [
        "At most 4",
        "are copied",
        "one complete copy of the volume remains",
    ] {
        assert!(planned.stdout.contains(words), "{}", planned.stdout);
    }
    assert_refused(&convert(&volume, &["c", "--layout", "log"]), &["no side c"]);
    let after = std::fs::read(volume.dir().file("a.img")).expect("a side");
    assert!(before == after, "a plan changes nothing");

    let told = begin(&volume, "a", "log");
    assert!(
        told.contains("started: convert a of vol to layout log"),
        "{told}"
    );
    let line = "write into [device.vol]: layout = { \"a\" = \"log\", \"b\" = \"home\" }";
    assert!(told.contains(line), "{told}");
    // The other side is the only copy now.
    let refused = convert(&volume, &["b", "--layout", "log", "--yes"]);
    assert_refused(&refused, &["b is the last durable side that is complete"]);
    put(&volume, PIECES..PIECES + 1);
    let server = killed_while_rebuilt(&volume, server, "a");
    // The same command is accepted again.
    begin(&volume, "a", "log");
    until_complete(&volume);
    assert_content(&volume, PIECES + 1);
    let told = begin(&volume, "b", "log");
    assert!(
        !told.contains("write into"),
        "without the key, a volume is formatted like that: {told}"
    );
    until_complete(&volume);
    assert_content(&volume, PIECES + 1);
    server.stop();
    assert_eq!(layouts(&volume), ["log", "log"]);

    // Each converted side holds the volume alone, with what was written before and meanwhile.
    for away in ["a.img", "b.img"] {
        let (path, aside) = (volume.dir().file(away), volume.dir().file("aside"));
        std::fs::rename(&path, &aside).expect("taken away");
        let server = volume.serve();
        assert_content(&volume, PIECES + 1);
        server.stop();
        std::fs::rename(&aside, &path).expect("brought back");
        let server = volume.serve();
        until_complete(&volume);
        server.stop();
    }

    let server = volume.serve();
    for side in ["a", "b"] {
        begin(&volume, side, "home");
        until_complete(&volume);
    }
    assert_content(&volume, PIECES + 1);
    server.stop();
    assert_eq!(layouts(&volume), ["home", "home"]);
}

/// The server is killed as soon as the command has returned, when the side has been ejected and its
/// device is about to be formatted, and then once more while the side is rebuilt.
#[test]
fn a_conversion_that_is_killed_goes_on_by_itself() {
    let volume = filled("convert-killed");
    let mut server = volume.serve();
    begin(&volume, "b", "log");
    server.kill();
    let check = volume.json("check")["devices"]["vol"]["operations"].clone();
    // Unless the device was formatted before the kill, the conversion is remembered.
    if let Some(check) = check.as_str() {
        assert!(
            check.contains("resumes: convert b to layout log"),
            "{check}"
        );
    }
    let server = volume.serve();
    assert_content(&volume, PIECES);
    let server = killed_while_rebuilt(&volume, server, "b");
    assert_content(&volume, PIECES);
    until_complete(&volume);
    assert_content(&volume, PIECES);
    server.stop();
    assert_eq!(layouts(&volume), ["home", "log"]);
}
