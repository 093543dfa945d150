//! Watching the sides: who is late, who is gone, who has come back, and giving a side what it
//! lacks.
//!
//! A side that works but lags is only delayed: once the exposure is full it sets the pace. A side
//! that has work and completes nothing for [`absent_after`](super::MirrorConfig::absent_after), or
//! that fails again and again, is absent: the volume is degraded, nothing waits for the side any
//! more, and what it lacks is kept as a set of ranges, without the data. Ranges that an absent side
//! is still working on stay quarantined: the side is not used again before all of them have ended.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::side::{Health, Side, add};
use super::superblock::State;
use super::{OnDegraded, Shared, VolumeState};
use crate::error::IoError;
use crate::request::{Flags, Request};

/// An absent side is tried again this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);
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
            let left = if side.is_active() {
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
        self.announce();
        self.recount_exposure();
        self.stale_added.notify();
        side.changed.notify();
    }

    /// Writes a new generation to the sides that hold everything, so that after a crash nobody
    /// takes another one for the truth. Acknowledgements wait until it is durable.
    fn announce(self: &Rc<Self>) {
        if self.superblocks.is_none() {
            return;
        }
        self.marks_pending.set(self.marks_pending.get() + 1);
        let shared = Rc::clone(self);
        self.tasks.spawn(async move {
            if let Some(volume) = &shared.superblocks {
                // A side that cannot take its mark cannot take writes either, and is found by those.
                let _ = volume.mark(&shared.healthy(), State::Active).await;
            }
            shared.marks_pending.set(shared.marks_pending.get() - 1);
            shared.exposure_changed.notify();
        });
    }

    /// Brings absent sides back and makes stale ones whole, for ever.
    pub(super) async fn tend_side(self: Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            self.stale_added
                .until(|| !side.is_active() || !side.stale.borrow().is_empty())
                .await;
            if side.health.get() == Health::Absent {
                side.changed.until(|| side.in_flight() == 0).await;
                self.rt.sleep(PROBE_EVERY).await;
                if self.answers(side).await {
                    side.errors_in_a_row.set(0);
                    side.health.set(Health::Resyncing);
                }
                continue;
            }
            if self.copy_what_is_stale(side).await.is_ok() {
                self.whole_again(index);
            } else {
                add(&side.counts.errors, 1);
                self.rt.sleep(PROBE_EVERY).await;
            }
        }
    }

    /// True when the side can be read and flushed.
    async fn answers(&self, side: &Side) -> bool {
        let read = side.submit(Request::read(0, crate::BLOCK_BYTES)).await;
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
        side.flush().await
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
            let operation = side.start(self.rt.now());
            let write = side
                .submit(Request::write(part.start, data, Flags::NONE))
                .await;
            side.finish(operation, self.rt.now());
            side.changed.notify();
            // What was admitted meanwhile may have waited for the side to be idle.
            self.pump(side.index);
            write?;
            add(&side.counts.resynced_bytes, part.end - part.start);
            side.stale.borrow_mut().remove(part);
        }
        drop(guard);
        Ok(())
    }

    fn whole_again(self: &Rc<Self>, index: usize) {
        let side = &self.sides[index];
        if side.health.get() == Health::Resyncing && side.stale.borrow().is_empty() {
            side.health.set(Health::Healthy);
            self.announce();
            let all_healthy = self.sides.iter().all(|s| s.health.get() == Health::Healthy);
            if all_healthy && self.state.get() == VolumeState::ReadOnly && self.writable {
                self.state.set(VolumeState::Open);
            }
            self.pump(index);
        }
    }
}
