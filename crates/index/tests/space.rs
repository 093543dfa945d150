//! Tests of the storage space and the memory that operations on an index take.

use bimetal_index::storage::memory::{Faults, MemoryStorage};
use bimetal_index::storage::{Storage, StorageError};
use bimetal_index::{Batch, Db, Durability, Options};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const RECORDS: u64 = 40_000;

/// If the log is too short for the changes that memory could hold, leaves must be written early,
/// each with only a few changes. The space of their old images must still be cleaned in time.
#[test]
fn a_log_shorter_than_the_buffer_does_not_let_rubbish_pile_up() {
    let options = Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 16 << 20,
        log_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 4096,
        ..Options::default()
    };
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &options).expect("an index");
    let mut batch = Batch::new();
    let mut live_bytes = 0;
    for number in 0..RECORDS * 4 {
        // There are four times as many writes as records. The factor 7919 and the number of records
        // have no common divisor, so each record is written four times.
        let key = (number * 7919 % RECORDS).to_be_bytes();
        batch.put(&key, &[number as u8; 100]);
        if batch.len() == 500 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
            live_bytes = live_bytes.max(db.statistics().space.live_bytes);
        }
    }
    let statistics = db.statistics();
    assert!(
        statistics.maintenance.consolidations > 10_000,
        "{statistics:?}"
    );
    let space = statistics.space;
    // The storage grows only when 85 % of it is live, and it never shrinks, so the maximum of the
    // live bytes determines its size. The following 40 segments are added to that size: 16 segments
    // of the log; 8 segments that are being filled, emptied or cleaned, which are treated as in
    // use; 7 spare segments; 4 segments by which the storage grows; and a margin of 5 segments for
    // bytes that were live between two measurements.
    let segments_bytes = u64::from(space.segments) * u64::from(space.segment_bytes);
    let spare_bytes = 40 * u64::from(space.segment_bytes);
    let most = live_bytes * 100 / 85 + spare_bytes;
    assert!(
        segments_bytes <= most,
        "{segments_bytes} of {most}: {space:?}"
    );
}

/// A load that only writes must keep within the memory limit, although it touches every leaf again
/// before eviction has visited all nodes.
#[test]
fn a_load_that_reads_nothing_keeps_within_its_memory() {
    let options = Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 128 << 10,
        log_bytes: 8 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 1024,
        ..Options::default()
    };
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &options).expect("an index");
    let mut batch = Batch::new();
    let mut content_bytes = 0;
    for number in 0..RECORDS {
        let key = (number * 7919 % (RECORDS / 2)).to_be_bytes();
        batch.put(&key, &[number as u8; 100]);
        if batch.len() == 2000 {
            db.write(&batch, Durability::Relaxed).expect("a write");
            batch.clear();
            let statistics = db.statistics();
            // `memory_bytes` does not include images that are not on the storage yet, which take at
            // most four segments (see docs/index.md).
            let most = options.memory_bytes + 4 * u64::from(options.segment_bytes);
            let bytes = statistics.content_bytes + statistics.delta_bytes;
            assert!(bytes <= most, "{bytes} of {most} after {number} records");
            content_bytes = content_bytes.max(statistics.content_bytes);
        }
    }
    assert!(
        content_bytes > options.memory_bytes / 2,
        "memory is made use of: {content_bytes}"
    );
}

/// A storage that records the maximum memory of the index at every write.
#[derive(Default)]
struct MemoryGauge {
    storage: MemoryStorage,
    db: Mutex<Option<Db>>,
    most_bytes: AtomicU64,
}

impl MemoryGauge {
    /// Returns the maximum memory of the index at any write during `act`.
    fn most_bytes_while(&self, db: &Db, act: impl FnOnce(&Db)) -> u64 {
        self.most_bytes.store(0, Ordering::Relaxed);
        *self.db.lock().expect("no panic") = Some(db.clone());
        act(db);
        *self.db.lock().expect("no panic") = None;
        self.most_bytes.load(Ordering::Relaxed)
    }

