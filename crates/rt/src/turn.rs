//! The length of a turn of the executor, counted in steps.
//!
//! Between two looks at the ring a thread answers nobody, so the work of one turn is bounded. What
//! walks over tables counts the entries that it looks at, and a walk that may be long waits at
//! [`give_way`] from time to time. The counting stands in the tables themselves, not in those who
//! use them: a loop that forgets to give way shows as a long turn, in tests and in `status`.

use std::cell::Cell;

use crate::executor::yield_now;

/// Steps after which a turn ends: about as many looks into an ordered map. The last task of a turn
/// may go past this by what it does between two calls of [`give_way`].
pub const TURN_STEPS_MAX: u64 = 4096;

/// Small entries that lie side by side and count as one step together.
const ENTRIES_PER_STEP: usize = 16;

thread_local! {
    /// Steps of the turn that this thread is in.
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// What the longest turns of an executor have been since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestTurn {
    /// The longest time between two looks at the ring, in nanoseconds; 0 in virtual time, where a
    /// turn takes none.
    pub time_ns: u64,
    /// The most steps counted in one turn.
    pub steps: u64,
}

/// Counts work of the turn that this thread is in. A step is about as much as looking up one entry
/// of an ordered map.
#[inline]
pub fn count_steps(steps: u64) {
    STEPS.with(|counted| counted.set(counted.get().saturating_add(steps)));
}

/// Counts a walk over so many small entries that lie side by side in memory.
#[inline]
pub fn count_entries(entries: usize) {
    count_steps(entries.div_ceil(ENTRIES_PER_STEP) as u64);
}

/// Lets the executor look at the ring, and at the other tasks, while the steps of the turn are used
/// up; else goes on at once. Of several walks in one task that have waited for the next turn, only
/// as many go on in it as it has steps for.
pub async fn give_way() {
    while is_used_up() {
        yield_now().await;
    }
}

/// Steps that were counted since the turn began.
pub(crate) fn steps() -> u64 {
    STEPS.with(Cell::get)
}

/// True when the turn should end.
pub(crate) fn is_used_up() -> bool {
    steps() >= TURN_STEPS_MAX
}

/// A turn begins.
pub(crate) fn begin() {
    STEPS.with(|counted| counted.set(0));
}
