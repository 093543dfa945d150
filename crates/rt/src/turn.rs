//! Measures the length of a turn of the executor in steps.
//!
//! A thread handles no completion between two polls of the ring, so the work of one turn must be
//! bounded. Code that iterates over a table counts the visited entries. A loop that can be long
//! awaits [`give_way`] from time to time. The tables count their visited entries themselves, so the
//! users of the tables need not count. A loop that forgets to yield shows as a long turn, in tests
//! and in `status`.

use std::cell::Cell;

use crate::executor::yield_now;

/// Number of steps after which a turn ends: about as much work as this number of lookups in an
/// ordered map. The last task of a turn can exceed this number by its work between two calls of
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

/// Adds the cost of a loop over `entries` small entries, which are adjacent in memory, to the work
/// of this thread's current turn.
#[inline]
pub fn count_entries(entries: usize) {
    count_steps(entries.div_ceil(ENTRIES_PER_STEP) as u64);
}

/// Waits for a later turn if the steps of the current turn are used up; returns immediately
/// otherwise. While the caller waits, the executor polls the ring and the other tasks. If several
/// tasks wait, only as many of them continue in the next turn as it has steps for.
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
