//! The changes of a device that no successful flush has covered: for each range the newest change,
//! with its data (zeroes and discards have none).

use std::ops::Range;

use bimetal_rt::Payload;

use crate::extent_map::{Cut, ExtentMap};
use crate::request::{Flags, Op, Request};

/// A completed change of a range, or a part of such a change.
#[derive(Clone, Debug)]
pub(super) struct Change {
    op: Op,
    flags: Flags,
    payload: Payload,
    /// Position of the change in the order of completion.
    number: u64,
    /// Number of flushes that had failed before the change was last written.
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
    /// Creates the change that a request makes.
    pub(super) fn of(request: &Request) -> Change {
        Change {
            op: request.op,
            flags: request.flags,
            payload: request.payload.clone(),
            number: 0,
            failures_before: 0,
        }
    }

    /// Returns this change with its position in the order of completion set to `number`.
    pub(super) fn numbered(self, number: u64) -> Change {
        Change { number, ..self }
    }

    /// Returns this change with `failures_before` set: the number of flushes that had failed before
    /// the change was last written.
    pub(super) fn begun_after(self, failures_before: u64) -> Change {
        Change {
            failures_before,
            ..self
        }
    }

    /// Returns the operation.
    pub(super) fn op(&self) -> Op {
        self.op
    }

    /// Returns the number of bytes of data; 0 for zeroes and discards.
    pub(super) fn data_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Returns the data.
    pub(super) fn into_payload(self) -> Payload {
        self.payload
    }

    /// Returns the request that applies the change to `range`.
    pub(super) fn request(&self, range: Range<u64>) -> Request {
        let (offset, len) = (range.start, range.end - range.start);
        match self.op {
            Op::Write => Request::write(offset, self.payload.clone(), self.flags),
            op => Request::without_data(op, offset, len, self.flags),
        }
    }
}

/// Changes that are not durable; see the module documentation.
#[derive(Default)]
pub(super) struct Unflushed {
    changes: ExtentMap<Change>,
    data_bytes: u64,
}

impl Unflushed {
    /// Returns the number of bytes of data that are kept.
    pub(super) fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the number of separate parts that are kept.
    pub(super) fn parts(&self) -> usize {
        self.changes.len()
    }

    /// Keeps a completed change, which replaces the kept changes of its range.
    pub(super) fn note(&mut self, range: Range<u64>, change: Change) {
        self.forget(range.clone());
        self.data_bytes += change.data_bytes();
        self.changes.insert(range, change);
    }

    /// Drops the kept changes of a range.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        for (_, change) in self.changes.remove(range) {
            self.data_bytes -= change.data_bytes();
        }
    }

    /// Drops the changes with numbers up to `number`, which are durable now.
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

    /// Returns, in ascending order, the ranges of the kept changes that the most recent failed
    /// flush possibly dropped. These are the changes whose last write began before that flush
    /// failed. `failures` is the number of failed flushes so far.
    pub(super) fn suspects(&self, failures: u64) -> Vec<Range<u64>> {
        let suspect = |change: &Change| change.failures_before < failures;
        let suspects = self.changes.iter().filter(|(_, change)| suspect(change));
        suspects.map(|(range, _)| range).collect()
    }

    /// Returns the kept changes in a range that the most recent failed flush possibly dropped.
    /// These are the changes whose last write began before that flush failed. `failures` is the
    /// number of failed flushes so far.
    pub(super) fn suspects_in(
        &self,
        range: &Range<u64>,
        failures: u64,
    ) -> Vec<(Range<u64>, Change)> {
        let mut parts = self.parts_in(range);
        parts.retain(|(_, change)| change.failures_before < failures);
        parts
    }

    /// Returns the kept changes in a range, in ascending order and cut to the range.
    pub(super) fn parts_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, Change)> {
        let cut = |(whole, change): (Range<u64>, &Change)| {
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            let inside = part.start - whole.start..part.end - whole.start;
            (part, change.cut(inside))
        };
        self.changes.overlapping(range).map(cut).collect()
    }
}
