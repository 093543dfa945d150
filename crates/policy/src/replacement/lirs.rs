//! LIRS: pages are ranked by the distance between their last two uses, not by the last use alone.
//!
//! Source: Jiang and Zhang, SIGMETRICS 2002. A LIR page has a small distance and is always in the
//! cache; a HIR page has a large distance, and is resident if it is in the cache. Stack S orders
//! pages by recency. Queue Q holds the resident HIR pages: 1 % of the capacity (at least one page).
//! If S has more pages than twice the capacity, the page that was evicted first is removed from S
//! and forgotten.
//!
//! At one point the code follows the simulator from which the expected values of the tests are
//! taken, instead of the paper's pseudo code. If a resident HIR page that is no longer in S is
//! used, the LIR page at the bottom of S becomes a HIR page and moves to Q, and the next new page
//! becomes a LIR page in its place. If the capacity is below 200 pages, Q has a single place, and
//! can then have no place for the used page. Such a page is in limbo: it is in the cache and in S,
//! but not in Q, until it is used again or its frame is needed. The simulator counts a page in
//! limbo as a page in the cache, but reuses its frame immediately. With `limbo_is_free` the code
//! does the same, only to compare with the simulator's tables.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, grow};

/// The page is in S.
const STACKED: u8 = 1;
/// The page is a LIR page: the distance between its uses is small, and it is always in the cache.
const LIR: u8 = 2;
/// The page is in Q: it is in the cache, although the distance between its uses is large.
const QUEUED: u8 = 4;
/// The page is in limbo: it is in the cache and in S, but it is neither a LIR page nor in Q.
const LIMBO: u8 = 8;

/// LIRS.
#[derive(Debug)]
pub(super) struct Lirs {
    capacity: usize,
    lir_max: usize,
    stack_links: Links,
    stack: List,
    queue_max: usize,
    /// Links shared by the lists Q, `limbo` and `gone`: a page is in at most one of them.
    queue_links: Links,
    queue: List,
    limbo: List,
    /// Pages of S that are no longer in the cache, the most recently evicted page first.
    gone: List,
    lir_len: usize,
    state: Vec<u8>,
    /// True if a page in limbo (neither a LIR page nor in Q) uses no frame, although the page still
    /// counts as being in the cache.
    limbo_is_free: bool,
}

impl Lirs {
    /// Creates the order. `limbo_is_free` is only for comparisons with published tables: they count
    /// a page in limbo (neither a LIR page nor in Q) as a page in the cache, although it uses no
    /// frame.
    pub(super) fn new(capacity: usize, limbo_is_free: bool) -> Lirs {
        let mut order = Lirs {
            capacity,
            lir_max: 0,
            stack_links: Links::default(),
            stack: List::default(),
            queue_max: 0,
            queue_links: Links::default(),
            queue: List::default(),
            limbo: List::default(),
            gone: List::default(),
            lir_len: 0,
            state: Vec::new(),
            limbo_is_free,
        };
        order.resize(capacity);
        order
    }

    fn has(&self, page: PageId, bit: u8) -> bool {
        self.state[page as usize] & bit != 0
    }

    fn set(&mut self, page: PageId, bit: u8) {
        self.state[page as usize] |= bit;
    }

    fn unset(&mut self, page: PageId, bit: u8) {
        self.state[page as usize] &= !bit;
    }

    fn is_gone(&self, page: PageId) -> bool {
        self.state[page as usize] == STACKED
    }

    /// Moves `page` to the top of S, or inserts it at the top if it is not in S.
    fn stack_up(&mut self, page: PageId) {
        if self.has(page, STACKED) {
            self.stack.refresh(&mut self.stack_links, page);
        } else {
            self.stack.push_front(&mut self.stack_links, page);
            self.set(page, STACKED);
        }
    }

    fn enqueue(&mut self, page: PageId) {
        self.queue.push_front(&mut self.queue_links, page);
        self.set(page, QUEUED);
    }

    fn dequeue(&mut self, page: PageId) {
        self.queue.remove(&mut self.queue_links, page);
        self.unset(page, QUEUED);
    }

    /// Removes `page` from S, and forgets it if it is not in the cache. A page in limbo (in the
    /// cache and in S, but neither a LIR page nor in Q) moves to the end of Q from which pages are
    /// evicted.
    fn unstack(&mut self, page: PageId) {
        if self.is_gone(page) {
            self.gone.remove(&mut self.queue_links, page);
        } else if self.has(page, LIMBO) {
            self.limbo.remove(&mut self.queue_links, page);
            self.unset(page, LIMBO);
            if !self.limbo_is_free {
                self.queue.push_back(&mut self.queue_links, page);
                self.set(page, QUEUED);
            }
        }
        self.stack.remove(&mut self.stack_links, page);
        self.unset(page, STACKED);
    }

    /// Removes pages from the bottom of S until the bottom page is a LIR page or S is empty.
    fn prune(&mut self) {
        while let Some(page) = self.stack.back() {
            if self.has(page, LIR) {
                return;
            }
            self.unstack(page);
        }
    }

    /// Turns the LIR page at the bottom of S into a HIR page.
    fn demote(&mut self) {
        self.prune();
        let Some(page) = self.stack.back() else {
            return;
        };
        self.unset(page, LIR);
        self.lir_len -= 1;
        self.stack.remove(&mut self.stack_links, page);
        self.unset(page, STACKED);
        self.enqueue(page);
        self.prune();
    }

