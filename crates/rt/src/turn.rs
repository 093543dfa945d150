//! Measures the length of a turn of the executor in steps.
//!
//! A thread handles no completion between two polls of the ring, so the work of one turn must be
//! bounded. Code that iterates over a table counts the visited entries. A loop that can be long
//! awaits [`give_way`] regularly. The tables count their visited entries themselves, so the users
//! of the tables need not count. A loop that never yields shows as a long turn, in tests and in
//! `status`.

use std::cell::Cell;

use crate::executor::yield_now;

/// Maximum number of steps of a turn; a step is about as much work as one lookup in an ordered map.
/// A turn can exceed this number by the work that its last task does before the task next calls
/// [`give_way`].
pub const TURN_STEPS_MAX: u64 = 4096;

/// Number of small adjacent entries that count as one step.
const ENTRIES_PER_STEP: usize = 16;

thread_local! {
    /// Number of steps counted in the current turn of this thread.
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Longest duration and largest number of steps of a turn, since the runtime was created or the
/// measurement was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LongestTurn {
    /// Maximum time between two polls of the ring, in nanoseconds; 0 in virtual time, where a turn
    /// takes no time.
    pub time_ns: u64,
    /// The most steps counted in one turn.
    pub steps: u64,
}

/// Adds `steps` to the work of this thread's current turn. A step costs about as much as one lookup
/// in an ordered map.
#[inline]
pub fn count_steps(steps: u64) {
    STEPS.with(|counted| counted.set(counted.get().saturating_add(steps)));
}

/// Adds the cost of a loop over `entries` small entries to the work of this thread's current turn.
/// The entries must be adjacent in memory.
#[inline]
pub fn count_entries(entries: usize) {
    count_steps(entries.div_ceil(ENTRIES_PER_STEP) as u64);
}

/// Waits for a later turn if the current turn has used all its steps; returns immediately
/// otherwise. While the caller waits, the executor polls the ring and the other tasks. If several
/// tasks wait here, the next turn continues only the number of tasks for which it has steps.
pub async fn give_way() {
    while is_used_up() {
        yield_now().await;
    }
}

/// Returns the number of steps counted since the turn began.
pub(crate) fn steps() -> u64 {
    STEPS.with(Cell::get)
}

/// Returns true when the turn should end.
pub(crate) fn is_used_up() -> bool {
    steps() >= TURN_STEPS_MAX
}

/// Begins a turn.
pub(crate) fn begin() {
    STEPS.with(|counted| counted.set(0));
}
