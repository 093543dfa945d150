//! Making the changes of one side durable. Every change and every flush of the side's device goes
//! through this module, whether the log, the destager, a checkpoint, a page or a superblock
//! requests it.
//!
//! A flush that fails may have dropped any part of the changes that were not durable, and the
//! device reports this only once: the page cache of Linux marks pages that it could not write as
//! clean, so that the next flush succeeds although the content is lost. This module therefore
//! remembers a failure until it is repaired, and keeps every change that no successful flush has
//! covered in memory. After a failure, all of these changes are written again and the device is
//! flushed again. Until that flush has succeeded, every flush fails, whichever caller requests it.
//! The memory is bounded: a change that would exceed the bound waits for a flush.
//!
//! The repair must never make content older: it writes the newest content of a range, under a lock
//! that every change of the same range also holds. A change that failed is not kept, since no
//! caller relies on it; in its range, the earlier content is written again.

#[cfg(test)]
mod tests;
mod unflushed;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::sync::{Event, Semaphore};
use bimetal_rt::{Instant, Payload, Rt};

use self::unflushed::{Change, Unflushed};
use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::range_lock::RangeLock;
use crate::request::{BLOCK_BYTES, Extent, IoResult, Op, Reply, Request};

/// Maximum number of bytes of changes kept in memory for one device.
const UNFLUSHED_BYTES_MAX: u64 = 64 << 20;
/// Fraction of the buffer memory, given as a divisor, to which the changes kept for one device are
/// limited. Clients need buffers as well.
const SHARE_OF_MEMORY: u64 = 4;
/// Maximum number of changes that are written again in parallel.
const WRITES_AGAIN_MAX: usize = 16;

/// Reason why no flush can succeed at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// A flush has failed. All changes that it may have dropped are kept, and must be written
    /// again.
    Mendable(IoError),
    /// A flush has failed before any flush had succeeded: it may have dropped content that was
    /// written before the device was opened, of which no copy is kept. Only opening the side again
    /// resolves this.
    Unknown(IoError),
}

/// A device on which a successful flush covers everything written before it; see the module
/// documentation.
pub(super) struct Durable {
    rt: Rt,
    below: Rc<dyn Device>,
    bytes_max: u64,
    unflushed: RefCell<Unflushed>,
    /// Locks of the ranges that are being changed or written again.
    ranges: Rc<RangeLock>,
    /// Semaphore in which changes wait for room, in order of arrival.
    room: Rc<Semaphore>,
    /// Number of bytes of data in the admitted changes in flight.
    in_flight_bytes: Cell<u64>,
    /// Changes in flight on the device. Key: the number of flushes that had failed when a change
    /// began. Value: the number of changes that began then.
    in_flight: RefCell<BTreeMap<u64, usize>>,
    moved: Event,
    /// Number of completed changes. Each change that completes increments it, and the new value is
    /// the number of that change.
    completed: Cell<u64>,
    /// Number of failed flushes.
    failures: Cell<u64>,
    failure: Cell<Option<Failure>>,
    /// Time of the first failure that is not repaired yet, and time of the last failure.
    failing_since: Cell<Option<Instant>>,
    failed_at: Cell<Option<Instant>>,
    /// True until a flush has succeeded since the device was opened.
    unproven: Cell<bool>,
    /// Semaphore that admits one flush at a time. If two flushes overlapped, one flush could
    /// succeed because the other flush has consumed the error.
    flushing: Rc<Semaphore>,
    /// Number of flushes begun, from which each flush gets its number.
    flushes: Cell<u64>,
    /// Number of the last flush that has ended, with its outcome.
    last_flush: Cell<(u64, Result<(), IoError>)>,
    /// Number of interruptions of the path to the device that have been handled.
    interruptions: Cell<Option<u64>>,
    rewritten_bytes: Cell<u64>,
}

/// Room reserved for the data of a change; released when this guard is dropped.
struct Room<'d>(&'d Durable, u64);

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let bytes = &self.0.in_flight_bytes;
        bytes.set(bytes.get() - self.1);
        self.0.moved.notify();
    }
}

/// A change in flight on the device, registered until this guard is dropped.
struct InFlight<'d> {
    durable: &'d Durable,
    failures_before: u64,
}

impl InFlight<'_> {
    fn begin(durable: &Durable) -> InFlight<'_> {
        let failures_before = durable.failures.get();
        let mut in_flight = durable.in_flight.borrow_mut();
        *in_flight.entry(failures_before).or_default() += 1;
        InFlight {
            durable,
            failures_before,
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        let mut in_flight = self.durable.in_flight.borrow_mut();
        let count = in_flight.get_mut(&self.failures_before);
        let count = count.expect("a change in flight is counted");
        *count -= 1;
        if *count == 0 {
            in_flight.remove(&self.failures_before);
        }
        drop(in_flight);
        self.durable.moved.notify();
    }
}

