//! CLOCK-Pro: approximates LIRS on a ring of pages. A hit moves no page.
//!
//! Source: Jiang, Chen and Zhang, USENIX 2005. A cold page that is used in its test period becomes
//! hot. A page evicted in its test period is remembered. The target number of cold pages grows when
//! an evicted page is used again in its test period, and shrinks when a test period ends without a
//! use.
//!
//! The paper has all pages on one ring, where a hand can pass over the whole cache to find one page
//! of its kind. Here the ring has only the hot pages and the pages in their test period. Cold pages
//! in the cache are also in a queue, from which they are evicted, and remembered pages in another.
//! A hot page that becomes cold, and a cold page whose test period has ended, are only in the
//! queue, like a HIR page that is no longer in the stack of LIRS. So each step of a hand clears a
//! mark or takes a page off the ring, and an access takes a constant number of steps on average.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, NONE, grow};

/// The page is on the ring: it is hot, or in its test period.
const ON_RING: u8 = 1;
/// The page is in the cache. A page on the ring without this flag is not in the cache, but is
/// remembered during its test period.
const HELD: u8 = 2;
const HOT: u8 = 4;
const USED: u8 = 8;

/// CLOCK-Pro.
#[derive(Debug)]
pub(super) struct ClockPro {
    capacity: usize,
    /// Target number of cold pages among the pages in the cache.
    cold_target: usize,
    ring_links: Links,
    /// The pages of the ring, as a list whose front is the position where pages are inserted. The
    /// hand moves from the back to the front and then wraps around to the back.
    ring: List,
    hand: u32,
    /// Links of the two queues: a page is in at most one of them.
    queue_links: Links,
    /// The cold pages in the cache; the next victim is at the back.
    cold: List,
    /// The remembered pages; the page that was evicted first is at the back.
    gone: List,
    hot: usize,
    state: Vec<u8>,
}

impl ClockPro {
    pub(super) fn new(capacity: usize) -> ClockPro {
        ClockPro {
            capacity,
            cold_target: (capacity / 100).max(1),
            ring_links: Links::default(),
            ring: List::default(),
            hand: NONE,
            queue_links: Links::default(),
            cold: List::default(),
            gone: List::default(),
            hot: 0,
            state: Vec::new(),
        }
    }

    fn has(&self, page: PageId, bits: u8) -> bool {
        self.state[page as usize] & bits == bits
    }

    fn is_gone(&self, page: PageId) -> bool {
        self.state[page as usize] & (ON_RING | HELD) == ON_RING
    }

    /// Inserts `page`, which is not on the ring, at the head of the ring.
    fn put(&mut self, page: PageId) {
        self.ring.push_front(&mut self.ring_links, page);
        self.state[page as usize] |= ON_RING;
    }

    /// Removes `page` from the ring if it is there, and advances the hand if it points to the page.
    fn take(&mut self, page: PageId) {
        if !self.has(page, ON_RING) {
            return;
        }
        if self.hand == page {
            // Without a page in front, the hand starts at the back again.
            self.hand = self.ring_links.prev(page);
        }
        self.ring.remove(&mut self.ring_links, page);
        self.state[page as usize] &= !ON_RING;
    }

    /// Forgets everything about `page`.
    fn forget(&mut self, page: PageId) {
        if self.has(page, HOT) {
            self.hot -= 1;
        } else if self.has(page, HELD) {
            self.cold.remove(&mut self.queue_links, page);
        } else if self.is_gone(page) {
            self.gone.remove(&mut self.queue_links, page);
        }
        self.take(page);
        self.state[page as usize] = 0;
    }

    /// Makes `page`, which is in neither queue, hot, and moves it to the head of the ring.
    fn heat(&mut self, page: PageId) {
        self.take(page);
        self.state[page as usize] = HELD | HOT;
        self.put(page);
        self.hot += 1;
    }

