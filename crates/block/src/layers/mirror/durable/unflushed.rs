//! The changes of a device that no good flush has covered: of each range the newest, with its data
//! or, for zeroes and discards, without.

use std::ops::Range;

use bimetal_rt::Payload;

use crate::extent_map::{Cut, ExtentMap};
use crate::request::{Flags, Op, Request};

/// A change that has completed, or a part of one.
#[derive(Clone, Debug)]
pub(super) struct Change {
    op: Op,
    flags: Flags,
    payload: Payload,
    /// Its number in the order of completion.
    number: u64,
    /// Flushes that had failed before it was written, the last time if it was written again.
    failures_before: u64,
}

impl Cut for Change {
    fn cut(&self, range: Range<u64>) -> Change {
        let payload = match self.op {
            Op::Write => self.payload.slice(range.start as usize..range.end as usize),
            _ => Payload::empty(),
        };
        Change { payload, ..*self }
    }
}

impl Change {
    /// The change that a request makes.
    pub(super) fn of(request: &Request) -> Change {
        Change {
            op: request.op,
            flags: request.flags,
            payload: request.payload.clone(),
            number: 0,
            failures_before: 0,
        }
    }

    /// The same with its number in the order of completion.
    pub(super) fn numbered(self, number: u64) -> Change {
        Change { number, ..self }
    }

    /// The same, written after so many failed flushes.
    pub(super) fn begun_after(self, failures_before: u64) -> Change {
        Change {
            failures_before,
            ..self
        }
    }

    /// What it does.
    pub(super) fn op(&self) -> Op {
        self.op
    }

    /// Bytes of its data; 0 for zeroes and discards.
    pub(super) fn data_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Its data.
    pub(super) fn into_payload(self) -> Payload {
        self.payload
    }

    /// The request that makes it in its range.
    pub(super) fn request(&self, range: Range<u64>) -> Request {
        let (offset, len) = (range.start, range.end - range.start);
        match self.op {
            Op::Write => Request::write(offset, self.payload.clone(), self.flags),
            op => Request::without_data(op, offset, len, self.flags),
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Unflushed {
    changes: ExtentMap<Change>,
    data_bytes: u64,
}

impl Unflushed {
    /// Bytes of data that are kept.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Parts that the changes are in.
    pub(super) fn parts(&self) -> usize {
        self.changes.len()
    }

    /// A change has completed: it replaces what was kept of its range.
    pub(super) fn note(&mut self, range: Range<u64>, change: Change) {
        self.forget(range.clone());
        self.data_bytes += change.data_bytes();
        self.changes.insert(range, change);
    }

    /// What was kept of a range is not needed any more.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        for (_, change) in self.changes.remove(range) {
            self.data_bytes -= change.data_bytes();
        }
    }

    /// The changes up to a number are durable.
    pub(super) fn release(&mut self, number: u64) {
        let durable = |change: &Change| change.number <= number;
        if self.changes.iter().all(|(_, change)| durable(change)) {
            *self = Unflushed::default();
            return;
        }
        let durable = self.changes.iter().filter(|(_, change)| durable(change));
        let durable: Vec<Range<u64>> = durable.map(|(range, _)| range).collect();
        durable.into_iter().for_each(|range| self.forget(range));
    }

    /// The ranges that were written before the last of so many failed flushes, in order.
    pub(super) fn suspects(&self, failures: u64) -> Vec<Range<u64>> {
        let suspect = |change: &Change| change.failures_before < failures;
        let suspects = self.changes.iter().filter(|(_, change)| suspect(change));
        suspects.map(|(range, _)| range).collect()
    }

    /// What of a range was written before the last of so many failed flushes.
    pub(super) fn suspects_in(
        &self,
        range: &Range<u64>,
        failures: u64,
    ) -> Vec<(Range<u64>, Change)> {
        let mut parts = self.parts_in(range);
        parts.retain(|(_, change)| change.failures_before < failures);
        parts
    }

    /// What is kept of a range, in order, cut to it.
    pub(super) fn parts_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, Change)> {
        let cut = |(whole, change): (Range<u64>, &Change)| {
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            let inside = part.start - whole.start..part.end - whole.start;
            (part, change.cut(inside))
        };
        self.changes.overlapping(range).map(cut).collect()
    }
}
