//! The erase blocks from which REF currently evicts. Also, for each erase block, its pages that are
//! in REF's window.
//!
//! This module only maintains lists; the policy that uses them is [`super::recently_evicted`].

use super::{PageAddress, PageId};
use crate::lists::{Links, List, NONE, grow};
use std::collections::VecDeque;

/// Maximum number of victim blocks, about the number of spare log blocks of a log-block FTL.
const VICTIMS: usize = 4;

/// The pages in the window of the policy, listed by erase block, and the victim blocks (the erase
/// blocks from which the policy currently evicts).
#[derive(Debug, Default)]
pub(super) struct VictimBlocks {
    block_of: Vec<u32>,
    /// The window's pages of each block.
    pages: Vec<List>,
    page_links: Links,
    /// Blocks by the number of their window pages.
    by_count: Vec<List>,
    block_links: Links,
    most: usize,
    victims: VecDeque<u32>,
}

impl VictimBlocks {
    pub(super) fn reserve(&mut self, ids: usize) {
        grow(&mut self.block_of, ids, NONE);
        self.page_links.reserve(ids);
    }

    pub(super) fn place(&mut self, page: PageId, place: PageAddress) {
        self.block_of[page as usize] = place.block;
        let blocks = place.block as usize + 1;
        // The largest offset seen so far limits the number of pages that a block can have in the
        // window, so it determines the number of lists.
        grow(
            &mut self.by_count,
            place.offset as usize + 2,
            List::default(),
        );
        grow(&mut self.pages, blocks, List::default());
        self.block_links.reserve(blocks);
    }

    /// Adds `page` to the window.
    pub(super) fn enter(&mut self, page: PageId) {
        let block = self.block_of[page as usize];
        self.unlist(block);
        self.pages[block as usize].push_front(&mut self.page_links, page);
        self.list(block);
    }

    /// Removes `page` from the window.
    pub(super) fn exit(&mut self, page: PageId) {
        let block = self.block_of[page as usize];
        self.unlist(block);
        self.pages[block as usize].remove(&mut self.page_links, page);
        self.list(block);
    }

    fn unlist(&mut self, block: u32) {
        let count = self.pages[block as usize].len();
        if count > 0 {
            self.by_count[count].remove(&mut self.block_links, block);
        }
    }

    fn list(&mut self, block: u32) {
        let count = self.pages[block as usize].len();
        if count > 0 {
            self.by_count[count].push_front(&mut self.block_links, block);
            self.most = self.most.max(count);
        }
    }

    /// Returns the page to evict: the oldest page that a victim block has in the window. If no
    /// victim block has a page in the window, the block with the most pages in the window becomes a
    /// victim block.
    pub(super) fn victim(&mut self) -> Option<PageId> {
        let known = self.victims.iter();
        let oldest = |block: &u32| self.pages[*block as usize].back();
        if let Some(page) = known.copied().find_map(|block| oldest(&block)) {
            return Some(page);
        }
        while self.most > 0 && self.by_count[self.most].is_empty() {
            self.most -= 1;
        }
        let block = self.by_count.get(self.most)?.back()?;
        if self.victims.len() == VICTIMS {
            self.victims.pop_front();
        }
        self.victims.push_back(block);
        self.pages[block as usize].back()
    }
}
