//! A binary heap of pages with the smallest key on top. The key of a page can change while the page
//! is in the heap.
//!
//! Policies that rank pages by a number use this heap instead of a list. Equal keys are popped in
//! the order of page ids.

use super::PageId;
use crate::lists::{NONE, grow};

/// The heap of pages by key.
#[derive(Clone, Debug, Default)]
pub(super) struct Heap {
    entries: Vec<(u64, PageId)>,
    /// The index of each page in `entries`, or [`NONE`].
    at: Vec<u32>,
}

impl Heap {
    pub(super) fn reserve(&mut self, ids: usize) {
        grow(&mut self.at, ids, NONE);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.at[page as usize] != NONE
    }

    /// Returns the page with the smallest key.
    pub(super) fn first(&self) -> Option<PageId> {
        self.entries.first().map(|(_, page)| *page)
    }

    /// Inserts `page` with the given key, or changes the key of `page`.
    pub(super) fn set(&mut self, page: PageId, key: u64) {
        let mut at = self.at[page as usize] as usize;
        if at == NONE as usize {
            at = self.entries.len();
            self.entries.push((key, page));
        }
        self.entries[at] = (key, page);
        self.at[page as usize] = at as u32;
        let at = self.up(at);
        self.down(at);
    }

    pub(super) fn remove(&mut self, page: PageId) {
        let at = self.at[page as usize] as usize;
        if at == NONE as usize {
            return;
        }
        self.at[page as usize] = NONE;
        self.entries.swap_remove(at);
        if let Some((_, moved)) = self.entries.get(at) {
            self.at[*moved as usize] = at as u32;
            let at = self.up(at);
            self.down(at);
        }
    }

    pub(super) fn pop(&mut self) -> Option<PageId> {
        let page = self.first()?;
        self.remove(page);
        Some(page)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        self.at[self.entries[a].1 as usize] = a as u32;
        self.at[self.entries[b].1 as usize] = b as u32;
    }

    fn up(&mut self, mut at: usize) -> usize {
        while at > 0 && self.entries[at] < self.entries[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        at
    }

    fn down(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2];
            let known = children.into_iter().filter(|c| *c < self.entries.len());
            match known.min_by_key(|c| self.entries[*c]) {
                Some(least) if self.entries[least] < self.entries[at] => {
                    self.swap(at, least);
                    at = least;
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_may_change_and_pages_may_go() {
        let mut heap = Heap::default();
        heap.reserve(5);
        for (page, key) in [(0, 50), (1, 40), (2, 30), (3, 20), (4, 10)] {
            heap.set(page, key);
        }
        heap.set(4, 45);
        heap.remove(2);
        let order: Vec<_> = std::iter::from_fn(|| heap.pop()).collect();
        assert_eq!(order, [3, 1, 4, 0]);
        assert_eq!((heap.len(), heap.contains(3)), (0, false));
    }
}
