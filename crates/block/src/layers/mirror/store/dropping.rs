//! Dropping entries of the log. The index removes the entries a few at a time, since there may be
//! tens of thousands of them, and their space is not reused before the index has removed all of
//! them.

use std::rc::Rc;

use bimetal_rt::turn::give_way;

use super::index::Entry;
use super::log::Log;
use crate::error::IoError;

impl Log {
    /// Durably drops the entries before a position, and then releases their space.
    ///
    /// # Errors
    /// When the device fails; no entry is dropped then.
    pub(super) async fn drop_before(self: &Rc<Self>, position: u64) -> Result<(), IoError> {
        let _turn = self.checkpointing.acquire(1).await;
        let mut next = self.checkpoint.borrow().clone();
        let dropped = {
            let index = self.index.borrow();
            let dropped = index.entries().iter().take_while(|e| e.end <= position);
            dropped.last().map(|last| (last.end, last.complete_below))
        };
        let Some((_, complete_below)) = dropped else {
            return Ok(());
        };
        let following = |next: &Entry| next.position;
        let left = {
            let index = self.index.borrow();
            index
                .entries()
                .iter()
                .find(|entry| entry.end > position)
                .map(following)
        };
        next.sequence += 1;
        // If no entry remains, the log begins where the next entry is placed. An entry may be in
        // flight there, and an opening must find it.
        next.tail = left.unwrap_or_else(|| self.stored());
        next.complete_below = next.complete_below.max(complete_below);
        next.shared_below = next.shared_below.max(self.shared_below.get());
        next.kept_from = self.kept_from.get();
        next.durable_to = self.flushed.get();
        let tail = next.tail;
        next.discontinuities
            .retain(|discontinuity| discontinuity.start > tail);
        self.write_checkpoint(&next).await?;
        let dropping = Dropping::of(self, position);
        // What is freed is not given away before the pace is known at which it may be.
        self.withheld.keep(tail - self.tail());
        *self.checkpoint.borrow_mut() = next;
        dropping.in_turns().await;
        self.pump();
        self.changed.notify();
        Ok(())
    }
}

/// Guard that removes from the index the entries before a position, which are no longer needed. All
/// of them are removed when the guard is dropped.
struct Dropping<'l> {
    log: &'l Log,
    position: u64,
    /// Start of the log space that must not be reused before the entries are removed, as a log
    /// position.
    pinned: u64,
}

impl<'l> Dropping<'l> {
    /// Protects the space of the entries before a position from reuse until the index has removed
    /// them.
    fn of(log: &'l Log, position: u64) -> Dropping<'l> {
        let pinned = log.tail();
        log.index.borrow_mut().pin(pinned);
        Dropping {
            log,
            position,
            pinned,
        }
    }

    /// Removes the entries one by one, and yields to other tasks in between where necessary.
    async fn in_turns(self) {
        while self.drop_first() {
            give_way().await;
        }
    }

    fn drop_first(&self) -> bool {
        let mut index = self.log.index.borrow_mut();
        index.drop_first_before(self.position)
    }
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        while self.drop_first() {}
        self.log.index.borrow_mut().unpin(self.pinned);
    }
}
