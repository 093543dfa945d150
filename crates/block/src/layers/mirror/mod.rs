//! The hetero-mirror: one volume with a full copy on each of N sides of different kinds and speeds.
//! A request completes at the speed of the side that is fastest for it.
//!
//! Source: the hetero-mirroring paper. HM_READ is in `read.rs`, HM_WRITE and HM_DELAY_WRITE are in
//! `write.rs`. Where the paper leaves something open, this layer decides:
//!
//! - A write is acknowledged when the first side has it, as long as the *exposure* (acknowledged
//!   bytes that not all healthy sides hold) stays within its bounds in bytes and seconds. Past a
//!   bound, writes wait for all sides.
//! - Each side has its own queue. Overlapping writes apply on each side in the order in which they
//!   were admitted; a newer write replaces the overlapped content of older writes that still wait
//!   in the queue.
//! - A read goes to the fastest side that has the newest content of the range. Content that no side
//!   has yet is read from the queues in memory.
//! - A flush or a write with FUA must make all changes up to itself durable. It completes when one
//!   durable side has done this. Over bare devices, it completes when all healthy sides have done
//!   this.
//!
//! The mirror must never serve a block older than an acknowledged write, never let the exposure
//! exceed its bound, and never lose the record of a range that a side lacks.

mod admission;
mod block_set;
mod capacity;
mod changing;
mod config;
mod converting;
mod device_path;
mod digest;
mod durable;
mod exposure;
pub mod family;
mod flush;
mod flushes;
mod following;
pub mod formatting;
mod growing;
mod health;
mod lately;
mod lifecycle;
mod marking;
mod membership;
mod monitor;
mod opening;
mod operations;
mod out_of_sync;
mod pace;
pub mod planted;
mod preference;
mod queue;
mod quiesce;
mod read;
mod rebuild;
mod rejoin;
mod repair;
pub mod rescue;
mod scrub;
mod scrub_progress;
mod share;
mod shared;
mod shutdown;
mod side;
mod sides;
mod status;
mod store;
pub mod superblock;
mod undecided;
mod volume;
mod work;
mod write;
mod written_blocks;

use std::rc::Rc;

use bimetal_rt::Rt;

