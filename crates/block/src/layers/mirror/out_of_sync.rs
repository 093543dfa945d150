//! Ranges that a side lacks: the content of the side is out of sync there, and its queue does not
//! hold the newest content. A rebuild copies these ranges from other sides. Only this module
//! changes the set, and every addition wakes the task that rebuilds the side.
//!
//! A range must stay in the set until it was copied to the side, or until a write of the whole
//! range was queued for the side.

use std::cell::RefCell;
use std::ops::Range;

use bimetal_rt::sync::Event;

use super::block_set::BlockSet;
use crate::BLOCK_BYTES;
use crate::range_set::RangeSet;

/// The ranges that a side lacks; see the module.
pub(super) struct OutOfSync {
    lacking: RefCell<RangeSet>,
    /// Ranges in which the side was found corrupt while it was healthy or joining. They are also
    /// recorded as lacking. A flush does not wait for their repair.
    corrupt: RefCell<RangeSet>,
    /// Ranges that are being copied to the side, each with the parts that have changed since its
    /// copy began. No two ranges are equal.
    copying: RefCell<Vec<(Range<u64>, Overtaken)>>,
    /// Signaled when a range was added.
    pub(super) added: Event,
}

/// The parts of a range that have changed since its copy began.
enum Overtaken {
    Ranges(RangeSet),
    /// Of a long copy. Ranges of all its changes could take too much memory.
    Blocks(BlockSet),
}

impl Overtaken {
    fn insert(&mut self, range: Range<u64>) {
        match self {
            Overtaken::Ranges(ranges) => ranges.insert(range),
            Overtaken::Blocks(blocks) => blocks.insert(&range),
        }
    }

    fn is_clear(&self, range: &Range<u64>) -> bool {
        match self {
            Overtaken::Ranges(ranges) => ranges.is_clear(range),
            Overtaken::Blocks(blocks) => {
                let mut offsets = range.clone().step_by(BLOCK_BYTES as usize);
                !offsets.any(|offset| blocks.has(offset))
            }
        }
    }

    fn gaps(&self, part: &Range<u64>) -> Vec<Range<u64>> {
        match self {
            Overtaken::Ranges(ranges) => ranges.gaps(part),
            Overtaken::Blocks(blocks) => blocks.ranges_in(part, false),
        }
    }
}

/// A copy of a range to a side, registered until this guard is dropped.
pub(super) struct Copying<'o> {
    of: &'o OutOfSync,
    range: Range<u64>,
}

impl Copying<'_> {
    /// Returns the parts of `part` for which the copy still has the newest content: no change of
    /// these parts was recorded since the copy began.
    pub(super) fn not_overtaken(&self, part: &Range<u64>) -> Vec<Range<u64>> {
        self.with_overtaken(|overtaken| overtaken.gaps(part))
    }

    /// Returns true when the copy does not have the newest content of a part of the range.
    pub(super) fn is_overtaken(&self, range: &Range<u64>) -> bool {
        self.with_overtaken(|overtaken| !overtaken.is_clear(range))
    }

    /// Returns the blocks of a long copy that have changed since it began, or since the last call.
    ///
    /// # Panics
    /// When the copy is not a long one.
    pub(super) fn take_overtaken(&self) -> BlockSet {
        let none = BlockSet::none_in(self.range.clone());
        self.with_overtaken(|overtaken| match overtaken {
            Overtaken::Blocks(blocks) => std::mem::replace(blocks, none),
            Overtaken::Ranges(_) => panic!("a long copy has a bit for each block"),
        })
    }

    fn with_overtaken<T>(&self, use_it: impl FnOnce(&mut Overtaken) -> T) -> T {
        let mut copying = self.of.copying.borrow_mut();
        let own = copying.iter_mut().find(|(range, _)| *range == self.range);
        let (_, overtaken) = own.expect("it is noted until it is dropped");
        use_it(overtaken)
    }

    /// Records that the copy does not contain the newest content of a range.
    pub(super) fn overtake(&self, range: &Range<u64>) {
        self.of.overtake(range);
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        let mut copying = self.of.copying.borrow_mut();
        copying.retain(|(range, _)| *range != self.range);
    }
}

