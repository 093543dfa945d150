//! A write buffer whose order is chosen by a tournament: several orders manage the same pages, and
//! the one that would have cost the device least selects the pages to evict.
//!
//! No order of dirty pages is best everywhere. Whole clusters in order of recency suit files that
//! are written once, the largest cold cluster suits many files that are written slowly, and the
//! uses of single pages suit data that is written again and again. The difference is not a property
//! of the device, but of the load, and changes with it.
//!
//! Each order also runs alone in a miniature: a write buffer of its own over a sample of the erase
//! blocks, smaller by the same factor. The miniature counts the pages and the groups that its order
//! evicts. The costs of the miniatures are compared in equal parts of the load, so they differ only
//! by the order. The real buffer keeps its pages in all orders, so a change of the winner moves no
//! page and takes no time.
//!
//! Sources: one set of content with several policies, of which the better one decides, is set
//! dueling (Qureshi et al., ISCA 2007). To run the candidates over a sample chosen by a hash, with
//! a cache that is smaller by the same factor, is miniature simulation (Waldspurger et al., USENIX
//! ATC 2017).

use super::write_order::WriteOrder;
use super::{Access, PageAddress, PageId};
use crate::lists::{NONE, grow};

/// Number of pages of the whole cache for which every erase block is sampled. In larger caches the
/// miniatures have about this number of pages.
const SAMPLED_PAGES: usize = 1024;
/// The costs of the miniatures are forgotten over this number of times the pages of a miniature, in
/// writes.
const MEMORY_CAPACITIES: f64 = 8.0;
/// Minimum number of writes over which the costs of the miniatures are forgotten.
const MEMORY_WRITES_MIN: f64 = 4096.0;
/// Share of the time of cleaning that a page-mapped device saves if all pages of a cluster are
/// written together. On such a device, a group costs the tournament this share of the mean time of
/// cleaning for a page.
const SCATTERED_SHARE: f64 = 1.0 / 16.0;
/// Share of the cost of the present winner that another order must save to replace it, where groups
/// have a cost. Each change scatters on the device what one order would have kept together.
const LEAD: f64 = 1.0 / 16.0;

/// The cost of a group of pages that is evicted at once, beside the cost of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupCost {
    /// Nothing: the device writes single pages as well as groups.
    Nothing,
    /// A share of the cleaning of a page-mapped device ([`SCATTERED_SHARE`]).
    Cleaning,
    /// The fixed cost of a flush.
    Flush,
}

/// One order: the part of it that manages the real buffer, and its miniature.
struct Candidate {
    order: Box<dyn WriteOrder>,
    miniature: Box<dyn WriteOrder>,
    /// Pages and groups that the miniature has evicted, old ones with less weight.
    pages: f64,
    groups: f64,
}

/// The tournament of the orders.
pub(super) struct Tournament {
    candidates: Vec<Candidate>,
    winner: usize,
    /// One erase block of this number is in the sample.
    one_of: u32,
    /// Number of pages of each miniature.
    miniature_pages: usize,
    /// The id of each page in the miniatures, or [`NONE`] if its block is not in the sample.
    sampled: Vec<u32>,
    /// The number of ids that the miniatures use, and those that are free again.
    sampled_ids: u32,
    free_ids: Vec<u32>,
    page_us: f64,
    group_cost: GroupCost,
    group_us: f64,
    evicted: Vec<PageId>,
}

impl Tournament {
    /// Creates a tournament in a cache of `capacity` pages. `orders` returns new orders, the same
    /// ones at each call, in order of preference.
    pub(super) fn new(
        capacity: usize,
        group_cost: GroupCost,
        orders: impl Fn() -> Vec<Box<dyn WriteOrder>>,
    ) -> Tournament {
        let candidates = orders().into_iter().zip(orders());
        let candidates = candidates.map(|(order, miniature)| Candidate {
            order,
            miniature,
            pages: MEMORY_WRITES_MIN / 4.0,
            groups: 0.0,
        });
        Tournament {
            candidates: candidates.collect(),
            winner: 0,
            one_of: (capacity / SAMPLED_PAGES).clamp(1, 1 << 20) as u32,
            miniature_pages: 1,
            sampled: Vec::new(),
            sampled_ids: 0,
            free_ids: Vec::new(),
            page_us: 1.0,
            group_cost,
            group_us: 0.0,
            evicted: Vec::new(),
        }
    }

    fn first(&self) -> &dyn WriteOrder {
        &*self.candidates[0].order
    }

