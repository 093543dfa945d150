//! Tests of the cost of opening an index after a stop, counted in bytes and calls and not in time.

use crate::world::cached::Cached;
use bimetal_index::storage::memory::{Faults, MemoryStorage, StorageCounters};
use bimetal_index::{Batch, Db, Durability, Options};
use std::sync::Arc;

/// Number of keys, large enough that reading all leaves would be noticed, and that many leaves have
/// changes.
const KEYS: u64 = 60_000;
/// Number of bytes after the end of the log that an opening searches for proof that frames were
/// lost.
const PROOF_BYTES: u64 = 2048 * 4096;

fn options() -> Options {
    Options {
        memory_bytes: 16 << 20,
        buffer_bytes: 1 << 20,
        log_bytes: 4 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 1024,
        ..Options::default()
    }
}

fn put(db: &Db, numbers: impl Iterator<Item = u64>, durability: Durability) {
    let mut batch = Batch::new();
    for number in numbers {
        batch.put(&number.to_be_bytes(), &(!number).to_be_bytes());
        if batch.len() == 100 {
            db.write(&batch, durability).expect("a write");
            batch.clear();
        }
    }
    db.write(&batch, durability).expect("a write");
}

/// Makes an index in which all changes are in nodes.
fn loaded() -> Arc<MemoryStorage> {
    let disk = Arc::new(MemoryStorage::new());
    let db = Db::create(disk.clone(), 5, &options()).expect("an index");
    put(&db, 0..KEYS, Durability::Relaxed);
    db.write_back().expect("a write-back");
    disk
}

/// Opens a copy of the disk as a killed process would leave it. Returns the index and the cost of
/// opening it.
fn reopened(disk: &Arc<MemoryStorage>, options: &Options) -> (Db, StorageCounters) {
    let disk = Arc::new(MemoryStorage::with_content(disk.content()));
    let db = Db::open(disk.clone(), options).expect("it opens");
    (db, disk.counts())
}

/// Makes an index in which a program has changed every other key and was then killed.
fn half_changed() -> Arc<MemoryStorage> {
    let disk = loaded();
    let db = Db::open(disk.clone(), &options()).expect("it opens");
    put(&db, (0..KEYS).step_by(2), Durability::Relaxed);
    db.sync().expect("a sync");
    std::mem::forget(db);
    disk
}

#[test]
fn opening_reads_the_log_the_checkpoint_and_no_leaf_and_writes_a_superblock() {
    let disk = loaded();
    let db = Db::open(disk.clone(), &options()).expect("it opens");
    // Every leaf gets changes, and some leaves have not been written back.
    put(&db, (0..KEYS).step_by(3), Durability::Durable);
    let statistics = db.statistics();
    assert!(statistics.delta_bytes > 900 << 10, "{statistics:?}");
    std::mem::forget(db);
    let (db, counts) = reopened(&disk, &options());
    let again = db.statistics();
    assert!(again.delta_bytes > 600 << 10, "{again:?}");
    assert_eq!(
        (again.maintenance.consolidations, again.maintenance.patches),
        (0, 0)
    );
    // The last frame, of one block, is not known to be durable, so the opening writes it again. A
    // block of zeroes after the frame ends the log. The superblock that was read is not known to be
    // durable either, so it is written again before the next one.
    let blocks = counts.written_bytes / 4096;
    assert_eq!(blocks, 4, "a frame, the end of the log and two superblocks");
    assert_eq!(counts.flushes, 4, "the log, its end, then the superblocks");
    // An inner node has at least a hundred children. The opening reads several inner nodes with
    // each read.
    let inner_nodes = u64::from(statistics.nodes) / 100;
    let (window, segment) = (4 << 20, 64 << 10);
    let checkpoint_bytes = u64::from(statistics.nodes) * 8 + (64 << 10);
    let rings = db.log_ranges().len() as u64;
    let log_reads = again.log_used_bytes / window + 2 * rings + PROOF_BYTES / window;
    let reads_max = 1 + checkpoint_bytes / segment + log_reads + inner_nodes / 4 + 4;
    assert!(counts.reads <= reads_max, "{} of {reads_max}", counts.reads);
    let bytes_max = 8192 + checkpoint_bytes + log_reads * window + inner_nodes * 16384;
    let bytes = counts.read_bytes;
    assert!(bytes <= bytes_max, "{bytes} of {bytes_max}");
    assert!(
        u64::from(statistics.nodes) > 4 * inner_nodes + 200,
        "leaves"
    );
}

