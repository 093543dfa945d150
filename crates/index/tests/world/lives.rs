//! Lives of an index that several tests share. A life is a sequence of operations and failures,
//! determined by a seed or a number, whose results are compared with a map. The tests in
//! `src/planted/` run the same lives with deliberate bugs, to check that the lives detect them.

use super::cached::Cached;
use super::mishap::{Mishap, Mishaps};
use super::{Change, Disk, Draw, Map, Shape, World, check_scan, collect, small_options};
use bimetal_index::storage::memory::{Faults, MemoryStorage};
use bimetal_index::{Db, Durability, Error, MaintenanceStatistics, Options, Snapshot};
use std::ops::Bound;
use std::sync::Arc;

/// Writes until the disk stops working, or until `batches` batches are written.
pub fn write_some(world: &mut World, shape: &Shape, draw: &mut Draw, batches: u64) {
    for _ in 0..batches {
        let relaxed = draw.once_in(3);
        let durability = if relaxed {
            Durability::Relaxed
        } else {
            Durability::Durable
        };
        let result = match draw.below(30) {
            0 => world.db.checkpoint(),
            1 => world.db.write_back(),
            _ => world.write(&shape.batch(draw), durability),
        };
        if result.is_err() {
            return;
        }
    }
}

/// Returns the disk after a power cut, with a random subset of the data that was not durable.
pub fn cut(disk: &Disk, draw: &mut Draw) -> Disk {
    let keeps = draw.below(4);
    let (mut stretch, mut choice) = (0, 0);
    let mut choose = || match keeps {
        0 => 0,
        // A long write is either lost or kept as a whole.
        1 if stretch > 0 => {
            stretch -= 1;
            choice
        }
        1 => {
            stretch = draw.below(1000);
            choice = draw.number();
            choice
        }
        _ => draw.number(),
    };
    Arc::new(disk.after_power_cut(&mut choose))
}

