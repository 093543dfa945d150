//! Iteration over the image and the delta of a leaf together, with keys in ascending or descending
//! order.
//!
//! A delta is small beside its image. So the image is searched once for each key of the delta, and
//! the rows between two of these keys are returned as one run without further comparisons.

use super::{Delta, Image};
use std::ops::{Bound, Range};

/// One step of the iteration: first the rows of the image that come before the next key of the
/// delta, then that key. "Before" refers to the direction of the iteration.
#[derive(Debug)]
pub(super) struct Step {
    /// Rows of the image whose keys have no version in the delta.
    pub alone: Range<usize>,
    /// The next key that the delta has: its slots in the delta, and the rows of the image that have
    /// the same key. The bytes of the key are in [`Merge::key`]. `None` if the delta has no more
    /// keys.
    pub shared: Option<Shared>,
}

/// Versions of one key in the delta and in the image, each from newest to oldest.
#[derive(Debug)]
pub(super) struct Shared {
    pub slots: Range<usize>,
    pub rows: Range<usize>,
}

/// Iterator over the image and the delta of a leaf.
pub(super) struct Merge<'a> {
    base: Option<&'a Image>,
    delta: Option<&'a Delta>,
    rows: Range<usize>,
    slots: Range<usize>,
    reverse: bool,
    /// Key of the last [`Shared`].
    pub key: Vec<u8>,
}

impl<'a> Merge<'a> {
    /// Starts an iteration over the keys between two bounds. The memory of `key` is reused.
    pub fn new(
        base: Option<&'a Image>,
        delta: Option<&'a Delta>,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        key: Vec<u8>,
    ) -> Self {
        Self {
            base,
            delta,
            rows: base.map_or(0..0, |image| image.between(from, to)),
            slots: delta.map_or(0..0, |delta| delta.between(from, to)),
            reverse,
            key,
        }
    }

    /// Returns the next step; `None` at the end of the iteration.
    pub fn next(&mut self) -> Option<Step> {
        let Some(slots) = self.next_slots() else {
            let alone = self.rows.clone();
            self.rows.start = self.rows.end;
            let step = Step {
                alone,
                shared: None,
            };
            return (!step.alone.is_empty()).then_some(step);
        };
        let same = self.base.map_or(0..0, |image| image.rows_of(&self.key));
        let alone = if self.reverse {
            let alone = same.end..self.rows.end;
            self.rows.end = same.start;
            alone
        } else {
            let alone = self.rows.start..same.start;
            self.rows.start = same.end;
            alone
        };
        let shared = Some(Shared { slots, rows: same });
        Some(Step { alone, shared })
    }

    fn next_slots(&mut self) -> Option<Range<usize>> {
        let delta = self.delta.filter(|_| !self.slots.is_empty())?;
        let run = if self.reverse {
            let run = delta.run_start(self.slots.end - 1)..self.slots.end;
            self.slots.end = run.start;
            run
        } else {
            let run = self.slots.start..delta.run_end(self.slots.start);
            self.slots.start = run.end;
            run
        };
        delta.key(run.start, &mut self.key);
        Some(run)
    }
}