/// Guard of a flush that the device has not answered. Dropping the guard records the flush as
/// failed, unless the guard was disarmed.
struct Unanswered<'d>(Option<&'d Durable>);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(durable) = self.0 {
            durable.note_failure(IoError::Timeout);
        }
    }
}

impl Durable {
    /// Wraps the device `below`. From now on, every change must go through the returned device,
    /// which makes changes durable.
    pub(super) fn over(rt: &Rt, below: Rc<dyn Device>) -> Durable {
        let share = rt.pool().region_bytes() as u64 / SHARE_OF_MEMORY;
        // If the buffer pool has no region, buffers come from the heap and are not limited.
        let share = if share == 0 { u64::MAX } else { share };
        Durable::bounded(rt, below, UNFLUSHED_BYTES_MAX.min(share))
    }

    /// Wraps a device as [`over`](Self::over) does, with at most `bytes_max` bytes of data kept.
    fn bounded(rt: &Rt, below: Rc<dyn Device>, bytes_max: u64) -> Durable {
        Durable {
            rt: rt.clone(),
            bytes_max,
            unflushed: RefCell::default(),
            ranges: RangeLock::new(),
            room: Semaphore::new(1),
            in_flight_bytes: Cell::new(0),
            in_flight: RefCell::default(),
            moved: Event::new(),
            completed: Cell::new(0),
            failures: Cell::new(0),
            failure: Cell::new(None),
            failing_since: Cell::new(None),
            failed_at: Cell::new(None),
            unproven: Cell::new(true),
            flushing: Semaphore::new(1),
            flushes: Cell::new(0),
            last_flush: Cell::new((0, Ok(()))),
            interruptions: Cell::new(below.interruptions()),
            rewritten_bytes: Cell::new(0),
            below,
        }
    }

    /// Drops all kept changes. The device may have been replaced, or may hold an older copy of its
    /// content, so the changes must not be written to it again. No request must be in flight.
    pub(super) fn forget(&self) {
        *self.unflushed.borrow_mut() = Unflushed::default();
        self.failure.set(None);
        self.failed_at.set(None);
        self.unproven.set(true);
        self.interruptions.set(self.below.interruptions());
        self.moved.notify();
    }

    /// Prepares for reading the content of the device again. When this succeeds, everything written
    /// to the device since the last call of [`forget`](Self::forget) is durable on it, except for
    /// content of which no copy was kept.
    ///
    /// # Errors
    /// When a failed flush cannot be repaired now. The caller must not read in this case, because
    /// the content that it reads could still be lost.
    pub(super) async fn settle(&self) -> Result<(), IoError> {
        let flushed = self.flush().await;
        match self.failure.get() {
            // The failed flush may have dropped content of which no copy was kept. This no longer
            // matters, because the caller reads the earlier content again.
            Some(Failure::Unknown(_)) => {
                self.failure.set(None);
                Ok(())
            }
            Some(Failure::Mendable(_)) | None => flushed,
        }
    }

    /// Reports the statistics of the device under `part`, together with the statistics of its side.
    pub(super) fn statistics(&self, part: &str, out: &mut dyn StatisticVisitor) {
        let unflushed_bytes = self.unflushed.borrow().data_bytes() as f64;
        out.statistic(part, "unflushed_bytes", Statistic::Gauge(unflushed_bytes));
        let failures = Statistic::Counter(self.failures.get());
        out.statistic(part, "failed_flushes", failures);
        let since = self
            .failing_since
            .get()
            .filter(|_| self.failure.get().is_some());
        for (name, since) in [
            ("flush_failing_seconds", since),
            ("since_failed_flush_seconds", self.failed_at.get()),
        ] {
            if let Some(since) = since {
                let seconds = self.rt.now().ns_since(since) as f64 / 1e9;
                out.statistic(part, name, Statistic::Gauge(seconds));
            }
        }
        let again = Statistic::Counter(self.rewritten_bytes.get());
        out.statistic(part, "rewritten_bytes", again);
    }

    fn note_failure(&self, error: IoError) {
        self.failures.set(self.failures.get() + 1);
        if self.failure.get().is_none() {
            self.failing_since.set(Some(self.rt.now()));
        }
        self.failed_at.set(Some(self.rt.now()));
        let unknown = self.unproven.get();
        self.failure.set(Some(match unknown {
            true => Failure::Unknown(error),
            false => Failure::Mendable(error),
        }));
    }

