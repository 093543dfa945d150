//! What the tasks of a mirror share, by what it guards: the admission of changes, the exposure,
//! flushes, membership, reads and repair each have an owner of their own.
//!
//! The life cycle of a side changes only through [`Shared::change_life`], which wakes all that
//! waits for it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::hetero::HeteroRules;
use bimetal_rt::sync::{Event, TaskGroup};
use bimetal_rt::{Buf, Rt};

use super::admission::Admission;
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

/// A stop waits so long for a side that does not answer, at most.
const PATIENCE_MAX: Duration = Duration::from_secs(30);
/// Bytes of zeroes that are at hand for answers.
const ZEROES_BYTES: usize = 1 << 20;

/// What the volume takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeState {
    Open,
    /// Opened to be looked at: nothing is written to any side, and no side comes or goes.
    Frozen,
    ReadOnly,
    Stopped,
    Closed,
}

/// Counts of the volume since it was opened.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) acknowledged_early: Cell<u64>,
    pub(super) hedged_reads: Cell<u64>,
    pub(super) held_back: Cell<u64>,
    pub(super) sides_given_up: Cell<u64>,
    pub(super) failed_writes: Cell<u64>,
    pub(super) lost_reads: Cell<u64>,
}

/// What a mirror is made of.
pub(super) struct Parts {
    pub(super) sides: Vec<Side>,
    pub(super) geometry: Geometry,
    pub(super) superblocks: Option<Volume>,
    /// The sequence number of the first change.
    pub(super) next_number: u64,
    pub(super) state: VolumeState,
}

/// See the module.
pub(super) struct Shared {
    pub(super) rt: Rt,
    pub(super) config: MirrorConfig,
    /// The rules as they are configured; [`Shared::rules`] has what the logs leave of them.
    pub(super) rules: HeteroRules,
    pub(super) on_degraded: OnDegraded,
    pub(super) acknowledge: Acknowledge,
    pub(super) writable: bool,
    pub(super) state: Cell<VolumeState>,
    pub(super) sides: Sides,
    pub(super) geometry: GrowingGeometry,
    pub(super) admission: Admission,
    pub(super) exposure: Exposure,
    pub(super) flushes: Flushes,
    pub(super) membership: Membership,
    pub(super) preference: Preference,
    pub(super) repair: Repair,
    pub(super) zeroes: Buf,
    pub(super) tasks: TaskGroup,
    /// The tasks that watch and tend the sides; they end only when the volume closes.
    pub(super) watchers: TaskGroup,
    pub(super) counts: Counts,
}

impl Shared {
    /// The state of a mirror that does nothing by itself yet.
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
            exposure: Exposure::none(),
            flushes: Flushes::default(),
            membership: Membership::of(parts.superblocks),
            preference: Preference::of(preferred, hedges),
            repair: Repair::new(rt, config.rebuild.rates(), scrub_rate),
            zeroes: rt.pool().zeroed(ZEROES_BYTES),
            tasks: TaskGroup::new(rt),
            watchers: TaskGroup::new(rt),
            counts: Counts::default(),
        });
        shared.note_logs();
        shared
    }

    /// Moves a side to another state of its life cycle, and wakes all that waits for that.
    ///
    /// # Panics
    /// When a side in its present state cannot become this.
    pub(super) fn change_life(&self, side: &Side, next: Life) {
        side.life.turn(next);
        let everybody: [&Event; 4] = [
            &side.changed,
            &side.out_of_sync.added,
            &self.flushes.changed,
            &self.membership.changed,
        ];
        everybody.into_iter().for_each(Event::notify);
        self.repair.following.wake_first();
    }

    /// The volume takes other requests from now on.
    pub(super) fn set_state(&self, state: VolumeState) {
        self.state.set(state);
        self.repair.following.wake_first();
    }

    /// The sides that hold everything acknowledged, or will before a write counts on them.
    pub(super) fn healthy(&self) -> Vec<usize> {
        let healthy = self.sides.iter().filter(|side| side.is_healthy());
        healthy.map(|side| side.index).collect()
    }

    /// True when every side of the volume is healthy.
    pub(super) fn all_are_healthy(&self) -> bool {
        self.sides.iter().all(Side::is_healthy)
    }

    /// True when the volume can do without a side: another one is healthy, and the side itself says
    /// durably that the other one counts. One that has joined and that the side was not told of yet
    /// is no such one: started without it, the side would take itself for all there is.
    pub(super) fn another_is_healthy(&self, index: usize) -> bool {
        let volume = self.membership.superblocks.as_ref();
        let is_told = |other: usize| {
            volume.is_none_or(|volume| !volume.is_established(index) || volume.knows(index, other))
        };
        let healthy = self.healthy().into_iter();
        healthy.filter(|other| *other != index).any(is_told)
    }

    /// The rules, with the exposure bounded so that what one side lacks fits into its log: within a
    /// group of overtaken changes nothing is complete before its end, and nothing can go home.
    pub(super) fn rules(&self) -> HeteroRules {
        let by_logs = self.exposure.bytes_max_by_logs();
        HeteroRules {
            exposure_bytes_max: self.rules.exposure_bytes_max.min(by_logs),
            ..self.rules
        }
    }

    /// The logs have changed.
    pub(super) fn note_logs(&self) {
        let stores = self.sides.iter().filter_map(Side::store);
        let least = stores.map(|store| store.backlog_bytes_max()).min();
        self.exposure
            .set_bytes_max_by_logs(least.unwrap_or(u64::MAX));
    }

    /// Size of the volume in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.geometry.get().size_bytes
    }

    /// How long a stop waits for a side that does not answer.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_nanos(self.rules.absent_after_ns).min(PATIENCE_MAX)
    }

    pub(super) fn is_paper(&self) -> bool {
        self.rules.is_paper()
    }

    /// True when the sides keep logs: a volume that can be opened again.
    pub(super) fn is_logged(&self) -> bool {
        self.membership.superblocks.is_some()
    }

    /// Starts what the volume does by itself.
    pub(super) fn start(self: &Rc<Self>) {
        for index in 0..self.sides.len() {
            self.tend(index);
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
        self.watchers.spawn(Rc::clone(self).look_for_suspects());
    }

    /// Starts what the volume does for one side, from its coming to its removal.
    pub(super) fn tend(self: &Rc<Self>, index: usize) {
        self.watchers.spawn(Rc::clone(self).watch_side(index));
        self.watchers.spawn(Rc::clone(self).tend_side(index));
        self.attend_way(index);
        self.attend_store(index);
    }
}
