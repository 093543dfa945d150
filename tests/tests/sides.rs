//! A mirror and its sides as an operator sees them: live statistics, a crash, a slow side, a stripe
//! as a side, and a side behind another server that dies.

use bimetal_tests::checks;
use bimetal_tests::client::Client;
use bimetal_tests::crash::stand::{Power, Stand};
use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::Wire;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::volatile_disk::{BLOCK_BYTES, Keep};
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume, mirror_toml};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Size of one write of [`Load`] in bytes.
const PIECE_BYTES: u64 = 64 << 10;

/// Returns the content of a piece in a generation. Each pair of piece and generation has different
/// content.
fn content(piece: u64, generation: u64) -> Vec<u8> {
    let stamp = [piece.to_le_bytes(), generation.to_le_bytes()].concat();
    stamp.repeat(PIECE_BYTES as usize / stamp.len())
}

/// A client that writes pieces of 64 KiB all over the volume, one piece at a time, until the load
/// is ended.
struct Load {
    enough: Arc<AtomicBool>,
    writer: JoinHandle<BTreeMap<u64, u64>>,
}

impl Load {
    /// Starts a load on the first `pieces` pieces of the export `vol` at `socket`.
    fn start(socket: PathBuf, pieces: u64) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&enough);
        let writer = std::thread::spawn(move || {
            let (mut wire, _) = Wire::attached(&socket, "vol");
            let mut newest = BTreeMap::new();
            for generation in 1.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                // 97 is coprime to every value of `pieces` in this file, so the writes reach every
                // piece, and successive writes are far apart.
                let piece = generation * 97 % pieces;
                wire.write(piece * PIECE_BYTES, &content(piece, generation));
                newest.insert(piece, generation);
            }
            newest
        });
        Self { enough, writer }
    }

    /// Ends the load; returns the newest acknowledged generation of each piece.
    fn end(self) -> BTreeMap<u64, u64> {
        self.enough.store(true, Ordering::Relaxed);
        let written = self.writer.join().expect("every write was acknowledged");
        assert!(!written.is_empty());
        written
    }
}

/// Asserts that each written piece has the content of the newest generation whose write was
/// acknowledged. `written` has the newest generation of each piece.
fn assert_newest(socket: &Path, written: &BTreeMap<u64, u64>) {
    let (mut wire, _) = Wire::attached(socket, "vol");
    for (&piece, &generation) in written {
        let found = wire.read(piece * PIECE_BYTES, PIECE_BYTES as u32);
        let stamp = |bytes: &[u8]| u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
        assert!(
            found == content(piece, generation),
            "piece {piece}: generation {generation} was acknowledged, found {}",
            stamp(&found)
        );
    }
}

/// Returns the number of writes that the export `vol` has acknowledged.
fn writes(volume: &Volume) -> u64 {
    let status = volume.status();
    let count = status["exports"]["vol"]["statistics"]["writes"].as_u64();
    count.unwrap_or_else(|| panic!("no writes of vol in {status:#}"))
}

/// Waits until the export `vol` has acknowledged `more` further writes.
fn eventually_written(volume: &Volume, more: u64) {
    let goal = writes(volume) + more;
    eventually(60, "the volume takes writes", || {
        (writes(volume) >= goal).then_some(())
    });
}

fn eventually_healthy(volume: &Volume, side: &str) {
    eventually(60, "the side is whole", || {
        (volume.health(side) == "healthy").then_some(())
    });
}

/// Asserts that the data areas of two files, each given by the file and the offset of the area, are
/// equal.
fn assert_equal_areas(one: (&Path, u64), other: (&Path, u64), length_bytes: u64) {
    let (skips, length) = (format!("{}:{}", one.1, other.1), length_bytes.to_string());
    Client::new("cmp")
        .args(["--bytes", &length, "--ignore-initial", &skips])
        .args([one.0, other.0])
        .within_s(120)
        .ok();
}

/// Asserts that the data areas of the sides `a` and `b`, which have homes, are equal, for a mirror
/// whose sides are on the files `a.img` and `b.img`.
fn assert_equal_sides(volume: &Volume, [a, b]: [&str; 2]) {
    let (one, other) = (volume.dir().file("a.img"), volume.dir().file("b.img"));
    let offsets = [volume.side_data_offset(a), volume.side_data_offset(b)];
    assert_equal_areas(
        (&one, offsets[0]),
        (&other, offsets[1]),
        volume.size_bytes(),
    );
}

