//! Shared state of rebuild and scrub, which restore the content of sides while the volume is in
//! use: their pace beside clients, and the ranges that no side could provide.

use std::cell::RefCell;
use std::ops::Range;

use bimetal_rt::Rt;
use bimetal_rt::sync::WaitQueue;

use super::pace::Clients;
use super::scrub_progress::Scrub;
use super::share::{RebuildRates, Share};
use crate::range_set::RangeSet;

/// State of repairs; see the module.
pub(super) struct Repair {
    /// Client requests, to which all background work gives way.
    pub(super) clients: Clients,
    /// Scheduler by which rebuilds share the sides with clients.
    pub(super) share: Share,
    /// Changes that wait for a side that is being rebuilt, in the order of arrival.
    pub(super) following: WaitQueue,
    pub(super) scrub: Scrub,
    /// Ranges that no side could provide. Their repair is not retried before a side comes that
    /// might have them.
    lost: RefCell<RangeSet>,
}

impl Repair {
    /// Creates the state. Rebuilds keep to `rebuild_rates` beside clients. A scrub gives way to
    /// clients and reads at most `scrub_rate` bytes a second, if given.
    pub(super) fn new(rt: &Rt, rebuild_rates: RebuildRates, scrub_rate: Option<u64>) -> Repair {
        Repair {
            clients: Clients::new(rt),
            share: Share::new(rt, rebuild_rates),
            following: WaitQueue::new(),
            scrub: Scrub::new(scrub_rate),
            lost: RefCell::new(RangeSet::new()),
        }
    }

    /// Returns true when no side could provide the range.
    pub(super) fn is_lost(&self, range: &Range<u64>) -> bool {
        self.lost.borrow().covers(range)
    }

    /// Records that no side could provide the range.
    pub(super) fn note_lost(&self, range: Range<u64>) {
        self.lost.borrow_mut().insert(range);
    }

    /// Removes a range that is written again.
    pub(super) fn forget_lost(&self, range: Range<u64>) {
        self.lost.borrow_mut().remove(range);
    }

    /// Removes all ranges, because a side has come that may have them.
    pub(super) fn forget_all_lost(&self) {
        self.lost.borrow_mut().clear();
    }
}
