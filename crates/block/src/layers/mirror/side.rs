//! One side of a mirror: its device, its queue, its health, and what it is working on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use bimetal_policy::hetero::{HeteroRules, Mode, SidePolicy};
use bimetal_policy::latency::Quantiles;
use bimetal_rt::Instant;
use bimetal_rt::sync::Event;

use super::queue::SideQueue;
use super::rebuild::Progress;
use super::store::Store;
use super::way::Way;
use crate::device::{Device, IoFuture};
use crate::error::IoError;
use crate::geometry::Geometry;
use crate::range_set::RangeSet;
use crate::request::{IoResult, Op, Reply, Request};

/// Whether a side takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes every write, and acknowledgements count on it.
    Healthy,
    /// It takes every write and is being given what it lacks; nothing counts on it yet.
    Resyncing,
    /// It is given nothing: silent for too long, or failing.
    Absent,
}

impl Health {
    /// The word in `status`.
    pub fn name(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Resyncing => "resyncing",
            Health::Absent => "absent",
        }
    }
}

/// Counts of one side since the volume was opened.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) writes: Cell<u64>,
    pub(super) written_bytes: Cell<u64>,
    pub(super) merged: Cell<u64>,
    pub(super) reads: Cell<u64>,
    pub(super) errors: Cell<u64>,
    pub(super) resynced_bytes: Cell<u64>,
    pub(super) rotten: Cell<u64>,
    pub(super) repaired_blocks: Cell<u64>,
    pub(super) lost_blocks: Cell<u64>,
}

/// Adds to a counter.
pub(super) fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

/// The start of an operation.
#[derive(Clone, Copy)]
pub(super) struct Started {
    pub(super) at: Instant,
    /// Operations that were in flight already.
    pub(super) ahead: usize,
}

/// What a side is on.
pub(super) struct Place {
    pub(super) device: Rc<dyn Device>,
    /// The way to the device; none to a bare one, and to one that is not there.
    pub(super) way: Option<Rc<Way>>,
    pub(super) data_offset: u64,
    pub(super) store: Option<Rc<Store>>,
    pub(super) durable: bool,
}

/// Stands for the device of a side that is not there.
struct Missing(Geometry);

impl Device for Missing {
    fn geometry(&self) -> &Geometry {
        &self.0
    }

    fn submit(&self, _request: Request) -> IoFuture<'_> {
        IoFuture::ready(Err(IoError::Offline))
    }
}

/// The device of a side that is not there.
pub(super) fn missing(geometry: Geometry) -> Rc<dyn Device> {
    Rc::new(Missing(geometry))
}

/// See the module.
pub(super) struct Side {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) device: Rc<dyn Device>,
    pub(super) way: Option<Rc<Way>>,
    /// Where the volume starts on the device.
    pub(super) data_offset: u64,
    /// What the side keeps and how; a bare device in experiments.
    store: RefCell<Option<Rc<Store>>>,
    /// Whether what it has flushed outlives the machine.
    pub(super) durable: Cell<bool>,
    /// It has left the volume.
    pub(super) gone: Cell<bool>,
    pub(super) queue: RefCell<SideQueue>,
    pub(super) policy: RefCell<SidePolicy>,
    pub(super) read_latency: RefCell<Quantiles>,
    pub(super) health: Cell<Health>,
    /// A side whose resync is over, but whose queue may still hold writes that were acknowledged
    /// without it. New acknowledgements count on it already, so that their number only falls.
    pub(super) joining: Cell<bool>,
    /// The first write that counted on it since it was last absent.
    pub(super) joined_from: Cell<u64>,
    /// Its superblock is being written.
    pub(super) marking: Cell<bool>,
    /// Ranges that the side lacks and that no queue holds: what a resync copies.
    pub(super) stale: RefCell<RangeSet>,
    /// How far a rebuild has come, while there is one.
    pub(super) rebuild: Cell<Option<Progress>>,
    /// Of these, what the side was found to hold wrongly.
    pub(super) under_repair: RefCell<RangeSet>,
    /// The operations in flight, oldest first.
    started: RefCell<BTreeMap<u64, Started>>,
    next_operation: Cell<u64>,
    pub(super) drain_in_flight: Cell<usize>,
    /// The oldest write in flight has exceeded the side's limit.
    pub(super) stuck: Cell<bool>,
    /// Writes that have exceeded the paper's wait limit and are not done.
    pub(super) late: Cell<u32>,
    /// When the side last completed anything.
    pub(super) last_progress: Cell<Instant>,
    /// So many attempts in a row to give it what it lacks have failed.
    pub(super) failed_copies: Cell<u32>,
    /// When it last answered a read.
    pub(super) last_read: Cell<Instant>,
    /// Why it was given up last.
    pub(super) absent_because: Cell<Option<IoError>>,
    /// It is not used any more.
    pub(super) given_up: Event,
    /// Up to which number a flush is wanted, and whether one is under way.
    pub(super) flush_wanted: Cell<u64>,
    pub(super) flushing: Cell<bool>,
    /// What it has stored is being flushed for the log of another side.
    pub(super) flushing_stored: Cell<bool>,
    /// Flushes that have failed, and how the last one did.
    pub(super) failed_flushes: Cell<u64>,
    pub(super) flush_error: Cell<IoError>,
    pub(super) errors_in_a_row: Cell<u32>,
    /// After an error, nothing is given before this.
    pub(super) retry_at: Cell<Instant>,
    pub(super) changed: Event,
    pub(super) counts: Counts,
}

