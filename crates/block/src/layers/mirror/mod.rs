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

mod changing;
mod config;
mod durable;
pub mod family;
mod flush;
mod growing;
mod health;
mod opening;
mod pace;
mod queue;
mod read;
mod rebuild;
mod returning;
mod scrub;
mod side;
mod sides;
mod status;
mod store;
pub mod superblock;
mod undecided;
mod volume;
mod way;
mod write;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::hedge::HedgeBudget;
use bimetal_policy::hetero::HeteroRules;
use bimetal_rt::sync::{Event, Semaphore, TaskGroup, WaitQueue};
use bimetal_rt::{Buf, Instant, Rt};

use crate::device::{Device, FigureVisitor, IoFuture, LocalFuture};
use crate::error::{IoError, OpenError};
use crate::geometry::{Geometry, GrowingGeometry};
use crate::range_lock::RangeLock;
use crate::range_set::RangeSet;
use crate::request::{Op, Request};
pub use config::{Acknowledge, DrainName, ExposureConfig, MirrorConfig, OnDegraded, PolicyName};
pub use family::Force;
pub use opening::{OpenOptions, OpeningProgress, SideToOpen};
pub use side::Health;
use superblock::State;

use pace::{Clients, Pace};
use scrub::Scrub;
pub use scrub::ScrubStatus;
use side::{Place, Side};
use sides::Sides;
pub use status::{MirrorStatus, SideStatus};
use undecided::Undecided;

/// The bound that a side with a log of `log_bytes` sets to the exposure of its volume, in bytes:
/// what one side lacks must fit into its log. The least of all sides counts.
pub fn exposure_bytes_max_of_log(log_bytes: u64) -> u64 {
    store::backlog_bytes_max(log_bytes)
}

use volume::Volume;

/// A stop waits so long for a side that does not answer, at most.
const PATIENCE_MAX: Duration = Duration::from_secs(30);

/// What the volume takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeState {
    Open,
    /// Opened to be looked at: nothing is written to any side, and no side comes or goes.
    Frozen,
    ReadOnly,
    Stopped,
    Closed,
}

/// Counts of the volume since it was opened.
#[derive(Default)]
struct Counts {
    acknowledged_early: Cell<u64>,
    hedged_reads: Cell<u64>,
    held_back: Cell<u64>,
    sides_given_up: Cell<u64>,
    failed_writes: Cell<u64>,
    lost_reads: Cell<u64>,
    exposed_bytes_peak: Cell<u64>,
}

/// What the tasks of a mirror share.
struct Shared {
    rt: Rt,
    config: MirrorConfig,
    rules: HeteroRules,
    /// What the logs of the sides can take at once bounds the exposure as well.
    exposure_bytes_by_logs: Cell<u64>,
    on_degraded: OnDegraded,
    acknowledge: Acknowledge,
    writable: bool,
    sides: Sides,
    /// The set of sides changes once at a time.
    changing: Rc<Semaphore>,
    geometry: GrowingGeometry,
    /// One change at a time per range, so that every side sees overlapping ones in one order.
    ranges: Rc<RangeLock>,
    /// The paper's operation queue served one by one, when asked for.
    serial: Option<Rc<Semaphore>>,
    /// Acknowledged ranges that not all healthy sides hold.
    exposed: RefCell<RangeSet>,
    /// The sides that are counted on, or what they say of each other, have changed.
    exposure_changed: Event,
    /// Writes that wait until the exposure has room for them.
    held_back: WaitQueue,
    /// What no side could give, as long as no side comes that might: its repair is not tried again.
    known_lost: RefCell<RangeSet>,
    /// Admitted writes of which it is open whether they are stored.
    undecided: Undecided,
    stale_added: Event,
    /// A side has flushed, or could not.
    flushed: Event,
    next_seq: Cell<u64>,
    /// All changes below this number were flushed for a client.
    flushed_below: Cell<u64>,
    flushes_waiting: Cell<u32>,
    preferred: Cell<usize>,
    next_probe: Cell<Instant>,
    /// Whether late reads are asked of another side as well, and how many still may be.
    hedge_reads: bool,
    hedges: RefCell<HedgeBudget>,
    state: Cell<VolumeState>,
    /// Nothing has been written for a while, and every side is to say that nobody is ahead.
    quiet: Cell<bool>,
    /// A change was admitted.
    admitted: Event,
    /// The number up to which everything was flushed when the volume was closed.
    closed_at: Cell<u64>,
    zeroes: Buf,
    /// Requests of clients, to which all else gives way.
    clients: Clients,
    resync_pace: Pace,
    scrub: Scrub,
    tasks: TaskGroup,
    /// The tasks that watch and tend the sides; they end only when the volume closes.
    watchers: TaskGroup,
    counts: Counts,
    /// The superblocks of the sides; none in experiments over bare devices.
    superblocks: Option<Volume>,
    /// The epoch that sets the healthy sides apart from the one given up last, and the newest that
    /// one of them has durably, by number. Nothing is acknowledged before it has.
    epoch_needed: Cell<u64>,
    epoch_marked: Cell<u64>,
}

