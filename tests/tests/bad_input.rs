//! Mistakes of a user. Each must be answered by one clear line and an exit status other than 0, and
//! must not change any file.

use bimetal_tests::client::Outcome;
use bimetal_tests::volume::{EXPORT_VOL, MIB, Volume, assert_refused, mirror_toml};
use std::collections::BTreeMap;
use std::time::SystemTime;

/// Bytes and modification time of every file in the volume's directory, by file name.
type Snapshot = BTreeMap<String, (Vec<u8>, SystemTime)>;

fn snapshot(volume: &Volume) -> Snapshot {
    let entries = std::fs::read_dir(volume.dir().path()).expect("the volume's directory");
    let files = entries.map(|e| e.expect("an entry")).filter(|e| {
        // Skip the file of the server's messages, which belongs to the test.
        e.file_type().expect("a type").is_file() && !e.path().ends_with("vol.stderr")
    });
    let fact = |e: std::fs::DirEntry| {
        let changed = e.metadata().expect("metadata").modified().expect("a time");
        let bytes = std::fs::read(e.path()).expect("the bytes");
        (
            e.file_name().to_string_lossy().into_owned(),
            (bytes, changed),
        )
    };
    files.map(fact).collect()
}

/// Runs a verb and asserts a refusal that contains `words` and leaves every file unchanged.
fn refused(volume: &Volume, verb: &str, words: &[&str]) -> Outcome {
    let before = snapshot(volume);
    let outcome = volume.verb(verb).within_s(20).run();
    assert_refused(&outcome, words);
    let after = snapshot(volume);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>(),
        "{outcome}"
    );
    for (name, was) in &before {
        assert!(
            after[name] == *was,
            "{name} was changed by a refused run: {outcome}"
        );
    }
    outcome
}

/// Asserts that each of the verbs `check`, `format` and `serve` refuses the configuration `text`,
/// which has a mistake, with a message that contains all of `words`.
fn mistake(name: &str, text: &str, words: &[&str]) {
    let volume = Volume::from_toml(name, text);
    for side in ["a.img", "b.img"] {
        volume.dir().sparse(side, 16 * MIB);
    }
    for verb in ["check", "format", "serve"] {
        refused(&volume, verb, words);
    }
}

const MEMORY: &str = "[device.vol]\ntype = \"memory\"\nsize = \"16MiB\"\n";

fn memory_and(more: &str) -> String {
    format!("{MEMORY}{more}\n{EXPORT_VOL}")
}

#[test]
fn an_unknown_key_is_named_with_its_line() {
    // The mistake is in line 4 of the file.
    mistake("unknown-key", &memory_and("sise = 3"), &["sise", "4"]);
    mistake(
        "unknown-table",
        &memory_and("[devise.x]\ntype = \"memory\""),
        &["devise"],
    );
    let export = MEMORY.to_owned() + EXPORT_VOL + "port = 10809\n";
    mistake("unknown-export-key", &export, &["port"]);
}

#[test]
fn text_that_is_not_toml() {
    mistake("not-toml", "[device.vol\n", &["1"]);
}

#[test]
fn an_unknown_type_or_protocol() {
    let text = memory_and("").replace("\"memory\"", "\"memoryy\"");
    mistake("unknown-type", &text, &["memoryy"]);
    let text = memory_and("").replace("\"nbd\"", "\"smb\"");
    mistake("unknown-protocol", &text, &["smb"]);
}

#[test]
fn a_size_or_a_time_that_is_none() {
    for size in ["16 elephants", "-1MiB", "0", "99999999999GiB"] {
        let text = memory_and("").replace("16MiB", size);
        mistake("bad-size", &text, &["size"]);
    }
    let text = mirror_toml() + "\n[device.vol.exposure]\nbytes = \"1MiB\"\nage = \"soon\"\n";
    mistake("bad-age", &text, &["age"]);
}

#[test]
fn a_name_that_leads_nowhere() {
    let text = memory_and("").replace("device = \"vol\"", "device = \"wol\"");
    mistake("no-device", &text, &["wol"]);
    mistake(
        "no-side",
        &mirror_toml().replace("[\"a\", \"b\"]", "[\"a\", \"c\"]"),
        &["`c`"],
    );
}

#[test]
fn a_listen_address_that_is_none() {
    for listen in ["vol.sock", "tcp:nowhere", "unix:"] {
        let text = memory_and("").replace("unix:vol.sock", listen);
        mistake("bad-listen", &text, &["listen"]);
    }
}

#[test]
fn a_cycle_and_a_second_parent() {
    let cycle = "[device.vol]\ntype = \"delay\"\nbelow = \"x\"\n\n\
                 [device.x]\ntype = \"delay\"\nbelow = \"vol\"\n\n";
    mistake("cycle", &(cycle.to_owned() + EXPORT_VOL), &["x", "vol"]);
    let twice = mirror_toml().replace("[\"a\", \"b\"]", "[\"a\", \"a\"]");
    mistake("twice", &twice, &["`a`"]);
    let parent = mirror_toml() + "\n[device.other]\ntype = \"stats\"\nbelow = \"a\"\n";
    mistake("two-parents", &parent, &["`a`"]);
}

#[test]
fn a_mirror_with_too_few_sides() {
    mistake(
        "one-side",
        &mirror_toml().replace("[\"a\", \"b\"]", "[\"a\"]"),
        &["side"],
    );
}

