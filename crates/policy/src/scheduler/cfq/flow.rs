//! One queue of CFQ: its requests, its place among the others, and its slice of time.

use super::super::lanes::{Expiries, Lane};
use super::super::queues::{Rank, rank_of};
use super::super::{Bio, Tag};

/// A queue.
#[derive(Clone, Debug, Default)]
pub(super) struct Flow {
    pub(super) lane: Lane,
    /// What it goes on with.
    pub(super) next: Option<Tag>,
    pub(super) sync: bool,
    pub(super) rank: Rank,
    /// 0 is the most urgent, 7 the least.
    pub(super) level: u64,
    /// Its place among queues of its rank, the lowest first.
    pub(super) key_ns: u64,
    /// Time that it did not use of its last slice.
    pub(super) residual_ns: u64,
    /// When its slice ends; `None` until the first request in it is done.
    pub(super) slice_end_ns: Option<u64>,
    /// Requests dispatched in its slice.
    pub(super) slice_dispatched: u64,
    /// The oldest was looked at in its slice.
    looked: bool,
    /// Its requests on the list or with the device.
    pub(super) under_way: usize,
    /// Its waiting requests for metadata.
    pub(super) metadata: usize,
    /// The device may be kept for it through a pause.
    pub(super) may_idle: bool,
    /// It has had a request.
    known: bool,
}

impl Flow {
    pub(super) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }

    /// Takes over the priority of who asks, as it is when the queue has nothing else.
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

    /// The oldest if it has expired, asked about once in a slice.
    pub(super) fn expired_once(&mut self, expiries: &Expiries, now_ns: u64) -> Option<Tag> {
        if std::mem::replace(&mut self.looked, true) {
            return None;
        }
        // A request is due at the very time of its expiry here.
        self.lane.expired(expiries, now_ns.saturating_add(1))
    }
}
