//! The pointer of asymmetric buffer management: the target number of pages of the write buffer.
//!
//! Source: section 3.3 of the ABM paper, which states only the direction in which an access to a
//! ghost, a recently evicted page, moves the pointer. The paper's rule moves the pointer by one
//! page at every ghost hit. The other rules weigh a ghost hit by the device time that a longer
//! residence of the page would have saved, based on recent costs. If the page is read again, this
//! is the cost of reading one page. If a flushed page is written again, it is the cost of one page
//! in a flush. `Cost` counts this only while the page is a ghost, or clean and unread. `Marginal`
//! counts it for every page, since a page that is mostly read is nearly always read between a flush
//! and the next write. `Marginal` separates the cost per page from the fixed cost of a flush. When
//! a flushed cluster is written again, `Marginal` counts the fixed cost once, whichever pages of
//! the cluster are written. The pointer must never exceed the capacity.

use super::costs::Costs;
use crate::replacement::{Access, DeviceCost};

/// The rule that moves the pointer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PointerRule {
    /// The pointer never moves: the write buffer has this fixed share of the capacity.
    Fixed(f64),
    /// A hit on a ghost (a remembered evicted page) moves the pointer by one page, as in the paper.
    Ghost,
    /// A hit on a ghost (a remembered evicted page) moves the pointer by a number of pages: the
    /// device time that a longer residence of the page would have saved, divided by the time of one
    /// page read.
    Cost,
    /// Like [`PointerRule::Cost`], but the fixed cost of a flush is counted once per cluster. The
    /// read buffer and the write buffer each forget a ghost (an evicted page) after the same number
    /// of evictions, half of the capacity, so that their ghost hits are comparable.
    Marginal,
}

/// The buffer that a page was in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Read,
    Write,
}

/// Minimum number of steps in which [`PointerRule::Marginal`] crosses the whole buffer, even if
/// each step has the maximum size. In a small buffer, all steps are scaled down for this. Larger
/// steps would often be cut off at the end of the range, and so be undervalued.
const STEPS_MIN: f64 = 32.0;

/// The pointer that divides the cache between reads and writes, and the measured device costs that
/// determine the steps of the pointer.
#[derive(Clone, Debug)]
pub struct Pointer {
    rule: PointerRule,
    capacity: f64,
    write_target: f64,
    costs: Costs,
}

impl Pointer {
    /// Creates a pointer whose target for the write buffer is half of `capacity` pages, or the
    /// share that [`PointerRule::Fixed`] gives. Clusters have `cluster_pages` pages. `read_us` and
    /// `flush_us` are the costs of a page until costs have been measured.
    pub fn new(
        rule: PointerRule,
        capacity: usize,
        cluster_pages: u32,
        read_us: f64,
        flush_us: f64,
    ) -> Pointer {
        let share = match rule {
            PointerRule::Fixed(share) => share.clamp(0.0, 1.0),
            _ => 0.5,
        };
        Pointer {
            rule,
            capacity: capacity as f64,
            write_target: capacity as f64 * share,
            costs: Costs::new(cluster_pages, read_us, flush_us),
        }
    }

    /// Returns the target number of pages of the write buffer.
    pub fn write_target(&self) -> f64 {
        self.write_target
    }

    /// Returns true if the pointer moves by measured costs.
    pub fn weighs_costs(&self) -> bool {
        matches!(self.rule, PointerRule::Cost | PointerRule::Marginal)
    }

    /// Records a cost of the device.
    pub(super) fn learn(&mut self, cost: DeviceCost) {
        self.costs.learn(cost);
    }

    /// Returns the costs of the device.
    pub(super) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns the maximum number of evicted pages (ghosts) that the read side or the write side of
    /// the buffer remembers while it has `held` pages in the cache.
    pub(super) fn ghosts_max(&self, held: usize) -> usize {
        let capacity = self.capacity as usize;
        match self.rule {
            PointerRule::Marginal => self.window(),
            _ => capacity.saturating_sub(held).max(1),
        }
    }

