//! The hetero-mirror: one volume with a full copy on each of N unlike sides, which answers at the
//! speed of whichever side answers first.
//!
//! Source: the hetero-mirroring paper. HM_READ is in `read.rs`, HM_WRITE and HM_DELAY_WRITE are in
//! `write.rs`, with what the paper leaves open decided here:
//!
//! - A write is acknowledged when the first side has it, as long as the *exposure* (acknowledged
//!   bytes that not all healthy sides hold) stays within its bounds in bytes and seconds. Past a
//!   bound, writes wait for all sides.
//! - Each side has its own queue. Overlapping writes apply on each side in the order in which they
//!   were admitted; a newer write replaces what waits under it.
//! - Reads go to the side that reads fastest among those that have the newest content of the range,
//!   and to a queue in memory where no side has it.
//! - A flush, and a write with FUA, waits for all healthy sides.
//!
//! It must never serve a block older than an acknowledged write, never let the exposure pass its
//! bound, and never forget that a side lacks something.

mod admission;
mod attend;
mod changing;
mod config;
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
mod way;
mod work;
mod write;

use std::rc::Rc;

use bimetal_rt::Rt;

use crate::device::{Device, FigureVisitor, IoFuture, LocalFuture};
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
use side::{Place, Side};
pub use status::{MirrorStatus, SideStatus};

/// The bound that a side with a log of `log_bytes` sets to the exposure of its volume, in bytes:
/// what one side lacks must fit into its log. The least of all sides counts.
pub fn exposure_bytes_max_of_log(log_bytes: u64) -> u64 {
    store::backlog_bytes_max(log_bytes)
}

/// The line of a configuration that names these sides.
pub fn sides_line(sides: &[String]) -> String {
    let quoted: Vec<String> = sides.iter().map(|side| format!("\"{side}\"")).collect();
    format!("sides = [{}]", quoted.join(", "))
}

/// One side as it is handed to [`Mirror::new`].
pub struct SideDevice {
    /// The name of the device.
    pub name: String,
    /// The device.
    pub device: Rc<dyn Device>,
    /// Where the volume starts on it, in bytes.
    pub data_offset: u64,
    /// What the side lacks at the start: nothing, or everything.
    pub stale: bool,
}

/// See the module. Cloning gives another handle to the same volume.
#[derive(Clone)]
pub struct Mirror {
    shared: Rc<Shared>,
}

