//! Complete replacement policies built around one order. The order holds either single pages, or
//! clusters that contain both clean and dirty pages.
//!
//! A shell adds dirtiness to an order: the order decides which pages to evict, and the shell knows
//! which of these pages must be written.

use super::clusters::Clusters;
use super::dirty::Dirty;
use super::order::Order;
use super::{Access, Evictions, Occupancy, Outcome, PageAddress, PageId, Replacement};

/// A cache of one buffer whose pages are evicted one at a time.
pub(super) struct Paged<O> {
    capacity: usize,
    order: O,
    dirty: Dirty,
    leaving: Vec<PageId>,
}

impl<O: Order> Paged<O> {
    pub(super) fn new(capacity: usize, order: O) -> Paged<O> {
        Paged {
            capacity,
            order,
            dirty: Dirty::default(),
            leaving: Vec::with_capacity(8),
        }
    }

    #[cold]
    fn hand_out(&mut self, out: &mut Evictions) {
        for page in self.leaving.drain(..) {
            let write = self.dirty.remove(page);
            out.page(page, write, false);
            out.end(false);
        }
    }
}

impl<O: Order> Replacement for Paged<O> {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn reserve(&mut self, ids: usize) {
        self.order.reserve(ids);
        self.dirty.reserve(ids);
    }

    fn introduce(&mut self, page: PageId, place: PageAddress) {
        self.reserve(page as usize + 1);
        self.order.place(page, place);
    }

    fn access(&mut self, page: PageId, access: Access, out: &mut Evictions) -> Outcome {
        self.order.tick(page);
        let outcome = if self.order.holds(page) {
            self.order.hit(page, &self.dirty, &mut self.leaving);
            Outcome::Hit
        } else {
            self.order.insert(page, &self.dirty, &mut self.leaving);
            Outcome::Miss
        };
        if !self.leaving.is_empty() {
            self.hand_out(out);
        }
        if access == Access::Write {
            self.dirty.insert(page);
        }
        outcome
    }

    fn cleaned(&mut self, page: PageId) {
        if self.dirty.remove(page) {
            self.order.dirtiness_changed(page, false);
        }
    }

    fn remove(&mut self, page: PageId) {
        self.dirty.remove(page);
        self.order.remove(page);
    }

    fn holds(&self, page: PageId) -> bool {
        self.order.holds(page)
    }

    fn is_dirty(&self, page: PageId) -> bool {
        self.dirty.contains(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.order.remembers(page)
    }

    fn dirty_pages(&self, out: &mut Vec<PageId>) {
        self.dirty.list(out);
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy {
            held: self.order.len(),
            dirty: self.dirty.len(),
            ..Occupancy::default()
        }
    }
}

/// A cache of one buffer whose pages are evicted in clusters.
pub(super) struct Clustered {
    capacity: usize,
    clusters: Clusters,
    /// True for BPLRU: when pages of an erase block are written, the missing pages are read first,
    /// and the whole block is written.
    pads: bool,
    dirty: Dirty,
    leaving: Vec<PageId>,
}

impl Clustered {
    pub(super) fn new(capacity: usize, clusters: Clusters, pads: bool) -> Clustered {
        Clustered {
            capacity,
            clusters,
            pads,
            dirty: Dirty::default(),
            leaving: Vec::with_capacity(64),
        }
    }

    fn evict(&mut self, out: &mut Evictions) {
        self.clusters.evict(&mut self.leaving);
        let mut any_dirty = false;
        for page in self.leaving.drain(..) {
            let write = self.dirty.remove(page);
            any_dirty |= write;
            out.page(page, write, false);
        }
        out.end(self.pads && any_dirty);
    }
}

impl Replacement for Clustered {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn reserve(&mut self, ids: usize) {
        self.clusters.reserve(ids);
        self.dirty.reserve(ids);
    }

    fn introduce(&mut self, page: PageId, place: PageAddress) {
        self.reserve(page as usize + 1);
        self.clusters.place(page, place);
    }

    fn access(&mut self, page: PageId, access: Access, out: &mut Evictions) -> Outcome {
        let outcome = if self.clusters.holds(page) {
            self.clusters.hit(page, access);
            Outcome::Hit
        } else {
            if self.clusters.len() >= self.capacity {
                self.evict(out);
            }
            self.clusters.insert(page, access);
            Outcome::Miss
        };
        if access == Access::Write {
            self.dirty.insert(page);
        }
        outcome
    }

    fn cleaned(&mut self, page: PageId) {
        self.dirty.remove(page);
    }

    fn remove(&mut self, page: PageId) {
        self.dirty.remove(page);
        self.clusters.remove(page);
    }

    fn holds(&self, page: PageId) -> bool {
        self.clusters.holds(page)
    }

    fn is_dirty(&self, page: PageId) -> bool {
        self.dirty.contains(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn dirty_pages(&self, out: &mut Vec<PageId>) {
        self.dirty.list(out);
    }

    fn occupancy(&self) -> Occupancy {
        Occupancy {
            held: self.clusters.len(),
            dirty: self.dirty.len(),
            ..Occupancy::default()
        }
    }
}
