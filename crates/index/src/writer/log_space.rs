//! Space in the log: the length of its ring, the time at which its tail moves, and the changes that
//! are written back or relogged so that the tail can move.
//!
//! An index begins with a short log. When the ring is nearly full, the log moves to a longer ring,
//! up to the maximum length of the log. Only if no longer ring is possible are changes written
//! back, or relogged ([`relog`](super::relog)), to free the log. When no part of the log is needed,
//! or when the index is compacted, the log returns to the ring at the front of the storage. A batch
//! must never be refused as long as writing leaves back can make room for it.

use super::Writer;
use super::checkpoint::Detail;
use super::maintenance::LEAVES_IN_STEP;
use super::unless_full;
use crate::error::{At, Error};
use crate::rings::{RingLocation, segments_for};
use crate::storage::{BLOCK_BYTES, sync};

impl Writer {
    /// Moves the log to a ring of `blocks` blocks at `place`.
    fn go_on_in(&mut self, place: RingLocation, blocks: u64) -> Result<(), Error> {
        for segments in self.log.go_on_in(&*self.tree.storage, place, blocks)? {
            self.segments.release_log(segments);
        }
        self.statistics.log_rings += 1;
        Ok(())
    }

    /// Moves the log to a longer ring if the log has not reached its maximum length and the storage
    /// has room; otherwise returns false. After a failed attempt, the next attempt is made only
    /// when the number of segments has changed or when a waiting batch needs `needed_blocks`
    /// blocks. For a waiting batch, an attempt is always worthwhile, because other programs may
    /// have freed space on the file system.
    pub(super) fn lengthen_log(&mut self, needed_blocks: u64) -> Result<bool, Error> {
        let Some(blocks) = self.log.rings().longer(&self.tree.geometry, needed_blocks) else {
            return Ok(false);
        };
        let was_refused = needed_blocks == 0 && self.log.was_refused(self.segments.count());
        if self.options.paper.is_some() || was_refused {
            return Ok(false);
        }
        let storage = self.storage();
        let count = segments_for(&self.tree.geometry, blocks);
        let spare = self.spare_segments();
        match self.segments.take_for_log(&*storage, count, spare) {
            Ok(first) => {
                // The storage can have become longer. A superblock must not name a segment beyond
                // the durable end of the storage, so the storage is synced first.
                let synced = sync(&*storage);
                synced.at("extending the storage", 0)?;
                self.go_on_in(RingLocation::Segments(first), blocks)?;
                Ok(true)
            }
            Err(Error::Full { .. }) => {
                self.log.note_refused(self.segments.count());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Moves the log back to the front ring. Returns the log position from which the log is in the
    /// front ring: the previous rings are freed when nothing before that position is needed.
    pub(super) fn shorten_log(&mut self) -> Result<u64, Error> {
        let places = self.log.rings().all().iter();
        let uses_front = places.clone().any(|ring| ring.place == RingLocation::Front);
        if !uses_front {
            self.go_on_in(RingLocation::Front, self.tree.geometry.front_blocks)?;
        }
        Ok(self.log.rings().current().from)
    }

    /// Performs one step of freeing the log before `target`. The step ends when [`LEAVES_IN_STEP`]
    /// leaves have been written or relogged. The number can be slightly higher, because leaves are
    /// relogged in whole frames. Returns false if no part of the log before `target` is needed any
    /// more.
    pub(super) fn free_some_log(&mut self, target: u64) -> Result<bool, Error> {
        let end = self.leaves_freed() + u64::from(LEAVES_IN_STEP);
        while self.leaves_freed() < end {
            if !self.free_log(target)? {
                return Ok(false);
            }
            self.clean_some()?;
        }
        Ok(true)
    }

    /// Returns the number of leaves that were written or relogged since the index was opened, plus
    /// the number of leaves that applied waiting range deletions. Each of these actions helps to
    /// free the log.
    pub(super) fn leaves_freed(&self) -> u64 {
        let statistics = &self.statistics;
        statistics.consolidations + statistics.patches + statistics.relogged + statistics.taken_in
    }

    /// Continues the checkpoint in progress, if any. Otherwise, if the log is nearly full and
    /// cannot be lengthened, frees part of it, in proportion to the `blocks` that the last group
    /// took, and takes a checkpoint once enough of the log is free. If the log is not nearly full,
    /// takes a checkpoint if one is due.
    pub(super) fn move_tail(&mut self, blocks: u64) -> Result<(), Error> {
        if self.is_checkpointing() {
            return self.continue_checkpoint();
        }
        let ring = self.log.ring_blocks();
        let is_nearly_full = self.log.used_blocks() >= ring / 4 * 3;
        if !is_nearly_full || self.lengthen_log(0)? {
            return match self.checkpointer.is_due() {
                true => self.take_checkpoint(Detail::Places),
                false => Ok(()),
            };
        }
        let target = self.log.head() - ring / 8;
        for _ in 0..blocks.clamp(1, 64) {
            if !self.free_log(target)? {
                return self.take_checkpoint(Detail::Places);
            }
            // To free a part of the log, leaves were written back. Cleaning must reclaim the space
            // of their old images.
            self.clean_some()?;
            if self.is_checkpointing() {
                break;
            }
        }
        Ok(())
    }

    /// Makes room in the log for a batch of `bytes` bytes: completes the checkpoint in progress,
    /// lengthens the log, or writes changes back until the batch fits.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if the storage has no room for the changes that would have to be written
    /// back.
    pub(super) fn make_log_room(&mut self, bytes: usize) -> Result<(), Error> {
        for _ in 0..4 {
            if self.has_log_room(bytes) {
                return Ok(());
            }
            while self.is_checkpointing() {
                self.continue_checkpoint()?;
            }
            if self.has_log_room(bytes) {
                return Ok(());
            }
            if self.lengthen_log(self.log_blocks_for(bytes))? {
                continue;
            }
            let ring = self.log.ring_blocks();
            let target = self.log.head().saturating_sub(ring / 4);
            while self.free_log(target)? {
                unless_full(self.clean_some())?;
            }
            self.checkpoint_now()?;
        }
        match self.has_log_room(bytes) {
            true => Ok(()),
            false => Err(Error::Full {
                len_bytes: self.tree.storage.len_bytes(),
            }),
        }
    }

    /// Returns the number of log blocks that a batch of `bytes` bytes can need, plus an eighth of
    /// the ring for relogged records.
    fn log_blocks_for(&self, bytes: usize) -> u64 {
        (bytes / BLOCK_BYTES) as u64 + 2 + self.log.ring_blocks() / 8
    }

    fn has_log_room(&self, bytes: usize) -> bool {
        self.log.free_blocks() >= self.log_blocks_for(bytes)
    }
}
