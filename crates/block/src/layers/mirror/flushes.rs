//! The flushes for which clients wait, each with its boundary: the sequence number below which it
//! makes all changes durable. The module also records the sequence number below which all changes
//! were flushed for a client.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_rt::Instant;
use bimetal_rt::sync::Event;

/// State of the flushes; see the module.
#[derive(Default)]
pub(super) struct Flushes {
    /// Highest sequence number for which a client's flush has completed: all changes below it are
    /// flushed.
    below: Cell<u64>,
    /// Boundaries of the waiting flushes (the sequence numbers below which they make all changes
    /// durable), each with the number of flushes that wait for this boundary, and the time at which
    /// the first of them began to wait.
    waiting: RefCell<BTreeMap<u64, (u32, Instant)>>,
    /// Signaled when a flush of a side has ended, or when flushes no longer depend on a side.
    pub(super) changed: Event,
}

/// Registration of a waiting flush. When the registration is dropped, the flush no longer counts as
/// waiting. So a client can cancel its request at any time.
pub(super) struct FlushWaits<'f> {
    flushes: &'f Flushes,
    boundary: u64,
}

impl Drop for FlushWaits<'_> {
    fn drop(&mut self) {
        let mut waiting = self.flushes.waiting.borrow_mut();
        let (count, _) = waiting.get_mut(&self.boundary).expect("it waits");
        *count -= 1;
        if *count == 0 {
            waiting.remove(&self.boundary);
        }
    }
}

impl Flushes {
    /// Registers a flush that waits from `now` on until all changes below the sequence number
    /// `boundary` are durable.
    pub(super) fn wait(&self, boundary: u64, now: Instant) -> FlushWaits<'_> {
        let mut waiting = self.waiting.borrow_mut();
        waiting.entry(boundary).or_insert((0, now)).0 += 1;
        drop(waiting);
        FlushWaits {
            flushes: self,
            boundary,
        }
    }

    /// Returns the lowest boundary above `number` for which a flush waits. The boundary of a flush
    /// is the sequence number below which it makes all changes durable.
    pub(super) fn first_above(&self, number: u64) -> Option<u64> {
        let waiting = self.waiting.borrow();
        waiting.range(number + 1..).next().map(|(&first, _)| first)
    }

    /// Returns the time since which the oldest flush has been waiting.
    pub(super) fn oldest_since(&self) -> Option<Instant> {
        let waiting = self.waiting.borrow();
        waiting.values().next().map(|(_, since)| *since)
    }

    /// Returns true when a client waits for a flush.
    pub(super) fn are_waited_for(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Returns the sequence number up to which (exclusive) flushes for clients have made all
    /// changes durable.
    pub(super) fn below(&self) -> u64 {
        self.below.get()
    }

    /// Records that a flush of all changes below the sequence number `number` was completed for a
    /// client.
    pub(super) fn done_below(&self, number: u64) {
        self.below.set(self.below.get().max(number));
    }
}
