//! The flushes that clients wait for, and up to which change they have come.

use std::cell::Cell;

use bimetal_rt::sync::Event;

/// See the module.
#[derive(Default)]
pub(super) struct Flushes {
    /// All changes below this sequence number were flushed for a client.
    below: Cell<u64>,
    waiting: Cell<u32>,
    /// A side has flushed or could not, or counts no more.
    pub(super) changed: Event,
}

/// A flush that waits, until it is dropped: its client may leave in the middle.
pub(super) struct FlushWaits<'f>(&'f Flushes);

impl Drop for FlushWaits<'_> {
    fn drop(&mut self) {
        let waiting = &self.0.waiting;
        waiting.set(waiting.get() - 1);
    }
}

impl Flushes {
    /// A flush begins to wait.
    pub(super) fn wait(&self) -> FlushWaits<'_> {
        self.waiting.set(self.waiting.get() + 1);
        FlushWaits(self)
    }

    /// True when a client waits for a flush.
    pub(super) fn are_waited_for(&self) -> bool {
        self.waiting.get() > 0
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
