//! One queue of CFQ: its requests, its position among the other queues, and its time slice.

use super::super::lanes::{Expiries, Lane};
use super::super::queues::{Rank, rank_of};
use super::super::{Bio, Tag};

/// A queue of CFQ.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    pub(super) lane: Lane,
    /// The next request to dispatch.
    pub(super) next: Option<Tag>,
    pub(super) sync: bool,
    pub(super) rank: Rank,
    /// The priority level: 0 is the most urgent, 7 the least.
    pub(super) level: u64,
    /// Sort key among queues of the same class; the queue with the lowest key is served first.
    pub(super) key_ns: u64,
    /// Unused time of the queue's last slice, by which the queue's next position is shifted.
    pub(super) residual_ns: u64,
    /// End of the current slice; `None` until the first request of the slice has completed.
    pub(super) slice_end_ns: Option<u64>,
    /// Number of requests dispatched in the slice.
    pub(super) slice_dispatched: u64,
    /// True when the queue's oldest request was checked for expiry in the current slice.
    looked: bool,
    /// Number of the queue's requests that are on the dispatch list or with the device.
    pub(super) under_way: usize,
    /// Number of the queue's waiting requests for metadata.
    pub(super) metadata: usize,
    /// True when the device is allowed to stay idle for the queue while the queue is empty.
    pub(super) may_idle: bool,
    /// True when the queue has had a request.
    known: bool,
}

impl Flow {
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }

    /// Adopts the priority of the bio's task if the queue is empty; initializes the queue at its
    /// first bio.
    pub(super) fn set_owner(&mut self, bio: &Bio) {
        if !self.is_empty() {
            return;
        }
        (self.rank, self.level) = rank_of(bio);
        self.sync = bio.is_sync();
        if !self.known {
            self.known = true;
            self.may_idle = self.sync && self.rank != Rank::Idle;
        }
    }

    pub(super) fn begin_slice(&mut self) {
        self.slice_end_ns = None;
        self.slice_dispatched = 0;
        self.looked = false;
    }

    pub(super) fn is_slice_over(&self, now_ns: u64) -> bool {
        self.slice_end_ns.is_some_and(|end_ns| now_ns >= end_ns)
    }

    /// Returns the oldest request if it has expired. Only the first call in a slice checks; later
    /// calls return `None`.
    pub(super) fn expired_once(&mut self, expiries: &Expiries, now_ns: u64) -> Option<Tag> {
        if std::mem::replace(&mut self.looked, true) {
            return None;
        }
        // CFQ treats a request as expired at its expiry time, not only after it.
        self.lane.expired(expiries, now_ns.saturating_add(1))
    }
}
