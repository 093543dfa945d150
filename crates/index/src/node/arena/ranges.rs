//! Free ranges of the chunks, in units: only the numbers, without the memory.
//!
//! An allocation takes the shortest free range that is long enough, and the first among several of
//! that length (address-ordered best fit, which wastes least in Wilson et al., "Dynamic Storage
//! Allocation: A Survey and Critical Review", 1995). Adjacent free ranges are merged. A chunk that
//! is entirely free is reported to the caller, which unmaps it. One free chunk is kept, so that
//! chunks are not mapped and unmapped with every block.

use std::collections::{BTreeMap, BTreeSet};

/// A range of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub chunk: u32,
    pub at: u32,
    pub units: u32,
}

/// Free ranges of all chunks.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Lengths of the free ranges, by chunk and position.
    by_place: BTreeMap<(u32, u32), u32>,
    /// The free ranges by length, chunk and position.
    by_units: BTreeSet<(u32, u32, u32)>,
    /// Lengths of the chunks.
    chunks: BTreeMap<u32, u32>,
    /// Chunk that is entirely free and is kept for later allocations.
    spare: Option<u32>,
}

impl Ranges {
    /// Creates an empty set, without chunks.
    pub const fn new() -> Ranges {
        Ranges {
            by_place: BTreeMap::new(),
            by_units: BTreeSet::new(),
            chunks: BTreeMap::new(),
            spare: None,
        }
    }

    /// Adds a chunk that is entirely free.
    pub fn add_chunk(&mut self, chunk: u32, units: u32) {
        let old = self.chunks.insert(chunk, units);
        assert!(old.is_none(), "there is a chunk {chunk} already");
        self.insert(Range {
            chunk,
            at: 0,
            units,
        });
    }

    fn insert(&mut self, free: Range) {
        self.by_place.insert((free.chunk, free.at), free.units);
        self.by_units.insert((free.units, free.chunk, free.at));
    }

    fn remove(&mut self, free: Range) {
        let by_place = self.by_place.remove(&(free.chunk, free.at));
        let by_units = self.by_units.remove(&(free.units, free.chunk, free.at));
        assert!(
            by_place == Some(free.units) && by_units,
            "{free:?} should be free"
        );
    }

    /// Allocates a range of `units`; returns `None` if no free range is long enough.
    pub fn take(&mut self, units: u32) -> Option<Range> {
        let (free_units, chunk, at) = *self.by_units.range((units, 0, 0)..).next()?;
        let taken = Range { chunk, at, units };
        self.remove(Range {
            units: free_units,
            ..taken
        });
        if self.spare == Some(chunk) {
            self.spare = None;
        }
        if free_units > units {
            self.insert(Range {
                chunk,
                at: at + units,
                units: free_units - units,
            });
        }
        Some(taken)
    }