impl OutOfSync {
    /// Creates an empty set for a side of a volume of `volume_bytes`.
    pub(super) fn nothing(volume_bytes: u64) -> OutOfSync {
        OutOfSync {
            lacking: RefCell::new(RangeSet::for_volume(volume_bytes)),
            corrupt: RefCell::new(RangeSet::new()),
            copying: RefCell::default(),
            added: Event::new(),
        }
    }

    /// Adds a range that the side lacks. When the set has no room for another range, neighbouring
    /// ranges are merged. The set then also contains the content between the merged ranges.
    pub(super) fn add(&self, range: Range<u64>) {
        self.overtake(&range);
        self.lacking.borrow_mut().insert(range);
        self.added.notify();
    }

    /// Adds exactly this range. The range is not merged with another range across a gap, because
    /// the side may hold the last copy of the content in the gap.
    pub(super) fn add_exact(&self, range: Range<u64>) {
        self.overtake(&range);
        self.lacking.borrow_mut().insert_exact(range);
        self.added.notify();
    }

    /// Records that the side was found corrupt in a range. The caller must also record that the
    /// side lacks this range.
    pub(super) fn note_corrupt(&self, range: Range<u64>) {
        self.corrupt.borrow_mut().insert(range);
    }

    /// Records that a range is no longer known to be corrupt. If the side is recorded as lacking
    /// the range, that record remains.
    pub(super) fn forget_corrupt(&self, range: Range<u64>) {
        self.corrupt.borrow_mut().remove(range);
    }

    /// Records that no range of the side is known to be corrupt. Called when the side is ejected,
    /// because acknowledgements no longer depend on it. Ranges that were recorded as lacking remain
    /// recorded.
    pub(super) fn forget_all_corrupt(&self) {
        self.corrupt.borrow_mut().clear();
    }

    /// Removes a range from the ranges that the side lacks, because a write of the whole range was
    /// queued for the side.
    pub(super) fn queued(&self, range: Range<u64>) {
        self.overtake(&range);
        self.lacking.borrow_mut().remove(range);
    }

