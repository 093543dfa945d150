//! One side of a mirror: its device, its queue, its life cycle, the ranges that it lacks, and its
//! operations in flight.
//!
//! On a side with a log, requests must never bypass the store (the log and the data area).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use bimetal_policy::hetero::{HeteroRules, Mode, SidePolicy};
use bimetal_policy::latency::Quantiles;
use bimetal_policy::patience::Patience;
use bimetal_rt::Instant;
use bimetal_rt::sync::Event;

use super::device_path::DevicePath;
use super::lifecycle::{Life, LifeCycle};
use super::out_of_sync::OutOfSync;
use super::queue::SideQueue;
use super::store::{Outdated, Store};
use super::work::{Started, Work};
use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, Reply, Request};

/// Maximum of the patience with a silent side, in nanoseconds: ten minutes.
const PATIENCE_NS_MAX: u64 = 600_000_000_000;

/// Counters of one side since the volume was opened.
#[derive(Default)]
pub(super) struct SideCounters {
    pub(super) writes: Cell<u64>,
    pub(super) written_bytes: Cell<u64>,
    pub(super) merged: Cell<u64>,
    pub(super) reads: Cell<u64>,
    pub(super) errors: Cell<u64>,
    pub(super) resynced_bytes: Cell<u64>,
    pub(super) corrupt: Cell<u64>,
    pub(super) repaired_blocks: Cell<u64>,
    pub(super) lost_blocks: Cell<u64>,
    pub(super) silences: Cell<u64>,
}

/// Adds to a counter.
pub(super) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

/// Progress of a rebuild.
#[derive(Clone, Copy)]
pub(super) struct Progress {
    pub(super) since: Instant,
    pub(super) passed_bytes: u64,
    /// Number of bytes that were copied and are still recorded as lacking.
    pub(super) ahead_bytes: u64,
}

impl Progress {
    /// Returns the estimated number of seconds until `left_bytes` more have been copied at the
    /// average rate of the rebuild; `None` before any progress.
    pub(super) fn seconds_left(&self, now: Instant, left_bytes: u64) -> Option<f64> {
        let seconds = now.ns_since(self.since) as f64 / 1e9;
        (self.passed_bytes > 0).then(|| left_bytes as f64 * seconds / self.passed_bytes as f64)
    }
}

/// Device, store and initial state from which a side is created.
pub(super) struct SideParts {
    pub(super) device: Rc<dyn Device>,
    /// Connection to the device; `None` for a bare device, and for a device that is not present.
    pub(super) device_path: Option<Rc<DevicePath>>,
    pub(super) data_offset: u64,
    pub(super) store: Option<Rc<Store>>,
    pub(super) durable: bool,
    /// Initial state of the life cycle.
    pub(super) life: Life,
}

/// Substitute for the device of a side that is not present; it refuses every request.
struct Missing(Geometry);

impl Device for Missing {
    fn geometry(&self) -> &Geometry {
        &self.0
    }

    fn submit(&self, _request: Request) -> IoFuture<'_> {
        IoFuture::ready(Err(IoError::Offline))
    }
}

/// Returns a substitute device for a side that is not present.
pub(super) fn missing(geometry: Geometry) -> Rc<dyn Device> {
    Rc::new(Missing(geometry))
}

/// A side of a mirror; see the module.
pub(super) struct Side {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) device: Rc<dyn Device>,
    pub(super) device_path: Option<Rc<DevicePath>>,
    /// Offset in bytes at which the volume starts on the device.
    pub(super) data_offset: u64,
    /// Whether the side has a log; false for a bare device in experiments.
    is_logged: bool,
    /// Store of a side with a log; `None` for a bare device, and until a missing side is found.
    store: RefCell<Option<Rc<Store>>>,
    /// Whether the flushed content of the side survives the loss of the machine.
    pub(super) durable: Cell<bool>,
    pub(super) queue: RefCell<SideQueue>,
    pub(super) policy: RefCell<SidePolicy>,
    pub(super) read_latency: RefCell<Quantiles>,
    pub(super) life: LifeCycle,
    /// True while the superblock of the side is being written.
    pub(super) marking: Cell<bool>,
    pub(super) out_of_sync: OutOfSync,
    /// Progress of the rebuild of the side, while one runs.
    pub(super) rebuild: Cell<Option<Progress>>,
    /// Time at which the side came into its present state.
    pub(super) life_since: Cell<Instant>,
    /// Time at which the side came into its present state, or a rebuild last copied something to
    /// it.
    pub(super) advanced_at: Cell<Instant>,
    /// Operations in flight on the side.
    pub(super) work: Work,
    /// Patience with the side while changes of clients wait because of it; `None` if the side is
    /// not ejected before it counts as absent.
    pub(super) patience: Cell<Option<Patience>>,
    /// Time since which changes of clients wait because of the side.
    pub(super) waited_for_since: Cell<Option<Instant>>,
    /// True while the absent side is being opened again to check whether it can be used.
    pub(super) coming_back: Cell<bool>,
    /// Number of consecutive failed attempts to rebuild the side.
    pub(super) failed_copies: Cell<u32>,
    /// Sequence number below which the side is requested to flush all changes. `flushing` is true
    /// while a task flushes the side.
    pub(super) flush_wanted: Cell<u64>,
    pub(super) flushing: Cell<bool>,
    /// True while the stored changes of this side are flushed so that the log of another side can
    /// free space.
    pub(super) flushing_stored: Cell<bool>,
    /// Number of failed flushes; `flush_error` is the error of the last one.
    pub(super) failed_flushes: Cell<u64>,
    pub(super) flush_error: Cell<IoError>,
    pub(super) errors_in_a_row: Cell<u32>,
    /// Time until which the side is given no request after an error.
    pub(super) retry_at: Cell<Instant>,
    pub(super) changed: Event,
    pub(super) counts: SideCounters,
}

