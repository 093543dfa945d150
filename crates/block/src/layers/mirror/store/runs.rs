//! Incarnations of a log (`run` in the code). Each opening and each failure begins a new
//! incarnation, so that no entry of an earlier incarnation can be mistaken for a new one.

use super::checkpoint::{self, Checkpoint, DISCONTINUITIES_MAX, Discontinuity};
use super::log::Log;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::Request;

impl Log {
    /// Durably begins a new incarnation. It starts one in-flight window (the largest span of writes
    /// in flight) after the head of the log, so that no late write of an earlier incarnation can
    /// overwrite an entry of the new one.
    ///
    /// # Errors
    /// When the device fails; `NoSpace` when entries must be dropped first.
    pub(super) async fn begin_run(&self) -> Result<(), IoError> {
        self.begin_run_at(|_, _| None).await
    }

    /// Begins a new incarnation as [`begin_run`](Log::begin_run) does, for a log that can drop no
    /// more entries. If the log has no space for another incarnation, and the last one has stored
    /// no entry, the new incarnation reuses the place of the last one. Without this reuse, a
    /// program that is killed whenever it opens the volume would use up the log. The first
    /// discontinuity record is never reused, because it determines which incarnation came before
    /// it.
    ///
    /// # Errors
    /// When the device fails; `NoSpace` when the log has no space and the last incarnation cannot
    /// be reused.
    pub(super) async fn begin_run_again(&self) -> Result<(), IoError> {
        self.begin_run_at(|discontinuities, head| {
            let empty = discontinuities.pop_if(|last| last.start == head);
            empty.filter(|_| !discontinuities.is_empty())
        })
        .await
    }

    /// Begins an incarnation. If the log has no space for another incarnation, this calls `place`,
    /// which returns the discontinuity record of an empty incarnation. The new incarnation reuses
    /// that record.
    async fn begin_run_at(
        &self,
        place: impl FnOnce(&mut Vec<Discontinuity>, u64) -> Option<Discontinuity>,
    ) -> Result<(), IoError> {
        let _turn = self.checkpointing.acquire(1).await;
        if !self.broken.get() {
            return Ok(());
        }
        assert!(self.flying.borrow().is_empty(), "one run after the other");
        let mut next = self.checkpoint.borrow().clone();
        let (head, tail) = (self.head.get(), next.tail);
        let is_empty = self.index.borrow().entries().is_empty();
        let floor = match is_empty {
            // If the log has no entries, the space before the head is free, except for the parts
            // that are being read.
            true => self.lowest_in_use().map_or(head, |used| used.min(head)),
            false => self.floor(),
        };
        next.discontinuities
            .retain(|discontinuity| discontinuity.start > tail);
        next.run += 1;
        let mut discontinuity = Discontinuity {
            run: next.run,
            end: head,
            start: (head + self.area.window()).next_multiple_of(BLOCK_BYTES),
        };
        if !is_empty && next.discontinuities.len() == DISCONTINUITIES_MAX
            || discontinuity.start + self.area.window() > self.area.limit(floor)
        {
            let empty = place(&mut next.discontinuities, head).ok_or(IoError::NoSpace)?;
            discontinuity = Discontinuity {
                run: next.run,
                ..empty
            };
        }
        let start = discontinuity.start;
        next.sequence += 1;
        next.kept_from = self.kept_from.get();
        next.durable_to = start;
        if is_empty {
            next.discontinuities.clear();
            next.tail = start;
            next.complete_below = self.complete.get();
        } else {
            next.discontinuities.push(discontinuity);
        }
        // The discontinuity record states that all entries before it exist, so these must be made
        // durable first.
        self.device.submit(Request::flush()).await?;
        self.write_checkpoint(&next).await?;
        *self.checkpoint.borrow_mut() = next;
        self.head.set(start);
        self.broken.set(false);
        self.cramped.set(false);
        // Everything read at the opening, or stored before the failure, is durable now.
        self.flushed.set(start);
        self.complete_durable.set(self.complete.get());
        Ok(())
    }

    /// Writes a checkpoint. Its sequence number is not used again, even if the write fails, since
    /// the checkpoint may be on the device nevertheless.
    pub(super) async fn write_checkpoint(&self, next: &Checkpoint) -> Result<(), IoError> {
        self.checkpoint.borrow_mut().sequence = next.sequence;
        checkpoint::write(&self.rt, &self.device, &self.side, next, &self.older_slot).await
    }
}