/// Runs lives that end with a power cut. The openings after the power cut are sometimes interrupted
/// by another power cut.
pub fn crash(seed: u64, options: fn(&mut Draw) -> Options, reached: &mut MaintenanceStatistics) {
    let mut draw = Draw::new(seed);
    let options = options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options).expect("an index on an empty disk");
    for _ in 0..4 {
        let from = world.disk.counts().operations;
        let scale = draw.below(12);
        let cut_at = from + draw.below(1 << scale);
        world.disk.set_faults(Faults {
            power_cut_at: Some(cut_at),
            ..Faults::default()
        });
        write_some(&mut world, &shape, &mut draw, 300);
        add_up(reached, &world.db.statistics().maintenance);
        let mut disk = cut(&world.disk, &mut draw);
        // An opening also writes, so it can be cut like any other operation.
        for _ in 0..draw.below(3) {
            disk.set_faults(Faults {
                power_cut_at: Some(draw.below(12)),
                ..Faults::default()
            });
            let opened = Db::open(disk.clone(), &world.options);
            if let Err(error) = &opened {
                assert!(
                    matches!(error, Error::Storage { .. }),
                    "seed {seed}: {error}"
                );
            }
            drop(opened);
            disk = cut(&disk, &mut draw);
        }
        disk.set_faults(Faults::default());
        if let Err(error) = world.reopen(disk) {
            panic!("seed {seed}: {error}");
        }
        // The check above has read all leaves. Half of the time, the index is opened again without
        // a check. It then has no leaf in memory, as is usual after an opening.
        if draw.once_in(2) {
            let disk = world.disk.clone();
            let opened = world.open_again(disk);
            opened.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

fn add_up(sum: &mut MaintenanceStatistics, statistics: &MaintenanceStatistics) {
    sum.consolidations += statistics.consolidations;
    sum.patches += statistics.patches;
    sum.splits += statistics.splits;
    sum.joins += statistics.joins;
    sum.blobs += statistics.blobs;
    sum.relogged += statistics.relogged;
    sum.cleaned_segments += statistics.cleaned_segments;
    sum.checkpoints += statistics.checkpoints;
    sum.log_rings += statistics.log_rings;
}

/// Runs lives in which the change with the given number fails and a power cut ends the life.
/// Writing must stop with the failure and not before, reading must continue, and durable batches
/// must be present. Returns false if a life ended before the failure.
pub fn failure(number: u64) -> bool {
    let failures = (0..3).map(|keeps| failure_and_cut(number, keeps));
    failures.fold(true, |all, happened| all & happened)
}

fn failure_and_cut(number: u64, keeps: u64) -> bool {
    let mut draw = Draw::new(9);
    let options = small_options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let disk = Disk::default();
    // The first eight changes create and open the index.
    let storage = Mishaps::at(disk.clone(), number + 8, Mishap::Fails);
    let world = World::over(disk, storage.clone(), options);
    let mut world = world.expect("an index on an empty disk");
    for _ in 0..3 {
        write_some(&mut world, &shape, &mut draw, 20);
        let written = world.write(&shape.batch(&mut draw), Durability::Durable);
        let is_refused = matches!(written, Err(Error::ReadOnly { .. }));
        assert!(
            !is_refused || storage.has_happened(),
            "{written:?} too soon"
        );
        if storage.has_happened() {
            let written = world.write(&shape.batch(&mut draw), Durability::Durable);
            assert!(
                matches!(written, Err(Error::ReadOnly { .. })),
                "{written:?}"
            );
            collect(&mut world.db.scan((Bound::Unbounded, Bound::Unbounded))).expect("a scan");
            break;
        }
    }
    let mut draw = Draw::new(number);
    let mut choose = || match keeps {
        0 => 0,
        1 => 1,
        _ => draw.number(),
    };
    let disk = Arc::new(world.disk.after_power_cut(&mut choose));
    world.reopen(disk).expect("it opens");
    storage.has_happened()
}

/// Returns a batch of 60 values with 60,000 bytes in total; each byte is `number`. The values are
/// short enough to stay in leaves. A longer value would be stored out of line, and the index makes
/// the log durable before it writes such a value.
fn long_batch(key: u8, number: u8) -> Vec<Change> {
    let put = |index: u8| Change::Put(vec![key, index], vec![number; 1000]);
    (0..60).map(put).collect()
}

/// Returns options under which relaxed writes are written only to the log, and only an explicit
/// request makes the log durable.
fn nothing_but_the_log() -> Options {
    Options {
        // The memory is enough for all changes, so no leaf has to be written back. (A write-back
        // would make the log durable.)
        memory_bytes: 16 << 20,
        buffer_bytes: 8 << 20,
        log_bytes: 4 << 20,
        // An index also makes the log durable when a segment is full or when a value is written out
        // of line. These options avoid both. The maximum length of a node is so large that no leaf
        // reaches it, so no leaf is written for that reason.
        node_bytes: 256 << 10,
        segment_bytes: 4 << 20,
        inline_value_bytes: 1000,
        ..Options::default()
    }
}

/// Runs lives with long batches. Most of them are relaxed: they are not yet durable when they are
/// acknowledged. A power cut then finds several frames of the log that are not durable, and the
/// simulated disk keeps only some of these frames.
pub fn relaxed(seed: u64) {
    let mut draw = Draw::new(seed);
    let mut world = World::new(nothing_but_the_log()).expect("an index on an empty disk");
    for _ in 0..8 {
        let key = |draw: &mut Draw| draw.below(40) as u8;
        for _ in 0..draw.below(40) {
            let batch = long_batch(key(&mut draw), draw.number() as u8);
            let durability = match draw.below(12) {
                0 => Durability::Durable,
                _ => Durability::Relaxed,
            };
            let written = world.write(&batch, durability);
            written.expect("a write on a whole disk");
        }
        if draw.once_in(4) {
            world.db.write_back().expect("a write-back");
        }
        let disk = cut(&world.disk, &mut draw);
        if let Err(error) = world.reopen(disk) {
            panic!("seed {seed}: {error}");
        }
    }
}

/// A power cut loses the first of two frames and keeps the second, which then no longer belongs to
/// the log. New writes extend the log up to the position of this leftover frame. If `number` is
/// odd, a checkpoint makes the log start at that position, so that no newer frame precedes the
/// leftover frame.
pub fn leftover(number: u64) {
    let mut world = World::new(nothing_but_the_log()).expect("an index on an empty disk");
    let first = world.write(&[], Durability::Durable);
    first.expect("a write");
    world.db.checkpoint().expect("a checkpoint");
    let write = |world: &mut World, from: u8, to: u8| {
        for number in from..to {
            let written = world.write(&long_batch(number, number), Durability::Relaxed);
            written.expect("a write");
        }
    };
    // Each batch has about 60 KB, and a frame is written before it would exceed 256 KiB. So four of
    // the nine batches are in the first frame, and the others are in later frames.
    write(&mut world, 0, 9);
    let mut sectors = 0;
    let mut lose_a_block = || {
        sectors += 1;
        u64::from(sectors > 8)
    };
    let disk = Arc::new(world.disk.after_power_cut(&mut lose_a_block));
    world.reopen(disk).expect("it opens");
    assert_eq!(
        world.history.durable(),
        1,
        "the first frame is lost, so all are"
    );
    write(&mut world, 10, 14);
    world.db.sync().expect("a sync");
    world.history.synced();
    if number % 2 == 1 {
        world.db.write_back().expect("a write-back");
    }
    let disk = world.disk.clone();
    world.reopen(disk).expect("it opens");
}

/// A sync fails, and another program opens the index. The program reads data from the page cache
/// that is not on the disk and that no later sync will write. Changes that the program makes on top
/// of this data must survive a power cut.
pub fn failed_sync(number: u64) {
    let storage = Cached::default();
    let options = nothing_but_the_log();
    let disk = storage.disk.clone();
    let mut world = World::over(disk, storage.clone(), options).expect("an index");
    let first = world.write(&[], Durability::Durable);
    first.expect("a write");
    // Five of these batches together are longer than a frame. So at least one frame is written and
    // waits for the sync, and one frame is not written yet.
    for batch in 0..6 + number as u8 {
        let written = world.write(&long_batch(batch, batch), Durability::Relaxed);
        written.expect("a write");
    }
    storage.fail_sync();
    let synced = world.db.sync();
    assert!(matches!(synced, Err(Error::Storage { .. })), "{synced:?}");
    let next = Db::open(storage.clone(), &world.options).expect("it opens");
    let seen = all(&next).expect("a scan");
    assert_eq!(seen, *world.now(), "all of it was in the cache");
    next.put(b"later", b"and durable").expect("a write");
    let found =
        Db::open(world.disk.clone(), &world.options).expect("what is on the disk is an index");
    assert_eq!(found.get(b"later"), Ok(Some(b"and durable".to_vec())));
    let found = all(&found).expect("a scan");
    assert_eq!(
        found.len(),
        seen.len() + 1,
        "nothing that it was built on is lost"
    );
}

/// Runs one life of many operations.
pub fn ordered_map(seed: u64, options: fn(&mut Draw) -> Options, operations: usize) {
    let mut draw = Draw::new(seed);
    let options = options(&mut draw);
    let shape = Shape::draw(&mut draw);
    let mut world = World::new(options).expect("an index on an empty disk");
    let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
    for _ in 0..operations {
        match draw.below(20) {
            0..=12 => {
                let relaxed = draw.once_in(2);
                let durability = if relaxed {
                    Durability::Relaxed
                } else {
                    Durability::Durable
                };
                world
                    .write(&shape.batch(&mut draw), durability)
                    .expect("a batch is taken");
            }
            13..=15 => world.check_get(&shape.key(&mut draw)).expect("a get"),
            16 => {
                let (a, b) = (shape.key(&mut draw), shape.key(&mut draw));
                let bounds = match draw.below(3) {
                    0 => (Bound::Included(&a[..]), Bound::Excluded(&b[..])),
                    1 => (Bound::Excluded(&a[..]), Bound::Included(&b[..])),
                    _ => (Bound::Unbounded, Bound::Included(&b[..])),
                };
                check_scan(&world.db, world.now(), bounds).expect("a scan");
            }
            17 if snapshots.len() < 3 => {
                snapshots.push((world.db.snapshot(), world.now().clone()));
            }
            17 | 18 => {
                if let Some((snapshot, map)) = snapshots.pop() {
                    let all = collect(&mut snapshot.scan((Bound::Unbounded, Bound::Unbounded)));
                    let all: Map = all.expect("a scan").into_iter().collect();
                    assert!(all == map, "a snapshot is what it was");
                    let key = shape.key(&mut draw);
                    assert_eq!(snapshot.get(&key).expect("a get").as_ref(), map.get(&key));
                }
            }
            _ => match draw.below(6) {
                0 => {
                    snapshots.clear();
                    world.db.sync().expect("a sync");
                    world.history.synced();
                    let disk = world.disk.clone();
                    world.reopen(disk).expect("it opens");
                    if draw.once_in(2) {
                        // After another opening, no leaf is in memory.
                        let disk = world.disk.clone();
                        world.db = Db::open(disk, &world.options).expect("it opens");
                    }
                }
                1 => world.db.checkpoint().expect("a checkpoint"),
                2 => world.db.write_back().expect("a write-back"),
                3 => world.db.compact(|_| {}).expect("a compaction"),
                _ => world.check_all().expect("a scan"),
            },
        }
    }
    world.check_all().expect("a scan");
}

/// Options of [`example`].
pub fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 8 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 200,
        ..Options::default()
    }
}

