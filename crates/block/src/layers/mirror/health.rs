//! Monitoring the sides: which is late, and which is given up.
//!
//! A side that works but lags is only delayed: once the exposure is full it sets the pace. A side
//! that has work and completes nothing for [`absent_after`](super::MirrorConfig::absent_after), or
//! that fails again and again, is absent: the volume is degraded, nothing waits for the side any
//! more, and what it lacks is kept as a set of ranges, without the data. Ranges that an absent side
//! is still working on stay quarantined: the side is not used again before all of them have ended.

use std::rc::Rc;
use std::time::Duration;

use super::config::OnDegraded;
use super::lifecycle::Life;
use super::shared::{Shared, VolumeState};
use super::side::add;
use crate::error::IoError;

/// An absent side is tried again this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);

impl Shared {
    /// Watches the writes of one side for ever; see the module.
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
            let overdue_at = side.overdue_at();
            if let Some(overdue_at) = overdue_at
                && self.rt.now() < overdue_at
            {
                self.rt.sleep_until(overdue_at).await;
                continue;
            }
            if overdue_at.is_some() && !side.work.is_stuck() {
                self.overdue(index);
            }
            let silent_since = side.last_progress().max(started.at);
            let absent_after = Duration::from_nanos(self.rules.absent_after_ns);
            // What the side did while this thread did not look is not known yet.
            let silence = self.rt.awake_since(silent_since);
            if silence >= absent_after && side.is_active() {
                self.silent(index);
            }
            // The last healthy side is never given up, however long it is silent.
            let left = if side.is_active() && silence < absent_after {
                absent_after - silence
            } else {
                PROBE_EVERY
            };
            let moved_on = side
                .changed
                .until(|| side.work.oldest().is_none_or(|(o, _)| o != operation));
            // The time being up is what the next round looks at.
            let _ = self.rt.timeout(left, moved_on).await;
        }
    }

    /// The oldest write of a side has exceeded the side's limit.
    fn overdue(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        side.work.set_stuck(true);
        side.policy.borrow_mut().overdue(self.rt.now().as_ns());
        self.hurry_elsewhere(index);
    }

    fn silent(self: &Rc<Self>, index: usize) {
        if self.another_is_healthy(index) {
            self.give_up(index, IoError::Timeout);
        }
    }

    /// From now on the volume does without the side, and is what the configuration asks for then.
    pub(super) fn give_up(self: &Rc<Self>, index: usize, error: IoError) {
        self.do_without(index, error, self.on_degraded);
    }

    /// From now on the volume does without the side, which leaves by command: that is no reason to
    /// stop serving.
    pub(super) fn dismiss(self: &Rc<Self>, index: usize) {
        self.do_without(index, IoError::Offline, OnDegraded::Continue);
    }

    fn do_without(self: &Rc<Self>, index: usize, error: IoError, on_degraded: OnDegraded) {
        let side = &self.sides[index];
        assert!(
            self.another_is_healthy(index),
            "the last healthy side is never given up"
        );
        self.change_life(side, Life::given_up(error));
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
            // What is not durable yet may be lost: so what the side lacks is known to the block
            // when it comes back.
            let not_durable = store.take_not_durable();
            not_durable.iter().for_each(|range| side.note_lack(range));
        }
        add(&self.counts.sides_given_up, 1);
        match (on_degraded, self.state.get()) {
            (OnDegraded::ReadOnly, VolumeState::Open) => self.set_state(VolumeState::ReadOnly),
            (OnDegraded::Stop, VolumeState::Open | VolumeState::ReadOnly) => {
                self.set_state(VolumeState::Stopped);
            }
            // What is closed stays closed.
            _ => {}
        }
        self.announce_loss();
        self.recount_exposure();
        self.release_logs();
    }
}
