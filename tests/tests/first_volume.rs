//! The first minutes with the program: from nothing to a volume that holds data, by the commands
//! that `init` names.

use bimetal_tests::client::Client;
use bimetal_tests::nbd::Wire;
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::{Server, binary};
use bimetal_tests::volume::assert_refused;

fn init(dir: &Scratch, args: &[&str]) -> Client {
    let client = Client::new(binary()).arg("init").args(args);
    client.in_dir(dir.path()).within_s(60)
}

#[test]
fn two_files_become_a_volume_by_three_commands() {
    let dir = Scratch::new("first-volume");
    let wrote = init(
        &dir,
        &["vol.toml", "fast.img", "slow.img", "--size", "64MiB"],
    )
    .ok();
    for words in [
        "wrote vol.toml",
        "bimetal format vol.toml",
        "bimetal serve vol.toml",
    ] {
        assert!(wrote.stdout.contains(words), "{wrote}");
    }
    let config = dir.file("vol.toml");
    let format = Client::new(binary())
        .arg("format")
        .arg(&config)
        .within_s(60);
    format.ok();
    let _server = Server::start(&config);
    let (mut wire, _) = Wire::attached(&dir.file("vol.sock"), "vol");
    wire.write(8192, &[5; 4096]);
    assert_eq!(wire.read(8192, 4096), [5; 4096]);
}

#[test]
fn what_makes_no_volume_is_refused_and_nothing_is_overwritten() {
    let dir = Scratch::new("init-refused");
    let files = ["fast.img", "slow.img"];
    let with = |args: &[&str]| init(&dir, &[&["vol.toml"], args].concat()).run();
    assert_refused(&with(&files), &["fast.img", "--size"]);
    assert_refused(&with(&["fast.img"]), &["the other side"]);
    assert_refused(&with(&[]), &["the faster side"]);
    let twice = ["fast.img", "./fast.img", "--size", "64MiB"];
    assert_refused(&with(&twice), &["two devices are needed"]);
    let absent = ["/dev/no-such-device", "slow.img", "--size", "64MiB"];
    assert_refused(&with(&absent), &["no such device"]);
    assert!(!dir.file("vol.toml").exists(), "nothing was written");
    let kept = dir.text("vol.toml", "# mine\n");
    let sized = ["fast.img", "slow.img", "--size", "64MiB"];
    assert_refused(&with(&sized), &["exists, and is not overwritten"]);
    assert_eq!(
        std::fs::read_to_string(kept).expect("it is there"),
        "# mine\n"
    );
}

/// A configuration in another folder names the devices so that it works there.
#[test]
fn the_sides_are_found_wherever_the_configuration_is() {
    let dir = Scratch::new("init-elsewhere");
    std::fs::create_dir(dir.file("etc")).expect("it can be created");
    init(
        &dir,
        &["etc/vol.toml", "fast.img", "slow.img", "--size", "64MiB"],
    )
    .ok();
    let config = dir.file("etc/vol.toml");
    Client::new(binary())
        .arg("format")
        .arg(&config)
        .within_s(60)
        .ok();
    assert!(dir.file("fast.img").exists());
    assert!(dir.file("slow.img").exists());
}

fn import(dir: &Scratch, args: &[&str]) -> Client {
    let client = Client::new(binary()).arg("import").args(args);
    client.in_dir(dir.path()).within_s(60)
}

/// The configuration of a volume is lost. It is written again from the sides, and the volume has
/// its content.
#[test]
fn a_lost_configuration_is_written_again_from_the_sides() {
    let dir = Scratch::new("imported");
    let made = ["vol.toml", "fast.img", "slow.img", "--size", "64MiB"];
    init(&dir, &made).ok();
    let config = dir.file("vol.toml");
    let format = Client::new(binary()).arg("format").arg(&config);
    format.within_s(60).ok();
    let server = Server::start(&config);
    let (mut wire, _) = Wire::attached(&dir.file("vol.sock"), "vol");
    wire.write(8192, &[5; 4096]);
    drop(wire);
    // The sides are in use.
    let both = ["slow.img", "fast.img", "--output", "new.toml"];
    assert_refused(&import(&dir, &both).run(), &["slow.img"]);
    server.stop();
    assert_refused(
        &import(&dir, &["fast.img", "slow.img"]).run(),
        &["vol.toml", "exists, and is not overwritten"],
    );
    std::fs::remove_file(&config).expect("it was there");

    let alone = import(&dir, &["slow.img"]).ok().stdout;
    assert!(alone.contains("not among the devices: side "), "{alone}");
    let server = Server::start(&config);
    let (mut wire, _) = Wire::attached(&dir.file("vol.sock"), "vol");
    assert_eq!(wire.read(8192, 4096), [5; 4096]);
    drop(wire);
    server.stop();
    std::fs::remove_file(&config).expect("it was written");
    let wrote = import(&dir, &["slow.img", "fast.img"]).ok().stdout;
    for words in [
        "wrote vol.toml: volume vol",
        "logged, cleanly stopped",
        "bimetal serve",
    ] {
        assert!(wrote.contains(words), "{wrote}");
    }
    assert!(!wrote.contains("not among"), "{wrote}");
    let server = Server::start(&config);
    let (mut wire, _) = Wire::attached(&dir.file("vol.sock"), "vol");
    assert_eq!(wire.read(8192, 4096), [5; 4096]);
    drop(wire);
    server.stop();
}

#[test]
fn what_is_no_volume_is_not_imported() {
    let dir = Scratch::new("import-refused");
    dir.sparse("blank.img", 1 << 20);
    for (config, sides) in [
        ("a.toml", ["a1.img", "a2.img"]),
        ("b.toml", ["b1.img", "b2.img"]),
    ] {
        init(&dir, &[config, sides[0], sides[1], "--size", "64MiB"]).ok();
        let format = Client::new(binary()).arg("format").arg(dir.file(config));
        format.within_s(60).ok();
    }
    std::fs::copy(dir.file("a1.img"), dir.file("copy.img")).expect("a copy");
    let refused = |devices: &[&str], words: &[&str]| {
        assert_refused(&import(&dir, devices).run(), words);
        assert!(!dir.file("vol.toml").exists(), "nothing was written");
    };
    refused(&["blank.img"], &["blank.img", "no side of a volume"]);
    refused(&["none.img"], &["none.img"]);
    refused(&["a1.img", "b1.img"], &["one after the other"]);
    refused(&["a1.img", "copy.img"], &["same side"]);
}
