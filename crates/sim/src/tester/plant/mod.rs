//! Planted bugs, which test the tester: each breaks one promise of the mirror.
//!
//! Most wrap a device: `live` wraps the mirror or a side in use; `recovery` wraps a side so that a
//! later life finds a wrong state. No device can imitate an error of cleaning or of the journal, so
//! the bugs of logged sides are in the code of the mirror ([`planted`]). Shipped code contains none
//! of them.

mod live;
mod recovery;

use std::rc::Rc;

use bimetal_block::layers::mirror::Mirror;
use bimetal_block::layers::mirror::planted::{self, Bug as MirrorBug};
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
    /// Planted bug: the mirror serves reads from a side although the side lacks acknowledged
    /// writes.
    ServesLagging,
    /// A mirror that acknowledges a write early although the exposure has already reached its
    /// bound.
    AcknowledgesBeyondBound,
    /// A side that applies some overlapping writes in the wrong order.
    AppliesOutOfOrder,
    /// A side that drops some writes, as if a newer write had replaced them.
    DropsWrite,
    /// A mirror whose flush reaches no side.
    SkipsFlush,
    /// A mirror that acknowledges a write after 0.5 ms even if no side has stored the write. The
    /// mirror does not count the write as exposed yet, so the reported exposure is too low.
    AcknowledgesBeforeStored,
    /// A side that acknowledges flushes without flushing (T2).
    LiesAboutFlush,
    /// Planted bug: the superblock of the side never records the state `Dirty`. This state says
    /// that another side can be ahead of this side (T6).
    ForgetsActive,
    /// Planted bug: the superblock of a side never records that the side is being rebuilt (T6).
    ForgetsRebuild,
    /// A side whose superblock never records the start of an epoch (T7).
    ForgetsEpochs,
    /// A side that never stores its dirty-region bitmap. At the end of each life, the side loses
    /// the record of the regions that the other sides lack (T3).
    ForgetsMap,
    /// A side that acknowledges writes of checkpoints but does not store them. A later life finds
    /// an outdated checkpoint (T3).
    ForgetsCheckpoints,
    /// An opening that does not find the log of one side (T3).
    HidesLog,
    /// An opening that replays an incomplete entry of a log (T3).
    ShortensEntry,
    /// A mirror that does not use checksums (T11).
    ChecksNothing,
    /// A mirror that opens even if it needs a missing side (T7).
    OpensRegardless,
    /// A side that ignores a flush directly after a superblock write, so the state in the
    /// superblock is not durable before later writes (T2).
    UnorderedMarks,
    /// A bug of logged sides in the code of the mirror.
    Mirror(MirrorBug),
}

impl Plant {
    /// The planted bugs that a wrapped device can imitate.
    const WRAPPED: [Plant; 17] = [
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

    /// Returns all planted bugs.
    pub fn all() -> impl Iterator<Item = Plant> {
        let in_mirror = MirrorBug::ALL.into_iter().map(Plant::Mirror);
        Plant::WRAPPED.into_iter().chain(in_mirror)
    }

    /// Returns the name of the bug on a command line.
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
            Plant::Mirror(bug) => bug.name(),
        }
    }

    /// Returns the fault classes with which to search for the bug. For some bugs these are the
    /// classes that the bug needs. For all other bugs these are the default classes, without two
    /// classes that hinder the search.
    pub fn classes(self) -> Classes {
        match self {
            Plant::ChecksNothing => [Class::Rot, Class::LostWrites, Class::MisdirectedWrites]
                .into_iter()
                .collect(),
            Plant::ForgetsRebuild => [Class::Alone, Class::CrashInResync].into_iter().collect(),
            Plant::Mirror(bug) => {
                let of_all = [
                    Class::CrashInCommit,
                    Class::Torn,
                    Class::Kill,
                    Class::Alone,
                    Class::CutOpening,
                ];
                let small = bug.is_of_small_map().then_some(Class::SmallMap);
                let limited = bug.is_of_limited_room().then_some(Class::LimitedRoom);
                of_all.into_iter().chain(small).chain(limited).collect()
            }
            // With `AcknowledgeAll`, no healthy side lags behind, so the volume rarely needs the
            // data that a bug has lost, and the tester rarely finds the bug. `DeepQueue` only makes
            // the search slower.
            _ => {
                let hides =
                    |class: &Class| matches!(class, Class::AcknowledgeAll | Class::DeepQueue);
                let all = Classes::withstood();
                all.iter().filter(|class| !hides(class)).collect()
            }
        }
    }
}

/// Wraps the device of side number `index` in a planted bug, if the bug affects this side.
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
        | Plant::OpensRegardless
        | Plant::Mirror(_) => below,
    }
}

/// Plants the bug in the code of the mirror for the current thread, if it is a bug there. Removes
/// any other bug from that code.
pub fn in_mirror(plant: Option<Plant>) {
    planted::plant(match plant {
        Some(Plant::Mirror(bug)) => Some(bug),
        _ => None,
    });
}

/// Returns the way to open a volume: ordinary, or forced for the bug [`Plant::OpensRegardless`].
pub fn start(plant: Option<Plant>) -> How {
    match plant {
        Some(Plant::OpensRegardless) => How::Regardless,
        _ => How::Plain,
    }
}

/// Wraps the mirror in a planted bug, if the bug affects the mirror rather than a side.
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
