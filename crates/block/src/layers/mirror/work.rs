//! Operations in flight on a side, oldest first: all operations that the mirror has given to the
//! side and that have not ended. They show whether the side is stuck, has stopped answering, or is
//! idle.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_rt::Instant;

/// Start time of an operation, with the load of the side at that time.
#[derive(Clone, Copy)]
pub(super) struct Started {
    pub(super) at: Instant,
    /// Number of other operations that were in flight on the side when this operation started.
    pub(super) ahead: usize,
}

/// Operations in flight on a side; see the module.
pub(super) struct Work {
    /// The operations in flight by number, oldest first.
    started: RefCell<BTreeMap<u64, Started>>,
    next_operation: Cell<u64>,
    /// Number of batches in flight that count against the limit on drained batches (`drained` of
    /// [`Batch`](super::queue::Batch)).
    drains: Cell<usize>,
    /// True when the oldest operation in flight exceeds the side's own latency limit.
    stuck: Cell<bool>,
    /// Number of unfinished writes that have exceeded the wait limit of the hetero-mirroring paper.
    late: Cell<u32>,
    /// Time at which the side last completed an operation.
    last_progress: Cell<Instant>,
    /// Time at which the side last answered a read.
    last_read: Cell<Instant>,
}

impl Work {
    /// Creates the state of a side without operations in flight.
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

    /// Records the start of an operation. Returns the number of the operation, and how many
    /// operations were already in flight.
    pub(super) fn start(&self, now: Instant) -> (u64, usize) {
        let operation = self.next_operation.get();
        self.next_operation.set(operation + 1);
        let ahead = self.in_flight();
        let started = Started { at: now, ahead };
        self.started.borrow_mut().insert(operation, started);
        (operation, ahead)
    }

    /// Records the end of an operation, successful or not. Returns the start of the operation.
    ///
    /// # Panics
    /// When the operation has already ended.
    pub(super) fn finish(&self, operation: u64, now: Instant) -> Started {
        self.last_progress.set(now);
        let started = self.started.borrow_mut().remove(&operation);
        started.expect("an operation ends once")
    }

    /// Returns the oldest operation in flight with its number; `None` when there is none.
    pub(super) fn oldest(&self) -> Option<(u64, Started)> {
        let started = self.started.borrow();
        let (&operation, &oldest) = started.first_key_value()?;
        Some((operation, oldest))
    }

    /// Returns the number of operations in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.started.borrow().len()
    }

    /// Returns the number of batches in flight that were taken in elevator order or while the side
    /// was delayed. A limit applies to these batches.
    pub(super) fn drains(&self) -> usize {
        self.drains.get()
    }

    /// Records the start of a batch whose field `drained` is set. The number of such batches in
    /// flight is limited.
    pub(super) fn drain_starts(&self) {
        self.drains.set(self.drains.get() + 1);
    }

    /// Records the end of a batch whose field `drained` is set.
    pub(super) fn drain_ends(&self) {
        self.drains.set(self.drains.get() - 1);
    }

    /// Returns true when the oldest operation in flight exceeds the side's own latency limit.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.get()
    }

    /// Records whether the oldest operation in flight exceeds the side's own latency limit.
    pub(super) fn set_stuck(&self, stuck: bool) {
        self.stuck.set(stuck);
    }

    /// Records that a write has exceeded the paper's wait limit.
    pub(super) fn becomes_late(&self) {
        self.late.set(self.late.get() + 1);
    }

    /// Records that a late write has ended. Returns true when it was the last late write in flight.
    pub(super) fn late_is_done(&self) -> bool {
        self.late.set(self.late.get() - 1);
        self.late.get() == 0
    }

    /// Returns the time at which the side last completed an operation.
    pub(super) fn last_progress(&self) -> Instant {
        self.last_progress.get()
    }

    /// Records that the side has answered a read.
    pub(super) fn read_answered(&self, now: Instant) {
        self.last_read.set(now);
    }

    /// Returns the time at which the side last completed an operation or answered a read.
    pub(super) fn last_answer(&self) -> Instant {
        self.last_progress.get().max(self.last_read.get())
    }
}
