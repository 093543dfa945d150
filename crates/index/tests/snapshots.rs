//! Tests of snapshots during maintenance: the content of a snapshot does not change, wherever
//! maintenance moves that content and however much of it there is.

use bimetal_index::storage::memory::MemoryStorage;
use bimetal_index::storage::{Storage, StorageError};
use bimetal_index::{Batch, Db, Durability, Error, Options};
use std::ops::Bound;
use std::sync::{Arc, Mutex};

fn small() -> Options {
    Options {
        memory_bytes: 1 << 20,
        buffer_bytes: 16 << 10,
        log_bytes: 256 << 10,
        segment_bytes: 64 << 10,
        node_bytes: 512,
        inline_value_bytes: 100,
        ..Options::default()
    }
}

#[test]
fn versions_of_a_long_value_do_not_end_a_snapshot() {
    let db = Db::create(MemoryStorage::new(), 3, &small()).expect("an index");
    // Three of these values together are longer than a segment. The values are stored out of line,
    // so they take almost no space in their leaf.
    let long = |byte: u8| vec![byte; 22_000];
    let mut seen = Vec::new();
    for byte in 0..6 {
        db.put(b"key", &long(byte)).expect("a put");
        seen.push((byte, db.snapshot()));
        db.write_back().expect("a write-back");
    }
    for (byte, snapshot) in seen {
        assert_eq!(snapshot.get(b"key"), Ok(Some(long(byte))));
    }
}

type Event = Box<dyn FnOnce() + Send>;

/// A disk that runs a callback before the next read.
#[derive(Clone, Default)]
struct Eventful {
    disk: Arc<MemoryStorage>,
    before_read: Arc<Mutex<Option<Event>>>,
}

impl Storage for Eventful {
    fn len_bytes(&self) -> u64 {
        self.disk.len_bytes()
    }
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let event = self.before_read.lock().expect("a lock").take();
        if let Some(event) = event {
            event();
        }
        self.disk.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.disk.write(offset, data)
    }
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.disk.write_durable(offset, data)
    }
    fn sync(&self) -> Result<(), StorageError> {
        self.disk.sync()
    }
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.disk.resize(len_bytes)
    }
}

/// After a reader has looked up the location of a part of a value, and before it reads that part,
/// cleaning moves the part and frees its segment.
#[test]
fn a_scan_finds_a_value_that_is_moved_while_it_is_read() -> Result<(), Error> {
    let disk = Eventful::default();
    let db = Db::create(disk.clone(), 3, &small())?;
    let long = vec![7; 5000];
    for number in 0..500_u16 {
        db.put(&number.to_be_bytes(), &[7; 5000])?;
    }
    db.put(b"~the last", &long)?;
    db.write_back()?;
    let mut batch = Batch::new();
    batch.delete_range(b"", Some(b"~"));
    db.write(&batch, Durability::Durable)?;
    let mut scan = db.scan((Bound::Included(&b"~"[..]), Bound::Unbounded));
    let mover = db.clone();
    let move_all = move || mover.compact(|_| {}).expect("a compaction");
    // This get brings the leaf into memory, so that the next read is that of the value.
    db.get(b"~the last")?;
    *disk.before_read.lock().expect("a lock") = Some(Box::new(move_all));
    let before = disk.disk.len_bytes();
    assert_eq!(scan.next()?, Some((&b"~the last"[..], &long[..])));
    assert!(disk.disk.len_bytes() < before, "it was moved");
    assert_eq!(scan.next()?, None);
    Ok(())
}

/// Versions of a key are committed between the beginning and the commit of a transaction, and are
/// then dropped together with the snapshot that needed them. These versions were the only evidence
/// that another writer had committed first. The commit of the transaction must therefore be
/// refused.
#[test]
fn a_transaction_that_is_too_old_does_not_write_over_others() -> Result<(), Error> {
    let options = Options {
        snapshot_batches_max: 5,
        ..small()
    };
    let db = Db::create(MemoryStorage::new(), 3, &options)?;
    db.put(b"key", b"first")?;
    let mut transaction = db.transaction();
    transaction.put(b"key", b"of a transaction");
    for number in 0..10_u64 {
        db.put(b"key", &number.to_le_bytes())?;
    }
    db.write_back()?;
    let committed = transaction.commit(Durability::Durable);
    assert_eq!(committed, Err(Error::SnapshotTooOld));
    assert_eq!(db.get(b"key")?, Some(9_u64.to_le_bytes().to_vec()));
    Ok(())
}
