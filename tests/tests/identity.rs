//! A side is what its superblock says, whatever its path is: names of devices change, disks are
//! exchanged, and copies lie about.

use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::Wire;
use bimetal_tests::volume::{MIB, Volume, assert_refused};

/// Creates a volume that has been written to and was stopped cleanly.
fn written(name: &str) -> Volume {
    let volume = Volume::mirror(name, 64 * MIB);
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(8192, &[5; 4096]);
    drop(wire);
    server.stop();
    volume
}

fn assert_has_its_content(volume: &Volume) {
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    assert_eq!(wire.read(8192, 4096), [5; 4096]);
}

fn rename(volume: &Volume, from: &str, to: &str) {
    let (from, to) = (volume.dir().file(from), volume.dir().file(to));
    std::fs::rename(from, to).expect("it can be renamed");
}

fn bytes(volume: &Volume, name: &str) -> Vec<u8> {
    std::fs::read(volume.dir().file(name)).expect("it can be read")
}

#[test]
fn sides_that_have_exchanged_their_paths_are_the_same_volume() {
    let volume = written("exchanged");
    for (from, to) in [("a.img", "x"), ("b.img", "a.img"), ("x", "b.img")] {
        rename(&volume, from, to);
    }
    let server = volume.serve();
    assert_has_its_content(&volume);
    for side in ["a", "b"] {
        assert_eq!(volume.health(side), "healthy");
    }
    server.stop();
}

#[test]
fn a_side_at_another_path_is_named_with_that_path() {
    let volume = written("renamed");
    rename(&volume, "b.img", "was-b.img");
    let before = bytes(&volume, "was-b.img");
    let server = volume.serve();
    assert_has_its_content(&volume);
    let moved = volume.dir().file("was-b.img");
    let said = server.said();
    for words in [
        "side b is absent".to_owned(),
        format!("path = \"{}\" into [device.b]", moved.display()),
    ] {
        assert!(said.contains(&words), "{words}: {said}");
    }
    server.stop();
    assert!(before == bytes(&volume, "was-b.img"), "it was only read");
    // The line that was said mends it.
    let text = std::fs::read_to_string(volume.config()).expect("the configuration");
    volume
        .dir()
        .text("vol.toml", &text.replace("b.img", "was-b.img"));
    let server = volume.serve();
    eventually(60, "the side is complete", || {
        (volume.health("b") == "healthy").then_some(())
    });
    assert_has_its_content(&volume);
    server.stop();
}

#[test]
fn a_side_of_another_volume_is_refused_with_the_paths_of_both() {
    let (volume, other) = (written("mixed"), written("mixed-other"));
    rename(&volume, "b.img", "mine.img");
    std::fs::copy(other.dir().file("b.img"), volume.dir().file("b.img")).expect("a copy");
    let before = bytes(&volume, "b.img");
    let moved = volume.dir().file("mine.img").display().to_string();
    assert_refused(
        &volume.verb("serve").run(),
        &["b.img", &moved, "[device.b]"],
    );
    assert!(before == bytes(&volume, "b.img"), "it was not written to");
}

#[test]
fn two_copies_of_a_side_are_refused_with_the_paths_of_all_sides() {
    let volume = written("copied");
    rename(&volume, "b.img", "mine.img");
    std::fs::copy(volume.dir().file("a.img"), volume.dir().file("b.img")).expect("a copy");
    let moved = volume.dir().file("mine.img").display().to_string();
    assert_refused(
        &volume.verb("serve").run(),
        &["same side", "a.img", "b.img", &moved],
    );
}

/// An old copy of a side, such as a backup, in the place of the side: the volume has the newer
/// content, and the copy becomes like it.
#[test]
fn an_old_copy_of_a_side_is_brought_up_to_date() {
    let volume = Volume::mirror("older", 64 * MIB);
    std::fs::copy(volume.dir().file("b.img"), volume.dir().file("old.img")).expect("a copy");
    let server = volume.serve();
    let (mut wire, _) = Wire::attached(&volume.socket(), "vol");
    wire.write(8192, &[5; 4096]);
    drop(wire);
    server.stop();
    rename(&volume, "old.img", "b.img");
    let server = volume.serve();
    assert_has_its_content(&volume);
    eventually(60, "the side is complete", || {
        (volume.health("b") == "healthy").then_some(())
    });
    server.stop();
    std::fs::remove_file(volume.dir().file("a.img")).expect("it was there");
    let server = volume.serve();
    assert_has_its_content(&volume);
    server.stop();
}

/// A new disk in the place of a side: the volume is served without it, a line says what to do, and
/// nothing is written to the disk before it is done.
#[test]
fn a_blank_disk_is_named_with_the_command_and_not_written_to() {
    let volume = written("blank");
    std::fs::remove_file(volume.dir().file("b.img")).expect("it was there");
    volume.dir().sparse("b.img", 64 * MIB);
    let server = volume.serve();
    assert_has_its_content(&volume);
    let said = eventually(30, "the line", || {
        Some(server.said()).filter(|said| said.contains("`bimetal serve FILE --rebuild b`"))
    });
    let path = volume.dir().file("b.img").display().to_string();
    let line = format!("{path} holds no side of a volume");
    assert!(said.contains(&line), "{said}");
    let status = volume.verb("status").run().stdout;
    assert!(status.contains("holds no side of the volume"), "{status}");
    server.stop();
    assert!(bytes(&volume, "b.img").iter().all(|byte| *byte == 0));
    let server = bimetal_tests::server::Server::start_with(volume.config(), &["--rebuild", "b"]);
    eventually(60, "the side is complete", || {
        (volume.health("b") == "healthy").then_some(())
    });
    server.stop();
}
