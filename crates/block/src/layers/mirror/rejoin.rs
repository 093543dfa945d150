//! A side that comes back: opening it again, rebuilding it, and letting it count again.
//!
//! A side must never count before it durably holds every acknowledged change.

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

/// Interval between attempts to open an absent side, and between failed attempts to rebuild one.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Delay before a failed flush that keeps a side from joining is retried.
const FLUSH_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Shared {
    /// Reopens a side while it is absent, and rebuilds it while it is out of sync, until the side
    /// is removed.
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
                // Until another side has an epoch without this one, this side may be the only
                // holder of flushed changes, and must not be modified.
                self.membership
                    .changed
                    .until(|| self.membership.is_marked())
                    .await;
                if !side.life.is_removed() && self.has_come_back(index).await {
                    side.errors_in_a_row.set(0);
                    self.change_life(side, Life::Resyncing);
                    // The side may have content that no other side could provide.
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

    /// Returns true when an absent side can be used again.
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

    /// Makes a side whose resync is over healthy, once it durably holds every change that was
    /// acknowledged without it.
    async fn join(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        // From now on the log of the side says what the side holds, so all of this content must be
        // durable.
        if let Some(store) = side.store() {
            store.end_straight();
        }
        self.settle_copies(side).await?;
        self.until_others_hold_all(side).await?;
        self.drop_superseded(side).await?;
        if !side.out_of_sync.is_empty() || side.life.get() != Life::Resyncing {
            // A range was found to be lacking in the meantime, or the side is no longer present.
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
            // The side was given up, or the volume is closed.
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

    /// Waits until the other sides that count durably hold every change admitted before the call.
    /// Content that was written directly to its home location is in no log, so no side may have to
    /// look for it in the log of this one. A side that is silent is given up in the meantime, and
    /// is later brought back by the regions of the map.
    ///
    /// # Errors
    /// `Offline` when the side is given up in the meantime.
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
            // Retry a flush that has failed.
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

    /// Opens an absent side and prepares it for its rebuild.
    ///
    /// # Errors
    /// When the side is not present, is not the expected side, or cannot be used.
    pub(super) async fn bring_back(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let volume = self
            .membership
            .superblocks
            .as_ref()
            .ok_or(IoError::Offline)?;
        // A side that could not be read when the volume was opened is known by its name only.
        let by_name = || {
            Some(Candidate {
                name: side.name.clone(),
                device: Rc::clone(side.device_path.as_ref()?) as Rc<dyn Device>,
            })
        };
        let candidate = volume.candidate(index).or_else(by_name);
        let candidate = candidate.ok_or(IoError::Offline)?;
        let before = volume.superblock(index);
        // If the side was given up since the volume was opened, the blocks that it lacks are known
        // exactly. If it was missing then, only the regions are known.
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
        let known = volume.was_in_epoch_of(&found);
        // A side that accepted writes while the others were absent has diverged (split brain),
        // which is never resolved automatically.
        if !volume.misses(index, &found) || !known {
            return Err(IoError::Offline);
        }
        // The superblock of the side may have an older size of the volume.
        let device_bytes = candidate.device.geometry().size_bytes;
        let _fits = found.reaching(volume.volume_bytes(), device_bytes)?;
        let on = store_device(&candidate.device, &found, &self.config);
        let store = Store::open(&self.rt, &on).await?;
        let had = side.store().map_or(0, |old| old.complete_durable());
        // The side is an older copy of itself, or its log has lost unknown entries. A side that was
        // missing when the volume was opened has not been compared with the others either.
        let everything = store.found().damaged
            || before.is_none_or(|before| found.generation < before.generation)
            || store.found().complete_below < had;
        // The side lacks the changes since it was last a member; a rebuild that was cut short has
        // left it with a newer history. For a time before the start of the volume's own history, it
        // is unknown whether the side was a member.
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
        // a crash, the healthy sides would then look outdated.
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
            // Ranges of the changes that the log was to forget when the side was opened, or
            // earlier. The log forgets no other changes.
            let discarded = store.discard_from(u64::MAX, epoch);
            lacks.extend(self.lacks_by_logs(&store));
            if is_known {
                lacks.extend(store.forgotten_ranges());
            } else {
                // The side may already have been late while it still was a member.
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

    /// Returns the stores of the healthy sides with the indexes of their sides.
    fn healthy_stores(&self) -> Vec<(usize, Rc<Store>)> {
        let healthy = self.sides.iter().filter(|side| side.is_healthy());
        healthy
            .filter_map(|side| Some((side.index, side.store()?)))
            .collect()
    }

    /// Returns the ranges that a side lacks, among the changes in the logs of the healthy sides.
    fn lacks_by_logs(&self, store: &Store) -> Vec<Range<u64>> {
        let newest = newest_among(&self.healthy_stores());
        let logged = lacking(store, &newest, store.complete());
        logged.into_iter().map(|(range, _)| range).collect()
    }

    /// Returns the ranges that a side may lack because changes of them have left the logs of the
    /// healthy sides since an epoch.
    fn lacks_by_regions(&self, epoch: u64) -> Vec<Range<u64>> {
        let stores = self.healthy_stores().into_iter();
        stores
            .flat_map(|(_, s)| s.out_of_sync_since(epoch))
            .collect()
    }

    /// Flushes a side that is about to count. It is complete then, and its log says so.
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
