//! Room of a log that is free and is withheld from new changes, for the sake of an even pace.

use std::cell::Cell;

use bimetal_rt::Instant;

/// Room withheld from new changes.
#[derive(Default)]
pub(super) struct Withheld {
    /// Number of bytes; `None` while nothing is withheld.
    pub(super) bytes: Cell<Option<u64>>,
    /// Whether changes wait only because room is withheld.
    pub(super) waits: Cell<bool>,
    /// Time at which changes last waited for withheld room.
    pub(super) waited_at: Cell<Option<Instant>>,
    /// Number of times that changes began to wait for withheld room.
    pub(super) count: Cell<u64>,
}

impl Withheld {
    /// Returns the number of times that changes began to wait for withheld room.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    /// Notes that an entry with changes was formed, or that changes wait for other room.
    pub(super) fn settle(&self) {
        self.waits.set(false);
    }

    /// Withholds `freed` bytes more, which an entry has left, if room is withheld at all.
    pub(super) fn keep(&self, freed: u64) {
        self.bytes.set(self.bytes.get().map(|bytes| bytes + freed));
    }
}
