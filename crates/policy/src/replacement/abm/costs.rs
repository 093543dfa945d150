//! Moving means of the device's costs: the cost of reading a page, the cost of a page in a flush,
//! and the fixed cost of a flush.
//!
//! A flash translation layer does its internal work later, during another flush, and in bursts. So
//! the time of a single flush does not show the work that this flush caused, but the mean over many
//! flushes does. The cheapest flushes show the cost of a page alone. The mean excess of the other
//! flushes is the fixed cost of one more flush. Invalid values must never enter the means.

use crate::replacement::DeviceCost;

/// Weight of one page, or of one flush, in the moving means.
const WEIGHT: f64 = 1.0 / 256.0;
/// Weight of a new flush in the moving mean that estimates the cost of the cheapest page. Only a
/// more expensive flush is averaged in with this weight; a cheaper flush becomes the new value.
const CHEAPEST_WEIGHT: f64 = 1.0 / 1024.0;
/// Minimum cost of a page read, in microseconds. It is above 0, because other costs are divided by
/// the cost of a page read.
const COST_US_MIN: f64 = 1e-3;

/// Means of the device's costs, in microseconds.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    /// Number of pages of a whole cluster.
    cluster_pages: u32,
    read_us: f64,
    flush_us: f64,
    cheapest_us: f64,
    /// Three values of the flushes of less than a whole cluster: their mean time, their mean number
    /// of pages, and their number.
    partial_us: f64,
    partial_pages: f64,
    partial_flushes: f64,
    /// Mean time per page in flushes of whole clusters; `None` before the first such flush.
    whole_us: Option<f64>,
}

impl Costs {
    /// Creates the means with initial costs per page, which apply until costs have been measured.
    pub(super) fn new(cluster_pages: u32, read_us: f64, flush_us: f64) -> Costs {
        Costs {
            cluster_pages,
            read_us,
            flush_us,
            cheapest_us: flush_us,
            partial_us: 0.0,
            partial_pages: 0.0,
            partial_flushes: 0.0,
            whole_us: None,
        }
    }

    /// Records a measured cost.
    pub(super) fn learn(&mut self, cost: DeviceCost) {
        let (DeviceCost::Read { pages, time_us } | DeviceCost::Flush { pages, time_us }) = cost;
        if pages == 0 || !time_us.is_finite() || time_us < 0.0 {
            return;
        }
        let weight = 1.0 - (1.0 - WEIGHT).powi(pages.min(1 << 20) as i32);
        let page_us = time_us / f64::from(pages);
        match cost {
            DeviceCost::Read { .. } => self.read_us += weight * (page_us - self.read_us),
            DeviceCost::Flush { .. } => {
                self.flush_us += weight * (page_us - self.flush_us);
                self.learn_flush(pages, time_us);
            }
        }
    }

    fn learn_flush(&mut self, pages: u32, time_us: f64) {
        let page_us = time_us / f64::from(pages);
        let above_us = page_us - self.cheapest_us;
        let weight = if above_us > 0.0 { CHEAPEST_WEIGHT } else { 1.0 };
        self.cheapest_us += weight * above_us;
        if pages < self.cluster_pages {
            self.partial_flushes += 1.0;
            let weight = WEIGHT.max(1.0 / self.partial_flushes);
            self.partial_us += weight * (time_us - self.partial_us);
            self.partial_pages += weight * (f64::from(pages) - self.partial_pages);
        } else {
            let whole_us = self.whole_us.get_or_insert(page_us);
            *whole_us += WEIGHT * (page_us - *whole_us);
        }
    }

    /// Returns the cost of a page read.
    pub(super) fn read_us(&self) -> f64 {
        self.read_us.max(COST_US_MIN)
    }

    /// Returns the cost per page of a flush, including the page's share of the flush's fixed cost.
    pub(super) fn flush_us(&self) -> f64 {
        self.flush_us
    }

