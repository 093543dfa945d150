//! Membership: which sides the superblocks say that the volume has and which of them count, and how
//! far that has been written down.
//!
//! Nothing may be acknowledged before a side that counts durably has the epoch that sets it apart
//! from the side that was given up last.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore};

use super::volume::Volume;

/// See the module.
pub(super) struct Membership {
    /// The superblocks of the sides; none in experiments over bare devices.
    pub(super) superblocks: Option<Volume>,
    /// The set of sides changes once at a time.
    pub(super) changing: Rc<Semaphore>,
    /// The life cycle of a side, or what a superblock durably says, has changed.
    pub(super) changed: Event,
    /// The number of the epoch that sets the healthy sides apart from the one given up last.
    epoch_needed: Cell<u64>,
    /// The number of the newest epoch that a healthy side durably has.
    epoch_marked: Cell<u64>,
    /// Nothing has been written for a while, and every side is to say that nobody is ahead.
    pub(super) quiet: Cell<bool>,
    /// The sequence number up to which everything was flushed when the volume was closed.
    pub(super) closed_at: Cell<u64>,
}

impl Membership {
    /// All that counts is as these superblocks say.
    pub(super) fn of(superblocks: Option<Volume>) -> Membership {
        Membership {
            superblocks,
            changing: Semaphore::new(1),
            changed: Event::new(),
            epoch_needed: Cell::new(0),
            epoch_marked: Cell::new(0),
            quiet: Cell::new(false),
            closed_at: Cell::new(0),
        }
    }

    /// Nothing is acknowledged before a healthy side has this epoch.
    pub(super) fn need(&self, epoch: u64) {
        self.epoch_needed.set(epoch);
    }

    /// A healthy side durably has this epoch.
    pub(super) fn marked(&self, epoch: u64) {
        self.epoch_marked.set(self.epoch_marked.get().max(epoch));
        self.changed.notify();
    }

    /// True when the side that was given up last is known to be behind, whatever happens.
    pub(super) fn is_marked(&self) -> bool {
        self.epoch_marked.get() >= self.epoch_needed.get()
    }
}
