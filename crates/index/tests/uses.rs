//! Tests of uses of an index that no other test covers: any options, any lengths of keys and
//! values, large concurrent transactions, a storage that panics, and a program that ends without a
//! sync.

use crate::world::{Change, Disk, Draw, Shape, World};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::storage::{Storage, StorageError};
use bimetal_index::{Batch, Db, Durability, Error, ErrorKind, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 64 << 10,
        log_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 1024,
        ..Options::default()
    }
}

/// Draws a value between two bounds: half of the time one of the two bounds, otherwise any value.
fn within(draw: &mut Draw, least: u64, most: u64) -> u64 {
    match draw.below(4) {
        0 => least,
        1 => most,
        _ => least + draw.magnitude(40) % (most - least + 1),
    }
}

/// Draws valid or invalid options, for creating an index or for opening an existing one.
fn any_options(draw: &mut Draw) -> Options {
    let segment_bytes = draw.one_of(&[64 << 10, 128 << 10, 1 << 20, 4 << 20]);
    let memory_bytes = within(draw, 256 << 10, 8 << 20);
    // Every tenth limit on average is exceeded.
    let mut beyond = |most: u64| match draw.once_in(10) {
        true => most * 3 / 2,
        false => most,
    };
    let buffer_bytes_max = beyond(memory_bytes / 4 * 3);
    let node_bytes_max = beyond(u64::from(segment_bytes) / 4);
    let row_bytes_max = beyond((u64::from(segment_bytes) / 8).min(64 << 10));
    Options {
        memory_bytes,
        buffer_bytes: within(draw, 0, buffer_bytes_max),
        log_bytes: within(draw, 256 << 10, 8 << 20),
        segment_bytes,
        node_bytes: within(draw, 512, node_bytes_max) as usize,
        inline_value_bytes: within(draw, 0, row_bytes_max) as usize,
        utilisation: match draw.once_in(20) {
            true => f64::NAN,
            false => draw.one_of(&[0.1, 0.5, 0.87, 0.95]),
        },
        hot_share: draw.one_of(&[0.0, 0.33, 1.0]),
        group_wait_us: draw.one_of(&[0, 100]),
        snapshot_batches_max: draw.one_of(&[0, 1, 100, u64::MAX]),
        paper: None,
    }
}

/// Writes values of all lengths: around the limit for inline values, and far beyond it.
fn write_much(world: &mut World, draw: &mut Draw) {
    let inline = world.options.inline_value_bytes as u64;
    let limits = world.db.limits();
    for _ in 0..20 {
        let mut changes = Vec::new();
        let mut room = limits.batch_bytes_max as u64 / 2;
        for _ in 0..draw.below(40) {
            let key_bytes = within(draw, 0, 4096) as usize;
            // Half of the keys have a common prefix.
            let number = draw.below(60);
            let first = if number < 30 { b'k' } else { number as u8 };
            let mut key = vec![first; key_bytes];
            key.extend_from_slice(&number.to_be_bytes());
            key.truncate(4096);
            let value_bytes = match draw.below(6) {
                0 => inline + draw.below(3),
                1 => inline.saturating_sub(1),
                2 => draw.magnitude(22),
                _ => draw.below(200),
            };
            let value_bytes = value_bytes.min(limits.value_bytes_max as u64);
            let bytes = key.len() as u64 + value_bytes + 20;
            if bytes > room {
                continue;
            }
            room -= bytes;
            let value = vec![draw.number() as u8; value_bytes as usize];
            changes.push(match draw.once_in(5) {
                true => Change::Delete(key),
                false => Change::Put(key, value),
            });
        }
        world.write(&changes, Durability::Relaxed).expect("a write");
    }
}

