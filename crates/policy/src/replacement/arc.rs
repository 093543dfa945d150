//! ARC: two LRU lists, one of pages used once and one of pages used more often. The target sizes of
//! the two lists follow the hits on pages that were recently evicted from each list.
//!
//! Source: Megiddo and Modha, FAST 2003, figure 4. The ratio of the lengths of the two ghost lists
//! (the lists of evicted pages) is used as a real number.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, grow};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Nowhere,
    /// T1: used once.
    Once,
    /// T2: used more often.
    Often,
    /// B1: remembered from T1.
    OnceGhost,
    /// B2: remembered from T2.
    OftenGhost,
}

/// ARC.
#[derive(Debug)]
pub(super) struct Arc {
    capacity: usize,
    /// p: the target length of T1, in pages.
    once_target: f64,
    links: Links,
    place: Vec<Where>,
    once: List,
    often: List,
    once_ghost: List,
    often_ghost: List,
}

impl Arc {
    pub(super) fn new(capacity: usize) -> Arc {
        Arc {
            capacity,
            once_target: 0.0,
            links: Links::default(),
            place: Vec::new(),
            once: List::default(),
            often: List::default(),
            once_ghost: List::default(),
            often_ghost: List::default(),
        }
    }

    fn list(&mut self, place: Where) -> Option<&mut List> {
        match place {
            Where::Nowhere => None,
            Where::Once => Some(&mut self.once),
            Where::Often => Some(&mut self.often),
            Where::OnceGhost => Some(&mut self.once_ghost),
            Where::OftenGhost => Some(&mut self.often_ghost),
        }
    }

    fn put(&mut self, page: PageId, place: Where) {
        self.place[page as usize] = place;
        match place {
            Where::Nowhere => {}
            Where::Once => self.once.push_front(&mut self.links, page),
            Where::Often => self.often.push_front(&mut self.links, page),
            Where::OnceGhost => self.once_ghost.push_front(&mut self.links, page),
            Where::OftenGhost => self.often_ghost.push_front(&mut self.links, page),
        }
    }

    fn take(&mut self, page: PageId) {
        let place = self.place[page as usize];
        let mut list = match self.list(place) {
            Some(list) => *list,
            None => return,
        };
        list.remove(&mut self.links, page);
        if let Some(kept) = self.list(place) {
            *kept = list;
        }
        self.place[page as usize] = Where::Nowhere;
    }

    /// Evicts one page from the cache and moves it to the ghost list of its LRU list (REPLACE in
    /// the paper).
    fn replace(&mut self, for_often_ghost: bool, out: &mut Vec<PageId>) {
        let once = self.once.len() as f64;
        let from_once = !self.once.is_empty()
            && (once > self.once_target
                || (for_often_ghost && once == self.once_target)
                || self.often.is_empty());
        let (victim, ghost) = if from_once {
            (self.once.back(), Where::OnceGhost)
        } else {
            (self.often.back(), Where::OftenGhost)
        };
        if let Some(page) = victim {
            self.take(page);
            self.put(page, ghost);
            out.push(page);
        }
    }

    /// Makes room for a page that is neither in the cache nor remembered (case IV of the paper).
    fn make_room_for_new(&mut self, out: &mut Vec<PageId>) {
        let first = self.once.len() + self.once_ghost.len();
        let all = first + self.often.len() + self.often_ghost.len();
        if first >= self.capacity && self.once_ghost.is_empty() {
            // The list of pages used once (T1) fills the whole cache, so its oldest page is evicted
            // without being remembered.
            if let Some(page) = self.once.back() {
                self.take(page);
                out.push(page);
            }
            return;
        }
        if first >= self.capacity {
            if let Some(page) = self.once_ghost.back() {
                self.take(page);
            }
        } else if all >= 2 * self.capacity
            && let Some(page) = self.often_ghost.back()
        {
            self.take(page);
        }
        self.replace(false, out);
    }
}

impl Order for Arc {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.place, ids, Where::Nowhere);
    }

    fn len(&self) -> usize {
        self.once.len() + self.often.len()
    }

    fn holds(&self, page: PageId) -> bool {
        matches!(self.place[page as usize], Where::Once | Where::Often)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.place[page as usize] != Where::Nowhere
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        if self.place[page as usize] == Where::Often {
            self.often.refresh(&mut self.links, page);
        } else {
            self.once.remove(&mut self.links, page);
            self.put(page, Where::Often);
        }
    }

    fn insert(&mut self, page: PageId, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let ghost = self.place[page as usize];
        let (once, often) = (self.once_ghost.len() as f64, self.often_ghost.len() as f64);
        match ghost {
            Where::OnceGhost => {
                let step = (often / once).max(1.0);
                self.once_target = (self.once_target + step).min(self.capacity as f64);
            }
            Where::OftenGhost => {
                let step = (once / often).max(1.0);
                self.once_target = (self.once_target - step).max(0.0);
            }
            _ => {}
        }
        if ghost == Where::Nowhere {
            if self.len() >= self.capacity {
                self.make_room_for_new(out);
            }
            self.put(page, Where::Once);
        } else {
            self.take(page);
            if self.len() >= self.capacity {
                self.replace(ghost == Where::OftenGhost, out);
            }
            self.put(page, Where::Often);
        }
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        self.replace(false, out);
        while self.once_ghost.len() + self.often_ghost.len() > self.capacity {
            let longer = if self.once_ghost.len() > self.often_ghost.len() {
                self.once_ghost.back()
            } else {
                self.often_ghost.back()
            };
            let Some(page) = longer else { return };
            self.take(page);
        }
    }

    fn insert_cold(&mut self, page: PageId) {
        self.take(page);
        self.once.push_back(&mut self.links, page);
        self.place[page as usize] = Where::Once;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.once_target = self.once_target.min(capacity as f64);
    }

    fn remove(&mut self, page: PageId) {
        self.take(page);
    }
}
