//! The choice of the request nearest to the head of a disk. A short backward seek is acceptable, a
//! long backward seek is not. If all requests are far behind the head, a new sweep starts from the
//! lowest sector.
//!
//! Source: `as_choose_req` and `cfq_choose_req` of Linux 2.6.26.

use super::sorted::Sorted;
use super::{Requests, Tag};

/// The position of a disk's head, and the parameters of backward seeks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// The sector after the end of the last dispatched request.
    pub(super) sector: u64,
    /// Distance behind the head, in sectors, beyond which a request is left for the next sweep.
    pub(super) back_sectors_max: u64,
    /// Factor by which the cost of a backward seek is multiplied.
    pub(super) back_penalty: u64,
}

impl Head {
    /// Returns the cost of a seek to `sector`; `None` if the sector is too far behind the head.
    fn cost(&self, sector: u64) -> Option<u64> {
        match sector.checked_sub(self.sector) {
            Some(ahead) => Some(ahead),
            None => {
                let behind = self.sector - sector;
                (behind <= self.back_sectors_max).then(|| behind.saturating_mul(self.back_penalty))
            }
        }
    }

    /// Returns the request nearer to the head. If both requests are equally near, returns the
    /// request at the higher sector. If both requests are too far behind the head, returns the
    /// request at the lower sector.
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

    /// Returns the request to dispatch after `last`. `last` is never returned, even if it is still
    /// in `sorted`.
    pub(super) fn following(&self, last: Tag, sorted: &Sorted, r: &Requests) -> Option<Tag> {
        let (before, after) = Head::neighbours(last, sorted, r);
        self.nearer(after, before, r)
    }

    /// Returns the request for metadata if only one of the two requests is for metadata. Otherwise,
    /// returns the request nearer to the head of the disk.
    pub(super) fn better(&self, a: Option<Tag>, b: Option<Tag>, r: &Requests) -> Option<Tag> {
        let metadata = |tag: Option<Tag>| tag.is_some_and(|tag| r[tag].bio.metadata);
        match (metadata(a), metadata(b)) {
            (true, false) => a,
            (false, true) => b,
            _ => self.nearer(a, b, r),
        }
    }

    /// Returns the request to dispatch after `last`, preferring a request for metadata. `last` is
    /// never returned, even if it is still in `sorted`.
    pub(super) fn better_following(&self, last: Tag, sorted: &Sorted, r: &Requests) -> Option<Tag> {
        let (before, after) = Head::neighbours(last, sorted, r);
        self.better(after, before, r)
    }

    /// Returns the requests before and after `last` in sector order. After the highest request, the
    /// order continues with the lowest.
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