/// Work that the opening has deferred is done by later writes, a little with each group commit.
#[test]
fn changes_beyond_the_buffer_are_written_back_by_the_groups_that_follow() {
    let disk = half_changed();
    let little = Options {
        buffer_bytes: 64 << 10,
        ..options()
    };
    let (db, _) = reopened(&disk, &little);
    let first = db.statistics().delta_bytes;
    assert!(first > 512 << 10, "{first} bytes");
    let mut before = first;
    // A group commit writes back one or two leaves and cleans a part of a segment. If the images in
    // this part are only moved, the part has 64 KiB. If its leaves are merged with their changes
    // and written, it has 16 KiB: 16 leaves of 1 KiB, and one more leaf that is begun before the
    // limit is reached. So a group commit writes at most 19 leaves with changes. A leaf has a
    // hundred rows of ten bytes, and half of the rows have changed; the bound allows 60 changes. A
    // change takes 36 bytes of memory, and each leaf with changes takes another 120 bytes.
    let step_max = 19 * (120 + 36 * 60);
    // Each group commit must reduce the memory for changes by at least 256 bytes on average, until
    // the changes fit into the buffer of 64 KiB.
    for number in 0..first / 256 {
        db.put(&u64::from(number as u32).to_be_bytes(), b"new")
            .expect("a put");
        let now = db.statistics().delta_bytes;
        let allowed = first.saturating_sub((number + 1) * 256).max(64 << 10);
        assert!(now <= allowed, "{now} of {allowed}");
        assert!(before - now.min(before) < step_max, "{now} after {before}");
        before = now;
    }
    assert!(before <= 64 << 10, "{before} bytes");
}

/// Memory stays within its bound even while a log is replayed that has more changes than fit into
/// memory.
#[test]
fn a_replay_keeps_to_the_memory() {
    let disk = half_changed();
    let little = Options {
        memory_bytes: 512 << 10,
        buffer_bytes: 64 << 10,
        ..options()
    };
    let (db, _) = reopened(&disk, &little);
    let statistics = db.statistics();
    assert!(statistics.delta_bytes <= 384 << 10, "{statistics:?}");
    assert!(statistics.maintenance.consolidations + statistics.maintenance.patches > 0);
    for number in (0..KEYS).step_by(977) {
        let value = db.get(&number.to_be_bytes()).expect("a get");
        assert_eq!(value.as_deref(), Some(&(!number).to_be_bytes()[..]));
    }
}

/// Batches that an opening finds in the log of a killed process might not be durable yet. The index
/// treats them as durable after the opening, so the opening must make them durable.
#[test]
fn what_a_killed_process_left_in_the_log_is_made_durable_by_opening() {
    let disk = Arc::new(MemoryStorage::new());
    // With segments of this length, the initial log has room for several long frames. It has to
    // grow only after them.
    let options = Options {
        segment_bytes: 1 << 20,
        ..options()
    };
    let db = Db::create(disk.clone(), 5, &options).expect("an index");
    db.put(b"first", b"durable").expect("a put");
    // Only one key is written, so that its leaf stays small and is not written back. A write-back
    // would make the log durable.
    let flushes = disk.counts().flushes;
    for number in 0..600_u64 {
        let mut batch = Batch::new();
        batch.put(b"key", &number.to_be_bytes().repeat(125));
        db.write(&batch, Durability::Relaxed).expect("a write");
    }
    assert_eq!(disk.counts().flushes, flushes, "nothing was made durable");
    db.abandon();
    let db = Db::open(disk.clone(), &options).expect("it opens");
    let found = db
        .get(b"key")
        .expect("a get")
        .expect("frames that were full");
    db.put(b"second", b"durable").expect("a put");
    drop(db);
    let after = disk.after_power_cut(&mut || 0);
    let db = Db::open(after, &options).expect("nothing durable is lost");
    assert!(db.get(b"second").expect("a get").is_some());
    assert_eq!(db.get(b"key").expect("a get"), Some(found));
}

