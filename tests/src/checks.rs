//! Checks of the behavior that unmodified clients expect of any NBD server, as functions of an
//! export's URI.
//!
//! The checks are separate from the tests, so that they can also be run against a server that is
//! known to be correct and one that is known to be wrong (`tests/tests/peer.rs`): a check that no
//! server passes, or that every server passes, proves nothing.

use crate::client::{Client, Outcome};
use crate::scratch::Scratch;
use crate::volume::MIB;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Returns the description of the first export that `nbdinfo --json` prints.
pub fn nbdinfo(uri: &str) -> Value {
    let outcome = Client::new("nbdinfo").args(["--json", uri]).ok();
    let all: Value = serde_json::from_str(&outcome.stdout).expect("nbdinfo prints JSON");
    assert_eq!(all["protocol"], "newstyle-fixed", "{all:#}");
    assert_eq!(
        all["structured"], true,
        "structured replies were refused: {all:#}"
    );
    all["exports"][0].clone()
}

/// Asserts that the export offers the features of a volume: writes of all kinds, flushes that cover
/// the writes of all connections, and the allocation context.
pub fn assert_complete_export(uri: &str, size_bytes: u64) {
    let export = nbdinfo(uri);
    assert_eq!(export["export-size"], size_bytes, "{export:#}");
    assert_eq!(export["is_read_only"], false, "{export:#}");
    for ability in [
        "can_flush",
        "can_fua",
        "can_trim",
        "can_zero",
        "can_multi_conn",
    ] {
        assert_eq!(export[ability], true, "{ability}: {export:#}");
    }
    let contexts = export["contexts"].as_array().expect("a list of contexts");
    assert!(contexts.contains(&"base:allocation".into()), "{export:#}");
}

/// Asserts that the extents which the server reports for `base:allocation` follow one another
/// without gap or overlap, and cover the export.
pub fn assert_map_covers(uri: &str, size_bytes: u64) {
    let outcome = Client::new("nbdinfo").args(["--map", "--json", uri]).ok();
    let extents: Vec<Value> = serde_json::from_str(&outcome.stdout).expect("a map is a JSON list");
    let end = extents.iter().fold(0, |at, extent| {
        assert_eq!(
            extent["offset"], at,
            "extents must follow one another: {outcome}"
        );
        let length = extent["length"].as_u64().expect("a length");
        assert!(length > 0, "an empty extent: {outcome}");
        at + length
    });
    assert_eq!(end, size_bytes, "the map must cover the export: {outcome}");
}

/// Creates an ext4 image of `size_bytes` with the files of `tree`, by mke2fs and without mounting.
///
/// The image is a sparse file, as such images usually are: its holes read as zeroes.
pub fn image_of_tree(dir: &Scratch, size_bytes: u64, tree: &Path) -> PathBuf {
    let image = dir.sparse("tree.img", size_bytes);
    Client::new("mkfs.ext4")
        .args(["-q", "-F", "-d"])
        .arg(tree)
        .arg(&image)
        .ok();
    image
}

/// Panics unless the first `length_bytes` of two files are equal (cmp(1)).
pub fn assert_same_bytes(one: &Path, other: &Path, length_bytes: u64) {
    let bytes = format!("--bytes={length_bytes}");
    Client::new("cmp")
        .arg(bytes)
        .arg(one)
        .arg(other)
        .within_s(300)
        .ok();
}

/// Copies the image to the export and back with nbdcopy, on four connections in each direction, and
/// asserts that the copy equals the image.
pub fn nbdcopy_there_and_back(uri: &str, dir: &Scratch, image: &Path) {
    let back = dir.file("back.img");
    let copy = || {
        Client::new("nbdcopy")
            .args(["--connections=4", "--flush"])
            .within_s(300)
    };
    copy().arg(image).arg(uri).ok();
    copy().arg(uri).arg(&back).ok();
    let size_bytes = std::fs::metadata(image).expect("the image").len();
    assert_same_bytes(image, &back, size_bytes);
    std::fs::remove_file(&back).expect("remove the copy");
}

/// Asserts that qemu-img copies the image to the export and finds both equal, and that it finds a
/// qcow2 copy of the export equal to the export.
pub fn qemu_img_convert_and_compare(uri: &str, dir: &Scratch, image: &Path) {
    let qemu_img = |words: &[&str]| Client::new("qemu-img").args(words).within_s(300);
    // The target is a served volume, which already exists. With -n, qemu-img does not try to create
    // it.
    qemu_img(&["convert", "-n", "-f", "raw", "-O", "raw"])
        .arg(image)
        .arg(uri)
        .ok();
    qemu_img(&["compare", "-f", "raw", "-F", "raw"])
        .arg(image)
        .arg(uri)
        .ok();
    let copy = dir.file("copy.qcow2");
    qemu_img(&["convert", "-f", "raw", "-O", "qcow2", uri])
        .arg(&copy)
        .ok();
    qemu_img(&["compare", "-f", "raw", "-F", "qcow2", uri])
        .arg(&copy)
        .ok();
    std::fs::remove_file(&copy).expect("remove the copy");
}

