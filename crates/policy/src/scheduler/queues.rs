//! Whose queue a bio goes to, where every task has one: CFQ and BFQ.

use super::{Bio, Priority};

/// Queues that no task has to itself: async writes have one for each of 8 levels of real time, 8 of best effort, and
/// idle. Those of tasks follow.
pub(super) const ASYNC_QUEUES: usize = 17;

/// The class of a queue; a higher one always goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    RealTime,
    #[default]
    BestEffort,
    Idle,
}

/// The queue that a bio belongs to: its task's if somebody waits for it.
pub(super) fn queue_of(bio: &Bio) -> usize {
    if bio.is_sync() {
        return ASYNC_QUEUES + bio.task as usize;
    }
    match bio.priority {
        Priority::RealTime(level) => usize::from(level.min(7)),
        Priority::BestEffort(level) => 8 + usize::from(level.min(7)),
        Priority::Idle => ASYNC_QUEUES - 1,
    }
}

/// The class of a bio, and its level there: 0 is the most urgent, 7 the least.
pub(super) fn rank_of(bio: &Bio) -> (Rank, u64) {
    match bio.priority {
        Priority::RealTime(level) => (Rank::RealTime, u64::from(level.min(7))),
        Priority::BestEffort(level) => (Rank::BestEffort, u64::from(level.min(7))),
        Priority::Idle => (Rank::Idle, 7),
    }
}
