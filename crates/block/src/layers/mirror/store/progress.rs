//! Noticing that the device of a side gets on with what its store has asked of it.
//!
//! A side that takes long because its log is full and goes home meanwhile is not silent. Reads are
//! left out, because a device may answer them for ever and never another write.

use std::cell::Cell;
use std::rc::Rc;

use bimetal_rt::{Instant, Rt};

use crate::device::{Device, IoFuture, LocalFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{Op, Request};

/// A device that notes when it last completed a change or a flush.
pub(super) struct Noticed {
    rt: Rt,
    below: Rc<dyn Device>,
    last: Rc<Cell<Instant>>,
}

impl Noticed {
    /// Notes in `last` what `below` completes.
    pub(super) fn over(rt: &Rt, below: &Rc<dyn Device>, last: &Rc<Cell<Instant>>) -> Rc<Noticed> {
        Rc::new(Noticed {
            rt: rt.clone(),
            below: Rc::clone(below),
            last: Rc::clone(last),
        })
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
            let answer = self.below.submit(request).await;
            if answer.is_ok() {
                self.last.set(self.rt.now());
            }
            answer
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        self.below.close()
    }
}