    /// Selects the order whose miniature cost least, if it leads the present winner by enough.
    fn judge(&mut self) {
        let cost = |candidate: &Candidate| {
            candidate.pages * self.page_us + candidate.groups * self.group_us
        };
        let lead = match self.group_cost {
            GroupCost::Nothing => 0.0,
            GroupCost::Cleaning | GroupCost::Flush => LEAD,
        };
        for at in 0..self.candidates.len() {
            let present = cost(&self.candidates[self.winner]);
            if cost(&self.candidates[at]) < present * (1.0 - lead) {
                self.winner = at;
            }
        }
    }

    /// Runs a write in the miniatures.
    fn write_in_miniature(&mut self, id: PageId) {
        let writes = (self.miniature_pages as f64 * MEMORY_CAPACITIES).max(MEMORY_WRITES_MIN);
        let kept = 1.0 - 1.0 / writes;
        let mut evicted = std::mem::take(&mut self.evicted);
        for candidate in &mut self.candidates {
            candidate.pages *= kept;
            candidate.groups *= kept;
            let miniature = &mut candidate.miniature;
            if miniature.holds(id) {
                miniature.hit(id, Access::Write);
                continue;
            }
            while miniature.len() >= self.miniature_pages {
                evicted.clear();
                miniature.evict(&mut evicted);
                candidate.pages += evicted.len() as f64;
                candidate.groups += 1.0;
            }
            miniature.insert(id, Access::Write);
        }
        self.evicted = evicted;
        self.judge();
    }

    fn in_sample(&self, place: PageAddress) -> bool {
        // The multiplier of Fibonacci hashing; the upper bits depend on all bits of the number.
        let hash = place.block.wrapping_mul(0x9E37_79B9);
        (u64::from(hash) * u64::from(self.one_of)) >> 32 == 0
    }
}

impl WriteOrder for Tournament {
    fn reserve(&mut self, ids: usize) {
        for candidate in &mut self.candidates {
            candidate.order.reserve(ids);
        }
        grow(&mut self.sampled, ids, NONE);
    }

    fn place(&mut self, page: PageId, place: PageAddress) {
        for candidate in &mut self.candidates {
            candidate.order.place(page, place);
        }
        let old = std::mem::replace(&mut self.sampled[page as usize], NONE);
        if !self.in_sample(place) {
            if old != NONE {
                self.free_ids.push(old);
            }
            return;
        }
        let id = match old {
            NONE => self.free_ids.pop().unwrap_or_else(|| {
                self.sampled_ids += 1;
                self.sampled_ids - 1
            }),
            id => id,
        };
        self.sampled[page as usize] = id;
        for candidate in &mut self.candidates {
            candidate.miniature.reserve(id as usize + 1);
            candidate.miniature.place(id, place);
        }
    }

