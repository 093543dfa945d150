//! Noticing that the device of a side gets on with what its store has asked of it, and when it has
//! ended all of it.
//!
//! A side that takes long because its log is full and goes home meanwhile is not silent. Nor is one
//! whose full log waits for another member: its device has been asked for nothing. Reads are left
//! out, because a device may answer them for ever and never another write.
//!
//! A store that is over must change nothing any more: another one is opened over the same side, and
//! what the old one still brings home, or lets go of, would fall on what the new one writes.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rt};

use crate::device::{Device, IoFuture, LocalFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// A device that notes when it last completed a change or a flush, until it takes no more changes.
pub(super) struct Noticed {
    rt: Rt,
    below: Rc<dyn Device>,
    last: Cell<Instant>,
    /// The store waits for something that is not the device.
    is_held_up: Cell<bool>,
    /// Changes in flight.
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

/// A time in which the store waits for something that is not the device.
pub(super) struct HeldUp<'n>(&'n Noticed);

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        self.0.is_held_up.set(false);
        self.0.note();
    }
}

impl Noticed {
    /// Notes what `below` completes.
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

    /// When the device last completed something, or the store found that it does, or that it has
    /// asked the device for nothing.
    pub(super) fn last(&self) -> Instant {
        match self.is_held_up.get() {
            true => self.rt.now(),
            false => self.last.get(),
        }
    }

    /// The store waits for something that is not the device, until this is dropped.
    pub(super) fn hold_up(&self) -> HeldUp<'_> {
        self.is_held_up.set(true);
        HeldUp(self)
    }

    /// The device gets on.
    pub(super) fn note(&self) {
        self.last.set(self.rt.now());
    }

    /// Lets no further change through, and waits until those that went through have ended.
    pub(super) async fn end_changes(&self) {
        self.over.set(true);
        self.ended.until(|| self.changes.get() == 0).await;
    }

    /// Notes that a change begins.
    ///
    /// # Errors
    /// `Closed` when it must not.
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
