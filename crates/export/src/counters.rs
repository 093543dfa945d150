//! Counters of requests, used by all network protocols and local block devices.

use std::cell::Cell;

use bimetal_block::{Op, Statistic, StatisticVisitor};

/// Request counters of an export, or of a block device of the local machine.
#[derive(Default)]
pub(crate) struct RequestCounters {
    /// Requests handed to the device, by operation.
    pub(crate) by_op: [Cell<u64>; Op::ALL.len()],
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    /// Requests that the device has completed with an error.
    pub(crate) failed: Cell<u64>,
    /// Invalid requests that were refused without submitting them to the device.
    pub(crate) refused: Cell<u64>,
}

impl RequestCounters {
    /// Reports the counters as statistics of the part `part`. The counters by operation are
    /// reported only for the operations in `ops`.
    pub(crate) fn statistics(&self, part: &str, ops: &[Op], out: &mut dyn StatisticVisitor) {
        for op in ops {
            let name = match op {
                Op::Read => "reads",
                Op::Write => "writes",
                Op::Flush => "flushes",
                Op::Discard => "discards",
                Op::WriteZeroes => "write_zeroes",
                Op::Extents => "extents",
            };
            let count = self.by_op[*op as usize].get();
            out.statistic(part, name, Statistic::Counter(count));
        }
        for (name, counter) in [
            ("read_bytes", &self.read_bytes),
            ("written_bytes", &self.written_bytes),
            ("requests_failed", &self.failed),
            ("requests_refused", &self.refused),
        ] {
            out.statistic(part, name, Statistic::Counter(counter.get()));
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get().wrapping_add(amount));
}
