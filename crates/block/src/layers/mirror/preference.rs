//! Preference of reads: the side that is read first, and the budget of late reads that may also be
//! sent to a second side.

use std::cell::{Cell, RefCell};

use bimetal_policy::hedge::HedgeBudget;
use bimetal_rt::Instant;

/// State of the preference; see the module.
pub(super) struct Preference {
    /// Index of the side that is read first.
    pub(super) side: Cell<usize>,
    /// Earliest time at which the latency of the sides that reads do not use is measured again.
    pub(super) next_probe: Cell<Instant>,
    /// Whether late reads can also be sent to a second side.
    pub(super) hedges: bool,
    /// Budget of late reads that can also be sent to a second side.
    pub(super) budget: RefCell<HedgeBudget>,
}

impl Preference {
    /// Creates a preference for `side`. It is kept until measurements show that another side is
    /// faster.
    pub(super) fn of(side: usize, hedges: bool) -> Preference {
        Preference {
            side: Cell::new(side),
            next_probe: Cell::new(Instant::ZERO),
            hedges,
            budget: RefCell::new(HedgeBudget::default()),
        }
    }
}
