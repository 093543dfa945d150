//! Operations on a volume (such as the replacement of a side) that `kill -9` interrupts. The next
//! server, started with the unchanged configuration, must resume them.

use bimetal_tests::client::Client;
use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::Wire;
use bimetal_tests::server::binary;
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume};
use serde_json::Value;

/// Size of one piece of the content in bytes. The content has one piece at the start of each MiB.
const PIECE_BYTES: u64 = 64 << 10;
const PIECES: u64 = 48;

/// Returns the configuration of a mirror with the given `sides`, on files of 96 MiB. The mirror has
/// low rebuild and scrub rates. The new side is the device `c`, a layer above a file and not a file
/// device itself.
fn toml(sides: &str) -> String {
    let file = |name: &str| {
        let size = "size = \"96MiB\"\n";
        format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n{size}")
    };
    let files = ["a", "b", "below-c"].map(file).concat();
    let c = "[device.c]\ntype = \"passthrough\"\nbelow = \"below-c\"\n";
    let mirror = format!(
        "[device.vol]\ntype = \"mirror\"\nsides = [{sides}]\nscrub_rate = \"2MiB\"\n\
         rebuild = {{ floor = \"0B/s\", ceiling = \"64KiB/s\" }}\n"
    );
    files + c + &mirror + EXPORT_VOL
}

fn content(piece: u64) -> Vec<u8> {
    (piece + 1).to_le_bytes().repeat(PIECE_BYTES as usize / 8)
}

/// Returns a stopped volume to which the content of each of the `PIECES` pieces was written.
fn filled(name: &str) -> Volume {
    let volume = Volume::from_toml(name, &toml("\"a\", \"b\""));
    for image in ["a.img", "b.img"] {
        volume.dir().sparse(image, 96 * MIB);
    }
    volume.verb("format").ok();
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for piece in 0..PIECES {
        wire.write(piece * MIB, &content(piece));
    }
    wire.flush();
    drop(wire);
    server.stop();
    volume
}

fn assert_content(volume: &Volume) {
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for piece in 0..PIECES {
        let found = wire.read(piece * MIB, PIECE_BYTES as u32);
        assert!(found == content(piece), "piece {piece} is what was written");
    }
}

fn statistic(volume: &Volume, name: &str) -> Value {
    volume.status()["devices"]["vol"]["statistics"][name].clone()
}

/// Returns the sides of the mirror `vol`, each with its health.
fn sides(volume: &Volume) -> Vec<(String, String)> {
    sides_of(volume, "vol")
}

/// Returns the sides of the mirror `mirror`, each with its health.
fn sides_of(volume: &Volume, mirror: &str) -> Vec<(String, String)> {
    let status = volume.status();
    let parts = status["devices"][mirror]["parts"].as_object().cloned();
    let parts = parts.unwrap_or_else(|| panic!("no sides of {mirror} in {status:#}"));
    let health = |part: &Value| part["health"].as_str().unwrap_or("?").to_owned();
    parts
        .iter()
        .map(|(name, part)| (name.clone(), health(part)))
        .collect()
}

/// Removes the ceiling of the rebuild rate, and waits until the mirror `vol` has exactly the sides
/// `expected`, all of them healthy.
fn until_complete(volume: &Volume, expected: &[&str]) {
    let fast = ["vol", "--ceiling", "none"];
    volume.verb("rebuild").args(fast).ok();
    let healthy = |name: &&str| ((*name).to_owned(), "healthy".to_owned());
    let expected: Vec<(String, String)> = expected.iter().map(healthy).collect();
    eventually(60, "the operation has come to its end", || {
        (sides(volume) == expected).then_some(())
    });
    assert_eq!(statistic(volume, "operations"), Value::Null);
}

/// Runs `bimetal side` on the mirror `vol` with `words` (the verb and its arguments), asserts
/// success, and returns the output.
fn side(volume: &Volume, words: &[&str]) -> String {
    let verb = Client::new(binary()).args(["side", words[0]]);
    let verb = verb.arg(volume.config()).arg("vol").args(&words[1..]);
    verb.within_s(60).ok().stdout
}

fn edit(volume: &Volume, sides: &str) {
    std::fs::write(volume.config(), toml(sides)).expect("the configuration");
}

