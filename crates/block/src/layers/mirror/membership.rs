//! Membership: the sides of the volume according to the superblocks, those of them that count, and
//! how far this is durable.
//!
//! Nothing may be acknowledged before a side that counts durably has the epoch that excludes the
//! side that was given up last.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore};

use super::volume::Volume;

/// State of the membership; see the module.
pub(super) struct Membership {
    /// Superblocks of the sides; none in experiments over bare devices.
    pub(super) superblocks: Option<Volume>,
    /// Semaphore that admits one change of the set of sides at a time.
    pub(super) changing: Rc<Semaphore>,
    /// Signaled when the life cycle of a side, or the durable content of a superblock, has changed.
    pub(super) changed: Event,
    /// Number of the epoch that excludes the side given up last.
    epoch_needed: Cell<u64>,
    /// Number of the newest epoch that a healthy side durably has.
    epoch_marked: Cell<u64>,
    /// True when nothing has been written for a while, so that every side is to be marked quiet (no
    /// peer is ahead).
    pub(super) idle: Cell<bool>,
    /// Sequence number up to which all changes were flushed when the volume was closed.
    pub(super) closed_at: Cell<u64>,
}

impl Membership {
    /// Creates the membership according to these superblocks.
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

    /// Requires that a healthy side has this epoch before anything is acknowledged.
    pub(super) fn need(&self, epoch: u64) {
        self.epoch_needed.set(epoch);
    }

    /// Records that a healthy side durably has this epoch.
    pub(super) fn marked(&self, epoch: u64) {
        self.epoch_marked.set(self.epoch_marked.get().max(epoch));
        self.changed.notify();
    }

    /// Returns true when the side that was given up last is known to be behind, whatever happens.
    pub(super) fn is_marked(&self) -> bool {
        self.epoch_marked.get() >= self.epoch_needed.get()
    }
}
