//! Whose queue a bio goes to, where every task has one: CFQ and BFQ.

use super::lanes::Lane;
use super::{Bio, Priority, Requests, Tag};

/// Queues that no task has to itself: async writes have one for each of 8 levels of real time, 8 of
/// best effort, and idle. Those of tasks follow.
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

/// Queues of requests by sector: a bio or a request is merged with those of its own queue.
pub(super) trait Queues {
    /// The requests of a queue, if there is one.
    fn lane(&self, queue: usize) -> Option<&Lane>;

    /// The request in front of which `bio` could be put.
    fn starting_behind(&self, bio: &Bio) -> Option<Tag> {
        self.lane(queue_of(bio))?.sorted.at(bio.end_sector())
    }

    /// The request before `tag` in its queue.
    fn before(&self, tag: Tag, r: &Requests) -> Option<Tag> {
        let bio = &r[tag].bio;
        let lane = self.lane(queue_of(bio))?;
        lane.sorted.before(bio.start_sector, tag)
    }

    /// The request after `tag` in its queue.
    fn after(&self, tag: Tag, r: &Requests) -> Option<Tag> {
        let bio = &r[tag].bio;
        let lane = self.lane(queue_of(bio))?;
        lane.sorted.after(bio.start_sector, tag)
    }
}

/// True if a bio and a request are of one queue.
pub(super) fn share_queue(tag: Tag, bio: &Bio, r: &Requests) -> bool {
    queue_of(bio) == queue_of(&r[tag].bio)
}
