//! The handle of an open index, for any number of threads.

use crate::batch::Batch;
use crate::commit::{End, Shared};
use crate::conflicts::Expectation;
use crate::create::is_unfinished;
use crate::error::Error;
use crate::layout::Superblock;
use crate::limits::Limits;
use crate::log::Reader;
use crate::options::Options;
use crate::readers::{Readers, SnapshotStatistics};
use crate::replay::Replay;
use crate::scan::{Scan, ScanBounds};
use crate::segments::{Generations, SpaceStatistics};
use crate::snapshot::Snapshot;
use crate::storage::file::{FileStorage, Presence};
use crate::storage::overlay::Overlay;
use crate::storage::{BLOCK_BYTES, Storage};
use crate::tree::{AsOf, Memory, Tree};
use crate::writer::{
    Compacting, Durability, MaintenanceStatistics, Stored, Writer, WritingBack, take_up,
};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// An open index. Clones of a handle share one index, which is closed when the last handle is
/// dropped.
///
/// ```
/// use bimetal_index::{Db, Options, storage::memory::MemoryStorage};
/// # fn main() -> Result<(), bimetal_index::Error> {
/// let db = Db::create(MemoryStorage::new(), 1, &Options::default())?;
/// db.put(b"key", b"value")?;
/// assert_eq!(db.get(b"key")?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Db {
    shared: Arc<Shared>,
}

/// Statistics of an open index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of segments, and how much of them is in use.
    pub space: SpaceStatistics,
    /// Current length of the log, in bytes. The log can grow to the value of [`Options::log_bytes`]
    /// with which the index was created.
    pub log_bytes: u64,
    /// Bytes of the log that are still needed.
    pub log_used_bytes: u64,
    /// Maximum length of the log, in bytes: [`Options::log_bytes`] when the index was created.
    pub log_bytes_max: u64,
    /// Bytes of memory for nodes.
    pub content_bytes: u64,
    /// Bytes of memory for changes.
    pub delta_bytes: u64,
    /// Images read from the storage.
    pub image_reads: u64,
    /// Bytes written to segments, without checkpoints.
    pub segment_written_bytes: u64,
    /// Number of segments that the index has begun to fill with nodes. Flash erases each segment
    /// before it is filled.
    pub segments_begun: u64,
    /// Number of nodes, including the parts of long values.
    pub nodes: u32,
    /// Sequence number of the last batch.
    pub batches: u64,
    /// Statistics of maintenance.
    pub maintenance: MaintenanceStatistics,
    /// Statistics of snapshots.
    pub snapshots: SnapshotStatistics,
}

impl Db {
    /// Creates an empty index. The old content of the storage is lost. `id` identifies the index;
    /// two indexes should not have the same id.
    ///
    /// # Errors
    ///
    /// [`Error::Option`], or an error of the storage.
    pub fn create(
        storage: impl Storage + 'static,
        id: u64,
        options: &Options,
    ) -> Result<Db, Error> {
        let geometry = options.geometry(id)?;
        options.check(&geometry)?;
        let storage: Arc<dyn Storage> = Arc::new(storage);
        crate::create::create(&*storage, geometry)?;
        Db::open_shared(storage, options)
    }

    /// Opens an existing index, and replays the changes in the log that had not been written back.
    ///
    /// # Errors
    ///
    /// [`Error::NotAnIndex`], [`Error::Version`] and [`Error::Damaged`], depending on the content
    /// of the storage.
    pub fn open(storage: impl Storage + 'static, options: &Options) -> Result<Db, Error> {
        Db::open_shared(Arc::new(storage), options)
    }

    /// Opens an index on a storage of a fixed length, or creates it if the storage begins with only
    /// zeroes.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open) and [`create`](Self::create).
    pub fn open_or_create(storage: impl Storage + 'static, options: &Options) -> Result<Db, Error> {
        if !crate::create::is_blank(&storage)? {
            return Db::open(storage, options);
        }
        let id = crate::create::new_id().map_err(|error| Error::Open {
            path: "/dev/urandom".to_owned(),
            kind: error.kind().into(),
            reason: error.to_string(),
        })?;
        Db::create(storage, id, options)
    }

