//! State that the tasks of a mirror share. The admission of changes, the exposure, flushes,
//! membership, the preference of reads, and repair each have a type of their own, which guards its
//! part of the state.
//!
//! The life cycle of a side must change only through [`Shared::change_life`], which wakes all tasks
//! that wait for such a change.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::hetero::HeteroRules;
use bimetal_rt::sync::{Event, TaskGroup};
use bimetal_rt::{Buf, Rt};

use super::admission::Admission;
use super::capacity::Capacity;
use super::config::{Acknowledge, MirrorConfig, OnDegraded};
use super::exposure::Exposure;
use super::flushes::Flushes;
use super::lifecycle::Life;
use super::membership::Membership;
use super::preference::Preference;
use super::repair::Repair;
use super::side::Side;
use super::sides::Sides;
use super::volume::Volume;
use crate::geometry::{Geometry, GrowingGeometry};

/// Maximum time for which stopping the volume waits for a side that does not answer.
const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Length of the buffer of zero bytes. Replies that consist of zeroes refer to this buffer.
const ZEROES_BYTES: usize = 1 << 20;

/// State of the volume, which decides which requests are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeState {
    Open,
    /// Opened for inspection: no side is written to, added or removed.
    Frozen,
    ReadOnly,
    Stopped,
    Closed,
}

/// Counters of the volume since it was opened.
#[derive(Default)]
pub(super) struct VolumeCounters {
    pub(super) acknowledged_early: Cell<u64>,
    pub(super) saved_from_freezes: Cell<u64>,
    pub(super) hedged_reads: Cell<u64>,
    pub(super) backpressured_writes: Cell<u64>,
    pub(super) sides_ejected: Cell<u64>,
    pub(super) failed_writes: Cell<u64>,
    pub(super) lost_reads: Cell<u64>,
}

/// Initial values from which the state of a mirror is created.
pub(super) struct Parts {
    pub(super) sides: Vec<Side>,
    pub(super) geometry: Geometry,
    pub(super) superblocks: Option<Volume>,
    /// Sequence number of the first change.
    pub(super) next_number: u64,
    pub(super) capacity: Capacity,
    pub(super) state: VolumeState,
}

/// State of a mirror; see the module.
pub(super) struct Shared {
    pub(super) rt: Rt,
    pub(super) config: MirrorConfig,
    /// Configured rules. [`Shared::rules`] returns them with the exposure limit lowered, if
    /// necessary, to what the smallest log permits.
    pub(super) rules: HeteroRules,
    pub(super) on_degraded: OnDegraded,
    pub(super) acknowledge: Acknowledge,
    pub(super) writable: bool,
    pub(super) state: Cell<VolumeState>,
    pub(super) sides: Sides,
    pub(super) geometry: GrowingGeometry,
    pub(super) admission: Admission,
    pub(super) capacity: Capacity,
    pub(super) exposure: Exposure,
    pub(super) flushes: Flushes,
    pub(super) membership: Membership,
    pub(super) preference: Preference,
    pub(super) repair: Repair,
    pub(super) zeroes: Buf,
    pub(super) tasks: TaskGroup,
    /// Tasks that monitor and restore the sides; they end only when the volume closes.
    pub(super) watchers: TaskGroup,
    pub(super) counts: VolumeCounters,
}

impl Shared {
    /// Creates the state of a mirror without starting any task.
    ///
    /// # Panics
    /// When no side is healthy.
    pub(super) fn of(rt: &Rt, config: &MirrorConfig, parts: Parts) -> Rc<Shared> {
        let preferred = parts.sides.iter().position(Side::is_healthy);
        let preferred = preferred.expect("a mirror has a side with the data");
        let rules = config.rules();
        let hedges = config.hedge_reads && !rules.is_paper();
        let scrub_rate = config.scrub_rate.map(|rate| rate.0);
        let shared = Rc::new(Shared {
            rt: rt.clone(),
            config: config.clone(),
            rules,
            on_degraded: config.on_degraded,
            acknowledge: config.acknowledge,
            writable: parts.geometry.writable,
            state: Cell::new(parts.state),
            sides: Sides::new(parts.sides),
            geometry: GrowingGeometry::new(parts.geometry),
            admission: Admission::new(parts.next_number, config.serial),
            capacity: parts.capacity,
            exposure: Exposure::none(rt.now()),
            flushes: Flushes::default(),
            membership: Membership::of(parts.superblocks),
            preference: Preference::of(preferred, hedges),
            repair: Repair::new(rt, config.rebuild.rates(), scrub_rate),
            zeroes: rt.pool().zeroed(ZEROES_BYTES),
            tasks: TaskGroup::new(rt),
            watchers: TaskGroup::new(rt),
            counts: VolumeCounters::default(),
        });
        for side in shared.sides.iter() {
            side.life_since.set(rt.now());
            side.advanced_at.set(rt.now());
        }
        shared.note_logs();
        shared
    }

