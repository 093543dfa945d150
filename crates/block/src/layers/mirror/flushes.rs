//! The flushes that clients wait for, and up to which change they have come.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_rt::sync::Event;

/// See the module.
#[derive(Default)]
pub(super) struct Flushes {
    /// All changes below this sequence number were flushed for a client.
    below: Cell<u64>,
    /// The sequence numbers below which those that wait want everything flushed, and how many each.
    waiting: RefCell<BTreeMap<u64, u32>>,
    /// A side has flushed or could not, or counts no more.
    pub(super) changed: Event,
}

/// A flush that waits, until it is dropped: its client may leave in the middle.
pub(super) struct FlushWaits<'f> {
    flushes: &'f Flushes,
    boundary: u64,
}

impl Drop for FlushWaits<'_> {
    fn drop(&mut self) {
        let mut waiting = self.flushes.waiting.borrow_mut();
        let count = waiting.get_mut(&self.boundary).expect("it waits");
        *count -= 1;
        if *count == 0 {
            waiting.remove(&self.boundary);
        }
    }
}

impl Flushes {
    /// A flush of all changes below a sequence number begins to wait.
    pub(super) fn wait(&self, boundary: u64) -> FlushWaits<'_> {
        *self.waiting.borrow_mut().entry(boundary).or_default() += 1;
        FlushWaits {
            flushes: self,
            boundary,
        }
    }

    /// The lowest sequence number above another one up to which a flush waits.
    pub(super) fn first_above(&self, number: u64) -> Option<u64> {
        let waiting = self.waiting.borrow();
        waiting.range(number + 1..).next().map(|(&first, _)| first)
    }

    /// True when a client waits for a flush.
    pub(super) fn are_waited_for(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// All changes below this sequence number were flushed for a client.
    pub(super) fn below(&self) -> u64 {
        self.below.get()
    }

    /// A client was told that all changes below this sequence number are durable.
    pub(super) fn done_below(&self, number: u64) {
        self.below.set(self.below.get().max(number));
    }
}