    /// Makes durable every change that completed before the call.
    async fn flush(&self) -> Result<(), IoError> {
        let before = self.flushes.get();
        let _one = self.flushing.acquire(1).await;
        let (number, outcome) = self.last_flush.get();
        if number > before {
            // The last flush began after this call, so it covers all changes that this call has to
            // make durable.
            return outcome;
        }
        let number = self.flushes.get() + 1;
        self.flushes.set(number);
        let outcome = self.flush_and_rewrite().await;
        self.last_flush.set((number, outcome));
        self.moved.notify();
        outcome
    }

    /// Flushes the device. If the flush fails, or if an earlier failure is not repaired yet, all
    /// changes that are not durable are written again, and the device is then flushed.
    async fn flush_and_rewrite(&self) -> Result<(), IoError> {
        self.note_interruption();
        if self.failure.get().is_none() && self.flush_below().await.is_ok() {
            return Ok(());
        }
        if let Some(Failure::Unknown(error)) = self.failure.get() {
            return Err(error);
        }
        self.write_all_again().await?;
        self.flush_below().await
    }

    /// Records a failure if the path to the device was interrupted, since content that was not
    /// durable may have been lost.
    fn note_interruption(&self) {
        let now = self.below.interruptions();
        if self.interruptions.replace(now) != now {
            self.note_failure(IoError::Transport);
        }
    }

    async fn flush_below(&self) -> Result<(), IoError> {
        let covered = self.completed.get();
        let mut unanswered = Unanswered(Some(self));
        let answer = self.below.submit(Request::flush()).await;
        unanswered.0 = None;
        let failures = self.failures.get();
        self.note_interruption();
        if let Err(error) = answer {
            self.note_failure(error);
            return Err(error);
        }
        if self.failures.get() > failures {
            return Err(IoError::Transport);
        }
        self.unflushed.borrow_mut().release(covered);
        self.failure.set(None);
        self.unproven.set(false);
        Ok(())
    }

    /// Writes again all changes that began before the last failure and are not durable.
    async fn write_all_again(&self) -> Result<(), IoError> {
        loop {
            let suspects = self.unflushed.borrow().suspects(self.failures.get());
            if suspects.is_empty() {
                if !self.older_are_in_flight() {
                    return Ok(());
                }
                self.moved.until(|| !self.older_are_in_flight()).await;
            }
            for some in suspects.chunks(WRITES_AGAIN_MAX) {
                let writes = some.iter().map(|range| self.write_again(range.clone()));
                let written = futures_util::future::join_all(writes).await;
                written.into_iter().collect::<Result<(), IoError>>()?;
            }
        }
    }

    /// Returns true while changes are in flight that began before the last failure, since this
    /// failure may have dropped a part of their content.
    fn older_are_in_flight(&self) -> bool {
        let in_flight = self.in_flight.borrow();
        let oldest = in_flight.keys().next();
        oldest.is_some_and(|failures_before| *failures_before < self.failures.get())
    }

    /// Writes again the parts of a range that a failure may have dropped. Parts that newer changes
    /// have replaced are not written.
    async fn write_again(&self, range: Range<u64>) -> Result<(), IoError> {
        let _range = self.ranges.lock(range.clone()).await;
        let failures = self.failures.get();
        let parts = self.unflushed.borrow().suspects_in(&range, failures);
        for (part, change) in parts {
            self.below.submit(change.request(part.clone())).await?;
            let bytes = self.rewritten_bytes.get() + (part.end - part.start);
            self.rewritten_bytes.set(bytes);
            let mut unflushed = self.unflushed.borrow_mut();
            unflushed.note(part, change.begun_after(failures));
        }
        Ok(())
    }

    fn has_room(&self, bytes: u64) -> bool {
        let unflushed = self.unflushed.borrow();
        let held = unflushed.data_bytes() + self.in_flight_bytes.get();
        let fits = held == 0 || held + bytes <= self.bytes_max;
        // Zeroes and discards have no data, but each takes an entry in memory, which is counted as
        // a block.
        fits && (unflushed.parts() as u64) < self.bytes_max.div_ceil(BLOCK_BYTES)
    }

