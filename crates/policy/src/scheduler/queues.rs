//! The assignment of bios to queues in CFQ and BFQ, the schedulers with one queue per task.

use super::lanes::Lane;
use super::{Bio, Priority, Requests, Tag};

/// Number of queues for async writes, which all tasks share: one queue for each of 8 real-time
/// levels, one for each of 8 best-effort levels, and one for the idle class. The queues of the
/// tasks have the indexes from this number on.
pub(super) const ASYNC_QUEUES: usize = 17;

/// The priority class of a queue, in descending order of priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    RealTime,
    #[default]
    BestEffort,
    Idle,
}

/// Returns the index of the queue of a bio: its task's queue if the bio is sync, otherwise the
/// shared queue of its priority.
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

/// Returns the priority class of a bio, and the level within the class: 0 is the most urgent, 7 the
/// least.
pub(super) fn rank_of(bio: &Bio) -> (Rank, u64) {
    match bio.priority {
        Priority::RealTime(level) => (Rank::RealTime, u64::from(level.min(7))),
        Priority::BestEffort(level) => (Rank::BestEffort, u64::from(level.min(7))),
        Priority::Idle => (Rank::Idle, 7),
    }
}

/// A set of queues whose requests are sorted by sector. Bios and requests are merged only within
/// one queue.
pub(super) trait Queues {
    /// Returns the requests of the queue with this index, if the queue exists.
    fn lane(&self, queue: usize) -> Option<&Lane>;

    /// Returns the request to which `bio` could be prepended.
    fn starting_behind(&self, bio: &Bio) -> Option<Tag> {
        self.lane(queue_of(bio))?.sorted.at(bio.end_sector())
    }

    /// Returns the request before `tag` in its queue.
    fn before(&self, tag: Tag, r: &Requests) -> Option<Tag> {
        let bio = &r[tag].bio;
        let lane = self.lane(queue_of(bio))?;
        lane.sorted.before(bio.start_sector, tag)
    }

    /// Returns the request after `tag` in its queue.
    fn after(&self, tag: Tag, r: &Requests) -> Option<Tag> {
        let bio = &r[tag].bio;
        let lane = self.lane(queue_of(bio))?;
        lane.sorted.after(bio.start_sector, tag)
    }
}

/// Returns true if a bio and a request belong to the same queue.
pub(super) fn share_queue(tag: Tag, bio: &Bio, r: &Requests) -> bool {
    queue_of(bio) == queue_of(&r[tag].bio)
}
