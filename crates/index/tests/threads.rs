//! Tests of many threads on one index: transactions that move money between accounts, and readers
//! that add up all accounts.

use crate::world::gate::{self, Gate};
use crate::world::{Disk, Draw};
use bimetal_index::{Batch, Db, Durability, Error, Options};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const ACCOUNTS: u64 = 500;
const START: u64 = 1000;

fn account(number: u64) -> Vec<u8> {
    format!("account/{number:06}").into_bytes()
}

fn number(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().expect("a number"))
}

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 16 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        ..Options::default()
    }
}

fn bank() -> (Disk, Db) {
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 3, &small()).expect("an index");
    let mut batch = Batch::new();
    for id in 0..ACCOUNTS {
        batch.put(&account(id), &START.to_le_bytes());
    }
    db.write(&batch, Durability::Durable).expect("a write");
    (disk, db)
}

/// Moves money between two accounts. Returns `Ok(false)` if a conflicting transaction was committed
/// first.
fn transfer(db: &Db, draw: &mut Draw) -> Result<bool, Error> {
    let mut transaction = db.transaction();
    let (from, to) = (account(draw.below(ACCOUNTS)), account(draw.below(ACCOUNTS)));
    let has = number(&transaction.get(&from)?.expect("an account"));
    let moved = draw.below(has + 1).min(50);
    transaction.put(&from, &(has - moved).to_le_bytes());
    let has = number(&transaction.get(&to)?.expect("an account"));
    transaction.put(&to, &(has + moved).to_le_bytes());
    let durability = match draw.below(4) {
        0 => Durability::Relaxed,
        _ => Durability::Durable,
    };
    match transaction.commit(durability) {
        Ok(()) => Ok(true),
        Err(Error::Conflict) => Ok(false),
        Err(error) => Err(error),
    }
}

fn sum(db: &Db, is_reverse: bool) -> (u64, u64) {
    let all = (Bound::Unbounded, Bound::Unbounded);
    let mut scan = if is_reverse {
        db.scan_reverse(all)
    } else {
        db.scan(all)
    };
    let (mut sum, mut count) = (0, 0);
    while let Some((_, value)) = scan.next().expect("a row") {
        sum += number(value);
        count += 1;
    }
    (sum, count)
}

