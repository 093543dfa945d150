//! A set of byte ranges in which adjacent ranges are joined. The mirror uses it for the out-of-sync
//! ranges and the corrupt ranges of a side, and for exposed ranges: acknowledged changes that are
//! not on every healthy side yet.
//!
//! A set is exact unless it is [bounded](RangeSet::bounded). A bounded set must never need more
//! memory than its bound, so it can also cover bytes that were not inserted. When it has more than
//! three quarters of the ranges that the bound permits, it also joins neighbouring ranges with a
//! gap of less than 1 MiB between them, and with larger gaps if that does not suffice. It never
//! covers less than an exact set would.

use std::collections::BTreeMap;
use std::ops::Range;

/// Maximum memory that one range needs, in a B-tree whose nodes are as empty as permitted.
const RANGE_MEMORY_BYTES: u64 = 44;
/// Memory limit of a bounded set for each terabyte of the volume whose ranges it holds.
const MEMORY_BYTES_PER_TB: u64 = 16 << 20;
/// Smallest memory limit of a bounded set. It permits about 23,800 ranges. A volume of 186 MiB has
/// this number of ranges if every second block of 4 KiB is a range of its own.
const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// Largest memory limit of a bounded set. The limit does not grow further for a larger volume.
const MEMORY_BYTES_MAX: u64 = 32 << 20;
const TB: u64 = 1_000_000_000_000;

/// Gap limit of the first pass of a bounded set. A pass joins two neighbouring ranges if the gap
/// between them is smaller than its gap limit.
const GAP_BYTES_MIN: u64 = 1 << 20;
/// Maximum of the gap limit. It is larger than any volume, so a pass with this limit joins ranges
/// whatever the gap between them.
const GAP_BYTES_MAX: u64 = 1 << 62;
/// Number of ranges that a bounded set examines in one step, so that an insertion does not take
/// long.
const THIN_STEP: usize = 64;

/// Capacity of a bounded set, and the state of the pass that joins neighbours.
#[derive(Clone, Debug)]
struct Bound {
    ranges_max: usize,
    /// Gap limit of the current pass. The pass joins two neighbouring ranges if the gap between
    /// them is smaller than this limit.
    gap_bytes: u64,
    /// Position at which the current pass continues.
    position: u64,
}

/// A set of byte ranges; see the module.
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    /// The ranges, as a map from start to end. There is always a gap between two ranges.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
    bound: Option<Bound>,
}

impl RangeSet {
    /// Creates an empty, exact set.
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// Creates an empty set that holds at most `ranges_max` ranges. To stay within this number, the
    /// set joins ranges over gaps, so it can also cover bytes that were not inserted.
    ///
    /// # Panics
    /// When `ranges_max` is 0.
    pub fn bounded(ranges_max: usize) -> RangeSet {
        assert!(ranges_max > 0, "a set has room for a range");
        RangeSet {
            bound: Some(Bound {
                ranges_max,
                gap_bytes: GAP_BYTES_MIN,
                position: 0,
            }),
            ..RangeSet::default()
        }
    }

    /// Creates an empty bounded set for a volume of this size. The memory limit of the set is 16
    /// MiB for each terabyte of the volume, but at least 1 MiB and at most 32 MiB.
    pub fn for_volume(volume_bytes: u64) -> RangeSet {
        RangeSet::bounded(RangeSet::ranges_max_of(volume_bytes))
    }

    /// Returns the maximum number of ranges in a set created by [`for_volume`](Self::for_volume).
    pub fn ranges_max_of(volume_bytes: u64) -> usize {
        let memory = u128::from(volume_bytes) * u128::from(MEMORY_BYTES_PER_TB) / u128::from(TB);
        let memory = u64::try_from(memory).unwrap_or(u64::MAX);
        let memory = memory.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
        (memory / RANGE_MEMORY_BYTES) as usize
    }

    /// Returns the number of covered bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of ranges. Adjacent ranges count as one.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns true if no byte is covered.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns true if a bounded set holds less than half of its maximum number of ranges. Always
    /// returns true for an exact set.
    pub fn has_room(&self) -> bool {
        let bound = self.bound.as_ref();
        bound.is_none_or(|bound| self.ranges.len() < bound.ranges_max.div_ceil(2))
    }

