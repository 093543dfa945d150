//! Membership: the sides of the volume according to the superblocks, the members among them, and
//! the parts of this information that are durable.
//!
//! When a side is ejected, a new epoch begins that excludes it. No request may be acknowledged
//! until at least one healthy side durably has that epoch.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore};

use super::volume::Volume;

/// State of the membership; see the module.
pub(super) struct Membership {
    /// Superblocks of the sides; `None` in experiments over bare devices.
    pub(super) superblocks: Option<Volume>,
    /// Semaphore that admits one operation on the set of sides at a time.
    pub(super) changing: Rc<Semaphore>,
    /// Signaled when the life cycle of a side, or the durable content of a superblock, has changed.
    pub(super) changed: Event,
    /// Number of the epoch that excludes the side ejected last.
    epoch_needed: Cell<u64>,
    /// Number of the newest epoch that a healthy side durably has.
    epoch_marked: Cell<u64>,
    /// True when no change was admitted for a while and every side durably has all changes. Every
    /// side is then to be marked clean-idle (no peer is ahead of it).
    pub(super) idle: Cell<bool>,
    /// Sequence number of the next change at the time when the volume was stopped. The stop makes
    /// the sides flush every change below this number.
    pub(super) closed_at: Cell<u64>,
}

impl Membership {
    /// Creates the membership from the superblocks of the sides.
    pub(super) fn of(superblocks: Option<Volume>) -> Membership {
        Membership {
            superblocks,
            changing: Semaphore::new(1),
            changed: Event::new(),
            epoch_needed: Cell::new(0),
            epoch_marked: Cell::new(0),
            idle: Cell::new(false),
            closed_at: Cell::new(0),
        }
    }

    /// From now on, no change and no flush is acknowledged until at least one healthy side durably
    /// has this epoch.
    pub(super) fn need(&self, epoch: u64) {
        self.epoch_needed.set(epoch);
    }

    /// Records that a healthy side durably has this epoch.
    pub(super) fn marked(&self, epoch: u64) {
        self.epoch_marked.set(self.epoch_marked.get().max(epoch));
        self.changed.notify();
    }

    /// Returns true when a healthy side durably has an epoch that excludes the side ejected last,
    /// so that after any crash the ejected side is known to be behind.
    pub(super) fn is_marked(&self) -> bool {
        self.epoch_marked.get() >= self.epoch_needed.get()
    }
}