    /// Frees a range. Returns the chunk of the range if the caller should unmap it; the free ranges
    /// of that chunk are then removed.
    pub fn give_back(&mut self, range: Range) -> Option<u32> {
        let mut free = range;
        let mut before = self.by_place.range(..(range.chunk, range.at));
        if let Some((&(chunk, at), &units)) = before.next_back()
            && chunk == range.chunk
        {
            assert!(at + units <= range.at, "{range:?} was free already");
            if at + units == range.at {
                self.remove(Range { chunk, at, units });
                free.at = at;
                free.units += units;
            }
        }
        let mut behind = self.by_place.range((range.chunk, range.at)..);
        if let Some((&(chunk, at), &units)) = behind.next()
            && chunk == range.chunk
        {
            assert!(range.at + range.units <= at, "{range:?} was free already");
            if range.at + range.units == at {
                self.remove(Range { chunk, at, units });
                free.units += units;
            }
        }
        if self.chunks.get(&free.chunk) != Some(&free.units) {
            self.insert(free);
            return None;
        }
        if self.spare.is_none() {
            self.insert(free);
            self.spare = Some(free.chunk);
            return None;
        }
        self.chunks.remove(&free.chunk);
        Some(free.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn range(chunk: u32, at: u32, units: u32) -> Range {
        Range { chunk, at, units }
    }

    #[test]
    fn the_shortest_that_is_long_enough_is_taken() {
        let mut ranges = Ranges::new();
        assert_eq!(ranges.take(1), None);
        ranges.add_chunk(0, 100);
        let taken: Vec<Range> = [10, 30, 10, 20, 30]
            .map(|u| ranges.take(u).expect("room"))
            .into();
        assert_eq!(taken[4], range(0, 70, 30));
        assert_eq!(ranges.take(1), None);
        ranges.give_back(taken[1]);
        ranges.give_back(taken[3]);
        assert_eq!(ranges.take(15), Some(range(0, 50, 15)));
        assert_eq!(ranges.take(5), Some(range(0, 65, 5)));
        assert_eq!(ranges.take(31), None);
        assert_eq!(ranges.take(30), Some(range(0, 10, 30)));
    }

    #[test]
    fn neighbours_become_one_and_a_second_free_chunk_goes() {
        let mut ranges = Ranges::new();
        ranges.add_chunk(0, 30);
        let [a, b, c] = [10, 10, 10].map(|units| ranges.take(units).expect("room"));
        ranges.add_chunk(1, 30);
        let other = ranges.take(30).expect("room");
        assert_eq!(ranges.give_back(a), None);
        assert_eq!(ranges.give_back(c), None);
        assert_eq!(ranges.give_back(b), None, "the first stays");
        assert_eq!(ranges.give_back(other), Some(1));
        assert_eq!(ranges.take(30), Some(range(0, 0, 30)), "it was one again");
        assert_eq!(ranges.take(1), None, "the other is gone");
        ranges.add_chunk(1, 1);
        assert_eq!(ranges.take(1), Some(range(1, 0, 1)));
    }

    #[test]
    #[should_panic(expected = "was free already")]
    fn what_is_free_cannot_be_given_back() {
        let mut ranges = Ranges::new();
        ranges.add_chunk(0, 30);
        let taken = ranges.take(10).expect("room");
        let _second = ranges.take(10);
        ranges.give_back(taken);
        ranges.give_back(taken);
    }

    proptest! {
        /// Compares the ranges with a map of every unit.
        #[test]
        fn no_unit_is_taken_twice_and_none_is_lost(steps in vec((any::<bool>(), 1..40_u32, any::<u16>()), 0..400)) {
            const UNITS: u32 = 100;
            let mut ranges = Ranges::new();
            let mut taken: Vec<Range> = Vec::new();
            let mut chunks: BTreeSet<u32> = BTreeSet::new();
            for (is_taking, units, which) in steps {
                if is_taking || taken.is_empty() {
                    let is_used = |chunk: u32, at: u32| taken.iter().any(|t| t.chunk == chunk && (t.at..t.at + t.units).contains(&at));
                    let has_room = chunks.iter().any(|chunk| (0..=UNITS - units).any(|at| (at..at + units).all(|at| !is_used(*chunk, at))));
                    let range = ranges.take(units);
                    prop_assert_eq!(range.is_some(), has_room);
                    if let Some(range) = range {
                        prop_assert!(chunks.contains(&range.chunk) && range.at + range.units <= UNITS && range.units == units);
                        prop_assert!((range.at..range.at + units).all(|at| !is_used(range.chunk, at)));
                        taken.push(range);
                    } else {
                        let number = (0..).find(|n| !chunks.contains(n)).expect("a number");
                        ranges.add_chunk(number, UNITS);
                        chunks.insert(number);
                    }
                } else {
                    let range = taken.swap_remove(usize::from(which) % taken.len());
                    if let Some(chunk) = ranges.give_back(range) {
                        prop_assert!(taken.iter().all(|t| t.chunk != chunk));
                        prop_assert!(chunks.remove(&chunk));
                    }
                }
                let all_free = chunks.iter().filter(|c| taken.iter().all(|t| t.chunk != **c)).count();
                prop_assert!(all_free <= 2, "one that was kept, and one that is new");
            }
        }
    }
}