#[test]
fn a_replacement_that_is_killed_goes_on_by_itself() {
    let volume = filled("killed-replace");
    let mut server = volume.serve();
    let told = side(&volume, &["replace", "b", "c"]);
    let shown = statistic(&volume, "operations");
    server.kill();

    // The next server starts with the unchanged configuration, and is killed again.
    let mut server = volume.serve();
    assert_eq!(volume.health("c"), "resyncing");
    assert_eq!(statistic(&volume, "operations"), "replace b by c");
    assert_eq!(shown, "replace b by c");
    let line = "write into [device.vol]: sides = [\"a\", \"c\"]";
    assert!(told.contains(line), "{told}");
    assert!(server.said().contains(line), "{}", server.said());
    server.kill();
    let check = &volume.json("check")["devices"]["vol"]["operations"];
    let check = check.as_str().unwrap_or_default();
    assert!(check.contains("replace b by c"), "{check}");
    assert!(check.contains(line), "{check}");

    // Repeating the command of the interrupted replacement is not an error, and the replacement
    // finishes.
    let server = volume.serve();
    side(&volume, &["replace", "b", "c"]);
    until_complete(&volume, &["a", "c"]);
    assert_content(&volume);
    server.stop();

    // The configuration still names the replaced side `b`. This old name neither loses data nor
    // degrades the volume.
    let server = volume.serve();
    until_complete(&volume, &["a", "c"]);
    assert_content(&volume);
    server.stop();
    edit(&volume, "\"a\", \"c\"");
    let server = volume.serve();
    until_complete(&volume, &["a", "c"]);
    assert_eq!(statistic(&volume, "to_configure"), Value::Null);
    assert_content(&volume);
    server.stop();
}

/// A mirror at one of several possible positions in a configuration. It has the side `stays` and
/// the side `b`, which the test replaces by `c`.
struct Place {
    /// Part of the configuration that follows the file devices. In this text, the word `SIDES`
    /// stands for the list of sides.
    toml: String,
    mirror: &'static str,
    stays: &'static str,
}

impl Place {
    fn toml(&self, second: &str) -> String {
        let file = |name: &str| {
            let size = "size = \"96MiB\"\n";
            format!("[device.{name}]\ntype = \"file\"\npath = \"{name}.img\"\n{size}")
        };
        let all = ["a", "b", "c0", "d"].map(file).concat() + &self.toml;
        let sides = format!("[{:?}, {second:?}]", self.stays);
        all.replace("SIDES", &sides) + EXPORT_VOL
    }
}

const SLOWLY: &str = "rebuild = { floor = \"0B/s\", ceiling = \"64KiB/s\" }\n";

/// Replaces the side `b` by `c`, and kills the server several times before the replacement is
/// complete. The replacement must finish although the configuration is unchanged.
fn replaced_and_killed(name: &str, place: &Place) {
    let mirror = place.mirror;
    let volume = Volume::from_toml(name, &place.toml("b"));
    for image in ["a.img", "b.img", "c0.img", "d.img"] {
        volume.dir().sparse(image, 96 * MIB);
    }
    volume.verb("format").ok();
    let mut server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for piece in 0..PIECES {
        wire.write(piece * MIB, &content(piece));
    }
    wire.flush();
    drop(wire);
    let replace = Client::new(binary()).args(["side", "replace"]);
    let replace = replace.arg(volume.config()).args([mirror, "b", "c"]);
    replace.within_s(60).ok();
    server.kill();
    for _ in 0..2 {
        server = volume.serve();
        let coming = ("c".to_owned(), "resyncing".to_owned());
        let sides = sides_of(&volume, mirror);
        assert!(sides.contains(&coming), "{sides:?}\n{}", server.said());
        server.kill();
    }
    let server = volume.serve();
    let fast = [mirror, "--ceiling", "none"];
    volume.verb("rebuild").args(fast).ok();
    let mut whole = ["c", place.stays].map(|side| (side.to_owned(), "healthy".to_owned()));
    whole.sort();
    let is_whole = || {
        let mut sides = sides_of(&volume, mirror);
        sides.sort();
        (sides == whole).then_some(())
    };
    eventually(60, "the operation has come to its end", is_whole);
    assert_content(&volume);
    server.stop();
    // Both the unchanged and the edited configuration must serve a volume with all of its sides.
    for second in ["b", "c"] {
        std::fs::write(volume.config(), place.toml(second)).expect("the configuration");
        let server = volume.serve();
        assert!(is_whole().is_some(), "{}", server.said());
        assert_eq!(volume.status()["health"], "healthy");
        assert_content(&volume);
        server.stop();
    }
}

