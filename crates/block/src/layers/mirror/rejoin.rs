//! Return of an absent side: opening it again, rebuilding it, and making it a member again.
//!
//! A side must never become a member before it durably holds every acknowledged change.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use super::family::Behind;
use super::lifecycle::Life;
use super::opening::{lacking, newest_among, store_device};
use super::shared::{Shared, VolumeState};
use super::side::{Side, add};
use super::store::{Store, Superseded};
use super::superblock::{Candidate, Epoch};
use crate::BLOCK_BYTES;
use crate::device::Device;
use crate::error::IoError;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Interval between attempts to open an absent side, and between attempts to rebuild a side after a
/// failure.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A joining side waits until the other sides are flushed. If it has waited for this time, the
/// flushes are requested again.
const FLUSH_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Shared {
    /// Reopens a side whenever it is absent, and rebuilds it whenever it is out of sync, until the
    /// side is removed.
    pub(super) async fn monitor_side(self: Rc<Self>, index: usize) {
        let side = &self.sides[index];
        loop {
            side.out_of_sync
                .added
                .until(|| !side.is_healthy() || !side.out_of_sync.is_empty())
                .await;
            if side.life.is_removed() {
                return;
            }
            if !side.is_active() {
                side.changed.until(|| side.work.in_flight() == 0).await;
                self.rt.sleep(PROBE_EVERY).await;
                // Until another side durably has an epoch that excludes the absent side, the absent
                // side may be the only holder of flushed changes and must not be modified.
                self.membership
                    .changed
                    .until(|| self.membership.is_marked())
                    .await;
                if !side.life.is_removed() && self.has_come_back(index).await {
                    side.errors_in_a_row.set(0);
                    self.change_life(side, Life::Resyncing);
                    // The side may have content that no side could provide until now. Blocks that
                    // were considered lost are therefore repaired again.
                    self.repair.forget_all_lost();
                    self.monitor_store(index);
                }
                continue;
            }
            let copied = self.copy_out_of_sync_regions(side).await;
            let failed = side.failed_copies.get();
            side.failed_copies
                .set(copied.map_or(failed.saturating_add(1), |()| 0));
            side.changed.notify();
            self.flushes.changed.notify();
            let whole = copied.is_ok() && side.life.get() == Life::Resyncing;
            if copied.is_err() || whole && self.join(index).await.is_err() {
                add(&side.counts.errors, 1);
                self.rt.sleep(PROBE_EVERY).await;
            }
        }
    }

    /// Tries to open an absent side, and returns true when it can be used again.
    async fn has_come_back(self: &Rc<Self>, index: usize) -> bool {
        let side = &self.sides[index];
        side.coming_back.set(true);
        let back = match self.is_logged() {
            true => self.bring_back(index).await.is_ok(),
            false => {
                let read = side.ask(Request::read(0, BLOCK_BYTES)).await;
                read.is_ok() && side.flush().await.is_ok()
            }
        };
        side.coming_back.set(false);
        side.changed.notify();
        back && !side.life.is_removed()
    }

    /// Marks a side whose rebuild is complete as healthy. Before that, waits until the side durably
    /// holds every change that was acknowledged without it.
    async fn join(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        // After this call, the log of the side defines the content of the side. Before the side
        // joins, the content that the rebuild wrote directly to its home location must be durable.
        if let Some(store) = side.store() {
            store.end_straight();
        }
        self.settle_copies(side).await?;
        self.until_others_hold_all(side).await?;
        self.drop_superseded(side).await?;
        if !side.out_of_sync.is_empty() || side.life.get() != Life::Resyncing {
            // The side cannot join yet: a range was found to be lacking, or the side was ejected,
            // during the waits above.
            return Ok(());
        }
        let before = self.admission.next_number();
        let joining = Life::Joining {
            counted_from: before,
        };
        self.change_life(side, joining);
        self.pump(index);
        let caught_up = || {
            let oldest = side.queue.borrow().oldest_seq();
            !side.life.is_joining() || oldest.is_none_or(|oldest| oldest >= before)
        };
        side.changed.until(caught_up).await;
        let flushed = self.flush_for_joining(index).await;
        if let Err(error) = flushed
            && side.is_active()
        {
            self.lost_since_last_flush(index, error);
        }
        if side.life.get() != joining {
            // The side was ejected or removed while it was joining.
        } else if flushed.is_err() || !side.out_of_sync.is_empty() {
            self.change_life(side, Life::Resyncing);
        } else {
            let joined = Life::Healthy {
                counted_from: before,
            };
            self.change_life(side, joined);
            for other in self.sides.iter() {
                let queue = other.queue.borrow();
                queue
                    .outstanding()
                    .for_each(|ticket| ticket.decides_from_now(index, self.rt.now()));
            }
            if let Some(store) = side.store() {
                store.end_mixing();
            }
            self.begin_epoch();
            self.release_logs();
            if self.all_are_healthy() && self.state.get() == VolumeState::ReadOnly && self.writable
            {
                self.set_state(VolumeState::Open);
            }
        }
        self.recount_exposure();
        self.pump(index);
        flushed
    }

    /// Waits until the other healthy or joining sides durably hold every change admitted before the
    /// call. The rebuild wrote content directly to home locations of `side`, and this content is
    /// not in the log of `side`. So another side could not recover the content from that log, and
    /// must hold it itself. If another side does not answer, it is ejected in the meantime, and is
    /// later rebuilt from the dirty-region bitmap.
    ///
    /// # Errors
    /// `Offline` when `side` is ejected during the wait.
    async fn until_others_hold_all(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        if !self.is_logged() {
            return Ok(());
        }
        let number = self.admission.next_number();
        let all_hold = || {
            let mut others = self.sides.iter().filter(|other| other.index != side.index);
            others.all(|other| !other.is_counted_on() || other.has_durably(number))
        };
        let over = || !side.is_active() || all_hold();
        while !over() {
            // Requests the flushes again, since one may have failed.
            for other in self.sides.iter().filter(|other| other.index != side.index) {
                self.want_flushed(other.index, number);
            }
            let waited = self.flushes.changed.until(over);
            let _ = self.rt.timeout(FLUSH_AGAIN_AFTER, waited).await;
        }
        match side.is_active() {
            true => Ok(()),
            false => Err(IoError::Offline),
        }
    }

    /// Opens an absent side again and prepares it for its rebuild.
    ///
    /// # Errors
    /// When the device is not present, does not hold the expected side, or cannot be used.
    pub(super) async fn bring_back(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let volume = self
            .membership
            .superblocks
            .as_ref()
            .ok_or(IoError::Offline)?;
        // The superblock of a side that could not be read when the volume was opened is unknown;
        // only the name of the side is known.
        let by_name = || {
            Some(Candidate {
                name: side.name.clone(),
                device: Rc::clone(side.device_path.as_ref()?) as Rc<dyn Device>,
            })
        };
        let candidate = volume.candidate(index).or_else(by_name);
        let candidate = candidate.ok_or(IoError::Offline)?;
        let before = volume.superblock(index);
        // If the side was ejected after the volume was opened, the blocks that it lacks are known
        // exactly. If the side was missing at the opening, only the regions are known.
        let is_known = side.life.get().absent_reason().is_some();
        let mut superseded = Superseded::default();
        if let Some(old) = side.store() {
            old.end().await;
            superseded = old.superseded();
        }
        if let Some(device_path) = &side.device_path {
            device_path.begin_anew().await?;
        }
        let found = candidate.inspect().await.map_err(|_| IoError::Medium)?;
        let found = found.ok_or(IoError::Offline)?;
        if let Some(kind) = self.to_be_formatted(volume, index, &found) {
            let formatted = self.format_again(volume, (index, candidate), found, kind);
            return formatted.await;
        }
        let known = volume.was_in_epoch_of(&found);
        // A side that accepted writes while the other sides were absent has diverged (split brain),
        // which is never resolved automatically.
        if !volume.misses(index, &found) || !known {
            return Err(IoError::Offline);
        }
        // The superblock of the side may still have an older, smaller size of the volume, so the
        // check uses the present size.
        let device_bytes = candidate.device.geometry().size_bytes;
        let _fits = found.reaching(volume.volume_bytes(), device_bytes)?;
        let on = store_device(&candidate.device, &found, &self.config);
        let store = Store::open(&self.rt, &on).await?;
        let had = side.store().map_or(0, |old| old.complete_durable());
        // The side is taken to lack everything in each of these cases: the superblock on its device
        // is older than the one that the volume knew; its log has lost entries, and it is unknown
        // which; the side was missing when the volume was opened, so it was never compared with the
        // other sides.
        let everything = store.found().damaged
            || before.is_none_or(|before| found.generation < before.generation)
            || store.found().complete_below < had;
        // The side lacks the changes since the last epoch in which it was a member, even if an
        // interrupted rebuild has given it a newer history. If the history of the volume no longer
        // has that epoch, it cannot be checked that the side was a member, so the side is treated
        // as lacking everything.
        let reaches_back = |epoch: &&Epoch| volume.knows_epoch(&epoch.id);
        let since = found.last_epoch().filter(reaches_back);
        let since = since.filter(|_| !everything);
        let epoch = since.map_or(0, |epoch| epoch.number);
        let everything = since.is_none();
        let member_until = since.map(|_| epoch);
        let behind = match everything {
            true => Behind::Everything,
            false => Behind::Since {
                epoch,
                discard_from: u64::MAX,
            },
        };
        // The superblock of the side must not get an epoch that no healthy side durably has: after
        // a crash, the healthy sides would look outdated compared with this side.
        let acknowledged = || {
            let healthy = self.healthy();
            healthy.iter().any(|&index| volume.has_current_epoch(index))
        };
        self.membership.changed.until(acknowledged).await;
        volume.found(index, candidate, found);
        volume.mark_inconsistent(index, behind).await?;
        store.set_epoch(volume.epoch());
        let mut lacks = RangeSet::for_volume(self.size_bytes());
        if everything {
            lacks.insert(0..self.size_bytes());
        } else {
            // No change is at or after `u64::MAX`, so this call discards no valid change. It
            // returns the ranges of the invalid changes that the log has discarded, now or at an
            // earlier opening of the side.
            let discarded = store.discard_from(u64::MAX, epoch);
            lacks.extend(self.lacks_by_logs(&store));
            if is_known {
                lacks.extend(store.forgotten_ranges());
            } else {
                // The side possibly lagged already while it was still a member. So the search
                // begins no later than the epoch of the first change that the side lacks.
                let since = epoch.min(volume.epoch_of(store.complete()));
                lacks.extend(self.lacks_by_regions(since));
                lacks.extend(discarded);
            }
        }
        lacks.iter().for_each(|range| side.note_lack(range));
        side.out_of_sync.end_at(self.size_bytes());
        let lacks = side.out_of_sync.set();
        store
            .begin_rebuilt(member_until, &lacks, &superseded)
            .await?;
        if side.life.is_removed() {
            store.stop().await;
            return Err(IoError::Offline);
        }
        store.grow(volume.volume_bytes());
        side.replace_store(store);
        self.note_logs();
        Ok(())
    }

    /// Returns the store of each healthy side, with the index of the side.
    fn healthy_stores(&self) -> Vec<(usize, Rc<Store>)> {
        let healthy = self.sides.iter().filter(|side| side.is_healthy());
        healthy
            .filter_map(|side| Some((side.index, side.store()?)))
            .collect()
    }

    /// Returns the ranges of the changes that are in the logs of the healthy sides and that the
    /// side of `store` lacks.
    fn lacks_by_logs(&self, store: &Store) -> Vec<Range<u64>> {
        let newest = newest_among(&self.healthy_stores());
        let logged = lacking(store, &newest, store.complete());
        logged.into_iter().map(|(range, _)| range).collect()
    }

    /// Returns the ranges that a side may lack because changes since `epoch` are no longer in the
    /// logs of the healthy sides.
    fn lacks_by_regions(&self, epoch: u64) -> Vec<Range<u64>> {
        let stores = self.healthy_stores().into_iter();
        stores
            .flat_map(|(_, s)| s.out_of_sync_since(epoch))
            .collect()
    }

    /// Flushes a side that is about to become healthy. After the flush, the log of the side records
    /// that the side has every change older than its oldest outstanding write.
    pub(super) async fn flush_for_joining(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let Some(store) = side.store() else {
            return self.flush_one(index).await;
        };
        let operation = side.start(self.rt.now());
        let oldest = side.queue.borrow().oldest_seq();
        let flushed = store
            .flush(oldest.unwrap_or(self.admission.next_number()))
            .await;
        side.finish(operation, self.rt.now());
        side.changed.notify();
        self.pump(index);
        flushed
    }
}
