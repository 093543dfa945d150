//! Watching the progress of a side's device with the requests of its store, and the end of all of
//! them.
//!
//! A side that takes long because its log is full and is being destaged is not silent. Nor is a
//! side whose full log waits for another member: its device has no request. Reads do not count as
//! progress, because a device may answer reads for ever and never another write.
//!
//! A store that has ended must change nothing on the side any more: another store is opened over
//! it, and a late destage or a late checkpoint of the old one would overwrite what the new one
//! writes.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rt};

use crate::device::{Device, IoFuture, LocalFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// A device that notes when it last completed a change or a flush, and that can be told to take no
/// more changes.
pub(super) struct Noticed {
    rt: Rt,
    below: Rc<dyn Device>,
    last: Cell<Instant>,
    /// Number of changes in flight.
    is_held_up: Cell<bool>,
    /// Changes are refused from now on.
    changes: Cell<usize>,
    /// No change goes through any more.
    over: Cell<bool>,
    ended: Event,
}

/// A change in flight.
struct Change<'n>(&'n Noticed);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.changes.set(self.0.changes.get() - 1);
        self.0.ended.notify();
    }
}

/// A guard that marks the time in which the store waits for something other than the device.
pub(super) struct HeldUp<'n>(&'n Noticed);

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        self.0.is_held_up.set(false);
        self.0.note();
    }
}

impl Noticed {
    /// Wraps `below`, and notes the changes and flushes that `below` completes.
    pub(super) fn over(rt: &Rt, below: &Rc<dyn Device>) -> Rc<Noticed> {
        Rc::new(Noticed {
            rt: rt.clone(),
            below: Rc::clone(below),
            last: Cell::new(Instant::ZERO),
            is_held_up: Cell::new(false),
            changes: Cell::new(0),
            over: Cell::new(false),
            ended: Event::new(),
        })
    }

    /// Returns when the device last completed a change or a flush, or when the store last noted its
    /// progress; the present time while the store waits for something other than the device.
    pub(super) fn last(&self) -> Instant {
        match self.is_held_up.get() {
            true => self.rt.now(),
            false => self.last.get(),
        }
    }

    /// Marks the store as waiting for something other than the device, until the guard is dropped.
    pub(super) fn hold_up(&self) -> HeldUp<'_> {
        self.is_held_up.set(true);
        HeldUp(self)
    }

    /// Notes that the device makes progress.
    pub(super) fn note(&self) {
        self.last.set(self.rt.now());
    }

    /// Lets no further change through, and waits until those in flight have ended.
    pub(super) async fn end_changes(&self) {
        self.over.set(true);
        self.ended.until(|| self.changes.get() == 0).await;
    }

    /// Notes that a change begins.
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
            return self.below.submit(request);
        }
        IoFuture::new(async move {
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
