//! What brings sides back to what they should hold while the volume is in use, as far as all of it
//! shares it: the pace of rebuild and scrub beside clients, and what no side could give.

use std::cell::RefCell;
use std::ops::Range;

use bimetal_rt::Rt;
use bimetal_rt::sync::WaitQueue;

use super::pace::Clients;
use super::scrub_progress::Scrub;
use super::share::{RebuildRates, Share};
use crate::range_set::RangeSet;

/// See the module.
pub(super) struct Repair {
    /// Requests of clients, to which all else gives way.
    pub(super) clients: Clients,
    /// How rebuilds share the sides with clients.
    pub(super) share: Share,
    /// Changes that wait for a side that is being rebuilt, in the order in which they came.
    pub(super) following: WaitQueue,
    pub(super) scrub: Scrub,
    /// What no side could give, as long as no side comes that might have it: its repair is not
    /// tried again.
    lost: RefCell<RangeSet>,
}

impl Repair {
    /// Rebuilds keep to these rates beside clients; a scrub gives way to clients and reads at most
    /// `scrub_rate` bytes a second, if given.
    pub(super) fn new(rt: &Rt, rebuild_rates: RebuildRates, scrub_rate: Option<u64>) -> Repair {
        Repair {
            clients: Clients::new(rt),
            share: Share::new(rt, rebuild_rates),
            following: WaitQueue::new(),
            scrub: Scrub::new(scrub_rate),
            lost: RefCell::new(RangeSet::new()),
        }
    }

    /// True when no side could give a range.
    pub(super) fn is_lost(&self, range: &Range<u64>) -> bool {
        self.lost.borrow().covers(range)
    }

    /// No side could give a range.
    pub(super) fn note_lost(&self, range: Range<u64>) {
        self.lost.borrow_mut().insert(range);
    }

    /// A range is written anew.
    pub(super) fn forget_lost(&self, range: Range<u64>) {
        self.lost.borrow_mut().remove(range);
    }

    /// A side has come that may have what no other one could give.
    pub(super) fn forget_all_lost(&self) {
        self.lost.borrow_mut().clear();
    }
}