/// Creates and formats a mirror of the file `a.img` and of the layer `side` over the file `b.img`,
/// with homes. Both files have 64 MiB.
fn mirror_with(name: &str, side: &str, mirror_keys: &str) -> Volume {
    let text = mirror_toml().replace(
        "[\"a\", \"b\"]\n",
        &format!("[\"a\", \"side\"]\n{mirror_keys}\n"),
    ) + &format!("\n[device.side]\nbelow = \"b\"\n{side}\n");
    let volume = Volume::from_toml(name, &text);
    for image in ["a.img", "b.img"] {
        volume.dir().sparse(image, 64 * MIB);
    }
    volume.format_homes();
    volume
}

#[test]
fn status_shows_the_volume_and_each_side() {
    let volume = Volume::with_homes("status", 64 * MIB);
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for piece in 0..10 {
        wire.write(piece * PIECE_BYTES, &content(piece, 1));
    }
    wire.flush();
    // A flush returns as soon as one side has the data. The other side gets the data later, so wait
    // until both sides have the data.
    let status = eventually(60, "every side has it", || {
        let status = volume.status();
        let statistics = &status["devices"]["vol"]["statistics"];
        let parts = &status["devices"]["vol"]["parts"];
        let idle = |side: &str| parts[side]["in_flight_bytes"] == 0.0;
        (statistics["exposed_bytes"] == 0.0 && idle("a") && idle("b")).then_some(status)
    });
    assert_eq!(status["version"], 1);
    assert_eq!(status["health"], "healthy");
    assert_eq!(status["stopping"], false);
    let turn_ns = status["longest_turn"]["time_ns"].as_u64();
    assert!(turn_ns.is_some_and(|ns| ns > 0), "a turn takes time");
    assert_eq!(status["pid"], server.pid());
    let export = &status["exports"]["vol"];
    assert_eq!(export["device"], "vol");
    assert_eq!(export["statistics"]["connections"], 1.0);
    assert_eq!(export["statistics"]["writes"], 10);
    assert_eq!(export["statistics"]["written_bytes"], 10 * PIECE_BYTES);
    assert_eq!(export["statistics"]["flushes"], 1);
    let mirror = &status["devices"]["vol"];
    assert_eq!(mirror["type"], "mirror");
    assert_eq!(mirror["children"], serde_json::json!(["a", "b"]));
    let statistics = &mirror["statistics"];
    assert_eq!(statistics["state"], "open");
    assert_eq!(statistics["exposed_seconds"], 0.0);
    assert!(statistics["exposed_bytes_peak"].as_f64() <= Some((10 * PIECE_BYTES) as f64));
    for count in ["acknowledged_early", "backpressured_writes"] {
        assert!(statistics[count].is_u64(), "{count}: {status:#}");
    }
    for side in ["a", "b"] {
        let part = &mirror["parts"][side];
        assert_eq!(part["health"], "healthy", "{status:#}");
        assert!(matches!(part["mode"].as_str(), Some("in time" | "delayed")));
        for nothing in [
            "waiting_bytes",
            "in_flight_bytes",
            "out_of_sync_bytes",
            "lag_seconds",
            "sole_copy_bytes",
        ] {
            assert_eq!(part[nothing], 0.0, "{nothing} of {side}: {status:#}");
        }
        assert_eq!(part["written_bytes"], 10 * PIECE_BYTES);
        assert!(matches!(
            part["mark"].as_str(),
            Some("dirty" | "clean-idle")
        ));
        assert!(part["log_used_bytes"].as_f64() <= part["log_bytes"].as_f64());
        for nothing in ["errors", "corrupt_found", "corrupt_repaired"] {
            assert_eq!(part[nothing], 0, "{nothing} of {side}: {status:#}");
        }
    }
    drop(wire);
    server.stop();
    assert_equal_sides(&volume, ["a", "b"]);
}

/// Returns a statistic of a side of the mirror `vol`.
fn of_side(volume: &Volume, side: &str, statistic: &str) -> serde_json::Value {
    volume.status()["devices"]["vol"]["parts"][side][statistic].clone()
}

