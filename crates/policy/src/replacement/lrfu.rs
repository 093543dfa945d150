//! LRFU: each use of a page has a weight, which is halved after a fixed number of later accesses.
//! The victim is the page with the smallest sum of weights.
//!
//! Source: Lee et al., IEEE Transactions on Computers 2001: F(x) = (1/2)^(lambda x). A sum is
//! stored as the rank log2(sum at the last use) + lambda * (time of the last use). The order of the
//! ranks does not change with time, so a page is ranked only when it is used.

use super::PageId;
use super::dirty::Dirty;
use super::heap::Heap;
use super::order::Order;
use crate::lists::grow;

/// LRFU.
#[derive(Debug)]
pub(super) struct Lrfu {
    capacity: usize,
    /// Number of times that the weight of a use is halved per later access: 0 is LFU, 1 is LRU.
    lambda: f64,
    now: f64,
    /// The rank of every page in the cache.
    ranks: Vec<f64>,
    held: Heap,
}

impl Lrfu {
    pub(super) fn new(lambda: f64, capacity: usize) -> Lrfu {
        Lrfu {
            capacity,
            lambda,
            now: 0.0,
            ranks: Vec::new(),
            held: Heap::default(),
        }
    }

    fn rank(&mut self, page: PageId, rank: f64) {
        self.ranks[page as usize] = rank;
        // The bit patterns of non-negative floating-point numbers sort like the numbers themselves.
        self.held.set(page, rank.max(0.0).to_bits());
    }
}

impl Order for Lrfu {
    fn reserve(&mut self, ids: usize) {
        grow(&mut self.ranks, ids, 0.0);
        self.held.reserve(ids);
    }

    fn len(&self) -> usize {
        self.held.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.held.contains(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.now += 1.0;
        let age = self.lambda * self.now;
        // The new sum is 1 for this use, plus the decayed previous sum.
        let sum = 1.0 + (self.ranks[page as usize] - age).exp2();
        self.rank(page, sum.log2() + age);
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.held.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.now += 1.0;
        self.rank(page, self.lambda * self.now);
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        out.extend(self.held.pop());
    }

    fn insert_cold(&mut self, page: PageId) {
        self.rank(page, 0.0);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    fn remove(&mut self, page: PageId) {
        self.held.remove(page);
    }
}
