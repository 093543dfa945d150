//! `side add`, `side replace` and `side remove`, which wait for their end and edit the
//! configuration on request.

use bimetal_tests::client::{Client, Outcome};
use bimetal_tests::nbd::Wire;
use bimetal_tests::server::binary;
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume, assert_refused};

const TOML: &str = "# by hand
[device.a]
type = \"file\"
path = \"a.img\"

[device.b]
type = \"file\"
path = \"b.img\"

[device.c]
type = \"file\"
path = \"c.img\"
size = \"64MiB\"

[device.vol]
type = \"mirror\"
sides = [
  \"a\", # in the machine
  \"b\", # outside
]
rebuild = { floor = \"0B/s\", ceiling = \"8MiB/s\" }

";

/// Creates a volume with 16 MiB of content, whose rebuild therefore takes some seconds.
fn filled(name: &str) -> Volume {
    let volume = Volume::from_toml(name, &(TOML.to_owned() + EXPORT_VOL));
    for side in ["a.img", "b.img"] {
        volume.dir().sparse(side, 64 * MIB);
    }
    let format = volume.verb("format");
    format.ok();
    std::fs::remove_file(volume.dir().file("c.img")).expect("format creates it");
    volume
}

fn fill(volume: &Volume) {
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    for at in 0..16 {
        wire.write(at * MIB, &vec![at as u8 + 1; MIB as usize]);
    }
}

fn side(volume: &Volume, words: &[&str]) -> Outcome {
    let client = Client::new(binary()).args(["side", words[0]]);
    let client = client.arg(volume.config()).arg("vol").args(&words[1..]);
    client.within_s(120).run()
}

fn text(volume: &Volume) -> String {
    std::fs::read_to_string(volume.config()).expect("the configuration")
}

#[test]
fn a_replacement_waits_until_the_new_side_is_all_that_is_needed() {
    let volume = filled("replace-wait");
    let before = text(&volume);
    let server = volume.serve();
    fill(&volume);
    let outcome = side(&volume, &["replace", "b", "c", "--wait"]);
    assert_eq!(outcome.status, Some(0), "{outcome}");
    for words in [
        "sides = [\"a\", \"c\"]",
        "done: c is complete, and b has left",
    ] {
        assert!(outcome.stdout.contains(words), "{words}: {outcome}");
    }
    // At once, without any wait here.
    assert_eq!(volume.health("c"), "healthy");
    let status = volume.status();
    assert!(
        status["devices"]["vol"]["parts"]["b"].is_null(),
        "{status:#}"
    );
    assert_eq!(text(&volume), before, "the configuration is the operator's");
    server.stop();
}

#[test]
fn the_configuration_is_edited_and_keeps_its_comments() {
    let volume = filled("replace-edit");
    let before = text(&volume);
    let server = volume.serve();
    fill(&volume);
    let outcome = side(&volume, &["replace", "b", "c", "--edit", "--wait"]);
    assert_eq!(outcome.status, Some(0), "{outcome}");
    assert_eq!(text(&volume), before.replace("  \"b\",", "  \"c\","));
    assert!(!volume.dir().file(".vol.toml.new").exists());
    server.stop();
    let server = volume.serve();
    assert!(!server.said().contains("write into"), "{}", server.said());
    let outcome = side(&volume, &["add", "b", "--force", "--edit", "--wait"]);
    assert_eq!(outcome.status, Some(0), "{outcome}");
    assert!(
        text(&volume).contains("\"c\", \"b\", # outside"),
        "{}",
        text(&volume)
    );
    let outcome = side(&volume, &["remove", "c", "--edit"]);
    assert_eq!(outcome.status, Some(0), "{outcome}");
    assert!(
        text(&volume).contains("sides = [\"a\", \"b\"]"),
        "{}",
        text(&volume)
    );
    server.stop();
    volume.serve().stop();
}

#[test]
fn a_refused_replacement_edits_nothing() {
    let volume = filled("replace-refused");
    let before = text(&volume);
    let words = ["replace", "b", "none", "--edit", "--wait"];
    assert_refused(&side(&volume, &words), &[]);
    let server = volume.serve();
    assert_refused(&side(&volume, &words), &["[device.none]"]);
    assert_eq!(text(&volume), before);
    server.stop();
}
