//! Belady's optimum: the victim is the page whose next use is the furthest in the future. The
//! policy must know the future accesses, so it is a bound for experiments and never a policy of a
//! live cache.
//!
//! Source: Belady 1966 (MIN). The policy minimizes misses, not device time.

use super::PageId;
use super::dirty::Dirty;
use super::heap::Heap;
use super::order::Order;
use crate::lists::grow;
use std::sync::Arc;

/// Returns, for each access of a trace, the index of the next access to the same page, or
/// `u32::MAX` if there is no such access.
///
/// `pages` are the accessed pages in the order of the trace.
pub fn next_uses(pages: impl DoubleEndedIterator<Item = PageId> + ExactSizeIterator) -> Vec<u32> {
    let mut next = vec![u32::MAX; pages.len()];
    let mut seen: Vec<u32> = Vec::new();
    for (at, page) in pages.enumerate().rev() {
        grow(&mut seen, page as usize + 1, u32::MAX);
        next[at] = std::mem::replace(&mut seen[page as usize], at as u32);
    }
    next
}

/// Belady's MIN over a known sequence of accesses.
#[derive(Debug)]
pub(super) struct Belady {
    capacity: usize,
    next: Arc<[u32]>,
    /// The number of the current access, from 1.
    now: usize,
    held: Heap,
}

impl Belady {
    /// Creates the policy. `next` is the result of [`next_uses`] for the accesses that will be
    /// made.
    pub(super) fn new(next: Arc<[u32]>, capacity: usize) -> Belady {
        Belady {
            capacity,
            next,
            now: 0,
            held: Heap::default(),
        }
    }

    fn rank(&mut self, page: PageId) {
        let next = self.now.checked_sub(1).and_then(|at| self.next.get(at));
        let next = next.map_or(u32::MAX, |next| *next);
        // The page with the latest next use is on top. A page without a next use ranks above all
        // other pages.
        self.held.set(page, u64::from(u32::MAX - next));
    }
}

impl Order for Belady {
    fn reserve(&mut self, ids: usize) {
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

    fn tick(&mut self, _page: PageId) {
        self.now += 1;
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.rank(page);
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.held.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.rank(page);
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        out.extend(self.held.pop());
    }

    fn insert_cold(&mut self, page: PageId) {
        self.held.set(page, 0);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    fn remove(&mut self, page: PageId) {
        self.held.remove(page);
    }
}
