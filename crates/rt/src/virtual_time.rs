//! The virtual driver, which moves the clock to the deadline of the next timer instead of sleeping.
//! In virtual time no operation has an effect outside the process, so the result of a run depends
//! on its seed alone.

use std::cell::Cell;
use std::time::Duration;

use crate::time::Instant;

/// Options of a virtual runtime.
#[derive(Clone, Debug, Default)]
pub struct VirtualOptions {
    /// The seed of every random number of the run.
    pub seed: u64,
    /// Polls the ready tasks in an order drawn from the seed instead of first come, first served.
    /// This exposes code that relies on an order that is not guaranteed.
    pub shuffle: bool,
}

/// The clock of a virtual runtime.
#[derive(Default)]
pub(crate) struct VirtualClock {
    now: Cell<Instant>,
}

impl VirtualClock {
    pub(crate) fn now(&self) -> Instant {
        self.now.get()
    }

    /// Moves the clock forward by `duration` in the middle of a turn, which simulates a thread that
    /// does not run for this time.
    pub(crate) fn stall(&self, duration: Duration) {
        self.now.set(self.now.get() + duration);
    }

    /// Moves the clock forward to `until`, or leaves the clock unchanged when `until` has passed.
    ///
    /// # Panics
    /// If no timer is set: every task waits for another task, which in real time would be a hang.
    pub(crate) fn park(&self, until: Option<Instant>, live_tasks: usize) {
        let until = until.unwrap_or_else(|| {
            panic!("virtual time: {live_tasks} tasks wait and no timer is set, they would hang")
        });
        self.now.set(until.max(self.now.get()));
    }
}
