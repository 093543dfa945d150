//! The slow side alone after a crash. While the slow side lags, 401 writes are made, each followed
//! by a flush; then the power is cut, and the fast side is missing. In this scenario md (the Linux
//! software RAID), once told that the fast side is gone, starts the slow side without a warning and
//! serves its old content.

use bimetal_tests::crash::lost::lost;
use bimetal_tests::crash::model::{Model, content};
use bimetal_tests::crash::stand::{Power, Stand};
use bimetal_tests::deadline::eventually;
use bimetal_tests::nbd::{Request, Wire, cmd};
use bimetal_tests::volatile_disk::{BLOCK_BYTES, Keep};

/// Number of writes, each to a separate block.
const WRITES: u64 = 401;
/// Distance between the blocks of two successive writes, in blocks, so that no two writes form one
/// contiguous range.
const STRIDE: u64 = 4;
/// Number of the first write that is made while the slow disk is frozen. This write and all later
/// ones are only on the fast disk.
const FROZEN_FROM: u64 = 360;

const FAST: usize = 0;
const SLOW: usize = 1;

/// Returns the byte range of a write.
fn place(write: u64) -> std::ops::Range<u64> {
    let start = write * STRIDE * BLOCK_BYTES;
    start..start + BLOCK_BYTES
}

/// Returns the content of a write.
fn bytes(write: u64) -> Vec<u8> {
    let block = write * STRIDE;
    content(block..block + 1, write + 1)
}

/// Returns, for each write, whether the volume holds its content.
///
/// # Panics
/// If a block holds neither the content of its write nor the zeroes that it held before.
fn present(wire: &mut Wire) -> Vec<bool> {
    let one = |write| {
        let found = wire.read(place(write).start, BLOCK_BYTES as u32);
        let is_there = found == bytes(write);
        let is_old = found.iter().all(|b| *b == 0);
        assert!(is_there || is_old, "write {write} is there in part");
        is_there
    };
    (0..WRITES).map(one).collect()
}

/// Asserts that the volume holds all writes.
fn assert_all_there(stand: &Stand, when: &str) {
    let found = present(&mut stand.attach().0);
    let count = found.iter().filter(|there| **there).count() as u64;
    assert_eq!(count, WRITES, "of {WRITES} writes {when}");
}

/// Returns the number of writes whose content the volume holds when the slow side is its only side.
/// Asserts that the volume holds the first writes without a gap, and no later write.
fn boundary(stand: &Stand) -> u64 {
    let found = present(&mut stand.attach().0);
    let count = found.iter().take_while(|there| **there).count();
    let beyond = found[count..].iter().filter(|there| **there).count();
    assert_eq!(beyond, 0, "writes beyond the first {count}: {found:?}");
    count as u64
}

/// Returns a volume after the crash: the client has flushed all writes, the slow side lagged, the
/// power was cut, and the fast side is missing.
fn crashed(name: &str) -> Stand {
    // The log is large enough for all writes, even if all of them are exposed (only on the fast
    // side).
    let keys = "exposure = { bytes = \"2MiB\", age = \"1h\" }\nlog = \"12MiB\"";
    let mut stand = Stand::new(name, keys);
    let (mut wire, _) = stand.attach();
    stand.disks[SLOW].limit(100);
    stand.disks[SLOW].delay(20);
    for write in 0..WRITES {
        if write == FROZEN_FROM {
            stand.disks[SLOW].freeze();
        }
        wire.write(place(write).start, &bytes(write));
        wire.flush();
    }
    stand.crash(Power::Fails([Some(Keep::Nothing); 2]));
    stand.disks[FAST].take_away();
    stand
}

#[test]
fn the_slow_side_alone_is_refused_and_with_both_nothing_is_lost() {
    let mut stand = crashed("lone");
    // Each start without the fast side is refused, with the same lost ranges.
    let refusal = lost(&stand.refused(&[]));
    assert_eq!(lost(&stand.refused(&[])), refusal);
    stand.serve_with(&["--force-open", "read-only"]);
    let reached = boundary(&stand);
    assert!(reached <= FROZEN_FROM, "{reached} on a frozen disk");
    let (mut wire, _) = stand.attach();
    let write = Request::new(cmd::WRITE, 0, BLOCK_BYTES as u32);
    let refused = wire.run(write, &bytes(7)).expect("an answer");
    assert_ne!(refused, 0, "a write to what is open for reading");
    drop(wire);
    for write in reached..WRITES {
        assert!(refusal.covers(place(write)), "write {write}: {refusal:?}");
    }
    stand.stop();
    // The read-only session has not changed the side.
    assert_eq!(lost(&stand.refused(&[])), refusal);

    stand.disks[FAST].bring_back();
    stand.disks[SLOW].limit(100);
    for number in 0..3 {
        stand.serve_with(&[]);
        assert_all_there(&stand, "with both sides back");
        stand.disks[SLOW].await_more_writes(number);
        assert_all_there(&stand, "while the slow side catches up");
        stand.crash(Power::Fails([Some(Keep::Nothing); 2]));
        stand.disks[SLOW].limit(100);
    }
    stand.serve_with(&[]);
    stand.disks[SLOW].limit(0);
    stand.await_complete();
    eventually(60, "the slow side has caught up", || {
        (stand.volume().statistic("exposed_bytes") == 0.0).then_some(())
    });
    assert_all_there(&stand, "on both sides");
    stand.stop();
    stand.disks[FAST].take_away();
    stand.serve_with(&[]);
    assert_all_there(&stand, "on the slow side alone");
    stand.stop();
}

#[test]
fn a_fork_of_the_slow_side_never_mixes_with_the_fast_one() {
    let mut stand = crashed("fork");
    stand.serve_with(&["--force-open", "fork"]);
    let reached = boundary(&stand);
    assert!(reached < WRITES);
    // The fork (the slow side, opened by force) diverges: it receives a write to a block for which
    // the fast side holds another write.
    let (mut wire, size_bytes) = stand.attach();
    let mut fork = Model::new(size_bytes / BLOCK_BYTES);
    let blocks = reached * STRIDE..reached * STRIDE + 1;
    let stamp = WRITES + 1;
    fork.sent(blocks.clone(), stamp);
    wire.write(blocks.start * BLOCK_BYTES, &content(blocks.clone(), stamp));
    wire.flush();
    fork.acknowledged(blocks.clone(), true);
    drop(wire);
    stand.stop();
    stand.disks[FAST].bring_back();
    // The sides have diverged (split brain). The server must either refuse the volume, or serve
    // only the content of the fork, which is the slow side that was opened by force.
    if stand.try_serve_with(&[]).is_ok() {
        let (mut wire, _) = stand.attach();
        let found = wire.read(blocks.start * BLOCK_BYTES, BLOCK_BYTES as u32);
        fork.check_newest(blocks.start, &found)
            .expect("the fork's write");
        for write in reached + 1..WRITES {
            let found = wire.read(place(write).start, BLOCK_BYTES as u32);
            assert!(found.iter().all(|b| *b == 0), "write {write} of the other");
        }
        stand.stop();
    }
    // Without the fast side, the volume still has the content of the fork (the slow side, opened by
    // force).
    stand.disks[FAST].take_away();
    stand.serve_with(&[]);
    let (mut wire, _) = stand.attach();
    let found = wire.read(blocks.start * BLOCK_BYTES, BLOCK_BYTES as u32);
    fork.check_newest(blocks.start, &found)
        .expect("the fork's write");
    stand.stop();
}
