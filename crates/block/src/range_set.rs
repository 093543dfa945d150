//! A set of byte ranges whose neighbours are joined: what a side of a mirror lacks, what is
//! exposed, what is undecided.
//!
//! A set is exact unless it is [bounded](RangeSet::bounded). A bounded one must never need more
//! memory than its bound, so it may cover more than was inserted: beyond three quarters of its
//! bound it also joins neighbours with a gap of less than 1 MiB between them, and with larger gaps
//! when that is not enough. It never covers less than an exact set would.

use std::collections::BTreeMap;
use std::ops::Range;

/// Memory that one range takes, at most, in a B-tree whose nodes are as empty as they may be.
const RANGE_MEMORY_BYTES: u64 = 44;
/// A bounded set takes at most this for each terabyte of the volume that it describes,
const MEMORY_BYTES_PER_TB: u64 = 16 << 20;
/// or this for a volume that is so small that all of its blocks together need little more,
const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// and in all at most this.
const MEMORY_BYTES_MAX: u64 = 32 << 20;
const TB: u64 = 1_000_000_000_000;

/// The gap that a bounded set begins to join over.
const GAP_BYTES_MIN: u64 = 1 << 20;
/// The largest gap a set joins over: larger than any volume.
const GAP_BYTES_MAX: u64 = 1 << 62;
/// A bounded set looks at this many ranges in one call, so that no call takes long.
const THIN_STEP: usize = 64;

/// How many ranges a bounded set holds, and where it is in joining them.
#[derive(Clone, Debug)]
struct Bound {
    ranges_max: usize,
    /// Gaps below this are joined over in the pass that is under way.
    gap_bytes: u64,
    /// Where the pass goes on.
    position: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    /// Start to end. Between two ranges there is always a gap.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
    bound: Option<Bound>,
}

impl RangeSet {
    /// An empty set that is exact.
    pub fn new() -> RangeSet {
        RangeSet::default()
    }

    /// An empty set that holds at most `ranges_max` ranges, and may cover more than is inserted for
    /// that.
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

    /// An empty set of ranges of a volume of this size, in at most 16 MiB of memory for each
    /// terabyte of it, at least 1 MiB and at most 32 MiB.
    pub fn for_volume(volume_bytes: u64) -> RangeSet {
        RangeSet::bounded(RangeSet::ranges_max_of(volume_bytes))
    }

    /// The number of ranges that [`for_volume`](Self::for_volume) has room for.
    pub fn ranges_max_of(volume_bytes: u64) -> usize {
        let memory = u128::from(volume_bytes) * u128::from(MEMORY_BYTES_PER_TB) / u128::from(TB);
        let memory = u64::try_from(memory).unwrap_or(u64::MAX);
        let memory = memory.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
        (memory / RANGE_MEMORY_BYTES) as usize
    }

    /// Bytes that are covered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ranges in the set, neighbours joined.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True when nothing is covered.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// True when a bounded set is less than half full. An exact one always has room.
    pub fn has_room(&self) -> bool {
        let bound = self.bound.as_ref();
        bound.is_none_or(|bound| self.ranges.len() < bound.ranges_max.div_ceil(2))
    }

    /// Covers a range. An empty range changes nothing.
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

    /// Covers every one of some ranges.
    pub fn extend(&mut self, ranges: impl IntoIterator<Item = Range<u64>>) {
        ranges.into_iter().for_each(|range| self.insert(range));
    }

    /// Covers a range and nothing else, also when a bounded set has no room for it: for the few
    /// ranges of which too much would do harm.
    pub fn insert_exact(&mut self, range: Range<u64>) {
        let bound = self.bound.take();
        self.insert(range);
        self.bound = bound;
    }

    /// Uncovers a range, and returns how many bytes of it were covered. Of a range that reaches
    /// over both ends two are left, in a bounded set too.
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

    /// Uncovers everything.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.bytes = 0;
    }

    /// The ranges that overlap a range, whole, in order.
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

    /// The covered parts of a range, in order.
    pub fn parts_in(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (range.start, range.end);
        self.overlapping(range)
            .map(move |part| part.start.max(start)..part.end.min(end))
    }

    /// True when no part of the range is covered.
    pub fn is_clear(&self, range: &Range<u64>) -> bool {
        self.ranges.is_empty() || self.overlapping(range).next().is_none()
    }

    /// The first position behind the start of a range at which a covered part begins or ends; the
    /// end of the range if there is none.
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

    /// True when every part of the range is covered.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self
                .overlapping(range)
                .next()
                .is_some_and(|part| part.start <= range.start && part.end >= range.end)
    }

    /// The parts of a range that are not covered, in order.
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

    /// All ranges in order.
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

    /// Joins neighbours while a bounded set is more than three quarters full: a few at a time, and
    /// as many as it takes only when there is no room left at all.
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
            // The next time, only small gaps are joined over at first again.
            bound.gap_bytes = GAP_BYTES_MIN;
        }
        self.bound = Some(bound);
    }

    /// Joins those neighbours among the next few ranges that have a small gap between them.
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
            // The last one may have been joined, and may be close to the one behind it.
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

    /// The covered runs of an array of bytes.
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

    /// Random inserts and removals against an array of bytes: neighbours are always joined, so the
    /// set has as many ranges as the array has runs.
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

    /// A terabyte that is written in sequence in pieces of 4 KiB is one range.
    #[test]
    fn what_is_written_in_sequence_is_one_range() {
        let mut set = RangeSet::new();
        for block in 0..250_000u64 {
            set.insert(block * 4096..(block + 1) * 4096);
            assert_eq!(set.len(), 1);
        }
        assert_eq!(set.bytes(), 250_000 * 4096);
    }

    /// Whatever is inserted, a bounded set keeps to its bound and covers all of it. While it is
    /// less than three quarters full it covers nothing else.
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

    /// As long as gaps of less than 1 MiB suffice, no larger one is joined over.
    #[test]
    fn it_joins_over_small_gaps_first() {
        let mut set = RangeSet::bounded(1024);
        // In each 16 MiB there are 8 ranges with small gaps, and then nothing.
        for at in
            (0..500u64).flat_map(|group| (0..8).map(move |n| group * 16 * MIB + n * 64 * 1024))
        {
            set.insert(at..at + 4096);
        }
        let widest = set.iter().map(|range| range.end - range.start).max();
        assert!(widest <= Some(MIB), "{widest:?}");
        assert!(set.len() <= 1024);
    }

    /// What `docs/layers/mirror.md` says: 16 MiB a terabyte, at most 32 MiB, at least 1 MiB. A
    /// range is a key and a value of 8 bytes each in a node of 11 places, of which 5 are used at
    /// least.
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