/// A killed replacement resumes if the new side is on another server. The test runs once for each
/// of the two protocols.
#[test]
fn a_replacement_by_a_far_side_that_is_killed_goes_on_by_itself() {
    for (device, protocol) in [("remote", "nbd"), ("brp", "brp")] {
        let file = "[device.vol]\ntype = \"file\"\npath = \"far.img\"\n";
        let export = EXPORT_VOL.replace("\"nbd\"", &format!("{protocol:?}"));
        let far = Volume::from_toml(
            &format!("killed-far-{protocol}"),
            &(file.to_owned() + &export),
        );
        far.dir().sparse("far.img", 96 * MIB);
        let far_server = far.serve();
        let toml = format!(
            "[device.c]\ntype = {device:?}\naddress = \"unix:{}\"\nexport = \"vol\"\n\
             [device.vol]\ntype = \"mirror\"\nsides = SIDES\n{SLOWLY}",
            far.socket().display()
        );
        let place = Place {
            toml,
            mirror: "vol",
            stays: "a",
        };
        replaced_and_killed(&format!("killed-near-{protocol}"), &place);
        far_server.stop();
    }
}

/// A killed replacement also resumes when the mirror is a part of a stripe. The other part of the
/// stripe is not a mirror.
#[test]
fn a_replacement_below_a_stripe_that_is_killed_goes_on_by_itself() {
    let toml = format!(
        "[device.c]\ntype = \"passthrough\"\nbelow = \"c0\"\n\
         [device.m]\ntype = \"mirror\"\nsides = SIDES\n{SLOWLY}\
         [device.vol]\ntype = \"stripe\"\ndevices = [\"m\", \"d\"]\n"
    );
    let place = Place {
        toml,
        mirror: "m",
        stays: "a",
    };
    replaced_and_killed("killed-striped", &place);
}

/// Tests that a killed replacement resumes when the side that stays and the new side are each on a
/// shard, that is, on a separate core. The mirror itself is not below a shard.
#[test]
fn a_replacement_by_a_side_on_a_shard_that_is_killed_goes_on_by_itself() {
    let shard = |name: &str, below: &str| {
        format!("[device.{name}]\ntype = \"shard\"\nbelow = \"{below}\"\n")
    };
    let toml = shard("sa", "a")
        + &shard("c", "c0")
        + &format!("[device.vol]\ntype = \"mirror\"\nsides = SIDES\n{SLOWLY}");
    let place = Place {
        toml,
        mirror: "vol",
        stays: "sa",
    };
    replaced_and_killed("killed-shard", &place);
}

#[test]
fn a_side_whose_coming_is_killed_comes_with_either_configuration() {
    for sides_then in ["\"a\", \"b\"", "\"a\", \"b\", \"c\""] {
        let volume = filled("killed-add");
        let mut server = volume.serve();
        side(&volume, &["add", "c"]);
        server.kill();
        let mut server = volume.serve();
        assert_eq!(volume.health("c"), "resyncing");
        assert_eq!(statistic(&volume, "operations"), "add c");
        server.kill();
        edit(&volume, sides_then);
        let server = volume.serve();
        assert_eq!(volume.health("c"), "resyncing");
        until_complete(&volume, &["a", "b", "c"]);
        assert_content(&volume);
        server.stop();
    }
}

#[test]
fn a_scrub_that_is_killed_goes_on_from_about_where_it_was() {
    let volume = filled("killed-scrub");
    let mut server = volume.serve();
    volume.verb("scrub").arg("vol").ok();
    let position = || {
        statistic(&volume, "scrub_position_bytes")
            .as_f64()
            .unwrap_or(0.0)
    };
    let far = 4.0 * MIB as f64;
    eventually(60, "it gets on", || (position() >= far).then_some(()));
    server.kill();

    let server = volume.serve();
    // The volume is small, so the scrub records its position after each piece of 1 MiB. The kill
    // can prevent the last record, so the scrub can resume up to 1 MiB before the position that it
    // reported.
    assert!(position() >= far - MIB as f64, "{}", position());
    assert_eq!(statistic(&volume, "scrub"), "running");
    assert_eq!(statistic(&volume, "operations"), "scrub");
    // A second request does not restart the scrub.
    volume.verb("scrub").arg("vol").ok();
    assert!(position() >= far - MIB as f64, "{}", position());
    server.stop();

    let server = volume.serve();
    assert_eq!(statistic(&volume, "scrub"), "running");
    volume.verb("scrub").args(["vol", "--cancel"]).ok();
    server.stop();
    let server = volume.serve();
    assert_eq!(statistic(&volume, "scrub"), Value::Null, "it was cancelled");
    server.stop();
}