impl Side {
    /// Creates a bare side.
    pub(super) fn new(
        index: usize,
        name: String,
        place: SideParts,
        rules: HeteroRules,
        volume_bytes: u64,
    ) -> Side {
        Side::of(index, name, place, rules, false, volume_bytes)
    }

    /// Creates a side with a log, which may not be present.
    pub(super) fn logged(
        index: usize,
        name: String,
        place: SideParts,
        rules: HeteroRules,
        volume_bytes: u64,
    ) -> Side {
        Side::of(index, name, place, rules, true, volume_bytes)
    }

    fn of(
        index: usize,
        name: String,
        place: SideParts,
        rules: HeteroRules,
        is_logged: bool,
        volume_bytes: u64,
    ) -> Side {
        let (silence_ns, absent_ns) = (rules.silence_ns_max, rules.absent_after_ns);
        let patience_ns_max = absent_ns.min(PATIENCE_NS_MAX);
        let patience = (silence_ns < absent_ns).then(|| Patience::new(silence_ns, patience_ns_max));
        Side {
            index,
            name,
            device: place.device,
            device_path: place.device_path,
            data_offset: place.data_offset,
            is_logged,
            store: RefCell::new(place.store),
            durable: Cell::new(place.durable),
            queue: RefCell::new(SideQueue::new(rules.is_paper(), is_logged)),
            policy: RefCell::new(SidePolicy::new(rules)),
            read_latency: RefCell::new(Quantiles::new(256)),
            life: LifeCycle::beginning(place.life),
            marking: Cell::new(false),
            out_of_sync: OutOfSync::nothing(volume_bytes),
            rebuild: Cell::new(None),
            life_since: Cell::new(Instant::ZERO),
            advanced_at: Cell::new(Instant::ZERO),
            work: Work::none(),
            patience: Cell::new(patience),
            waited_for_since: Cell::new(None),
            coming_back: Cell::new(false),
            failed_copies: Cell::new(0),
            flush_wanted: Cell::new(0),
            flushing: Cell::new(false),
            flushing_stored: Cell::new(false),
            failed_flushes: Cell::new(0),
            flush_error: Cell::new(IoError::Medium),
            errors_in_a_row: Cell::new(0),
            retry_at: Cell::new(Instant::ZERO),
            changed: Event::new(),
            counts: SideCounters::default(),
        }
    }

    /// Records that the side lacks a range. On a healthy side exactly this range is recorded,
    /// without rounding, because the side's content around the range may be the last copy.
    pub(super) fn note_lack(&self, range: Range<u64>) {
        match self.is_healthy() {
            true => self.out_of_sync.add_exact(range),
            false => self.out_of_sync.add(range),
        }
    }

    /// See [`LifeCycle::is_healthy`].
    pub(super) fn is_healthy(&self) -> bool {
        self.life.is_healthy()
    }

    /// See [`LifeCycle::is_active`].
    pub(super) fn is_active(&self) -> bool {
        self.life.is_active()
    }

    /// See [`LifeCycle::is_counted_on`].
    pub(super) fn is_counted_on(&self) -> bool {
        self.life.is_counted_on()
    }

    /// Returns true when a write given to the side now is likely to complete soon.
    pub(super) fn is_in_time(&self) -> bool {
        self.is_active() && !self.work.is_stuck() && self.policy.borrow().mode() == Mode::InTime
    }

    /// Returns true when the side has the newest content of a range of the volume.
    pub(super) fn is_current(&self, range: &Range<u64>) -> bool {
        self.is_active()
            && self.out_of_sync.is_clear(range)
            && self.queue.borrow().is_current(range)
    }

    /// Returns true when a rebuild of the side seeks for each block that it writes.
    pub(super) fn seeks_for_copies(&self) -> bool {
        let has_homes = self.store().is_none_or(|store| store.has_homes());
        has_homes && self.device.geometry().rotational
    }

    /// Returns why the content that the side has stored in a range is outdated; `None` when parts
    /// of it are, or may be, the newest content.
    pub(super) fn why_outdated(&self, range: &Range<u64>) -> Option<Outdated> {
        // What a copy has written is the newest content before the range counts as copied.
        let lacks = self.out_of_sync.covers(range) && !self.out_of_sync.is_being_copied(range);
        if self.life.get() == Life::Resyncing && lacks {
            return Some(Outdated::OutOfSync);
        }
        let queued = self.queue.borrow().pending_in(range);
        let all_is_queued = queued == std::slice::from_ref(range);
        (self.is_active() && all_is_queued).then_some(Outdated::Queued)
    }

