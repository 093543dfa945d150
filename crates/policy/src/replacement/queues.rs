//! FIFO, LRU, CLOCK and SIEVE: policies with a single list of pages, which differ in the effect
//! that a use has on a page.
//!
//! Sources: CLOCK, Corbato 1968; SIEVE, Zhang et al., NSDI 2024.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, NONE, grow};

/// The effect of a use on a page of a [`SingleList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// No effect (FIFO).
    Nothing,
    /// The page moves to the front (LRU).
    Refreshes,
    /// A use of a page spares the page once from eviction (CLOCK with one bit).
    Spares,
}

const ABSENT: u8 = 0;
const HELD: u8 = 1;
const USED: u8 = 2;

/// FIFO, LRU and CLOCK.
#[derive(Debug)]
pub(super) struct SingleList {
    on_use: Use,
    capacity: usize,
    links: Links,
    pages: List,
    state: Vec<u8>,
}

impl SingleList {
    pub(super) fn new(on_use: Use, capacity: usize) -> SingleList {
        SingleList {
            on_use,
            capacity,
            links: Links::default(),
            pages: List::default(),
            state: Vec::new(),
        }
    }
}

impl Order for SingleList {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.state, ids, ABSENT);
    }

    fn len(&self) -> usize {
        self.pages.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.state[page as usize] != ABSENT
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        match self.on_use {
            Use::Nothing => {}
            Use::Refreshes => self.pages.refresh(&mut self.links, page),
            Use::Spares => self.state[page as usize] = USED,
        }
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.pages.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.pages.push_front(&mut self.links, page);
        self.state[page as usize] = HELD;
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        while let Some(page) = self.pages.pop_back(&mut self.links) {
            if self.state[page as usize] == HELD {
                self.state[page as usize] = ABSENT;
                out.push(page);
                return;
            }
            self.state[page as usize] = HELD;
            self.pages.push_front(&mut self.links, page);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        self.pages.push_back(&mut self.links, page);
        self.state[page as usize] = HELD;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    fn remove(&mut self, page: PageId) {
        if self.holds(page) {
            self.pages.remove(&mut self.links, page);
            self.state[page as usize] = ABSENT;
        }
    }
}

/// SIEVE: a queue in order of arrival that is never reordered, and a hand that moves from the
/// oldest to the newest page. The hand spares each page that was used since the hand last passed
/// it, and evicts the first page that was not.
#[derive(Debug)]
pub(super) struct Sieve {
    capacity: usize,
    links: Links,
    pages: List,
    state: Vec<u8>,
    /// The page at which the search for a victim resumes; [`NONE`] for the oldest page.
    hand: u32,
}

impl Sieve {
    pub(super) fn new(capacity: usize) -> Sieve {
        Sieve {
            capacity,
            links: Links::default(),
            pages: List::default(),
            state: Vec::new(),
            hand: NONE,
        }
    }

    fn take(&mut self, page: PageId) {
        if self.hand == page {
            self.hand = self.links.prev(page);
        }
        self.pages.remove(&mut self.links, page);
        self.state[page as usize] = ABSENT;
    }
}

impl Order for Sieve {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.state, ids, ABSENT);
    }

    fn len(&self) -> usize {
        self.pages.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.state[page as usize] != ABSENT
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.state[page as usize] = USED;
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.pages.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.pages.push_front(&mut self.links, page);
        self.state[page as usize] = HELD;
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let Some(oldest) = self.pages.back() else {
            return;
        };
        let mut page = if self.hand == NONE { oldest } else { self.hand };
        while self.state[page as usize] == USED {
            self.state[page as usize] = HELD;
            page = match self.links.prev(page) {
                NONE => oldest,
                newer => newer,
            };
        }
        self.hand = page;
        self.take(page);
        out.push(page);
    }

    fn insert_cold(&mut self, page: PageId) {
        // The page becomes the oldest page, so the clock hand examines it next.
        self.pages.push_back(&mut self.links, page);
        self.state[page as usize] = HELD;
        self.hand = page;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    fn remove(&mut self, page: PageId) {
        if self.holds(page) {
            self.take(page);
        }
    }
}
