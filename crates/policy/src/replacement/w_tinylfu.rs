//! W-TinyLFU: a small LRU window in front of a segmented LRU, and a page passes from one to the other
//! only if it was asked for more often than the page it would replace.
//!
//! Source: Einziger, Friedman and Manes, 2017: 1 % window, main area 20 % probation and 80 %
//! protected, counts halved after 32 accesses a page of the main area. Since ids are dense, the counts
//! are exact, one for each id, where the paper has a sketch; halving is done when a count is read.

use super::PageId;
use super::dirty::Dirty;
use super::lists::{Links, List, grow};
use super::order::Order;
use super::segmented::Segmented;

/// Shares of probation and protected pages.
const MAIN_SHARES: [usize; 2] = [1, 4];
/// Counted accesses for each page of the main area after which all counts are halved.
const SAMPLE: usize = 32;

/// How often each page was asked for, with ageing.
#[derive(Debug, Default)]
struct Counts {
    /// The count, and the number of halvings it has seen.
    counts: Vec<(u16, u16)>,
    halvings: u16,
    since: usize,
}

impl Counts {
    fn of(&self, page: PageId) -> u16 {
        let (count, seen) = self.counts[page as usize];
        let missed = u32::from(self.halvings.wrapping_sub(seen));
        count.checked_shr(missed).unwrap_or(0)
    }

    fn add(&mut self, page: PageId) {
        let count = self.of(page).saturating_add(1);
        self.counts[page as usize] = (count, self.halvings);
    }

    fn age(&mut self, sample: usize) {
        self.since += 1;
        if self.since >= sample {
            self.since = 0;
            self.halvings = self.halvings.wrapping_add(1);
        }
    }
}

/// W-TinyLFU.
#[derive(Debug)]
pub(super) struct WTinyLfu {
    capacity: usize,
    links: Links,
    window: List,
    in_window: Vec<bool>,
    main: Segmented,
    main_max: usize,
    counts: Counts,
}

impl WTinyLfu {
    pub(super) fn new(capacity: usize) -> WTinyLfu {
        let mut order = WTinyLfu {
            capacity,
            links: Links::default(),
            window: List::default(),
            in_window: Vec::new(),
            main: Segmented::new(&MAIN_SHARES, capacity),
            main_max: 0,
            counts: Counts::default(),
        };
        order.resize(capacity);
        order
    }

    fn leave_window(&mut self) -> Option<PageId> {
        let page = self.window.pop_back(&mut self.links)?;
        self.in_window[page as usize] = false;
        Some(page)
    }
}

impl Order for WTinyLfu {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        self.main.reserve(ids);
        grow(&mut self.in_window, ids, false);
        grow(&mut self.counts.counts, ids, (0, 0));
    }

    fn len(&self) -> usize {
        self.window.len() + self.main.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.in_window[page as usize] || self.main.holds(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page) || self.counts.of(page) > 0
    }

    fn hit(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.in_window[page as usize] {
            self.window.refresh(&mut self.links, page);
        } else {
            self.main.hit(page, dirty, out);
            self.counts.add(page);
            self.counts.age(SAMPLE * self.main_max);
        }
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        while self.len() >= self.capacity {
            self.evict(dirty, out);
        }
        self.window.push_front(&mut self.links, page);
        self.in_window[page as usize] = true;
        self.counts.add(page);
    }

    fn evict(&mut self, dirty: &Dirty, out: &mut Vec<PageId>) {
        while let Some(candidate) = self.leave_window() {
            let full = self.main.len() >= self.main_max;
            let rival = self.main.victim().filter(|_| full);
            let wins = match rival {
                Some(rival) => self.counts.of(candidate) > self.counts.of(rival),
                None => self.main_max > self.main.len(),
            };
            if !wins {
                out.push(candidate);
                return;
            }
            let before = out.len();
            self.main.insert(candidate, dirty, out);
            if out.len() > before {
                return;
            }
        }
        self.main.evict(dirty, out);
    }

    fn insert_cold(&mut self, page: PageId) {
        self.window.push_back(&mut self.links, page);
        self.in_window[page as usize] = true;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        let window = (capacity / 100).max(1);
        self.main_max = capacity - window;
        self.main.resize(self.main_max);
    }

    fn remove(&mut self, page: PageId) {
        if self.in_window[page as usize] {
            self.window.remove(&mut self.links, page);
            self.in_window[page as usize] = false;
        }
        self.main.remove(page);
        self.counts.counts[page as usize] = (0, self.counts.halvings);
    }
}
