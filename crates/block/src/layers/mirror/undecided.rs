//! Undecided writes, whose outcome (stored or failed) is not yet known, and their effect on reads.
//!
//! A write is undecided from its admission until a side that decides its outcome has stored it, or
//! all sides have failed to store it. A read may find the content of an undecided write. If that
//! write then failed, the next read might find the older content, so that the first answer would
//! have been reverted. A read therefore waits for decisions, but only for the decisions of writes
//! whose content it has found:
//!
//! 1. A read is sent to the sides immediately, whatever writes are in flight.
//! 2. When the read has its answer, it looks up the undecided writes that overlap it. There is at
//!    most one for each block, since a write holds the lock of its range until it is acknowledged.
//!    If the content of such a write is in a block of the answer, the read waits for the decision
//!    of that write. It does not wait for writes that are admitted after this lookup.
//! 3. If a write that overlaps the read has failed since the read began, the read is repeated once,
//!    with the lock of its range. Under the lock no overlapping write is undecided, so the second
//!    answer is final. The lock is granted in the order of admission.
//!
//! So no sequence of writes can starve a read, however the writes overlap in time.
//!
//! # Why each block is linearizable
//!
//! Call a write of a block *stored* once it is decided that the write has succeeded. Writes of one
//! block are stored one after the other, in the order of admission. A block is not read from a side
//! that lacks a stored write of it, or that has not yet stored an undecided write of it. So a read
//! that begins after a write was stored finds the content of this write or of a later one. A block
//! of an answer is therefore one of these:
//!
//! - **The content of a stored write.** This write was the newest stored one when the read began,
//!   or was stored since. Every read that begins later finds the same content, or newer content.
//! - **The content of an undecided write.** The read waits. If the write is then stored, the
//!   previous case applies; if it fails, the next case applies.
//! - **Any content, if a write of the block has failed since the read began.** The answer is not
//!   used. After a failure, and before the lock of the failed write is released, the sides are made
//!   to agree on one content of its range. The repeated read holds this lock, under which no
//!   undecided write exists.
//!
//! A block of an answer that differs from the content of the undecided write holds older content,
//! since devices store a block as a whole. No read has returned the newer content so far, because
//! such a read would still wait. If an undecided write has the same content as the block had
//! before, a read waits for its decision unnecessarily.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Instant;
use bimetal_rt::sync::WaitQueue;
use slab::Slab;

use super::queue::{Change, Ticket, Waiting};
use crate::extent_map::{Cut, ExtentMap};

/// A read in flight.
struct Reading {
    range: Range<u64>,
    /// True when a write that overlaps the read has failed since the read began.
    met_failure: Cell<bool>,
}

/// The undecided writes, and the reads in flight; see the module.
#[derive(Default)]
pub(super) struct Undecided {
    writes: RefCell<ExtentMap<Waiting>>,
    /// Times at which these writes were admitted, by their sequence numbers.
    admitted: RefCell<BTreeMap<u64, Instant>>,
    /// Reads that wait until a write has succeeded or failed, by the sequence number of that write.
    waiting: WaitQueue,
    reads: RefCell<Slab<Reading>>,
}

impl Undecided {
    /// Adds a write that was just admitted.
    ///
    /// # Panics
    /// When another undecided write overlaps it, which means that the range was not locked.
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
        let mut admitted = self.admitted.borrow_mut();
        admitted.insert(ticket.seq, ticket.admitted);
    }

    /// Returns the time at which the oldest undecided write was admitted.
    pub(super) fn oldest_admitted(&self) -> Option<Instant> {
        self.admitted.borrow().values().next().copied()
    }

    /// Removes a write that is now stored, and wakes the reads that wait until the write is
    /// decided.
    pub(super) fn stored(&self, ticket: &Ticket) {
        self.writes.borrow_mut().remove(ticket.range.clone());
        self.admitted.borrow_mut().remove(&ticket.seq);
        self.waiting.wake_at(ticket.seq);
    }

    /// Removes a write that has failed, after the sides were made to agree on the content of its
    /// range.
    pub(super) fn failed(&self, ticket: &Ticket) {
        for (_, reading) in &*self.reads.borrow() {
            if reading.range.start < ticket.range.end && ticket.range.start < reading.range.end {
                reading.met_failure.set(true);
            }
        }
        self.stored(ticket);
    }

    /// Registers a read. The read counts as in flight until the returned guard is dropped.
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

    /// Returns true when no undecided write overlaps the range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.writes.borrow().is_clear(range)
    }

    /// Returns the undecided writes that overlap a range, cut to the range, by ascending position.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<(Range<u64>, Waiting)> {
        let writes = self.writes.borrow();
        let cut = |(of, write): (Range<u64>, &Waiting)| {
            let common = of.start.max(range.start)..of.end.min(range.end);
            let inside = common.start - of.start..common.end - of.start;
            (common, write.cut(inside))
        };
        writes.overlapping(range).map(cut).collect()
    }

    /// Waits until the write is decided: stored or failed.
    pub(super) async fn until_decided(&self, write: &Ticket) {
        let is_decided = || {
            let writes = self.writes.borrow();
            let mut there = writes.overlapping(&write.range);
            !there.any(|(_, other)| other.ticket.seq == write.seq)
        };
        self.waiting.at(write.seq, is_decided).await;
    }
}

/// A read in flight, registered until this guard is dropped.
pub(super) struct ReadUnderWay<'u> {
    of: &'u Undecided,
    key: usize,
}

impl ReadUnderWay<'_> {
    /// Returns true when a write that overlaps the read has failed since the read began.
    pub(super) fn has_met_failure(&self) -> bool {
        self.of.reads.borrow()[self.key].met_failure.get()
    }
}

impl Drop for ReadUnderWay<'_> {
    fn drop(&mut self) {
        self.of.reads.borrow_mut().remove(self.key);
    }
}