use crate::device::{Device, IoFuture, LocalFuture, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::{Op, Request};
use capacity::Capacity;
pub use capacity::Room;
pub use config::{
    Acknowledge, DrainName, ExposureConfig, Layouts, MirrorConfig, OnDegraded, OrderAfter,
    PolicyName, RebuildConfig, Silence,
};
pub use converting::Conversion;
pub use family::Force;
pub use lifecycle::AbsentReason;
use lifecycle::Life;
pub use opening::{
    OpenOptions, OpeningProgress, OpeningStep, SideToOpen, holds_side, sides_elsewhere,
};
pub use operations::OperationStatus;
pub use scrub_progress::ScrubStatus;
pub use share::RebuildRates;
use shared::{Parts, Shared, VolumeState};
use side::{Side, SideParts};
pub use status::{MirrorStatus, SideStatus};

/// Returns the upper bound in bytes that a log of `log_bytes` puts on the exposure of a volume: the
/// content that a side lacks must fit into the log of that side. The smallest bound of all sides
/// applies.
pub fn exposure_bytes_max_of_log(log_bytes: u64) -> u64 {
    store::backlog_bytes_max(log_bytes)
}

/// Returns the configuration line that names the given sides, such as `sides = ["a", "b"]`.
pub fn sides_line(sides: &[String]) -> String {
    let quoted: Vec<String> = sides.iter().map(|side| format!("\"{side}\"")).collect();
    format!("sides = [{}]", quoted.join(", "))
}

/// Device of a bare side (a side without superblock and log), as passed to [`Mirror::new`].
pub struct SideDevice {
    /// The name of the device.
    pub name: String,
    /// The device.
    pub device: Rc<dyn Device>,
    /// Offset in bytes at which the volume starts on the device.
    pub data_offset: u64,
    /// Whether the side lacks all content of the volume at the start; if false, it lacks nothing.
    pub out_of_sync: bool,
}

/// A mirrored volume; see the module. Cloning it returns another handle to the same volume.
#[derive(Clone)]
pub struct Mirror {
    shared: Rc<Shared>,
}

impl Mirror {
    /// Creates a volume of `size_bytes` over bare sides, which have no superblocks and no logs. For
    /// experiments and tests only: the volume cannot be opened again.
    ///
    /// # Panics
    /// When fewer than two sides are given, or when every side is out of sync.
    pub fn new(rt: &Rt, config: &MirrorConfig, sides: Vec<SideDevice>, size_bytes: u64) -> Mirror {
        assert!(sides.len() >= 2, "a mirror has at least two sides");
        let rules = config.rules();
        let geometries: Vec<Geometry> = sides.iter().map(|s| *s.device.geometry()).collect();
        let sides = sides.into_iter().enumerate().map(|(index, given)| {
            let durable = !config.ephemeral.contains(&given.name);
            let bare = SideParts {
                device: given.device,
                device_path: None,
                data_offset: given.data_offset,
                store: None,
                durable,
                life: if given.out_of_sync {
                    Life::Resyncing
                } else {
                    Life::WHOLE
                },
            };
            let side = Side::new(index, given.name, bare, rules, size_bytes);
            if given.out_of_sync {
                side.note_lack(0..size_bytes);
            }
            side
        });
        let parts = Parts {
            sides: sides.collect(),
            geometry: stacked(&geometries, size_bytes),
            superblocks: None,
            next_number: 0,
            capacity: Capacity::default(),
            state: VolumeState::Open,
        };
        Mirror::of(rt, config, parts)
    }

    fn of(rt: &Rt, config: &MirrorConfig, parts: Parts) -> Mirror {
        let shared = Shared::of(rt, config, parts);
        if shared.state.get() == VolumeState::Open {
            shared.start();
        }
        Mirror { shared }
    }

    /// Opens the volume on formatted sides, after a clean stop or after any crash. Unless the
    /// volume is forced open read-only, the members are durably marked dirty before this function
    /// returns. A dirty mark says that another side may be ahead.
    ///
    /// # Errors
    /// When the volume must not be opened. The message describes the state of the sides, the
    /// changes that may be lost, and how the operator can proceed.
    pub async fn open(
        rt: &Rt,
        config: &MirrorConfig,
        sides: Vec<SideToOpen>,
        options: &OpenOptions,
    ) -> Result<Mirror, OpenError> {
        let opened = opening::open(rt, config, sides, options).await?;
        let rules = config.rules();
        let is_side = |side: &&opening::OpenedSide| side.life != Life::Removed;
        let there = opened.sides.iter().filter(is_side);
        let there = there.filter_map(|side| side.device_path.as_ref());
        let geometries: Vec<Geometry> = there.map(|device_path| *device_path.geometry()).collect();
        let mut geometry = stacked(&geometries, opened.volume_bytes);
        geometry.writable &= !opened.read_only;
        geometry.limited_room = opened.capacity.room().is_some();
        let sides = opened.sides.into_iter().enumerate().map(|(index, found)| {
            let device = found
                .device_path
                .as_ref()
                .map(|device_path| Rc::clone(device_path) as Rc<dyn Device>);
            let place = SideParts {
                device: device.unwrap_or_else(|| side::missing(geometry)),
                device_path: found.device_path,
                data_offset: 0,
                store: found.store,
                durable: found.durable,
                life: found.life,
            };
            let side = Side::logged(index, found.name, place, rules, opened.volume_bytes);
            for range in found.out_of_sync.iter() {
                if side.is_healthy() {
                    // A healthy side lacks a range only if no side has the content of the range, so
                    // the range is recorded as corrupt.
                    side.out_of_sync.note_corrupt(range.clone());
                }
                side.note_lack(range);
            }
            side
        });
        let parts = Parts {
            sides: sides.collect(),
            geometry,
            superblocks: Some(opened.volume),
            next_number: opened.next_number,
            capacity: opened.capacity,
            state: if opened.read_only {
                VolumeState::Frozen
            } else {
                VolumeState::Open
            },
        };
        Ok(Mirror::of(rt, config, parts))
    }

    /// Returns the position, on the device of side `side`, of the newest content of the block at
    /// `offset`; `None` when the block consists of zeroes that are stored nowhere. For tests that
    /// access the device directly.
    pub fn place_on(&self, side: usize, offset: u64) -> Option<u64> {
        let side = &self.shared.sides[side];
        match side.store() {
            Some(store) => store.place_of(offset - offset % crate::BLOCK_BYTES),
            None => Some(side.data_offset + offset - offset % crate::BLOCK_BYTES),
        }
    }

    /// Returns whether the block at `offset` counts as content, on a volume whose room is limited.
    /// For tests, which compare this with what the volume reports as data.
    pub fn counts_as_content(&self, offset: u64) -> bool {
        self.shared.capacity.counts(offset)
    }

    /// Returns the current state of the volume and its sides.
    pub fn status(&self) -> MirrorStatus {
        self.shared.status()
    }

    /// Starts a scrub, which reads every written block of every healthy side and repairs corrupt
    /// blocks. If a scrub that was resumed when the volume was opened still runs, this call
    /// succeeds but starts no other scrub.
    ///
    /// # Errors
    /// One line with the reason: a scrub that was not resumed already runs, or the volume cannot be
    /// scrubbed.
    pub fn start_scrub(&self) -> Result<(), String> {
        self.shared.start_scrub()
    }

    /// Adds a device as a further side and rebuilds it. If `replaced` is given, the new side
    /// replaces that side once the rebuild is complete. Returns when the operation is durably
    /// recorded in the volume; `status` shows the rebuild. If the side has already been added, the
    /// device is left unchanged and only the request to replace is recorded again. Otherwise the
    /// old content of the device is lost; a side of another volume is overwritten only with
    /// `force`.
    ///
    /// # Errors
    /// One line with the reason why the side cannot be added.
    pub async fn add_side(
        &self,
        side: superblock::Candidate,
        replaced: Option<&str>,
        force: bool,
    ) -> Result<(), String> {
        self.shared.add_side(side, replaced, force).await
    }

    /// Repeats an earlier request to add or replace, for a side that the volume already has.
    /// Returns `None` when the volume has no side of this name; the caller must then call
    /// [`Mirror::add_side`] with the device of the side.
    pub async fn ask_again(
        &self,
        side: &str,
        replaced: Option<&str>,
    ) -> Option<Result<(), String>> {
        self.shared.ask_again_of(side, replaced).await
    }

    /// Returns the names of the sides that the volume will have when its unfinished operations are
    /// complete; `None` if they equal `named`. The configuration should name these sides.
    pub fn sides_to_name(&self, named: &[String]) -> Option<Vec<String>> {
        self.shared.sides_to_name(named)
    }

    /// Removes a side permanently. Content that only this side has is first copied to another side.
    ///
    /// # Errors
    /// One line with the reason why the side cannot be removed.
    pub async fn remove_side(&self, name: &str) -> Result<(), String> {
        self.shared.remove_side(name).await
    }

    /// Returns what the conversion of a side to another layout would do, without changing anything.
    /// Returns `None` if the side has the layout already, or is being converted to it.
    ///
    /// # Errors
    /// One line with the reason why the side cannot be converted, with the figures.
    pub async fn plan_conversion(
        &self,
        name: &str,
        to: superblock::SideKind,
    ) -> Result<Option<Conversion>, String> {
        self.shared.plan_conversion(name, to).await
    }

    /// Converts a side in place: formats its device for another layout, and rebuilds it from the
    /// other sides. Returns when the operation is durably recorded in the volume and the side is
    /// ejected; `status` shows the rebuild. All content of the device is lost.
    ///
    /// # Errors
    /// One line with the reason why the side cannot be converted. The side then stays as it is.
    pub async fn convert_side(&self, name: &str, to: superblock::SideKind) -> Result<(), String> {
        self.shared.convert_side(name, to).await
    }

    /// Returns the value that the key `layout` of the configuration should have when the unfinished
    /// operations are complete; `None` if `named` agrees with the sides.
    pub fn layouts_to_name(&self, named: &Layouts) -> Option<Layouts> {
        self.shared.layouts_to_name(named)
    }

    /// Grows the volume to the largest size for which its smallest side has room, and returns the
    /// new size. The added space reads as zeroes.
    ///
    /// # Errors
    /// One line with the reason why the volume cannot grow.
    pub async fn grow(&self) -> Result<u64, String> {
        self.shared.grow().await
    }

    /// Returns what caps the size of the volume: a side, its room, the sizes of its device and of
    /// its log, and how to get more, in a sentence. Returns `None` for a volume without
    /// superblocks.
    pub fn what_caps_the_size(&self) -> Option<String> {
        self.shared.what_caps_the_size()
    }

    /// Returns the minimum and maximum rate of rebuilds of the volume.
    pub fn rebuild_rates(&self) -> RebuildRates {
        self.shared.repair.share.rates()
    }

    /// Sets the minimum and maximum rate of rebuilds, including a running rebuild, until the volume
    /// is closed.
    ///
    /// # Errors
    /// One line that says which rate is invalid.
    pub fn set_rebuild_rates(&self, rates: RebuildRates) -> Result<(), String> {
        rates.check()?;
        self.shared.repair.share.set_rates(rates);
        self.shared.repair.following.wake_first();
        Ok(())
    }

    /// Cancels the running scrub; returns false when no scrub runs.
    pub fn cancel_scrub(&self) -> bool {
        self.shared.repair.scrub.cancel()
    }
}

/// Returns the geometry of a volume over these sides.
fn stacked(sides: &[Geometry], size_bytes: u64) -> Geometry {
    Geometry {
        size_bytes,
        // A discarded range reads as zeroes: on a side whose device does not guarantee this, the
        // discard is replaced by write-zeroes.
        discard_zeroes: true,
        // A logged side gains from a discard whatever its device does, and so does each device
        // that wants to be told.
        wants_discards: true,
        ..Geometry::stacked(sides)
    }
}

impl Device for Mirror {
    fn geometry(&self) -> &Geometry {
        self.shared.geometry.get()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        let shared = &self.shared;
        if let Err(error) = shared.geometry.get().check(&request) {
            return IoFuture::ready(Err(error));
        }
        IoFuture::new(async move {
            let _client = shared.repair.clients.enter();
            match request.op {
                Op::Read => shared.read(request).await,
                Op::Write | Op::Discard | Op::WriteZeroes => shared.change(request).await,
                Op::Flush => shared.flush().await,
                Op::Extents => shared.extents(request).await,
            }
        })
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async move {
            match self.shared.state.get() {
                VolumeState::Closed => return Ok(()),
                VolumeState::Frozen => {
                    self.shared.set_state(VolumeState::Closed);
                    self.shared.end_tasks().await;
                    return Ok(());
                }
                VolumeState::Open | VolumeState::ReadOnly | VolumeState::Stopped => {}
            }
            self.shared.stop().await?;
            match &self.shared.membership.superblocks {
                Some(volume) => self.shared.mark_clean(volume).await,
                None => Ok(()),
            }
        })
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        self.status().statistics(out);
        self.shared.statistics_of_sides(out);
    }
}
