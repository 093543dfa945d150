//! The log of the current incarnation, and the superblocks, which record the location of the log,
//! the position from which the log is needed, and the checkpoint that replaces the log before that
//! position.
//!
//! [`OpenLog`] keeps together all facts that opening relies on, because these facts are only valid
//! in combination. A superblock names a tail together with the checkpoint that makes the log before
//! that tail unnecessary. It names the rings together with the log position at which the log moved
//! to the last ring. The log must never write to a ring before both superblocks name that ring. A
//! ring must not be reused while a superblock names it. A program that finds only the older
//! superblock intact has to see the same part of the log as the newer superblock shows.

use super::checkpointer::WrittenCheckpoint;
use crate::batch::END;
use crate::error::Error;
use crate::layout::Superblock;
use crate::log::Log;
use crate::node::Seq;
use crate::planted::{Bug, is_planted};
use crate::rings::{Ring, RingLocation, Rings};
use crate::storage::Storage;
use std::ops::Range;

/// Segments that became free for other use when a checkpoint completed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Segments of the previous checkpoint.
    pub checkpoint: Vec<u32>,
    /// Segments that the log no longer occupies.
    pub log: Vec<Range<u32>>,
    /// True if the log continues in another ring.
    pub is_elsewhere: bool,
}

/// The log and the superblocks.
#[derive(Debug)]
pub(crate) struct OpenLog {
    log: Log,
    /// The newest superblock.
    superblock: Superblock,
    /// The superblock that was read at the opening; `None` once it is known to be durable.
    read: Option<Superblock>,
    /// Sequence number of the last batch accepted.
    seq: Seq,
    /// Log position at which this incarnation of the log began; `u64::MAX` until the replay has
    /// ended.
    opened_at: u64,
    /// Number of segments at the last failed attempt to find room for a longer log.
    refused_at: Option<usize>,
}

impl OpenLog {
    /// Creates a log that is to be replayed from the tail that a superblock names.
    pub(super) fn new(superblock: Superblock) -> OpenLog {
        let tail = superblock.log_tail;
        let rings = superblock.rings.clone();
        let log = Log::new(superblock.geometry, superblock.opening, rings, tail, tail);
        OpenLog {
            log,
            seq: superblock.seq_at_tail,
            read: Some(superblock.clone()),
            superblock,
            opened_at: u64::MAX,
            refused_at: None,
        }
    }

    /// Returns the log position at which the next frame will be written.
    pub(crate) fn head(&self) -> u64 {
        self.log.head()
    }

    /// Returns the position from which the log is needed.
    pub(crate) fn tail(&self) -> u64 {
        self.log.tail()
    }

    /// Returns the rings that the log occupies.
    pub(crate) fn rings(&self) -> &Rings {
        self.log.rings()
    }

    /// Returns the sequence number of the last batch accepted.
    pub(super) fn seq(&self) -> Seq {
        self.seq
    }

    /// Returns the size, in blocks, of the ring in which the log continues.
    pub(super) fn ring_blocks(&self) -> u64 {
        self.log.ring_blocks()
    }

    /// Returns the number of log blocks that are still needed.
    pub(super) fn used_blocks(&self) -> u64 {
        self.log.used_blocks()
    }

    /// Returns the number of log blocks that are free for frames.
    pub(super) fn free_blocks(&self) -> u64 {
        self.log.free_blocks()
    }

    /// Returns true if all frames of the log survive a power cut.
    pub(super) fn is_durable(&self) -> bool {
        self.log.is_durable()
    }

    /// Returns true if the batch `seq` is covered by the checkpoint that the superblock names.
    pub(super) fn is_before_checkpoint(&self, seq: Seq) -> bool {
        seq <= self.superblock.seq_at_tail
    }

    /// Returns true if the replay of the log has ended. Batches appended after that belong to this
    /// incarnation.
    pub(super) fn is_taken_up(&self) -> bool {
        self.opened_at != u64::MAX
    }

    /// Notes that the log was replayed up to the batch `seq` and to `end`, the end of a frame. The
    /// log before `durable_below` was durable when that frame was written.
    pub(super) fn replayed(&mut self, seq: Seq, end: u64, durable_below: u64) {
        assert!(!self.is_taken_up(), "what comes now is of this opening");
        self.seq = self.seq.max(seq);
        let known_durable = durable_below.max(self.superblock.log_durable);
        self.log.go_on_from(end, known_durable);
    }