/// A batch that is too long for the ring of the log moves the log to a longer ring, even if no part
/// of the log is needed, as right after a checkpoint. The next opening must find the log in the
/// longer ring.
#[test]
fn a_log_that_goes_on_elsewhere_while_nothing_of_it_is_needed_is_found() {
    let options = Options {
        log_bytes: 64 << 20,
        ..options()
    };
    for batches in 0..4_u64 {
        let disk = Arc::new(MemoryStorage::new());
        let db = Db::create(disk.clone(), 5, &options).expect("an index");
        put(&db, 0..batches * 100, Durability::Durable);
        db.write_back().expect("a write-back");
        let rings = db.log_ranges();
        let long = vec![7; 3 << 20];
        db.put(b"long", &long)
            .expect("an eighth of the log is more");
        assert_ne!(
            db.log_ranges(),
            rings,
            "the first ring is shorter than that"
        );
        put(&db, 1000..1000 + batches, Durability::Durable);
        db.abandon();
        let db = Db::open(disk.clone(), &options).expect("a program that was killed left it so");
        assert_eq!(db.get(b"long").expect("a get"), Some(long));
        let found = db.get(&0_u64.to_be_bytes()).expect("a get");
        assert_eq!(found.is_some(), batches > 0);
    }
}

/// Number of keys of a round.
const ROUND_KEYS: u64 = 12_000;
const ROUNDS: u64 = 3;

/// Returns options under which all changes of all `ROUNDS` rounds of writes fit into memory and
/// into the log.
fn roomy() -> Options {
    Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 48 << 20,
        log_bytes: 32 << 20,
        node_bytes: 4096,
        ..options()
    }
}

/// Returns options with much less memory than the changes take, so that leaves are written back
/// during a replay.
fn short_of_memory() -> Options {
    Options {
        memory_bytes: 512 << 10,
        buffer_bytes: 64 << 10,
        ..roomy()
    }
}

/// Returns the keys in the order in which a round writes them, a hundred in each batch.
fn round_keys() -> impl Iterator<Item = u64> {
    // The factor and the number of keys have no common divisor, so each key occurs once.
    (0..ROUND_KEYS).map(|number| number * 7919 % ROUND_KEYS)
}

/// Gives every key another value.
fn write_round(db: &Db, round: u64) {
    let mut batch = Batch::new();
    for key in round_keys() {
        batch.put(&key.to_be_bytes(), &unpackable(key, round));
        if batch.len() == 100 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
        }
    }
}