    /// Opens an index in a file or on a block device. If the file is new, empty, or has only zeroes
    /// (as an interrupted creation leaves it), an index is created.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], and those of [`open`](Self::open).
    pub fn open_path(path: &Path, options: &Options) -> Result<Db, Error> {
        let refused = |error: io::Error| Error::Open {
            path: path.display().to_string(),
            kind: error.kind().into(),
            reason: error.to_string(),
        };
        let storage = FileStorage::open(path, Presence::Any).map_err(refused)?;
        if !storage.is_device() && is_unfinished(&storage)? {
            return Db::create(storage, crate::create::new_id().map_err(refused)?, options);
        }
        Db::open(storage, options)
    }

    /// Opens an existing index for reading only. Nothing is written to the storage: the writes that
    /// opening makes stay in memory.
    ///
    /// # Errors
    ///
    /// The errors of [`open`](Self::open).
    pub fn open_read_only(storage: impl Storage + 'static, options: &Options) -> Result<Db, Error> {
        let db = Db::open(Overlay::new(storage), options)?;
        db.shared.end_writing(End::OnlyRead);
        Ok(db)
    }

    fn open_shared(storage: Arc<dyn Storage>, options: &Options) -> Result<Db, Error> {
        let superblock = Superblock::read(&*storage)?;
        options.check(&superblock.geometry)?;
        let stored = Stored::read(&*storage, &superblock)?;
        let geometry = superblock.geometry;
        let memory = Memory::new(options.memory_bytes, options.paper.is_none());
        let generations = Generations::new(stored.generations.clone());
        let tree = Tree::new(Arc::clone(&storage), geometry, memory, generations);
        let tree = Arc::new(tree);
        let segments = take_up(&tree, &superblock, &stored)?;
        let seq = superblock.seq_at_tail;
        let readers = Arc::new(Readers::new(seq, options.snapshot_batches_max));
        let mut log = Reader::new(&*storage, &superblock);
        let mut writer = Writer::new(
            Arc::clone(&tree),
            Arc::clone(&readers),
            options.clone(),
            superblock,
            stored,
            segments,
        );
        let mut replay = Replay::new(options.memory_bytes / 4);
        while let Some(frame) = log.next()? {
            replay.take(&frame, &mut writer)?;
        }
        replay.finish(&mut writer)?;
        writer.end_replay()?;
        writer.begin_log()?;
        Ok(Db {
            shared: Arc::new(Shared::new(tree, readers, writer, options.group_wait_us)),
        })
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    ///
    /// If the needed nodes cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the content of `value` with the value of a key. Returns false if the key has no
    /// value; the content of `value` is unspecified then.
    ///
    /// # Errors
    ///
    /// If the needed nodes cannot be read.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        loop {
            let visible = self.shared.readers.visible();
            // The versions visible at this sequence number may have been dropped meanwhile. In that
            // case a newer sequence number is visible, and the lookup is retried with it.
            let tree = &self.shared.tree;
            if let Some(found) = tree.get(key, AsOf::Passing(visible), value)? {
                tree.memory.give_up_kept(&tree.slots);
                return Ok(found);
            }
        }
    }

    /// Gives a key a value, durably.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](Self::write).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.put(key, value);
        self.write(&batch, Durability::Durable)
    }

    /// Removes a key, durably.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](Self::write).
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.delete(key);
        self.write(&batch, Durability::Durable)
    }

    /// Applies all changes of a batch, or none.
    ///
    /// # Errors
    ///
    /// If the error is [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::BatchTooLong`] or
    /// [`Error::Full`], the index is unchanged. After any other error it is not known whether the
    /// index will have the batch when it is opened again. Until it is opened again, the index
    /// accepts no more batches.
    pub fn write(&self, batch: &Batch, durability: Durability) -> Result<(), Error> {
        let operations = self.shared.limits.check(batch)?;
        self.shared.admit(batch.ranges())?;
        self.shared.commit(operations, durability, None)?;
        Ok(())
    }

    /// Returns the size limits of keys, values and batches.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Makes all relaxed writes durable, and ends all writing, also through clones of this handle.
    /// Reading continues until the last clone, snapshot and scan is dropped. Dropping an index
    /// without this call does the same, but cannot report a failure.
    ///
    /// # Errors
    ///
    /// If the storage fails: relaxed writes may be lost. [`Error::ReadOnly`] if writing had failed
    /// before. An index that was opened for reading only, or is closed already, has no writes to
    /// lose and returns no error.
    pub fn close(self) -> Result<(), Error> {
        self.shared.close()
    }

    /// Ends all writing, so that dropping the index writes nothing. The storage is left in the
    /// state that a killed process would leave. For tests of recovery.
    pub fn abandon(self) {
        self.shared.end_writing(End::Abandoned);
    }

    /// Makes all relaxed writes durable.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    pub fn sync(&self) -> Result<(), Error> {
        self.shared.with_writer(|writer| writer.write_log(true))
    }

    /// Writes a checkpoint, so that the next opening need not read much of the log.
    ///
    /// # Errors
    ///
    /// If the storage fails or is full.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.shared.with_writer(Writer::checkpoint_now)
    }

    /// Writes all changes back into the existing nodes, then takes a
    /// [`checkpoint`](Self::checkpoint). The work is divided into steps of a few hundred leaves.
    /// Other threads can write between two steps.
    ///
    /// # Errors
    ///
    /// If the storage fails or is full.
    pub fn write_back(&self) -> Result<(), Error> {
        let mut at = WritingBack::default();
        while self
            .shared
            .with_writer(|writer| writer.write_back_some(&mut at))?
        {}
        Ok(())
    }

    /// Makes the storage as short as possible. `progress` is called with the number of remaining
    /// segments. Other threads can write between the steps ([`compaction`](Self::compaction));
    /// reading continues.
    ///
    /// # Errors
    ///
    /// If the storage fails or is full.
    pub fn compact(&self, mut progress: impl FnMut(u32)) -> Result<(), Error> {
        let mut compaction = self.compaction();
        while compaction.step()? {
            progress(compaction.segments());
        }
        Ok(())
    }

    /// Begins a stepwise compaction, which makes the storage as short as possible. The effect of
    /// each completed step remains, even if no further step follows. A step takes no more space
    /// than two segments and a checkpoint.
    pub fn compaction(&self) -> Compaction {
        Compaction {
            db: self.clone(),
            compacting: Compacting::default(),
        }
    }

    /// Returns a snapshot of the current content, which later writes do not change.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            seq: self.shared.readers.hold(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// Returns a scan of the keys between two bounds and their values, in ascending order of keys.
    /// The scan sees the content at the time of this call.
    pub fn scan(&self, bounds: ScanBounds<'_>) -> Scan {
        Scan::new(self.snapshot(), bounds, false)
    }

    /// Returns a scan like [`scan`](Self::scan), but in descending order of keys.
    pub fn scan_reverse(&self, bounds: ScanBounds<'_>) -> Scan {
        Scan::new(self.snapshot(), bounds, true)
    }

    /// Begins a transaction, which sees the current content and its own changes.
    pub fn transaction(&self) -> Transaction {
        Transaction {
            snapshot: self.snapshot(),
            batch: Batch::new(),
            own: std::collections::BTreeMap::new(),
            expects: Vec::new(),
        }
    }

    /// Returns the bytes of memory that nodes and changes take now. The call never waits, so it can
    /// be used during a compaction or a checkpoint.
    pub fn memory_bytes(&self) -> u64 {
        let memory = &self.shared.tree.memory;
        memory.content_bytes() + memory.delta_bytes()
    }

    /// Returns the statistics of the index.
    pub fn statistics(&self) -> Statistics {
        let tree = &self.shared.tree;
        let snapshots = self.shared.readers.statistics();
        self.shared.look_at_writer(|writer| Statistics {
            space: writer.segments.statistics(),
            log_bytes: writer
                .log
                .rings()
                .all()
                .iter()
                .map(|ring| ring.blocks)
                .sum::<u64>()
                * BLOCK_BYTES as u64,
            log_used_bytes: (writer.log.head() - writer.log.tail()) * BLOCK_BYTES as u64,
            log_bytes_max: tree.geometry.log_blocks * BLOCK_BYTES as u64,
            content_bytes: tree.memory.content_bytes(),
            delta_bytes: tree.memory.delta_bytes(),
            image_reads: tree.image_reads(),
            segment_written_bytes: writer.segments.written_bytes(),
            segments_begun: writer.segments.begun(),
            nodes: writer.nodes(),
            batches: writer.seq(),
            maintenance: writer.statistics,
            snapshots,
        })
    }

    /// Returns the number of batches of other threads that now wait for the log to be written.
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }

    /// Returns the byte ranges of the storage that the log now occupies, for inspection tools: one
    /// range for each ring. The last range is the ring that is being written.
    pub fn log_ranges(&self) -> Vec<std::ops::Range<u64>> {
        let geometry = self.shared.tree.geometry;
        self.shared.look_at_writer(|writer| {
            let rings = writer.log.rings().all().iter();
            rings.map(|ring| ring.range(&geometry)).collect()
        })
    }

    /// Returns the byte at which the first segment begins, for inspection tools.
    pub fn segments_offset(&self) -> u64 {
        self.shared.tree.geometry.segments_offset()
    }
}

