//! Detects progress on the device of a side while its store uses it, and refuses all changes by a
//! store that has ended.
//!
//! A side whose log is full and is being destaged is slow, but makes progress. A side whose full
//! log waits for another member is also treated as making progress, although its device has no
//! request. While a change or a flush is in flight, a completed read is not progress, because a
//! device can answer reads indefinitely without ever completing another write. Otherwise it is: a
//! store that cleans segments may read for long before it has something to write. An advisory
//! discard is neither: nothing waits for it, and a device may answer it at once and write nothing.
//! A store ends only when its discards have ended, too, as they may take effect late.
//!
//! A flush waits for the writes that are known to be late when it is asked for. A device that
//! serves a flush only after all writes before it, and nothing meanwhile, would stop at such a
//! flush for as long as one write is stalled. The flush itself would not end earlier on it.
//!
//! A store that has ended must change nothing on the side: another store can already be open on the
//! same side, and a late destage or checkpoint of the ended store would overwrite content of the
//! new store.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rt};

use crate::device::{Device, IoFuture, LocalFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// Maximum time for which a flush waits for late writes.
const HELD_MAX: Duration = Duration::from_secs(1);

/// The writes of a side that its device is late with.
#[derive(Default)]
pub(super) struct LateWrites {
    /// Number of writes that were late so far.
    begun: Cell<u64>,
    /// Numbers of those that have not ended.
    late: RefCell<BTreeSet<u64>>,
    ended: Event,
}

/// A write that is late until this guard is dropped.
pub(super) struct LateWrite<'l> {
    of: &'l LateWrites,
    number: u64,
}

impl Drop for LateWrite<'_> {
    fn drop(&mut self) {
        self.of.late.borrow_mut().remove(&self.number);
        self.of.ended.notify();
    }
}

impl LateWrites {
    /// Records that a write is late until the returned guard is dropped.
    pub(super) fn begin(&self) -> LateWrite<'_> {
        let number = self.begun.replace(self.begun.get() + 1);
        self.late.borrow_mut().insert(number);
        LateWrite { of: self, number }
    }

    /// Waits until the writes have ended that are late now, for [`HELD_MAX`] at most. Those that
    /// are late from now on do not count: under load, there may always be one.
    async fn until_over(&self, rt: &Rt) {
        let next = self.begun.get();
        let is_over = || {
            self.late
                .borrow()
                .first()
                .is_none_or(|first| *first >= next)
        };
        if !is_over() {
            // A flush is a request like others: the device must be able to fail it.
            let _ = rt.timeout(HELD_MAX, self.ended.until(is_over)).await;
        }
    }
}

/// Wrapper of a device that records when the device last completed a change or a flush, and that
/// can refuse all further changes.
pub(super) struct Noticed {
    rt: Rt,
    below: Rc<dyn Device>,
    last: Cell<Instant>,
    /// True while the store waits for something other than the device, so that the device is not
    /// considered silent.
    is_held_up: Cell<bool>,
    /// Number of changes in flight.
    changes: Cell<usize>,
    /// Number of changes and flushes in flight.
    demanded: Cell<usize>,
    pub(super) late_writes: Rc<LateWrites>,
    /// True once changes are refused.
    over: Cell<bool>,
    ended: Event,
}

/// A change in flight, counted until this guard is dropped.
struct Change<'n>(&'n Noticed);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.changes.set(self.0.changes.get() - 1);
        self.0.ended.notify();
    }
}

/// A request in flight, counted in a cell until this guard is dropped.
struct Counted<'n>(&'n Cell<usize>);

impl Counted<'_> {
    fn one_more(count: &Cell<usize>) -> Counted<'_> {
        count.set(count.get() + 1);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Guard that marks a wait of the store for something other than the device.
pub(super) struct HeldUp<'n>(&'n Noticed);

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        self.0.is_held_up.set(false);
        self.0.note();
    }
}

impl Noticed {
    /// Wraps the device `below` to record the changes and flushes that it completes.
    pub(super) fn over(rt: &Rt, below: &Rc<dyn Device>) -> Rc<Noticed> {
        Rc::new(Noticed {
            rt: rt.clone(),
            below: Rc::clone(below),
            last: Cell::new(Instant::ZERO),
            is_held_up: Cell::new(false),
            changes: Cell::new(0),
            demanded: Cell::new(0),
            late_writes: Rc::default(),
            over: Cell::new(false),
            ended: Event::new(),
        })
    }