    /// Moves a side to another state of its life cycle, and wakes all tasks that wait for such a
    /// change.
    ///
    /// # Panics
    /// When the transition from the present state of the side is not allowed.
    pub(super) fn change_life(&self, side: &Side, next: Life) {
        side.life.turn(next);
        side.life_since.set(self.rt.now());
        side.advanced_at.set(self.rt.now());
        let everybody: [&Event; 4] = [
            &side.changed,
            &side.out_of_sync.added,
            &self.flushes.changed,
            &self.membership.changed,
        ];
        everybody.into_iter().for_each(Event::notify);
        self.repair.following.wake_first();
    }

    /// Sets the state of the volume, and wakes the first change that waits until a side that is
    /// being rebuilt has room for it.
    pub(super) fn set_state(&self, state: VolumeState) {
        self.state.set(state);
        self.repair.following.wake_first();
    }

    /// Returns the indexes of the healthy sides; see
    /// [`LifeCycle::is_healthy`](super::lifecycle::LifeCycle::is_healthy).
    pub(super) fn healthy(&self) -> Vec<usize> {
        let healthy = self.sides.iter().filter(|side| side.is_healthy());
        healthy.map(|side| side.index).collect()
    }

    /// Returns true when every side of the volume is healthy.
    pub(super) fn all_are_healthy(&self) -> bool {
        self.sides.iter().all(Side::is_healthy)
    }

    /// Returns true when the volume can continue without side `index`: another side is healthy, and
    /// the durable superblock of side `index` names that other side as a member. A side that has
    /// joined but is not yet a member in that superblock does not suffice: if side `index` were
    /// started alone later, it would consider itself the only complete side.
    pub(super) fn another_is_healthy(&self, index: usize) -> bool {
        self.healthy_without(index).next().is_some()
    }

    /// Returns the sides with each of which alone the volume can continue without side `index`; see
    /// [`Shared::another_is_healthy`].
    pub(super) fn healthy_without(&self, index: usize) -> impl Iterator<Item = &Side> {
        let volume = self.membership.superblocks.as_ref();
        let is_acknowledged = move |other: usize| {
            volume.is_none_or(|volume| !volume.is_established(index) || volume.knows(index, other))
        };
        let others = self.sides.iter().filter(move |side| side.index != index);
        others.filter(move |side| side.is_healthy() && is_acknowledged(side.index))
    }

    /// Returns the rules of the volume, with the exposure also bounded by the smallest log, so that
    /// the content that a side lacks fits into its log. The log cannot make room by destaging part
    /// of a group: changes in a group overtake each other, so none of them can be destaged until
    /// the whole group is in the log.
    pub(super) fn rules(&self) -> HeteroRules {
        let by_logs = self.exposure.bytes_max_by_logs();
        HeteroRules {
            exposure_bytes_max: self.rules.exposure_bytes_max.min(by_logs),
            ..self.rules
        }
    }

    /// Updates the bound that the logs put on the exposure, after the logs of the sides have
    /// changed.
    pub(super) fn note_logs(&self) {
        let stores = self.sides.iter().filter_map(Side::store);
        let least = stores.map(|store| store.backlog_bytes_max()).min();
        self.exposure
            .set_bytes_max_by_logs(least.unwrap_or(u64::MAX));
    }

    /// Returns the size of the volume in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.geometry.get().size_bytes
    }

    /// Returns the time for which stopping the volume waits for a side that does not answer.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_nanos(self.rules.absent_after_ns).min(PATIENCE_MAX)
    }

    pub(super) fn is_paper(&self) -> bool {
        self.rules.is_paper()
    }

    /// Returns true when the sides have superblocks and logs, so that the volume can be opened
    /// again.
    pub(super) fn is_logged(&self) -> bool {
        self.membership.superblocks.is_some()
    }

    /// Starts the background tasks of the volume.
    pub(super) fn start(self: &Rc<Self>) {
        for index in 0..self.sides.len() {
            self.monitor(index);
        }
        if !self.is_logged() {
            return;
        }
        self.release_logs();
        for index in 0..self.sides.len() {
            self.want_flushed(index, self.admission.next_number());
        }
        self.watchers.spawn(Rc::clone(self).settle());
        self.watchers.spawn(Rc::clone(self).carry_on());
        self.resume_scrub();
        self.watchers.spawn(Rc::clone(self).keep_logs_moving());
        self.watchers.spawn(Rc::clone(self).find_suspects());
    }

    /// Starts the tasks and callbacks of one side, which last until the side is removed.
    pub(super) fn monitor(self: &Rc<Self>, index: usize) {
        self.watchers.spawn(Rc::clone(self).watch_side(index));
        self.watchers.spawn(Rc::clone(self).monitor_side(index));
        self.monitor_path(index);
        self.monitor_store(index);
    }
}