#[test]
fn a_config_that_is_not_there() {
    let volume = Volume::from_toml("no-config", MEMORY);
    std::fs::remove_file(volume.config()).expect("remove the config");
    for verb in ["check", "format", "serve", "status"] {
        refused(&volume, verb, &["vol.toml"]);
    }
}

#[test]
fn a_side_that_is_not_there() {
    let volume = Volume::from_toml("no-side-file", &mirror_toml());
    volume.dir().sparse("a.img", 64 * MIB);
    for verb in ["check", "format", "serve"] {
        refused(&volume, verb, &["b.img"]);
    }
}

#[test]
fn a_side_that_is_too_small() {
    let volume = Volume::from_toml("small", &mirror_toml());
    volume.dir().sparse("a.img", 64 * MIB);
    volume.dir().sparse("b.img", 4096);
    refused(&volume, "format", &["small"]);
    refused(&volume, "serve", &[]);
}

#[test]
fn a_volume_that_was_never_formatted() {
    let volume = Volume::from_toml("raw", &mirror_toml());
    volume.dir().sparse("a.img", 64 * MIB);
    volume.dir().sparse("b.img", 64 * MIB);
    refused(&volume, "serve", &["format"]);
}

#[test]
fn a_side_of_another_volume() {
    let (one, other) = (
        Volume::mirror("one", 64 * MIB),
        Volume::mirror("other", 64 * MIB),
    );
    std::fs::copy(other.dir().file("b.img"), one.dir().file("b.img")).expect("swap a side");
    refused(&one, "serve", &["b"]);
    // Formatting again would destroy the volume, so it requires `--force`.
    refused(&one, "format", &["--force"]);
    one.verb("format").arg("--force").ok();
    one.serve().stop();
}

#[test]
fn a_side_in_use() {
    let volume = Volume::mirror("in-use", 64 * MIB);
    let server = volume.serve();
    // Use another socket in the second configuration, so that only the sides are in use.
    let other = mirror_toml().replace("vol.sock", "other.sock");
    let config = volume.dir().text("other.toml", &other);
    for verb in ["serve", "format"] {
        let force: &[&str] = if verb == "format" { &["--force"] } else { &[] };
        let run = bimetal_tests::client::Client::new(bimetal_tests::server::binary());
        let outcome = run.arg(verb).arg(&config).args(force).within_s(20).run();
        assert_refused(&outcome, &["in use"]);
    }
    server.assert_alive();
    bimetal_tests::checks::qemu_io(
        &volume.uri(),
        &["write -P 1 0 64k", "flush", "read -P 1 0 64k"],
    );
    server.stop();
}

/// What each verb says when it reaches nothing: the address or the path, and the error of the
/// operating system once.
#[test]
fn an_error_is_said_once_and_with_its_place() {
    let volume = Volume::from_toml("places", &mirror_toml());
    std::fs::create_dir(volume.dir().file("folder")).expect("it can be created");
    let (absent, refused) = ("No such file or directory", "Connection refused");
    let cases: &[(&str, &str, &str)] = &[
        ("status vol.toml", "vol.ctl", absent),
        ("events vol.toml", "vol.ctl", absent),
        ("scrub vol.toml vol", "vol.ctl", absent),
        ("rebuild vol.toml vol", "vol.ctl", absent),
        ("grow vol.toml vol", "vol.ctl", absent),
        ("cache vol.toml vol", "vol.ctl", absent),
        ("record vol.toml vol --out x.trace", "vol.ctl", absent),
        ("side remove vol.toml vol a", "vol.ctl", absent),
        ("side add vol.toml vol c", "vol.ctl", absent),
        ("side replace vol.toml vol a c", "vol.ctl", absent),
        (
            "side convert vol.toml vol a --layout log",
            "vol.ctl",
            absent,
        ),
        ("exports unix:none.sock", "unix:none.sock", absent),
        // No server can listen at port 1 of a machine for tests.
        ("exports tcp:127.0.0.1:1", "tcp:127.0.0.1:1", refused),
        ("exports unix:folder", "unix:folder", refused),
        ("rescue none.img --output copy", "none.img", absent),
        ("rescue folder --output copy", "folder", "is a directory"),
        ("import none.img --output new.toml", "none.img", absent),
        (
            "import folder --output new.toml",
            "folder",
            "is a directory",
        ),
        ("bench vol.toml --device a", "a.img", absent),
        ("probe vol.toml --device a --destroy-data", "a.img", absent),
        ("check vol.toml", "a.img", absent),
        ("format vol.toml", "a.img", absent),
        ("check folder", "folder", "Is a directory"),
        ("serve none.toml", "none.toml", absent),
        ("unmount none", "none", absent),
        (
            "init none/new.toml a b --size 64MiB",
            "none/new.toml",
            absent,
        ),
    ];
    for (command, place, error) in cases {
        let client = bimetal_tests::client::Client::new(bimetal_tests::server::binary());
        let words = command.split(' ').collect::<Vec<_>>();
        let client = client.args(&words).in_dir(volume.dir().path());
        let outcome = client.within_s(20).run();
        assert_ne!(outcome.status, Some(0), "{command}: {outcome}");
        let said = &outcome.stderr;
        assert!(said.starts_with("bimetal: "), "{command}: {said}");
        assert_eq!(said.lines().count(), 1, "{command}: {said}");
        assert!(said.contains(place), "{command}: {said}");
        assert_eq!(said.matches(error).count(), 1, "{command}: {said}");
        assert!(said.matches("(os error").count() <= 1, "{command}: {said}");
    }
}