impl Shared {
    /// The sides that hold everything acknowledged, or will before a write counts on them.
    fn healthy(&self) -> Vec<usize> {
        let healthy = self
            .sides
            .iter()
            .filter(|side| side.health.get() == Health::Healthy);
        healthy.map(|side| side.index).collect()
    }

    /// The rules, with the exposure bounded so that what one side lacks fits into its log: within a
    /// group of overtaken changes nothing is complete before its end, and nothing can go home.
    fn rules(&self) -> HeteroRules {
        let by_logs = self.exposure_bytes_by_logs.get();
        HeteroRules {
            exposure_bytes_max: self.rules.exposure_bytes_max.min(by_logs),
            ..self.rules
        }
    }

    /// The logs have changed.
    fn note_logs(&self) {
        let stores = self.sides.iter().filter_map(|side| side.store());
        let least = stores.map(|store| store.backlog_bytes_max()).min();
        self.exposure_bytes_by_logs.set(least.unwrap_or(u64::MAX));
    }

    /// Size of the volume in bytes.
    fn size_bytes(&self) -> u64 {
        self.geometry.get().size_bytes
    }

    /// How long a stop waits for a side that does not answer.
    fn patience(&self) -> Duration {
        Duration::from_nanos(self.rules.absent_after_ns).min(PATIENCE_MAX)
    }

    fn is_paper(&self) -> bool {
        self.rules.is_paper()
    }

    /// True when the sides keep logs: a volume that can be opened again.
    fn is_logged(&self) -> bool {
        self.superblocks.is_some()
    }