impl Side {
    /// A bare side.
    pub(super) fn new(
        index: usize,
        name: String,
        place: Place,
        rules: HeteroRules,
        volume_bytes: u64,
    ) -> Side {
        let queue = SideQueue::new(rules.is_paper(), false);
        Side::with_queue(index, name, place, rules, queue, volume_bytes)
    }

    /// A side with a log, if it is there.
    pub(super) fn logged(
        index: usize,
        name: String,
        place: Place,
        rules: HeteroRules,
        volume_bytes: u64,
    ) -> Side {
        let queue = SideQueue::new(rules.is_paper(), true);
        Side::with_queue(index, name, place, rules, queue, volume_bytes)
    }

    fn with_queue(
        index: usize,
        name: String,
        place: Place,
        rules: HeteroRules,
        queue: SideQueue,
        volume_bytes: u64,
    ) -> Side {
        Side {
            index,
            name,
            device: place.device,
            way: place.way,
            data_offset: place.data_offset,
            store: RefCell::new(place.store),
            durable: Cell::new(place.durable),
            gone: Cell::new(false),
            queue: RefCell::new(queue),
            policy: RefCell::new(SidePolicy::new(rules)),
            read_latency: RefCell::new(Quantiles::new(256)),
            health: Cell::new(Health::Healthy),
            joining: Cell::new(false),
            joined_from: Cell::new(0),
            marking: Cell::new(false),
            stale: RefCell::new(RangeSet::for_volume(volume_bytes)),
            rebuild: Cell::new(None),
            under_repair: RefCell::new(RangeSet::new()),
            started: RefCell::new(BTreeMap::new()),
            next_operation: Cell::new(0),
            drain_in_flight: Cell::new(0),
            stuck: Cell::new(false),
            late: Cell::new(0),
            last_progress: Cell::new(Instant::ZERO),
            failed_copies: Cell::new(0),
            last_read: Cell::new(Instant::ZERO),
            absent_because: Cell::new(None),
            given_up: Event::new(),
            flush_wanted: Cell::new(0),
            flushing: Cell::new(false),
            flushing_stored: Cell::new(false),
            failed_flushes: Cell::new(0),
            flush_error: Cell::new(IoError::Medium),
            errors_in_a_row: Cell::new(0),
            retry_at: Cell::new(Instant::ZERO),
            changed: Event::new(),
            counts: Counts::default(),
        }
    }

    /// The side lacks a range from now on. On a healthy side only that range: what else it holds may
    /// be the last copy.
    pub(super) fn note_lack(&self, range: Range<u64>) {
        let mut stale = self.stale.borrow_mut();
        match self.health.get() {
            Health::Healthy => stale.insert_exact(range),
            Health::Resyncing | Health::Absent => stale.insert(range),
        }
    }

    /// True when the side is given writes.
    pub(super) fn is_active(&self) -> bool {
        self.health.get() != Health::Absent
    }

    /// True when acknowledgements and flushes wait for the side, within the bounds.
    pub(super) fn is_counted_on(&self) -> bool {
        self.health.get() == Health::Healthy || self.joining.get()
    }

