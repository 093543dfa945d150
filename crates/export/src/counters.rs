//! What is counted of requests, the same on every way to a device.

use std::cell::Cell;

use bimetal_block::{Figure, FigureVisitor, Op};

/// The requests of an export, or of a block device of this machine.
#[derive(Default)]
pub(crate) struct RequestCounters {
    /// Those handed to the device, by operation.
    pub(crate) by_op: [Cell<u64>; Op::ALL.len()],
    pub(crate) read_bytes: Cell<u64>,
    pub(crate) written_bytes: Cell<u64>,
    /// Those that the device has failed.
    pub(crate) failed: Cell<u64>,
    /// Those that were not handed to it.
    pub(crate) refused: Cell<u64>,
}

impl RequestCounters {
    /// Gives the figures of `part`, where these operations can be asked for.
    pub(crate) fn figures(&self, part: &str, ops: &[Op], out: &mut dyn FigureVisitor) {
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
            out.figure(part, name, Figure::Counter(count));
        }
        for (name, counter) in [
            ("read_bytes", &self.read_bytes),
            ("written_bytes", &self.written_bytes),
            ("requests_failed", &self.failed),
            ("requests_refused", &self.refused),
        ] {
            out.figure(part, name, Figure::Counter(counter.get()));
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get().wrapping_add(amount));
}
