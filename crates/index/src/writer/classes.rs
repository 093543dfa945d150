//! Classification of leaves as hot or cold. The hot leaves are those with the shortest intervals
//! between updates: a third of all leaves, or the share that the options set (the hot share).
//!
//! Source: the CHC-Tree keeps hot and cold nodes in clusters whose sizes have the ratio 1 to 2.
//! Here the number of hot leaves follows the number of leaves. The leaves with each interval are
//! counted. Beginning with the shortest interval, intervals are hot until their leaves add up to
//! the hot share of all leaves.

use crate::node::Seq;

const CLASSES: usize = 64;

/// Number of leaves for each update interval.
#[derive(Clone, Debug)]
pub(crate) struct Classes {
    counts: [u64; CLASSES],
    total: u64,
    hot_share: f64,
}

impl Classes {
    pub(crate) fn new(hot_share: f64) -> Classes {
        Classes {
            counts: [0; CLASSES],
            total: 0,
            hot_share,
        }
    }

    /// Records that a leaf is written back at the sequence number `now`. `before` is the sequence
    /// number of its previous write-back, or 0 if there was none. Returns the leaf's new update
    /// interval, as the exponent of a power of two: the mean of the previous interval and the gap
    /// between `before` and `now`, or that gap alone if `before` is 0.
    pub(crate) fn observe(&mut self, interval: u8, before: Seq, now: Seq) -> u8 {
        let gap = now.saturating_sub(before).max(1).ilog2() as u8;
        let next = if before == 0 {
            gap
        } else {
            (interval + gap).div_ceil(2)
        };
        if before != 0 {
            let count = &mut self.counts[usize::from(interval) % CLASSES];
            self.total -= u64::from(*count > 0);
            *count = count.saturating_sub(1);
        }
        self.counts[usize::from(next) % CLASSES] += 1;
        self.total += 1;
        next
    }

    /// Returns true if leaves with this interval are hot.
    pub(crate) fn is_hot(&self, interval: u8) -> bool {
        let closer: u64 = self.counts[..usize::from(interval) % CLASSES].iter().sum();
        let own = self.counts[usize::from(interval) % CLASSES];
        // The hot share is filled with leaves in ascending order of their intervals. Leaves with
        // this interval are hot if more than half of them still fit into the hot share.
        (closer as f64 + own as f64 / 2.0) < self.total as f64 * self.hot_share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leaves_that_change_most_often_are_hot_up_to_the_quota() {
        let mut classes = Classes::new(1.0 / 3.0);
        // 300 leaves change every 2^10 batches, 700 every 2^16; each is observed eight times.
        let mut intervals = vec![0; 1000];
        for round in 1..=8u64 {
            for (leaf, interval) in intervals.iter_mut().enumerate() {
                let gap = if leaf < 300 { 1 << 10 } else { 1 << 16 };
                let before = if round == 1 { 0 } else { 1_000_000 };
                *interval = classes.observe(*interval, before, before + gap);
            }
        }
        assert_eq!((intervals[0], intervals[999]), (10, 16));
        assert!(classes.is_hot(10));
        assert!(!classes.is_hot(16));
        assert_eq!(classes.total, 1000, "each leaf is counted once");
    }
}
