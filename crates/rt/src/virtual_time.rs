//! The virtual driver: parking moves the clock to the next timer. No operation ever leaves the
//! process in this world, so a run depends on its seed alone.

use std::cell::Cell;
use std::time::Duration;

use crate::time::Instant;

/// How a virtual runtime is set up.
#[derive(Clone, Debug, Default)]
pub struct VirtualOptions {
    /// The seed of every random number of the run.
    pub seed: u64,
    /// Polls the tasks that are ready in an order drawn from the seed instead of first come, first
    /// served. It finds code that depends on an order nobody promised.
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

    /// Moves the clock forward by `duration` in the middle of a turn.
    pub(crate) fn stall(&self, duration: Duration) {
        self.now.set(self.now.get() + duration);
    }

    /// Moves the clock forward to `until`, or leaves it where it is when that has passed.
    ///
    /// # Panics
    /// When there is nothing to wait for: every task waits for another one, which in real time
    /// would be a hang.
    pub(crate) fn park(&self, until: Option<Instant>, live_tasks: usize) {
        let until = until.unwrap_or_else(|| {
            panic!("virtual time: {live_tasks} tasks wait and no timer is set, they would hang")
        });
        self.now.set(until.max(self.now.get()));
    }
}
