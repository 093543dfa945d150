//! Planted bugs, which test the tester: each breaks one promise of the mirror from outside. No
//! planted bug is a path in production code. `live` wraps the mirror or a side in use; `recovery`
//! wraps a side whose state a later life finds.

mod live;
mod recovery;

use std::rc::Rc;

use bimetal_block::layers::mirror::Mirror;
use bimetal_block::request::{IoResult, Request};
use bimetal_block::{Device, Geometry, IoFuture};
use bimetal_rt::Rt;
use serde::Serialize;

use super::classes::{Class, Classes};
use super::opening::How;
use super::stack::SideStack;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Plant {
    /// A mirror that reads from a side that lags.
    ServesLagging,
    /// A mirror that acknowledges writes although the exposure is at its bound.
    AcknowledgesBeyondBound,
    /// A side that applies overlapping writes in the wrong order, now and then.
    AppliesOutOfOrder,
    /// A side that now and then drops a write as if a newer write had replaced it.
    DropsWrite,
    /// A mirror whose flush reaches no side.
    SkipsFlush,
    /// A mirror that acknowledges a write before counting it, so its reported exposure is one write
    /// too low.
    AcknowledgesBeforeStored,
    /// A side that acknowledges flushes without flushing (T2).
    LiesAboutFlush,
    /// A side whose superblock never says that a peer may be ahead (T6).
    ForgetsActive,
    /// A side whose superblock never says that it is being rebuilt (T6).
    ForgetsRebuild,
    /// A side whose superblock never says that an epoch has begun (T7).
    ForgetsEpochs,
    /// A side whose dirty-region bitmap is never stored: it knows which regions its peers lack only
    /// while it is in use (T3).
    ForgetsMap,
    /// A side that never stores a checkpoint, so that a later life finds an earlier one (T3).
    ForgetsCheckpoints,
    /// An opening that does not see the log of one side (T3).
    HidesLog,
    /// An opening that accepts an incomplete entry of the log (T3).
    ShortensEntry,
    /// A mirror that keeps no checksums (T11).
    ChecksNothing,
    /// A mirror that opens even if needed sides are missing (T7).
    OpensRegardless,
    /// A side that ignores a flush directly after a superblock write: the mark in the superblock is
    /// not durable before later writes (T2).
    UnorderedMarks,
}

impl Plant {
    /// All planted bugs.
    pub const ALL: [Plant; 17] = [
        Plant::ServesLagging,
        Plant::AcknowledgesBeyondBound,
        Plant::AppliesOutOfOrder,
        Plant::DropsWrite,
        Plant::SkipsFlush,
        Plant::AcknowledgesBeforeStored,
        Plant::LiesAboutFlush,
        Plant::ForgetsActive,
        Plant::ForgetsRebuild,
        Plant::ForgetsEpochs,
        Plant::ForgetsMap,
        Plant::ForgetsCheckpoints,
        Plant::HidesLog,
        Plant::ShortensEntry,
        Plant::ChecksNothing,
        Plant::OpensRegardless,
        Plant::UnorderedMarks,
    ];

    /// Returns the name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Plant::ServesLagging => "serves-lagging",
            Plant::AcknowledgesBeyondBound => "acknowledges-beyond-bound",
            Plant::AppliesOutOfOrder => "applies-out-of-order",
            Plant::DropsWrite => "drops-write",
            Plant::SkipsFlush => "skips-flush",
            Plant::AcknowledgesBeforeStored => "acknowledges-before-stored",
            Plant::LiesAboutFlush => "lies-about-flush",
            Plant::ForgetsActive => "forgets-active",
            Plant::ForgetsRebuild => "forgets-rebuild",
            Plant::ForgetsEpochs => "forgets-epochs",
            Plant::ForgetsMap => "forgets-map",
            Plant::ForgetsCheckpoints => "forgets-checkpoints",
            Plant::HidesLog => "hides-log",
            Plant::ShortensEntry => "shortens-entry",
            Plant::ChecksNothing => "checks-nothing",
            Plant::OpensRegardless => "opens-regardless",
            Plant::UnorderedMarks => "unordered-marks",
        }
    }

    /// Returns the classes that are on while the tester searches for the bug: the default ones, or
    /// the ones that the bug needs.
    pub fn classes(self) -> Classes {
        match self {
            Plant::ChecksNothing => [Class::Rot, Class::LostWrites, Class::MisdirectedWrites]
                .into_iter()
                .collect(),
            Plant::ForgetsRebuild => [Class::Alone, Class::CrashInResync].into_iter().collect(),
            // If every side must have a change before its acknowledgement, no side lags, and much
            // of the forgotten data is not missed. A deep queue only takes long.
            _ => {
                let hides =
                    |class: &Class| matches!(class, Class::AcknowledgeAll | Class::DeepQueue);
                let all = Classes::withstood();
                all.iter().filter(|class| !hides(class)).collect()
            }
        }
    }
}

/// Wraps the device of a side in a planted bug, if this side has the bug.
pub fn in_side(rt: &Rt, plant: Plant, index: usize, below: Rc<dyn Device>) -> Rc<dyn Device> {
    if index != 1 && plant != Plant::ChecksNothing {
        return below;
    }
    match plant {
        Plant::AppliesOutOfOrder | Plant::DropsWrite => live::bad_side(rt, plant, below),
        Plant::LiesAboutFlush
        | Plant::ForgetsActive
        | Plant::ForgetsRebuild
        | Plant::ForgetsEpochs
        | Plant::ForgetsMap
        | Plant::ForgetsCheckpoints
        | Plant::HidesLog
        | Plant::ShortensEntry
        | Plant::ChecksNothing
        | Plant::UnorderedMarks => recovery::bad_side(rt, plant, below),
        Plant::ServesLagging
        | Plant::AcknowledgesBeyondBound
        | Plant::SkipsFlush
        | Plant::AcknowledgesBeforeStored
        | Plant::OpensRegardless => below,
    }
}

/// Returns the way in which a volume is opened.
pub fn start(plant: Option<Plant>) -> How {
    match plant {
        Some(Plant::OpensRegardless) => How::Regardless,
        _ => How::Plain,
    }
}

/// Wraps the mirror in a planted bug, if it is a bug of the mirror.
pub fn over_mirror(
    rt: &Rt,
    plant: Plant,
    mirror: &Mirror,
    sides: &Rc<Vec<SideStack>>,
    below: Rc<dyn Device>,
) -> Rc<dyn Device> {
    match plant {
        Plant::ServesLagging
        | Plant::AcknowledgesBeyondBound
        | Plant::SkipsFlush
        | Plant::AcknowledgesBeforeStored => live::bad_mirror(rt, plant, mirror, sides, below),
        _ => below,
    }
}

/// A bug that handles the requests of a device.
trait Bug {
    /// Returns the device under the bug.
    fn below(&self) -> &dyn Device;

    /// Handles a request.
    async fn run(self: Rc<Self>, request: Request) -> IoResult;
}

/// A device with a bug.
struct Planted<B>(Rc<B>);

impl<B: Bug> Device for Planted<B> {
    fn geometry(&self) -> &Geometry {
        self.0.below().geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        IoFuture::new(Rc::clone(&self.0).run(request))
    }
}
