//! Crashes under fio. One part of the volume holds content that a flush has made durable; another
//! part is under full load.
//!
//! fio's own verification of random writes compares each block with the header in that block, so a
//! block that was reverted to an older version passes. Hence the durable part is written with a new
//! pattern in every round, which differs from all older patterns. In the part under load both old
//! and new blocks are correct, so only their headers are verified: the right offset, and a checksum
//! over the whole block.

use std::process::{Child, Command, Stdio};

use crate::client::{Client, Outcome};
use crate::deadline::eventually;
use crate::volume::MIB;

/// Size of each of the two parts, in bytes.
const PART_BYTES: u64 = 2 * MIB;

/// Returns the fio options that all runs have in common.
fn common(uri: &str) -> Vec<String> {
    let words = [
        "--ioengine=nbd",
        "--thread=0",
        "--output-format=terse",
        "--bs=4k",
        "--verify_fatal=1",
        "--verify_dump=0",
        // Without this option fio leaves its state file in its current directory.
        "--verify_state_save=0",
    ];
    let mut words: Vec<String> = words.map(str::to_owned).into();
    words.push(format!("--uri={uri}"));
    words.push(format!("--size={PART_BYTES}"));
    words
}

/// Returns the fio options for the durable part (the part whose content is flushed before the
/// crash). The pattern of a block is `generation` as four bytes, followed by the offset of the
/// block.
fn certain(generation: u32) -> Vec<String> {
    vec![
        "--name=certain".to_owned(),
        "--offset=0".to_owned(),
        "--iodepth=8".to_owned(),
        "--verify=pattern".to_owned(),
        format!("--verify_pattern=0x{generation:08x}%o"),
    ]
}

/// Returns the fio options for the part under load.
fn loaded() -> Vec<String> {
    let words = [
        "--name=loaded",
        "--iodepth=16",
        "--verify=crc32c",
        &format!("--offset={PART_BYTES}"),
    ];
    words.map(str::to_owned).into()
}

/// Writes the pattern of `generation` to the whole durable part (the part whose content is flushed
/// before the crash), and flushes it.
pub fn write_certain(uri: &str, generation: u32) {
    Client::new("fio")
        .args(common(uri))
        .args(certain(generation))
        .args(["--rw=randwrite", "--do_verify=0", "--end_fsync=1"])
        .ok();
}

/// Writes the part under load once and flushes it, so that each of its blocks has a header for the
/// verification.
pub fn fill_loaded(uri: &str) {
    Client::new("fio")
        .args(common(uri))
        .args(loaded())
        .args(["--rw=write", "--do_verify=0", "--end_fsync=1"])
        .ok();
}

/// Reads and verifies the part that was durable before the crash and the part that was under load.
/// Returns the outcome of fio; its exit status 0 means that both parts are correct.
pub fn verify(uri: &str, generation: u32) -> Outcome {
    let job = ["--rw=read", "--do_verify=1"];
    Client::new("fio")
        .args(common(uri))
        .args(certain(generation))
        .args(job)
        .args(loaded())
        .args(job)
        .run()
}

/// A running fio that writes until its server dies.
#[derive(Debug)]
pub struct Running {
    child: Child,
}

impl Running {
    /// Starts random writes to the part under load, with a flush after every eighth write.
    pub fn start(uri: &str) -> Self {
        let child = Command::new("fio")
            .args(common(uri))
            .args(loaded())
            .args(["--rw=randwrite", "--do_verify=0", "--fsync=8"])
            .args(["--time_based", "--runtime=120", "--norandommap"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // fio fails when its server is killed; the test expects this error and discards the
            // message.
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("fio: {e}; run scripts/install-test-deps.sh"));
        Self { child }
    }

    /// Waits until fio exits because its server has died; panics if fio succeeds.
    pub fn ended(mut self) {
        let status = eventually(30, "fio ends with its server", || {
            self.child.try_wait().expect("wait for fio")
        });
        assert!(!status.success(), "fio cannot have written everything");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // fio has already ended unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
