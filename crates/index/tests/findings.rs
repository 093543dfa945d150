//! Bugs that the tester in `bimetal-sim` has found, each as a minimal test.

use crate::world::{Change, Disk, World};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::{Db, Durability, Error, Options};
use std::sync::Arc;

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 64 << 10,
        log_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        ..Options::default()
    }
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

fn put(number: u64, len: usize) -> Change {
    Change::Put(key(number), vec![number as u8; len])
}

fn made(options: Options) -> World {
    World::new(options).expect("an index on an empty disk")
}

fn write(world: &mut World, changes: &[Change]) {
    let written = world.write(changes, Durability::Durable);
    written.expect("a write");
}

fn short_lived() -> Options {
    Options {
        snapshot_batches_max: 2,
        ..small()
    }
}

/// A batch that one opening has not found must not appear in a later opening, because readers might
/// have seen its absence. In this test a part of the batch's frame is damaged at first, as by a
/// torn write, and intact again later.
#[test]
fn a_batch_that_an_opening_has_not_found_does_not_come_back() {
    let disk = Arc::new(MemoryStorage::new());
    let db = Db::create(Arc::clone(&disk), 1, &small()).expect("an index");
    db.put(b"first", b"1").expect("a write");
    let before = disk.content();
    db.put(b"second", b"2").expect("a write");
    let after = disk.content();
    let blocks = db
        .log_ranges()
        .remove(0)
        .step_by(4096)
        .map(|at| at as usize);
    let is_changed = |at: &usize| before[*at..at + 4096] != after[*at..at + 4096];
    let changed: Vec<usize> = blocks.filter(is_changed).collect();
    assert_eq!(changed.len(), 1, "one frame of one block");
    db.abandon();
    let last_byte = changed[0] as u64 + 4095;
    for _ in 0..2 {
        // The first round changes the last byte, and the second round restores it.
        disk.rot(last_byte, 1);
        let db = Db::open(Arc::clone(&disk), &small()).expect("an index");
        assert_eq!(db.get(b"first").expect("a get").as_deref(), Some(&b"1"[..]));
        assert_eq!(db.get(b"second").expect("a get"), None);
    }
    let db = Db::open(Arc::clone(&disk), &small()).expect("an index");
    db.put(b"third", b"3").expect("a write");
    drop(db);
    let db = Db::open(disk, &small()).expect("an index");
    assert_eq!(db.get(b"third").expect("a get").as_deref(), Some(&b"3"[..]));
    assert_eq!(db.get(b"second").expect("a get"), None);
}

/// When a leaf is removed, the neighbouring leaf takes over its keys, but not the old versions of
/// these keys. A snapshot that needs an old version must get an error. It must not find the key
/// missing.
#[test]
fn a_snapshot_that_is_too_old_sees_no_hole_instead() {
    let mut seen = 0;
    for start in 0..40 {
        let mut world = made(short_lived());
        write(
            &mut world,
            &(0..400).map(|n| put(n, 20)).collect::<Vec<_>>(),
        );
        world.db.write_back().expect("a write-back");
        let snapshot = world.db.snapshot();
        let range = Change::DeleteRange(key(100 + start), Some(key(200 + start)));
        write(&mut world, &[range]);
        for number in 900..906 {
            write(&mut world, &[put(number, 20)]);
        }
        world.db.write_back().expect("a write-back");
        for number in 0..400 {
            match snapshot.get(&key(number)) {
                Ok(value) => assert!(value.is_some(), "key {number} is gone"),
                Err(error) => assert_eq!(error, Error::SnapshotTooOld),
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 16_000);
}

#[test]
fn a_transaction_that_is_too_old_to_know_is_refused() {
    let mut world = made(short_lived());
    write(&mut world, &[put(1, 20)]);
    let mut transaction = world.db.transaction();
    assert!(
        transaction
            .get_for_update(&key(1))
            .expect("a get")
            .is_some()
    );
    transaction.put(&key(2), b"since 1 is there");
    write(&mut world, &[Change::Delete(key(1))]);
    for number in 300..306 {
        write(&mut world, &[put(number, 20)]);
    }
    world.db.write_back().expect("a write-back");
    let committed = transaction.commit(Durability::Durable);
    assert_eq!(committed, Err(Error::SnapshotTooOld));
}

/// A killed program has written frames of the log that are not durable. The next program reads
/// these frames, and after a power cut its own frames must not follow a gap.
#[test]
fn what_a_killed_program_left_in_the_log_is_durable_before_the_next_goes_on() {
    let large_buffer = Options {
        memory_bytes: 8 << 20,
        buffer_bytes: 2 << 20,
        ..small()
    };
    let mut world = made(large_buffer);
    for number in 0..40 {
        let changes: Vec<_> = (0..16).map(|n| put(number * 16 + n, 1000)).collect();
        let written = world.write(&changes, Durability::Relaxed);
        written.expect("a write");
    }
    let disk = world.disk.clone();
    world.reopen(disk).expect("it opens");
    let left = world.history.given();
    assert!(left > 10, "more than a frame was written: {left}");
    write(&mut world, &[put(1, 5)]);
    let disk = Arc::new(world.disk.after_power_cut(&mut || 0));
    world.reopen(disk).expect("it opens");
}

/// The end of the log is lost, and no frame of this log states that the frames before it are
/// durable. The checkpoint contains more batches than the rest of the log, which shows the loss.
#[test]
fn a_log_that_ends_before_the_checkpoint_is_noticed() {
    let mut world = made(small());
    for number in 0..3 {
        let changes: Vec<_> = (0..110).map(|n| put(number * 1000 + n, 1000)).collect();
        let written = world.write(&changes, Durability::Relaxed);
        written.expect("a write");
    }
    world.db.checkpoint().expect("a checkpoint");
    let (disk, log) = (world.disk.clone(), world.db.log_ranges().remove(0));
    world.db.abandon();
    let opens = |disk: &Disk| Db::open(disk.clone(), &small()).map(drop);
    let content = disk.content();
    let frames: Vec<u64> = (log.start..log.end)
        .step_by(4096)
        .filter(|at| content[*at as usize..].starts_with(b"blo5"))
        .collect();
    let last = *frames.last().expect("frames");
    disk.rot(last + 100, 1);
    assert!(
        matches!(opens(&disk), Err(Error::Damaged { .. })),
        "of {} frames",
        frames.len()
    );
}