    /// Registers a copy of a range to the side. Until the returned guard is dropped, changes in the
    /// range are recorded, because the copy does not contain them.
    pub(super) fn begin_copy(&self, range: Range<u64>) -> Copying<'_> {
        self.register_copy(range, Overtaken::Ranges(RangeSet::new()))
    }

    /// Registers a copy of a range of whole blocks to the side that takes long. There may be many
    /// changes meanwhile, which are recorded with a bit for each block.
    pub(super) fn begin_long_copy(&self, range: Range<u64>) -> Copying<'_> {
        let blocks = BlockSet::none_in(range.clone());
        self.register_copy(range, Overtaken::Blocks(blocks))
    }

    fn register_copy(&self, range: Range<u64>, overtaken: Overtaken) -> Copying<'_> {
        let mut copying = self.copying.borrow_mut();
        copying.push((range.clone(), overtaken));
        Copying { of: self, range }
    }

    /// Returns true while a part of the range is being copied to the side. The side may have the
    /// newest content there already, although the range is still recorded as lacking.
    pub(super) fn is_being_copied(&self, range: &Range<u64>) -> bool {
        let copying = self.copying.borrow();
        let mut copied = copying.iter().map(|(copied, _)| copied);
        copied.any(|copied| copied.start < range.end && range.start < copied.end)
    }

    /// Records, for every copy in flight to the side, that a change of the range was queued for the
    /// side, or that the side was found to lack the range. The copy does not contain this change.
    fn overtake(&self, range: &Range<u64>) {
        for (copied, overtaken) in self.copying.borrow_mut().iter_mut() {
            let common = range.start.max(copied.start)..range.end.min(copied.end);
            if !common.is_empty() {
                overtaken.insert(common);
            }
        }
    }

    /// Removes a range that was copied to the side. Returns the number of bytes in the range that
    /// were recorded as corrupt.
    pub(super) fn copied(&self, range: Range<u64>) -> u64 {
        self.lacking.borrow_mut().remove(range.clone());
        self.corrupt.borrow_mut().remove(range)
    }

    /// Removes the ranges at and after `volume_bytes`, the end of the volume.
    pub(super) fn end_at(&self, volume_bytes: u64) {
        self.lacking.borrow_mut().remove(volume_bytes..u64::MAX);
    }

    /// Removes all ranges, because the side has left the volume and will not be rebuilt.
    pub(super) fn clear(&self) {
        self.lacking.borrow_mut().clear();
        self.corrupt.borrow_mut().clear();
    }

    /// Returns true when the side lacks nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.lacking.borrow().is_empty()
    }

    /// Returns true when the side lacks no part of the range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.lacking.borrow().is_clear(range)
    }

    /// Returns true when the side lacks the whole range.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.lacking.borrow().covers(range)
    }

    /// Returns true when the whole range is recorded as corrupt on the side.
    pub(super) fn is_corrupt(&self, range: &Range<u64>) -> bool {
        self.corrupt.borrow().covers(range)
    }

    /// Returns true when the side lacks only ranges that were found corrupt on it. No flush waits
    /// for the repair of such ranges: the repair might wait for a change that in turn waits for a
    /// flush of the side.
    pub(super) fn is_only_corrupt(&self) -> bool {
        let corrupt = self.corrupt.borrow();
        self.lacking
            .borrow()
            .iter()
            .all(|range| corrupt.covers(&range))
    }

    /// Returns true when the set has room for another range. Without room, ranges would be merged,
    /// and the content between them would be recorded as lacking, too.
    pub(super) fn has_room(&self) -> bool {
        self.lacking.borrow().has_room()
    }

    /// Returns the number of lacking ranges.
    pub(super) fn count(&self) -> usize {
        self.lacking.borrow().len()
    }

    /// Returns the number of lacking bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.lacking.borrow().bytes()
    }

    /// Returns the lacking ranges, in ascending order.
    pub(super) fn ranges(&self) -> Vec<Range<u64>> {
        self.lacking.borrow().iter().collect()
    }

    /// Returns a copy of the set of lacking ranges.
    pub(super) fn set(&self) -> RangeSet {
        self.lacking.borrow().clone()
    }

    /// Returns the lacking parts of a range, in ascending order.
    pub(super) fn parts_in(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        self.lacking.borrow().parts_in(range).collect()
    }

    /// Returns the first range at or after a position that the side lacks, without the part before
    /// that position.
    pub(super) fn next_from(&self, position: u64) -> Option<Range<u64>> {
        let lacking = self.lacking.borrow();
        let range = lacking.overlapping(&(position..u64::MAX)).next()?;
        Some(range.start.max(position)..range.end)
    }

    /// Returns the first position after the start of the range at which a part that the side lacks
    /// begins or ends. Returns the end of the range if there is no such position.
    pub(super) fn first_boundary(&self, range: &Range<u64>) -> u64 {
        self.lacking.borrow().first_boundary(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a range is being copied, the side may have its newest content although it is recorded
    /// as lacking. Cleaning must not give up that content.
    #[test]
    fn a_range_is_being_copied_until_its_copy_ends() {
        let of = OutOfSync::nothing(1 << 20);
        of.add(0..65_536);
        let copying = of.begin_copy(8_192..16_384);
        for (range, expected) in [
            (0..8_192, false),
            (4_096..12_288, true),
            (8_192..12_288, true),
            (12_288..20_480, true),
            (16_384..20_480, false),
        ] {
            assert_eq!(of.is_being_copied(&range), expected, "{range:?}");
        }
        drop(copying);
        assert!(!of.is_being_copied(&(8_192..16_384)));
        assert!(of.covers(&(8_192..16_384)));
    }
}
