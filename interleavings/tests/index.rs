//! Tests of several threads that use one index. At every lock, every atomic and every call of the
//! disk, the scheduler can switch to another thread. Every interleaving that is tried must keep the
//! promises of docs/index.md.
//!
//! `BIMETAL_INTERLEAVINGS` is the number of interleavings that each of two schedulers tries; the
//! default is 20 to 200, depending on the test. A failure prints the input that repeats the
//! interleaving (`shuttle::replay`).

use bimetal_index::model::Draw;
use bimetal_index::planted::{Bug, plant};
use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::storage::{Storage, StorageError};
use bimetal_index::{Batch, Clusters, Db, Durability, Error, Options, PaperRules};
use shuttle::rand::Rng as _;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread::ThreadId;
use shuttle::{Config, Runner, thread};
use std::ops::Bound;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A disk that lets other threads run during each call.
#[derive(Clone, Default)]
struct Disk(Arc<MemoryStorage>);

impl Disk {
    fn then<T>(&self, answer: T) -> T {
        thread::yield_now();
        answer
    }
}

impl Storage for Disk {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        thread::yield_now();
        self.then(self.0.read(offset, buffer))
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        thread::yield_now();
        self.then(self.0.write(offset, data))
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        thread::yield_now();
        self.then(self.0.write_durable(offset, data))
    }
    fn sync(&self) -> Result<(), StorageError> {
        thread::yield_now();
        self.then(self.0.sync())
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.then(self.0.resize(len_bytes))
    }
}

/// A disk with slow changes and slow reads. A change takes several turns of the other threads. A
/// read by any thread except the writer waits, before or after the bytes are read, until the writer
/// has begun some more changes: a random number of them, up to
/// [`CHANGES_MAX`](SlowDisk::CHANGES_MAX). The writer never waits for a thread.
#[derive(Clone)]
struct SlowDisk {
    disk: Disk,
    writer: ThreadId,
    changes: Arc<(shuttle::sync::Mutex<Changes>, shuttle::sync::Condvar)>,
}

/// Changes of a disk.
#[derive(Default)]
struct Changes {
    begun: u64,
    /// True if no more changes will follow, so that a read does not wait for them.
    have_ended: bool,
}

impl SlowDisk {
    const CHANGES_MAX: u64 = 24;
    /// Number of turns of other threads between the start of a change and its completion.
    const TURNS: usize = 8;

    /// Creates a disk whose writer is the current thread.
    fn new() -> SlowDisk {
        SlowDisk {
            disk: Disk::default(),
            writer: thread::current().id(),
            changes: Arc::default(),
        }
    }

    /// Notes that the writer makes no more changes.
    fn end(&self) {
        self.note(|changes| changes.have_ended = true);
    }

    fn note(&self, note: impl FnOnce(&mut Changes)) {
        let (changes, noted) = &*self.changes;
        note(&mut changes.lock().expect("nobody panics with it"));
        noted.notify_all();
    }

    /// Begins a change; no part of it is stored yet.
    fn begin(&self) {
        self.note(|changes| changes.begun += 1);
        (0..SlowDisk::TURNS).for_each(|_| thread::yield_now());
    }

    fn wait_for_changes(&self) {
        let count = shuttle::rand::thread_rng().gen_range(0..=SlowDisk::CHANGES_MAX);
        let (changes, noted) = &*self.changes;
        let mut changes = changes.lock().expect("nobody panics with it");
        let end = changes.begun + count;
        while changes.begun < end && !changes.have_ended {
            changes = noted.wait(changes).expect("nobody panics with it");
        }
    }
}

impl Storage for SlowDisk {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        if thread::current().id() == self.writer {
            return self.disk.read(offset, buffer);
        }
        // A read may return the content that the disk has at any moment between the start and the
        // end of the read. So the disk is read either before or after the wait for changes.
        let is_early = shuttle::rand::thread_rng().gen_bool(0.5);
        if !is_early {
            self.wait_for_changes();
        }
        self.disk.read(offset, buffer)?;
        if is_early {
            self.wait_for_changes();
        }
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.begin();
        self.disk.write(offset, data)
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.begin();
        self.disk.write_durable(offset, data)
    }
    fn sync(&self) -> Result<(), StorageError> {
        self.begin();
        self.disk.sync()
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.disk.resize(len_bytes)
    }
}

fn small() -> Options {
    Options {
        memory_bytes: 256 << 10,
        buffer_bytes: 4 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 100,
        ..Options::default()
    }
}