#[test]
fn whatever_options_are_accepted_work_and_others_are_refused() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 0..50 {
        let mut draw = Draw::new(seed);
        let options = any_options(&mut draw);
        let mut world = match World::new(options.clone()) {
            Ok(world) => world,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Option, "seed {seed}: {error}");
                refused += 1;
                continue;
            }
        };
        accepted += 1;
        write_much(&mut world, &mut draw);
        world.check_all().expect("it can be read");
        world.db.write_back().expect("a write-back");
        world.check_all().expect("it can be read");
        for _ in 0..4 {
            let other = Options {
                log_bytes: options.log_bytes,
                ..any_options(&mut draw)
            };
            world.db.clone().close().expect("a close");
            match Db::open(world.disk.clone(), &other) {
                Ok(db) => {
                    (world.db, world.options) = (db, other);
                    accepted += 1;
                    write_much(&mut world, &mut draw);
                    world.check_all().expect("it can be read");
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Option, "seed {seed}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(accepted > 50 && refused > 50, "{accepted}, {refused}");
}

#[test]
fn what_is_too_long_is_refused_with_both_numbers_and_changes_nothing() {
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 1, &small()).expect("an index");
    db.put(b"before", b"1").expect("a put");
    let limits = db.limits();
    let calls = disk.counts().operations;
    let mut longest = Batch::new();
    // Six bytes of the batch are not part of the value: one for the kind, one for the length of the
    // key, one for the key, and three for the length of the value.
    longest.put(b"a", &vec![7; limits.batch_bytes_max - 1 - 1 - 3 - 1]);
    let mut longer = Batch::new();
    longer.put(b"a", &vec![7; limits.batch_bytes_max - 1 - 1 - 3]);
    let too_long = Error::BatchTooLong {
        bytes: limits.batch_bytes_max + 1,
        max: limits.batch_bytes_max,
    };
    assert_eq!(too_long.kind(), ErrorKind::TooLong);
    let too_long = Err(too_long);
    assert_eq!(db.write(&longer, Durability::Durable), too_long);
    let mut transaction = db.transaction();
    transaction.put(b"a", &vec![7; limits.batch_bytes_max - 1 - 1 - 3]);
    assert_eq!(transaction.commit(Durability::Durable), too_long);
    assert_eq!(
        disk.counts().operations,
        calls,
        "nothing was asked of the storage"
    );
    db.write(&longest, Durability::Durable)
        .expect("the longest");
    assert_eq!(db.get(b"before"), Ok(Some(b"1".to_vec())));
}

#[test]
fn a_value_that_no_row_can_refer_to_is_refused() {
    let options = Options {
        log_bytes: 1 << 30,
        ..small()
    };
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 1, &options).expect("an index");
    let max = db.limits().value_bytes_max;
    assert!(
        max < db.limits().batch_bytes_max,
        "it is the shorter of both"
    );
    let mut batch = Batch::new();
    batch.put(b"k", &vec![1; max + 1]);
    let refused = db.write(&batch, Durability::Relaxed);
    let bytes = max + 1;
    assert_eq!(refused, Err(Error::ValueTooLong { bytes, max }));
    batch.clear();
    batch.put(b"k", &vec![1; max]);
    db.write(&batch, Durability::Relaxed).expect("the longest");
    db.write_back().expect("a write-back");
    assert_eq!(
        db.get(b"k").expect("a get").map(|value| value.len()),
        Some(max)
    );
}

#[test]
fn batches_that_wait_together_are_no_longer_than_the_log() {
    // The log is as short as possible, and many threads write batches of nearly the maximum length.
    let options = Options {
        log_bytes: 256 << 10,
        ..small()
    };
    let db = Db::create(MemoryStorage::new(), 1, &options).expect("an index");
    let value = vec![3; db.limits().batch_bytes_max - 100];
    std::thread::scope(|scope| {
        for thread in 0..16_u8 {
            let (db, value) = (db.clone(), &value);
            scope.spawn(move || {
                for turn in 0..10 {
                    db.put(&[thread, turn], value).expect("a put");
                }
            });
        }
    });
    assert_eq!(db.statistics().batches, 160);
}

/// A disk that panics at a call.
#[derive(Clone)]
struct Panicking {
    disk: Disk,
    left: Arc<AtomicU64>,
}

impl Panicking {
    fn count(&self) {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        assert!(left != 1, "the disk has come loose");
    }
}

impl Storage for Panicking {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.disk.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.count();
        self.disk.write(offset, data)
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.count();
        self.disk.write_durable(offset, data)
    }
    fn sync(&self) -> Result<(), StorageError> {
        self.count();
        self.disk.sync()
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.count();
        self.disk.resize(len_bytes)
    }
}

