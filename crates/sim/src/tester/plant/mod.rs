//! Planted bugs: each breaks one promise of the mirror from outside of it, so that the tester is
//! tested. None of them is a path in the code that ships: `live` wraps the mirror or a side in use,
//! `recovery` a side whose traces a later life finds.

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
    /// A mirror that acknowledges writes while the exposure is at its bound.
    AcknowledgesBeyondBound,
    /// A side that applies overlapping writes in the wrong order, now and then.
    AppliesOutOfOrder,
    /// A side that takes a write for replaced that was not, and drops it, now and then.
    DropsWrite,
    /// A mirror whose flush reaches no side.
    SkipsFlush,
    /// A mirror whose report of the exposure is a write behind the truth: it acknowledges before it
    /// counts.
    AcknowledgesBeforeStored,
    /// A side that acknowledges flushes and does none (T2).
    LiesAboutFlush,
    /// A side whose superblock never says that a peer may be ahead (T6).
    ForgetsActive,
    /// A side whose superblock never says that it is being rebuilt (T6).
    ForgetsRebuild,
    /// A side whose superblock never says that an epoch has begun (T7).
    ForgetsEpochs,
    /// A side that remembers only while it is in use what others lack: its map is never stored
    /// (T3).
    ForgetsMap,
    /// A side that is found with the checkpoint of an earlier life (T3).
    ForgetsCheckpoints,
    /// An opening that does not see the log of one side (T3).
    HidesLog,
    /// An opening that believes an entry of the log that is not whole (T3).
    ShortensEntry,
    /// A mirror that keeps no checksums (T11).
    ChecksNothing,
    /// A mirror that opens whatever is missing (T7).
    OpensRegardless,
    /// A side that does not flush its marks before it goes on (T2).
    UnorderedMarks,
}

impl Plant {
    /// All of them.
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

    /// The name on a command line.
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

    /// The classes that are on when it is looked for: those by default, or those that it takes.
    pub fn classes(self) -> Classes {
        match self {
            Plant::ChecksNothing => [Class::Rot, Class::LostWrites, Class::MisdirectedWrites]
                .into_iter()
                .collect(),
            Plant::ForgetsRebuild => [Class::Alone, Class::CrashInResync].into_iter().collect(),
            // Where all sides must have a change no side lags, and much of what is forgotten is not
            // missed. A deep queue only takes long.
            _ => {
                let hides =
                    |class: &Class| matches!(class, Class::AcknowledgeAll | Class::DeepQueue);
                let all = Classes::withstood();
                all.iter().filter(|class| !hides(class)).collect()
            }
        }
    }
}

/// Puts the bugs of a side over its device.
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

/// How a volume is started.
pub fn start(plant: Option<Plant>) -> How {
    match plant {
        Some(Plant::OpensRegardless) => How::Regardless,
        _ => How::Plain,
    }
}

/// Puts the bugs of a mirror over it.
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

/// A bug in the place of a device.
trait Bug {
    /// The device that it is planted over.
    fn below(&self) -> &dyn Device;

    /// Does something about a request.
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