    /// Puts `page`, which is in neither queue, into the queue of cold pages, and begins a test
    /// period.
    fn begin_test(&mut self, page: PageId) {
        self.take(page);
        self.state[page as usize] = HELD;
        self.put(page);
        self.cold.push_front(&mut self.queue_links, page);
    }

    /// Ends the test period of a cold or remembered page without a use. Fewer cold pages are wanted
    /// then.
    fn end_test(&mut self, page: PageId) {
        if self.is_gone(page) {
            self.forget(page);
        } else {
            self.take(page);
            if self.has(page, USED) {
                return;
            }
        }
        self.cold_target = self.cold_target.saturating_sub(1).max(1);
    }

    /// Advances the hand until a hot page has become cold. Test periods of the pages that the hand
    /// passes end.
    fn cool(&mut self) {
        while self.hot > 0 {
            let at = match self.hand {
                NONE => self.ring.back(),
                page => Some(page),
            };
            let Some(page) = at else { return };
            self.hand = self.ring_links.prev(page);
            if !self.has(page, HOT) {
                self.end_test(page);
            } else if self.has(page, USED) {
                self.state[page as usize] &= !USED;
            } else {
                self.take(page);
                self.state[page as usize] = HELD;
                self.hot -= 1;
                self.cold.push_front(&mut self.queue_links, page);
                return;
            }
        }
    }

    /// Turns hot pages cold while their number exceeds the capacity minus the target number of cold
    /// pages.
    fn balance(&mut self) {
        while self.hot > self.capacity.saturating_sub(self.cold_target).max(1) {
            self.cool();
        }
    }

    /// Evicts a page of the queue of cold pages. It is remembered if it is in its test period.
    fn leave(&mut self, page: PageId, out: &mut Vec<PageId>) {
        self.cold.remove(&mut self.queue_links, page);
        self.state[page as usize] &= ON_RING;
        out.push(page);
        if self.has(page, ON_RING) {
            self.gone.push_front(&mut self.queue_links, page);
            if self.gone.len() > self.capacity
                && let Some(oldest) = self.gone.back()
            {
                self.end_test(oldest);
            }
        }
    }
}

impl Order for ClockPro {
    fn reserve(&mut self, ids: usize) {
        self.ring_links.reserve(ids);
        self.queue_links.reserve(ids);
        grow(&mut self.state, ids, 0);
    }

    fn len(&self) -> usize {
        self.hot + self.cold.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.has(page, HELD)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.state[page as usize] != 0
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
            self.gone.remove(&mut self.queue_links, page);
            self.cold_target = (self.cold_target + 1).min(self.capacity);
            self.heat(page);
            self.balance();
        } else if self.hot < self.capacity.saturating_sub(self.cold_target) && self.cold.is_empty()
        {
            // While the cache fills for the first time, pages become hot as long as there is room
            // for hot pages.
            self.heat(page);
        } else {
            self.begin_test(page);
        }
    }

    /// Evicts the first page of the queue of cold pages that was not used. A used page becomes hot
    /// if it is in its test period, otherwise it begins a new test period.
    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        loop {
            if self.cold.is_empty() {
                self.cool();
            }
            let Some(page) = self.cold.back() else { return };
            if !self.has(page, USED) {
                self.leave(page, out);
                return;
            }
            self.cold.remove(&mut self.queue_links, page);
            if self.has(page, ON_RING) {
                self.heat(page);
                self.balance();
            } else {
                self.begin_test(page);
            }
        }
    }

    fn evict_if_cold(&mut self, page: PageId, out: &mut Vec<PageId>) -> bool {
        let is_cold = self.state[page as usize] & (HELD | HOT | USED) == HELD;
        if is_cold {
            self.leave(page, out);
        }
        is_cold
    }

    fn insert_cold(&mut self, page: PageId) {
        self.forget(page);
        self.state[page as usize] = HELD;
        self.cold.push_back(&mut self.queue_links, page);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.cold_target = self.cold_target.clamp(1, capacity.max(1));
    }

    fn remove(&mut self, page: PageId) {
        self.forget(page);
    }
}
