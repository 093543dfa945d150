//! The buffer cache: pages of the device below in memory, managed by the replacement policies of
//! `bimetal-policy`. The trace simulator evaluates the same policy objects. The contract is in
//! `docs/layers/cache.md`.
//!
//! The cache must never lose an acknowledged write while the process runs. It must report success
//! for a flush only if the flush covered all earlier writes. It must never make a decision that
//! belongs to a policy. A request must never wait for a later request; `Waits` describes which
//! request waits for which event.

mod ahead;
mod changes;
mod destage;
mod flush;
mod reads;
mod state;
mod table;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use bimetal_policy::readers::Readers;
use bimetal_policy::replacement::{Build, Granularity, Spec, UnknownGranularity};
use bimetal_rt::sync::{Event, Semaphore, TaskGroup, WaitQueue};
use bimetal_rt::{BufPool, Rt};
use serde::Deserialize;

use self::state::CacheState;
use crate::BLOCK_BYTES;
use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::{Geometry, GrowingGeometry};
use crate::range_lock::RangeLock;
use crate::request::{Op, Reply, Request};
use crate::units::{Size, Time};

/// Minimum size of a cache: enough for a policy with two buffers, and for evictions.
const SIZE_BYTES_MIN: u64 = 64 * BLOCK_BYTES;
/// Limits on what is being destaged at a time: at most 1 / `LEAVING_SHARE` of all pages, and at
/// most `LEAVING_BYTES_MAX` bytes.
const LEAVING_SHARE: usize = 8;
const LEAVING_BYTES_MAX: u64 = 64 << 20;
/// Assumed cost in microseconds of reading a page, until the cost is measured on the device.
/// `FLUSH_US` is the assumed cost of writing (destaging) a page. The ratio of the two costs is
/// typical of NAND.
const READ_US: f64 = 25.0;
const FLUSH_US: f64 = 200.0;
/// Value of `health` for a cache that has lost data, until the operator acknowledges the loss.
pub(crate) const HEALTH_LOST: &str = "lost data";

/// Point at which a write completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A write completes when it is in memory.
    #[default]
    WriteBack,
    /// A write completes when it is on the device below.
    WriteThrough,
}

/// The configuration of `type = "cache"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Name of the device below, as in the configuration.
    pub below: String,
    /// Memory for content.
    pub size: Size,
    /// Name of the replacement policy.
    #[serde(default = "default_policy")]
    pub policy: String,
    /// Point at which a write completes.
    #[serde(default)]
    pub mode: Mode,
    /// Maximum size of unwritten content, which is in memory and not yet on the device; by default
    /// a quarter of `size`.
    pub dirty: Option<Size>,
    /// Maximum time that a page stays dirty before it is destaged.
    #[serde(default = "default_dirty_age")]
    pub dirty_age: Time,
    /// Size of a cluster: an aligned part of the device whose dirty pages are written together.
    #[serde(default = "default_cluster")]
    pub cluster: Size,
    /// Unit in which the device below is most efficiently written: `page`, `cluster` or `block`. By
    /// default the unit is derived from the device's geometry.
    pub granularity: Option<String>,
    /// Maximum number of writes in flight to the device below.
    #[serde(default = "default_depth")]
    pub depth: u32,
    /// Maximum size of one read ahead of a sequential reader; 0 disables read-ahead.
    #[serde(default = "default_read_ahead")]
    pub read_ahead: Size,
}

fn default_policy() -> String {
    "bimetal".to_owned()
}

fn default_dirty_age() -> Time {
    Time(Duration::from_secs(5))
}

fn default_cluster() -> Size {
    Size(256 << 10)
}

fn default_depth() -> u32 {
    16
}

fn default_read_ahead() -> Size {
    Size(0)
}