    /// Begins a new incarnation of the log after the replayed part. The replayed part is made
    /// durable first, because a later durable batch must not follow a part of the log that a power
    /// cut can destroy.
    pub(super) fn begin(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        assert!(!self.is_taken_up(), "a log is taken up once");
        self.log.write_out(storage, true)?;
        self.log.end_here(storage)?;
        let head = self.log.head();
        self.superblock.opening += u32::from(!is_planted(Bug::KeepsOpening));
        self.superblock.log_durable = head;
        self.write_superblock(storage)?;
        self.opened_at = head;
        let (opening, tail) = (self.superblock.opening, self.superblock.log_tail);
        let rings = self.superblock.rings.clone();
        self.log = Log::new(self.superblock.geometry, opening, rings.clone(), tail, head);
        self.log.release(tail, rings, self.superblock.generation);
        Ok(())
    }

    /// Appends a batch to the log, which must have room for it, and returns the batch's sequence
    /// number. If too many bytes are waiting to be written, they are written first.
    pub(super) fn append(
        &mut self,
        storage: &dyn Storage,
        operations: &[u8],
    ) -> Result<Seq, Error> {
        assert!(self.is_taken_up(), "batches come after what was replayed");
        if self.log.is_full_for(operations.len()) {
            self.log.write_out(storage, false)?;
        }
        self.seq += 1;
        self.log.append(self.seq, operations, &[END]);
        Ok(self.seq)
    }

    /// Relogs records at the head of the log, and writes them. All waiting batches must have been
    /// written.
    pub(super) fn log_again(&mut self, storage: &dyn Storage, records: &[u8]) -> Result<(), Error> {
        self.log.relog(self.seq, records);
        self.log.write_out(storage, false)
    }

    /// Writes a frame that has no changes, only the sequence number that the log has reached.
    /// Earlier frames with this number may have been freed. Without the frame, a rebuild would
    /// conclude that images are newer than the log.
    pub(super) fn mark(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        self.log.relog(self.seq, &[END]);
        self.log.write_out(storage, true)
    }

    /// Writes out all waiting batches, and makes the log durable if `durable` is true.
    pub(super) fn write_out(&mut self, storage: &dyn Storage, durable: bool) -> Result<(), Error> {
        self.log.write_out(storage, durable)
    }

    /// Makes the whole log durable, and records in a superblock where the log ends. A later opening
    /// can then tell whether the log is complete.
    pub(super) fn end(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        self.log.write_out(storage, true)?;
        if self.superblock.log_durable < self.log.head() {
            self.superblock.log_durable = self.log.head();
            self.write_superblock(storage)?;
        }
        Ok(())
    }

    /// Writes the current superblock with the next generation, in the place of the older of the two
    /// superblocks.
    ///
    /// The superblock that was read at the opening is first written again, to its own place. If an
    /// earlier incarnation failed to write it, it may be in the page cache only. Then only the
    /// older superblock is durable, and a power cut while the older one is overwritten would leave
    /// no superblock.
    fn write_superblock(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        if let Some(read) = &self.read {
            read.write(storage)?;
            self.read = None;
        }
        self.superblock.generation += 1;
        self.superblock.write(storage)
    }

    /// Writes the superblock with `rings` durably. If the rings have changed, writes it twice, so
    /// that both superblocks contain the new rings.
    fn write_rings(&mut self, storage: &dyn Storage, rings: &Rings) -> Result<(), Error> {
        let has_changed = self.superblock.rings != *rings;
        self.superblock.rings = rings.clone();
        self.write_superblock(storage)?;
        match has_changed {
            true => self.write_superblock(storage),
            false => Ok(()),
        }
    }

    /// Returns the rings of the log that are still needed when the log before `tail` is not. If
    /// `tail` is the end of a durable log, no ring has needed content, and only the ring at the
    /// front of the storage is returned. During a replay the log extends beyond the part read so
    /// far, so all rings are kept except those before `tail`.
    fn rings_after(&self, tail: u64) -> Rings {
        let needed = self.log.rings().needed_from(tail);
        let is_unneeded = self.is_taken_up() && tail == self.log.head() && self.log.is_durable();
        match is_unneeded && needed.current().place != RingLocation::Front {
            true => Rings::of_one(Ring::front(&self.superblock.geometry, tail)),
            false => needed,
        }
    }

