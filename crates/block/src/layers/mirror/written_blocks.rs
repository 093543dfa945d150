//! A set of blocks of a whole volume. It takes memory only for the parts of the volume that have
//! blocks of the set: one bit for each block of a part of 128 MiB, so 32 MiB for each terabyte of
//! such parts.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::BLOCK_BYTES;

/// Number of words in a part.
const PART_WORDS: usize = 512;
/// Number of blocks in a part.
const PART_BLOCKS: u64 = PART_WORDS as u64 * 64;

/// A set of blocks of a volume; see the module.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenBlocks {
    /// Parts with at least one block, each with the number of its blocks.
    parts: BTreeMap<u64, (u64, Box<[u64; PART_WORDS]>)>,
    count: u64,
}

impl WrittenBlocks {
    /// Returns the number of blocks in the set.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of blocks that a range of the volume touches, in bytes, and that are not
    /// in the set.
    pub(super) fn missing_in(&self, range: &Range<u64>) -> u64 {
        let missing = |(part, within): (u64, Range<u64>)| match self.parts.get(&part) {
            None => within.end - within.start,
            Some((_, words)) => ones(&within)
                .map(|(word, mask)| u64::from((mask & !words[word]).count_ones()))
                .sum(),
        };
        parts_of(&touched(range)).map(missing).sum()
    }

    /// Adds each block that a range of the volume touches, in bytes.
    pub(super) fn insert(&mut self, range: &Range<u64>) {
        for (part, within) in parts_of(&touched(range)) {
            let empty = || (0, Box::new([0; PART_WORDS]));
            let (count, words) = self.parts.entry(part).or_insert_with(empty);
            for (word, mask) in ones(&within) {
                let added = u64::from((mask & !words[word]).count_ones());
                words[word] |= mask;
                *count += added;
                self.count += added;
            }
        }
    }

    /// Removes each block that lies as a whole in a range of the volume, in bytes.
    pub(super) fn remove(&mut self, range: &Range<u64>) {
        let blocks = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
        if blocks.is_empty() {
            return;
        }
        // The range can be the whole volume, of which few parts have blocks.
        let of_range = blocks.start / PART_BLOCKS..blocks.end.div_ceil(PART_BLOCKS);
        let mut emptied = Vec::new();
        for (&part, (count, words)) in self.parts.range_mut(of_range) {
            let first = part * PART_BLOCKS;
            let start = blocks.start.max(first) - first;
            let end = blocks.end.min(first + PART_BLOCKS) - first;
            for (word, mask) in ones(&(start..end)) {
                let removed = u64::from((mask & words[word]).count_ones());
                words[word] &= !mask;
                *count -= removed;
                self.count -= removed;
            }
            if *count == 0 {
                emptied.push(part);
            }
        }
        for part in emptied {
            self.parts.remove(&part);
        }
    }
}

/// Returns the blocks that a range touches, in bytes.
fn touched(range: &Range<u64>) -> Range<u64> {
    match range.is_empty() {
        true => 0..0,
        false => range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES),
    }
}

/// Divides a range of blocks into ranges within parts, counted from the start of the part.
fn parts_of(blocks: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let blocks = blocks.clone();
    let parts = blocks.start / PART_BLOCKS..blocks.end.div_ceil(PART_BLOCKS);
    parts.map(move |part| {
        let first = part * PART_BLOCKS;
        let start = blocks.start.max(first) - first;
        (part, start..blocks.end.min(first + PART_BLOCKS) - first)
    })
}

/// Returns the words that a range of blocks of a part touches, each with its bits of the range.
fn ones(within: &Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let within = within.clone();
    (within.start / 64..within.end.div_ceil(64)).map(move |word| {
        let first = word * 64;
        let (start, end) = (
            within.start.max(first) - first,
            within.end.min(first + 64) - first,
        );
        let below_end = u64::MAX >> (64 - end);
        (word as usize, below_end & (u64::MAX << start))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bimetal_rt::Rng;

    use super::*;

    /// The set agrees with a set of numbers after any additions and removals, and has no part
    /// without a block.
    #[test]
    fn the_set_agrees_with_a_set_of_numbers() {
        let mut rng = Rng::new(1);
        let (mut set, mut model) = (WrittenBlocks::default(), BTreeSet::new());
        let blocks_max = 3 * PART_BLOCKS;
        for step in 0..2000 {
            let start = rng.below(blocks_max * BLOCK_BYTES);
            let len = match step % 10 {
                0 => rng.below(PART_BLOCKS * BLOCK_BYTES * 2),
                _ => rng.below(200 * BLOCK_BYTES),
            };
            let range = start..start + len;
            let touched = match len {
                0 => 0..0,
                _ => range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES),
            };
            let missing = touched
                .clone()
                .filter(|block| !model.contains(block))
                .count();
            assert_eq!(set.missing_in(&range), missing as u64, "{range:?}");
            match rng.chance(0.5) {
                true => {
                    set.insert(&range);
                    model.extend(touched);
                }
                false => {
                    set.remove(&range);
                    let whole = range.start.div_ceil(BLOCK_BYTES)..range.end / BLOCK_BYTES;
                    model.retain(|block| !whole.contains(block));
                }
            }
            assert_eq!(set.count(), model.len() as u64);
        }
        set.remove(&(0..u64::MAX));
        assert_eq!((set.count(), set.parts.len()), (0, 0));
    }
}