#[test]
fn what_would_be_lost_with_a_side_is_known() {
    let mut stand = Stand::new("only", "exposure = { bytes = \"4MiB\", age = \"1h\" }");
    let (mut wire, _) = stand.attach();
    let lost = |side: &str| of_side(stand.volume(), side, "sole_copy_bytes").as_f64();
    stand.disks[1].freeze();
    for block in 0..8 {
        wire.write(block * BLOCK_BYTES, &[7; BLOCK_BYTES as usize]);
    }
    wire.flush();
    assert_eq!(stand.volume().statistic("exposed_bytes"), 8.0 * 4096.0);
    assert_eq!((lost("a"), lost("b")), (Some(8.0 * 4096.0), Some(0.0)));
    assert_eq!(of_side(stand.volume(), "b", "mark"), "dirty");
    stand.disks[1].thaw();
    eventually(60, "both sides have it", || {
        (lost("a") == Some(0.0)).then_some(())
    });
    assert_eq!(lost("b"), Some(0.0));
    // No more writes are made, so both sides soon become clean-idle. Then either side can be
    // started alone.
    for side in ["a", "b"] {
        eventually(60, "the volume is quiet", || {
            (of_side(stand.volume(), side, "mark") == "clean-idle").then_some(())
        });
    }
    drop(wire);
    stand.crash(Power::Fails([Some(Keep::Nothing); 2]));
    stand.disks[0].take_away();
    stand.serve_with(&[]);
    let (mut wire, _) = stand.attach();
    assert!(wire.read(0, 8 * BLOCK_BYTES as u32) == [7; 8 * BLOCK_BYTES as usize]);
    let said = stand.said();
    assert!(
        said.contains("warning: device vol: degraded: side a is absent"),
        "{said}"
    );
    stand.stop();
}

#[test]
fn a_block_that_rots_is_found_and_repaired() {
    let volume = Volume::with_homes("rot", 64 * MIB);
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(0, &content(0, 1));
    drop(wire);
    // A clean stop destages all data from the logs to their home locations.
    server.stop();
    let place = volume.side_data_offset("a") + 8 * BLOCK_BYTES + 100;
    let image = volume.dir().file("a.img");
    let file = std::fs::File::options().write(true).open(image);
    let file = file.expect("the side");
    file.write_all_at(&[0xEE; 3], place)
        .expect("damage the side");

    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    assert!(wire.read(0, PIECE_BYTES as u32) == content(0, 1));
    eventually(60, "the block is repaired", || {
        (of_side(&volume, "a", "corrupt_repaired") == 1).then_some(())
    });
    assert_eq!(of_side(&volume, "a", "corrupt_found"), 1);
    assert_eq!(of_side(&volume, "b", "corrupt_found"), 0);
    assert!(wire.read(0, PIECE_BYTES as u32) == content(0, 1));
    assert_eq!(of_side(&volume, "a", "corrupt_found"), 1);
    drop(wire);
    server.stop();
    assert_equal_sides(&volume, ["a", "b"]);
}

#[test]
fn after_a_crash_the_volume_recovers_by_itself() {
    // Each write to this side takes 20 ms, so the side lacks some writes at any moment at which the
    // server is killed.
    let slow = "type = \"delay\"\nwrite = \"20ms\"\n";
    let volume = mirror_with("crash", slow, "");
    let mut server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    let flushed: BTreeMap<u64, u64> = (0..64).map(|piece| (900 - piece, 1)).collect();
    for (&piece, &generation) in &flushed {
        wire.write(piece * PIECE_BYTES, &content(piece, generation));
    }
    wire.flush();
    let load = Load::start(volume.socket(), 800);
    eventually(60, "something is exposed", || {
        (volume.statistic("exposed_bytes") > 0.0).then_some(())
    });
    server.kill();
    // The kill broke the writer's connection, so the writer has failed and its record of
    // acknowledged writes is lost.
    assert!(load.writer.join().is_err());
    let server = volume.serve();
    assert_newest(&volume.socket(), &flushed);
    eventually_healthy(&volume, "side");
    eventually_healthy(&volume, "a");
    assert_newest(&volume.socket(), &flushed);
    server.stop();
    assert_equal_sides(&volume, ["a", "side"]);
    // The volume starts and stops cleanly again.
    volume.serve().stop();
}

#[test]
fn exposure_keeps_to_its_bound_over_a_disk() {
    let disk = "type = \"hdd\"\nprofile = \"hdd-7200\"\n";
    let bound_bytes = MIB as f64;
    let keys = "exposure = { bytes = \"1MiB\", age = \"1h\" }";
    let volume = mirror_with("exposure", disk, keys);
    let server = volume.serve();
    let load = Load::start(volume.socket(), 900);
    // A side on a file accepts thousands of pieces per second, and a side on a disk only some
    // hundred. The exposure (acknowledged bytes that are not on every side yet) therefore grows
    // until it reaches its bound.
    eventually(60, "a write is held back by the bound", || {
        let exposed = volume.statistic("exposed_bytes");
        assert!(exposed <= bound_bytes, "{exposed} bytes are exposed");
        (volume.statistic("backpressured_writes") > 0.0).then_some(())
    });
    let written = load.end();
    let peak = volume.statistic("exposed_bytes_peak");
    assert!(peak > bound_bytes / 2.0 && peak <= bound_bytes, "{peak}");
    assert!(volume.statistic("acknowledged_early") > 0.0);
    assert_newest(&volume.socket(), &written);
    eventually(60, "an idle volume has drained", || {
        (volume.statistic("exposed_bytes") == 0.0).then_some(())
    });
    server.stop();
    assert_equal_sides(&volume, ["a", "side"]);
}