    fn look(&self) {
        if let Some(db) = &*self.db.lock().expect("no panic") {
            self.most_bytes
                .fetch_max(db.memory_bytes(), Ordering::Relaxed);
        }
    }
}

impl Storage for MemoryGauge {
    fn len_bytes(&self) -> u64 {
        self.storage.len_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.storage.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.look();
        self.storage.write(offset, data)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.look();
        self.storage.write_durable(offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.storage.sync()
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.storage.resize(len_bytes)
    }
}

/// An operation that writes thousands of leaves evicts leaves as it proceeds, and not only when the
/// next batch is written.
#[test]
fn no_operation_takes_more_memory_than_there_is_for_all() {
    let options = Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 128 << 10,
        log_bytes: 8 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        ..Options::default()
    };
    let gauge = Arc::new(MemoryGauge::default());
    let storage: Arc<dyn Storage> = Arc::<MemoryGauge>::clone(&gauge);
    let db = Db::create(storage, 1, &options).expect("an index");
    let change_some = |db: &Db, first: u64| {
        let mut batch = Batch::new();
        for number in (first..RECORDS).step_by(10) {
            batch.put(&(number * 7919 % RECORDS).to_be_bytes(), &[7; 100]);
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
    };
    (0..10).for_each(|first| change_some(&db, first));
    // Images that are not on the storage yet, and the changes of one batch, are not included in the
    // memory limit.
    let batch_bytes = RECORDS / 10 * 120;
    let most = options.memory_bytes + 4 * u64::from(options.segment_bytes) + batch_bytes;
    type Operation = fn(&Db);
    let operations: [(&str, Operation); 4] = [
        ("write_back", |db| db.write_back().expect("written back")),
        ("checkpoint", |db| db.checkpoint().expect("a checkpoint")),
        ("compact", |db| db.compact(|_| {}).expect("compacted")),
        ("delete_range", |db| {
            let mut batch = Batch::new();
            batch.delete_range(&[], None);
            db.write(&batch, Durability::Relaxed).expect("a write");
            db.compact(|_| {}).expect("compacted");
        }),
    ];
    for (name, operation) in operations {
        change_some(&db, 3);
        let used = gauge.most_bytes_while(&db, operation);
        assert!(used <= most, "{name}: {used} of {most} bytes on the way");
        let used = db.memory_bytes();
        let most = options.memory_bytes;
        assert!(used <= most, "{name}: {used} of {most} bytes at the end");
    }
}

/// Returns a value that does not pack.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn well_packed() -> Options {
    Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 256 << 10,
        log_bytes: 16 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 4096,
        ..Options::default()
    }
}

/// Number of records, large enough that the reserved segments have little influence.
const SMALL_RECORDS: u64 = 400_000;

/// Loads records of 8 + 8 bytes, and then changes each record once, in random order.
///
/// # Errors
/// The error of the first batch that is refused.
fn change_all(db: &Db) -> Result<(), bimetal_index::Error> {
    let mut batch = Batch::new();
    for number in 0..SMALL_RECORDS * 2 {
        let key = (number * 7919 % SMALL_RECORDS).to_be_bytes();
        batch.put(&key, &spread(number).to_be_bytes());
        if batch.len() == 100 {
            db.write(&batch, Durability::Relaxed)?;
            batch.clear();
        }
    }
    Ok(())
}

/// Packing reduces the 16 bytes of a row to two bytes of the key and the whole value; some leaves
/// also have patches. The saved space is left in partly empty segments, which are then cleaned less
/// often. All segments together must not take more space than the rows would take unpacked.
#[test]
fn what_packing_saves_is_used_before_segments_are_cleaned() {
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &well_packed()).expect("an index");
    change_all(&db).expect("there is room");
    let space = db.statistics().space;
    let segment_bytes = u64::from(space.segment_bytes);
    let total = u64::from(space.segments - space.log_segments) * segment_bytes;
    let spare = 40 * segment_bytes;
    let unpacked = SMALL_RECORDS * 16;
    assert!(
        space.live_bytes * 100 < unpacked * 85,
        "it packs: {space:?}"
    );
    assert!(
        total <= unpacked + spare,
        "{total} of {unpacked}: {space:?}"
    );
    assert!(
        space.live_bytes * 100 < (total - spare / 4) * 80,
        "room is used: {space:?}"
    );
}

