//! What a side is working on: every operation that the mirror has given it and that has not ended,
//! oldest first. From this it is known whether the side is stuck, silent or idle.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_rt::Instant;

/// The start of an operation.
#[derive(Clone, Copy)]
pub(super) struct Started {
    pub(super) at: Instant,
    /// Operations that were in flight already.
    pub(super) ahead: usize,
}

/// See the module.
pub(super) struct Work {
    /// The operations in flight, oldest first.
    started: RefCell<BTreeMap<u64, Started>>,
    next_operation: Cell<u64>,
    /// Of these, batches that were taken from a drained queue.
    drains: Cell<usize>,
    /// The oldest operation has exceeded the side's own limit.
    stuck: Cell<bool>,
    /// Writes that have exceeded the paper's wait limit and are not done.
    late: Cell<u32>,
    /// When the side last completed anything.
    last_progress: Cell<Instant>,
    /// When it last answered a read.
    last_read: Cell<Instant>,
}

impl Work {
    /// A side that has been given nothing.
    pub(super) fn none() -> Work {
        Work {
            started: RefCell::new(BTreeMap::new()),
            next_operation: Cell::new(0),
            drains: Cell::new(0),
            stuck: Cell::new(false),
            late: Cell::new(0),
            last_progress: Cell::new(Instant::ZERO),
            last_read: Cell::new(Instant::ZERO),
        }
    }

    /// An operation starts. Returns its number and how many are in flight already.
    pub(super) fn start(&self, now: Instant) -> (u64, usize) {
        let operation = self.next_operation.get();
        self.next_operation.set(operation + 1);
        let ahead = self.in_flight();
        let started = Started { at: now, ahead };
        self.started.borrow_mut().insert(operation, started);
        (operation, ahead)
    }

    /// An operation has ended, whatever came of it. Returns how it was started.
    ///
    /// # Panics
    /// When it has ended before.
    pub(super) fn finish(&self, operation: u64, now: Instant) -> Started {
        self.last_progress.set(now);
        let started = self.started.borrow_mut().remove(&operation);
        started.expect("an operation ends once")
    }

    /// The oldest operation in flight with its number.
    pub(super) fn oldest(&self) -> Option<(u64, Started)> {
        let started = self.started.borrow();
        let (&operation, &oldest) = started.first_key_value()?;
        Some((operation, oldest))
    }

    /// Operations in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.started.borrow().len()
    }

    /// Batches in flight that were taken from a drained queue.
    pub(super) fn drains(&self) -> usize {
        self.drains.get()
    }

    /// Such a batch starts.
    pub(super) fn drain_starts(&self) {
        self.drains.set(self.drains.get() + 1);
    }

    /// Such a batch has ended.
    pub(super) fn drain_ends(&self) {
        self.drains.set(self.drains.get() - 1);
    }

    /// True when the oldest operation has exceeded the side's own limit.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.get()
    }

    /// Notes whether it has.
    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.set(stuck);
    }

    /// A write has exceeded the paper's wait limit.
    pub(super) fn becomes_late(&self) {
        self.late.set(self.late.get() + 1);
    }

    /// Such a write is done. True when it was the last one.
    pub(super) fn late_is_done(&self) -> bool {
        self.late.set(self.late.get() - 1);
        self.late.get() == 0
    }

    /// When the side last completed anything.
    pub(super) fn last_progress(&self) -> Instant {
        self.last_progress.get()
    }

    /// The side has answered a read.
    pub(super) fn read_answered(&self, now: Instant) {
        self.last_read.set(now);
    }

    /// When the side last answered anything at all.
    pub(super) fn last_answer(&self) -> Instant {
        self.last_progress.get().max(self.last_read.get())
    }
}
