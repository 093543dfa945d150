//! The runs of a log: each opening, and each failure, begins a new one, so that nothing that was
//! written before can pass for what is written from then on.

use super::checkpoint::{self, Checkpoint, JUMPS_MAX, Jump};
use super::log::Log;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::Request;

impl Log {
    /// Starts a new run one window behind the head, so that nothing written before can fall on
    /// what is written from now on. Durable when this returns.
    ///
    /// # Errors
    /// When the device fails, or `NoSpace` when the log must be emptied further first.
    pub(super) async fn begin_run(&self) -> Result<(), IoError> {
        self.begin_run_at(|_, _| None).await
    }

    /// As [`begin_run`](Log::begin_run), where the log cannot be emptied any further: a run in
    /// which no entry was stored is begun once more at the same place, or a program that is killed
    /// whenever it opens the volume would use up the log. The first jump tells which run came
    /// before it, so that one stays.
    ///
    /// # Errors
    /// When the device fails, or `NoSpace` when the last run has an entry.
    pub(super) async fn begin_run_again(&self) -> Result<(), IoError> {
        self.begin_run_at(|jumps, head| {
            let empty = jumps.pop_if(|last| last.start == head);
            empty.filter(|_| !jumps.is_empty())
        })
        .await
    }

    /// Begins a run. `place` names the jump to an empty run that is used again when there is no
    /// space for another one.
    async fn begin_run_at(
        &self,
        place: impl FnOnce(&mut Vec<Jump>, u64) -> Option<Jump>,
    ) -> Result<(), IoError> {
        let _turn = self.checkpointing.acquire(1).await;
        if !self.broken.get() {
            return Ok(());
        }
        assert!(self.flying.borrow().is_empty(), "one run after the other");
        let mut next = self.checkpoint.borrow().clone();
        let (head, tail) = (self.head.get(), next.tail);
        let (is_empty, pinned) = {
            let index = self.index.borrow();
            (index.entries().is_empty(), index.lowest_pin())
        };
        let floor = match is_empty {
            // Nothing is needed of what lies before, so it takes no space, but for what is being
            // read.
            true => pinned.map_or(head, |pinned| pinned.min(head)),
            false => self.floor(),
        };
        next.jumps.retain(|jump| jump.start > tail);
        next.run += 1;
        let mut jump = Jump {
            run: next.run,
            end: head,
            start: (head + self.area.window()).next_multiple_of(BLOCK_BYTES),
        };
        if !is_empty && next.jumps.len() == JUMPS_MAX
            || jump.start - floor + self.area.window() > self.area.bytes
        {
            let empty = place(&mut next.jumps, head).ok_or(IoError::NoSpace)?;
            jump = Jump {
                run: next.run,
                ..empty
            };
        }
        let start = jump.start;
        next.sequence += 1;
        next.kept_from = self.kept_from.get();
        next.durable_to = start;
        if is_empty {
            next.jumps.clear();
            next.tail = start;
            next.complete_below = self.complete.get();
        } else {
            next.jumps.push(jump);
        }
        // The jump says that all entries before it are there, so they must be durable first.
        self.device.submit(Request::flush()).await?;
        self.write_checkpoint(&next).await?;
        *self.checkpoint.borrow_mut() = next;
        self.head.set(start);
        self.broken.set(false);
        self.cramped.set(false);
        // What was read when the side was opened, or was stored before the failure, is durable now.
        self.flushed.set(start);
        self.complete_durable.set(self.complete.get());
        Ok(())
    }

    /// Writes a checkpoint. Its sequence is used up even when that fails: it may be on the device.
    pub(super) async fn write_checkpoint(&self, next: &Checkpoint) -> Result<(), IoError> {
        self.checkpoint.borrow_mut().sequence = next.sequence;
        checkpoint::write(&self.rt, &self.device, &self.side, next, &self.older_slot).await
    }
}