    /// Demotes a LIR page after a use of `page`, which was only in Q and is now on top of S. The
    /// demoted page needs a place in Q. If Q has only one place, `page` is removed from Q and is in
    /// limbo: in the cache and in S, but neither a LIR page nor in Q.
    fn demote_after(&mut self, page: PageId, out: &mut Vec<PageId>) {
        if self.lir_len < self.lir_max {
            return;
        }
        if self.queue_max == 1 {
            self.dequeue(page);
            self.limbo.push_front(&mut self.queue_links, page);
            self.set(page, LIMBO);
            if self.limbo_is_free {
                out.push(page);
            }
        } else if self.queue.len() >= self.queue_max {
            self.leave(out);
        }
        self.demote();
    }

    /// Makes `page`, which is in S and not in Q, a LIR page, and demotes another LIR page if there
    /// are too many.
    fn promote(&mut self, page: PageId) {
        self.set(page, LIR);
        self.lir_len += 1;
        while self.lir_len > self.lir_max.max(1) {
            self.demote();
        }
    }

    /// Evicts the oldest page of Q. If the page is in S, it stays there as a remembered page.
    fn leave(&mut self, out: &mut Vec<PageId>) {
        if self.queue.is_empty() {
            self.demote();
        }
        let Some(page) = self.queue.back() else {
            return;
        };
        self.dequeue(page);
        self.forget_frame(page, out);
    }

    /// Appends `page`, which is no longer in the cache, to the evicted pages. If the page is in S,
    /// it stays there as a remembered page.
    fn forget_frame(&mut self, page: PageId, out: &mut Vec<PageId>) {
        if self.has(page, STACKED) {
            self.gone.push_front(&mut self.queue_links, page);
        }
        out.push(page);
    }

    /// Evicts a page if all frames are in use. Pages in limbo (in the cache and in S, but not in Q)
    /// are evicted first.
    fn make_room(&mut self, out: &mut Vec<PageId>) {
        if self.len() >= self.capacity {
            self.give_up(out);
        }
    }

    fn give_up(&mut self, out: &mut Vec<PageId>) {
        let first = self.limbo.back().filter(|_| !self.limbo_is_free);
        match first {
            Some(page) => {
                self.limbo.remove(&mut self.queue_links, page);
                self.unset(page, LIMBO);
                self.forget_frame(page, out);
            }
            None => self.leave(out),
        }
    }

    fn bound_stack(&mut self) {
        while self.stack.len() > 2 * self.capacity {
            let Some(page) = self.gone.back() else {
                return;
            };
            self.unstack(page);
        }
    }
}

impl Order for Lirs {
    fn reserve(&mut self, ids: usize) {
        self.stack_links.reserve(ids);
        self.queue_links.reserve(ids);
        grow(&mut self.state, ids, 0);
    }

    fn len(&self) -> usize {
        let frames = self.lir_len + self.queue.len();
        if self.limbo_is_free {
            frames
        } else {
            frames + self.limbo.len()
        }
    }

    fn holds(&self, page: PageId) -> bool {
        self.has(page, LIR | QUEUED | LIMBO)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.state[page as usize] != 0
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let (was_stacked, was_lir) = (self.has(page, STACKED), self.has(page, LIR));
        self.stack_up(page);
        if was_lir {
            self.prune();
        } else if was_stacked {
            if self.has(page, LIMBO) {
                self.limbo.remove(&mut self.queue_links, page);
                self.unset(page, LIMBO);
                // The used page becomes a LIR page. The LIR page that is demoted for it needs a
                // place in Q.
                let demotes = self.lir_len >= self.lir_max;
                if demotes && self.queue.len() >= self.queue_max {
                    self.leave(out);
                }
            } else {
                self.dequeue(page);
            }
            self.promote(page);
        } else {
            self.queue.refresh(&mut self.queue_links, page);
            self.demote_after(page, out);
        }
        self.bound_stack();
    }

    fn insert(&mut self, page: PageId, _dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.is_gone(page) {
            self.stack_up(page);
            self.gone.remove(&mut self.queue_links, page);
            // The page is marked as a LIR page before room is made, so that pruning S does not
            // remove it.
            self.set(page, LIR);
            self.make_room(out);
            self.promote(page);
        } else {
            self.make_room(out);
            self.stack_up(page);
            if self.lir_len < self.lir_max {
                self.promote(page);
            } else {
                self.enqueue(page);
            }
        }
        self.bound_stack();
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        self.give_up(out);
    }

    fn insert_cold(&mut self, page: PageId) {
        if self.is_gone(page) {
            self.unstack(page);
        }
        self.queue.push_back(&mut self.queue_links, page);
        self.set(page, QUEUED);
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        let queue = ((capacity as f64 * 0.01) as usize).max(1);
        self.queue_max = queue.min(capacity);
        self.lir_max = capacity - self.queue_max;
    }

    fn remove(&mut self, page: PageId) {
        let was_hir = self.has(page, QUEUED | LIMBO);
        if self.has(page, QUEUED) {
            self.dequeue(page);
        } else if self.has(page, LIMBO) {
            self.limbo.remove(&mut self.queue_links, page);
            self.unset(page, LIMBO);
        }
        if was_hir && self.has(page, STACKED) {
            // For a moment, S contains the page as a page that is not in the cache. `unstack` below
            // then removes it from S and from `gone`.
            self.gone.push_front(&mut self.queue_links, page);
        }
        let was_lir = self.has(page, LIR);
        if self.has(page, STACKED) {
            self.unstack(page);
        }
        if was_lir {
            self.unset(page, LIR);
            self.lir_len -= 1;
            self.prune();
        }
    }
}