impl CacheConfig {
    /// Checks constraints on the configuration that the types of its keys cannot express.
    ///
    /// # Errors
    /// A message that names the wrong value.
    pub fn check(&self) -> Result<(), String> {
        let spec = Spec::from_str(&self.policy).map_err(|error| error.to_string())?;
        if spec.needs_future() {
            return Err(format!(
                "policy `{}` needs to know future accesses, so it works in simulations only",
                self.policy
            ));
        }
        self.granularity().map_err(|error| error.to_string())?;
        if self.size.0 < SIZE_BYTES_MIN {
            return Err("`size` must be at least 256KiB".to_owned());
        }
        let cluster_pages = self.cluster.0 / BLOCK_BYTES;
        if !self.cluster.0.is_multiple_of(BLOCK_BYTES) || !(1..=65_536).contains(&cluster_pages) {
            return Err("`cluster` must be whole blocks of 4 KiB, at most 256MiB".to_owned());
        }
        if self
            .dirty
            .is_some_and(|dirty| dirty.0 < BLOCK_BYTES || dirty.0 > self.size.0)
        {
            return Err("`dirty` must be at least 4KiB and at most `size`".to_owned());
        }
        if self.dirty_age.0 < Duration::from_millis(1) {
            return Err("`dirty_age` must be at least 1ms".to_owned());
        }
        if !(1..=1024).contains(&self.depth) {
            return Err("`depth` must be 1 to 1024".to_owned());
        }
        let read_ahead = self.read_ahead.0;
        // Pages read ahead for one reader must not evict pages read ahead for another reader. So
        // the size of one read-ahead is limited.
        if !read_ahead.is_multiple_of(BLOCK_BYTES) || read_ahead > self.size.0 / 8 {
            return Err(
                "`read_ahead` must be whole blocks of 4 KiB, at most an eighth of `size`"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn granularity(&self) -> Result<Option<Granularity>, UnknownGranularity> {
        self.granularity.as_deref().map(str::parse).transpose()
    }

    /// Returns the write granularity for a device with the geometry `below`. This granularity is
    /// used if the configuration gives none. If the preferred request size of the device is at
    /// least a cluster, shorter writes are expensive, because the device reads or copies the rest
    /// of the preferred size. The granularity is then a block. For any other device, the only known
    /// fact is that writing adjacent pages together costs less. The granularity is then a cluster.
    fn granularity_over(&self, below: &Geometry) -> Granularity {
        if u64::from(below.preferred_bytes) >= self.cluster.0 {
            Granularity::Block
        } else {
            Granularity::Cluster
        }
    }
}

/// A buffer cache; see the module. Cloning gives another handle to the same cache.
#[derive(Clone)]
pub struct Cache {
    shared: Rc<Shared>,
}

/// The wait queues of requests, one for each kind of event. Writes and reads that compete for
/// memory get it in the order of arrival.
struct Waits {
    /// Permit for the wait until the cache can store more unwritten pages. There is only one
    /// permit: one write holds it, and all other writes wait here for it.
    write_turn: Rc<Semaphore>,
    /// Signals that the number of unwritten pages might permit another write. The write that holds
    /// the permit `write_turn` waits here.
    room: Event,
    /// Signals progress of destaging. While too many pages are being destaged, reads wait here, and
    /// so does the write that holds the permit `write_turn`.
    unchoked: WaitQueue,
    /// Reads that wait for a page which another request is already reading from the device. The
    /// read of one page from the device is called a fill, and each fill has a number. The waiting
    /// reads are ordered by the number of the fill that they wait for.
    filled: WaitQueue,
    /// Flushes that wait for destage jobs. Each flush is queued under a job number, and waits until
    /// all destage jobs with lower numbers have ended.
    ended: WaitQueue,
    /// New destage jobs; the destager task waits here.
    jobs: Event,
}

impl Waits {
    fn new() -> Waits {
        Waits {
            write_turn: Semaphore::new(1),
            room: Event::new(),
            unchoked: WaitQueue::new(),
            filled: WaitQueue::new(),
            ended: WaitQueue::new(),
            jobs: Event::new(),
        }
    }

    /// Wakes waiting writes and reads after the number of unwritten pages has decreased or a page
    /// could not be written.
    fn room_changed(&self) {
        self.room.notify();
        self.unchoked.wake_first();
    }
}

struct Shared {
    rt: Rt,
    below: Rc<dyn Device>,
    geometry: GrowingGeometry,
    mode: Mode,
    state: RefCell<CacheState>,
    /// Memory for content.
    frames: BufPool,
    /// Locks of the ranges of the device that are being changed.
    below_lock: Rc<RangeLock>,
    /// Permits for writes in flight to the device.
    depth: Rc<Semaphore>,
    waits: Waits,
    dirty_pages_max: usize,
    leaving_pages_max: usize,
    dirty_age: Duration,
    interruptions: Cell<Option<u64>>,
    closed: Cell<bool>,
    tasks: TaskGroup,
    /// Detected sequential readers, if read-ahead is enabled.
    readers: Option<RefCell<Readers>>,
    /// Number of reads ahead in flight.
    ahead_under_way: Cell<usize>,
}

impl Cache {
    /// Creates a cache over `below`.
    ///
    /// # Errors
    /// When the memory cannot be allocated, when the device below has blocks of more than 4 KiB, or
    /// when writes are held back from a device whose room is limited.
    pub fn new(rt: &Rt, below: Rc<dyn Device>, config: &CacheConfig) -> Result<Cache, OpenError> {
        if below.geometry().limited_room && config.mode == Mode::WriteBack {
            // What was acknowledged in memory could find no room later.
            return Err(OpenError::new(
                "the volume below is larger than what its sides have room for, so a write can fail \
                for lack of room: it needs mode = \"write-through\"",
            ));
        }
        let geometry = Geometry {
            block_bytes: BLOCK_BYTES as u32,
            content_offset_bytes: None,
            ..*below.geometry()
        };
        let spec = Spec::from_str(&config.policy).map_err(|e| OpenError::new(e.to_string()))?;
        let pages = (config.size.0 / BLOCK_BYTES) as usize;
        let leaving_most = (LEAVING_BYTES_MAX / BLOCK_BYTES) as usize;
        let leaving_pages_max = (pages / LEAVING_SHARE).min(leaving_most);
        let pages_per_block = (config.cluster.0 / BLOCK_BYTES) as u32;
        let granularity = config.granularity();
        let granularity = granularity.map_err(|e| OpenError::new(e.to_string()))?;
        let policy = spec.build(&Build {
            capacity: pages - leaving_pages_max,
            pages_per_block,
            granularity: granularity.unwrap_or_else(|| config.granularity_over(below.geometry())),
            read_us: READ_US,
            flush_us: FLUSH_US,
            ..Build::default()
        });
        let frames = BufPool::new(config.size.0 as usize);
        let frames = frames.map_err(|e| OpenError::new(format!("no memory for content: {e}")))?;
        let dirty = config.dirty.map_or(config.size.0 / 4, |dirty| dirty.0);
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            geometry: GrowingGeometry::new(geometry),
            mode: config.mode,
            state: CacheState::new(policy, pages_per_block).into(),
            frames,
            below_lock: RangeLock::new(),
            depth: Semaphore::new(u64::from(config.depth)),
            waits: Waits::new(),
            dirty_pages_max: (dirty / BLOCK_BYTES) as usize,
            leaving_pages_max,
            dirty_age: config.dirty_age.0,
            interruptions: Cell::new(below.interruptions()),
            below,
            closed: Cell::new(false),
            tasks: TaskGroup::new(rt),
            readers: (config.read_ahead.0 > 0)
                .then(|| Readers::new(config.read_ahead.0 / BLOCK_BYTES).into()),
            ahead_under_way: Cell::new(0),
        });
        let tasks = &shared.tasks;
        tasks.spawn(Rc::clone(&shared).destage_for_ever());
        tasks.spawn(Rc::clone(&shared).look_after_dirty_pages());
        Ok(Cache { shared })
    }

    /// Records that the operator accepts the loss of data, so that flushes can succeed again.
    /// Returns whether data had been lost.
    pub fn accept_loss(&self) -> bool {
        self.shared.state.borrow_mut().lost.take().is_some()
    }
}

impl Device for Cache {
    fn geometry(&self) -> &Geometry {
        let below = self.shared.below.geometry();
        self.shared.geometry.grow_to(below.size_bytes)
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        if let Err(error) = self.geometry().check(&request) {
            return IoFuture::ready(Err(error));
        }
        if self.shared.closed.get() {
            return IoFuture::ready(Err(IoError::Closed));
        }
        let shared = &self.shared;
        if Shared::is_empty(&request) {
            let nothing = match request.op {
                Op::Read => Reply::Data(bimetal_rt::Payload::empty()),
                Op::Extents => Reply::Extents(Vec::new()),
                _ => Reply::Done,
            };
            return IoFuture::ready(Ok(nothing));
        }
        match request.op {
            Op::Read => {
                let ahead = shared.pages_ahead(&request);
                let answer = shared.read(&request);
                // Read-ahead is started after the request, so that the request's own pages are read
                // first.
                if let Some(pages) = ahead {
                    shared.read_ahead(pages, request.origin);
                }
                answer
            }
            Op::Write if shared.goes_through(&request) => shared.to_its_end(request),
            Op::Write => IoFuture::new(shared.write_back(request)),
            Op::Flush => IoFuture::new(shared.flush()),
            Op::Discard | Op::WriteZeroes => shared.to_its_end(request),
            Op::Extents => IoFuture::new(shared.extents(request)),
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async move {
            if self.shared.closed.replace(true) {
                return Ok(());
            }
            let flushed = self.shared.flush().await;
            self.shared.tasks.cancel().await;
            flushed.map(|_| ())
        })
    }

