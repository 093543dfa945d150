//! Planted bugs of a mirror in use. Their effects become visible while the volume is open or after
//! the next power cut.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::layers::mirror::Mirror;
use bimetal_block::range_set::RangeSet;
use bimetal_block::request::{IoResult, Op, Reply, Request};
use bimetal_block::{Device, Geometry, IoFuture};
use bimetal_rt::{Rng, Rt};

use super::super::stack::SideStack;
use super::{Bug, Plant, Planted};

/// Wraps the device of a side in a bug that reorders or drops its writes.
pub(super) fn bad_side(rt: &Rt, plant: Plant, below: Rc<dyn Device>) -> Rc<dyn Device> {
    Rc::new(Planted(Rc::new(BadSide {
        rt: rt.clone(),
        plant,
        below,
        late: RefCell::new(RangeSet::new()),
        rng: RefCell::new(rt.rng("plant")),
    })))
}

/// Wraps the mirror in a bug that gives clients wrong answers.
pub(super) fn bad_mirror(
    rt: &Rt,
    plant: Plant,
    mirror: &Mirror,
    sides: &Rc<Vec<SideStack>>,
    below: Rc<dyn Device>,
) -> Rc<dyn Device> {
    Rc::new(BadMirror {
        rt: rt.clone(),
        plant,
        mirror: mirror.clone(),
        sides: Rc::clone(sides),
        below,
        next_side: Cell::new(0),
    })
}

struct BadSide {
    rt: Rt,
    plant: Plant,
    below: Rc<dyn Device>,
    /// Ranges of writes that were acknowledged but are applied later. A newer write can overtake
    /// such a write.
    late: RefCell<RangeSet>,
    rng: RefCell<Rng>,
}

impl Bug for BadSide {
    fn below(&self) -> &dyn Device {
        &*self.below
    }

    async fn run(self: Rc<Self>, request: Request) -> IoResult {
        let range = request.offset..request.end();
        // The bug reorders or drops only writes of data. The superblock is in the first 64 KiB, so
        // writes there reach the device unchanged.
        let data = request.op == Op::Write && request.offset >= 64 << 10;
        let strikes = data && !request.flags.fua && self.rng.borrow_mut().chance(0.1);
        if !strikes || !self.late.borrow().is_clear(&range) {
            return self.below.submit(request).await;
        }
        if self.plant == Plant::AppliesOutOfOrder {
            self.late.borrow_mut().insert(range.clone());
            let state = Rc::clone(&self);
            let late = async move {
                state.rt.sleep(Duration::from_millis(15)).await;
                // The write has been acknowledged already, so no caller could receive its error.
                let _ = state.below.submit(request).await;
                state.late.borrow_mut().remove(range);
            };
            self.rt.spawn(late).detach();
        }
        Ok(Reply::Done)
    }
}

struct BadMirror {
    rt: Rt,
    plant: Plant,
    mirror: Mirror,
    sides: Rc<Vec<SideStack>>,
    below: Rc<dyn Device>,
    next_side: Cell<usize>,
}

impl BadMirror {
    async fn read_lagging(&self, mut request: Request) -> IoResult {
        let status = self.mirror.status();
        let lags = |side: &usize| status.sides[*side].waiting_bytes > 0;
        let Some(side) = (0..self.sides.len()).find(lags) else {
            return self.below.submit(request).await;
        };
        let side = &self.sides[side];
        let Some(home) = side.data_offset() else {
            return self.below.submit(request).await;
        };
        request.offset += home;
        side.device.submit(request).await
    }

    async fn acknowledge_early(&self, request: Request) -> IoResult {
        let status = self.mirror.status();
        let full = status.exposed_bytes_max.is_some_and(|max| {
            status.exposed_bytes + request.len > max || self.plant != Plant::AcknowledgesBeyondBound
        });
        let below = Rc::clone(&self.below);
        let task = self.rt.spawn(async move { below.submit(request).await });
        if full {
            task.detach();
            self.rt.sleep(Duration::from_micros(500)).await;
            return Ok(Reply::Done);
        }
        task.await
    }
}

impl Device for BadMirror {
    fn geometry(&self) -> &Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        self.next_side.set(self.next_side.get() + 1);
        match (self.plant, request.op) {
            (Plant::ServesLagging, Op::Read) => IoFuture::new(self.read_lagging(request)),
            (Plant::AcknowledgesBeyondBound | Plant::AcknowledgesBeforeStored, Op::Write) => {
                IoFuture::new(self.acknowledge_early(request))
            }
            (Plant::SkipsFlush, Op::Flush) => IoFuture::ready(Ok(Reply::Done)),
            _ => self.below.submit(request),
        }
    }
}
