//! A disk that can delay writers. With it, the tests arrange group commits in which the leader, the
//! followers and their order are known.

use super::Disk;
use bimetal_index::storage::{Storage, StorageError};
use bimetal_index::{Batch, Db, Durability, Error, Options};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::yield_now;

/// A disk whose durable writes can be delayed.
#[derive(Clone, Default)]
pub struct Gate {
    pub disk: Disk,
    state: Arc<(Mutex<GateState>, Condvar)>,
}

#[derive(Default)]
struct GateState {
    is_shut: bool,
    held_up: usize,
}

impl Gate {
    pub fn set(&self, is_shut: bool) {
        self.state.0.lock().expect("a lock").is_shut = is_shut;
        self.state.1.notify_all();
    }

    /// Returns the number of writes being delayed now.
    pub fn held_up(&self) -> usize {
        self.state.0.lock().expect("a lock").held_up
    }
}

impl Storage for Gate {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        self.disk.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.disk.write(offset, data)
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        let mut state = self.state.0.lock().expect("a lock");
        state.held_up += 1;
        let open = self.state.1.wait_while(state, |state| state.is_shut);
        state = open.expect("a lock");
        state.held_up -= 1;
        drop(state);
        self.disk.write_durable(offset, data)
    }
    fn sync(&self) -> Result<(), StorageError> {
        self.disk.sync()
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.disk.resize(len_bytes)
    }
}

/// Callback that a thread runs first.
pub type Beginning<'a> = &'a (dyn Fn() + Sync);

fn begin(gate: &Gate) -> Db {
    let options = Options {
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        ..Options::default()
    };
    let db = Db::create(gate.clone(), 3, &options).expect("an index");
    db.put(b"first", b"prepares the log").expect("a put");
    db
}

/// Makes one writer the leader of a group and delays it until the other writers are in the queue,
/// in the order of `others`. The other writers then form one group.
fn in_one_group(
    gate: &Gate,
    db: &Db,
    begins: Beginning<'_>,
    others: Vec<Box<dyn FnOnce() + Send + '_>>,
) {
    gate.set(true);
    std::thread::scope(|scope| {
        let leader = db.clone();
        scope.spawn(move || {
            begins();
            leader.put(b"leader", b"waits for the disk").expect("a put");
        });
        while gate.held_up() == 0 {
            yield_now();
        }
        for (number, other) in others.into_iter().enumerate() {
            scope.spawn(move || {
                begins();
                other();
            });
            while db.waiting() <= number {
                yield_now();
            }
        }
        gate.set(false);
    });
}

/// Checks a group commit of a relaxed batch that is followed by a durable batch. Both batches must
/// survive a power cut.
pub fn followers(begins: Beginning<'_>) {
    let gate = Gate::default();
    let db = begin(&gate);
    let write = |key: &'static [u8], durability| {
        let db = db.clone();
        Box::new(move || {
            let mut batch = Batch::new();
            batch.put(key, b"value");
            db.write(&batch, durability).expect("a write");
        }) as Box<dyn FnOnce() + Send>
    };
    let relaxed = write(b"relaxed", Durability::Relaxed);
    let durable = write(b"durable", Durability::Durable);
    in_one_group(&gate, &db, begins, vec![relaxed, durable]);
    let after = Arc::new(gate.disk.after_power_cut(&mut || 0));
    let db = Db::open(after, &Options::default()).expect("it opens");
    for key in [&b"leader"[..], b"relaxed", b"durable"] {
        assert!(db.get(key).expect("a get").is_some(), "{key:?} was durable");
    }
}

/// Checks that the first of two transactions wins if both write the same key and commit in one
/// group.
pub fn rivals(begins: Beginning<'_>) {
    let gate = Gate::default();
    let db = begin(&gate);
    let outcomes = Mutex::new(Vec::new());
    let rival = |value: &'static [u8]| {
        let mut transaction = db.transaction();
        transaction.put(b"key", value);
        let outcomes = &outcomes;
        Box::new(move || {
            let outcome = transaction.commit(Durability::Durable);
            outcomes.lock().expect("a lock").push((value, outcome));
        }) as Box<dyn FnOnce() + Send + '_>
    };
    in_one_group(&gate, &db, begins, vec![rival(b"one"), rival(b"two")]);
    let mut outcomes = outcomes.into_inner().expect("a lock");
    outcomes.sort_by_key(|(value, _)| *value);
    let lost = Err(Error::Conflict);
    assert_eq!(outcomes, [(&b"one"[..], Ok(())), (b"two", lost)]);
    assert_eq!(db.get(b"key"), Ok(Some(b"one".to_vec())));
}