/// Options under the paper's rules: nothing stays in memory, so every lookup reads from the
/// storage.
fn forgetful() -> Options {
    Options {
        paper: Some(PaperRules {
            clusters: Clusters::HotAndCold {
                hot_segments: 4,
                cold_segments: 4,
            },
            fill: 0.97,
        }),
        ..small()
    }
}

fn interleavings(usual: usize) -> usize {
    let wanted = std::env::var("BIMETAL_INTERLEAVINGS").ok();
    wanted
        .and_then(|wanted| wanted.parse().ok())
        .unwrap_or(usual)
}

/// Runs a test in interleavings of two kinds: random interleavings, and interleavings with only a
/// few thread switches, far apart from each other. Interleavings of the second kind find most bugs.
fn in_any_order(usual: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    let _alone = alone();
    run(interleavings(usual), test);
}

/// Keeps other tests from running at the same time, because a planted bug affects the whole
/// process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(times: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 20;
    config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
    let random = RandomScheduler::new_from_seed(7, times);
    Runner::new(random, config.clone()).run(test.clone());
    let few_changes = PctScheduler::new_from_seed(11, 3, times);
    Runner::new(few_changes, config).run(test);
}

fn new_index(options: &Options) -> (Disk, Db) {
    let disk = Disk::default();
    let db = Db::create(disk.clone(), 3, options).expect("an index");
    (disk, db)
}

fn number(value: Option<Vec<u8>>) -> u64 {
    let value = value.expect("a key that is always there");
    u64::from_le_bytes(value.try_into().expect("a number"))
}

/// After a power cut, every acknowledged batch that had to be durable is present, and so are all
/// batches before it.
fn answers_are_durable() {
    let (disk, db) = new_index(&small());
    let durabilities = [Durability::Durable, Durability::Group, Durability::Relaxed];
    let writers = durabilities.map(|durability| {
        let db = db.clone();
        thread::spawn(move || {
            for turn in 0..2_u8 {
                let mut batch = Batch::new();
                batch.put(&[durability as u8, turn], &[turn]);
                db.write(&batch, durability).expect("a write");
            }
        })
    });
    for writer in writers {
        writer.join().expect("a writer");
    }
    let after = disk.0.after_power_cut(&mut || 0);
    let after = Db::open(after, &small()).expect("it opens");
    for durability in [Durability::Durable, Durability::Group] {
        for turn in 0..2 {
            let found = after.get(&[durability as u8, turn]);
            assert_eq!(found, Ok(Some(vec![turn])), "{durability:?} {turn}");
        }
    }
}

/// Several threads increment a number: no increment is lost, and a thread that loses the race gets
/// an error.
fn updates_are_kept() {
    let (_, db) = new_index(&small());
    db.put(b"sum", &0_u64.to_le_bytes()).expect("a put");
    let add = |db: &Db| {
        let mut transaction = db.transaction();
        let sum = number(transaction.get_for_update(b"sum").expect("a get"));
        transaction.put(b"sum", &(sum + 1).to_le_bytes());
        match transaction.commit(Durability::Durable) {
            Ok(()) => 1,
            Err(Error::Conflict) => 0,
            Err(error) => panic!("{error}"),
        }
    };
    let adders: Vec<_> = (0..4)
        .map(|_| {
            let db = db.clone();
            thread::spawn(move || add(&db) + add(&db))
        })
        .collect();
    let added: u64 = adders
        .into_iter()
        .map(|adder| adder.join().expect("an adder"))
        .sum();
    assert!(added > 0, "the first to end wins");
    assert_eq!(number(db.get(b"sum").expect("a get")), added);
}

/// Number of keys, enough for several leaves.
const KEYS: u8 = 40;

fn all_alike(db: &Db) -> u64 {
    let mut scan = db.scan((Bound::Unbounded, Bound::Unbounded));
    let mut values = Vec::new();
    while let Some((_, value)) = scan.next().expect("a row") {
        values.push(number(Some(value[..8].to_vec())));
    }
    assert_eq!(values.len(), usize::from(KEYS));
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
    values[0]
}

fn write_all(db: &Db, round: u64) {
    let mut batch = Batch::new();
    // Values have several lengths, so that leaves are split and merged; some are long enough to be
    // stored out of line.
    let len = [8, 90, 20, 150][round as usize % 4];
    for key in 0..KEYS {
        let mut value = round.to_le_bytes().to_vec();
        value.resize(len, key);
        batch.put(&[key], &value);
    }
    db.write(&batch, Durability::Durable).expect("a write");
}