/// Runs qemu-io commands on the export; panics if a command fails or a pattern does not match.
pub fn qemu_io(uri: &str, commands: &[&str]) -> Outcome {
    let outcome = run_qemu_io(uri, commands);
    // qemu-io continues after a failed command, and some versions nevertheless exit with status 0.
    // So the output is searched for error messages.
    let failed = ["failed", "error", "Input/output", "Invalid"];
    let bad = failed
        .iter()
        .any(|w| outcome.stdout.contains(w) || outcome.stderr.contains(w));
    assert!(outcome.status == Some(0) && !bad, "{outcome}");
    outcome
}

fn run_qemu_io(uri: &str, commands: &[&str]) -> Outcome {
    let words = commands.iter().flat_map(|c| ["-c", c]);
    Client::new("qemu-io")
        .args(["-f", "raw"])
        .args(words)
        .arg(uri)
        .run()
}

/// Tests writes with and without FUA, flush, discard, write-zeroes, and requests that are smaller
/// than a sector of the volume or cross its blocks. The data of each step are read back and
/// compared with their pattern.
///
/// Uses the first MiB of the export.
pub fn qemu_io_commands(uri: &str) {
    qemu_io(
        uri,
        &[
            "write -P 0x11 0 256k",
            "write -f -P 0x22 64k 64k",
            "flush",
            "read -P 0x11 0 64k",
            "read -P 0x22 64k 64k",
            "read -P 0x11 128k 128k",
        ],
    );
    // A second connection sees the writes of the first one.
    qemu_io(
        uri,
        &[
            "read -P 0x22 64k 64k",
            "write -z 32k 64k",
            "read -P 0 32k 64k",
        ],
    );
    qemu_io(uri, &["read -P 0x11 0 32k", "read -P 0x22 96k 32k"]);
    // One write-zeroes is allowed to create a hole (-u); the other must keep the space allocated.
    qemu_io(
        uri,
        &[
            "write -z -u 128k 64k",
            "write -z -f 192k 4k",
            "read -P 0 128k 68k",
        ],
    );
    // The server chooses the content after a discard, but the bytes around the discarded range must
    // not change.
    qemu_io(
        uri,
        &[
            "discard 64k 32k",
            "flush",
            "read -P 0x11 0 32k",
            "read -P 0x22 96k 32k",
        ],
    );
    // Writes one sector, then two sectors across a 4 KiB boundary, then a range whose start and end
    // are not aligned to 4 KiB.
    qemu_io(
        uri,
        &[
            "write -P 0x33 512k 64k",
            "write -P 0x44 525312 512",
            "write -f -P 0x55 527872 1024",
            "write -P 0x66 533504 20992",
            "read -P 0x33 524288 1024",
            "read -P 0x44 525312 512",
            "read -P 0x33 525824 2048",
            "read -P 0x55 527872 1024",
            "read -P 0x33 528896 4608",
            "read -P 0x66 533504 20992",
            "read -P 0x33 554496 35328",
        ],
    );
    // Zeroing one sector leaves its neighbours unchanged.
    qemu_io(
        uri,
        &[
            "write -z 540672 512",
            "read -P 0 540672 512",
            "read -P 0x66 541184 512",
        ],
    );
}

/// Runs fio's nbd engine with random writes of mixed sizes at queue depth 32 on four connections,
/// each in a separate part of the export. Then reads the data back and verifies them by crc32c.
/// Uses the first `4 * part_bytes` of the export.
pub fn fio_verify(uri: &str, part_bytes: u64) -> Outcome {
    let part = format!("{}m", part_bytes / MIB);
    Client::new("fio")
        .args([
            "--name=verify",
            "--ioengine=nbd",
            "--thread=0",
            "--randseed=7",
        ])
        .arg(format!("--uri={uri}"))
        .args([
            "--rw=randwrite",
            "--bsrange=4k-64k",
            "--iodepth=32",
            "--numjobs=4",
        ])
        .args([
            format!("--size={part}"),
            format!("--offset_increment={part}"),
        ])
        .args([
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_dump=0",
            // Without this option fio leaves its state file in the current directory.
            "--verify_state_save=0",
        ])
        .args(["--group_reporting", "--output-format=terse"])
        .within_s(300)
        .run()
}

/// Runs fio's nbd engine with random writes at queue depth 32 on four connections. `sizes` has the
/// sizes of the writes. Each connection writes to a separate part of the export, which has
/// `part_bytes` bytes. Checks only that all writes succeed.
pub fn fio_write(uri: &str, sizes: &str, part_bytes: u64) {
    let part = format!("{}m", part_bytes / MIB);
    Client::new("fio")
        .args([
            "--name=write",
            "--ioengine=nbd",
            "--thread=0",
            "--rw=randwrite",
        ])
        .args(["--iodepth=32", "--numjobs=4", "--randseed=7"])
        .args([format!("--uri={uri}"), format!("--bsrange={sizes}")])
        .args([
            format!("--size={part}"),
            format!("--offset_increment={part}"),
        ])
        .args(["--group_reporting", "--output-format=terse"])
        .within_s(120)
        .ok();
}
