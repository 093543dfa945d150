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
use crate::readers::{Readers, SnapshotFigures};
use crate::replay::Replay;
use crate::scan::{Scan, ScanBounds};
use crate::segments::{Fillings, SpaceFigures};
use crate::snapshot::Snapshot;
use crate::storage::file::{FileStorage, Presence};
use crate::storage::overlay::Overlay;
use crate::storage::{BLOCK_BYTES, Storage};
use crate::tree::{AsOf, Memory, Tree};
use crate::writer::{Compacting, Durability, Stored, UpkeepFigures, Writer, WritingBack, take_up};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// An open index. Copies are the same index; it is closed when the last one is gone.
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

/// Figures of an open index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Segments and what of them is in use.
    pub space: SpaceFigures,
    /// Bytes of the log as it is now; it may grow to what [`Options::log_bytes`] was when the index
    /// was made.
    pub log_bytes: u64,
    /// Bytes of it that are needed.
    pub log_used_bytes: u64,
    /// Bytes that the log may have: [`Options::log_bytes`] when the index was made.
    pub log_bytes_max: u64,
    /// Bytes of memory for nodes.
    pub content_bytes: u64,
    /// Bytes of memory for changes.
    pub delta_bytes: u64,
    /// Images read from the storage.
    pub image_reads: u64,
    /// Bytes written to segments, without checkpoints.
    pub segment_written_bytes: u64,
    /// Segments that were begun to be filled with nodes: each is erased before, on flash.
    pub segments_begun: u64,
    /// Nodes there are, parts of long values among them.
    pub nodes: u32,
    /// Number of the last batch.
    pub batches: u64,
    /// What was done to keep house.
    pub upkeep: UpkeepFigures,
    /// Snapshots.
    pub snapshots: SnapshotFigures,
}

impl Db {
    /// Makes an empty index. What the storage has is lost. `id` names it; two indexes should not
    /// have the same.
    ///
    /// # Errors
    ///
    /// [`Error::Option`], or what the storage says.
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

    /// Opens what is there, and takes up what had not been written back.
    ///
    /// # Errors
    ///
    /// [`Error::NotAnIndex`], [`Error::Version`] and [`Error::Damaged`] by what is there.
    pub fn open(storage: impl Storage + 'static, options: &Options) -> Result<Db, Error> {
        Db::open_shared(Arc::new(storage), options)
    }

    /// Opens an index on a storage of a fixed length; where that has only zeroes at its beginning,
    /// it is made.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`create`](Self::create).
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

    /// Opens an index in a file or on a block device; in a new or empty file, or in one with
    /// nothing but zeroes, such as the making of an index leaves that was interrupted, it is made.
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

    /// Opens what is there only to read it: nothing is written to the storage. What opening would
    /// have written stays in memory.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
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
        let fillings = Fillings::new(stored.fillings.clone());
        let tree = Tree::new(Arc::clone(&storage), geometry, memory, fillings);
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

    /// The value of a key.
    ///
    /// # Errors
    ///
    /// If what is needed cannot be read.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Puts the value of a key in place of what is in `value`. False if it has none; what is in
    /// `value` means nothing then.
    ///
    /// # Errors
    ///
    /// If what is needed cannot be read.
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        loop {
            let visible = self.shared.readers.visible();
            // What this number sees may have been replaced since; then there is a newer number.
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
    /// Those of [`write`](Self::write).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.put(key, value);
        self.write(&batch, Durability::Durable)
    }