    /// Returns the number of evictions after which `Marginal` forgets an evicted page or cluster.
    /// The number is the same for both sides, so that their ghost hits are comparable.
    fn window(&self) -> usize {
        (self.capacity as usize / 2).max(1)
    }

    /// Moves the pointer by a number of pages: `saved_us`, the time that a longer residence would
    /// have saved, divided by the time of one page read. In a small buffer, `Marginal` divides by a
    /// longer time, so that the pointer needs at least [`STEPS_MIN`] steps to cross the buffer even
    /// if every step has the maximum size.
    fn step(&mut self, towards: f64, saved_us: f64) {
        let unit_us = match self.rule {
            PointerRule::Marginal => {
                let most_us = self.costs.page_us() + self.costs.beside_us();
                let steps_us = most_us * STEPS_MIN / self.capacity.max(STEPS_MIN);
                self.costs.read_us().max(steps_us)
            }
            _ => self.costs.read_us(),
        };
        self.go(towards * saved_us / unit_us);
    }

    fn go(&mut self, pages: f64) {
        self.write_target = (self.write_target + pages).clamp(0.0, self.capacity);
    }

    /// Records an access to a ghost: a page that the buffer of `side` has evicted and still
    /// remembers.
    pub(super) fn ghost_hit(&mut self, side: Side, access: Access) {
        let towards = match side {
            Side::Read => -1.0,
            Side::Write => 1.0,
        };
        match (self.rule, access) {
            (PointerRule::Fixed(_), _) => {}
            (PointerRule::Ghost, _) => self.go(towards),
            (_, Access::Read) => self.step(towards, self.costs.read_us()),
            // The page was clean when the read side evicted it, and its content is now overwritten.
            // Keeping the page in the cache for longer would have saved no device time.
            (_, Access::Write) if side == Side::Read => {}
            (PointerRule::Cost, Access::Write) => self.step(towards, self.costs.flush_us()),
            // `page_again` counts such a write, wherever the page is.
            (PointerRule::Marginal, Access::Write) => {}
        }
    }

    /// Records a write to a page that was flushed and is still in the cache. A larger write buffer
    /// would have saved the flush of this page. The paper's rule ignores such writes: it considers
    /// only pages that were evicted.
    pub(super) fn flushed_too_early(&mut self) {
        if self.rule == PointerRule::Cost {
            self.ghost_hit(Side::Write, Access::Write);
        }
    }

    /// Records a write to a page that was flushed, whether the page is in the cache or not.
    /// `flushed_since` is the number of pages that the write buffer has flushed since. If this
    /// number is small, a larger write buffer would have saved the flush of the page, even if the
    /// page was read in the meantime, and is clean in the read buffer for that reason.
    pub(super) fn page_again(&mut self, flushed_since: u64) {
        if self.rule == PointerRule::Marginal && flushed_since <= self.window() as u64 {
            self.step(1.0, self.costs.page_us());
        }
    }

