//! The few erase blocks that REF takes its victims from, and the pages of each block in its window.
//!
//! It only keeps lists; the policy over it is [`super::recently_evicted`].

use super::{PageId, Place};
use crate::lists::{Links, List, NONE, grow};
use std::collections::VecDeque;

/// Victim blocks at a time: about as many as a log-block FTL has log blocks to spare.
const VICTIMS: usize = 4;

/// Window pages by block, and which blocks are victims.
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

    pub(super) fn place(&mut self, page: PageId, place: Place) {
        self.block_of[page as usize] = place.block;
        let blocks = place.block as usize + 1;
        // A block has no more pages than the greatest offset allows.
        grow(
            &mut self.by_count,
            place.offset as usize + 2,
            List::default(),
        );
        grow(&mut self.pages, blocks, List::default());
        self.block_links.reserve(blocks);
    }

    /// `page` enters the window.
    pub(super) fn enter(&mut self, page: PageId) {
        let block = self.block_of[page as usize];
        self.unlist(block);
        self.pages[block as usize].push_front(&mut self.page_links, page);
        self.list(block);
    }

    /// `page` leaves the window.
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

    /// The page to give up: the oldest window page of a victim block; a new one is chosen, the
    /// block with most window pages, when no victim block has any.
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
