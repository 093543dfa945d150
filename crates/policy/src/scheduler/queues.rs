//! The assignment of bios to queues for schedulers with a queue per task: CFQ and BFQ.

use super::lanes::Lane;
use super::{Bio, Priority, Requests, Tag};

/// Number of queues shared by all tasks: async writes have one queue for each of 8 real-time
/// levels, 8 best-effort levels, and idle. The queues of tasks follow.
pub(super) const ASYNC_QUEUES: usize = 17;

/// The class of a queue, the highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    RealTime,
    #[default]
    BestEffort,
    Idle,
}

/// Returns the queue of a bio: that of its task if the bio is sync.
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

/// Returns the class of a bio, and its level there: 0 is the most urgent, 7 the least.
pub(super) fn rank_of(bio: &Bio) -> (Rank, u64) {
    match bio.priority {
        Priority::RealTime(level) => (Rank::RealTime, u64::from(level.min(7))),
        Priority::BestEffort(level) => (Rank::BestEffort, u64::from(level.min(7))),
        Priority::Idle => (Rank::Idle, 7),
    }
}

/// Queues of requests by sector: a bio or a request is merged only with requests of its own queue.
pub(super) trait Queues {
    /// Returns the requests of a queue, if it exists.
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
