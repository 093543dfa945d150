//! A side that comes back: opening it anew, giving it what it lacks, and letting it count again.

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

/// An absent side is tried again this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A flush that keeps a side from joining, and has failed, is tried again after this.
const FLUSH_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Shared {
    /// Brings absent sides back and makes stale ones whole, for ever.
    pub(super) async fn tend_side(self: Rc<Self>, index: usize) {
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
                // Until the others have an epoch without it, it may be all that holds what was
                // flushed, and must not be touched.
                self.membership
                    .changed
                    .until(|| self.membership.is_marked())
                    .await;
                if !side.life.is_removed() && self.has_come_back(index).await {
                    side.errors_in_a_row.set(0);
                    self.change_life(side, Life::Resyncing);
                    // It may have what nobody else could give.
                    self.repair.forget_all_lost();
                    self.attend_store(index);
                }
                continue;
            }
            let copied = self.copy_what_is_stale(side).await;
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

    /// True when an absent side can be used again.
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

    /// A side whose resync is over joins the healthy ones: once it holds, durably, all that was
    /// acknowledged without it.
    async fn join(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        // From now on its log says what it holds, so all of that must be durable.
        if let Some(store) = side.store() {
            store.end_straight();
        }
        self.settle_copies(side).await?;
        self.until_others_hold_all(side).await?;
        self.drop_superseded(side).await?;
        if !side.out_of_sync.is_empty() || side.life.get() != Life::Resyncing {
            // Something was found to be lacking meanwhile, or the side is not there any more.
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
            // It was given up, or the volume is closed.
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

    /// Waits until the other sides that count hold durably whatever was admitted before. What went
    /// straight home to the side is in no log, so nobody may have to look for it in the log of this
    /// one. A side that is silent is given up meanwhile, and is then brought back by regions.
    ///
    /// # Errors
    /// `Offline` when the side is given up meanwhile.
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
            // A flush that has failed is tried again.
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

    /// Looks at an absent side, and makes it ready to be given what it lacks.
    ///
    /// # Errors
    /// When it is not there, is not what it was, or cannot be used.
    pub(super) async fn bring_back(self: &Rc<Self>, index: usize) -> Result<(), IoError> {
        let side = &self.sides[index];
        let volume = self
            .membership
            .superblocks
            .as_ref()
            .ok_or(IoError::Offline)?;
        // One that could not be read when the volume was opened is known by its name only.
        let by_name = || {
            Some(Candidate {
                name: side.name.clone(),
                device: Rc::clone(side.way.as_ref()?) as Rc<dyn Device>,
            })
        };
        let candidate = volume.candidate(index).or_else(by_name);
        let candidate = candidate.ok_or(IoError::Offline)?;
        let before = volume.superblock(index);
        // Of one that was given up since the volume was opened it is known to the block what it
        // lacks; of one that was missing then, by regions.
        let is_known = side.life.get().absent_because().is_some();
        let mut superseded = Superseded::default();
        if let Some(old) = side.store() {
            old.end().await;
            superseded = old.superseded();
        }
        if let Some(way) = &side.way {
            way.begin_anew().await?;
        }
        let found = candidate.look().await.map_err(|_| IoError::Medium)?;
        let found = found.ok_or(IoError::Offline)?;
        let known = volume.was_in_epoch_of(&found);
        // One that ran without the others is a split, which is never resolved by itself.
        if !volume.misses(index, &found) || !known {
            return Err(IoError::Offline);
        }
        // It may not have been told how large the volume is now.
        let device_bytes = candidate.device.geometry().size_bytes;
        let _fits = found.reaching(volume.volume_bytes(), device_bytes)?;
        let on = store_device(&candidate.device, &found, &self.config);
        let store = Store::open(&self.rt, &on).await?;
        let had = side.store().map_or(0, |old| old.complete_durable());
        // It is an older copy of itself, or has lost something that nobody can name. What one has
        // that was not there when the volume was opened has not been compared with the others.
        let everything = store.found().damaged
            || before.is_none_or(|before| found.generation < before.generation)
            || store.found().complete_below < had;
        // What the side lacks is what changed since it was last a member; a rebuild that was cut
        // short has left it with a newer history. Of a time that ours does not reach back to nobody
        // knows whether the side was a member in it.
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
        // What it is told must not be news to those that count: it would take them for outdated.
        let told = || {
            let healthy = self.healthy();
            healthy.iter().any(|&index| volume.has_current_epoch(index))
        };
        self.membership.changed.until(told).await;
        volume.found(index, candidate, found);
        volume.mark_inconsistent(index, behind).await?;
        store.set_epoch(volume.epoch());
        let mut lacks = RangeSet::for_volume(self.size_bytes());
        if everything {
            lacks.insert(0..self.size_bytes());
        } else {
            // What it was to forget when it was opened, or earlier; nothing else of it is given up.
            let discarded = store.discard_from(u64::MAX, epoch);
            lacks.extend(self.lacks_by_logs(&store));
            if is_known {
                lacks.extend(store.forgotten_ranges());
            } else {
                // It may have been late already when it still was a member.
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

    /// The stores of the healthy sides, by number.
    fn healthy_stores(&self) -> Vec<(usize, Rc<Store>)> {
        let healthy = self.sides.iter().filter(|side| side.is_healthy());
        healthy
            .filter_map(|side| Some((side.index, side.store()?)))
            .collect()
    }

    /// What a side lacks of what the healthy ones have in their logs.
    fn lacks_by_logs(&self, store: &Store) -> Vec<Range<u64>> {
        let newest = newest_among(&self.healthy_stores());
        let logged = lacking(store, &newest, store.complete());
        logged.into_iter().map(|(range, _)| range).collect()
    }

    /// What a side may lack of what has left the logs of the healthy ones since an epoch.
    fn lacks_by_regions(&self, epoch: u64) -> Vec<Range<u64>> {
        let stores = self.healthy_stores().into_iter();
        stores.flat_map(|(_, s)| s.stale_since(epoch)).collect()
    }

    /// Flushes a side that is about to count: it is complete then, and its log says so.
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