    /// Writes the superblock that names a durable checkpoint and the tail of that checkpoint. From
    /// then on, the log before that tail is not needed.
    pub(super) fn settle(
        &mut self,
        storage: &dyn Storage,
        checkpoint: &WrittenCheckpoint,
    ) -> Result<Left, Error> {
        let tail = checkpoint.tail;
        let segments = checkpoint.segments.clone();
        let checkpoint_before = std::mem::replace(&mut self.superblock.checkpoint, segments);
        self.superblock.log_tail = tail;
        if tail >= self.opened_at {
            self.superblock.opening_at_tail = self.superblock.opening;
        }
        self.superblock.seq_at_tail = checkpoint.seq;
        // During a replay, the durable part that the superblock names can be longer than the part
        // read so far. So the larger of both values is kept.
        let log_durable = &mut self.superblock.log_durable;
        *log_durable = self.log.durable_below().max(*log_durable);
        self.superblock.checkpoint_bytes = checkpoint.used_bytes;
        self.superblock.checkpoint_crc = checkpoint.crc;
        let rings = self.rings_after(tail);
        self.write_rings(storage, &rings)?;
        let before = self.log.rings().clone();
        self.log
            .release(tail, rings.clone(), self.superblock.generation);
        Ok(Left {
            checkpoint: checkpoint_before,
            log: self.left_since(&before),
            is_elsewhere: rings.current() != before.current(),
        })
    }

    /// Returns the segments of the rings that the log has left: the rings that are in `before` but
    /// are not rings of the log now.
    fn left_since(&self, before: &Rings) -> Vec<Range<u32>> {
        let now = self.log.rings().all();
        let is_left = |ring: &&Ring| now.iter().all(|other| other.place != ring.place);
        let left = before.all().iter().filter(is_left);
        let left = left.map(|ring| ring.segments(&self.superblock.geometry));
        left.filter(|segments| !segments.is_empty()).collect()
    }

    /// Moves the log to a ring of `blocks` blocks at `place`. If nothing was ever written to the
    /// current ring, it is dropped, and its segments are returned: they are free for other use.
    pub(super) fn go_on_in(
        &mut self,
        storage: &dyn Storage,
        place: RingLocation,
        blocks: u64,
    ) -> Result<Vec<Range<u32>>, Error> {
        assert!(self.is_taken_up(), "what is replayed stays where it is");
        // The log is made durable first. Otherwise, a crash could lose frames before the start of
        // the new ring, and this loss would look like the end of the log.
        self.log.write_out(storage, true)?;
        let ring = Ring {
            from: self.log.head(),
            place,
            blocks,
        };
        let before = self.log.rings().clone();
        let rings = before.with(ring);
        self.superblock.log_durable = self.log.head();
        self.write_rings(storage, &rings)?;
        self.log.go_on_in(rings, self.superblock.generation);
        Ok(self.left_since(&before))
    }

    /// Notes that no room for a longer log was found when the storage had `segments` segments.
    pub(super) fn note_refused(&mut self, segments: usize) {
        self.refused_at = Some(segments);
    }

