//! REF: pages of erase blocks from which pages were evicted recently are evicted first, so that a
//! log-block FTL receives writes to few blocks at a time.
//!
//! Source: Seo and Shin, IEEE Transactions on Consumer Electronics 2008. Victims are chosen from a
//! window, the oldest third of the LRU list; [`super::victim_blocks`] bounds the number of blocks
//! from which they come.

use super::dirty::Dirty;
use super::order::Order;
use super::victim_blocks::VictimBlocks;
use super::{PageAddress, PageId};
use crate::lists::{Links, List, grow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Nowhere,
    Recent,
    Window,
}

/// REF.
#[derive(Debug)]
pub(super) struct RecentlyEvicted {
    capacity: usize,
    window_max: usize,
    links: Links,
    place: Vec<Where>,
    recent: List,
    window: List,
    blocks: VictimBlocks,
}

impl RecentlyEvicted {
    pub(super) fn new(capacity: usize) -> RecentlyEvicted {
        RecentlyEvicted {
            capacity,
            window_max: capacity.div_ceil(3),
            links: Links::default(),
            place: Vec::new(),
            recent: List::default(),
            window: List::default(),
            blocks: VictimBlocks::default(),
        }
    }

    fn take(&mut self, page: PageId) {
        match self.place[page as usize] {
            Where::Nowhere => {}
            Where::Recent => self.recent.remove(&mut self.links, page),
            Where::Window => {
                self.window.remove(&mut self.links, page);
                self.blocks.exit(page);
            }
        }
        self.place[page as usize] = Where::Nowhere;
    }

    fn put_recent(&mut self, page: PageId) {
        self.recent.push_front(&mut self.links, page);
        self.place[page as usize] = Where::Recent;
        while self.window.len() < self.window_max
            && self.recent.len() > self.capacity - self.window_max
        {
            let Some(old) = self.recent.pop_back(&mut self.links) else {
                return;
            };
            self.window.push_front(&mut self.links, old);
            self.place[old as usize] = Where::Window;
            self.blocks.enter(old);
        }
    }
}

impl Order for RecentlyEvicted {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.place, ids, Where::Nowhere);
        self.blocks.reserve(ids);
    }

    fn len(&self) -> usize {
        self.recent.len() + self.window.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.place[page as usize] != Where::Nowhere
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn place(&mut self, page: PageId, place: PageAddress) {
        self.blocks.place(page, place);
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.take(page);
        self.put_recent(page);
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.put_recent(page);
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let victim = self.blocks.victim().or_else(|| self.recent.back());
        if let Some(page) = victim {
            self.take(page);
            out.push(page);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        self.window.push_back(&mut self.links, page);
        self.place[page as usize] = Where::Window;
        self.blocks.enter(page);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.window_max = capacity.div_ceil(3);
    }

    fn remove(&mut self, page: PageId) {
        self.take(page);
    }
}
