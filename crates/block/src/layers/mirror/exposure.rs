//! The exposure: acknowledged bytes that not all healthy sides hold. Only this module changes the
//! set of exposed ranges.
//!
//! The exposure must never exceed its bound in bytes.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::time::Duration;

use bimetal_policy::exposure::{ExposureBounds, ExposurePace, Sides};
use bimetal_rt::sync::WaitQueue;
use bimetal_rt::{Instant, Rt};

use super::lately::Lately;
use crate::range_set::RangeSet;

/// The exposed ranges; see the module.
pub(super) struct Exposure {
    ranges: RefCell<RangeSet>,
    bytes_peak: Cell<u64>,
    /// The pace at which writes are acknowledged early.
    pace: RefCell<ExposurePace>,
    /// Whether the first of the waiting writes waits for more than its credit: a bound forbids it.
    is_bounded: Cell<bool>,
    /// Whether a task wakes the writes that wait for credit.
    pub(super) is_paced: Cell<bool>,
    /// Bound in bytes that the logs put on the exposure (the acknowledged bytes that not all
    /// healthy sides hold). The log of a side must be able to hold all content that the side lacks.
    bytes_max_by_logs: Cell<u64>,
    /// Writes that wait for room in the exposure, in the order in which they began to wait.
    pub(super) backpressured_writes: WaitQueue,
    /// Number of writes that wait for room now.
    held_up: Cell<u64>,
    /// The times at which at least one write waited for room.
    held_up_lately: Lately,
}

/// A write that waits for room; it no longer waits when this guard is dropped.
pub(super) struct HeldUp<'e> {
    exposure: &'e Exposure,
    rt: &'e Rt,
}

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        let exposure = self.exposure;
        exposure.held_up.set(exposure.held_up.get() - 1);
        if exposure.held_up.get() == 0 {
            exposure.held_up_lately.set(self.rt.now(), false);
        }
    }
}

impl Exposure {
    /// Creates an empty exposure at the time `now`.
    pub(super) fn none(now: Instant) -> Exposure {
        let bounds = ExposureBounds {
            bytes_max: u64::MAX,
            age_ns_max: u64::MAX,
        };
        Exposure {
            ranges: RefCell::new(RangeSet::new()),
            bytes_peak: Cell::new(0),
            pace: RefCell::new(ExposurePace::new(now.as_ns(), bounds)),
            is_bounded: Cell::new(false),
            is_paced: Cell::new(false),
            bytes_max_by_logs: Cell::new(u64::MAX),
            backpressured_writes: WaitQueue::new(),
            held_up: Cell::new(0),
            held_up_lately: Lately::default(),
        }
    }

    /// Records that a write waits for room, until the returned guard is dropped.
    pub(super) fn hold_up<'e>(&'e self, rt: &'e Rt) -> HeldUp<'e> {
        self.held_up.set(self.held_up.get() + 1);
        self.held_up_lately.set(rt.now(), true);
        HeldUp { exposure: self, rt }
    }

    /// Returns for how many of the last ten seconds writes have waited for room; 0 if not for long.
    pub(super) fn held_up_seconds(&self, now: Instant) -> f64 {
        self.held_up_lately.held_up_seconds(now)
    }

    /// Adds a range of a write that is acknowledged at the time `now`, before all healthy sides
    /// hold it.
    ///
    /// # Panics
    /// When the exposure then exceeds `bytes_max` bytes.
    pub(super) fn add(&self, now: Instant, range: Range<u64>, bytes_max: u64) {
        self.ranges.borrow_mut().insert(range);
        let bytes = self.bytes();
        self.bytes_peak.set(self.bytes_peak.get().max(bytes));
        assert!(bytes <= bytes_max, "exposure keeps to its bound");
        self.pace.borrow_mut().note_exposed(now.as_ns(), bytes);
    }

    /// Removes a range that all healthy sides hold at the time `now`.
    pub(super) fn remove(&self, now: Instant, range: Range<u64>) {
        self.ranges.borrow_mut().remove(range);
        let bytes = self.bytes();
        self.pace.borrow_mut().note_stored(now.as_ns(), bytes);
    }

    /// Returns true when the pace allows a write of `len` bytes to be acknowledged at the time
    /// `now`.
    pub(super) fn is_within_pace(
        &self,
        now: Instant,
        len: u64,
        bounds: ExposureBounds,
        sides: Sides,
    ) -> bool {
        let mut pace = self.pace.borrow_mut();
        pace.set_bounds(bounds);
        pace.takes(now.as_ns(), len, sides)
    }

    /// Returns the time after which a write may be within the pace although the sides store nothing
    /// until then; `None` when they must.
    pub(super) fn paced_in(&self, now: Instant) -> Option<Duration> {
        let ns = self.pace.borrow().credit_in_ns(now.as_ns());
        ns.map(Duration::from_nanos)
    }

    /// Sets whether the first of the waiting writes waits because of a bound, and not only because
    /// of the pace.
    pub(super) fn set_bounded(&self, is_bounded: bool) {
        self.is_bounded.set(is_bounded);
    }

    /// Returns true when writes wait and are nearly standing still at the time `now`.
    pub(super) fn is_nearly_full(&self, now: Instant) -> bool {
        let waits = !self.backpressured_writes.is_empty();
        waits && (self.is_bounded.get() || self.pace.borrow().is_nearly_full(now.as_ns()))
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
