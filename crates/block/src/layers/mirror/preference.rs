//! Which side reads go to first, and how many of them another side may be asked as well.

use std::cell::{Cell, RefCell};

use bimetal_policy::hedge::HedgeBudget;
use bimetal_rt::Instant;

/// See the module.
pub(super) struct Preference {
    /// The side that is asked first, by number.
    pub(super) side: Cell<usize>,
    /// When the other sides are measured again.
    pub(super) next_probe: Cell<Instant>,
    /// Whether late reads are asked of another side as well.
    pub(super) hedges: bool,
    /// How many of them still may be.
    pub(super) budget: RefCell<HedgeBudget>,
}

impl Preference {
    /// Reads go to a side until another one proves to be faster.
    pub(super) fn of(side: usize, hedges: bool) -> Preference {
        Preference {
            side: Cell::new(side),
            next_probe: Cell::new(Instant::ZERO),
            hedges,
            budget: RefCell::new(HedgeBudget::default()),
        }
    }
}
