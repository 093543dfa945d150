//! Discards: the device is told which segments have become free. Flash keeps what it was given, and
//! copies it whenever it cleans itself, until this is written again or discarded.
//!
//! A discard is a way to fill a segment: until it has ended, it may destroy any block of the
//! segment at any time, and a power cut may bring back any block after that. So a segment must
//! never be discarded before it may be filled, and never be filled before its discard has ended.
//! What may be filled is decided in one place: a segment is free, or it is not. Whatever may still
//! need the content of a segment keeps it from being free:
//!
//! - *The committed state*: the map, its tables, the journal, and the segments of the log. A commit
//!   makes a segment free after both copies of the record are durable and neither leads to a block
//!   in it. (A commit that fails may leave a record in one copy that lists free segments for the
//!   log. They hold no entry that counts, neither before their discard nor after it.)
//! - *The log*, with all that a side needs to be started alone at an earlier moment: it is what an
//!   opening, a rebuild and a late side rely on. A segment of the log is released when both
//!   checkpoints durably say that its entries are dropped, no entry in it is being read, and no
//!   late write of an overtaken entry may still take effect there.
//! - *Requests and batches of cleaning* that read or write a segment: they pin it.
//!
//! One thing more is asked than for filling a segment: `rescue` may find content whose place is
//! lost in segments that nothing refers to, so none is discarded while places of the side are lost.
//!
//! Nothing waits for a discard. One is in flight, the segment that is filled last is discarded
//! first, and those that are filled next are not discarded at all. A discard is advice, not a
//! change: it is neither progress of the device nor kept until a flush, and when one fails, the
//! side discards no more. Its segment is not filled then until the side is opened again, because
//! the discard may still take effect.
//!
//! Only what this program has made free is discarded. Of the segments that were free when the side
//! was opened it is not known what the device holds there: a program that ends often would discard
//! them each time.

use std::cell::Cell;

use super::Segments;
use crate::geometry::Geometry;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::superblock::segmented::SEGMENTS_RESERVED;
use crate::request::{Flags, Op, Request};

/// Number of free segments that are not discarded: those that are filled next. Others than the log
/// never have fewer.
const KEPT: usize = SEGMENTS_RESERVED as usize;

/// Whether segments are discarded, and how many were.
pub(super) struct Discards {
    /// Whether no segment is discarded, because the device gains nothing from it or has failed one.
    are_off: Cell<bool>,
    segments: Cell<u64>,
}

impl Discards {
    /// Creates the state for a device with this geometry.
    pub(super) fn on(device: &Geometry) -> Discards {
        Discards {
            are_off: Cell::new(!device.wants_discards),
            segments: Cell::new(0),
        }
    }

    /// Returns the number of segments that were discarded since the side was opened.
    pub(super) fn count(&self) -> u64 {
        self.segments.get()
    }
}

impl Segments {
    /// Records that a commit has made segments free. Those of the first commit of an opening were
    /// free or dead before, and are not discarded.
    pub(super) fn note_freed(&self, freed: &[u32]) {
        if self.is_begun.get() && !self.discards.are_off.get() {
            self.usage.borrow_mut().note_undiscarded(freed);
        }
    }

    fn to_discard(&self) -> Option<u32> {
        match self.discards.are_off.get() || self.places.borrow().has_lost() {
            true => None,
            false => self.usage.borrow().to_discard(KEPT),
        }
    }

    /// Discards a segment, as soon as one should be. Returns false when none will be any more:
    /// discards are off, or `is_over` returns true.
    pub(in super::super) async fn discard_next(&self, is_over: impl Fn() -> bool) -> bool {
        let ends = || is_over() || self.discards.are_off.get();
        self.freed
            .until(|| ends() || self.to_discard().is_some())
            .await;
        let Some(segment) = self.to_discard().filter(|_| !ends()) else {
            return false;
        };
        self.usage.borrow_mut().withhold(segment);
        self.tell_free();
        // Whatever the error is, the device is not asked again: the segment is free all the same.
        let is_done = self.device.submit(self.discard_of(segment)).await.is_ok();
        self.discards.are_off.set(!is_done);
        if is_done {
            let discarded = &self.discards.segments;
            discarded.set(discarded.get() + 1);
            self.usage.borrow_mut().end_withholding();
            self.tell_free();
            // Where few segments are free, a task may wait for this one.
            self.freed.notify();
        }
        is_done
    }

    fn tell_free(&self) {
        let usage = self.usage.borrow();
        self.pace.set_free(usage.free_count());
        self.pace.set_withheld(usage.withheld_count());
    }

    fn discard_of(&self, segment: u32) -> Request {
        let offset = self.layout.area.0 + u64::from(segment) * self.layout.segment_bytes;
        let len = self.layout.segment_bytes;
        Request::without_data(Op::Discard, offset, len, Flags::ADVISORY)
    }

    /// Returns true when something may still need what is in a range of the device: a block in it
    /// is live or in use, or the record that was written last does not call its segments free.
    #[cfg(test)]
    pub(in super::super) fn may_need(&self, range: &std::ops::Range<u64>) -> bool {
        let (start, segment_bytes) = (self.layout.area.0, self.layout.segment_bytes);
        let first = (range.start - start) / segment_bytes;
        let end = (range.end - start).div_ceil(segment_bytes);
        let (usage, recorded) = (self.usage.borrow(), self.recorded.borrow());
        (first as u32..end as u32).any(|number| {
            let segment = usage.all().nth(number as usize);
            let (_, segment) = segment.expect("it exists");
            let is_used = segment.live > 0 || segment.pins > 0;
            is_used || !recorded.free.contains(&number)
        })
    }

    /// Discards segments that a commit is about to free, if this bug is planted.
    pub(super) async fn discard_early(&self, dead: &[u32]) {
        if is_planted(Bug::DiscardsEarly) && self.is_begun.get() {
            for segment in dead {
                // A bug has no use for the error.
                let _ = self.device.submit(self.discard_of(*segment)).await;
            }
        }
    }
}