    /// Returns the time of the last progress: the device completed a change or a flush, or a read
    /// while none of these was in flight, or `note` was called. While the store waits for something
    /// other than the device, returns the present time.
    pub(super) fn last(&self) -> Instant {
        match self.is_held_up.get() {
            true => self.rt.now(),
            false => self.last.get(),
        }
    }

    /// Marks the store as waiting for something other than the device, until the returned guard is
    /// dropped.
    pub(super) fn hold_up(&self) -> HeldUp<'_> {
        self.is_held_up.set(true);
        HeldUp(self)
    }

    /// Records that the device makes progress now.
    pub(super) fn note(&self) {
        self.last.set(self.rt.now());
    }

    /// Refuses all further changes, and waits until the changes in flight have ended.
    pub(super) async fn end_changes(&self) {
        self.over.set(true);
        self.ended.until(|| self.changes.get() == 0).await;
    }

    /// Records the start of a change.
    ///
    /// # Errors
    /// `Closed` when changes are refused.
    fn begin_change(&self) -> Result<Change<'_>, IoError> {
        if self.over.get() {
            return Err(IoError::Closed);
        }
        self.changes.set(self.changes.get() + 1);
        Ok(Change(self))
    }
}

impl Device for Noticed {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if matches!(request.op, Op::Read | Op::Extents) {
            return IoFuture::new(async move {
                let answer = self.below.submit(request).await;
                if answer.is_ok() && self.demanded.get() == 0 {
                    self.note();
                }
                answer
            });
        }
        if request.op == Op::Discard && request.flags.advisory {
            return IoFuture::new(async move {
                let _change = self.begin_change()?;
                self.below.submit(request).await
            });
        }
        IoFuture::new(async move {
            let _demanded = Counted::one_more(&self.demanded);
            if request.op == Op::Flush {
                self.late_writes.until_over(&self.rt).await;
            }
            let changes = request.op.changes_content();
            let _change = changes.then(|| self.begin_change()).transpose()?;
            let answer = self.below.submit(request).await;
            if answer.is_ok() {
                self.note();
            }
            answer
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bimetal_rt::{Payload, VirtualOptions};

    use super::*;
    use crate::BLOCK_BYTES;
    use crate::layers::fault::{Fault, FaultPlan};
    use crate::media::memory::MemoryDevice;
    use crate::request::Flags;

    /// A store that reads for long, because it cleans, is not silent. A device that answers reads
    /// but no write is.
    #[test]
    fn a_read_is_progress_unless_a_change_waits() {
        const S: Duration = Duration::from_secs(1);
        let rt = Rt::virtual_time(VirtualOptions::default());
        rt.block_on(async {
            let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(&rt, 1 << 20));
            let fault = Fault::new(&rt, memory, FaultPlan::default(), 1);
            let control = fault.control();
            let device: Rc<dyn Device> = Rc::new(fault);
            let noticed = Noticed::over(&rt, &device);
            let read = async || {
                let answer = noticed.submit(Request::read(0, BLOCK_BYTES)).await;
                answer.expect("memory does not fail");
            };
            for waiting in [Op::Write, Op::Flush] {
                rt.sleep(S).await;
                read().await;
                assert_eq!(noticed.last(), rt.now());

                control.set_delay(waiting, 2 * S);
                let data = Payload::from(rt.pool().copy_of(&[1; BLOCK_BYTES as usize]));
                let demanded = match waiting {
                    Op::Write => Request::write(0, data, Flags::NONE),
                    _ => Request::flush(),
                };
                let (began, of) = (rt.now(), Rc::clone(&noticed));
                let demanded = rt.spawn(async move { of.submit(demanded).await });
                rt.sleep(S).await;
                read().await;
                assert!(noticed.last() <= began, "{} waits", waiting.name());
                demanded.await.expect("memory does not fail");
                assert_eq!(noticed.last(), rt.now());
                control.set_delay(waiting, Duration::ZERO);
            }
            // Nothing waits for an advisory discard, and its end says nothing about writes.
            control.set_delay(Op::Discard, 2 * S);
            let advice = Request::without_data(Op::Discard, 0, BLOCK_BYTES, Flags::ADVISORY);
            let of = Rc::clone(&noticed);
            let advice = rt.spawn(async move { of.submit(advice).await });
            rt.sleep(S).await;
            read().await;
            let last = rt.now();
            assert_eq!(noticed.last(), last);
            let ended = Rc::clone(&noticed);
            let ended = rt.spawn(async move { ended.end_changes().await });
            assert!(rt.timeout(S / 2, ended).await.is_err(), "it takes effect");
            advice.await.expect("memory does not fail");
            assert_eq!(noticed.last(), last);
            noticed.end_changes().await;
        });
    }
}
