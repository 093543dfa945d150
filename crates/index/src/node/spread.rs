//! Estimates the position of a key among sorted rows by interpolation. Keys are often spread so
//! evenly over a node that a straight line leads to within a few rows of the position, and so to
//! the cache line that has the answer.
//!
//! When the node is made, the largest distance of a row from the line is measured in both
//! directions. A search covers that distance around the estimate, so it never misses the answer,
//! whatever the keys. If the keys fit no line, the search covers all rows, as it would without a
//! line.

use super::search::partition;
use std::ops::Range;

/// Line through the rows of a node, and the largest distances of the rows from it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Spread {
    /// Number of the first row, which is the lowest.
    least: u64,
    /// Slope of the line: the average number of rows for a difference of 2 between the numbers. The
    /// unit is 2 because half of a difference always fits a signed integer, which the processor
    /// converts to a float in one instruction.
    rows_per_half: f32,
    /// Largest distance of a row below its estimate.
    below: u16,
    /// Largest distance of a row above its estimate.
    above: u16,
}

impl Spread {
    /// Approximates the numbers of `rows` rows by a straight line, and returns the line. The
    /// numbers must not descend. `rows` is at most [`ROWS_MAX`](super::ROWS_MAX).
    pub fn of(rows: usize, number: impl Fn(usize) -> u64) -> Spread {
        let Some(last) = rows.checked_sub(1) else {
            return Spread::default();
        };
        let least = number(0);
        let mut spread = Spread {
            least,
            ..Spread::default()
        };
        let halves = number(last).saturating_sub(least) >> 1;
        if halves > 0 {
            spread.rows_per_half = last as f32 / halves as f32;
        }
        let (mut below, mut above) = (0, 0);
        for row in 0..rows {
            let guess = spread.guess(number(row));
            below = below.max(guess.saturating_sub(row));
            above = above.max(row.saturating_sub(guess));
        }
        // The distance can exceed `u16::MAX` only if the rows are unsorted. A search cannot rely on
        // any line to find unsorted rows, so the distance is limited to `u16::MAX`.
        spread.below = u16::try_from(below).unwrap_or(u16::MAX);
        spread.above = u16::try_from(above).unwrap_or(u16::MAX);
        spread
    }

    /// Returns the estimated row of a number. A greater number never has a lower estimate: neither
    /// the conversion nor the multiplication changes the order when it rounds.
    #[inline(always)]
    fn guess(&self, number: u64) -> usize {
        let halves = (number.saturating_sub(self.least) >> 1) as i64;
        (halves as f32 * self.rows_per_half) as i64 as usize
    }

    /// Returns the range of rows in which to search for a row: the first row whose number is not
    /// less than `number`. The wanted row is in the range or is the row directly after the range.
    #[inline(always)]
    fn around(&self, number: u64, rows: usize) -> Range<usize> {
        let guess = self.guess(number);
        let start = guess.saturating_sub(self.below.into()).min(rows);
        let end = guess.saturating_add(usize::from(self.above) + 1).min(rows);
        start..end
    }

    /// Returns the first of the `rows` rows for which `less` is false. `less` returns whether the
    /// number of a row is less than `number`.
    #[inline(always)]
    pub fn partition(&self, rows: usize, number: u64, less: impl Fn(usize) -> bool) -> usize {
        let around = self.around(number, rows);
        let start = around.start;
        start.wrapping_add(partition(around.len(), |row| less(start.wrapping_add(row))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn found(numbers: &[u64], wanted: u64) -> usize {
        let spread = Spread::of(numbers.len(), |row| numbers[row]);
        spread.partition(numbers.len(), wanted, |row| numbers[row] < wanted)
    }

    #[test]
    fn even_numbers_are_found_at_once() {
        let numbers: Vec<u64> = (0..1000).map(|n| 5_000 + n * 64).collect();
        let spread = Spread::of(numbers.len(), |row| numbers[row]);
        assert!(spread.below + spread.above <= 2, "{spread:?}");
        assert_eq!(found(&numbers, 5_000 + 777 * 64), 777);
        assert_eq!(found(&numbers, 5_001 + 777 * 64), 778);
        assert_eq!(found(&numbers, 0), 0);
        assert_eq!(found(&numbers, u64::MAX), 1000);
    }

    #[test]
    fn none_one_and_equal_ones_are_spread_too() {
        assert_eq!(found(&[], 7), 0);
        assert_eq!(found(&[7], 7), 0);
        assert_eq!(found(&[7], 8), 1);
        assert_eq!(found(&[7, 7, 7, 8], 8), 3);
        assert_eq!(found(&[0, u64::MAX], u64::MAX), 1);
    }

    proptest! {
        #[test]
        fn it_is_what_a_walk_over_all_finds(
            // Numbers of very different magnitudes, so that no line fits.
            mut numbers in vec((any::<u64>(), 0..64_u32).prop_map(|(n, shift)| n >> shift), 0..400),
            others in vec((any::<u64>(), 0..64_u32).prop_map(|(n, shift)| n >> shift), 20),
        ) {
            numbers.sort_unstable();
            let near = numbers.iter().flat_map(|n| [n.saturating_sub(1), *n, n.saturating_add(1)]);
            for wanted in near.chain(others) {
                let expected = numbers.iter().filter(|number| **number < wanted).count();
                prop_assert_eq!(found(&numbers, wanted), expected);
            }
        }
    }
}