/// Returns a small index with every kind of structure, and with a log that is not empty.
pub fn example() -> World {
    let mut world = World::new(small()).expect("an index");
    let shape = Shape {
        keys: 60,
        integers: false,
        long_values: true,
        ranges: true,
    };
    let mut draw = Draw::new(11);
    for number in 0..120 {
        world
            .write(&shape.batch(&mut draw), Durability::Durable)
            .expect("a write");
        if number == 80 {
            world.db.write_back().expect("a write-back");
        }
    }
    world
}

/// Encodes a number as a key.
pub fn key_of(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Returns a value that cannot be packed, so that the number of leaves follows from the lengths of
/// the values.
pub fn value_of(number: u64) -> Vec<u8> {
    let mut draw = Draw::new(number);
    (0..5).flat_map(|_| draw.number().to_le_bytes()).collect()
}

/// Returns an index of `records` records with about ten records in each leaf, and with so little
/// memory for changes that leaves are written continually.
pub fn many_leaves(records: u64) -> World {
    let options = Options {
        buffer_bytes: 64 << 10,
        ..small()
    };
    let mut world = World::new(options).expect("an index");
    for first in (0..records).step_by(200) {
        let puts = first..records.min(first + 200);
        let puts: Vec<Change> = puts
            .map(|number| Change::Put(key_of(number), value_of(number)))
            .collect();
        world.write(&puts, Durability::Relaxed).expect("a write");
    }
    world.db.write_back().expect("a write-back");
    world
}

/// Deletes ranges of many leaves. Before all leaves have applied a deletion, the index is stopped
/// several times, each time after some commits, and the log wraps around several times. Calls
/// `at_stop` at each stop. Returns the number of leaves that applied a deletion later than its
/// commit.
pub fn long_deletions(seed: u64, records: u64, at_stop: &mut dyn FnMut(&World)) -> u64 {
    let mut draw = Draw::new(seed);
    let mut world = many_leaves(records);
    let mut taken_in = 0;
    for round in 0..20 {
        let first = draw.below(records / 2);
        let change = match round % 3 {
            0 => Change::DeleteRange(Vec::new(), None),
            1 => Change::DeleteRange(key_of(first), Some(key_of(first + records / 3))),
            _ => Change::DeleteRange(key_of(first), None),
        };
        // The order within one batch matters: the deletion also deletes keys that the batch puts
        // before it.
        let put = |number: u64| Change::Put(key_of(number), value_of(round));
        let changes = [put(first + 1), change, put(first + 2)];
        world.write(&changes, Durability::Durable).expect("a write");
        for _ in 0..draw.below(60) {
            let number = draw.below(records);
            let change = match draw.below(3) {
                0 => Change::Delete(key_of(number)),
                _ => Change::Put(key_of(number), value_of(draw.number())),
            };
            world
                .write(&[change], Durability::Durable)
                .expect("a write");
        }
        match draw.below(4) {
            0 | 1 => world.db.checkpoint().expect("a checkpoint"),
            2 => world.check_all().expect("it can be read"),
            _ => {}
        }
        at_stop(&world);
        taken_in += world.db.statistics().maintenance.taken_in;
        let disk = world.disk.clone();
        world.reopen(disk).expect("it opens");
    }
    world.db.write_back().expect("a write-back");
    world.check_all().expect("it can be read");
    taken_in
}

/// Returns all keys and values of an index.
pub fn all(db: &Db) -> Result<Map, Error> {
    let pairs = collect(&mut db.scan((Bound::Unbounded, Bound::Unbounded)))?;
    Ok(pairs.into_iter().collect())
}

/// Changes written bytes, one at a time, and opens and reads the index. A power cut might have torn
/// the last frame of the log, so the content without that frame is also a right answer. Returns the
/// number of changes for which opening or reading was refused.
pub fn changed_bytes(step: usize) -> usize {
    let world = example();
    let content = world.disk.content();
    let (mut refused, mut same, mut torn) = (0, 0, 0);
    let before_last = world.history.at(world.history.given() - 1);
    for at in (0..content.len()).step_by(step) {
        let block = at / 4096 * 4096;
        if content[block..block + 4096].iter().all(|byte| *byte == 0) {
            continue;
        }
        let mut flipped = content.clone();
        flipped[at] ^= 1 << (at % 8);
        let disk = Arc::new(MemoryStorage::with_content(flipped));
        match Db::open(disk, &small()).and_then(|db| all(&db)) {
            Ok(map) if map == *world.now() => same += 1,
            Ok(map) if map == before_last => torn += 1,
            Ok(_) => panic!("byte {at} has changed what is there"),
            Err(Error::Damaged { .. } | Error::NotAnIndex { .. } | Error::Version { .. }) => {
                refused += 1;
            }
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(torn <= 2 * 4096, "{torn} in the last frame");
    assert!(same > 0, "zeroes that nothing refers to may change");
    refused
}