/// A compaction in progress ([`Db::compaction`]).
pub struct Compaction {
    db: Db,
    compacting: Compacting,
}

impl Compaction {
    /// Performs one step: writes some leaves back, or empties a segment. Returns false if the
    /// compaction is complete.
    ///
    /// # Errors
    ///
    /// If the storage fails or is full.
    pub fn step(&mut self) -> Result<bool, Error> {
        let compacting = &mut self.compacting;
        let shared = &self.db.shared;
        shared.with_writer(|writer| writer.compact_some(compacting))
    }

    /// Returns the number of remaining segments.
    pub fn segments(&self) -> u32 {
        self.db.statistics().space.segments
    }
}

/// Reads and changes that take effect atomically. A transaction succeeds if, since it began, no
/// other transaction or batch has written a key that this transaction has written, or has read with
/// [`get_for_update`](Self::get_for_update).
pub struct Transaction {
    snapshot: Snapshot,
    pub(crate) batch: Batch,
    /// Changes of this transaction; `None` for a deletion.
    own: std::collections::BTreeMap<Box<[u8]>, Option<Vec<u8>>>,
    /// Keys that the transaction has written or read for update.
    expects: Vec<Box<[u8]>>,
}

impl Transaction {
    /// Returns the value of a key: the value that this transaction has written; or, if the
    /// transaction has not written the key, the value at the time when the transaction began.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.own.get(key) {
            Some(own) => Ok(own.clone()),
            None => self.snapshot.get(key),
        }
    }

    /// Returns the same value as [`get`](Self::get). The transaction fails if another transaction
    /// or batch writes the key before this transaction is committed.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::get`].
    pub fn get_for_update(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.expects.push(key.into());
        self.get(key)
    }

    /// Gives a key a value.
    pub fn put(&mut self, key: &[u8], value: &[u8]) {
        self.batch.put(key, value);
        self.expects.push(key.into());
        self.own.insert(key.into(), Some(value.to_vec()));
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &[u8]) {
        self.batch.delete(key);
        self.expects.push(key.into());
        self.own.insert(key.into(), None);
    }

    /// Commits the changes of the transaction.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if, since the transaction began, another transaction or batch has
    /// written a key that this transaction has written or read for update.
    /// [`Error::SnapshotTooOld`] if the transaction is so old that the versions needed for this
    /// check have been dropped. In both cases nothing has changed. Otherwise, the errors of
    /// [`Db::write`].
    pub fn commit(self, durability: Durability) -> Result<(), Error> {
        let shared = &self.snapshot.shared;
        let operations = shared.limits.check(&self.batch)?;
        let expects =
            Expectation::new(self.snapshot.seq, self.expects, &operations, &shared.hasher);
        shared.admit(self.batch.ranges())?;
        shared.commit(operations, durability, Some(expects))?;
        Ok(())
    }
}