    /// Adds a range to the set. An empty range changes nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut joined = range.clone();
        if let Some((&start, &end)) = self.ranges.range(..=range.start).next_back()
            && end >= range.start
        {
            if end >= range.end {
                return;
            }
            joined.start = start;
            self.take(start);
        }
        while let Some((&start, &end)) = self.ranges.range(joined.start..=joined.end).next() {
            joined.end = joined.end.max(end);
            self.take(start);
        }
        self.put(joined);
        self.thin();
    }

    /// Adds several ranges to the set.
    pub fn extend(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) {
        ranges.into_iter().for_each(|range| self.insert(range));
    }

    /// Adds a range without joining over gaps. A bounded set can then exceed its maximum number of
    /// ranges. This is for the few ranges for which the set must not cover any other bytes.
    pub fn insert_exact(&mut self, range: Range<u64>) {
        let bound = self.bound.take();
        self.insert(range);
        self.bound = bound;
    }

    /// Removes a range, and returns the number of its bytes that were covered. An entry that
    /// extends beyond both ends of the removed range is split in two, even in a bounded set.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.bytes;
        let inside: Vec<Range<u64>> = self.overlapping(&range).collect();
        for part in inside {
            self.take(part.start);
            self.put(part.start..part.end.min(range.start));
            self.put(part.start.max(range.end)..part.end);
        }
        before - self.bytes
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    /// Returns the entries that overlap `range`, in order. The entries are not clipped to `range`.
    pub fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (first, end) = if range.is_empty() {
            (range.end, range.end)
        } else {
            let before = self.ranges.range(..range.start).next_back();
            let reaching = before.filter(|(_, end)| **end > range.start);
            (reaching.map_or(range.start, |(start, _)| *start), range.end)
        };
        self.ranges
            .range(first..end)
            .map(|(&start, &end)| start..end)
    }

    /// Returns the covered parts of a range, in order.
    pub fn parts_in(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (range.start, range.end);
        self.overlapping(range)
            .map(move |part| part.start.max(start)..part.end.min(end))
    }

    /// Returns true if no byte of the range is covered.
    pub fn is_clear(&self, range: &Range<u64>) -> bool {
        self.ranges.is_empty() || self.overlapping(range).next().is_none()
    }

    /// Returns the first position after the start of `range` at which a covered part begins or
    /// ends, or the end of `range` if there is no such position.
    pub fn first_boundary(&self, range: &Range<u64>) -> u64 {
        let boundary = self.overlapping(range).next().map(|part| {
            if part.start > range.start {
                part.start
            } else {
                part.end
            }
        });
        boundary.map_or(range.end, |at| at.min(range.end))
    }

    /// Returns true if every byte of the range is covered.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self
                .overlapping(range)
                .next()
                .is_some_and(|part| part.start <= range.start && part.end >= range.end)
    }

    /// Returns the parts of `range` that the set does not cover, in ascending order.
    pub fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut position = range.start;
        for covered in self.overlapping(range) {
            if covered.start > position {
                gaps.push(position..covered.start);
            }
            position = covered.end;
        }
        if position < range.end {
            gaps.push(position..range.end);
        }
        gaps
    }

    /// Returns all ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    fn put(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.bytes += range.end - range.start;
            self.ranges.insert(range.start, range.end);
        }
    }

    fn take(&mut self, start: u64) {
        let end = self.ranges.remove(&start).expect("it was looked at");
        self.bytes -= end - start;
    }

    /// Joins neighbours if a bounded set has more than three quarters of its maximum number of
    /// ranges. A call examines [`THIN_STEP`] ranges. If the set still has more ranges than the
    /// maximum, the call continues until the number is within the maximum.
    fn thin(&mut self) {
        let Some(mut bound) = self.bound.take() else {
            return;
        };
        if self.ranges.len() > bound.ranges_max / 4 * 3 {
            self.thin_some(&mut bound);
            while self.ranges.len() > bound.ranges_max {
                self.thin_some(&mut bound);
            }
        } else {
            // After this, the next pass starts with small gaps again.
            bound.gap_bytes = GAP_BYTES_MIN;
        }
        self.bound = Some(bound);
    }

    /// Examines the next [`THIN_STEP`] ranges, and joins neighbours among them whose gap is smaller
    /// than the limit of the current pass.
    fn thin_some(&mut self, bound: &mut Bound) {
        let next = self.ranges.range(bound.position..).take(THIN_STEP);
        let some: Vec<Range<u64>> = next.map(|(&start, &end)| start..end).collect();
        for group in some.chunk_by(|one, next| next.start - one.end < bound.gap_bytes) {
            if let [first, .., last] = group {
                let joined = first.start..last.end;
                group.iter().for_each(|range| self.take(range.start));
                self.put(joined);
            }
        }
        let goes_on = some.last().filter(|_| some.len() == THIN_STEP);
        if let Some(last) = goes_on {
            // The last examined range might have been joined to earlier ranges, and the gap after
            // it has not been examined yet. So the next step starts with the joined range.
            let with_last = self.ranges.range(..=last.start).next_back();
            bound.position = with_last.map_or(last.start, |(start, _)| *start);
        } else {
            bound.position = 0;
            bound.gap_bytes = bound.gap_bytes.saturating_mul(2).min(GAP_BYTES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::Rng;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Returns the ranges of covered bytes in an array that has one element for each byte.
    fn runs(model: &[bool]) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (at, _) in model.iter().enumerate().filter(|(_, covered)| **covered) {
            let at = at as u64;
            match runs.last_mut() {
                Some(run) if run.end == at => run.end = at + 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    /// Compares random inserts and removals with an array of bytes. Adjacent ranges are always
    /// joined, so the set has as many ranges as the array has runs of covered bytes.
    #[test]
    fn it_agrees_with_an_array_of_bytes() {
        let mut rng = Rng::new(5);
        let mut set = RangeSet::new();
        let mut model = [false; 100];
        for _ in 0..20_000 {
            let start = rng.below(100);
            let range = start..start + rng.below(101 - start);
            let bytes = range.start as usize..range.end as usize;
            if rng.chance(0.5) {
                set.insert(range);
                model[bytes].fill(true);
            } else {
                let covered = model[bytes.clone()].iter().filter(|covered| **covered);
                assert_eq!(set.remove(range), covered.count() as u64);
                model[bytes].fill(false);
            }
            assert_eq!(set.iter().collect::<Vec<_>>(), runs(&model));
            assert_eq!(set.len(), runs(&model).len());
            assert_eq!(
                set.bytes(),
                model.iter().filter(|covered| **covered).count() as u64
            );
            let start = rng.below(100);
            let probe = start..start + rng.below(101 - start);
            let inside = &model[probe.start as usize..probe.end as usize];
            assert_eq!(set.covers(&probe), inside.iter().all(|covered| *covered));
            assert_eq!(set.is_clear(&probe), !inside.contains(&true));
            let shifted = |runs: Vec<Range<u64>>| -> Vec<Range<u64>> {
                let runs = runs.into_iter();
                runs.map(|run| run.start + probe.start..run.end + probe.start)
                    .collect()
            };
            let missing: Vec<bool> = inside.iter().map(|covered| !covered).collect();
            assert_eq!(set.gaps(&probe), shifted(runs(&missing)));
            let parts: Vec<Range<u64>> = set.parts_in(&probe).collect();
            assert_eq!(parts, shifted(runs(inside)));
        }
    }

    /// A terabyte written sequentially in blocks of 4 KiB is one range.
    #[test]
    fn what_is_written_in_sequence_is_one_range() {
        let mut set = RangeSet::new();
        for block in 0..250_000u64 {
            set.insert(block * 4096..(block + 1) * 4096);
            assert_eq!(set.len(), 1);
        }
        assert_eq!(set.bytes(), 250_000 * 4096);
    }

    /// A bounded set never exceeds its maximum number of ranges, and covers everything that was
    /// inserted. It covers nothing else as long as an exact set would have at most three quarters
    /// of the maximum number of ranges.
    #[test]
    fn a_bounded_set_holds_no_more_ranges_than_it_may_and_loses_nothing() {
        for (volume_bytes, ranges_max) in [
            (1 << 30, 1000),
            (1 << 40, 1000),
            (1 << 50, 100),
            (1 << 44, 1),
        ] {
            let mut rng = Rng::new(ranges_max as u64);
            let (mut set, mut exact) = (RangeSet::bounded(ranges_max), RangeSet::new());
            for _ in 0..20 * ranges_max {
                let start = rng.below(volume_bytes / 4096) * 4096;
                let range = start..start + 4096 * (1 + rng.below(4));
                set.insert(range.clone());
                exact.insert(range);
                assert!(set.len() <= ranges_max, "{}", set.len());
                if exact.len() <= ranges_max / 4 * 3 {
                    assert_eq!(set.bytes(), exact.bytes());
                }
            }
            assert!(exact.iter().all(|range| set.covers(&range)));
            assert!(
                set.gaps(&(0..u64::MAX))
                    .iter()
                    .all(|gap| exact.is_clear(gap))
            );
        }
    }

    /// A set that must become smaller joins ranges across small gaps first. It joins across gaps of
    /// 1 MiB or more only if the smaller gaps do not suffice.
    #[test]
    fn it_joins_over_small_gaps_first() {
        let mut set = RangeSet::bounded(1024);
        // Each group of 16 MiB holds 8 ranges with small gaps, followed by a large gap.
        for at in
            (0..500u64).flat_map(|group| (0..8).map(move |n| group * 16 * MIB + n * 64 * 1024))
        {
            set.insert(at..at + 4096);
        }
        let widest = set.iter().map(|range| range.end - range.start).max();
        assert!(widest <= Some(MIB), "{widest:?}");
        assert!(set.len() <= 1024);
    }

    /// Checks the limits that `docs/layers/mirror.md` promises: 16 MiB for each terabyte, at most
    /// 32 MiB, at least 1 MiB. A range is a key and a value of 8 bytes each in a B-tree node of 11
    /// slots, of which at least 5 are used.
    #[test]
    fn its_memory_is_what_the_volume_allows() {
        let memory = |volume_bytes| RangeSet::ranges_max_of(volume_bytes) as u64 * 44;
        assert!(memory(TB) <= 16 << 20 && memory(TB) > 15 << 20);
        assert!(memory(20 * TB) <= 32 << 20 && memory(u64::MAX) <= 32 << 20);
        assert!(memory(1 << 30) <= 1 << 20);
        let node = 11 * (8 + 8) + 8 + 2 + 2;
        assert!(
            44 * 5 >= node,
            "a node with the fewest keys takes {node} bytes"
        );
    }

    #[test]
    fn what_must_be_exact_is_so_without_room() {
        let mut set = RangeSet::bounded(2);
        for at in 0..100u64 {
            set.insert_exact(at * 8192..at * 8192 + 4096);
        }
        assert_eq!((set.len(), set.bytes()), (100, 100 * 4096));
    }
}