    /// Records a write to a cluster that was flushed and has no dirty page. `left_since` is the
    /// number of pages evicted from the write buffer since the flush. If this number is small, a
    /// larger write buffer would have saved a flush.
    pub(super) fn cluster_again(&mut self, left_since: u64) {
        if self.rule == PointerRule::Marginal && left_since <= self.window() as u64 {
            self.step(1.0, self.costs.beside_us());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(rule: PointerRule, capacity: usize) -> Pointer {
        Pointer::new(rule, capacity, 64, 25.0, 200.0)
    }

    #[test]
    fn the_papers_rule_counts_every_ghost_hit_as_one_page() {
        let mut pointer = pointer(PointerRule::Ghost, 10);
        assert_eq!(pointer.write_target(), 5.0);
        pointer.ghost_hit(Side::Read, Access::Read);
        assert_eq!(pointer.write_target(), 4.0);
        pointer.ghost_hit(Side::Read, Access::Write);
        assert_eq!(pointer.write_target(), 3.0);
        for _ in 0..20 {
            pointer.ghost_hit(Side::Write, Access::Write);
        }
        assert_eq!(pointer.write_target(), 10.0, "it stops at the end");
    }

    #[test]
    fn the_cost_rule_counts_a_flush_for_the_reads_it_is_worth() {
        // A flush of a page costs 200 us and a read costs 25 us, so a hit that would have saved a
        // flush moves the pointer by 200 / 25 = 8 pages.
        let mut pointer = pointer(PointerRule::Cost, 100);
        pointer.ghost_hit(Side::Write, Access::Write);
        assert_eq!(pointer.write_target(), 58.0);
        pointer.ghost_hit(Side::Read, Access::Read);
        assert_eq!(pointer.write_target(), 57.0);
        pointer.ghost_hit(Side::Read, Access::Write);
        assert_eq!(
            pointer.write_target(),
            57.0,
            "an overwritten page saved nothing"
        );
    }

    #[test]
    fn costs_follow_the_device() {
        let mut pointer = pointer(PointerRule::Cost, 1000);
        for _ in 0..10_000 {
            pointer.learn(DeviceCost::Flush {
                pages: 64,
                time_us: 64.0 * 1000.0,
            });
        }
        // 1000 us against 25 us: 40 pages.
        pointer.ghost_hit(Side::Write, Access::Write);
        assert!((pointer.write_target() - 540.0).abs() < 1e-6);
    }

    #[test]
    fn the_marginal_rule_counts_what_a_flush_takes_beside_once_for_a_cluster() {
        // Flushes of one page alternately take 200 us and 1000 us, so the mean fixed cost is 400
        // us, in addition to 200 us for the page.
        let mut pointer = pointer(PointerRule::Marginal, 3200);
        for number in 0..2000 {
            let time_us = if number % 2 == 0 { 200.0 } else { 1000.0 };
            pointer.learn(DeviceCost::Flush { pages: 1, time_us });
        }
        let moved = |pointer: &mut Pointer, what: &dyn Fn(&mut Pointer)| {
            let before = pointer.write_target();
            what(pointer);
            pointer.write_target() - before
        };
        let page = moved(&mut pointer, &|p| p.page_again(1600));
        assert!((page - 8.0).abs() < 0.5, "a page of 200 us: {page}");
        let cluster = moved(&mut pointer, &|p| p.cluster_again(1600));
        assert!((cluster - 16.0).abs() < 1.0, "400 us: {cluster}");
        let forgotten = moved(&mut pointer, &|p| p.cluster_again(1601));
        assert_eq!(forgotten, 0.0, "half the buffer has left since");
        let forgotten = moved(&mut pointer, &|p| p.page_again(1601));
        assert_eq!(forgotten, 0.0, "half the buffer has been flushed since");
        let remembered = moved(&mut pointer, &|p| {
            p.ghost_hit(Side::Write, Access::Write);
            p.flushed_too_early();
        });
        assert_eq!(remembered, 0.0, "the write is counted once");
        let read = moved(&mut pointer, &|p| p.ghost_hit(Side::Read, Access::Read));
        assert_eq!(read, -1.0);
    }

    #[test]
    fn the_marginal_rule_keeps_proportions_in_a_small_buffer() {
        // By cost alone, one page of a flush (200 us, as much as 8 page reads) would move the
        // pointer by 8 of the 64 pages. The rule limits the largest step to a 32nd of the buffer,
        // which is 2 pages, and scales smaller steps in proportion. A page read costs an eighth as
        // much as one page of a flush, so it moves the pointer by a quarter of a page.
        let mut pointer = pointer(PointerRule::Marginal, 64);
        pointer.page_again(32);
        assert_eq!(pointer.write_target(), 34.0);
        pointer.ghost_hit(Side::Read, Access::Read);
        assert_eq!(pointer.write_target(), 33.75);
    }
}
