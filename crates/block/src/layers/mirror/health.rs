//! Monitoring the sides: detects late sides, and ejects sides that fail or do not answer.
//!
//! A side that works but lags is only delayed: once the exposure is full, writes proceed at the
//! speed of that side. A side becomes absent when it has operations in flight and completes none
//! for [`absent_after`](super::MirrorConfig::absent_after), or when it fails repeatedly. While
//! changes of clients wait because of a silent side, it becomes absent earlier: when the
//! [patience](bimetal_policy::patience) with it is exhausted. The volume is then degraded, no
//! operation waits for the side any more, and the ranges that the side lacks are recorded without
//! their data. An absent side must not be used again before all of its
//! operations in flight have ended.

use std::rc::Rc;
use std::time::Duration;

use bimetal_policy::patience::Patience;
use bimetal_rt::Instant;

use super::config::{OnDegraded, Silence};
use super::lifecycle::{AbsentReason, Life};
use super::shared::{Shared, VolumeState};
use super::side::{Side, add};
use super::volume::Volume;
use crate::error::IoError;

/// Age from which on clients wait for the log of a side: of an operation of another side that is
/// stuck, of a write that no side has stored, or of a flush.
const FROZEN_AFTER: Duration = Duration::from_millis(20);
/// Interval at which a side that does not answer is checked again when it cannot be ejected or is
/// already absent.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which it is checked whether changes of clients wait because of a side with
/// operations in flight. Changes can wait longer than the patience by this interval. It also
/// bounds the part of a pause of this thread that counts as silence.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Shared {
    /// Monitors the operations of one side until the side has left the volume; see the module.
    pub(super) async fn watch_side(self: Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            let ended = || side.life.is_removed() && side.work.oldest().is_none();
            side.changed
                .until(|| side.work.oldest().is_some() || ended())
                .await;
            if ended() {
                return;
            }
            let Some((operation, started)) = side.work.oldest() else {
                continue;
            };
            self.check_patience(index, started.at);
            let may_leave = self.patience_with(side).is_some() && self.another_is_healthy(index);
            let look_after = match may_leave && side.is_active() {
                true => LOOK_EVERY,
                false => Duration::MAX,
            };
            let overdue_at = side.overdue_at();
            if let Some(overdue_at) = overdue_at
                && self.rt.now() < overdue_at
            {
                let left = overdue_at.since(self.rt.now());
                self.rt.sleep(left.min(look_after)).await;
                continue;
            }
            if overdue_at.is_some() && !side.work.is_stuck() {
                self.overdue(index);
            }
            let silent_since = side.last_progress().max(started.at);
            let absent_after = Duration::from_nanos(self.rules.absent_after_ns);
            // While this thread was paused, completions of the side could not be seen, so most of
            // the pause is not counted as silence of the side.
            let silence = self.rt.awake_since(silent_since);
            if silence >= absent_after && side.is_active() {
                self.silent(index);
            }
            // The last healthy side is never ejected, even if it never answers.
            let left = if side.is_active() && silence < absent_after {
                absent_after - silence
            } else {
                PROBE_EVERY
            };
            let moved_on = side
                .changed
                .until(|| side.work.oldest().is_none_or(|(o, _)| o != operation));
            // The next iteration of the loop handles a timeout.
            let _ = self.rt.timeout(left.min(look_after), moved_on).await;
        }
    }

    /// Marks a side as stuck and delayed, because its oldest operation exceeds the latency limit of
    /// the side.
    fn overdue(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        side.work.set_stuck(true);
        side.policy.borrow_mut().overdue(self.rt.now().as_ns());
        self.escalate_elsewhere(index);
    }

    /// Returns true while clients wait for a side because the others do not answer: one of them is
    /// stuck, or a flush or a write has waited for long, since none has stored it.
    pub(super) fn is_awaited(&self, index: usize) -> bool {
        let is_old = |at: Instant| self.rt.now().since(at) >= FROZEN_AFTER;
        let is_frozen = |side: &Side| {
            let oldest = side.work.oldest();
            side.work.is_stuck() && oldest.is_some_and(|(_, started)| is_old(started.at))
        };
        let write = self.admission.undecided.oldest_admitted();
        let waiting = write.into_iter().chain(self.flushes.oldest_since());
        let is_waited_for = waiting.min().is_some_and(is_old);
        let mut others = self.sides.iter().filter(|side| side.index != index);
        others.any(|side| side.is_active() && (is_waited_for || is_frozen(side)))
    }

    fn silent(self: &Rc<Self>, index: usize) {
        if self.another_is_healthy(index) {
            self.give_up(index, IoError::Timeout);
        }
    }

    /// Ejects a side if changes of clients wait because of it and it has been silent meanwhile,
    /// for as long as the patience with it lasts. `busy_since` is the start of its oldest operation
    /// in flight. The side stays if the sides without it are silent, too: the changes would then
    /// wait nevertheless.
    fn check_patience(self: &Rc<Self>, index: usize, busy_since: Instant) {
        let (side, now) = (&self.sides[index], self.rt.now());
        let Some(mut patience) = self.patience_with(side) else {
            return;
        };
        if !self.is_waited_for(side) {
            side.waited_for_since.set(None);
            return;
        }
        let waited_for_since = side.waited_for_since.get().unwrap_or(now);
        side.waited_for_since.set(Some(waited_for_since));
        let silence_of =
            |side: &Side, since: Instant| self.rt.awake_since(since.max(side.last_progress()));
        let silence = silence_of(side, busy_since.max(waited_for_since));
        let bound = Duration::from_nanos(patience.ns(now.as_ns()));
        let answers = |other: &Side| {
            let oldest = other.work.oldest();
            oldest.is_none_or(|(_, oldest)| silence_of(other, oldest.at) < bound)
        };
        if silence < bound || !self.healthy_without(index).any(answers) {
            return;
        }
        patience.was_ejected(now.as_ns());
        side.patience.set(Some(patience));
        side.waited_for_since.set(None);
        add(&side.counts.silences, 1);
        self.do_without(index, AbsentReason::Silent(silence), self.on_degraded);
    }

    /// Returns the patience with a side; `None` if changes wait until the side is absent. By
    /// default, no side is ejected for silence while a side has a home: the layout of a side can
    /// change while the volume is in use.
    pub(super) fn patience_with(&self, side: &Side) -> Option<Patience> {
        let patience = side.patience.get()?;
        let may_end = self.config.exposure.silence != Silence::BySides || self.all_logged();
        may_end.then_some(patience)
    }

    /// Returns true when all sides are logged.
    pub(super) fn all_logged(&self) -> bool {
        let volume = self.membership.superblocks.as_ref();
        volume.is_some_and(Volume::all_logged)
    }

    /// Returns true when changes of clients wait because of a side: the exposure has little room
    /// for them while the side lacks a change, or they wait until the side, which is being rebuilt,
    /// has room for them.
    fn is_waited_for(&self, side: &Side) -> bool {
        if !side.is_counted_on() {
            return side.is_active() && !self.repair.following.is_empty();
        }
        let writes_wait = self.exposure.is_nearly_full(self.rt.now());
        let lacks_some = || side.queue.borrow().oldest_seq().is_some();
        writes_wait && self.membership.is_marked() && lacks_some()
    }

    /// Ejects a side because of an error: the volume continues without the side, in the state that
    /// the configuration selects for a degraded volume.
    pub(super) fn give_up(self: &Rc<Self>, index: usize, error: IoError) {
        self.do_without(index, AbsentReason::Error(error), self.on_degraded);
    }

    /// Ejects a side because a command requires it. The volume continues to serve requests,
    /// whatever the configured `on_degraded`.
    pub(super) fn dismiss(self: &Rc<Self>, index: usize, because: AbsentReason) {
        self.do_without(index, because, OnDegraded::Continue);
    }

    fn do_without(self: &Rc<Self>, index: usize, because: AbsentReason, on_degraded: OnDegraded) {
        let (side, error) = (&self.sides[index], because.error());
        assert!(
            self.another_is_healthy(index),
            "the last healthy side is never given up"
        );
        self.change_life(side, Life::ejected(because));
        side.out_of_sync.forget_all_corrupt();
        if let Some(store) = side.store() {
            store.halt(error);
        }
        let lost = side.queue.borrow_mut().abandon_waiting(index, error);
        let flying = side.queue.borrow().pending_in(&(0..u64::MAX));
        side.queue.borrow().give_up_flying(index, error);
        let lacks = lost.into_iter().chain(flying);
        lacks.for_each(|range| side.note_lack(range));
        if let Some(store) = side.store() {
            // Changes that are not durable yet may be lost on the side. Recording them as lacking
            // means that, when the side comes back, the blocks that it lacks are known exactly.
            let not_durable = store.take_not_durable();
            not_durable.iter().for_each(|range| side.note_lack(range));
        }
        add(&self.counts.sides_ejected, 1);
        match (on_degraded, self.state.get()) {
            (OnDegraded::ReadOnly, VolumeState::Open) => self.set_state(VolumeState::ReadOnly),
            (OnDegraded::Stop, VolumeState::Open | VolumeState::ReadOnly) => {
                self.set_state(VolumeState::Stopped);
            }
            // A closed volume stays closed.
            _ => {}
        }
        self.announce_loss();
        self.recount_exposure();
        self.release_logs();
    }
}
