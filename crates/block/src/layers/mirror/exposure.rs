//! The exposure: acknowledged bytes that not all healthy sides hold. Only this module changes the
//! set of exposed ranges.
//!
//! The exposure must never exceed its bound in bytes.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bimetal_rt::sync::WaitQueue;

use crate::range_set::RangeSet;

/// Maximum of the bytes by which writes may exceed the pace of the sides.
const SPARE_BYTES_MAX: u64 = 256 << 10;

/// The exposed ranges; see the module.
pub(super) struct Exposure {
    ranges: RefCell<RangeSet>,
    bytes_peak: Cell<u64>,
    /// Bytes by which writes may exceed the pace of the sides: half of what the sides have stored
    /// lately.
    spare_bytes: Cell<u64>,
    /// Bound in bytes that the logs put on the exposure (the acknowledged bytes that not all
    /// healthy sides hold). The log of a side must be able to hold all content that the side lacks.
    bytes_max_by_logs: Cell<u64>,
    /// Writes that wait for room in the exposure, in the order in which they began to wait.
    pub(super) backpressured_writes: WaitQueue,
}

impl Exposure {
    /// Creates an empty exposure.
    pub(super) fn none() -> Exposure {
        Exposure {
            ranges: RefCell::new(RangeSet::new()),
            bytes_peak: Cell::new(0),
            spare_bytes: Cell::new(0),
            bytes_max_by_logs: Cell::new(u64::MAX),
            backpressured_writes: WaitQueue::new(),
        }
    }

    /// Adds a range of a write that is acknowledged before all healthy sides hold it.
    ///
    /// # Panics
    /// When the exposure then exceeds `bytes_max` bytes.
    pub(super) fn add(&self, range: Range<u64>, bytes_max: u64) {
        self.ranges.borrow_mut().insert(range);
        let bytes = self.bytes();
        self.bytes_peak.set(self.bytes_peak.get().max(bytes));
        assert!(bytes <= bytes_max, "exposure keeps to its bound");
    }

    /// Removes a range that all healthy sides now hold.
    pub(super) fn remove(&self, range: Range<u64>) {
        let removed = self.ranges.borrow_mut().remove(range);
        let spare = self.spare_bytes.get() + removed / 2;
        self.spare_bytes.set(spare.min(SPARE_BYTES_MAX));
    }

    /// Takes `len` bytes of what writes may exceed the pace of the sides by. Returns false if there
    /// is less.
    ///
    /// When the sides become slower, more is exposed than their pace allows for. If no write could
    /// be acknowledged until that much is stored, clients would stand still; so half of what is
    /// stored is given to them.
    pub(super) fn take_spare(&self, len: u64) -> bool {
        let left = self.spare_bytes.get().checked_sub(len);
        self.spare_bytes.set(left.unwrap_or(self.spare_bytes.get()));
        left.is_some()
    }

    /// Returns the number of separate exposed ranges.
    pub(super) fn count(&self) -> u64 {
        self.ranges.borrow().len() as u64
    }

    /// Returns the number of exposed bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.ranges.borrow().bytes()
    }

    /// Returns the highest number of exposed bytes since the volume was opened.
    pub(super) fn bytes_peak(&self) -> u64 {
        self.bytes_peak.get()
    }

    /// Returns true when no range is exposed.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.borrow().is_empty()
    }

    /// Returns true when no part of the range is exposed.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.ranges.borrow().is_clear(range)
    }

    /// Returns the exposed ranges, in ascending order.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.ranges.borrow().iter().collect()
    }

    /// Returns the bound in bytes that the logs of the sides put on the exposure.
    pub(super) fn bytes_max_by_logs(&self) -> u64 {
        self.bytes_max_by_logs.get()
    }

    /// Sets the bound that the logs of the sides put on the exposure.
    pub(super) fn set_bytes_max_by_logs(&self, bytes: u64) {
        self.bytes_max_by_logs.set(bytes);
    }
}
