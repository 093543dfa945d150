//! W-TinyLFU: a small LRU window in front of a segmented LRU, the main area. When the main area is
//! full, a page that leaves the window replaces a page of the main area only if it was used more
//! often than that page.
//!
//! Source: Einziger, Friedman and Manes, 2017. The window has 1 % of the pages; the main area is
//! divided into 20 % probation and 80 % protected. Use counts are kept in a sketch and halved after
//! 32 counted uses per page of the main area. Two details follow the simulator from which the
//! expected values of the tests are taken: a page is counted when it is inserted, when it is
//! compared at the end of the window, and at every use in the main area; and the sketch is a
//! counting Bloom filter that increments all counters of a page.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use super::segmented::Segmented;
use crate::lists::{Links, List, grow};

/// Relative sizes of the probation and the protected segment.
const MAIN_SHARES: [usize; 2] = [1, 4];
/// Number of counted uses per page of the main area after which all counters are halved.
const SAMPLE: usize = 32;
/// Number of counters per page of the main area. A Bloom filter with this number of counters has an
/// error rate of one in a thousand.
const COUNTERS_PER_PAGE: f64 = 14.378;
/// Maximum number of counters. With more than about 9 million pages in the main area, there are
/// fewer than [`COUNTERS_PER_PAGE`] counters for each page.
const COUNTERS_MAX: usize = 1 << 27;
/// Number of counters that each page uses.
const PROBES: u64 = 10;

/// A counting Bloom filter: approximate use counts of pages. The counts are halved from time to
/// time, so that old uses count less.
#[derive(Debug, Default)]
struct Sketch {
    counters: Vec<u16>,
    since: usize,
}

impl Sketch {
    fn resize(&mut self, pages: usize) {
        let wanted = (pages as f64 * COUNTERS_PER_PAGE).ceil() as usize;
        let wanted = wanted.clamp(2 * PROBES as usize, COUNTERS_MAX);
        if self.counters.len() < wanted {
            self.counters.resize(wanted, 0);
        }
    }

    /// Returns the indexes of a page's counters.
    fn places(&self, page: PageId) -> impl Iterator<Item = usize> + use<> {
        // Mix with the finalizer of splitmix64, so that adjacent page ids map to unrelated
        // counters.
        let mut mixed = (u64::from(page) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let (start, step) = (mixed & 0xffff_ffff, mixed >> 32 | 1);
        let len = self.counters.len() as u64;
        (0..PROBES).map(move |n| ((((start + n * step) & 0xffff_ffff) * len) >> 32) as usize)
    }

    fn of(&self, page: PageId) -> u16 {
        let counters = self.places(page).map(|at| self.counters[at]);
        counters.min().unwrap_or(0)
    }

    fn add(&mut self, page: PageId) {
        for at in self.places(page) {
            self.counters[at] = self.counters[at].saturating_add(1);
        }
    }

    /// Advances the age of the sketch by one use, and halves all counters after every `sample`
    /// uses.
    fn age(&mut self, sample: usize) {
        self.since += 1;
        if self.since >= sample {
            self.since = 0;
            for counter in &mut self.counters {
                *counter /= 2;
            }
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
    counts: Sketch,
}

impl WTinyLfu {
    pub(super) fn new(capacity: usize) -> WTinyLfu {
        let mut order = WTinyLfu {
            capacity,
            links: Links::default(),
            window: List::default(),
            in_window: Vec::new(),
            main: Segmented::new(&MAIN_SHARES, capacity, false),
            main_max: 0,
            counts: Sketch::default(),
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
    }

    fn len(&self) -> usize {
        self.window.len() + self.main.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.in_window[page as usize] || self.main.holds(page)
    }

    fn remembers(&self, page: PageId) -> bool {
        // The sketch stores no ids, and forgets by itself.
        self.holds(page)
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
            self.counts.add(candidate);
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
        self.counts.resize(self.main_max);
    }

    fn remove(&mut self, page: PageId) {
        if self.in_window[page as usize] {
            self.window.remove(&mut self.links, page);
            self.in_window[page as usize] = false;
        }
        self.main.remove(page);
    }
}