    /// Returns true if no room for a longer log was found when the storage had `segments` segments.
    pub(super) fn was_refused(&self, segments: usize) -> bool {
        self.refused_at == Some(segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::storage::BLOCK_BYTES;
    use crate::storage::StorageError;
    use crate::storage::memory::MemoryStorage;

    /// The superblock of a new index: segments of 1 MiB, and 240 log blocks before the first
    /// segment.
    fn superblock() -> Superblock {
        let geometry = Geometry::new(1, 1 << 12, 1 << 20);
        Superblock {
            geometry,
            generation: 1,
            opening: 0,
            opening_at_tail: 0,
            log_tail: 0,
            seq_at_tail: 0,
            checkpoint: Vec::new(),
            checkpoint_bytes: 0,
            checkpoint_crc: 0,
            log_durable: 0,
            rings: Rings::of_one(Ring::front(&geometry, 0)),
        }
    }

    fn front(from: u64) -> Ring {
        Ring {
            from,
            place: RingLocation::Front,
            blocks: 240,
        }
    }

    /// A ring of 256 blocks, which is all of segment 1.
    fn in_segment_1(from: u64) -> Ring {
        Ring {
            from,
            place: RingLocation::Segments(1),
            blocks: 256,
        }
    }

    fn checkpoint(segment: u32, tail: u64, seq: Seq) -> WrittenCheckpoint {
        WrittenCheckpoint {
            segments: vec![segment],
            used_bytes: 100,
            crc: 17,
            tail,
            seq,
            emptied: Vec::new(),
            leaves_written: 0,
        }
    }

    /// Reads both superblocks from a storage, the newer one first.
    fn superblocks(storage: &MemoryStorage) -> Vec<Superblock> {
        let content = storage.content();
        Superblock::all_of(&content[..2 * BLOCK_BYTES]).expect("they are of this version")
    }

    /// A log that has accepted one batch in this incarnation; the batch fills the first block.
    fn with_a_batch() -> (MemoryStorage, OpenLog) {
        let storage = MemoryStorage::with_content(vec![0; 6 << 20]);
        superblock().write(&storage).expect("it is written");
        let mut log = OpenLog::new(superblock());
        log.begin(&storage).expect("it begins");
        let seq = log.append(&storage, &[1, 2, 3]);
        assert_eq!(seq, Ok(1));
        log.write_out(&storage, true).expect("it is written");
        assert_eq!(log.head(), 1);
        (storage, log)
    }

    #[test]
    fn the_end_of_the_log_is_said_once() {
        let (storage, mut log) = with_a_batch();
        let newest = &superblocks(&storage)[0];
        assert_eq!((newest.generation, newest.opening), (2, 1));
        assert_eq!(newest.log_durable, 0);
        for _ in 0..2 {
            log.end(&storage).expect("it ends");
            let newest = &superblocks(&storage)[0];
            assert_eq!((newest.generation, newest.log_durable), (3, 1));
        }
    }

    #[test]
    fn both_superblocks_name_a_ring_before_the_log_goes_on_in_it() {
        let (storage, mut log) = with_a_batch();
        let gone_on = log.go_on_in(&storage, RingLocation::Segments(1), 256);
        assert_eq!(gone_on, Ok(Vec::new()));
        let named = superblocks(&storage);
        assert_eq!((named[0].generation, named[1].generation), (4, 3));
        for superblock in &named {
            assert_eq!(superblock.rings.all(), [front(0), in_segment_1(1)]);
            assert_eq!(superblock.log_durable, 1, "it is known how far it had come");
        }
        assert_eq!((log.ring_blocks(), log.used_blocks()), (256, 0));
    }

    #[test]
    fn a_ring_that_was_never_written_to_is_left_for_the_next() {
        let (storage, mut log) = with_a_batch();
        let first = log.go_on_in(&storage, RingLocation::Segments(1), 256);
        assert_eq!(first, Ok(Vec::new()));
        let second = log.go_on_in(&storage, RingLocation::Segments(2), 256);
        assert_eq!(second, Ok(std::iter::once(1..2).collect()));
        for superblock in &superblocks(&storage) {
            let places: Vec<_> = superblock.rings.all().iter().map(|r| r.place).collect();
            assert_eq!(places, [RingLocation::Front, RingLocation::Segments(2)]);
        }
    }

    #[test]
    fn segments_of_the_log_are_left_when_no_superblock_names_them() {
        let (storage, mut log) = with_a_batch();
        let gone_on = log.go_on_in(&storage, RingLocation::Segments(1), 256);
        assert_eq!(gone_on, Ok(Vec::new()));
        // The log is not needed any more, so it returns to the front ring.
        let left = log.settle(&storage, &checkpoint(3, 1, 1));
        let expected = Left {
            checkpoint: Vec::new(),
            log: std::iter::once(1..2).collect(),
            is_elsewhere: true,
        };
        assert_eq!(left, Ok(expected));
        let named = superblocks(&storage);
        assert_eq!((named[0].generation, named[1].generation), (6, 5));
        for superblock in &named {
            assert_eq!(superblock.rings.all(), [front(1)]);
            assert_eq!(superblock.checkpoint, [3]);
            assert_eq!((superblock.log_tail, superblock.opening_at_tail), (1, 1));
        }
        log.mark(&storage).expect("it is marked");
        assert_eq!((log.tail(), log.head()), (1, 2));
        // The frame that `mark` wrote begins at the tail. The rings have not changed, so only one
        // of the two superblocks is written.
        let left = log.settle(&storage, &checkpoint(4, 1, 1));
        let expected = Left {
            checkpoint: vec![3],
            log: Vec::new(),
            is_elsewhere: false,
        };
        assert_eq!(left, Ok(expected));
        let named = superblocks(&storage);
        assert_eq!((named[0].generation, named[1].generation), (7, 6));
    }

    #[test]
    fn a_checkpoint_in_a_replay_leaves_what_was_not_read_yet() {
        let storage = MemoryStorage::with_content(vec![0; 6 << 20]);
        let mut log = OpenLog::new(Superblock {
            log_durable: 9,
            rings: Rings::of(vec![front(0), in_segment_1(5)]).expect("a log can be in them"),
            ..superblock()
        });
        log.replayed(7, 6, 0);
        let left = log.settle(&storage, &checkpoint(3, 6, 7));
        let expected = Left {
            checkpoint: Vec::new(),
            log: Vec::new(),
            is_elsewhere: false,
        };
        assert_eq!(left, Ok(expected));
        let newest = &superblocks(&storage)[0];
        assert_eq!(newest.rings.all(), [in_segment_1(5)]);
        // The tail is not known to belong to this incarnation, so `opening_at_tail` stays 0. The
        // superblock still records the whole durable part.
        assert_eq!((newest.log_durable, newest.opening_at_tail), (9, 0));
        log.begin(&storage).expect("it begins");
        assert_eq!((log.head(), superblocks(&storage)[0].log_durable), (6, 6));
        assert_eq!(log.append(&storage, &[1]), Ok(8), "it follows the last");
    }

    #[test]
    #[should_panic(expected = "batches come after what was replayed")]
    fn no_batch_is_taken_before_the_log_is_taken_up() {
        let storage = MemoryStorage::with_content(vec![0; 6 << 20]);
        let _ = OpenLog::new(superblock()).append(&storage, &[1]);
    }

    #[test]
    fn a_longer_log_is_asked_for_again_where_there_are_other_segments() {
        let (_, mut log) = with_a_batch();
        assert!(!log.was_refused(10));
        log.note_refused(10);
        assert!(log.was_refused(10));
        assert!(!log.was_refused(11));
    }

    /// A device below a page cache, which has only the superblocks.
    struct Cached {
        /// Content that reads return.
        cache: MemoryStorage,
        /// Content that survives a power cut.
        device: MemoryStorage,
        /// Fault of the durable writes.
        fault: Fault,
    }

    enum Fault {
        /// The durable write at this offset fails, and its data is only in the cache. No later sync
        /// writes it, as after a failed write-back on Linux.
        UnwrittenAt(u64),
        /// The power is cut during the durable write at this offset. The write leaves garbage in
        /// its block.
        TornAt(u64),
    }

    impl Storage for Cached {
        fn len_bytes(&self) -> u64 {
            self.cache.len_bytes()
        }

        fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
            self.cache.read(offset, buffer)
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
            self.cache.write(offset, data)
        }

        fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
            self.cache.write(offset, data)?;
            match self.fault {
                Fault::UnwrittenAt(lost) if lost == offset => Err(StorageError::Failed(5)),
                Fault::TornAt(torn) if torn == offset => {
                    self.device.write(offset, &vec![0xa5; data.len()])?;
                    Err(StorageError::Failed(5))
                }
                _ => self.device.write(offset, data),
            }
        }

        fn sync(&self) -> Result<(), StorageError> {
            Ok(())
        }

        fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
            self.cache.resize(len_bytes)
        }
    }

    /// After a failed write, the superblock that an opening reads may exist only in the page cache.
    /// The older superblock is then the only durable one. It must not be overwritten before the
    /// superblock that was read is durable.
    #[test]
    fn a_superblock_that_was_read_is_made_durable_before_the_other_is_overwritten() {
        let old = superblock();
        let blank = || MemoryStorage::with_content(vec![0; 6 << 20]);
        let mut storage = Cached {
            cache: blank(),
            device: blank(),
            // The place of generation 2.
            fault: Fault::UnwrittenAt(0),
        };
        old.write(&storage.cache).expect("it is in the cache");
        old.write(&storage.device).expect("it is on the device");
        let begun = OpenLog::new(old).begin(&storage);
        assert!(begun.is_err(), "generation 2 is in the cache only");
        let read = superblocks(&storage.cache).remove(0);
        assert_eq!(read.generation, 2);
        // Generation 3 takes the place of generation 1.
        storage.fault = Fault::TornAt(BLOCK_BYTES as u64);
        let begun = OpenLog::new(read).begin(&storage);
        assert!(begun.is_err(), "the power is cut");
        let left = superblocks(&storage.device);
        let generations: Vec<u64> = left.iter().map(|left| left.generation).collect();
        assert_eq!(generations, [2], "superblocks after the power cut");
    }
}
