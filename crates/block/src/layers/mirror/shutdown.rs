//! Stopping a volume: the queues and logs are destaged to the home locations, tasks end, and the
//! sides that hold everything are marked as cleanly stopped. A side that lacks a change must never
//! be marked clean.

use std::rc::Rc;
use std::time::Duration;

use super::lifecycle::Life;
use super::shared::{Shared, VolumeState};
use super::side::Side;
use super::superblock::SideState;
use super::volume::Volume;
use crate::error::IoError;

/// Maximum time for which stopping the volume destages the logs.
const EMPTY_WITHIN: Duration = Duration::from_secs(30);

impl Shared {
    /// Drains, flushes and stops the volume: the part of `Device::close` before the sides are
    /// marked clean.
    pub(super) async fn stop(self: &Rc<Self>) -> Result<(), IoError> {
        // No further request is accepted. Changes admitted earlier are drained, whatever the state
        // of the volume was.
        self.set_state(VolumeState::Closed);
        if let Some(run) = self.repair.scrub.interrupt() {
            self.note_scrub(Some(run.record()));
        }
        let flushed = if self.is_logged() {
            self.destage_everything().await
        } else {
            self.drain_and_flush().await.map(|_| ())
        };
        self.end_tasks().await;
        flushed
    }

    /// Ends all background tasks of the volume.
    pub(super) async fn end_tasks(&self) {
        self.watchers.cancel().await;
        // The remaining tasks belong to sides that are not healthy and are no longer monitored. A
        // hanging device may never answer, so the wait has a time limit. The operations of such a
        // device own their buffers until the device answers.
        let ended = self.rt.timeout(self.patience(), self.tasks.join());
        if ended.await.is_err() {
            self.tasks.cancel().await;
        }
        for side in self.sides.numbered() {
            side.stop().await;
        }
    }

    /// Marks the sides that hold everything as cleanly stopped. This succeeds when at least one
    /// side is marked: the next opening then knows that the sides without the mark may lack
    /// changes.
    pub(super) async fn mark_clean(&self, volume: &Volume) -> Result<(), IoError> {
        // The superblocks of sides that have just joined are written last, here as everywhere else.
        let (established, joining): (Vec<usize>, Vec<usize>) = self
            .healthy()
            .into_iter()
            .partition(|&index| volume.is_established(index));
        let mut marked = Vec::new();
        for sides in [established, joining] {
            let marks = sides.into_iter().map(|index| async move {
                let mark =
                    volume.mark_one(index, SideState::Clean, self.membership.closed_at.get());
                let marked = self.rt.timeout(self.patience(), mark).await;
                marked.unwrap_or(Err(IoError::Timeout))
            });
            marked.extend(futures_util::future::join_all(marks).await);
        }
        let first = marked.iter().copied().find(Result::is_ok);
        first.unwrap_or_else(|| marked.into_iter().next().unwrap_or(Err(IoError::Offline)))
    }

    /// Makes every side flush all changes, and destages the logs, when the volume stops. A side
    /// that does not finish in time is ejected, so that the other sides can be marked as complete.
    async fn destage_everything(self: &Rc<Self>) -> Result<(), IoError> {
        let number = self.admission.next_number();
        self.membership.closed_at.set(number);
        for index in 0..self.sides.len() {
            self.want_flushed(index, number);
            self.pump(index);
        }
        let failed = |side: &Side| side.failed_flushes.get() > 0 && !side.flushing.get();
        // A block that no side can provide cannot be repaired, so the stop does not wait for its
        // repair.
        let hopeless = |side: &Side| side.failed_copies.get() > 0;
        let over = |side: &Side| {
            !side.is_counted_on() || side.has_durably(number) || failed(side) || hopeless(side)
        };
        // A side that does not answer is ejected by the task that monitors it, which ends this
        // wait.
        self.flushes
            .changed
            .until(|| self.sides.iter().all(&over))
            .await;
        let complete = |index: usize| {
            let side = &self.sides[index];
            side.is_healthy() && side.has_durably(number)
        };
        let durable = |index: &usize| self.sides[*index].durable.get() && complete(*index);
        if !(0..self.sides.len()).any(|index| durable(&index)) {
            let error = self.sides.iter().find(|side| failed(side));
            return Err(error.map_or(IoError::Offline, |side| side.flush_error.get()));
        }
        for index in self.healthy() {
            if complete(index) {
                continue;
            }
            if !self.another_is_healthy(index) {
                // The complete sides became healthy only now: the superblock of this side does not
                // name them as members yet. So this side cannot be ejected, and closing fails.
                return Err(IoError::Timeout);
            }
            let side = &self.sides[index];
            let reason = match (hopeless(side), failed(side)) {
                (true, _) => IoError::Corrupt,
                (false, true) => side.flush_error.get(),
                (false, false) => IoError::Timeout,
            };
            self.give_up(index, reason);
        }
        for side in self.sides.iter().filter(|side| side.life.is_joining()) {
            self.change_life(side, Life::Resyncing);
        }
        self.release_logs();
        let marked = self
            .membership
            .changed
            .until(|| self.membership.is_marked());
        if self.rt.timeout(self.patience(), marked).await.is_err() {
            // No healthy or joining side could record the ejection, so no side is marked as
            // complete.
            return Err(IoError::Timeout);
        }
        let emptying = self.healthy().into_iter().filter_map(|index| {
            let store = self.sides[index].store()?;
            Some(async move { store.empty().await })
        });
        let emptied = futures_util::future::join_all(emptying);
        // Changes that were not destaged in time stay in the logs, which the next opening replays.
        let _ = self.rt.timeout(EMPTY_WITHIN, emptied).await;
        Ok(())
    }
}
