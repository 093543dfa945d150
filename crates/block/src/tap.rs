//! A tap on a device: measures the latency of every request, and records every request while a
//! recording is active, so that the load of a served volume can be kept as a trace.
//!
//! Every device of an open stack has a tap. It must never change or delay a request, or hold more
//! than [`RECORDS_MAX`] records: further records are dropped and counted. The client of a recording
//! fetches the records at its own pace. If the client fetches none for [`LEASE`], the recording
//! ends automatically, because the client might have died.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::{Instant, Rt};
use bimetal_trace::{Op as TraceOp, Record};

use crate::device::{Device, IoFuture, LocalFuture, StatisticVisitor};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::latency::{Meter, Timed};
use crate::request::{BorrowedWrite, IoResult, Op, Request};

/// Maximum number of records that wait to be fetched by the client: 2 MiB of records.
pub const RECORDS_MAX: usize = 1 << 16;
/// Time without a call of [`Tap::take`] after which a recording ends.
pub const LEASE: Duration = Duration::from_secs(10);
/// Maximum length in bytes of the range of one record, given by the trace formats.
const LENGTH_BYTES_MAX: u64 = 4 << 30;

/// A device that forwards every request and can record it; see the module.
pub struct Tap {
    rt: Rt,
    below: Rc<dyn Device>,
    /// Whether requests are recorded.
    on: Cell<bool>,
    recording: RefCell<Option<Recording>>,
    /// Number of recordings started so far; the last recording has this number.
    begun: Cell<u64>,
    meter: Meter,
}

struct Recording {
    since: Instant,
    last_taken: Instant,
    records: VecDeque<Record>,
    counts: TapCounters,
}

/// Counters of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounters {
    /// Number of records stored, including records that the client has already fetched.
    pub noted: u64,
    /// Number of records dropped because the buffer was full.
    pub dropped: u64,
    /// Number of flushes and extents requests, which a trace cannot represent.
    pub others: u64,
}

/// Records that a client has fetched from a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Records in the order of the requests. Their times count from the start of the recording.
    pub records: Vec<Record>,
    /// Number of records that still wait to be fetched.
    pub left: usize,
    /// Counters of the recording so far.
    pub counts: TapCounters,
    /// False if the recording has been stopped.
    pub on: bool,
}

/// Error: another recording of the device is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse;

impl Tap {
    /// Creates a tap on `below` that does not record yet.
    pub fn new(rt: &Rt, below: Rc<dyn Device>) -> Tap {
        Tap {
            rt: rt.clone(),
            below,
            on: Cell::new(false),
            recording: RefCell::new(None),
            begun: Cell::new(0),
            meter: Meter::new(rt),
        }
    }

    /// Returns the number of requests so far if all of them are answered; `None` while there are
    /// requests in flight.
    pub fn answered(&self) -> Option<u64> {
        self.meter.answered()
    }

    /// Starts a recording and returns its number.
    ///
    /// # Errors
    /// When another recording is active.
    pub fn start(&self) -> Result<u64, InUse> {
        let now = self.rt.now();
        let mut recording = self.recording.borrow_mut();
        if recording.as_ref().is_some_and(|r| !r.has_lapsed(now)) {
            return Err(InUse);
        }
        *recording = Some(Recording {
            since: now,
            last_taken: now,
            // The buffer is allocated at full size, so that no request has to wait while it grows.
            records: VecDeque::with_capacity(RECORDS_MAX),
            counts: TapCounters::default(),
        });
        self.begun.set(self.begun.get() + 1);
        self.on.set(true);
        Ok(self.begun.get())
    }

    /// Removes and returns up to `most` of the oldest records of recording `number`. A stopped
    /// recording ends when its last record is removed. Returns `None` if the recording has ended.
    pub fn take(&self, number: u64, most: usize) -> Option<Taken> {
        let now = self.rt.now();
        let mut of_tap = self.recording.borrow_mut();
        let recording = of_tap.as_mut().filter(|r| !r.has_lapsed(now))?;
        if number != self.begun.get() {
            return None;
        }
        recording.last_taken = now;
        let count = recording.records.len().min(most);
        let taken = Taken {
            records: recording.records.drain(..count).collect(),
            left: recording.records.len(),
            counts: recording.counts,
            on: self.on.get(),
        };
        if !taken.on && taken.left == 0 {
            *of_tap = None;
        }
        Some(taken)
    }

    /// Stops recording `number`. Its remaining records can still be fetched. Returns false if the
    /// recording has already ended.
    pub fn stop(&self, number: u64) -> bool {
        let is_this = number == self.begun.get() && self.recording.borrow().is_some();
        if is_this {
            self.on.set(false);
        }
        is_this
    }

    /// Records a request.
    fn note(&self, request: &Request) {
        let now = self.rt.now();
        let mut of_tap = self.recording.borrow_mut();
        match of_tap.as_mut() {
            Some(recording) if !recording.has_lapsed(now) => recording.note(now, request),
            _ => {
                *of_tap = None;
                self.on.set(false);
            }
        }
    }
}

impl Recording {
    fn has_lapsed(&self, now: Instant) -> bool {
        now.since(self.last_taken) > LEASE
    }

    /// Records a request. A request whose range is too long for one record becomes several records.
    fn note(&mut self, now: Instant, request: &Request) {
        let op = match request.op {
            Op::Read => TraceOp::Read,
            // Written zeroes are content like any other data.
            Op::Write | Op::WriteZeroes => TraceOp::Write,
            Op::Discard => TraceOp::Trim,
            Op::Flush | Op::Extents => {
                self.counts.others += 1;
                return;
            }
        };
        let time_ns = now.ns_since(self.since);
        let (mut offset_bytes, end) = (request.offset, request.end());
        while offset_bytes < end {
            let length_bytes = (end - offset_bytes).min(LENGTH_BYTES_MAX);
            if self.records.len() >= RECORDS_MAX {
                self.counts.dropped += 1;
            } else {
                self.counts.noted += 1;
                self.records.push_back(Record {
                    time_ns,
                    op,
                    offset_bytes,
                    length_bytes,
                });
            }
            offset_bytes += length_bytes;
        }
    }
}

impl Device for Tap {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if self.on.get() {
            self.note(&request);
        }
        let (op, bytes) = (request.op, request.len);
        match self.below.submit(request) {
            IoFuture::Ready(result) => {
                if let Some(result) = &result {
                    self.meter.note_at_once(op, bytes, result);
                }
                IoFuture::Ready(result)
            }
            IoFuture::Boxed(pending) => {
                IoFuture::Timed(Timed::new(pending, self.meter.begin(op, bytes)))
            }
            // The device below has passed the request on as it is.
            IoFuture::Timed(timed) => {
                let metered = self.meter.begin(op, bytes);
                IoFuture::Timed(Timed::new(Box::pin(timed), metered))
            }
        }
    }

    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        // What is recorded must be submitted.
        if self.on.get() {
            return Err(request);
        }
        let (op, bytes) = (request.op, request.len);
        let result = self.below.try_answer(request)?;
        self.meter.note_at_once(op, bytes, &result);
        Ok(result)
    }

    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        if self.on.get() {
            return None;
        }
        let bytes = write.bytes.len() as u64;
        let result = self.below.try_write(write)?;
        self.meter.note_at_once(Op::Write, bytes, &result);
        Some(result)
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        self.below.statistics(out);
        out.latencies("", &self.meter);
    }
}
