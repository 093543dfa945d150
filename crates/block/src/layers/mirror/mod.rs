//! The hetero-mirror: one volume with a full copy on each of N unlike sides, which answers at the
//! speed of the side that answers first.
//!
//! Source: the hetero-mirroring paper. HM_READ is in `read.rs`, HM_WRITE and HM_DELAY_WRITE are in
//! `write.rs`. Where the paper leaves something open, this layer decides:
//!
//! - A write is acknowledged when the first side has it, as long as the *exposure* (acknowledged
//!   bytes that not all healthy sides hold) stays within its bounds in bytes and seconds. Past a
//!   bound, writes wait for all sides.
//! - Each side has its own queue. Overlapping writes apply on each side in the order in which they
//!   were admitted; a newer write replaces the older content under it that still waits in the
//!   queue.
//! - A read goes to the fastest side that has the newest content of the range, and to a queue in
//!   memory where no side has it.
//! - A flush, and a write with FUA, waits for the first durable side that is complete up to the
//!   boundary; over bare devices, for all healthy sides.
//!
//! The mirror must never serve a block older than an acknowledged write, never let the exposure
//! exceed its bound, and never forget that a side lacks something.

mod admission;
mod changing;
mod config;
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
mod lifecycle;
mod marking;
mod membership;
mod monitor;
mod opening;
mod operations;
mod out_of_sync;
mod pace;
mod preference;
mod queue;
mod quiesce;
mod read;
mod rebuild;
mod rejoin;
mod repair;
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

use std::rc::Rc;

use bimetal_rt::Rt;

use crate::device::{Device, IoFuture, LocalFuture, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::{Op, Request};
pub use config::{
    Acknowledge, DrainName, ExposureConfig, MirrorConfig, OnDegraded, PolicyName, RebuildConfig,
};
pub use family::Force;
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

/// Returns the bound in bytes that a side with a log of `log_bytes` sets to the exposure of its
/// volume: the content that one side lacks must fit into its log. The smallest bound of all sides
/// applies.
pub fn exposure_bytes_max_of_log(log_bytes: u64) -> u64 {
    store::backlog_bytes_max(log_bytes)
}

/// Returns the line of a configuration that names these sides.
pub fn sides_line(sides: &[String]) -> String {
    let quoted: Vec<String> = sides.iter().map(|side| format!("\"{side}\"")).collect();
    format!("sides = [{}]", quoted.join(", "))
}

/// A bare side, as passed to [`Mirror::new`].
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

/// A mirrored volume; see the module. A clone is another handle to the same volume.
#[derive(Clone)]
pub struct Mirror {
    shared: Rc<Shared>,
}

impl Mirror {
    /// Creates a volume of `size_bytes` over bare sides, without superblocks and logs. For
    /// experiments and tests only: the volume cannot be opened again.
    ///
    /// # Panics
    /// With fewer than two sides, or when every side is stale.
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

    /// Opens the volume on formatted sides, whatever happened before. The sides that count are
    /// marked active before this function returns.
    ///
    /// # Errors
    /// When the volume must not be opened. The message says in which state the sides are, which
    /// changes may be lost, and how the operator can proceed.
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
                    // A range that a side lacks although it counts is on no side, so it is known to
                    // be wrong there.
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
            state: if opened.read_only {
                VolumeState::Frozen
            } else {
                VolumeState::Open
            },
        };
        Ok(Mirror::of(rt, config, parts))
    }

    /// Returns the position on the device of side `side` of its newest content of the block at
    /// `offset`; `None` when the block is zeroes without a position. For tests that access the
    /// device directly.
    pub fn place_on(&self, side: usize, offset: u64) -> Option<u64> {
        let side = &self.shared.sides[side];
        match side.store() {
            Some(store) => store.place_of(offset - offset % crate::BLOCK_BYTES),
            None => Some(side.data_offset + offset - offset % crate::BLOCK_BYTES),
        }
    }

    /// Returns the current state of the volume and its sides.
    pub fn status(&self) -> MirrorStatus {
        self.shared.status()
    }

    /// Starts a scrub, which reads every written block of every healthy side and repairs corrupt
    /// blocks. A scrub that was resumed when the volume was opened, and still runs, is left as it
    /// is.
    ///
    /// # Errors
    /// One line that says why not: a scrub already runs, or the volume cannot be scrubbed.
    pub fn start_scrub(&self) -> Result<(), String> {
        self.shared.start_scrub()
    }

    /// Adds a device as a further side and rebuilds it. If `replaced` is given, the new side takes
    /// the place of that side once it is whole. Returns when the volume durably remembers the
    /// operation; `status` shows the rebuild. For a side that has already been added, only the
    /// request is repeated. The old content of the device is lost; a side of another volume is
    /// overwritten only with `force`.
    ///
    /// # Errors
    /// One line that says why not.
    pub async fn add_side(
        &self,
        side: superblock::Candidate,
        replaced: Option<&str>,
        force: bool,
    ) -> Result<(), String> {
        self.shared.add_side(side, replaced, force).await
    }

    /// Repeats a request to add or replace for a side that the volume has. Returns `None` when the
    /// volume has no side of this name; the caller must then call [`Mirror::add_side`] with its
    /// device.
    pub async fn ask_again(
        &self,
        side: &str,
        replaced: Option<&str>,
    ) -> Option<Result<(), String>> {
        self.shared.ask_again_of(side, replaced).await
    }

    /// Returns the sides that the volume will have when its operations are over, if they are not
    /// those in `named`. The configuration should name these sides.
    pub fn sides_to_name(&self, named: &[String]) -> Option<Vec<String>> {
        self.shared.sides_to_name(named)
    }

    /// Removes a side permanently, once another side has all content that is on it.
    ///
    /// # Errors
    /// One line that says why not.
    pub async fn remove_side(&self, name: &str) -> Result<(), String> {
        self.shared.remove_side(name).await
    }

    /// Grows the volume to the size for which its smallest side has room, and returns the new size.
    /// The space beyond the old size reads as zeroes.
    ///
    /// # Errors
    /// One line that says why not.
    pub async fn grow(&self) -> Result<u64, String> {
        self.shared.grow().await
    }

    /// Returns the rates of rebuilds of the volume.
    pub fn rebuild_rates(&self) -> RebuildRates {
        self.shared.repair.share.rates()
    }

    /// Sets the rates of rebuilds of the volume, including a running one, until the volume is
    /// closed.
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
        // A discard reads as zeroes, through write-zeroes where the device of a side does not
        // guarantee it.
        discard_zeroes: true,
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
