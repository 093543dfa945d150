//! CLOCK-Pro: approximates LIRS on one ring of pages with three hands. A hit moves no page.
//!
//! Source: Jiang, Chen and Zhang, USENIX 2005. A cold page that is used in its test period becomes
//! hot. A page evicted in its test period is remembered. The target number of cold pages grows when
//! an evicted page is used again in its test period, and shrinks when a test period ends without a
//! use.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, NONE, grow};

/// The page is on the ring.
const ON_RING: u8 = 1;
/// The page is in the cache. A page on the ring without this flag is not in the cache, but is
/// remembered during its test period.
const HELD: u8 = 2;
const HOT: u8 = 4;
const USED: u8 = 8;
/// The page is in its test period.
const TEST: u8 = 16;

/// CLOCK-Pro.
#[derive(Debug)]
pub(super) struct ClockPro {
    capacity: usize,
    /// Target number of cold pages among the pages in the cache.
    cold_target: usize,
    links: Links,
    /// The pages of the ring, as a list whose front is the position where pages are inserted. Hands
    /// move from the back to the front and then wrap around to the back.
    ring: List,
    state: Vec<u8>,
    hand_hot: u32,
    hand_cold: u32,
    hand_test: u32,
    hot: usize,
    cold: usize,
    gone: usize,
}

impl ClockPro {
    pub(super) fn new(capacity: usize) -> ClockPro {
        ClockPro {
            capacity,
            cold_target: (capacity / 100).max(1),
            links: Links::default(),
            ring: List::default(),
            state: Vec::new(),
            hand_hot: NONE,
            hand_cold: NONE,
            hand_test: NONE,
            hot: 0,
            cold: 0,
            gone: 0,
        }
    }

    fn has(&self, page: PageId, bits: u8) -> bool {
        self.state[page as usize] & bits == bits
    }

    fn is_cold(&self, page: PageId) -> bool {
        self.state[page as usize] & (HELD | HOT) == HELD
    }

    fn is_gone(&self, page: PageId) -> bool {
        self.state[page as usize] & (ON_RING | HELD) == ON_RING
    }

    /// Returns the page after `page` in the direction in which the hands move.
    fn after(&self, page: PageId) -> u32 {
        match self.links.prev(page) {
            NONE => self.ring.back().unwrap_or(NONE),
            next => next,
        }
    }

    fn start(&self, hand: u32) -> u32 {
        match hand {
            NONE => self.ring.back().unwrap_or(NONE),
            page => page,
        }
    }

    fn put(&mut self, page: PageId, state: u8) {
        self.ring.push_front(&mut self.links, page);
        self.state[page as usize] = ON_RING | state;
    }

    /// Removes `page` from the ring, and advances each hand that points to it.
    fn take(&mut self, page: PageId) {
        let next = match self.after(page) {
            next if next == page => NONE,
            next => next,
        };
        for hand in [&mut self.hand_hot, &mut self.hand_cold, &mut self.hand_test] {
            if *hand == page {
                *hand = next;
            }
        }
        self.ring.remove(&mut self.links, page);
        self.state[page as usize] = 0;
    }

    fn uncount(&mut self, page: PageId) {
        if self.has(page, HOT) {
            self.hot -= 1;
        } else if self.has(page, HELD) {
            self.cold -= 1;
        } else {
            self.gone -= 1;
        }
    }

    /// Lowers the target number of cold pages after a test period that ended without a use.
    fn test_ended(&mut self) {
        self.cold_target = self.cold_target.saturating_sub(1).max(1);
    }

    /// Advances the hot hand until a hot page has become cold.
    fn run_hot(&mut self) {
        let mut page = self.start(self.hand_hot);
        while self.hot > 0 && page != NONE {
            let next = self.after(page);
            if self.has(page, HOT) {
                if !self.has(page, USED) {
                    self.state[page as usize] = ON_RING | HELD;
                    self.hot -= 1;
                    self.cold += 1;
                    self.hand_hot = next;
                    return;
                }
                self.state[page as usize] &= !USED;
            } else {
                self.end_test(page);
            }
            let was_last = next == page && !self.has(page, ON_RING);
            page = if was_last { NONE } else { next };
        }
        self.hand_hot = page;
    }