/// Runs threads on an index whose storage panics at its `at`th change. Each thread reports its
/// result to a channel, so that the test detects a thread that waits forever. Returns the number of
/// threads that panicked, and the errors of the other threads.
fn panics_at(at: u64) -> (usize, Vec<Error>) {
    let storage = Panicking {
        disk: Disk::default(),
        left: Arc::default(),
    };
    let db = Db::create(storage.clone(), 1, &small()).expect("an index");
    db.put(b"there", b"1").expect("a put");
    storage.left.store(at, Ordering::Relaxed);
    let (report, reports) = channel();
    for thread in 0..4_u8 {
        let (db, report) = (db.clone(), report.clone());
        std::thread::spawn(move || {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for turn in 0_u32.. {
                    let mut batch = Batch::new();
                    batch.put(
                        &[&[thread][..], &turn.to_le_bytes()].concat(),
                        &[turn as u8; 300],
                    );
                    let durability = match thread {
                        0 => Durability::Relaxed,
                        1 => Durability::Group,
                        _ => Durability::Durable,
                    };
                    let written = db.write(&batch, durability);
                    let read = db.get(b"there").map(|_| ());
                    if let Err(error) = written.and(read) {
                        return error;
                    }
                    if thread == 3
                        && turn % 8 == 0
                        && let Err(error) = db.write_back()
                    {
                        return error;
                    }
                }
                unreachable!("turns do not end")
            }));
            // After a timeout the receiver may have been dropped.
            let _ = report.send(ended.ok());
        });
    }
    drop(report);
    let mut ended = Vec::new();
    for _ in 0..4 {
        let one = reports.recv_timeout(Duration::from_secs(60));
        ended.push(one.expect("no thread waits for ever"));
    }
    // Every handle returns the same error for every operation.
    let errors = [
        db.get(b"there").map(|_| ()),
        db.put(b"k", b"v"),
        db.sync(),
        db.scan((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded))
            .next()
            .map(|_| ()),
        db.snapshot().get(b"there").map(|_| ()),
        db.clone().close(),
    ];
    let panics = ended.iter().filter(|ended| ended.is_none()).count();
    let told = ended.into_iter().flatten();
    (
        panics,
        told.chain(errors.into_iter().filter_map(Result::err))
            .collect(),
    )
}

#[test]
fn a_panic_in_a_commit_poisons_the_index_and_no_thread_waits_for_ever() {
    for at in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233] {
        let (panics, errors) = panics_at(at);
        assert_eq!(panics, 1, "at {at}: the thread that was at it");
        let poisoned = Error::Poisoned {
            reason: "the disk has come loose".to_owned(),
        };
        assert_eq!(errors, vec![poisoned; 3 + 6], "at {at}");
    }
}

#[test]
fn relaxed_writes_are_there_after_a_drop_and_after_a_close() {
    for is_closed in [false, true] {
        let disk = Disk::default();
        let db = Db::create(disk.clone(), 1, &small()).expect("an index");
        let mut batch = Batch::new();
        batch.put(b"k", b"v");
        db.write(&batch, Durability::Relaxed).expect("a write");
        let other = db.clone();
        if is_closed {
            db.close().expect("a close");
            let refused = other.put(b"k", b"w");
            assert_eq!(
                refused.map_err(|error| error.kind()),
                Err(ErrorKind::ReadOnly)
            );
            assert_eq!(other.get(b"k"), Ok(Some(b"v".to_vec())), "reading goes on");
            other.close().expect("it is closed already");
        } else {
            drop((db, other));
        }
        let after = disk.after_power_cut(&mut || 0);
        let db = Db::open(after, &small()).expect("it opens");
        assert_eq!(db.get(b"k"), Ok(Some(b"v".to_vec())), "closed: {is_closed}");
    }
}

#[test]
fn a_close_says_that_what_was_relaxed_may_be_lost() {
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 1, &small()).expect("an index");
    let mut batch = Batch::new();
    batch.put(b"k", b"v");
    db.write(&batch, Durability::Relaxed).expect("a write");
    disk.set_faults(bimetal_index::storage::memory::Faults {
        fail_at: Some(0),
        fails_for_good: true,
        ..Default::default()
    });
    let closed = db.close();
    assert_eq!(
        closed.map_err(|error| error.kind()),
        Err(ErrorKind::Storage)
    );
}

/// An index makes its relaxed batches durable when it is dropped.
#[test]
fn a_world_is_whole_after_a_drop() {
    let shape = Shape {
        keys: 300,
        integers: false,
        long_values: true,
        ranges: true,
    };
    for seed in 0..20 {
        let mut draw = Draw::new(seed);
        let mut world = World::new(small()).expect("an index");
        for _ in 0..40 {
            let changes = shape.batch(&mut draw);
            world.write(&changes, Durability::Relaxed).expect("a write");
        }
        let World {
            disk, db, history, ..
        } = world;
        drop(db);
        let options = small();
        let after: Disk = Arc::new(disk.after_power_cut(&mut || 0));
        let db = Db::open(after.clone(), &options).expect("it opens");
        let reopened = World {
            disk: after,
            db,
            options,
            history,
        };
        reopened.check_all().expect("it can be read");
    }
}