    /// Admits a change with `bytes` bytes of data. Waits until there is room for the data, and
    /// flushes if a flush can make room.
    ///
    /// # Errors
    /// The error of the flush.
    async fn admit(&self, bytes: u64) -> Result<Room<'_>, IoError> {
        if self.room.free() == 0 || !self.has_room(bytes) {
            let _turn = self.room.acquire(1).await;
            while !self.has_room(bytes) {
                if self.unflushed.borrow().parts() > 0 {
                    self.flush().await?;
                    continue;
                }
                // All kept changes are in flight, and a flush covers only changes that have
                // completed. So wait until a change has completed or there is room.
                let some = || self.has_room(bytes) || self.unflushed.borrow().parts() > 0;
                self.moved.until(some).await;
            }
            return Ok(self.take_room(bytes));
        }
        Ok(self.take_room(bytes))
    }

    fn take_room(&self, bytes: u64) -> Room<'_> {
        self.in_flight_bytes.set(self.in_flight_bytes.get() + bytes);
        Room(self, bytes)
    }

    async fn change(&self, request: Request) -> IoResult {
        let range = request.offset..request.end();
        let kept = (!request.flags.fua).then(|| Change::of(&request));
        let _room = match &kept {
            Some(change) => Some(self.admit(change.data_bytes()).await?),
            None => None,
        };
        let _range = self.ranges.lock(range.clone()).await;
        let in_flight = InFlight::begin(self);
        let answer = self.below.submit(request).await?;
        let number = self.completed.get() + 1;
        self.completed.set(number);
        let mut unflushed = self.unflushed.borrow_mut();
        match kept {
            Some(change) => {
                let change = change.begun_after(in_flight.failures_before);
                unflushed.note(range, change.numbered(number));
            }
            None => unflushed.forget(range),
        }
        Ok(answer)
    }

    /// Passes an advisory discard on. Nothing relies on the content of its range any more, so none
    /// is kept and none is written again: the discard takes no room, no flush has to cover it, and
    /// its failure concerns no other request.
    async fn advise(&self, request: Request) -> IoResult {
        let range = request.offset..request.end();
        let _range = self.ranges.lock(range.clone()).await;
        self.unflushed.borrow_mut().forget(range);
        self.below.submit(request).await
    }

    /// Reads the newest content of a range, even if a failed flush has lost this content on the
    /// device.
    async fn read(&self, request: Request) -> IoResult {
        let range = request.offset..request.end();
        loop {
            let failures = self.failures.get();
            let answer = self.below.submit(request.clone()).await;
            if self.failure.get().is_some() {
                return answer.map(|reply| Reply::Data(self.overlaid(&range, reply.into_data())));
            }
            if self.failures.get() == failures {
                return answer;
            }
            // During the read, the content was dropped and written again. This answer can hold
            // content of the time between these two events, so the read is repeated.
        }
    }

    fn overlaid(&self, range: &Range<u64>, found: Payload) -> Payload {
        let unflushed = self.unflushed.borrow();
        let mut data = Payload::empty();
        let mut position = range.start;
        let from_below = |part: Range<u64>| {
            let (from, to) = (part.start - range.start, part.end - range.start);
            found.slice(from as usize..to as usize)
        };
        for (part, change) in unflushed.parts_in(range) {
            data.append(from_below(position..part.start));
            position = part.end;
            let len = (part.end - part.start) as usize;
            match change.op() {
                Op::Write => data.append(change.into_payload()),
                Op::Discard if !self.geometry().discard_zeroes => data.append(from_below(part)),
                _ => data.push(self.rt.pool().zeroed(len)),
            }
        }
        data.append(from_below(position..range.end));
        data
    }

    /// Returns which parts of a range hold data. If a failed flush possibly changed where the
    /// device holds data, the whole range is reported as data.
    async fn extents(&self, request: Request) -> IoResult {
        let (range, len) = (request.offset..request.end(), request.len);
        let failures = self.failures.get();
        let answer = self.below.submit(request).await?;
        let same = self.failure.get().is_none() && self.failures.get() == failures;
        match same || self.unflushed.borrow().parts_in(&range).is_empty() {
            true => Ok(answer),
            false => Ok(Reply::Extents(vec![Extent { len, data: true }])),
        }
    }

    /// Returns true while a change is unflushed or in flight. If a flush then fails, the device may
    /// drop that change, and a read would return older content.
    fn may_drop(&self) -> bool {
        self.unflushed.borrow().parts() > 0 || !self.in_flight.borrow().is_empty()
    }
}

impl Device for Durable {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        match request.op {
            Op::Flush => IoFuture::new(async { self.flush().await.map(|()| Reply::Done) }),
            Op::Read if self.may_drop() => IoFuture::new(self.read(request)),
            Op::Extents if self.may_drop() => IoFuture::new(self.extents(request)),
            Op::Read | Op::Extents => self.below.submit(request),
            Op::Discard if request.flags.advisory => IoFuture::new(self.advise(request)),
            Op::Write | Op::Discard | Op::WriteZeroes => IoFuture::new(self.change(request)),
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }

    fn interruptions(&self) -> Option<u64> {
        self.below.interruptions()
    }
}