    /// Returns the cost per page of a flush, without the flush's fixed cost.
    pub(super) fn page_us(&self) -> f64 {
        self.cheapest_us
    }

    /// Returns the fixed cost, in microseconds, of a flush of fewer pages than a cluster. It does
    /// not include the cost per page ([`page_us`](Self::page_us)).
    pub(super) fn beside_us(&self) -> f64 {
        (self.partial_us - self.partial_pages * self.cheapest_us).max(0.0)
    }

    /// Returns true if it costs less to write the whole cluster than to write only the `pages`
    /// evicted pages of the cluster. The cost of the whole cluster includes the reads of its
    /// missing pages.
    pub(super) fn padding_pays(&self, pages: usize) -> bool {
        let missing = f64::from(self.cluster_pages) - pages as f64;
        let whole_us = self.whole_us.unwrap_or(self.cheapest_us);
        let padded_us = missing * self.read_us + f64::from(self.cluster_pages) * whole_us;
        missing > 0.0 && padded_us < pages as f64 * self.page_us() + self.beside_us()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(costs: &mut Costs, pages: u32, time_us: f64) {
        costs.learn(DeviceCost::Flush { pages, time_us });
    }

    #[test]
    fn a_device_that_takes_its_time_by_pages_has_no_costs_beside() {
        let mut costs = Costs::new(64, 25.0, 200.0);
        for pages in [1, 5, 64, 17, 64, 3] {
            flush(&mut costs, pages, f64::from(pages) * 200.0);
        }
        assert_eq!((costs.page_us(), costs.beside_us()), (200.0, 0.0));
        assert!((1..64).all(|pages| !costs.padding_pays(pages)));
    }

    #[test]
    fn work_that_comes_in_lumps_is_spread_over_all_flushes() {
        // The log of this device is full after 8 flushes, so every eighth flush includes 8 merges
        // of 8 ms each. So a flush has a mean fixed cost of 8 ms, and each page written costs 200
        // us: flushing the k changed pages of a block alone costs 8 ms + 200 us * k. The flush of a
        // whole block needs no merge and takes 12.8 ms, but each of the 64 - k missing pages is
        // read first, in 25 us: 14.4 ms - 25 us * k. From k = 29 on, flushing the whole block costs
        // less.
        let mut costs = Costs::new(64, 25.0, 200.0);
        for number in 0..4096 {
            let merges = if number % 8 == 7 { 8.0 } else { 0.0 };
            flush(&mut costs, 2, 400.0 + merges * 8_000.0);
        }
        assert!((costs.beside_us() - 8_000.0).abs() < 400.0, "{costs:?}");
        flush(&mut costs, 64, 64.0 * 200.0);
        assert!(!costs.padding_pays(25));
        assert!(costs.padding_pays(33));
        assert!(!costs.padding_pays(64), "nothing is missing");
    }

    #[test]
    fn whole_blocks_that_turn_out_dear_end_the_padding() {
        // On this device, garbage collection costs the same for each page, whether or not other
        // pages are written with it, so padding gains nothing.
        let mut costs = Costs::new(64, 25.0, 200.0);
        flush(&mut costs, 60, 60.0 * 200.0);
        flush(&mut costs, 60, 60.0 * 400.0);
        assert!(costs.padding_pays(60), "it looks like a cost of the flush");
        for _ in 0..2000 {
            flush(&mut costs, 64, 64.0 * 400.0);
        }
        assert!(!costs.padding_pays(60));
    }

    #[test]
    fn impossible_figures_are_ignored() {
        let mut costs = Costs::new(64, 25.0, 200.0);
        for (pages, time_us) in [(0, 1.0), (1, f64::NAN), (1, f64::INFINITY), (1, -1.0)] {
            flush(&mut costs, pages, time_us);
            costs.learn(DeviceCost::Read { pages, time_us });
        }
        assert_eq!((costs.read_us(), costs.page_us()), (25.0, 200.0));
        assert_eq!((costs.flush_us(), costs.beside_us()), (200.0, 0.0));
    }
}
