//! The set of dirty pages as one bit per id; no other code stores dirtiness.

use super::PageId;

/// The set of dirty pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Dirty {
    words: Vec<u64>,
    count: usize,
}

impl Dirty {
    /// Allocates bits for ids below `ids`.
    pub(super) fn reserve(&mut self, ids: usize) {
        crate::lists::grow(&mut self.words, ids.div_ceil(64), 0);
    }

    pub(super) fn contains(&self, page: PageId) -> bool {
        self.words[page as usize / 64] >> (page % 64) & 1 == 1
    }

    pub(super) fn insert(&mut self, page: PageId) {
        let word = &mut self.words[page as usize / 64];
        let bit = 1 << (page % 64);
        self.count += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// Removes `page`; returns true if it was in the set.
    pub(super) fn remove(&mut self, page: PageId) -> bool {
        let word = &mut self.words[page as usize / 64];
        let bit = 1 << (page % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        self.count -= usize::from(was);
        was
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Appends all dirty pages in ascending order.
    pub(super) fn list(&self, out: &mut Vec<PageId>) {
        for (at, word) in self.words.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                out.push((at * 64) as PageId + rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
    }
}