#[test]
fn money_is_neither_made_nor_lost() {
    let (disk, db) = bank();
    let done = AtomicBool::new(false);
    let (moved, refused, counted) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|seed| {
                let (db, moved, refused) = (db.clone(), &moved, &refused);
                scope.spawn(move || {
                    let mut draw = Draw::new(seed);
                    for _ in 0..1500 {
                        let is_moved = transfer(&db, &mut draw).expect("a transaction");
                        let count = if is_moved { moved } else { refused };
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for seed in 0..2 {
            let (db, done, counted) = (db.clone(), &done, &counted);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(sum(&db, seed == 0), (ACCOUNTS * START, ACCOUNTS));
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for writer in writers {
            writer.join().expect("a writer");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        moved.load(Ordering::Relaxed) + refused.load(Ordering::Relaxed),
        12_000
    );
    assert!(counted.load(Ordering::Relaxed) > 0, "readers have read");
    let maintenance = db.statistics().maintenance;
    assert!(
        maintenance.consolidations > 100 && maintenance.checkpoints > 2,
        "there was upkeep beside: {maintenance:?}"
    );
    db.sync().expect("a sync");
    drop(db);
    let db = Db::open(disk, &small()).expect("it opens");
    assert_eq!(sum(&db, false), (ACCOUNTS * START, ACCOUNTS));
}

#[test]
fn of_two_transactions_on_one_key_one_wins() {
    let (_, db) = bank();
    let mut first = db.transaction();
    let mut second = db.transaction();
    first.put(&account(1), b"11111111");
    second.put(&account(1), b"22222222");
    second
        .commit(Durability::Durable)
        .expect("the first to end wins");
    assert_eq!(first.commit(Durability::Durable), Err(Error::Conflict));
    assert_eq!(
        db.get(&account(1)).expect("a get").as_deref(),
        Some(&b"22222222"[..])
    );

    // A key that a transaction has only read causes no conflict, unless it was read for update.
    let mut third = db.transaction();
    let mut fourth = db.transaction();
    third.get(&account(2)).expect("a get");
    third.put(&account(3), b"33333333");
    fourth.get_for_update(&account(2)).expect("a get");
    fourth.put(&account(4), b"44444444");
    db.put(&account(2), b"55555555").expect("a put");
    third.commit(Durability::Durable).expect("no conflict");
    assert_eq!(fourth.commit(Durability::Durable), Err(Error::Conflict));

    // The versions that decide about a conflict are not lost when the leaf is written back.
    let mut fifth = db.transaction();
    fifth.put(&account(6), b"66666666");
    db.delete(&account(6)).expect("a delete");
    db.write_back().expect("a write-back");
    assert_eq!(fifth.commit(Durability::Durable), Err(Error::Conflict));
}

#[test]
fn a_follower_is_as_durable_as_it_asked() {
    gate::followers(&|| {});
}

#[test]
fn of_two_transactions_in_one_group_one_wins() {
    gate::rivals(&|| {});
}

#[test]
fn writers_that_wait_share_one_flush() {
    let gate = Gate::default();
    let db = Db::create(gate.clone(), 3, &small()).expect("an index");
    db.put(b"first", b"prepares the log").expect("a put");
    let before = gate.disk.counts();
    gate.set(true);
    std::thread::scope(|scope| {
        let put = |number: u8| {
            let db = db.clone();
            scope.spawn(move || db.put(&[number], b"value").expect("a put"))
        };
        put(0);
        // The first put is the leader of a group and is delayed; the other puts queue behind it.
        for number in 1..8 {
            put(number);
        }
        while db.waiting() < 7 {
            std::thread::yield_now();
        }
        gate.set(false);
    });
    let counts = gate.disk.counts();
    assert_eq!(
        counts.flushes - before.flushes,
        2,
        "the first alone, then all others"
    );
    assert_eq!(counts.written_bytes - before.written_bytes, 2 * 4096);
    assert_eq!(db.get(&[7]).expect("a get").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_batch_of_a_group_is_committed_with_an_urgent_one() {
    let disk = Disk::default();
    let options = Options {
        // The wait is longer than the duration of any test, so only another batch can end it.
        group_wait_us: 600_000_000,
        ..small()
    };
    let db = Db::create(disk.clone(), 3, &options).expect("an index");
    db.put(b"first", b"prepares the log").expect("a put");
    let before = disk.counts().flushes;
    std::thread::scope(|scope| {
        let patient = |number: u8| {
            let db = db.clone();
            scope.spawn(move || {
                let mut batch = Batch::new();
                batch.put(&[number], b"patient");
                db.write(&batch, Durability::Group).expect("a write");
            });
        };
        (0..3).for_each(patient);
        while db.waiting() < 3 {
            std::thread::yield_now();
        }
        db.put(b"hurry", b"now").expect("a put");
    });
    assert_eq!(disk.counts().flushes - before, 1, "one flush for all four");
    assert_eq!(
        db.get(&[2]).expect("a get").as_deref(),
        Some(&b"patient"[..])
    );
}

#[test]
fn a_reader_does_not_wait_for_a_writer_that_waits_for_the_disk() {
    let gate = Gate::default();
    let db = Db::create(gate.clone(), 3, &small()).expect("an index");
    db.put(b"key", b"old").expect("a put");
    gate.set(true);
    std::thread::scope(|scope| {
        let writer = db.clone();
        let write = scope.spawn(move || writer.put(b"key", b"new").expect("a put"));
        assert_eq!(db.get(b"key").expect("a get").as_deref(), Some(&b"old"[..]));
        assert_eq!(sum_of_rows(&db), 1);
        gate.set(false);
        write.join().expect("the writer");
    });
    assert_eq!(db.get(b"key").expect("a get").as_deref(), Some(&b"new"[..]));
}

fn sum_of_rows(db: &Db) -> usize {
    let mut scan = db.scan((Bound::Unbounded, Bound::Unbounded));
    let mut rows = 0;
    while scan.next().expect("a row").is_some() {
        rows += 1;
    }
    rows
}

#[test]
fn a_snapshot_that_holds_back_too_much_ends() {
    let disk = Disk::default();
    let options = Options {
        snapshot_batches_max: 50,
        ..small()
    };
    let db = Db::create(disk, 3, &options).expect("an index");
    db.put(b"key", b"first").expect("a put");
    let snapshot = db.snapshot();
    for number in 0..40_u64 {
        db.put(b"key", &number.to_le_bytes()).expect("a put");
    }
    assert_eq!(
        snapshot.get(b"key").expect("a get").as_deref(),
        Some(&b"first"[..])
    );
    for number in 0..40_u64 {
        db.put(b"key", &number.to_le_bytes()).expect("a put");
    }
    assert_eq!(snapshot.get(b"key"), Err(Error::SnapshotTooOld));
    assert_eq!(db.statistics().snapshots.oldest_batches, 80);
}

#[test]
fn a_key_that_is_written_on_and_on_beside_a_snapshot_does_not_fill_the_leaf() {
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 3, &small()).expect("an index");
    db.put(b"other", b"value").expect("a put");
    let snapshot = db.snapshot();
    let mut batch = Batch::new();
    let mut between = Vec::new();
    for number in 0..100_000_u64 {
        batch.clear();
        batch.put(b"key", &number.to_le_bytes());
        db.write(&batch, Durability::Relaxed).expect("a write");
        if number % 10_000 == 0 {
            between.push((number, db.snapshot()));
        }
    }
    assert_eq!(
        db.get(b"key").expect("a get"),
        Some(99_999_u64.to_le_bytes().to_vec())
    );
    db.write_back().expect("a write-back");
    // Versions that no snapshot sees have been dropped; versions that a snapshot sees have not.
    assert!(
        db.statistics().space.live_bytes < 4096,
        "eleven rows are left"
    );
    assert_eq!(snapshot.get(b"key"), Ok(None));
    for (number, snapshot) in &between {
        let value = number.to_le_bytes().to_vec();
        assert_eq!(snapshot.get(b"key"), Ok(Some(value)));
    }
}

#[test]
fn many_short_rows_in_one_leaf_are_taken_up_after_a_stop() {
    let disk = Disk::default();
    let options = Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 48 << 20,
        log_bytes: 16 << 20,
        ..Options::default()
    };
    let db = Db::create(disk.clone(), 3, &options).expect("an index");
    let mut batch = Batch::new();
    for number in 0..150_000_u32 {
        batch.put(&number.to_be_bytes(), b"");
        if batch.len() == 1000 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
        }
    }
    db.sync().expect("a sync");
    drop(db);
    // All rows are in the log, and the checkpoint has at most one leaf.
    let db = Db::open(disk, &options).expect("it opens");
    assert_eq!(sum_of_rows(&db), 150_000);
}