/// A batch writes all keys. Readers see the whole of one batch, and never an older batch than
/// before, while leaves are written back, split and merged, and images are moved.
fn batches_are_whole(options: fn() -> Options) {
    let (_, db) = new_index(&options());
    write_all(&db, 0);
    db.write_back().expect("a write-back");
    let writer = db.clone();
    let writer = thread::spawn(move || {
        for round in 1..6 {
            write_all(&writer, round);
            writer.write_back().expect("a write-back");
        }
        writer.compact(|_| {}).expect("a compaction");
    });
    let scanner = db.clone();
    let scanner = thread::spawn(move || {
        let mut last = 0;
        for _ in 0..3 {
            // If the options keep nothing in memory, the end of this get evicts everything that can
            // be read again.
            assert_eq!(scanner.get(&[KEYS]), Ok(None));
            let seen = all_alike(&scanner);
            assert!(seen >= last, "time goes on");
            last = seen;
        }
    });
    let snapshot = db.snapshot();
    let first = number(snapshot.get(&[0]).expect("a get").map(|v| v[..8].to_vec()));
    for key in [KEYS - 1, KEYS / 2] {
        thread::yield_now();
        let seen = snapshot
            .get(&[key])
            .expect("a get")
            .map(|v| v[..8].to_vec());
        assert_eq!(number(seen), first, "a snapshot is of one moment");
        let now = db.get(&[key]).expect("a get").map(|v| v[..8].to_vec());
        assert!(number(now) >= first, "what was seen stays");
    }
    drop(snapshot);
    writer.join().expect("the writer");
    scanner.join().expect("the scanner");
    assert_eq!(all_alike(&db), 5);
}

/// A value of two parts is rewritten again and again, and the ids of freed parts are reused for new
/// parts. A reader knows the parts of the value and is still reading the first part. Meanwhile the
/// id of the second part is reused for a part of a newer value, or the location of the first part
/// is reused for another part. The reader must find a newer value, and must not report damage.
fn long_values_are_found() {
    // A part of a value has at most 32 KiB, so this value has two parts. A batch has at most an
    // eighth of the log, so a log of 1 MiB has room for a batch with this value.
    const VALUE_BYTES: usize = 40_000;
    const ROUNDS: u8 = 6;
    let options = Options {
        log_bytes: 1 << 20,
        ..small()
    };
    let disk = SlowDisk::new();
    let db = Db::create(disk.clone(), 3, &options).expect("an index");
    let write = |round: u8| {
        let mut batch = Batch::new();
        batch.put(b"long", &[round; VALUE_BYTES]);
        db.write(&batch, Durability::Relaxed).expect("a write");
        db.write_back().expect("a write-back");
    };
    write(0);
    let readers = [(); 2].map(|()| {
        let db = db.clone();
        thread::spawn(move || {
            let mut last = 0;
            for _ in 0..2 {
                let value = db.get(b"long").expect("it can be read");
                let value = value.expect("it is there");
                assert!(value[0] >= last, "time goes on");
                assert_eq!(value, [value[0]; VALUE_BYTES]);
                last = value[0];
            }
        })
    });
    (1..ROUNDS).for_each(write);
    disk.end();
    for reader in readers {
        reader.join().expect("a reader");
    }
}

/// Returns bytes that do not pack, the same for the same seed.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut draw = Draw::new(seed.into());
    (0..len).map(|_| draw.number() as u8).collect()
}

/// A key keeps its value while its neighbours are rewritten and the index is compacted, again and
/// again. So the leaf of the key is moved, also back to an earlier location in a later generation
/// of the segment. A slow reader must find the key, and no damage.
fn leaves_are_found() {
    const ROUNDS: u32 = 6;
    let disk = SlowDisk::new();
    let db = Db::create(disk.clone(), 3, &forgetful()).expect("an index");
    let write = |round: u32| {
        let mut batch = Batch::new();
        for key in 0..KEYS {
            let value = noise(round << 8 | u32::from(key), 60);
            batch.put(&[1, key], &value);
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
        db.compact(|_| {}).expect("a compaction");
    };
    db.put(&[0], b"stays").expect("a put");
    write(0);
    let readers = [(); 2].map(|()| {
        let db = db.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                let value = db.get(&[0]).expect("it can be read");
                assert_eq!(value.as_deref(), Some(&b"stays"[..]));
            }
        })
    });
    (1..ROUNDS).for_each(write);
    disk.end();
    for reader in readers {
        reader.join().expect("a reader");
    }
}

/// Number of keys. The keys fill too many leaves for a deletion of all keys to be applied to the
/// leaves immediately.
const MANY_KEYS: u16 = 300;

