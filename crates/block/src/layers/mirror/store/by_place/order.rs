//! The order of a device: sorting what lies on it, and dividing it into runs that are read
//! together.
//!
//! A list can have millions of blocks. It must never be sorted in one turn, since no request is
//! answered meanwhile.

use std::collections::BTreeMap;

use bimetal_rt::turn::{count_steps, give_way};

/// Maximum number of bytes between two parts that are read together, and of all bytes that are read
/// together. A disk passes over such a gap faster than it seeks.
const READ_GAP_BYTES_MAX: u64 = 256 << 10;
pub(super) const READ_BYTES_MAX: u64 = 1 << 20;
/// Length of the range of offsets that is sorted in one turn: it has at most 16,384 blocks.
const SORTED_BYTES: u64 = 64 << 20;
/// Number of elements that are assigned to ranges in one turn.
const ASSIGNED: usize = 1024;

/// Something with a place on a device.
pub(super) trait Placed {
    /// Returns the offset on the device at which it begins.
    fn at(&self) -> u64;

    /// Returns the offset on the device at which it ends.
    fn end(&self) -> u64;
}

/// Iterator over the runs of a list in the order of the device: parts that are read together, and
/// the offset on the device up to which is read.
///
/// Where the next run is near, a run is read up to it: a disk loses a rotation between two reads
/// that are not adjacent.
pub(super) struct Runs<'l, P> {
    left: &'l [P],
    most_bytes: u64,
    gap_bytes: u64,
}

impl<'l, P: Placed> Runs<'l, P> {
    /// Divides a list for a device that transfers at most `transfer_bytes_max` bytes with a
    /// request. Only a single part can be longer than that.
    pub(super) fn of(list: &'l [P], transfer_bytes_max: u64) -> Runs<'l, P> {
        let most_bytes = READ_BYTES_MAX.min(transfer_bytes_max);
        Runs {
            left: list,
            most_bytes,
            gap_bytes: READ_GAP_BYTES_MAX.min(most_bytes / 4),
        }
    }
}

impl<'l, P: Placed> Iterator for Runs<'l, P> {
    type Item = (&'l [P], u64);

    fn next(&mut self) -> Option<(&'l [P], u64)> {
        let (list, gap_bytes) = (self.left, self.gap_bytes);
        let first = list.first()?;
        let fits = |end: usize| {
            // The run may be read up to the next one, which is behind a gap at most.
            let room_bytes = self.most_bytes - gap_bytes;
            let is_near = list[end].at() <= list[end - 1].end() + gap_bytes;
            is_near && list[end].end() - first.at() <= room_bytes
        };
        let end = (1..list.len()).find(|end| !fits(*end));
        let (run, rest) = list.split_at(end.unwrap_or(list.len()));
        self.left = rest;
        let end = run[run.len() - 1].end();
        let next = rest.first().map(Placed::at);
        let next = next.filter(|next| *next <= end + gap_bytes);
        Some((run, next.unwrap_or(end)))
    }
}

/// Sorts a list by an offset in bytes, which no two blocks of it share.
pub(super) async fn sorted_by<T>(mut list: Vec<T>, offset: impl Fn(&T) -> u64) -> Vec<T> {
    let mut ranges: BTreeMap<u64, Vec<T>> = BTreeMap::new();
    let count = list.len();
    while !list.is_empty() {
        let some = list.split_off(list.len().saturating_sub(ASSIGNED));
        count_steps(some.len() as u64);
        for element in some {
            let range = offset(&element) / SORTED_BYTES;
            ranges.entry(range).or_default().push(element);
        }
        give_way().await;
    }
    let mut sorted = Vec::with_capacity(count);
    while let Some((_, mut some)) = ranges.pop_first() {
        count_steps(some.len() as u64 / 4);
        some.sort_unstable_by_key(&offset);
        sorted.append(&mut some);
        give_way().await;
    }
    sorted
}

#[cfg(test)]
mod tests {
    use bimetal_rt::{Rt, VirtualOptions};

    use super::*;
    use crate::BLOCK_BYTES;

    impl Placed for u64 {
        fn at(&self) -> u64 {
            *self
        }

        fn end(&self) -> u64 {
            *self + BLOCK_BYTES
        }
    }

    /// Returns the runs of blocks, given by their offsets in blocks: the offsets of each, and up to
    /// which block is read.
    fn runs(blocks: &[u64]) -> Vec<(Vec<u64>, u64)> {
        let list: Vec<u64> = blocks.iter().map(|block| block * BLOCK_BYTES).collect();
        let runs = Runs::of(&list, 1 << 30);
        let in_blocks = |run: &[u64]| run.iter().map(|at| at / BLOCK_BYTES).collect();
        runs.map(|(run, end)| (in_blocks(run), end / BLOCK_BYTES))
            .collect()
    }

    #[test]
    fn a_run_is_read_up_to_the_next_one_if_that_is_near() {
        let gap = READ_GAP_BYTES_MAX / BLOCK_BYTES;
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[3, 5, 9]), [(vec![3, 5, 9], 10)]);
        let near: Vec<u64> = (0..3).map(|index| index * (gap + 1)).collect();
        assert_eq!(runs(&near), [(near.clone(), near[2] + 1)]);
        let far = [0, gap + 2];
        assert_eq!(runs(&far), [(vec![0], 1), (vec![gap + 2], gap + 3)]);
        // 1 MiB is 256 blocks; a run has room for the way to the next one.
        let all: Vec<u64> = (0..300).collect();
        let first: Vec<u64> = (0..256 - gap).collect();
        let found = runs(&all);
        assert_eq!(found[0], (first, 256 - gap));
        let count: usize = found.iter().map(|(run, _)| run.len()).sum();
        assert_eq!(count, 300);
    }

    #[test]
    fn a_list_is_sorted_in_short_turns() {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let blocks = 300_000_u64;
        // 7,919 has no divisor in common with the number of blocks: each occurs once.
        let offsets = (0..blocks).map(|index| index * 7_919 % blocks * BLOCK_BYTES);
        let list: Vec<u64> = offsets.collect();
        let sorted = rt.block_on(async { sorted_by(list, |offset| *offset).await });
        let expected: Vec<u64> = (0..blocks).map(|block| block * BLOCK_BYTES).collect();
        assert_eq!(sorted, expected);
        // The elements of one range are sorted beyond the bound of a turn.
        let steps = rt.longest_turn().steps;
        assert!(steps <= 2 * 4096, "a turn had {steps} steps");
        assert!(steps > 0, "the turns are counted");
    }
}
