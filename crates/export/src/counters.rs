//! Counters of requests, used by all network protocols and local block devices.

use std::cell::Cell;

use bimetal_block::latency::Meter;
use bimetal_block::{BorrowedWrite, Device, IoResult, Op, Request, Statistic, StatisticVisitor};
use bimetal_rt::Rt;

/// Request counters of an export, or of a block device of the local machine. Requests are handed to
/// the device through them.
pub(crate) struct RequestCounters {
    /// Requests handed to the device, by operation.
    by_op: [Cell<u64>; Op::ALL.len()],
    read_bytes: Cell<u64>,
    written_bytes: Cell<u64>,
    /// Requests that the device has completed with an error.
    failed: Cell<u64>,
    /// Invalid requests that were refused without submitting them to the device.
    pub(crate) refused: Cell<u64>,
    meter: Meter,
}

impl RequestCounters {
    /// Creates the counters of an export without requests.
    pub(crate) fn new(rt: &Rt) -> RequestCounters {
        RequestCounters {
            by_op: Default::default(),
            read_bytes: Cell::new(0),
            written_bytes: Cell::new(0),
            failed: Cell::new(0),
            refused: Cell::new(0),
            meter: Meter::new(rt),
        }
    }

    /// Submits a request to the device.
    pub(crate) async fn submit(&self, device: &dyn Device, request: Request) -> IoResult {
        let (op, bytes) = (request.op, request.len);
        add(&self.by_op[op as usize], 1);
        let metered = self.meter.begin(op, bytes);
        let result = device.submit(request).await;
        metered.end(&result);
        self.count_result(op, bytes, &result);
        result
    }

    /// See [`Device::try_answer`].
    pub(crate) fn try_answer(
        &self,
        device: &dyn Device,
        request: Request,
    ) -> Result<IoResult, Request> {
        let (op, bytes) = (request.op, request.len);
        let result = device.try_answer(request)?;
        self.count_at_once(op, bytes, &result);
        Ok(result)
    }

    /// See [`Device::try_write`].
    pub(crate) fn try_write(
        &self,
        device: &dyn Device,
        write: BorrowedWrite<'_>,
    ) -> Option<IoResult> {
        let bytes = write.bytes.len() as u64;
        let result = device.try_write(write)?;
        self.count_at_once(Op::Write, bytes, &result);
        Some(result)
    }

    fn count_at_once(&self, op: Op, bytes: u64, result: &IoResult) {
        add(&self.by_op[op as usize], 1);
        self.meter.note_at_once(op, bytes, result);
        self.count_result(op, bytes, result);
    }

    fn count_result(&self, op: Op, bytes: u64, result: &IoResult) {
        match (result, op) {
            (Err(_), _) => add(&self.failed, 1),
            (Ok(_), Op::Read) => add(&self.read_bytes, bytes),
            (Ok(_), Op::Write) => add(&self.written_bytes, bytes),
            (Ok(_), _) => {}
        }
    }

    /// Reports the counters and latencies as statistics of the part `part`. The counters by
    /// operation are reported only for the operations in `ops`.
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
        out.latencies(part, &self.meter);
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get().wrapping_add(amount));
}
