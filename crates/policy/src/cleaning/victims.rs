//! The choice of the segment to clean next, and the price of the space that cleaning gains.
//!
//! The victim is the segment with the highest score
//!
//! ```text
//! age x (1 - u) / u
//! ```
//!
//! `u` is the live share of the segment and `age` the number of blocks appended to the side since
//! the segment was *sealed*, that is, filled to its end. This is the cost-benefit rule of LFS
//! (Rosenblum and Ousterhout, 1992), with two changes:
//!
//! - The divisor is `u` and not `1 + u`. LFS reads a whole victim, but here the live blocks are
//!   usually read from another copy, so that only writing them costs anything.
//! - The age counts from the sealing and not from the youngest block in the segment. A segment of
//!   moved blocks holds old data but has had no time yet to lose blocks. With the age of the data,
//!   such a segment would be cleaned again too early.
//!
//! Two kinds of segments are never chosen: one without live blocks, which is freed without any
//! cleaning, and one without dead blocks, because moving it gains nothing.
//!
//! The module must never choose by anything that depends on the order of the candidates, because
//! the live side and the simulator list their segments in different orders.

use std::cmp::Ordering;

/// Number of victims over which [`expected_yield`] is usually taken. The mean of several victims is
/// needed because the live shares of single ones differ a lot in skewed loads. With 16 of them,
/// admission still falls to less than half of its mean at times, in a load that sends 90 % of the
/// writes to 10 % of the blocks.
pub const VICTIMS_AHEAD: usize = 64;

/// A sealed segment that can be cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Number of the segment.
    pub id: u32,
    /// Number of live blocks in the segment.
    pub live_blocks: u32,
    /// Number of blocks that the segment holds when it is full.
    pub capacity_blocks: u32,
    /// Time at which the segment was sealed, in blocks appended to the side.
    pub sealed_at_blocks: u64,
}

impl Candidate {
    /// Returns what the cleaning of this segment costs and gains.
    pub fn cleaning_yield(&self) -> Yield {
        Yield {
            moved_blocks: u64::from(self.live_blocks),
            gained_blocks: u64::from(self.capacity_blocks.saturating_sub(self.live_blocks)),
        }
    }

    /// Returns true if cleaning the segment makes sense: it has live blocks, and dead ones.
    fn is_eligible(&self) -> bool {
        0 < self.live_blocks && self.live_blocks < self.capacity_blocks
    }

    /// Compares two eligible candidates: `Less` if this one is cleaned before the other. Scores are
    /// compared as fractions of integers, so they are exact. Equal scores are decided by the lower
    /// number. A segment that was sealed just now counts as one block old, so that its live share
    /// still matters.
    fn order(&self, other: &Candidate, now_blocks: u64) -> Ordering {
        let gain = |of: &Candidate| {
            let age = now_blocks.saturating_sub(of.sealed_at_blocks).max(1);
            u128::from(age) * u128::from(of.capacity_blocks - of.live_blocks)
        };
        let own = gain(self) * u128::from(other.live_blocks);
        let others = gain(other) * u128::from(self.live_blocks);
        others.cmp(&own).then(self.id.cmp(&other.id))
    }
}

/// What cleaning costs and gains: blocks that must be moved, and blocks of space that this gains,
/// after the space for the moved blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Yield {
    /// Number of blocks that must be moved.
    pub moved_blocks: u64,
    /// Number of blocks of space gained.
    pub gained_blocks: u64,
}

impl Yield {
    /// The highest price that [`Yield::moved_per_appended`] returns. It is the price of segments
    /// that are 99.9 % live.
    pub const MOVED_PER_APPENDED_MAX: f64 = 999.0;

    /// Returns the price `w` of space: the number of blocks that must be moved for each block that
    /// is appended, so that the free space stays the same. It is sum v / sum (1 - v) over the live
    /// shares v of the victims, at most [`Yield::MOVED_PER_APPENDED_MAX`].
    pub fn moved_per_appended(&self) -> f64 {
        let gained = self.gained_blocks.max(1) as f64;
        (self.moved_blocks as f64 / gained).min(Self::MOVED_PER_APPENDED_MAX)
    }

    /// Returns the blocks of space that each moved block gains.
    pub fn gained_per_moved(&self) -> f64 {
        self.gained_blocks as f64 / self.moved_blocks.max(1) as f64
    }

    /// Returns what the cleaning of these segments and of others costs and gains together.
    pub fn plus(self, others: Yield) -> Yield {
        Yield {
            moved_blocks: self.moved_blocks + others.moved_blocks,
            gained_blocks: self.gained_blocks + others.gained_blocks,
        }
    }

    /// Returns true if cleaning gains no space, because there is no victim.
    pub fn is_nothing(&self) -> bool {
        self.gained_blocks == 0
    }
}

/// Returns the number of the segment to clean next, `None` if no candidate has both live and dead
/// blocks. `now_blocks` is the current time. Equal scores are decided by the lower number. The call
/// looks at each candidate once.
pub fn choose(candidates: impl Iterator<Item = Candidate>, now_blocks: u64) -> Option<u32> {
    candidates
        .filter(Candidate::is_eligible)
        .min_by(|a, b| a.order(b, now_blocks))
        .map(|victim| victim.id)
}

/// Returns the next `count` victims, in the order in which [`choose`] would return them if nothing
/// was appended between the choices. There are fewer if there are not that many eligible
/// candidates. `now_blocks` is the current time. The call looks at each candidate once and keeps
/// `count` of them, so `count` should be small.
pub fn next_victims(
    candidates: impl Iterator<Item = Candidate>,
    now_blocks: u64,
    count: usize,
) -> Vec<Candidate> {
    let mut best: Vec<Candidate> = Vec::with_capacity(count + 1);
    for candidate in candidates.filter(Candidate::is_eligible) {
        let is_before = |other: &Candidate| candidate.order(other, now_blocks).is_lt();
        if best.len() == count && !best.last().is_some_and(is_before) {
            continue;
        }
        let at = best.partition_point(|other| !is_before(other));
        best.insert(at, candidate);
        best.truncate(count);
    }
    best
}