impl Mirror {
    /// A volume of `size_bytes` over bare sides, without superblocks and logs: for experiments
    /// and tests. It cannot be opened again.
    ///
    /// # Panics
    /// With fewer than two sides, or when every side is stale.
    pub fn new(rt: &Rt, config: &MirrorConfig, sides: Vec<SideDevice>, size_bytes: u64) -> Mirror {
        assert!(sides.len() >= 2, "a mirror has at least two sides");
        let rules = config.rules();
        let geometries: Vec<Geometry> = sides.iter().map(|s| *s.device.geometry()).collect();
        let sides = sides.into_iter().enumerate().map(|(index, given)| {
            let durable = !config.ephemeral.contains(&given.name);
            let bare = Place {
                device: given.device,
                way: None,
                data_offset: given.data_offset,
                store: None,
                durable,
                life: if given.stale {
                    Life::Resyncing
                } else {
                    Life::WHOLE
                },
            };
            let side = Side::new(index, given.name, bare, rules, size_bytes);
            if given.stale {
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

    /// The volume on formatted sides, after whatever happened before. The sides that count are
    /// marked as in use before this returns.
    ///
    /// # Errors
    /// When the volume must not be opened: the message says what was found, what may be lost, and
    /// what can be done.
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
        let there = there.filter_map(|side| side.way.as_ref());
        let geometries: Vec<Geometry> = there.map(|way| *way.geometry()).collect();
        let mut geometry = stacked(&geometries, opened.volume_bytes);
        geometry.writable &= !opened.read_only;
        let sides = opened.sides.into_iter().enumerate().map(|(index, found)| {
            let device = found
                .way
                .as_ref()
                .map(|way| Rc::clone(way) as Rc<dyn Device>);
            let place = Place {
                device: device.unwrap_or_else(|| side::missing(geometry)),
                way: found.way,
                data_offset: 0,
                store: found.store,
                durable: found.durable,
                life: found.life,
            };
            let side = Side::logged(index, found.name, place, rules, opened.volume_bytes);
            for range in found.stale.iter() {
                if side.is_healthy() {
                    // What a side lacks that counts, nobody has: it is known to be wrong there.
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

    /// Where on the device of a side the newest content is that this side has of the block at
    /// `offset`: for tests that look past the mirror. `None` for zeroes without a place.
    pub fn place_on(&self, side: usize, offset: u64) -> Option<u64> {
        let side = &self.shared.sides[side];
        match side.store() {
            Some(store) => store.place_of(offset - offset % crate::BLOCK_BYTES),
            None => Some(side.data_offset + offset - offset % crate::BLOCK_BYTES),
        }
    }

    /// The volume and its sides now.
    pub fn status(&self) -> MirrorStatus {
        self.shared.status()
    }

    /// Begins to read every written block of every healthy side, and to repair what is wrong. One
    /// that goes on since the volume was opened is left as it is.
    ///
    /// # Errors
    /// One line that says why not: one was begun already, or the volume cannot be scrubbed.
    pub fn start_scrub(&self) -> Result<(), String> {
        self.shared.start_scrub()
    }

    /// Takes a device as a further side and rebuilds it, in the place of the side `replaced` once
    /// it is whole, if that is given. Returns when the volume durably remembers it; `status` shows
    /// the rebuild. Of a side that has come before, what is asked is asked again. What the device
    /// holds is lost; a side of another volume only with `force`.
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

    /// Asks again what was asked of a side that the volume has; `None` when it has none of this
    /// name, and [`Mirror::add_side`] is to be given its device.
    pub async fn ask_again(
        &self,
        side: &str,
        replaced: Option<&str>,
    ) -> Option<Result<(), String>> {
        self.shared.ask_again_of(side, replaced).await
    }

    /// The sides that the configuration should name, if they are not those `named`: those that the
    /// volume has when its operations are over.
    pub fn sides_to_name(&self, named: &[String]) -> Option<Vec<String>> {
        self.shared.sides_to_name(named)
    }

    /// Lets go of a side for good, once another one has everything that is on it.
    ///
    /// # Errors
    /// One line that says why not.
    pub async fn remove_side(&self, name: &str) -> Result<(), String> {
        self.shared.remove_side(name).await
    }

    /// Makes the volume as large as its smallest side has room for, and returns its size. What is
    /// beyond the old one reads as zeroes.
    ///
    /// # Errors
    /// One line that says why not.
    pub async fn grow(&self) -> Result<u64, String> {
        self.shared.grow().await
    }

    /// How fast rebuilds of the volume are.
    pub fn rebuild_rates(&self) -> RebuildRates {
        self.shared.repair.share.rates()
    }

    /// Sets how fast rebuilds of the volume are, also of one that runs, until the volume is closed.
    ///
    /// # Errors
    /// One line that says what is wrong with the rates.
    pub fn set_rebuild_rates(&self, rates: RebuildRates) -> Result<(), String> {
        rates.check()?;
        self.shared.repair.share.set_rates(rates);
        self.shared.repair.following.wake_first();
        Ok(())
    }

    /// Ends a scrub that runs; false when none does.
    pub fn cancel_scrub(&self) -> bool {
        self.shared.repair.scrub.cancel()
    }
}

/// What a volume over these sides is and can do.
fn stacked(sides: &[Geometry], size_bytes: u64) -> Geometry {
    Geometry {
        size_bytes,
        // Discards keep their promise through write-zeroes where a side does not make it.
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

    fn figures(&self, out: &mut dyn FigureVisitor) {
        self.status().figures(out);
        self.shared.figures_of_sides(out);
    }
}
