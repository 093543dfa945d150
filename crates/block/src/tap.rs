//! A tap on a device: notes every request while somebody records, so that what a served volume does
//! can be kept as a trace.
//!
//! Every device of an open stack has one. While nobody records it costs a look at one cell for each
//! request. It must never change a request, make one wait, or hold more than [`RECORDS_MAX`]: what
//! comes on top is dropped and counted. Whoever records takes the records away at his own pace;
//! when he has not come for [`LEASE`], the recording ends by itself, because he may be dead.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::{Instant, Rt};
use bimetal_trace::{Op as TraceOp, Record};

use crate::device::{Device, FigureVisitor, IoFuture, LocalFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// Records that wait to be taken, at most: 2 MiB of them.
pub const RECORDS_MAX: usize = 1 << 16;
/// A recording from which nothing was taken for this long has ended.
pub const LEASE: Duration = Duration::from_secs(10);
/// Bytes of a record, at most, as the formats of traces have it.
const LENGTH_BYTES_MAX: u64 = 4 << 30;

/// See the module.
pub struct Tap {
    rt: Rt,
    below: Rc<dyn Device>,
    /// Whether requests are noted.
    on: Cell<bool>,
    recording: RefCell<Option<Recording>>,
    /// Recordings begun so far, which is the number of the last one.
    begun: Cell<u64>,
}

struct Recording {
    since: Instant,
    last_taken: Instant,
    records: VecDeque<Record>,
    counts: Counts,
}

/// What a recording has seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Records noted, those taken included.
    pub noted: u64,
    /// Records that found no room.
    pub dropped: u64,
    /// Flushes and questions for extents, which have no place in a trace.
    pub others: u64,
}

/// Records that were taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// In the order of the requests. Times are since the recording began.
    pub records: Vec<Record>,
    /// Records that wait to be taken.
    pub left: usize,
    /// So far.
    pub counts: Counts,
    /// False once the recording was stopped.
    pub on: bool,
}

/// Another recording of the device is going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse;

impl Tap {
    /// A tap on `below` that notes nothing yet.
    pub fn new(rt: &Rt, below: Rc<dyn Device>) -> Tap {
        Tap {
            rt: rt.clone(),
            below,
            on: Cell::new(false),
            recording: RefCell::new(None),
            begun: Cell::new(0),
        }
    }

    /// Begins to note requests and returns the number of the recording.
    ///
    /// # Errors
    /// When another one is going on.
    pub fn start(&self) -> Result<u64, InUse> {
        let now = self.rt.now();
        let mut recording = self.recording.borrow_mut();
        if recording.as_ref().is_some_and(|r| !r.has_lapsed(now)) {
            return Err(InUse);
        }
        *recording = Some(Recording {
            since: now,
            last_taken: now,
            // All of it at once, so that no request pays for growing.
            records: VecDeque::with_capacity(RECORDS_MAX),
            counts: Counts::default(),
        });
        self.begun.set(self.begun.get() + 1);
        self.on.set(true);
        Ok(self.begun.get())
    }

    /// Takes up to `most` of the oldest records of recording `number`. A stopped recording is gone
    /// with its last record. `None` when it is gone.
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

    /// Stops recording `number`; what it has noted can still be taken. False when it is gone.
    pub fn stop(&self, number: u64) -> bool {
        let is_this = number == self.begun.get() && self.recording.borrow().is_some();
        if is_this {
            self.on.set(false);
        }
        is_this
    }

    /// Notes a request.
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

    /// A request longer than a record can be becomes several.
    fn note(&mut self, now: Instant, request: &Request) {
        let op = match request.op {
            Op::Read => TraceOp::Read,
            // Zeroes are content like any other.
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
        self.below.submit(request)
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }

    fn figures(&self, out: &mut dyn FigureVisitor) {
        self.below.figures(out);
    }
}