/// Returns what the cleaning of the next `count` victims costs and gains together, for
/// [`Admission`](super::admission::Admission); `count` is usually [`VICTIMS_AHEAD`], and
/// `now_blocks` is the current time. The result is nothing if no candidate is eligible. The cost of
/// the call is that of [`next_victims`].
pub fn expected_yield(
    candidates: impl Iterator<Item = Candidate>,
    now_blocks: u64,
    count: usize,
) -> Yield {
    let victims = next_victims(candidates, now_blocks, count);
    let yields = victims.iter().map(Candidate::cleaning_yield);
    yields.fold(Yield::default(), Yield::plus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a segment of 100 blocks.
    fn segment(id: u32, live_blocks: u32, sealed_at_blocks: u64) -> Candidate {
        Candidate {
            id,
            live_blocks,
            capacity_blocks: 100,
            sealed_at_blocks,
        }
    }

    fn ids(victims: &[Candidate]) -> Vec<u32> {
        victims.iter().map(|of| of.id).collect()
    }

    /// At time 1000 the scores are 100 x 80/20 = 400, 500 x 50/50 = 500 and 900 x 25/75 = 300.
    #[test]
    fn the_victim_has_the_highest_age_times_dead_over_live() {
        let segments = [
            segment(1, 20, 900),
            segment(2, 50, 500),
            segment(3, 75, 100),
        ];
        assert_eq!(choose(segments.into_iter(), 1000), Some(2));
        let order = next_victims(segments.into_iter(), 1000, 3);
        assert_eq!(ids(&order), [2, 1, 3]);
        let two = next_victims(segments.into_iter().rev(), 1000, 2);
        assert_eq!(ids(&two), [2, 1]);
    }

    #[test]
    fn segments_without_live_or_without_dead_blocks_are_not_chosen() {
        let segments = [segment(1, 0, 0), segment(2, 100, 0)];
        assert_eq!(choose(segments.into_iter(), 1000), None);
        let expected = expected_yield(segments.into_iter(), 1000, VICTIMS_AHEAD);
        assert!(expected.is_nothing());
        assert_eq!(expected.moved_per_appended(), 0.0);
        let more = segments.into_iter().chain([segment(3, 99, 1000)]);
        assert_eq!(choose(more, 1000), Some(3));
    }

    /// Segments of 100 and of 200 blocks with the same live share and age have equal scores.
    #[test]
    fn equal_scores_are_decided_by_the_lower_number_in_any_order() {
        let large = Candidate {
            capacity_blocks: 200,
            live_blocks: 80,
            ..segment(4, 0, 7)
        };
        let segments = [segment(9, 40, 7), large, segment(5, 40, 7)];
        assert_eq!(choose(segments.into_iter(), 50), Some(4));
        assert_eq!(choose(segments.into_iter().rev(), 50), Some(4));
        let order = next_victims(segments.into_iter(), 50, 3);
        assert_eq!(ids(&order), [4, 5, 9]);
    }

    /// A segment that was sealed after `now_blocks`, and the largest numbers, must not overflow.
    #[test]
    fn extreme_values_do_not_overflow() {
        let full = Candidate {
            id: 1,
            live_blocks: u32::MAX - 1,
            capacity_blocks: u32::MAX,
            sealed_at_blocks: 0,
        };
        let empty = Candidate {
            id: 2,
            live_blocks: 1,
            ..full
        };
        let future = Candidate {
            id: 3,
            sealed_at_blocks: u64::MAX,
            ..empty
        };
        let order = next_victims([full, empty, future].into_iter(), u64::MAX - 1, 3);
        assert_eq!(ids(&order), [2, 1, 3]);
    }

    /// The next two victims have 20 and 50 of 100 blocks live, so 70 blocks are moved for 130 that
    /// are gained. A victim with one dead block in 100,000 has a price above the highest.
    #[test]
    fn the_price_is_that_of_the_next_victims_together() {
        let segments = [
            segment(1, 20, 900),
            segment(2, 50, 500),
            segment(3, 75, 100),
        ];
        let expected = expected_yield(segments.into_iter(), 1000, 2);
        assert_eq!((expected.moved_blocks, expected.gained_blocks), (70, 130));
        assert_eq!(expected.moved_per_appended(), 70.0 / 130.0);
        let dear = Candidate {
            live_blocks: 99_999,
            capacity_blocks: 100_000,
            ..segment(1, 0, 0)
        };
        assert_eq!(dear.cleaning_yield().moved_per_appended(), 999.0);
    }

    /// Against a sort of all segments, as the definition has it.
    #[test]
    fn the_bounded_selection_finds_the_same_as_a_sort() {
        let mut random = 12345_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for count in [0, 1, 2, 16, 300] {
            let segments: Vec<Candidate> = (0..200)
                .map(|id| segment(id, next(101) as u32, next(20)))
                .collect();
            let mut sorted = segments.clone();
            sorted.retain(Candidate::is_eligible);
            let score = |of: &Candidate| {
                let (live, age) = (f64::from(of.live_blocks), (20 - of.sealed_at_blocks) as f64);
                age * (100.0 - live) / live
            };
            sorted.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.id.cmp(&b.id)));
            sorted.truncate(count);
            assert_eq!(next_victims(segments.iter().copied(), 20, count), sorted);
        }
    }
}
