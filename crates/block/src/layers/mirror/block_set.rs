//! A set of the blocks of a part of a volume, with a bit for each block. It needs 32 MiB of memory
//! for each terabyte, however scattered the blocks are.

use std::ops::Range;

use crate::BLOCK_BYTES;

/// Number of blocks in a word.
const WORD_BLOCKS: u64 = 64;

/// A set of blocks; see the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockSet {
    of: Range<u64>,
    words: Vec<u64>,
}

impl BlockSet {
    /// Creates an empty set of blocks in a range of the volume, in bytes.
    pub(super) fn none_in(of: Range<u64>) -> BlockSet {
        let blocks = (of.end - of.start).div_ceil(BLOCK_BYTES);
        BlockSet {
            words: vec![0; blocks.div_ceil(WORD_BLOCKS) as usize],
            of,
        }
    }

    /// Returns the range of the volume whose blocks the set can have.
    pub(super) fn range(&self) -> Range<u64> {
        self.of.clone()
    }

    /// Returns the word and the bit of the block at an offset.
    fn position(&self, offset: u64) -> (usize, u64) {
        let index = (offset - self.of.start) / BLOCK_BYTES;
        ((index / WORD_BLOCKS) as usize, index % WORD_BLOCKS)
    }

    /// Adds each block that a range of the volume touches. Blocks outside of the set's range are
    /// left out.
    pub(super) fn insert(&mut self, range: &Range<u64>) {
        let start = range.start.max(self.of.start) / BLOCK_BYTES * BLOCK_BYTES;
        let end = range.end.min(self.of.end);
        for offset in (start..end).step_by(BLOCK_BYTES as usize) {
            let (word, bit) = self.position(offset);
            self.words[word] |= 1 << bit;
        }
    }

    /// Removes the blocks of another set of the same range.
    ///
    /// # Panics
    /// When the ranges differ.
    pub(super) fn remove_all(&mut self, other: &BlockSet) {
        assert_eq!(self.of, other.of, "the sets have blocks of one range");
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word &= !other;
        }
    }

    /// Returns true when the set has the block at an offset.
    pub(super) fn has(&self, offset: u64) -> bool {
        let (word, bit) = self.position(offset);
        self.words[word] >> bit & 1 == 1
    }

    /// Returns the number of blocks in the set.
    pub(super) fn count(&self) -> u64 {
        let ones = self.words.iter().map(|word| u64::from(word.count_ones()));
        ones.sum()
    }

    /// Returns the ranges of consecutive blocks in a part of the volume that are in the set if
    /// `are_in`, and that are not in it otherwise, in ascending order. The part must consist of
    /// whole blocks of the set's range.
    pub(super) fn ranges_in(&self, part: &Range<u64>, are_in: bool) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for offset in part.clone().step_by(BLOCK_BYTES as usize) {
            match ranges.last_mut() {
                _ if self.has(offset) != are_in => {}
                Some(last) if last.end == offset => last.end += BLOCK_BYTES,
                _ => ranges.push(offset..offset + BLOCK_BYTES),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 64 * BLOCK_BYTES * 7;

    fn at(block: u64) -> u64 {
        START + block * BLOCK_BYTES
    }

    #[test]
    fn a_set_has_what_was_inserted_and_not_removed() {
        let all = START..at(1000);
        let mut set = BlockSet::none_in(all.clone());
        assert_eq!(set.ranges_in(&all, true), []);
        assert_eq!(set.ranges_in(&all, false), std::slice::from_ref(&all));
        let ranges = [0..1, 3..5, 60..70, 127..128, 128..130, 900..1000];
        for range in &ranges {
            set.insert(&(at(range.start)..at(range.end)));
        }
        let joined = [0..1, 3..5, 60..70, 127..130, 900..1000];
        let joined = joined.map(|range| at(range.start)..at(range.end));
        assert_eq!(set.ranges_in(&all, true), joined);
        assert_eq!(set.count(), 1 + 2 + 10 + 3 + 100);
        let part = at(4)..at(65);
        assert_eq!(set.ranges_in(&part, true), [at(4)..at(5), at(60)..at(65)]);
        let between = at(5)..at(60);
        assert_eq!(set.ranges_in(&part, false), std::slice::from_ref(&between));
        for block in 0..1000 {
            let is_in = ranges.iter().any(|range| range.contains(&block));
            assert_eq!(set.has(at(block)), is_in, "{block}");
        }

        let mut other = BlockSet::none_in(all.clone());
        // A range that touches a block has it, and nothing outside counts.
        other.insert(&(at(3) + 1..at(4) + 1));
        other.insert(&(0..at(1)));
        other.insert(&(at(999)..u64::MAX));
        assert_eq!(other.count(), 4);
        set.remove_all(&other);
        assert_eq!(set.count(), 116 - 4);
        assert!(!set.has(at(4)) && set.has(at(60)));
    }
}
