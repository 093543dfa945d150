//! S3-FIFO: a small FIFO from which most pages are evicted unused, a main FIFO with second chances,
//! and a memory of the pages that were evicted from the small FIFO.
//!
//! Source: Yang et al., SOSP 2023. The small FIFO has 10 % of the pages, the memory has the length
//! of the main FIFO, and two uses promote a page. As in the authors' later code, while the cache
//! fills for the first time, new pages enter the main FIFO once the small FIFO is full.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, grow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Nowhere,
    Small,
    Main,
    Ghost,
}

/// Minimum number of uses in the small FIFO that promotes a page to the main FIFO.
const MOVES_ON: u8 = 2;
/// Maximum number of second chances that a page can earn by its uses in the main FIFO.
const CHANCES_MAX: u8 = 3;

#[derive(Clone, Copy, Debug)]
struct S3FifoState {
    place: Where,
    uses: u8,
}

/// S3-FIFO.
#[derive(Debug)]
pub(super) struct S3Fifo {
    capacity: usize,
    small_max: usize,
    ghost_max: usize,
    links: Links,
    state: Vec<S3FifoState>,
    small: List,
    main: List,
    ghost: List,
    has_evicted: bool,
}

impl S3Fifo {
    pub(super) fn new(capacity: usize) -> S3Fifo {
        let mut order = S3Fifo {
            capacity,
            small_max: 0,
            ghost_max: 0,
            links: Links::default(),
            state: Vec::new(),
            small: List::default(),
            main: List::default(),
            ghost: List::default(),
            has_evicted: false,
        };
        order.resize(capacity);
        order
    }

    fn put(&mut self, page: PageId, place: Where, uses: u8) {
        self.state[page as usize] = S3FifoState { place, uses };
        match place {
            Where::Nowhere => {}
            Where::Small => self.small.push_front(&mut self.links, page),
            Where::Main => self.main.push_front(&mut self.links, page),
            Where::Ghost => self.ghost.push_front(&mut self.links, page),
        }
    }

    fn remember(&mut self, page: PageId) {
        self.put(page, Where::Ghost, 0);
        if self.ghost.len() > self.ghost_max
            && let Some(forgotten) = self.ghost.pop_back(&mut self.links)
        {
            self.put(forgotten, Where::Nowhere, 0);
        }
    }

    /// Evicts one page from the small FIFO. Returns false if all pages of the small FIFO were
    /// promoted to the main FIFO instead.
    fn leave_small(&mut self, out: &mut Vec<PageId>) -> bool {
        while let Some(page) = self.small.pop_back(&mut self.links) {
            if self.state[page as usize].uses < MOVES_ON {
                self.remember(page);
                out.push(page);
                return true;
            }
            self.put(page, Where::Main, 0);
        }
        false
    }

    fn leave_main(&mut self, out: &mut Vec<PageId>) {
        while let Some(page) = self.main.pop_back(&mut self.links) {
            let uses = self.state[page as usize].uses;
            if uses == 0 {
                self.put(page, Where::Nowhere, 0);
                out.push(page);
                return;
            }
            self.put(page, Where::Main, uses.min(CHANCES_MAX) - 1);
        }
    }
}

impl Order for S3Fifo {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        let nowhere = S3FifoState {
            place: Where::Nowhere,
            uses: 0,
        };
        grow(&mut self.state, ids, nowhere);
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn holds(&self, page: PageId) -> bool {
        matches!(self.state[page as usize].place, Where::Small | Where::Main)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.state[page as usize].place != Where::Nowhere
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        let uses = &mut self.state[page as usize].uses;
        *uses = uses.saturating_add(1);
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        let was_ghost = self.state[page as usize].place == Where::Ghost;
        if was_ghost {
            self.ghost.remove(&mut self.links, page);
        }
        while self.len() >= self.capacity {
            self.evict(dirty, out);
        }
        let filling = !self.has_evicted && self.small.len() >= self.small_max;
        let place = if was_ghost || filling {
            Where::Main
        } else {
            Where::Small
        };
        self.put(page, place, 0);
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        self.has_evicted = true;
        let main_max = self.capacity - self.small_max;
        if self.main.len() > main_max || self.small.is_empty() || !self.leave_small(out) {
            self.leave_main(out);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        if self.state[page as usize].place == Where::Ghost {
            self.ghost.remove(&mut self.links, page);
        }
        self.small.push_back(&mut self.links, page);
        self.state[page as usize] = S3FifoState {
            place: Where::Small,
            uses: 0,
        };
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.small_max = (capacity / 10).max(1);
        self.ghost_max = capacity * 9 / 10;
    }

    fn remove(&mut self, page: PageId) {
        match self.state[page as usize].place {
            Where::Nowhere => return,
            Where::Small => self.small.remove(&mut self.links, page),
            Where::Main => self.main.remove(&mut self.links, page),
            Where::Ghost => self.ghost.remove(&mut self.links, page),
        }
        self.put(page, Where::Nowhere, 0);
    }
}
