//! LIRS: pages are ranked by the distance between their last two uses, not by the last use alone.
//!
//! Source: Jiang and Zhang, SIGMETRICS 2002: stack S, queue Q, 1 % of the pages for resident HIR
//! pages (at least one). S is bounded at twice the capacity: past it, the page that left the cache
//! first is forgotten.

use super::PageId;
use super::dirty::Dirty;
use super::lists::{Links, List, grow};
use super::order::Order;

/// In S.
const STACKED: u8 = 1;
/// One of the pages with a small distance, always held.
const LIR: u8 = 2;
/// In Q: held, with a large distance.
const QUEUED: u8 = 4;

/// LIRS.
#[derive(Debug)]
pub(super) struct Lirs {
    capacity: usize,
    lir_max: usize,
    stack_links: Links,
    stack: List,
    /// Of Q and of `gone`: a page is in one of them at most.
    queue_links: Links,
    queue: List,
    /// Pages of S that are not held, the latest to leave in front.
    gone: List,
    lir_len: usize,
    state: Vec<u8>,
}

impl Lirs {
    pub(super) fn new(capacity: usize) -> Lirs {
        let mut order = Lirs {
            capacity,
            lir_max: 0,
            stack_links: Links::default(),
            stack: List::default(),
            queue_links: Links::default(),
            queue: List::default(),
            gone: List::default(),
            lir_len: 0,
            state: Vec::new(),
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

    /// Puts `page` on top of S, wherever it was.
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

    /// Takes `page` out of S and forgets it if it is not held.
    fn unstack(&mut self, page: PageId) {
        if self.is_gone(page) {
            self.gone.remove(&mut self.queue_links, page);
        }
        self.stack.remove(&mut self.stack_links, page);
        self.unset(page, STACKED);
    }

    /// The bottom of S is a LIR page, or S is empty.
    fn prune(&mut self) {
        while let Some(page) = self.stack.back() {
            if self.has(page, LIR) {
                return;
            }
            self.unstack(page);
        }
    }

    /// The LIR page at the bottom of S becomes a HIR page.
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

    /// `page`, which is in S and not in Q, becomes a LIR page, in place of another if need be.
    fn promote(&mut self, page: PageId) {
        self.set(page, LIR);
        self.lir_len += 1;
        while self.lir_len > self.lir_max.max(1) {
            self.demote();
        }
    }

    /// The oldest page of Q leaves; it stays in S, if it is there, as a memory.
    fn leave(&mut self, out: &mut Vec<PageId>) {
        if self.queue.is_empty() {
            self.demote();
        }
        let Some(page) = self.queue.back() else {
            return;
        };
        self.dequeue(page);
        if self.has(page, STACKED) {
            self.gone.push_front(&mut self.queue_links, page);
        }
        out.push(page);
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
        self.lir_len + self.queue.len()
    }

    fn holds(&self, page: PageId) -> bool {
        self.has(page, LIR | QUEUED)
    }

    fn remembers(&self, page: PageId) -> bool {
        self.state[page as usize] != 0
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, _out: &mut Vec<PageId>) {
        let (was_stacked, was_lir) = (self.has(page, STACKED), self.has(page, LIR));
        self.stack_up(page);
        if was_lir {
            self.prune();
        } else if was_stacked {
            self.dequeue(page);
            self.promote(page);
        } else {
            self.queue.refresh(&mut self.queue_links, page);
        }
        self.bound_stack();
    }

    fn insert(&mut self, page: PageId, _dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.is_gone(page) {
            self.stack_up(page);
            self.gone.remove(&mut self.queue_links, page);
            // No longer `gone`, so that pruning meanwhile does not take it for one.
            self.set(page, LIR);
            if self.len() >= self.capacity {
                self.leave(out);
            }
            self.promote(page);
        } else {
            if self.len() >= self.capacity {
                self.leave(out);
            }
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
        self.leave(out);
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
        self.lir_max = capacity - queue.min(capacity);
    }

    fn remove(&mut self, page: PageId) {
        if self.has(page, QUEUED) {
            self.dequeue(page);
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
