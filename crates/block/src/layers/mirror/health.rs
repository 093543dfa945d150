//! Watching the sides: who is late, who is gone, who has come back, and who counts again.
//!
//! A side that works but lags is only delayed: once the exposure is full it sets the pace. A side
//! that has work and completes nothing for [`absent_after`](super::MirrorConfig::absent_after), or
//! that fails again and again, is absent: the volume is degraded, nothing waits for the side any
//! more, and what it lacks is kept as a set of ranges, without the data. Ranges that an absent side
//! is still working on stay quarantined: the side is not used again before all of them have ended.

use std::rc::Rc;
use std::time::Duration;

use super::side::{Health, Side, add};
use super::{OnDegraded, Shared, VolumeState};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::Request;

/// An absent side is tried again this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The last side is marked again so long after it could not be.
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Shared {
    /// Watches the writes of one side for ever; see the module.
    pub(super) async fn watch_side(self: Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            let ended = || side.gone.get() && side.oldest().is_none();
            side.changed
                .until(|| side.oldest().is_some() || ended())
                .await;
            if ended() {
                return;
            }
            let Some((operation, started)) = side.oldest() else {
                continue;
            };
            let overdue_at = side.overdue_at();
            if let Some(overdue_at) = overdue_at
                && self.rt.now() < overdue_at
            {
                self.rt.sleep_until(overdue_at).await;
                continue;
            }
            if overdue_at.is_some() && !side.stuck.get() {
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
                .until(|| side.oldest().is_none_or(|(o, _)| o != operation));
            // The time being up is what the next round looks at.
            let _ = self.rt.timeout(left, moved_on).await;
        }
    }

    /// The oldest write of a side has exceeded the side's limit.
    fn overdue(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        side.stuck.set(true);
        side.policy.borrow_mut().overdue(self.rt.now().as_ns());
        self.hurry_elsewhere(index);
    }

    fn silent(self: &Rc<Self>, index: usize) {
        if self.another_is_healthy(index) {
            self.give_up(index, IoError::Timeout);
        }
    }

    /// From now on the volume does without the side.
    pub(super) fn give_up(self: &Rc<Self>, index: usize, error: IoError) {
        let side = &self.sides[index];
        assert!(
            self.another_is_healthy(index),
            "the last healthy side is never given up"
        );
        side.health.set(Health::Absent);
        side.absent_because.set(Some(error));
        side.joining.set(false);
        side.under_repair.borrow_mut().clear();
        if let Some(store) = side.store() {
            store.halt(error);
        }
        let lost = side.queue.borrow_mut().abandon_waiting(index, error);
        let flying = side.queue.borrow().pending_in(&(0..u64::MAX));
        side.queue.borrow().give_up_flying(index, error);
        lost.into_iter()
            .chain(flying)
            .for_each(|range| side.note_lack(range));
        add(&self.counts.sides_given_up, 1);
        match (self.on_degraded, self.state.get()) {
            (OnDegraded::ReadOnly, VolumeState::Open) => self.state.set(VolumeState::ReadOnly),
            (OnDegraded::Stop, VolumeState::Open | VolumeState::ReadOnly) => {
                self.state.set(VolumeState::Stopped);
            }
            // What is closed stays closed.
            _ => {}
        }
        self.announce_loss();
        self.recount_exposure();
        self.release_logs();
        self.flushed.notify();
        self.stale_added.notify();
        side.given_up.notify();
        side.changed.notify();
    }

    /// The sides that hold everything get an epoch without the one that was given up, so that
    /// after a crash nobody takes that one for the truth. Nothing is acknowledged before one of
    /// them has it.
    fn announce_loss(self: &Rc<Self>) {
        if let Some(epoch) = self.begin_epoch() {
            self.epoch_needed.set(epoch);
        }
    }

    /// Begins an epoch of the healthy sides and has it written to them. Returns its number; `None`
    /// without superblocks.
    pub(super) fn begin_epoch(self: &Rc<Self>) -> Option<u64> {
        let volume = self.superblocks.as_ref()?;
        let epoch = volume.begin_epoch(&self.healthy(), self.next_seq.get());
        // A side that is being rebuilt is given changes of the new epoch as well: in its log under
        // the old one they would not count.
        for store in self.sides.iter().filter(|side| side.is_active()) {
            if let Some(store) = store.store() {
                store.set_epoch(epoch);
            }
        }
        for index in self.healthy() {
            self.mark_side(index);
        }
        Some(epoch)
    }

    /// True when the side that was given up last is known to be behind, whatever happens.
    pub(super) fn is_marked(&self) -> bool {
        self.epoch_marked.get() >= self.epoch_needed.get()
    }

    /// Writes the newest epoch to a side, unless that is being done.
    pub(super) fn mark_side(self: &Rc<Self>, index: usize) {
        if self.superblocks.is_some() && !self.sides[index].marking.replace(true) {
            let shared = Rc::clone(self);
            self.tasks
                .spawn(async move { shared.keep_marking(index).await });
        }
    }

    /// A side that joins is told last: if it counted while the others did not know, each would
    /// take itself for the only one.
    fn may_be_marked(&self, index: usize) -> bool {
        let volume = self.superblocks.as_ref().expect("only these are marked");
        let mut others = self.healthy().into_iter().filter(|&other| other != index);
        volume.is_established(index)
            || others.all(|other| !volume.is_established(other) || volume.knows(other, index))
    }

    /// True when an epoch without the sides that were given up may begin: what was flushed while
    /// they counted is durable on a member of it, or cannot be for another reason. On a member that
    /// would be asked for it, as long as there is one that can have it.
    fn holds_what_was_flushed(&self) -> bool {
        let flushed = self.flushed_below.get();
        let members = || {
            let healthy = self
                .sides
                .iter()
                .filter(|s| s.health.get() == Health::Healthy);
            healthy.filter(|side| side.durable.get())
        };
        let asked = || members().filter(|side| self.would_be_asked(side.index));
        let holds = |side: &Side| {
            let store = side.store();
            store.is_some_and(|store| store.complete_durable() >= flushed)
        };
        if self.is_marked() || asked().any(holds) {
            return true;
        }
        let any = members().any(holds) || !members().any(Side::holds_all);
        any && !asked().any(Side::holds_all)
    }

    /// Has the members of a new epoch flush what was flushed on a side that was given up.
    fn flush_before_epoch(self: &Rc<Self>) {
        for index in self.healthy() {
            self.want_flushed(index, self.flushed_below.get());
        }
    }

    async fn keep_marking(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        let volume = self.superblocks.as_ref().expect("only these are marked");
        while side.health.get() == Health::Healthy {
            let gone = || side.health.get() != Health::Healthy;
            let held = || gone() || self.holds_what_was_flushed();
            while !held() {
                // A flush that has failed is tried again.
                self.flush_before_epoch();
                self.release_logs();
                let moved = self.flushed.until(held);
                let _ = self.rt.timeout(MARK_AGAIN_AFTER, moved).await;
            }
            let allowed = || gone() || self.may_be_marked(index);
            self.exposure_changed.until(allowed).await;
            if side.health.get() != Health::Healthy {
                break;
            }
            let (epoch, state) = (volume.epoch(), self.wanted_mark());
            // It counts as work in flight, so that a side that hangs in it is noticed.
            let operation = side.start(self.rt.now());
            let complete = side.store().map_or(0, |store| store.complete_durable());
            let written = volume.mark_one(index, state, complete).await;
            side.finish(operation, self.rt.now());
            side.changed.notify();
            self.pump(index);
            match written {
                Ok(()) if side.health.get() == Health::Healthy => {
                    let marked = self.epoch_marked.get().max(epoch);
                    self.epoch_marked.set(marked);
                    self.release_logs();
                    self.exposure_changed.notify();
                    self.flushed.notify();
                    if epoch == volume.epoch() && state == self.wanted_mark() {
                        break;
                    }
                }
                Ok(()) => break,
                Err(error) if self.another_is_healthy(index) => {
                    add(&side.counts.errors, 1);
                    self.give_up(index, error);
                }
                Err(_) => {
                    add(&side.counts.errors, 1);
                    self.rt.sleep(MARK_AGAIN_AFTER).await;
                }
            }
        }
        side.marking.set(false);
    }

    /// Brings absent sides back and makes stale ones whole, for ever.
    pub(super) async fn tend_side(self: Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            self.stale_added
                .until(|| side.health.get() != Health::Healthy || !side.stale.borrow().is_empty())
                .await;
            if side.gone.get() {
                return;
            }
            if side.health.get() == Health::Absent {
                side.changed.until(|| side.in_flight() == 0).await;
                self.rt.sleep(PROBE_EVERY).await;
                // Until the others have an epoch without it, it may be all that holds what was
                // flushed, and must not be touched.
                self.exposure_changed.until(|| self.is_marked()).await;
                if !side.gone.get() && self.has_come_back(index).await && !side.gone.get() {
                    side.errors_in_a_row.set(0);
                    side.health.set(Health::Resyncing);
                    // It may have what nobody else could give.
                    self.known_lost.borrow_mut().clear();
                    self.attend_store(index);
                }
                continue;
            }
            let copied = self.copy_what_is_stale(side).await;
            let failed = side.failed_copies.get();
            side.failed_copies
                .set(copied.map_or(failed.saturating_add(1), |()| 0));
            side.changed.notify();
            self.flushed.notify();
            let whole = copied.is_ok() && side.health.get() == Health::Resyncing;
            if copied.is_err() || whole && self.join(index).await.is_err() {
                add(&side.counts.errors, 1);
                self.rt.sleep(PROBE_EVERY).await;
            }
        }
    }

    /// True when an absent side can be used again.
    async fn has_come_back(self: &Rc<Self>, index: usize) -> bool {
        let side = &self.sides[index];
        if self.is_logged() {
            return self.bring_back(index).await.is_ok();
        }
        let read = side.ask(Request::read(0, BLOCK_BYTES)).await;
        read.is_ok() && side.flush().await.is_ok()
    }

    /// A side whose resync is over joins the healthy ones: once it holds, durably, all that was
    /// acknowledged without it.
    async fn join(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let before = self.next_seq.get();
        side.joining.set(true);
        side.joined_from.set(before);
        self.pump(index);
        let caught_up = || {
            let oldest = side.queue.borrow().oldest_seq();
            !side.joining.get() || oldest.is_none_or(|oldest| oldest >= before)
        };
        side.changed.until(caught_up).await;
        let flushed = self.flush_for_joining(index).await;
        if let Err(error) = flushed
            && side.is_active()
        {
            self.lost_since_last_flush(index, error);
        }
        let joined = flushed.is_ok() && side.joining.get() && side.stale.borrow().is_empty();
        side.joining.set(false);
        if joined {
            side.health.set(Health::Healthy);
            for other in self.sides.iter() {
                let queue = other.queue.borrow();
                queue
                    .outstanding()
                    .for_each(|ticket| ticket.decides_from_now(index, self.rt.now()));
            }
            if let Some(store) = side.store() {
                store.set_mixes(false);
            }
            self.begin_epoch();
            self.release_logs();
            let all_healthy = self
                .sides
                .present()
                .all(|s| s.health.get() == Health::Healthy);
            if all_healthy && self.state.get() == VolumeState::ReadOnly && self.writable {
                self.state.set(VolumeState::Open);
            }
        }
        self.recount_exposure();
        self.pump(index);
        flushed
    }
}