    /// Ends the test period of a cold or remembered page.
    fn end_test(&mut self, page: PageId) {
        if self.is_gone(page) {
            self.gone -= 1;
            self.test_ended();
            self.take(page);
        } else if self.has(page, TEST) && !self.has(page, USED) {
            self.state[page as usize] &= !TEST;
            self.test_ended();
        }
    }

    /// Advances the test hand until one remembered page is forgotten.
    fn run_test(&mut self) {
        let mut page = self.start(self.hand_test);
        while self.gone > 0 && page != NONE {
            let next = self.after(page);
            let was_gone = self.is_gone(page);
            if !self.has(page, HOT) {
                self.end_test(page);
            }
            if was_gone {
                self.hand_test = next;
                return;
            }
            page = next;
        }
    }

    /// Advances the cold hand until a page has been evicted.
    fn run_cold(&mut self, out: &mut Vec<PageId>) {
        if self.cold == 0 {
            self.run_hot();
        }
        let mut page = self.start(self.hand_cold);
        while self.cold > 0 && page != NONE {
            let next = self.after(page);
            self.hand_cold = next;
            if self.is_cold(page) {
                let used = self.has(page, USED);
                let in_test = self.has(page, TEST);
                if !used {
                    self.leave(page, in_test, out);
                    return;
                }
                self.promote_or_retry(page, in_test);
                if self.cold == 0 {
                    self.run_hot();
                }
            }
            page = self.start(self.hand_cold);
        }
    }

    fn leave(&mut self, page: PageId, in_test: bool, out: &mut Vec<PageId>) {
        self.cold -= 1;
        out.push(page);
        if in_test {
            self.state[page as usize] = ON_RING | TEST;
            self.gone += 1;
            while self.gone > self.capacity {
                self.run_test();
            }
        } else {
            self.take(page);
        }
    }

    /// Moves a used cold page to the head of the ring. The page becomes hot if it was in its test
    /// period, otherwise it stays cold and begins a new test period.
    fn promote_or_retry(&mut self, page: PageId, in_test: bool) {
        self.take(page);
        if in_test {
            self.cold -= 1;
            self.hot += 1;
            self.put(page, HELD | HOT);
            self.balance();
        } else {
            self.put(page, HELD | TEST);
        }
    }

    /// Turns hot pages cold while their number exceeds the capacity minus the target number of cold
    /// pages.
    fn balance(&mut self) {
        while self.hot > self.capacity.saturating_sub(self.cold_target).max(1) {
            let before = self.hot;
            self.run_hot();
            if self.hot == before {
                return;
            }
        }
    }
}

impl Order for ClockPro {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.state, ids, 0);
    }

    fn len(&self) -> usize {
        self.hot + self.cold
    }

    fn holds(&self, page: PageId) -> bool {
        self.has(page, HELD)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.has(page, ON_RING)
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        self.state[page as usize] |= USED;
    }

    fn insert(&mut self, page: PageId, dirty: &Dirty, out: &mut Vec<PageId>) {
        while self.len() >= self.capacity {
            self.evict(dirty, out);
        }
        // This check must follow the evictions above, because one of them can forget the page that
        // is being inserted.
        if self.is_gone(page) {
            self.uncount(page);
            self.take(page);
            self.cold_target = (self.cold_target + 1).min(self.capacity);
            self.hot += 1;
            self.put(page, HELD | HOT);
            self.balance();
        } else if self.hot < self.capacity.saturating_sub(self.cold_target) && self.cold == 0 {
            // While the cache fills for the first time, pages become hot as long as there is room
            // for hot pages.
            self.hot += 1;
            self.put(page, HELD | HOT);
        } else {
            self.cold += 1;
            self.put(page, HELD | TEST);
        }
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        self.run_cold(out);
    }

    fn insert_cold(&mut self, page: PageId) {
        self.remove(page);
        self.ring.push_back(&mut self.links, page);
        self.state[page as usize] = ON_RING | HELD;
        self.cold += 1;
        self.hand_cold = page;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.cold_target = self.cold_target.clamp(1, capacity.max(1));
    }

    fn remove(&mut self, page: PageId) {
        if self.has(page, ON_RING) {
            self.uncount(page);
            self.take(page);
        }
    }
}