    /// True when a write given to the side now is likely to be done soon.
    pub(super) fn is_in_time(&self) -> bool {
        self.is_active() && !self.stuck.get() && self.policy.borrow().mode() == Mode::InTime
    }

    /// True when the side has the newest content of a range of the volume.
    pub(super) fn is_current(&self, range: &Range<u64>) -> bool {
        self.is_active()
            && self.stale.borrow().is_clear(range)
            && self.queue.borrow().is_current(range)
    }

    /// The first position behind the start of a range at which the side may begin or cease to have
    /// the newest content; the end of the range if there is none.
    pub(super) fn current_changes_at(&self, range: &std::ops::Range<u64>) -> u64 {
        let stale = self.stale.borrow().first_boundary(range);
        stale.min(self.queue.borrow().first_boundary(range))
    }

    /// When the side last completed anything that the mirror or its own log has asked of it.
    pub(super) fn last_progress(&self) -> Instant {
        let store = self.store();
        let stored = store.map_or(Instant::ZERO, |store| store.last_progress());
        self.last_progress.get().max(stored)
    }

    /// What the side keeps; `None` on a bare device.
    pub(super) fn store(&self) -> Option<Rc<Store>> {
        self.store.borrow().clone()
    }

    /// The side has come back, and was opened anew.
    pub(super) fn replace_store(&self, store: Rc<Store>) {
        *self.store.borrow_mut() = Some(store);
    }

    /// True when all changes that were admitted are on the side or in its queue.
    pub(super) fn holds_all(&self) -> bool {
        self.is_counted_on() && self.lacks_nothing()
    }

    /// True when all that is stale was found wrong on the side itself. Its repair may wait for a
    /// change that waits for a flush of the side, so no flush waits for the repair.
    fn lacks_nothing(&self) -> bool {
        let (stale, rotten) = (self.stale.borrow(), self.under_repair.borrow());
        stale.iter().all(|range| rotten.covers(&range))
    }

    /// Asks for something that changes nothing: a read, or which parts hold data.
    pub(super) async fn ask(&self, mut request: Request) -> IoResult {
        let Some(store) = self.store() else {
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

    /// Passes a change of the volume to a bare device.
    pub(super) async fn change_bare(&self, mut request: Request) -> Result<(), IoError> {
        request.offset += self.data_offset;
        self.device.submit(request).await.map(|_| ())
    }

    /// Notes that an operation starts.
    pub(super) fn start(&self, now: Instant) -> u64 {
        let operation = self.next_operation.get();
        self.next_operation.set(operation + 1);
        let ahead = self.in_flight();
        self.started
            .borrow_mut()
            .insert(operation, Started { at: now, ahead });
        if ahead == 0 {
            self.changed.notify();
        }
        operation
    }

    /// Notes that an operation has ended, whatever it was, and says when it was started. The side
    /// is stuck no longer unless the next one has exceeded its limit as well.
    pub(super) fn finish(&self, operation: u64, now: Instant) -> Started {
        self.last_progress.set(now);
        let started = self.started.borrow_mut().remove(&operation);
        self.refresh_stuck(now);
        started.expect("an operation ends once")
    }

    /// Notes whether the oldest operation in flight has exceeded the side's limit.
    pub(super) fn refresh_stuck(&self, now: Instant) {
        self.stuck
            .set(self.overdue_at().is_some_and(|at| now >= at));
    }

    /// True when it has been given nothing that it has not done, and nothing waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.oldest().is_none() && !self.queue.borrow().has_waiting()
    }

    /// The oldest operation in flight.
    pub(super) fn oldest(&self) -> Option<(u64, Started)> {
        self.started
            .borrow()
            .iter()
            .next()
            .map(|(&operation, &started)| (operation, started))
    }

    /// When the oldest operation in flight exceeds the side's own limit; `None` when there is no
    /// operation or no such limit.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        let (_, started) = self.oldest()?;
        let limit_ns = self.policy.borrow().own_limit_ns(started.ahead)?;
        Some(started.at + std::time::Duration::from_nanos(limit_ns))
    }

    /// Writes in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.started.borrow().len()
    }

    /// Makes what a bare device holds durable.
    pub(super) async fn flush(&self) -> Result<(), IoError> {
        match self.device.submit(Request::flush()).await? {
            Reply::Done => Ok(()),
            other => unreachable!("a flush answers nothing, not {other:?}"),
        }
    }
}
