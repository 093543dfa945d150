//! 2Q: new pages pass through a FIFO. Only pages that are used again after their eviction from the
//! FIFO enter the LRU list.
//!
//! Source: Johnson and Shasha, VLDB 1994 (full version): the FIFO (Ain) holds 25 % of the pages,
//! and the memory of pages evicted from it (Aout) has 50 %.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, grow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Nowhere,
    In,
    Main,
    Out,
}

/// 2Q.
#[derive(Debug)]
pub(super) struct TwoQ {
    capacity: usize,
    in_max: usize,
    out_max: usize,
    links: Links,
    place: Vec<Where>,
    first: List,
    main: List,
    out: List,
}

impl TwoQ {
    pub(super) fn new(capacity: usize) -> TwoQ {
        let mut order = TwoQ {
            capacity,
            in_max: 0,
            out_max: 0,
            links: Links::default(),
            place: Vec::new(),
            first: List::default(),
            main: List::default(),
            out: List::default(),
        };
        order.resize(capacity);
        order
    }

    fn put(&mut self, page: PageId, place: Where) {
        self.place[page as usize] = place;
        match place {
            Where::In => self.first.push_front(&mut self.links, page),
            Where::Main => self.main.push_front(&mut self.links, page),
            Where::Out => self.out.push_front(&mut self.links, page),
            Where::Nowhere => {}
        }
    }

    fn evict_main(&mut self, out: &mut Vec<PageId>) {
        if let Some(page) = self.main.pop_back(&mut self.links) {
            self.put(page, Where::Nowhere);
            out.push(page);
        }
    }

    fn evict_first(&mut self, out: &mut Vec<PageId>) {
        let Some(page) = self.first.pop_back(&mut self.links) else {
            return;
        };
        out.push(page);
        self.put(page, Where::Out);
        if self.out.len() > self.out_max
            && let Some(forgotten) = self.out.pop_back(&mut self.links)
        {
            self.put(forgotten, Where::Nowhere);
        }
    }
}

impl Order for TwoQ {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.place, ids, Where::Nowhere);
    }

    fn len(&self) -> usize {
        self.first.len() + self.main.len()
    }

    fn holds(&self, page: PageId) -> bool {
        matches!(self.place[page as usize], Where::In | Where::Main)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.place[page as usize] != Where::Nowhere
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        if self.place[page as usize] == Where::Main {
            self.main.refresh(&mut self.links, page);
        }
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        let was_out = self.place[page as usize] == Where::Out;
        if was_out {
            self.out.remove(&mut self.links, page);
        }
        if self.len() >= self.capacity {
            self.evict(dirty, out);
        }
        if was_out {
            // The LRU list stays within its share of the cache, even while the FIFO list uses less
            // than its own share.
            if self.main.len() >= self.capacity - self.in_max {
                self.evict_main(out);
            }
            self.put(page, Where::Main);
        } else {
            self.put(page, Where::In);
        }
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.first.len() > self.in_max || self.main.is_empty() {
            self.evict_first(out);
        } else {
            self.evict_main(out);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        if self.place[page as usize] == Where::Out {
            self.out.remove(&mut self.links, page);
        }
        self.main.push_back(&mut self.links, page);
        self.place[page as usize] = Where::Main;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.in_max = capacity / 4;
        self.out_max = capacity / 2;
    }

    fn remove(&mut self, page: PageId) {
        match self.place[page as usize] {
            Where::In => self.first.remove(&mut self.links, page),
            Where::Main => self.main.remove(&mut self.links, page),
            Where::Out => self.out.remove(&mut self.links, page),
            Where::Nowhere => {}
        }
        self.place[page as usize] = Where::Nowhere;
    }
}
