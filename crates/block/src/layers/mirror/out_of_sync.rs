//! What a side lacks: the ranges of the volume in which its content is out of sync and that no
//! queue holds either. A rebuild copies them from other sides. This is the only place where the
//! set changes, and every change that adds to it wakes the task that makes the side whole.
//!
//! It must never forget a range that nothing else brings to the side.

use std::cell::RefCell;
use std::ops::Range;

use bimetal_rt::sync::Event;

use crate::range_set::RangeSet;

/// See the module.
pub(super) struct OutOfSync {
    lacking: RefCell<RangeSet>,
    /// The part of it in which the side itself was found to be corrupt while it counted. The side
    /// is known to lack it, so no flush waits for the repair.
    corrupt: RefCell<RangeSet>,
    /// The ranges that are being copied to the side, and what of each has changed since. They never
    /// overlap.
    copying: RefCell<Vec<(Range<u64>, RangeSet)>>,
    /// Something was added.
    pub(super) added: Event,
}

/// A range that is being copied to a side, until it is dropped.
pub(super) struct Copying<'o> {
    of: &'o OutOfSync,
    range: Range<u64>,
}

impl Copying<'_> {
    /// The parts of a range of which the copy is the newest content: nothing has changed there
    /// since the copying began.
    pub(super) fn not_overtaken(&self, part: &Range<u64>) -> Vec<Range<u64>> {
        let copying = self.of.copying.borrow();
        let own = copying.iter().find(|(range, _)| *range == self.range);
        let (_, overtaken) = own.expect("it is noted until it is dropped");
        overtaken.gaps(part)
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let mut copying = self.of.copying.borrow_mut();
        copying.retain(|(range, _)| *range != self.range);
    }
}

impl OutOfSync {
    /// A side of a volume of this size that lacks nothing.
    pub(super) fn nothing(volume_bytes: u64) -> OutOfSync {
        OutOfSync {
            lacking: RefCell::new(RangeSet::for_volume(volume_bytes)),
            corrupt: RefCell::new(RangeSet::new()),
            copying: RefCell::default(),
            added: Event::new(),
        }
    }

    /// The side lacks a range, and what is around it may be taken for lacking as well where the set
    /// has no room for more ranges.
    pub(super) fn add(&self, range: Range<u64>) {
        self.overtake(&range);
        self.lacking.borrow_mut().insert(range);
        self.added.notify();
    }

    /// The side lacks just this range: what is around it may be the last copy.
    pub(super) fn add_exact(&self, range: Range<u64>) {
        self.overtake(&range);
        self.lacking.borrow_mut().insert_exact(range);
        self.added.notify();
    }

    /// The side was found to be corrupt in a range that it lacks.
    pub(super) fn note_corrupt(&self, range: Range<u64>) {
        self.corrupt.borrow_mut().insert(range);
    }

    /// A range is not known to be corrupt any more; it is lacking all the same if it was.
    pub(super) fn forget_corrupt(&self, range: Range<u64>) {
        self.corrupt.borrow_mut().remove(range);
    }

    /// Nothing is known to be corrupt any more: the side does not count, and lacks what it lacks.
    pub(super) fn forget_all_corrupt(&self) {
        self.corrupt.borrow_mut().clear();
    }

    /// A write that covers a range was queued for the side.
    pub(super) fn queued(&self, range: Range<u64>) {
        self.overtake(&range);
        self.lacking.borrow_mut().remove(range);
    }

    /// A range begins to be copied to the side. What changes of it is noted until what this returns
    /// is dropped: the copy does not bring it.
    pub(super) fn begin_copy(&self, range: Range<u64>) -> Copying<'_> {
        let mut copying = self.copying.borrow_mut();
        copying.push((range.clone(), RangeSet::new()));
        Copying { of: self, range }
    }

    /// A range has changed, or is found to be lacking, whatever is being copied there.
    fn overtake(&self, range: &Range<u64>) {
        for (copied, overtaken) in self.copying.borrow_mut().iter_mut() {
            let common = range.start.max(copied.start)..range.end.min(copied.end);
            if !common.is_empty() {
                overtaken.insert(common);
            }
        }
    }

    /// A range was copied to the side. Returns how many of its bytes were corrupt before.
    pub(super) fn copied(&self, range: Range<u64>) -> u64 {
        self.lacking.borrow_mut().remove(range.clone());
        self.corrupt.borrow_mut().remove(range)
    }

    /// The volume ends here: nothing is lacking beyond it.
    pub(super) fn end_at(&self, volume_bytes: u64) {
        self.lacking.borrow_mut().remove(volume_bytes..u64::MAX);
    }

    /// The side has left the volume, and is not made whole any more.
    pub(super) fn clear(&self) {
        self.lacking.borrow_mut().clear();
        self.corrupt.borrow_mut().clear();
    }

    /// True when the side lacks nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.lacking.borrow().is_empty()
    }

    /// True when the side lacks nothing of a range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.lacking.borrow().is_clear(range)
    }

    /// True when the side lacks all of a range.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.lacking.borrow().covers(range)
    }

    /// True when the side was found to be corrupt in the whole range.
    pub(super) fn is_corrupt(&self, range: &Range<u64>) -> bool {
        self.corrupt.borrow().covers(range)
    }

    /// True when all that is lacking was found corrupt on the side itself. Its repair may wait for
    /// a change that waits for a flush of the side, so no flush waits for the repair.
    pub(super) fn is_only_corrupt(&self) -> bool {
        let corrupt = self.corrupt.borrow();
        self.lacking
            .borrow()
            .iter()
            .all(|range| corrupt.covers(&range))
    }

    /// True when one more range fits without another one being taken for lacking.
    pub(super) fn has_room(&self) -> bool {
        self.lacking.borrow().has_room()
    }

    /// Ranges that are lacking.
    pub(super) fn count(&self) -> usize {
        self.lacking.borrow().len()
    }

    /// Bytes that are lacking.
    pub(super) fn bytes(&self) -> u64 {
        self.lacking.borrow().bytes()
    }

    /// The ranges that are lacking, in order of place.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.lacking.borrow().iter().collect()
    }

    /// What is lacking now.
    pub(super) fn set(&self) -> RangeSet {
        self.lacking.borrow().clone()
    }

    /// The parts of a range that are lacking, in order of place.
    pub(super) fn parts_in(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.lacking.borrow().parts_in(range).collect()
    }

    /// The first range that is lacking at or behind a position.
    pub(super) fn next_from(&self, position: u64) -> Option<Range<u64>> {
        let lacking = self.lacking.borrow();
        let range = lacking.overlapping(&(position..u64::MAX)).next()?;
        Some(range.start.max(position)..range.end)
    }

    /// The first position behind the start of a range at which lacking begins or ends; the end of
    /// the range if there is none.
    pub(super) fn first_boundary(&self, range: &Range<u64>) -> u64 {
        self.lacking.borrow().first_boundary(range)
    }
}
