//! Dropping entries of the log. The index forgets the entries a few at a time, since there may be
//! tens of thousands, and their space is not reused while the index still has one of them.

use std::rc::Rc;

use bimetal_rt::turn::give_way;

use super::index::Entry;
use super::log::Log;
use crate::error::IoError;

impl Log {
    /// Drops the entries before a position: durably, before their space is reused.
    ///
    /// # Errors
    /// When the device fails; then nothing has changed.
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
        // With no entry left, the log begins where the next entry goes. An entry may be in flight
        // there, and is found from there on.
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
        *self.checkpoint.borrow_mut() = next;
        dropping.in_turns().await;
        self.pump();
        self.changed.notify();
        Ok(())
    }
}

/// The entries before a position, which are no longer needed. Dropping this guard forgets all of
/// them.
struct Dropping<'l> {
    log: &'l Log,
    position: u64,
    /// The position from which on space is not reused until then.
    pinned: u64,
}

impl<'l> Dropping<'l> {
    /// Protects the space of the entries before a position until the index has forgotten them.
    fn of(log: &'l Log, position: u64) -> Dropping<'l> {
        let pinned = log.tail();
        log.index.borrow_mut().pin(pinned);
        Dropping {
            log,
            position,
            pinned,
        }
    }

    /// Forgets the entries, in as many turns of the executor as this takes.
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
