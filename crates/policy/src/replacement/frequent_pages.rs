//! A write buffer that evicts by the uses of single pages: the victim is the page that CLOCK-Pro
//! evicts, and the other cold pages of its cluster are written with it. Pages that are written
//! again and again stay, although their neighbours are evicted.
//!
//! Sources: CLOCK-Pro (Jiang, Chen and Zhang, USENIX 2005) for the order of the pages. That pages
//! are written in spatial order, but spared by their recency, is the idea of WOW (Gill and Modha,
//! FAST 2005).

use super::clock_pro::ClockPro;
use super::clusters::{Choice, Clusters};
use super::dirty::Dirty;
use super::order::Order;
use super::write_order::WriteOrder;
use super::{Access, PageAddress, PageId};

/// Dirty pages in the order of CLOCK-Pro, with their clusters.
pub(super) struct FrequentPages {
    order: ClockPro,
    /// The number of pages that the buffer is expected to hold.
    expected: usize,
    clusters: Clusters,
    /// An empty set of dirty pages: the order does not distinguish pages by dirtiness.
    none_dirty: Dirty,
    unused: Vec<PageId>,
}

impl FrequentPages {
    pub(super) fn new(size: u32, pages_per_block: u32) -> FrequentPages {
        FrequentPages {
            order: ClockPro::new(1),
            expected: 1,
            clusters: Clusters::new(Choice::Oldest, size, pages_per_block),
            none_dirty: Dirty::default(),
            unused: Vec::new(),
        }
    }
}

impl WriteOrder for FrequentPages {
    fn reserve(&mut self, ids: usize) {
        self.order.reserve(ids);
        WriteOrder::reserve(&mut self.clusters, ids);
    }

    fn place(&mut self, page: PageId, place: PageAddress) {
        WriteOrder::place(&mut self.clusters, page, place);
    }

    fn len(&self) -> usize {
        self.clusters.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.clusters.holds(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.order.remembers(page)
    }

    fn list_held(&self, out: &mut Vec<PageId>) {
        self.clusters.list_held(out);
    }

    fn insert(&mut self, page: PageId, access: Access) {
        let capacity = self.expected.max(self.order.len() + 1);
        self.order.resize(capacity);
        self.order.insert(page, &self.none_dirty, &mut self.unused);
        assert!(self.unused.is_empty(), "there was room for the page");
        self.clusters.insert(page, access);
    }

    fn hit(&mut self, page: PageId, access: Access) {
        self.order.hit(page, &self.none_dirty, &mut self.unused);
        self.clusters.hit(page, access);
    }

    fn remove(&mut self, page: PageId) {
        self.order.remove(page);
        self.clusters.remove(page);
    }

    fn leave(&mut self, pages: &[PageId]) {
        for page in pages {
            if !self.order.evict_if_cold(*page, &mut self.unused) {
                self.order.remove(*page);
            }
        }
        self.unused.clear();
        self.clusters.leave(pages);
    }

    fn evict(&mut self, out: &mut Vec<PageId>) {
        let from = out.len();
        self.order.evict(&self.none_dirty, out);
        let Some(victim) = out.get(from).copied() else {
            return;
        };
        for page in self.clusters.neighbours(victim) {
            if page != victim {
                self.order.evict_if_cold(page, out);
            }
        }
        out[from..].reverse();
        self.clusters.leave(&out[from..]);
    }

    fn take_left_since(&mut self, page: PageId) -> Option<u64> {
        self.clusters.take_left_since(page)
    }

    fn resize(&mut self, pages: usize) {
        self.expected = pages.max(1);
    }
}
