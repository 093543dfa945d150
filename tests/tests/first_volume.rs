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