    /// Takes a key out, durably.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write).
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let mut batch = Batch::new();
        batch.delete(key);
        self.write(&batch, Durability::Durable)
    }

    /// Makes the changes of a batch, all or none.
    ///
    /// # Errors
    ///
    /// [`Error::KeyTooLong`], [`Error::ValueTooLong`], [`Error::BatchTooLong`] and [`Error::Full`]
    /// leave everything as it was. After any other it is not known whether the batch will be there
    /// when the index is opened again, and until then it takes no more.
    pub fn write(&self, batch: &Batch, durability: Durability) -> Result<(), Error> {
        let operations = self.shared.limits.check(batch)?;
        self.shared.admit(batch.ranges())?;
        self.shared.commit(operations, durability, None)?;
        Ok(())
    }

    /// How long keys, values and batches may be.
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Makes everything durable that was written relaxed, and ends all writing, by other copies of
    /// this handle too. Reading goes on until the last copy is gone, and snapshots and scans with
    /// it. An index that is dropped without this does the same, but cannot say whether it worked.
    ///
    /// # Errors
    ///
    /// If the storage fails: what was written relaxed may be lost. [`Error::ReadOnly`] if writing
    /// had failed before. An index that was opened only to be read, or is closed already, has
    /// nothing to lose and gives none.
    pub fn close(self) -> Result<(), Error> {
        self.shared.close()
    }

    /// Ends all writing, and nothing is written out when the index is dropped: what is on the
    /// storage is what a process leaves that is killed now. For tests of what a program finds then.
    pub fn abandon(self) {
        self.shared.end_writing(End::Abandoned);
    }

    /// Makes everything durable that was written relaxed.
    ///
    /// # Errors
    ///
    /// If the storage fails.
    pub fn sync(&self) -> Result<(), Error> {
        self.shared.with_writer(|writer| writer.write_log(true))
    }

    /// Writes what is needed to open without reading much of the log.
    ///
    /// # Errors
    ///
    /// If the storage fails or is full.
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.shared.with_writer(Writer::checkpoint_now)
    }

    /// Writes all changes back into nodes that there are, then takes a
    /// [`checkpoint`](Self::checkpoint). Others can write in between, each time after some leaves.
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

    /// Makes the storage as short as it can be. `progress` is told how many segments there still
    /// are. Others can write between its steps ([`compaction`](Self::compaction)); reading goes on.
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

    /// Begins to make the storage as short as it can be, in steps. What was done in a step stays,
    /// also if there is no next one. A step takes no more space than two segments and a checkpoint.
    pub fn compaction(&self) -> Compaction {
        Compaction {
            db: self.clone(),
            compacting: Compacting::default(),
        }
    }

    /// What is there now, whatever is written later.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            seq: self.shared.readers.hold(),
            shared: Arc::clone(&self.shared),
        }
    }

    /// All keys between two bounds and their values, in order, as of now.
    pub fn scan(&self, bounds: ScanBounds<'_>) -> Scan {
        Scan::new(self.snapshot(), bounds, false)
    }

    /// The same from the end to the start.
    pub fn scan_reverse(&self, bounds: ScanBounds<'_>) -> Scan {
        Scan::new(self.snapshot(), bounds, true)
    }

    /// Begins a transaction: it sees what is there now and its own changes.
    pub fn transaction(&self) -> Transaction {
        Transaction {
            snapshot: self.snapshot(),
            batch: Batch::new(),
            own: std::collections::BTreeMap::new(),
            expects: Vec::new(),
        }
    }

    /// Bytes of memory that nodes and changes take now. It waits for nothing, so that it can be
    /// asked while a compaction or a checkpoint is at work.
    pub fn memory_bytes(&self) -> u64 {
        let memory = &self.shared.tree.memory;
        memory.content_bytes() + memory.delta_bytes()
    }

    /// Figures.
    pub fn figures(&self) -> Figures {
        let tree = &self.shared.tree;
        let snapshots = self.shared.readers.figures();
        self.shared.look_at_writer(|writer| Figures {
            space: writer.segments.figures(),
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
            upkeep: writer.figures,
            snapshots,
        })
    }

    /// Batches of other threads that wait now for the log to be written.
    pub fn waiting(&self) -> usize {
        self.shared.waiting()
    }

    /// The bytes of the storage that the log is in now, for tools that look at it: one range for
    /// each ring, the one that is written last.
    pub fn log_ranges(&self) -> Vec<std::ops::Range<u64>> {
        let geometry = self.shared.tree.geometry;
        self.shared.look_at_writer(|writer| {
            let rings = writer.log.rings().all().iter();
            rings.map(|ring| ring.range(&geometry)).collect()
        })
    }

    /// The byte at which the first segment begins, for tools that look at the storage.
    pub fn segments_offset(&self) -> u64 {
        self.shared.tree.geometry.segments_offset()
    }
}

/// A compaction on its way ([`Db::compaction`]).
pub struct Compaction {
    db: Db,
    compacting: Compacting,
}

impl Compaction {
    /// Goes on by a step: some leaves written back, or a segment emptied. False if there is nothing
    /// left to do.
    ///
    /// # Errors
    ///
    /// If the storage fails or is full.
    pub fn step(&mut self) -> Result<bool, Error> {
        let compacting = &mut self.compacting;
        let shared = &self.db.shared;
        shared.with_writer(|writer| writer.compact_some(compacting))
    }

    /// Segments that there still are.
    pub fn segments(&self) -> u32 {
        self.db.figures().space.segments
    }
}

/// Reads and changes that happen as one: it succeeds if no key that it has written, or has read
/// with [`get_for_update`](Self::get_for_update), was written by others since it began.
pub struct Transaction {
    snapshot: Snapshot,
    pub(crate) batch: Batch,
    /// Its own changes; `None` for a deletion.
    own: std::collections::BTreeMap<Box<[u8]>, Option<Vec<u8>>>,
    /// Keys that it has written or read for update.
    expects: Vec<Box<[u8]>>,
}

impl Transaction {
    /// The value of a key: its own if it has written it, else as of its beginning.
    ///
    /// # Errors
    ///
    /// Those of [`Snapshot::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        match self.own.get(key) {
            Some(own) => Ok(own.clone()),
            None => self.snapshot.get(key),
        }
    }

    /// The same, and the transaction fails if others write the key before it ends.
    ///
    /// # Errors
    ///
    /// Those of [`Snapshot::get`].
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

    /// Takes a key out.
    pub fn delete(&mut self, key: &[u8]) {
        self.batch.delete(key);
        self.expects.push(key.into());
        self.own.insert(key.into(), None);
    }

    /// Makes its changes.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if others were faster, [`Error::SnapshotTooOld`] if it has gone on for
    /// longer than it is known who has written its keys: nothing has changed then. Else those of
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
