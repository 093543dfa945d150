//! The exposure: what was acknowledged although not all healthy sides hold it. Only this file
//! changes it.
//!
//! It must never exceed its bound in bytes.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bimetal_rt::sync::WaitQueue;

use crate::range_set::RangeSet;

/// See the module.
pub(super) struct Exposure {
    ranges: RefCell<RangeSet>,
    bytes_peak: Cell<u64>,
    /// What the logs of the sides can take at once bounds it as well, in bytes.
    bytes_max_by_logs: Cell<u64>,
    /// Writes that wait until there is room for them, in the order in which they began to wait.
    pub(super) held_back: WaitQueue,
}

impl Exposure {
    /// Nothing is exposed.
    pub(super) fn none() -> Exposure {
        Exposure {
            ranges: RefCell::new(RangeSet::new()),
            bytes_peak: Cell::new(0),
            bytes_max_by_logs: Cell::new(u64::MAX),
            held_back: WaitQueue::new(),
        }
    }

    /// A range was acknowledged that not all healthy sides hold.
    ///
    /// # Panics
    /// When more than `bytes_max` are exposed with it.
    pub(super) fn add(&self, range: Range<u64>, bytes_max: u64) {
        self.ranges.borrow_mut().insert(range);
        let bytes = self.bytes();
        self.bytes_peak.set(self.bytes_peak.get().max(bytes));
        assert!(bytes <= bytes_max, "exposure keeps to its bound");
    }

    /// All healthy sides hold a range.
    pub(super) fn remove(&self, range: Range<u64>) {
        self.ranges.borrow_mut().remove(range);
    }

    /// Bytes that are exposed.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.borrow().bytes()
    }

    /// The most bytes that were exposed since the volume was opened.
    pub(super) fn bytes_peak(&self) -> u64 {
        self.bytes_peak.get()
    }

    /// True when nothing is exposed.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.borrow().is_empty()
    }

    /// True when nothing of a range is exposed.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.ranges.borrow().is_clear(range)
    }

    /// The ranges that are exposed, in order of place.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().iter().collect()
    }

    /// The bound that the logs of the sides set, in bytes.
    pub(super) fn bytes_max_by_logs(&self) -> u64 {
        self.bytes_max_by_logs.get()
    }

    /// The logs of the sides have changed.
    pub(super) fn set_bytes_max_by_logs(&self, bytes: u64) {
        self.bytes_max_by_logs.set(bytes);
    }
}
