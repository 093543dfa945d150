//! A real file system on the served volume: mounted, filled, unmounted, and served again. Then each
//! side is read alone, as after the loss of the other side. Needs root, FUSE and loop devices.

use bimetal_tests::client::Client;
use bimetal_tests::mount::{Fuse, Loop, Mount, assert_fsck_clean, source_tree, tree_checksums};
use bimetal_tests::scratch::Scratch;
use bimetal_tests::server::Peer;
use bimetal_tests::volume::{MIB, Volume};
use std::path::Path;

/// Packs the source tree into a tar archive and returns its path. The test unpacks the archive as a
/// user unpacks a release.
fn tarball(dir: &Scratch) -> std::path::PathBuf {
    let tar = dir.file("tree.tar");
    Client::new("tar")
        .arg("-C")
        .arg(source_tree(dir))
        .arg("-cf")
        .arg(&tar)
        .arg(".")
        .ok();
    tar
}

/// Makes a file system on the export, unpacks the archive `tar` on it, and returns the checksums of
/// the unpacked tree.
fn fill(dir: &Scratch, uri: &str, tar: &Path) -> String {
    let fuse = Fuse::mount(dir, uri);
    let disk = Loop::attach(&fuse.file());
    Client::new("mkfs.ext4")
        .args(["-q", "-F"])
        .arg(disk.device())
        .ok();
    let mount = Mount::at(&dir.file("mnt"), disk.device(), "discard");
    let root = mount.path().join("tree");
    std::fs::create_dir(&root).expect("a folder on the new file system");
    Client::new("tar")
        .arg("-C")
        .arg(&root)
        .arg("-xf")
        .arg(tar)
        .within_s(300)
        .ok();
    // The mount option `discard` discards the blocks of removed files, so a file is written and
    // removed.
    std::fs::write(mount.path().join("gone"), vec![7; 8 << 20]).expect("write");
    Client::new("sync").arg("-f").arg(mount.path()).ok();
    std::fs::remove_file(mount.path().join("gone")).expect("remove");
    let sums = tree_checksums(&root);
    mount.unmount();
    disk.detach();
    fuse.unmount();
    sums
}

/// Checks the file system on `device`, mounts it read-only, and returns the checksums of its tree.
fn examine(dir: &Scratch, device: &Path) -> String {
    assert_fsck_clean(device);
    let mount = Mount::at(&dir.file("mnt"), device, "ro");
    let sums = tree_checksums(&mount.path().join("tree"));
    mount.unmount();
    sums
}

/// Does the same as [`examine`] for the file system on an export.
fn examine_export(dir: &Scratch, uri: &str) -> String {
    let fuse = Fuse::mount(dir, uri);
    let disk = Loop::attach(&fuse.file());
    let sums = examine(dir, disk.device());
    disk.detach();
    fuse.unmount();
    sums
}

#[test]
fn a_source_tree_survives_on_the_volume_and_on_each_side_alone() {
    let volume = Volume::with_homes("ext4", 640 * MIB);
    let dir = volume.dir();
    let tar = tarball(dir);
    let server = volume.serve();
    let written = fill(dir, &volume.uri(), &tar);
    server.stop();

    let server = volume.serve();
    let size_bytes = bimetal_tests::checks::nbdinfo(&volume.uri())["export-size"].as_u64();
    let size_bytes = size_bytes.expect("a size");
    assert_eq!(
        examine_export(dir, &volume.uri()),
        written,
        "after serving again"
    );
    server.stop();

    // A side holds the volume's bytes in order, so one disk and losetup(8) suffice to read its
    // files.
    for side in ["a", "b"] {
        let offset_bytes = volume.side_data_offset(side);
        let file = dir.file(&format!("{side}.img"));
        let disk = Loop::attach_part_read_only(&file, offset_bytes, size_bytes);
        assert_eq!(examine(dir, disk.device()), written, "side {side} alone");
        disk.detach();
    }
}

/// Runs the same steps with nbdkit in place of the server under test. If this test passes and the
/// test of the server fails, the bug is in the server and not in this machine.
#[test]
fn the_road_to_a_mounted_file_system_works_here() {
    let peer = Peer::nbdkit(&["memory", "512M"]);
    let dir = Scratch::new("ext4-peer");
    let tar = tarball(&dir);
    let written = fill(&dir, &peer.uri(""), &tar);
    assert_eq!(examine_export(&dir, &peer.uri("")), written);
}
