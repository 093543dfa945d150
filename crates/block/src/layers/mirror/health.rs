//! Watching the sides: who is late, who is gone, who has come back, and giving a side what it
//! lacks.
//!
//! A side that works but lags is only delayed: once the exposure is full it sets the pace. A side
//! that has work and completes nothing for [`absent_after`](super::MirrorConfig::absent_after), or
//! that fails again and again, is absent: the volume is degraded, nothing waits for the side any
//! more, and what it lacks is kept as a set of ranges, without the data. Ranges that an absent side
//! is still working on stay quarantined: the side is not used again before all of them have ended.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;

use super::side::{Health, Side, add};
use super::store::Append;
use super::{OnDegraded, Shared, VolumeState};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::{Flags, Request};

/// An absent side is tried again this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The last side is marked again so long after it could not be.
const MARK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// A resync copies this much at a time.
const RESYNC_BYTES: u64 = 1 << 20;

impl Shared {
    /// Watches the writes of one side for ever; see the module.
    pub(super) async fn watch_side(self: Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            side.changed.until(|| side.oldest().is_some()).await;
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
            let silent_since = side.last_progress.get().max(started.at);
            let absent_at = silent_since + Duration::from_nanos(self.rules.absent_after_ns);
            if self.rt.now() >= absent_at && side.is_active() {
                self.silent(index);
            }
            // The last healthy side is never given up, however long it is silent.
            let left = if side.is_active() && self.rt.now() < absent_at {
                absent_at.since(self.rt.now())
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
        side.joining.set(false);
        if let Some(store) = side.store() {
            store.halt(error);
        }
        let lost = side.queue.borrow_mut().abandon_waiting(index, error);
        let flying = side.queue.borrow().pending_in(&(0..u64::MAX));
        side.queue.borrow().give_up_flying(index, error);
        let mut stale = side.stale.borrow_mut();
        for range in lost.into_iter().chain(flying) {
            stale.insert(range, ());
        }
        drop(stale);
        add(&self.counts.sides_given_up, 1);
        match self.on_degraded {
            OnDegraded::Continue => {}
            OnDegraded::ReadOnly => self.state.set(VolumeState::ReadOnly),
            OnDegraded::Stop => self.state.set(VolumeState::Stopped),
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
    fn begin_epoch(self: &Rc<Self>) -> Option<u64> {
        let volume = self.superblocks.as_ref()?;
        let epoch = volume.begin_epoch(&self.healthy(), self.next_seq.get());
        for index in self.healthy() {
            if let Some(store) = self.sides[index].store() {
                store.set_epoch(epoch);
            }
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

    async fn keep_marking(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        let volume = self.superblocks.as_ref().expect("only these are marked");
        while side.health.get() == Health::Healthy {
            let allowed = || side.health.get() != Health::Healthy || self.may_be_marked(index);
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
            if side.health.get() == Health::Absent {
                side.changed.until(|| side.in_flight() == 0).await;
                self.rt.sleep(PROBE_EVERY).await;
                if self.has_come_back(index).await {
                    side.errors_in_a_row.set(0);
                    side.health.set(Health::Resyncing);
                    self.attend_store(index);
                }
                continue;
            }
            let copied = self.copy_what_is_stale(side).await;
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

    /// Copies every stale range of the side from another one, piece by piece, under the range lock.
    async fn copy_what_is_stale(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        loop {
            let next = side.stale.borrow().iter().next().map(|(range, ())| range);
            let Some(next) = next else { break };
            let piece = next.start..next.end.min(next.start + RESYNC_BYTES);
            self.copy_piece(side, piece).await?;
        }
        Ok(())
    }

    async fn copy_piece(self: &Rc<Self>, side: &Side, piece: Range<u64>) -> Result<(), IoError> {
        let guard = self.ranges.lock(piece.clone()).await;
        if side.health.get() == Health::Absent {
            return Err(IoError::Offline);
        }
        // Writes since may have made parts of it fresh, and these must not be undone.
        let stale: Vec<Range<u64>> = {
            let map = side.stale.borrow();
            let parts = map.overlapping(&piece).map(|(part, ())| part);
            parts
                .map(|part| part.start.max(piece.start)..part.end.min(piece.end))
                .collect()
        };
        for part in stale {
            let data = self.read_for_resync(part.clone(), side.index).await?;
            self.write_for_resync(side, part.clone(), data).await?;
            add(&side.counts.resynced_bytes, part.end - part.start);
            side.stale.borrow_mut().remove(part.clone());
            let repaired = side.rotten.borrow_mut().remove(part).into_iter();
            let repaired_bytes: u64 = repaired.map(|(part, ())| part.end - part.start).sum();
            add(&side.counts.repaired_blocks, repaired_bytes / BLOCK_BYTES);
        }
        drop(guard);
        Ok(())
    }

    /// Writes a piece of a resync. When the side is given up meanwhile the piece goes on by itself,
    /// and the side is not used again before it has ended; but its range is not kept locked for it.
    async fn write_for_resync(
        self: &Rc<Self>,
        side: &Side,
        range: Range<u64>,
        data: Payload,
    ) -> Result<(), IoError> {
        let outcome = Rc::new(Cell::new(None));
        let (shared, ended, index) = (Rc::clone(self), Rc::clone(&outcome), side.index);
        let operation = side.start(self.rt.now());
        // A copy is a change of its own, of the newest content, that only this side needs.
        let number = self.next_seq.get();
        self.next_seq.set(number + 1);
        let appended = side
            .store()
            .map(|store| store.append(Append::of(range.clone(), data.clone(), number)));
        self.tasks.spawn(async move {
            let side = &shared.sides[index];
            let written = match appended {
                Some(appended) => appended.wait().await,
                None => {
                    let write = Request::write(range.start, data, Flags::NONE);
                    side.change_bare(write).await
                }
            };
            side.finish(operation, shared.rt.now());
            ended.set(Some(written));
            side.changed.notify();
            // What was admitted meanwhile may have waited for the side to be idle.
            shared.pump(index);
        });
        let over = || outcome.get().is_some() || !side.is_active();
        side.changed.until(over).await;
        outcome.get().unwrap_or(Err(IoError::Timeout))
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
        let joined = flushed.is_ok() && side.joining.get() && side.stale.borrow().is_empty();
        side.joining.set(false);
        if joined {
            side.health.set(Health::Healthy);
            if let Some(store) = side.store() {
                store.set_mixes(false);
            }
            self.begin_epoch();
            self.release_logs();
            let all_healthy = self.sides.iter().all(|s| s.health.get() == Health::Healthy);
            if all_healthy && self.state.get() == VolumeState::ReadOnly && self.writable {
                self.state.set(VolumeState::Open);
            }
        }
        self.recount_exposure();
        self.pump(index);
        flushed
    }
}
