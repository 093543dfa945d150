//! Outdated content: what cleaning must not move, because a newer change or a rebuild will replace
//! it soon.
//!
//! On a disk that is being rebuilt, outdated content could only be read from the disk itself, block
//! by block. Moving it would cost a seek for each block, and the rebuild would wait for it.
//!
//! Content must never be given up unless the rebuild has durably announced that it writes there:
//! only then is the range treated as lacking after a crash. It must never be given up while it is
//! being copied: the side may have the newest content, and the range then counts as in sync.

use std::ops::Range;

use super::Store;
use super::checksums::Expected;
use super::segments::{Live, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;

/// Why the content that a side has in a range is not the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Outdated {
    /// Changes in the queue of the side replace it.
    Queued,
    /// The side is out of sync there, and is being rebuilt.
    OutOfSync,
}

/// Function that says why the content of a range is outdated; its result is `None` when parts of it
/// are, or may be, the newest content.
pub(in super::super) type AskOutdated = dyn Fn(&Range<u64>) -> Option<Outdated>;

impl Store {
    /// Removes from a piece of cleaning the blocks that die where they are: those that a rebuild
    /// replaces, those of which the log has newer records, and those that changes in the queue
    /// replace. The first ones are marked as lost, and so die at once. The others keep their
    /// segments from becoming free until the newer records are folded, so they are moved while less
    /// space is free than cleaning aims for, or so little that it must be gained at once: the log
    /// may wait for it, and nothing is folded before.
    ///
    /// # Errors
    /// Errors of the device when a page of the checksums is read.
    pub(super) async fn without_outdated(
        &self,
        segments: &Segments,
        piece: Vec<Live>,
    ) -> Result<Vec<Live>, IoError> {
        let mut newest = Vec::with_capacity(piece.len());
        for live in piece {
            let offset = segments.volume_offset(&live);
            let range = offset..offset + BLOCK_BYTES;
            let stays = match self.why_outdated(&range) {
                None => false,
                Some(Outdated::OutOfSync) if self.give_up(segments, &live, &range).await? => true,
                Some(_) => !segments.is_below_target() && !segments.is_cramped(),
            };
            if !stays {
                newest.push(live);
            }
        }
        Ok(newest)
    }

    /// Returns why the content that the map refers to in a range is not the newest; `None` when
    /// parts of it are, or may be.
    pub(super) fn why_outdated(&self, range: &Range<u64>) -> Option<Outdated> {
        if !self.log.index.borrow().newest_in(range).is_empty() {
            return Some(Outdated::Queued);
        }
        self.outdated.borrow().as_ref().and_then(|ask| ask(range))
    }

    /// Marks a live block that is out of sync as lost. Returns false when this is not allowed.
    async fn give_up(
        &self,
        segments: &Segments,
        live: &Live,
        range: &Range<u64>,
    ) -> Result<bool, IoError> {
        let Some(checksums) = &self.checksums else {
            return Ok(false);
        };
        let allowed = self.takes_straight(range);
        // A copy of the rebuild that is being written there has the lock.
        let home = allowed.then(|| self.home.try_lock(range.clone())).flatten();
        if home.is_none() {
            return Ok(false);
        }
        if segments.forget_live(live) {
            let first = range.start / BLOCK_BYTES;
            self.set_expected(checksums, first, &[Expected::Lost])
                .await?;
        }
        Ok(true)
    }
}