/// A checkpoint can be taken and completed during a replay. It frees rings of the log that have
/// been read completely, but no ring with an unread part: after a power cut at any time of the
/// opening, the next opening finds all changes.
#[test]
fn a_checkpoint_during_a_replay_gives_back_only_what_was_read() {
    const CUTS: u64 = 8;
    let disk = Arc::new(MemoryStorage::new());
    let db = Db::create(disk.clone(), 5, &roomy()).expect("an index");
    write_round(&db, 0);
    db.write_back().expect("a write-back");
    (1..=ROUNDS).for_each(|round| write_round(&db, round));
    db.sync().expect("a sync");
    let rings = db.log_ranges().len();
    assert_eq!(rings, 3, "it has grown twice");
    db.abandon();
    let little = short_of_memory();
    let assert_all_there = |db: &Db| {
        for key in (0..ROUND_KEYS).step_by(7) {
            let found = db.get(&key.to_be_bytes()).expect("a get");
            assert_eq!(found, Some(unpackable(key, ROUNDS).to_vec()), "{key}");
        }
    };
    let (db, counts) = reopened(&disk, &little);
    let statistics = db.statistics();
    assert!(statistics.maintenance.checkpoints > 0, "{statistics:?}");
    assert!(db.log_ranges().len() < rings, "some rings were given back");
    assert_all_there(&db);
    for cut in 1..=CUTS {
        let disk = Arc::new(MemoryStorage::with_content(disk.content()));
        disk.set_faults(Faults {
            power_cut_at: Some(counts.operations * cut / (CUTS + 1)),
            ..Faults::default()
        });
        assert!(Db::open(disk.clone(), &little).is_err(), "cut {cut}");
        let after = disk.after_power_cut(&mut || 0);
        assert_all_there(&Db::open(after, &little).expect("nothing durable is lost"));
    }
}

/// A sync has failed, so pages of the page cache are marked clean although their data is not on the
/// disk. Another program then opens the index with little memory, so that it writes leaves and
/// checkpoints while it replays the log. After a power cut at any time during this opening, the
/// index must have the content that it had after some whole number of batches.
#[test]
fn nothing_of_the_cache_is_believed_while_a_log_is_taken_up() {
    const CUTS: u64 = 24;
    let storage = Cached::default();
    let db = Db::create(storage.clone(), 5, &roomy()).expect("an index");
    write_round(&db, 0);
    db.write_back().expect("a write-back");
    (1..=ROUNDS).for_each(|round| write_round(&db, round));
    storage.fail_sync();
    assert!(db.sync().is_err(), "the device has said so");
    db.abandon();
    let whole = storage.copied();
    let before = whole.calls();
    let db = Db::open(whole.clone(), &short_of_memory()).expect("it opens");
    let calls = whole.calls() - before;
    assert!(
        db.statistics().maintenance.checkpoints > 0,
        "{:?}",
        db.statistics()
    );
    assert_eq!(batches_there(&db), (ROUNDS + 1) * ROUND_KEYS / 100);
    db.abandon();
    for cut in 1..=CUTS {
        let storage = storage.copied();
        storage.cut_power_after(calls * cut / (CUTS + 1));
        let opened = Db::open(storage.clone(), &short_of_memory());
        assert!(opened.is_err(), "cut {cut}");
        let after = MemoryStorage::with_content(storage.disk.content());
        let found = Db::open(after, &roomy());
        let found = found.unwrap_or_else(|error| panic!("cut {cut}: {error}"));
        assert!(batches_there(&found) >= ROUND_KEYS / 100, "cut {cut}");
    }
}

/// Returns how many batches the index contains, counted over all rounds. These must be the first
/// batches, and none may be there in part.
fn batches_there(db: &Db) -> u64 {
    let round_of = |key: u64| {
        let found = db.get(&key.to_be_bytes()).expect("a get");
        let found = found.expect("a key of the first round");
        let is_of = |round: &u64| found == unpackable(key, *round);
        (0..=ROUNDS).find(is_of).expect("a value of a round")
    };
    let rounds: Vec<u64> = round_keys().map(round_of).collect();
    let last = rounds[0];
    let of_last = rounds.iter().take_while(|round| **round == last).count() as u64;
    let are_before = rounds[of_last as usize..]
        .iter()
        .all(|round| round + 1 == last);
    assert!(
        are_before && of_last.is_multiple_of(100),
        "no batch is there in part"
    );
    last * ROUND_KEYS / 100 + of_last / 100
}

/// Returns a value that does not pack.
fn unpackable(key: u64, round: u64) -> [u8; 96] {
    let number = (key * 4 + round + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    std::array::from_fn(|at| (number.rotate_left(at as u32 * 7) >> 13) as u8)
}
