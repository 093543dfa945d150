//! What brings sides back to what they should hold while the volume is in use, as far as all of it
//! shares it: the pace of rebuild and scrub beside clients, and what no side could give.

use std::cell::RefCell;
use std::ops::Range;

use super::pace::{Clients, Pace};
use super::scrub_progress::Scrub;
use crate::range_set::RangeSet;

/// See the module.
pub(super) struct Repair {
    /// Requests of clients, to which all else gives way.
    pub(super) clients: Clients,
    pub(super) rebuild_pace: Pace,
    pub(super) scrub: Scrub,
    /// What no side could give, as long as no side comes that might have it: its repair is not
    /// tried again.
    lost: RefCell<RangeSet>,
}

impl Repair {
    /// Gives way to `clients`, and keeps to these rates in bytes a second, where given.
    pub(super) fn new(
        clients: Clients,
        rebuild_rate: Option<u64>,
        scrub_rate: Option<u64>,
    ) -> Self {
        Repair {
            clients,
            rebuild_pace: Pace::new(rebuild_rate),
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