#[test]
fn a_side_may_be_a_stripe() {
    let file = |name: &str| format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n");
    let text = ["a", "b", "c", "d"].map(file).concat()
        + "[device.pair]\ntype = \"stripe\"\ndevices = [\"b\", \"c\"]\nunit = \"64KiB\"\n\
           [device.vol]\ntype = \"mirror\"\nsides = [\"pair\", \"a\"]\n"
        + EXPORT_VOL;
    // The configuration also contains a device that no other device uses. `format` must leave it
    // unchanged.
    let volume = Volume::from_toml("stripe", &text);
    volume.dir().sparse("a.img", 128 * MIB);
    for half in ["b.img", "c.img"] {
        volume.dir().sparse(half, 64 * MIB);
    }
    let unused = volume.dir().sparse("d.img", MIB);
    volume.format_homes();
    let server = volume.serve();
    let verified = checks::fio_verify(&volume.uri(), 16 * MIB);
    assert_eq!(verified.status, Some(0), "{verified}\n{}", server.said());
    server.stop();
    assert!(
        std::fs::read(unused)
            .expect("d.img")
            .iter()
            .all(|b| *b == 0)
    );

    // The test assembles the content of the stripe unit by unit. The result must equal the data
    // area of the other side.
    let joined = volume.dir().file("joined.img");
    join(volume.dir(), &joined);
    let offsets = ["a", "pair"].map(|side| volume.side_data_offset(side));
    let a = volume.dir().file("a.img");
    assert_equal_areas((&a, offsets[0]), (&joined, offsets[1]), volume.size_bytes());
}

/// Assembles the content of a RAID-0 in the file `joined`. Its units of 64 KiB come alternately
/// from `b.img` and `c.img`.
fn join(dir: &Scratch, joined: &Path) {
    let halves = ["b.img", "c.img"].map(|f| std::fs::read(dir.file(f)).expect("half a stripe"));
    let [first, second] = halves.each_ref().map(|half| half.chunks(64 << 10));
    let mut bytes = Vec::new();
    for (one, other) in first.zip(second) {
        bytes.extend_from_slice(one);
        bytes.extend_from_slice(other);
    }
    std::fs::write(joined, bytes).expect("the joined stripe");
}

/// The server that exports the device of a side dies under load and is started again.
#[test]
fn a_remote_side_dies_and_comes_back() {
    let device = "[device.vol]\ntype = \"file\"\npath = \"b.img\"\n";
    let far = Volume::from_toml("far", &(device.to_owned() + EXPORT_VOL));
    far.dir().sparse("b.img", 64 * MIB);
    let mut far_server = far.serve();
    let text = format!(
        "[device.a]\ntype = \"file\"\npath = \"a.img\"\n\
         [device.b]\ntype = \"remote\"\naddress = \"unix:{}\"\nexport = \"vol\"\n\
         reconnect = \"200ms\"\n\
         [device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\nabsent_after = \"1s\"\n{EXPORT_VOL}",
        far.socket().display()
    );
    let volume = Volume::from_toml("near", &text);
    volume.dir().sparse("a.img", 64 * MIB);
    volume.format_homes();
    // `check` does not connect to the server of the remote side, so it must report the state of the
    // volume as unknown.
    let known = &volume.json("check")["devices"]["vol"];
    assert_eq!(known["state"], "unknown", "{known:#}");
    assert_eq!(known["not_seen"], serde_json::json!(["b"]), "{known:#}");

    let server = volume.serve();
    let load = Load::start(volume.socket(), 900);
    eventually_written(&volume, 200);
    assert_eq!(volume.health("b"), "healthy");
    far_server.kill();
    eventually(60, "the volume does without the side", || {
        (volume.health("b") == "absent").then_some(())
    });
    eventually_written(&volume, 200);
    assert_eq!(volume.status()["health"], "degraded");
    let far_server = far.serve();
    eventually_healthy(&volume, "b");
    eventually_written(&volume, 200);
    let written = load.end();
    assert_newest(&volume.socket(), &written);
    server.stop();
    far_server.stop();

    // A side is identified by its content, not by its location. So the local file and the file of
    // the remote server must still be the sides of one volume when both are local files.
    let both = Volume::from_toml("both", &mirror_toml());
    for (from, side) in [(&volume, "a.img"), (&far, "b.img")] {
        std::fs::rename(from.dir().file(side), both.dir().file(side)).expect("move a side");
    }
    assert_equal_sides(&both, ["a", "b"]);
    let server = both.serve();
    assert_newest(&both.socket(), &written);
    server.stop();
}
