//! Shared state of rebuilds and scrubs, which restore the content of sides while the volume is in
//! use: their pace in relation to clients, and the ranges that no side could provide.

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
    /// Counters of client requests, to which background work gives way.
    pub(super) clients: Clients,
    /// Scheduler by which rebuilds share the sides with clients.
    pub(super) share: Share,
    /// Changes that wait until a side that is being rebuilt has room for them, in order of arrival.
    pub(super) following: WaitQueue,
    pub(super) scrub: Scrub,
    /// Ranges whose content no side could provide. Their repair is retried only after a side has
    /// returned, since that side possibly has the content.
    lost: RefCell<RangeSet>,
}

impl Repair {
    /// Creates the state. Rebuilds keep to `rebuild_rates`; a scrub gives way to clients and, if
    /// `scrub_rate` is given, reads at most `scrub_rate` bytes a second.
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

    /// Removes a range from the lost ranges, because the range is written again.
    pub(super) fn forget_lost(&self, range: Range<u64>) {
        self.lost.borrow_mut().remove(range);
    }

    /// Removes all lost ranges. Called when a side has returned, because that side possibly has the
    /// content of these ranges.
    pub(super) fn forget_all_lost(&self) {
        self.lost.borrow_mut().clear();
    }
}