/// If the storage cannot grow, cleaning frees enough space, and no write that fits is refused.
#[test]
fn a_storage_of_fixed_length_is_cleaned_in_time() {
    let storage = MemoryStorage::new();
    // The storage has room for the log, and for 16 bytes for each record. These 16 bytes are a
    // tenth less than the segments would take for each record without this limit.
    storage.set_faults(Faults {
        len_bytes_max: Some((16 << 20) + SMALL_RECORDS * 16),
        ..Faults::default()
    });
    let db = Db::create(Arc::new(storage), 1, &well_packed()).expect("an index");
    change_all(&db).expect("everything fits");
}

/// Returns the maximum number of bytes of a compacted index with its log: 1.3 times the live bytes,
/// plus 4 MiB.
fn bound_bytes(db: &Db) -> u64 {
    db.statistics().space.live_bytes * 13 / 10 + (4 << 20)
}

fn put_all(db: &Db, keys: std::ops::Range<u64>, value_bytes: usize) {
    for first in keys.clone().step_by(1000) {
        let mut batch = Batch::new();
        for key in first..(first + 1000).min(keys.end) {
            // These values do not pack well.
            let number = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let value: Vec<u8> = (0..value_bytes as u64)
                .map(|at| (number.rotate_left(at as u32 * 7) >> 13) as u8)
                .collect();
            batch.put(&number.to_be_bytes(), &value);
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
    }
}

/// With the default options, a compacted index takes little more space than its content.
#[test]
fn an_index_that_was_compacted_takes_little_more_than_what_is_in_it() {
    let disk = Arc::new(MemoryStorage::new());
    let db = Db::create(disk.clone(), 1, &Options::default()).expect("an index");
    assert!(disk.len_bytes() <= 2 << 20, "empty: {}", disk.len_bytes());
    // The records have short values first. Then records with long values are added, and most
    // records are deleted.
    put_all(&db, 0..200_000, 16);
    db.compact(|_| {}).expect("a compaction");
    let (len_bytes, bound) = (disk.len_bytes(), bound_bytes(&db));
    assert!(len_bytes <= bound, "after a load: {len_bytes} of {bound}");
    put_all(&db, 1_000_000..1_020_000, 3000);
    db.write_back().expect("a write-back");
    db.compact(|_| {}).expect("a compaction");
    let (len_bytes, bound) = (disk.len_bytes(), bound_bytes(&db));
    assert!(
        len_bytes <= bound,
        "after another: {len_bytes} of {bound}: {:?}",
        db.statistics()
    );
    let mut batch = Batch::new();
    batch.delete_range(&[16], None);
    db.write(&batch, Durability::Durable).expect("a write");
    for _ in 0..2 {
        let before = disk.len_bytes();
        db.compact(|_| {}).expect("a compaction");
        let (len_bytes, bound) = (disk.len_bytes(), bound_bytes(&db));
        assert!(len_bytes <= before, "{before} before, {len_bytes} after");
        assert!(len_bytes <= bound, "after deleting: {len_bytes} of {bound}");
    }
    assert_eq!(db.log_ranges().len(), 1, "the log is at the front again");
    drop(db);
    let db = Db::open(disk, &Options::default()).expect("it opens");
    let mut rows = db.scan((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded));
    let mut count = 0;
    while rows.next().expect("a row").is_some() {
        count += 1;
    }
    // About a sixteenth of the 220,000 keys remains.
    assert!((13_000..14_500).contains(&count), "{count}");
}

/// Other threads wait for at most one step of a compaction. So no step is allowed to do all of the
/// remaining work, however many changes other threads make between two steps.
#[test]
fn no_step_of_a_compaction_does_all_that_is_left() {
    let options = Options {
        memory_bytes: 64 << 20,
        buffer_bytes: 16 << 20,
        log_bytes: 4 << 20,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        ..Options::default()
    };
    let db = Db::create(Arc::new(MemoryStorage::new()), 1, &options).expect("an index");
    let change_some = |first: u64, count: u64, value: u8| {
        let mut batch = Batch::new();
        for number in first..first + count {
            batch.put(&(number * 7919 % RECORDS).to_be_bytes(), &[value; 100]);
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
    };
    (0..RECORDS / 1000).for_each(|number| change_some(number * 1000, 1000, 0));
    db.write_back().expect("a write-back");
    let nodes = db.statistics().nodes;
    assert!(nodes > 5000, "{nodes} nodes");
    let written = || {
        let maintenance = db.statistics().maintenance;
        maintenance.consolidations + maintenance.patches + maintenance.relogged
    };
    // These changes make the log wrap around, so that no needed change is at its beginning.
    (0..RECORDS / 1000 * 2).for_each(|number| change_some(number * 1000, 1000, 1));
    let mut compaction = db.compaction();
    let (mut steps, mut most, mut all) = (0, 0, 0);
    loop {
        // These changes are more than a step of the compaction writes.
        change_some(steps * 1000, 1000, steps as u8);
        let before = written();
        let is_going_on = compaction.step().expect("a step");
        let in_step = written() - before;
        (steps, most, all) = (steps + 1, most.max(in_step), all + in_step);
        if !is_going_on {
            break;
        }
    }
    // A step of a compaction ends with the 256th leaf. In addition, the step can write a frame of
    // the log with up to 60 KiB of relogged leaves. Each relogged leaf takes at least one record of
    // 108 bytes. The maximum number of leaves in a step is the sum of both.
    let most_may_be = 256 + (60 << 10) / 108;
    assert!(
        most <= most_may_be,
        "{most} leaves were written in one step, {most_may_be} may be"
    );
    assert!(all > u64::from(nodes), "{all} leaves were written in all");
}

/// Number of writes beside a compaction.
const WRITES_BESIDE_MAX: u64 = 20_000;

/// A compaction ends while other threads write and read, and does not lose their changes.
#[test]
fn a_compaction_beside_others_ends_and_shortens_the_storage() {
    let disk = Arc::new(MemoryStorage::new());
    let db = Db::create(disk.clone(), 1, &Options::default()).expect("an index");
    put_all(&db, 0..300_000, 100);
    let mut batch = Batch::new();
    batch.delete_range(&[32], None);
    db.write(&batch, Durability::Durable).expect("a write");
    db.write_back().expect("a write-back");
    let before = disk.len_bytes();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0_u64;
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) || written < 100 {
                // However long the compaction takes, the writes must not take as much space as it
                // frees.
                let number = written.min(WRITES_BESIDE_MAX - 1);
                let key = [&[0xFF][..], &number.to_be_bytes()].concat();
                if number == written {
                    db.put(&key, &number.to_le_bytes()).expect("a put");
                    written += 1;
                }
                assert_eq!(
                    db.get(&key).expect("a get").as_deref(),
                    Some(&number.to_le_bytes()[..])
                );
            }
            written
        });
        db.compact(|_| {}).expect("a compaction");
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        let written = writer.join().expect("the writer");
        for key in [0, written / 2, written - 1] {
            let key_bytes = [&[0xFF][..], &key.to_be_bytes()].concat();
            let found = db.get(&key_bytes).expect("a get");
            assert_eq!(found.as_deref(), Some(&key.to_le_bytes()[..]));
        }
    });
    assert!(
        disk.len_bytes() < before / 2,
        "{before}, {}",
        disk.len_bytes()
    );
}