    /// Returns the first position after the start of a range at which the side may begin or cease
    /// to have the newest content; the end of the range if there is no such position.
    pub(super) fn current_changes_at(&self, range: &std::ops::Range<u64>) -> u64 {
        let out_of_sync = self.out_of_sync.first_boundary(range);
        out_of_sync.min(self.queue.borrow().first_boundary(range))
    }

    /// Returns the time at which the side last completed an operation, whether given by the mirror
    /// or issued by the side's own store.
    pub(super) fn last_progress(&self) -> Instant {
        let store = self.store();
        let stored = store.map_or(Instant::ZERO, |store| store.last_progress());
        self.work.last_progress().max(stored)
    }

    /// Returns the store of the side; `None` for a bare device, for a missing side, and once the
    /// side has left the volume.
    pub(super) fn store(&self) -> Option<Rc<Store>> {
        let store = self.store.borrow();
        store.clone().filter(|_| !self.life.is_removed())
    }

    /// Ends the background tasks of the side.
    pub(super) async fn stop(&self) {
        let store = self.store.borrow().clone();
        if let Some(store) = store {
            store.stop().await;
        }
    }

    /// Replaces the store after an absent side was opened again.
    pub(super) fn replace_store(&self, store: Rc<Store>) {
        *self.store.borrow_mut() = Some(store);
    }

    /// Returns true when every change below a sequence number is durable on the side.
    pub(super) fn has_durably(&self, number: u64) -> bool {
        self.store()
            .is_some_and(|store| store.complete_durable() >= number)
    }

    /// Returns true when every admitted change is on the side or in its queue. Blocks that were
    /// found corrupt on the side are not considered.
    pub(super) fn holds_all(&self) -> bool {
        self.is_counted_on() && self.out_of_sync.is_only_corrupt()
    }

    /// Sends the side a request that changes nothing: a read, or a query for the extents that hold
    /// data.
    pub(super) async fn ask(&self, mut request: Request) -> IoResult {
        let Some(store) = self.store() else {
            self.check_bare()?;
            request.offset += self.data_offset;
            return self.device.submit(request).await;
        };
        let range = request.offset..request.end();
        match request.op {
            Op::Read => store.read(range, request.origin).await,
            Op::Extents => {
                let found = store.extents(range, request.extents_max).await?;
                Ok(found.into_reply())
            }
            other => unreachable!("{} changes something", other.name()),
        }
    }

    /// Sends a change of the volume to a bare device, shifted by the data offset.
    pub(super) async fn change_bare(&self, mut request: Request) -> Result<(), IoError> {
        self.check_bare()?;
        request.offset += self.data_offset;
        self.device.submit(request).await.map(|_| ())
    }

    /// Returns an error for a side with a log. Such a side has its own layout on the device, so a
    /// request must not bypass its store.
    fn check_bare(&self) -> Result<(), IoError> {
        if self.is_logged {
            return Err(IoError::Offline);
        }
        Ok(())
    }

    /// Records the start of an operation on the side, and returns the operation's number.
    pub(super) fn start(&self, now: Instant) -> u64 {
        let (operation, ahead) = self.work.start(now);
        if ahead == 0 {
            self.changed.notify();
        }
        operation
    }

    /// Removes an operation that has ended, successfully or not, and returns the record of its
    /// start. Then computes again whether the side is stuck, that is, whether the oldest operation
    /// still in flight exceeds the latency limit.
    pub(super) fn finish(&self, operation: u64, now: Instant) -> Started {
        let started = self.work.finish(operation, now);
        self.refresh_stuck(now);
        started
    }

    /// Updates whether the oldest operation in flight exceeds the side's own latency limit.
    pub(super) fn refresh_stuck(&self, now: Instant) {
        let is_over = |at| now >= at;
        self.work.set_stuck(self.overdue_at().is_some_and(is_over));
    }

    /// Returns true when no operation is in flight and none waits in the queue.
    pub(super) fn is_idle(&self) -> bool {
        self.work.in_flight() == 0 && !self.queue.borrow().has_waiting()
    }

    /// Returns the time at which the oldest operation in flight will exceed the side's own latency
    /// limit; `None` when no operation is in flight or the side has no such limit.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let (_, started) = self.work.oldest()?;
        let limit_ns = self.policy.borrow().own_limit_ns(started.ahead)?;
        Some(started.at + std::time::Duration::from_nanos(limit_ns))
    }

    /// Makes the content of a bare device durable.
    pub(super) async fn flush(&self) -> Result<(), IoError> {
        self.check_bare()?;
        match self.device.submit(Request::flush()).await? {
            Reply::Done => Ok(()),
            other => unreachable!("a flush answers nothing, not {other:?}"),
        }
    }
}