    /// Starts what the volume does by itself.
    fn start(self: &Rc<Self>) {
        for index in 0..self.sides.len() {
            self.watchers.spawn(Rc::clone(self).watch_side(index));
            self.watchers.spawn(Rc::clone(self).tend_side(index));
        }
        if !self.is_logged() {
            return;
        }
        for index in 0..self.sides.len() {
            self.attend_way(index);
            self.attend_store(index);
        }
        self.release_logs();
        for index in 0..self.sides.len() {
            self.want_flushed(index, self.next_seq.get());
        }
        self.watchers.spawn(Rc::clone(self).settle());
        self.watchers.spawn(Rc::clone(self).keep_logs_moving());
        self.watchers.spawn(Rc::clone(self).look_for_suspects());
    }
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

/// What a mirror is made of.
struct Parts {
    sides: Vec<Side>,
    geometry: Geometry,
    superblocks: Option<Volume>,
    next_seq: u64,
    state: VolumeState,
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
            };
            let side = Side::new(index, given.name, bare, rules, size_bytes);
            if given.stale {
                side.health.set(Health::Resyncing);
                side.note_lack(0..size_bytes);
            }
            side
        });
        let parts = Parts {
            sides: sides.collect(),
            geometry: stacked(&geometries, size_bytes),
            superblocks: None,
            next_seq: 0,
            state: VolumeState::Open,
        };
        Mirror::of(rt, config, parts)
    }

    fn of(rt: &Rt, config: &MirrorConfig, parts: Parts) -> Mirror {
        let healthy = |side: &Side| side.health.get() == Health::Healthy;
        let preferred = parts.sides.iter().position(healthy);
        let preferred = preferred.expect("a mirror has a side with the data");
        let rules = config.rules();
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            config: config.clone(),
            rules,
            exposure_bytes_by_logs: Cell::new(u64::MAX),
            on_degraded: config.on_degraded,
            acknowledge: config.acknowledge,
            writable: parts.geometry.writable,
            sides: Sides::new(parts.sides),
            changing: Semaphore::new(1),
            geometry: GrowingGeometry::new(parts.geometry),
            ranges: RangeLock::new(),
            serial: config.serial.then(|| Semaphore::new(1)),
            exposed: RefCell::new(RangeSet::new()),
            exposure_changed: Event::new(),
            held_back: WaitQueue::new(),
            known_lost: RefCell::new(RangeSet::new()),
            undecided: Undecided::default(),
            stale_added: Event::new(),
            flushed: Event::new(),
            next_seq: Cell::new(parts.next_seq),
            flushed_below: Cell::new(0),
            flushes_waiting: Cell::new(0),
            preferred: Cell::new(preferred),
            next_probe: Cell::new(Instant::ZERO),
            hedge_reads: config.hedge_reads && !rules.is_paper(),
            hedges: RefCell::new(HedgeBudget::default()),
            state: Cell::new(parts.state),
            quiet: Cell::new(false),
            admitted: Event::new(),
            closed_at: Cell::new(0),
            zeroes: rt.pool().zeroed(1 << 20),
            clients: Clients::new(rt),
            resync_pace: Pace::new(config.resync_rate.map(|rate| rate.0)),
            scrub: Scrub::new(config.scrub_rate.map(|rate| rate.0)),
            tasks: TaskGroup::new(rt),
            watchers: TaskGroup::new(rt),
            counts: Counts::default(),
            superblocks: parts.superblocks,
            epoch_needed: Cell::new(0),
            epoch_marked: Cell::new(0),
        });
        shared.note_logs();
        if parts.state == VolumeState::Open {
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
        let there = opened.sides.iter().filter_map(|side| side.way.as_ref());
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
            };
            let side = Side::logged(index, found.name, place, rules, opened.volume_bytes);
            side.health.set(found.health);
            if found.health == Health::Healthy {
                // What a side lacks that counts, nobody has: it is known to be wrong there.
                side.under_repair.borrow_mut().extend(found.stale.iter());
            }
            found.stale.iter().for_each(|range| side.note_lack(range));
            side
        });
        let parts = Parts {
            sides: sides.collect(),
            geometry,
            superblocks: Some(opened.volume),
            next_seq: opened.next_number,
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

    /// Begins to read every written block of every healthy side, and to repair what is wrong.
    ///
    /// # Errors
    /// One line that says why not: it runs already, or the volume cannot be scrubbed.
    pub fn start_scrub(&self) -> Result<(), String> {
        self.shared.start_scrub()
    }

    /// Takes a blank device as a further side and rebuilds it, in the place of the side `replaced`
    /// once it is whole, if that is given. Returns when it is a side; `status` shows the rebuild.
    ///
    /// # Errors
    /// One line that says why not.
    pub async fn add_side(
        &self,
        side: superblock::Candidate,
        replaced: Option<&str>,
    ) -> Result<(), String> {
        self.shared.add_side(side, replaced).await
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

    /// Ends a scrub that runs; false when none does.
    pub fn cancel_scrub(&self) -> bool {
        self.shared.scrub.cancel()
    }

    /// Drains, flushes and stops; what [`Device::close`] does before it marks the sides.
    async fn stop(&self) -> Result<(), IoError> {
        let shared = &self.shared;
        // Nothing more is taken; what was admitted before is drained whatever the state was.
        shared.state.set(VolumeState::Closed);
        shared.scrub.cancel();
        let flushed = if shared.is_logged() {
            shared.bring_everything_home().await
        } else {
            shared.drain_and_flush().await.map(|_| ())
        };
        self.end_tasks().await;
        flushed
    }

    async fn end_tasks(&self) {
        let shared = &self.shared;
        shared.watchers.cancel().await;
        // What still runs belongs to sides that are not healthy, and nobody watches these any more.
        // A hung device may never answer; its operations own their buffers until it does.
        let ended = shared.rt.timeout(shared.patience(), shared.tasks.join());
        if ended.await.is_err() {
            shared.tasks.cancel().await;
        }
        for store in shared.sides.iter().filter_map(Side::store) {
            store.stop().await;
        }
    }

    /// Marks the sides that hold everything as cleanly stopped. One is enough: the others will be
    /// known to be behind.
    async fn mark_clean(&self, volume: &Volume) -> Result<(), IoError> {
        let shared = &self.shared;
        // Sides that have just joined come last, as always.
        let (established, joining): (Vec<usize>, Vec<usize>) = shared
            .healthy()
            .into_iter()
            .partition(|&index| volume.is_established(index));
        let mut marked = Vec::new();
        for sides in [established, joining] {
            let marks = sides.into_iter().map(|index| async move {
                let mark = volume.mark_one(index, State::Clean, shared.closed_at.get());
                let marked = shared.rt.timeout(shared.patience(), mark).await;
                marked.unwrap_or(Err(IoError::Timeout))
            });
            marked.extend(futures_util::future::join_all(marks).await);
        }
        let first = marked.iter().copied().find(Result::is_ok);
        first.unwrap_or_else(|| marked.into_iter().next().unwrap_or(Err(IoError::Offline)))
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
            let _client = shared.clients.enter();
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
                    self.shared.state.set(VolumeState::Closed);
                    self.end_tasks().await;
                    return Ok(());
                }
                VolumeState::Open | VolumeState::ReadOnly | VolumeState::Stopped => {}
            }
            self.stop().await?;
            match &self.shared.superblocks {
                Some(volume) => self.mark_clean(volume).await,
                None => Ok(()),
            }
        })
    }

    fn figures(&self, out: &mut dyn FigureVisitor) {
        self.status().figures(out);
        self.shared.figures_of_sides(out);
    }
}
