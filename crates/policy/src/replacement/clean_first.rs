//! CF-LRU and LRU-WSR: variants of LRU that prefer to evict clean pages, since the eviction of a
//! dirty page costs a write to flash.
//!
//! Sources: Park et al., 2004, for CF-LRU, which evicts clean pages first within a window of the
//! oldest pages (33 % of the pages in this implementation). Jung et al., 2008, for LRU-WSR, which
//! spares a dirty page once and marks it as cold; a cold page is evicted unless it is used again.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, grow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Nowhere,
    Recent,
    Clean,
    Dirty,
}

/// CF-LRU.
#[derive(Debug)]
pub(super) struct CleanFirst {
    capacity: usize,
    window_max: usize,
    links: Links,
    place: Vec<Where>,
    /// Pages outside the window.
    recent: List,
    /// The clean pages and the dirty pages of the window, in two lists with the oldest page at the
    /// back.
    clean: List,
    dirty: List,
}

impl CleanFirst {
    pub(super) fn new(capacity: usize) -> CleanFirst {
        let mut order = CleanFirst {
            capacity,
            window_max: 0,
            links: Links::default(),
            place: Vec::new(),
            recent: List::default(),
            clean: List::default(),
            dirty: List::default(),
        };
        order.resize(capacity);
        order
    }

    fn take(&mut self, page: PageId) {
        match self.place[page as usize] {
            Where::Nowhere => {}
            Where::Recent => self.recent.remove(&mut self.links, page),
            Where::Clean => self.clean.remove(&mut self.links, page),
            Where::Dirty => self.dirty.remove(&mut self.links, page),
        }
        self.place[page as usize] = Where::Nowhere;
    }

    fn put_recent(&mut self, page: PageId) {
        self.recent.push_front(&mut self.links, page);
        self.place[page as usize] = Where::Recent;
    }

    /// Moves the oldest pages outside the window into it until the window has its full size.
    fn fill_window(&mut self, dirty: &Dirty) {
        while self.clean.len() + self.dirty.len() < self.window_max
            && self.recent.len() > self.capacity - self.window_max
        {
            let Some(page) = self.recent.pop_back(&mut self.links) else {
                return;
            };
            if dirty.contains(page) {
                self.dirty.push_front(&mut self.links, page);
                self.place[page as usize] = Where::Dirty;
            } else {
                self.clean.push_front(&mut self.links, page);
                self.place[page as usize] = Where::Clean;
            }
        }
    }
}

impl Order for CleanFirst {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.place, ids, Where::Nowhere);
    }

    fn len(&self) -> usize {
        self.recent.len() + self.clean.len() + self.dirty.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.place[page as usize] != Where::Nowhere
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn hit(&mut self, page: PageId, dirty: &Dirty, _out: &mut Vec<PageId>) {
        if self.place[page as usize] == Where::Recent {
            self.recent.refresh(&mut self.links, page);
        } else {
            self.take(page);
            self.put_recent(page);
            self.fill_window(dirty);
        }
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.put_recent(page);
        self.fill_window(dirty);
    }

    fn dirtiness_changed(&mut self, page: PageId, dirty: bool) {
        // The page enters the list of clean pages as the oldest page, because it is already in the
        // window of old pages.
        if self.place[page as usize] == Where::Dirty && !dirty {
            self.take(page);
            self.clean.push_back(&mut self.links, page);
            self.place[page as usize] = Where::Clean;
        }
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let lists = [&self.clean, &self.dirty, &self.recent];
        let victim = lists.into_iter().find_map(List::back);
        if let Some(page) = victim {
            self.take(page);
            out.push(page);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        self.clean.push_back(&mut self.links, page);
        self.place[page as usize] = Where::Clean;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.window_max = (capacity as f64 * 0.33) as usize;
    }

    fn remove(&mut self, page: PageId) {
        self.take(page);
    }
}

/// LRU-WSR.
#[derive(Debug)]
pub(super) struct SparesDirty {
    capacity: usize,
    links: Links,
    pages: List,
    held: Vec<bool>,
    /// True for a page that was spared since its last use.
    cold: Vec<bool>,
}

impl SparesDirty {
    pub(super) fn new(capacity: usize) -> SparesDirty {
        SparesDirty {
            capacity,
            links: Links::default(),
            pages: List::default(),
            held: Vec::new(),
            cold: Vec::new(),
        }
    }
}

impl Order for SparesDirty {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.held, ids, false);
        grow(&mut self.cold, ids, false);
    }

    fn len(&self) -> usize {
        self.pages.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.held[page as usize]
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.cold[page as usize] = false;
        self.pages.refresh(&mut self.links, page);
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.pages.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.pages.push_front(&mut self.links, page);
        self.held[page as usize] = true;
        self.cold[page as usize] = false;
    }

    fn evict(&mut self, dirty: &Dirty, out: &mut Vec<PageId>) {
        while let Some(page) = self.pages.pop_back(&mut self.links) {
            if self.cold[page as usize] || !dirty.contains(page) {
                self.held[page as usize] = false;
                out.push(page);
                return;
            }
            self.cold[page as usize] = true;
            self.pages.push_front(&mut self.links, page);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        self.pages.push_back(&mut self.links, page);
        self.held[page as usize] = true;
        self.cold[page as usize] = true;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    fn remove(&mut self, page: PageId) {
        if self.held[page as usize] {
            self.pages.remove(&mut self.links, page);
            self.held[page as usize] = false;
        }
    }
}