    fn interruptions(&self) -> Option<u64> {
        self.shared.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let state = self.shared.state.borrow();
        let bytes = |pages: usize| Statistic::Gauge(pages as f64 * BLOCK_BYTES as f64);
        let (held, counts) = (state.occupancy(), state.counts);
        let mut show = |name, statistic| out.statistic("", name, statistic);
        let health = match (state.lost, state.has_failed()) {
            (Some(_), _) => HEALTH_LOST,
            (None, true) => "cannot write",
            (None, false) => "healthy",
        };
        show("health", Statistic::State(health.to_owned()));
        show("no_side_bytes", bytes(state.unwritten_pages()));
        show("failed_bytes", bytes(state.failed_pages()));
        show("unflushed_bytes", bytes(state.unflushed_pages()));
        show("held_bytes", bytes(held.held));
        if let Some(target) = held.write_target {
            show(
                "write_target_bytes",
                Statistic::Gauge(target * BLOCK_BYTES as f64),
            );
        }
        show("read_hits", Statistic::Counter(counts.read_hits));
        show("read_misses", Statistic::Counter(counts.read_misses));
        show("read_ahead_pages", Statistic::Counter(counts.ahead_pages));
        show("write_hits", Statistic::Counter(counts.write_hits));
        show("write_misses", Statistic::Counter(counts.write_misses));
        show("evicted_pages", Statistic::Counter(counts.evicted_pages));
        show("destaged_pages", Statistic::Counter(counts.destaged_pages));
        show("destage_writes", Statistic::Counter(counts.destage_writes));
        show("replaced_pages", Statistic::Counter(counts.replaced_pages));
        show("errors", Statistic::Counter(counts.errors));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Result<CacheConfig, toml::de::Error> {
        toml::from_str(&format!("below = \"disk\"\nsize = \"1MiB\"\n{more}"))
    }

    #[test]
    fn the_granularity_is_what_the_file_says_or_what_is_known_of_the_device() {
        let given = config("granularity = \"block\"").expect("it is valid");
        assert_eq!(given.granularity(), Ok(Some(Granularity::Block)));
        assert_eq!(given.check(), Ok(()));

        let silent = config("cluster = \"256KiB\"").expect("it is valid");
        assert_eq!(silent.granularity(), Ok(None));
        let plain = Geometry::of_size(1 << 30);
        assert_eq!(silent.granularity_over(&plain), Granularity::Cluster);
        let in_rows = Geometry {
            preferred_bytes: 256 << 10,
            ..plain
        };
        assert_eq!(silent.granularity_over(&in_rows), Granularity::Block);
    }

    #[test]
    fn an_unknown_granularity_is_refused_with_those_that_exist() {
        let wrong = config("granularity = \"sector\"").expect("a word is a word");
        let error = wrong.check().expect_err("there is none of that name");
        assert!(error.contains("page, cluster and block"), "{error}");
    }
}