/// A range of many leaves is deleted and rewritten while leaves apply the deletion: a reader sees
/// all keys or none.
fn ranges_go_at_once() {
    let (_, db) = new_index(&small());
    let write = |db: &Db, round: u8| {
        let mut batch = Batch::new();
        // The range deletion deletes the key that the batch puts before it, not the keys that the
        // batch puts after it.
        batch.put(&5_u16.to_be_bytes(), b"never seen");
        batch.delete_range(&[], None);
        if round.is_multiple_of(2) {
            for key in 0..MANY_KEYS {
                let value: Vec<u8> = (0..40)
                    .map(|at| (key * 31 + at * 7) as u8 ^ round)
                    .collect();
                batch.put(&key.to_be_bytes(), &value);
            }
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
    };
    write(&db, 0);
    db.write_back().expect("a write-back");
    let writer = db.clone();
    let writer = thread::spawn(move || {
        for round in 1..4 {
            write(&writer, round);
            // Each commit makes some leaves apply the deletion.
            writer
                .put(&MANY_KEYS.to_be_bytes(), &[round])
                .expect("a put");
        }
    });
    let readers = [(); 2].map(|()| {
        let db = db.clone();
        thread::spawn(move || {
            let end = MANY_KEYS.to_be_bytes();
            let mut scan = db.scan((Bound::Unbounded, Bound::Excluded(&end)));
            let mut first_bytes = Vec::new();
            while let Some((key, value)) = scan.next().expect("a row") {
                assert_ne!(value, b"never seen");
                let key = u16::from_be_bytes(key.try_into().expect("a number"));
                first_bytes.push(value[0] ^ (key * 31) as u8);
            }
            assert!(
                first_bytes.is_empty() || first_bytes.len() == usize::from(MANY_KEYS),
                "{} keys",
                first_bytes.len()
            );
            assert!(first_bytes.iter().all(|round| *round == first_bytes[0]));
            let snapshot = db.snapshot();
            let found = [7, MANY_KEYS - 7].map(|key: u16| {
                let found = snapshot.get(&key.to_be_bytes()).expect("a get");
                found.map(|value| value[0] ^ (key * 31) as u8)
            });
            assert_eq!(found[0], found[1], "a snapshot is of one moment");
        })
    });
    writer.join().expect("the writer");
    for reader in readers {
        reader.join().expect("a reader");
    }
}

#[test]
fn a_range_of_many_leaves_goes_at_once() {
    in_any_order(20, ranges_go_at_once);
}

#[test]
fn long_values_are_found_while_they_are_written_anew() {
    in_any_order(100, long_values_are_found);
}

#[test]
fn leaves_are_found_where_nothing_stays_in_memory() {
    in_any_order(100, leaves_are_found);
}

#[test]
fn an_answered_batch_is_durable_under_every_leader() {
    in_any_order(200, answers_are_durable);
}

#[test]
fn no_update_is_lost() {
    in_any_order(200, updates_are_kept);
}

#[test]
fn readers_see_whole_batches_beside_maintenance() {
    in_any_order(60, || batches_are_whole(small));
}

#[test]
fn readers_see_whole_batches_where_nothing_stays_in_memory() {
    in_any_order(30, || batches_are_whole(forgetful));
}

/// Every planted bug is found within the number of interleavings given for the bug. That number is
/// about three times the number of interleavings that is needed today.
#[test]
fn planted_bugs_are_found() {
    let _alone = alone();
    let beside: fn() = || batches_are_whole(small);
    let beside_forgetful: fn() = || batches_are_whole(forgetful);
    let found = [
        (Bug::FollowsTheFirst, answers_are_durable as fn(), 100),
        (Bug::OverlooksRivals, updates_are_kept, 100),
        (Bug::PublishesEarly, beside, 100),
        (Bug::PrunesSnapshots, beside, 100),
        (Bug::OverlooksDeletions, ranges_go_at_once, 100),
        (Bug::LooksOnce, beside, 1000),
        (Bug::BelievesOldReads, beside_forgetful, 1000),
        (Bug::PublishesUnwritten, long_values_are_found, 100),
        (Bug::OverlooksGenerations, long_values_are_found, 100),
        (Bug::OverlooksGenerations, leaves_are_found, 100),
    ]
    .map(|(bug, test, times)| {
        plant(Some(bug));
        let is_found = catch_unwind(|| run(times, test)).is_err();
        plant(None);
        (bug, is_found)
    });
    assert!(found.iter().all(|(_, is_found)| *is_found), "{found:?}");
}
