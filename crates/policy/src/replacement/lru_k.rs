//! LRU-K with K = 2: the victim is the page whose second-to-last use is the oldest.
//!
//! Source: O'Neil, O'Neil and Weikum, SIGMOD 1993, without a correlated reference period. The use
//! times of up to `capacity` evicted pages are remembered (the retained information).

use super::PageId;
use super::dirty::Dirty;
use super::heap::Heap;
use super::order::Order;
use crate::lists::{Links, List, grow};

/// LRU-2.
#[derive(Debug)]
pub(super) struct LruK {
    capacity: usize,
    /// Number of accesses so far, which serves as the time.
    now: u64,
    /// Times of the last and the second-to-last use of each page; 0 if there was no such use.
    uses: Vec<(u64, u64)>,
    held: Heap,
    links: Links,
    ghosts: List,
}

impl LruK {
    pub(super) fn new(capacity: usize) -> LruK {
        LruK {
            capacity,
            now: 0,
            uses: Vec::new(),
            held: Heap::default(),
            links: Links::default(),
            ghosts: List::default(),
        }
    }

    fn is_ghost(&self, page: PageId) -> bool {
        !self.held.contains(page) && self.uses[page as usize].0 != 0
    }

    fn uncover(&mut self, page: PageId) {
        if self.is_ghost(page) {
            self.ghosts.remove(&mut self.links, page);
        }
    }

    /// Ranks `page` by its second-to-last use. Pages used once are evicted before all other pages,
    /// in the order of their use.
    fn rank(&mut self, page: PageId) {
        let (last, before) = self.uses[page as usize];
        let key = if before == 0 { last } else { 1 << 63 | before };
        self.held.set(page, key);
    }

    fn used(&mut self, page: PageId) {
        self.now += 1;
        let uses = &mut self.uses[page as usize];
        *uses = (self.now, uses.0);
        self.rank(page);
    }
}

impl Order for LruK {
    fn reserve(&mut self, ids: usize) {
        grow(&mut self.uses, ids, (0, 0));
        self.held.reserve(ids);
        self.links.reserve(ids);
    }

    fn len(&self) -> usize {
        self.held.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.held.contains(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.uses[page as usize].0 != 0
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.used(page);
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        self.uncover(page);
        if self.held.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.used(page);
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let Some(page) = self.held.pop() else { return };
        out.push(page);
        self.ghosts.push_front(&mut self.links, page);
        if self.ghosts.len() > self.capacity
            && let Some(forgotten) = self.ghosts.pop_back(&mut self.links)
        {
            self.uses[forgotten as usize] = (0, 0);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        self.uncover(page);
        // The page is ranked as if it had been used once, at the earliest possible time.
        self.uses[page as usize] = (1, 0);
        self.rank(page);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    fn remove(&mut self, page: PageId) {
        self.uncover(page);
        self.held.remove(page);
        self.uses[page as usize] = (0, 0);
    }
}
