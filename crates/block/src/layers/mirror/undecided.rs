//! Writes of which it is open whether they are stored, and what that means for reads.
//!
//! A write is undecided from its admission until a side that counts has stored it, or all have
//! failed. A read may find the content of an undecided write. If that write then failed, the next
//! read might find the older content, and the first answer would have been taken back. So a read
//! waits for a decision, but only for that of a write whose content it has found:
//!
//! 1. A read asks the sides at once, whatever writes are under way.
//! 2. When it has its answer, it looks which undecided writes overlap it. There is at most one for
//!    each block, since a write holds the lock of its range until it is acknowledged. The read
//!    waits for the decisions of those of which a block of the answer has the content. It waits for
//!    no write that is admitted after this look.
//! 3. If a write that overlaps the read has failed since the read began, the read asks once more,
//!    with the lock of its range. Under the lock no write there is undecided, so this answer is
//!    final. The lock is had in the order of admission.
//!
//! So no sequence of writes keeps a read waiting, however they overlap in time.
//!
//! # Why each block is linearizable
//!
//! Call a write of a block *stored* from its decision on. Writes of one block are stored one after
//! the other, in the order of admission. A side that lacks a stored write is not read there, and
//! while a write is undecided no side is read that is still to be given it. So a read that begins
//! after a write was stored finds the content of this write or of a later one. A block of an answer
//! is therefore one of these:
//!
//! - **The content of a stored write.** It was the newest stored one when the read began, or was
//!   stored since. Every read that begins later finds it, or something newer.
//! - **The content of an undecided write.** The read waits. It returns when the write is stored,
//!   which is the case before; or the write has failed, which is the next case.
//! - **Anything, while a write of the block has failed since the read began.** The answer is not
//!   used. After a failure the sides are made to agree on what the failed write has left, before
//!   its lock is given back; the read asks once more under this lock, and no undecided write exists
//!   then.
//!
//! An answer that differs from the content of the undecided write is older than that write, as
//! devices store a block as a whole. No read has returned the newer content so far, because such a
//! read would still wait. Where an undecided write has the same content as the block had before, a
//! read waits for its decision although it need not.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::WaitQueue;
use slab::Slab;

use super::queue::{Change, Ticket, Waiting};
use crate::extent_map::{Cut, ExtentMap};

/// A read under way.
struct Reading {
    range: Range<u64>,
    /// A write that overlaps it has failed since it began.
    met_failure: Cell<bool>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Undecided {
    writes: RefCell<ExtentMap<Waiting>>,
    /// Reads that wait for a decision, by the number of the write.
    waiting: WaitQueue,
    reads: RefCell<Slab<Reading>>,
}

impl Undecided {
    /// A write was admitted.
    ///
    /// # Panics
    /// When another undecided write overlaps it: its range was not locked.
    pub(super) fn admit(&self, ticket: &Rc<Ticket>, change: &Change) {
        let mut writes = self.writes.borrow_mut();
        assert!(
            writes.is_clear(&ticket.range),
            "a write holds the lock of its range until it is decided"
        );
        let write = Waiting {
            change: Change {
                digests: None,
                ..change.clone()
            },
            ticket: Rc::clone(ticket),
        };
        writes.insert(ticket.range.clone(), write);
    }

    /// A write is stored.
    pub(super) fn stored(&self, ticket: &Ticket) {
        self.writes.borrow_mut().remove(ticket.range.clone());
        self.waiting.wake_at(ticket.seq);
    }

    /// A write has failed, and the sides have been made to agree on what it has left.
    pub(super) fn failed(&self, ticket: &Ticket) {
        for (_, reading) in &*self.reads.borrow() {
            if reading.range.start < ticket.range.end && ticket.range.start < reading.range.end {
                reading.met_failure.set(true);
            }
        }
        self.stored(ticket);
    }

    /// A read begins, until what this returns is dropped.
    pub(super) fn begin_read(&self, range: &Range<u64>) -> ReadUnderWay<'_> {
        let reading = Reading {
            range: range.clone(),
            met_failure: Cell::new(false),
        };
        ReadUnderWay {
            of: self,
            key: self.reads.borrow_mut().insert(reading),
        }
    }

    /// True when no undecided write overlaps a range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.writes.borrow().is_clear(range)
    }

    /// The undecided writes in a range, cut to it, in order of place.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<(Range<u64>, Waiting)> {
        let writes = self.writes.borrow();
        let cut = |(of, write): (Range<u64>, &Waiting)| {
            let common = of.start.max(range.start)..of.end.min(range.end);
            let inside = common.start - of.start..common.end - of.start;
            (common, write.cut(inside))
        };
        writes.overlapping(range).map(cut).collect()
    }

    /// Waits until a write is decided.
    pub(super) async fn until_decided(&self, write: &Ticket) {
        let is_decided = || {
            let writes = self.writes.borrow();
            let mut there = writes.overlapping(&write.range);
            !there.any(|(_, other)| other.ticket.seq == write.seq)
        };
        self.waiting.at(write.seq, is_decided).await;
    }
}

/// A read under way, until it is dropped.
pub(super) struct ReadUnderWay<'u> {
    of: &'u Undecided,
    key: usize,
}

impl ReadUnderWay<'_> {
    /// True when a write that overlaps the read has failed since the read began.
    pub(super) fn has_met_failure(&self) -> bool {
        self.of.reads.borrow()[self.key].met_failure.get()
    }
}

impl Drop for ReadUnderWay<'_> {
    fn drop(&mut self) {
        self.of.reads.borrow_mut().remove(self.key);
    }
}