    fn len(&self) -> usize {
        self.first().len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.first().holds(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        let id = self.sampled[page as usize];
        self.candidates.iter().any(|candidate| {
            candidate.order.remembers(page) || (id != NONE && candidate.miniature.remembers(id))
        })
    }

    fn list_held(&self, out: &mut Vec<PageId>) {
        self.first().list_held(out);
    }

    fn observe(&mut self, page: PageId, access: Access) {
        let id = self.sampled[page as usize];
        if id == NONE {
            return;
        }
        match access {
            Access::Write => self.write_in_miniature(id),
            Access::Read => {
                for candidate in &mut self.candidates {
                    if candidate.miniature.holds(id) {
                        candidate.miniature.hit(id, Access::Read);
                    }
                }
            }
        }
    }

    fn insert(&mut self, page: PageId, access: Access) {
        for candidate in &mut self.candidates {
            candidate.order.insert(page, access);
        }
    }

    fn hit(&mut self, page: PageId, access: Access) {
        for candidate in &mut self.candidates {
            candidate.order.hit(page, access);
        }
    }

    fn remove(&mut self, page: PageId) {
        let id = self.sampled[page as usize];
        for candidate in &mut self.candidates {
            candidate.order.remove(page);
            if id != NONE {
                candidate.miniature.remove(id);
            }
        }
    }

    fn leave(&mut self, pages: &[PageId]) {
        for candidate in &mut self.candidates {
            candidate.order.leave(pages);
        }
    }

    fn evict(&mut self, out: &mut Vec<PageId>) {
        let from = out.len();
        self.candidates[self.winner].order.evict(out);
        for (at, candidate) in self.candidates.iter_mut().enumerate() {
            if at != self.winner {
                candidate.order.leave(&out[from..]);
            }
        }
    }

    fn take_left_since(&mut self, page: PageId) -> Option<u64> {
        self.candidates[0].order.take_left_since(page)
    }

    fn resize(&mut self, pages: usize) {
        self.miniature_pages = (pages / self.one_of as usize).max(1);
        for candidate in &mut self.candidates {
            candidate.order.resize(pages);
            candidate.miniature.resize(self.miniature_pages);
        }
    }

    fn set_costs(&mut self, page_us: f64, mean_us: f64, beside_us: f64) {
        self.page_us = page_us;
        self.group_us = match self.group_cost {
            GroupCost::Nothing => 0.0,
            GroupCost::Cleaning => (mean_us - page_us).max(0.0) * SCATTERED_SHARE,
            GroupCost::Flush => beside_us,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replacement::clusters::{Choice, Clusters};
    use crate::replacement::frequent_pages::FrequentPages;

    const BLOCK: u32 = 64;

    /// A tournament of a buffer of `pages` pages, in a cache of twice that, with 4096 pages on the
    /// device.
    fn tournament(group_cost: GroupCost, pages: usize) -> Tournament {
        let mut tournament = Tournament::new(pages * 2, group_cost, || {
            vec![
                Box::new(Clusters::new(Choice::LargestCold, BLOCK, BLOCK)),
                Box::new(Clusters::new(Choice::Oldest, BLOCK, BLOCK)),
                Box::new(FrequentPages::new(BLOCK, BLOCK)),
            ]
        });
        tournament.reserve(4096);
        for page in 0..4096 {
            let (block, offset) = (page / BLOCK, page % BLOCK);
            tournament.place(page, PageAddress { block, offset });
        }
        tournament.resize(pages);
        tournament.set_costs(200.0, 200.0, 0.0);
        tournament
    }

    /// Writes `page`, with at most `pages` pages in the buffer. Returns how many left.
    fn write(tournament: &mut Tournament, page: PageId, pages: usize) -> usize {
        tournament.observe(page, Access::Write);
        if tournament.holds(page) {
            tournament.hit(page, Access::Write);
            return 0;
        }
        let mut out = Vec::new();
        while tournament.len() >= pages {
            tournament.evict(&mut out);
        }
        tournament.insert(page, Access::Write);
        out.len()
    }

    #[test]
    fn pages_written_again_and_again_stay_although_their_neighbours_leave() {
        // The first page of each of 64 blocks is written in turn, and after each of them one of the
        // other 4032 pages, also in turn. A buffer of 128 pages has room for the 64 hot pages, but
        // whole blocks that leave include a hot page. So the order by the uses of pages has to win,
        // and then hardly more is flushed than what is not written again for a long time.
        let mut tournament = tournament(GroupCost::Cleaning, 128);
        let mut flushed = 0;
        for step in 0..40_000u32 {
            let hot = step * 29 % 64 * BLOCK;
            let other = step * 37 % 64 * BLOCK + 1 + step / 64 % 63;
            flushed = if step < 20_000 { 0 } else { flushed };
            flushed += write(&mut tournament, hot, 128) + write(&mut tournament, other, 128);
        }
        assert_eq!(tournament.winner, 2);
        assert!(
            flushed <= 20_000 * 21 / 20,
            "{flushed} flushed, 20,000 written once"
        );
    }

    #[test]
    fn every_order_has_the_same_pages() {
        let mut tournament = tournament(GroupCost::Cleaning, 16);
        for step in 0..5_000u32 {
            tournament.winner = step as usize % 3;
            write(&mut tournament, step * step % 251, 16);
            let mut held = Vec::new();
            tournament.first().list_held(&mut held);
            for candidate in &tournament.candidates {
                let mut same = Vec::new();
                candidate.order.list_held(&mut same);
                assert_eq!(same, held);
            }
        }
    }

    #[test]
    fn the_sample_of_a_large_cache_is_a_share_of_its_blocks() {
        // A cache of 2 * 8192 pages has miniatures over one block of 16.
        let tournament = tournament(GroupCost::Cleaning, 8192);
        assert_eq!(tournament.one_of, 16);
        // Of 64 blocks, 4 are expected, with a standard deviation of 2.
        let sampled = tournament.sampled.iter().filter(|id| **id != NONE).count();
        assert!(
            (64..=640).contains(&sampled) && sampled % 64 == 0,
            "{sampled}"
        );
        assert_eq!(tournament.miniature_pages, 512);
    }

    #[test]
    fn a_removed_page_is_in_no_miniature() {
        let mut tournament = tournament(GroupCost::Nothing, 16);
        for page in 0..100 {
            write(&mut tournament, page, 16);
        }
        for page in 0..100 {
            tournament.remove(page);
            assert!(!tournament.remembers(page));
        }
        assert_eq!(tournament.len(), 0);
    }
}
