//! Which request is the nearest to the head of a disk: a short way back is worth it, a long one is
//! not, and behind that everything is a sweep from the lowest sector.
//!
//! Source: `as_choose_req` and `cfq_choose_req` of Linux 2.6.26.

use super::sorted::Sorted;
use super::{Requests, Tag};

/// Where the head is and how it likes to go back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// The sector behind the request dispatched last.
    pub(super) sector: u64,
    /// Further back than this is a new sweep.
    pub(super) back_sectors_max: u64,
    /// A way back counts as so many times its distance.
    pub(super) back_penalty: u64,
}

impl Head {
    /// The cost of going to `sector`; `None` if it is too far behind.
    fn cost(&self, sector: u64) -> Option<u64> {
        match sector.checked_sub(self.sector) {
            Some(ahead) => Some(ahead),
            None => {
                let behind = self.sector - sector;
                (behind <= self.back_sectors_max).then(|| behind.saturating_mul(self.back_penalty))
            }
        }
    }

    /// The nearer of two; of two as near the higher; of two too far behind the lower.
    pub(super) fn nearer(&self, a: Option<Tag>, b: Option<Tag>, r: &Requests) -> Option<Tag> {
        let (Some(first), Some(second)) = (a, b) else {
            return a.or(b);
        };
        let (at_a, at_b) = (r[first].bio.start_sector, r[second].bio.start_sector);
        let first_is_nearer = match (self.cost(at_a), self.cost(at_b)) {
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => at_a <= at_b,
            (Some(cost_a), Some(cost_b)) if cost_a == cost_b => at_a >= at_b,
            (Some(cost_a), Some(cost_b)) => cost_a < cost_b,
        };
        if first_is_nearer { a } else { b }
    }

    /// What is to follow `last`, which may still be among `sorted`.
    pub(super) fn following(&self, last: Tag, sorted: &Sorted, r: &Requests) -> Option<Tag> {
        let (before, after) = Head::neighbours(last, sorted, r);
        self.nearer(after, before, r)
    }

    /// Of two requests the one for metadata, or else the nearer.
    pub(super) fn better(&self, a: Option<Tag>, b: Option<Tag>, r: &Requests) -> Option<Tag> {
        let metadata = |tag: Option<Tag>| tag.is_some_and(|tag| r[tag].bio.metadata);
        match (metadata(a), metadata(b)) {
            (true, false) => a,
            (false, true) => b,
            _ => self.nearer(a, b, r),
        }
    }

    /// What is to follow `last`, which may still be among `sorted`, if metadata goes first.
    pub(super) fn better_following(&self, last: Tag, sorted: &Sorted, r: &Requests) -> Option<Tag> {
        let (before, after) = Head::neighbours(last, sorted, r);
        self.better(after, before, r)
    }

    /// The requests on either side of `last`; above the highest comes the lowest.
    pub(super) fn neighbours(
        last: Tag,
        sorted: &Sorted,
        r: &Requests,
    ) -> (Option<Tag>, Option<Tag>) {
        let sector = r[last].bio.start_sector;
        let lowest = || sorted.first().filter(|first| *first != last);
        let after = sorted.after(sector, last).or_else(lowest);
        (sorted.before(sector, last), after)
    }
}
