//! Room in the log: how long its ring is, when its tail has to move, and what has to leave it for
//! that.
//!
//! An index begins with a short log. When it is nearly full, the log goes on in a longer ring until
//! it is as long as it may be; only then are changes written back, or logged again
//! ([`carry`](super::carry)), to free it. When nothing of it is needed, or the index is compacted,
//! the log goes back to the front of the storage. A batch must never be refused as long as writing
//! leaves back can make room for it.

use super::Writer;
use super::checkpoint::Detail;
use super::unless_full;
use super::upkeep::LEAVES_IN_STEP;
use crate::error::{At, Error};
use crate::rings::{Place, segments_for};
use crate::storage::{BLOCK_BYTES, sync};

impl Writer {
    /// The log goes on in a ring of so many blocks at this place.
    fn go_on_in(&mut self, place: Place, blocks: u64) -> Result<(), Error> {
        for segments in self.log.go_on_in(&*self.tree.storage, place, blocks)? {
            self.segments.give_back_log(segments);
        }
        self.figures.log_rings += 1;
        Ok(())
    }

    /// Makes the log longer, if it may be and there is room. False if not. Where there was none, it
    /// is tried again when the storage has another number of segments, or when a batch needs so
    /// many blocks that waits for it: others may have made room on the file system.
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
                // The storage may have become longer, and a superblock must name nothing beyond its
                // end.
                let synced = sync(&*storage);
                synced.at("making the storage longer", 0)?;
                self.go_on_in(Place::Segments(first), blocks)?;
                Ok(true)
            }
            Err(Error::Full { .. }) => {
                self.log.note_refused(self.segments.count());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The log goes back to the front. Returns the position from which on it is there: what it was
    /// in is given back when nothing before that is needed.
    pub(super) fn shorten_log(&mut self) -> Result<u64, Error> {
        let places = self.log.rings().all().iter();
        let uses_front = places.clone().any(|ring| ring.place == Place::Front);
        if !uses_front {
            self.go_on_in(Place::Front, self.tree.geometry.front_blocks)?;
        }
        Ok(self.log.rings().current().from)
    }

    /// Frees the log before `target`, until as many leaves were written or logged again as a step
    /// may, or a frame more. False if nothing before it is needed any more.
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

    /// Leaves that were written or logged again since the index was opened, and those that took
    /// deletions in.
    pub(super) fn leaves_freed(&self) -> u64 {
        let figures = &self.figures;
        figures.folds + figures.patches + figures.carried + figures.taken_in
    }

    /// Goes on with a checkpoint, or gets the log ready for one.
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
            // Leaves were written back for it, and what they leave behind must not pile up.
            self.clean_some()?;
            if self.is_checkpointing() {
                break;
            }
        }
        Ok(())
    }

    /// Makes the log have room for a batch of so many bytes, whatever that takes.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if the storage has no room for what would have to leave the log.
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

    /// Blocks of the log that a batch of so many bytes may need, and some for what is logged again.
    fn log_blocks_for(&self, bytes: usize) -> u64 {
        (bytes / BLOCK_BYTES) as u64 + 2 + self.log.ring_blocks() / 8
    }

    fn has_log_room(&self, bytes: usize) -> bool {
        self.log.free_blocks() >= self.log_blocks_for(bytes)
    }
}
