//! Adding and removing sides while the volume is in use.
//!
//! Every change of the set of sides changes the table of sides in the superblocks, and begins an
//! epoch. So the newest history has the newest table: after a crash between the writes of two
//! superblocks, the superblock that was written decides. A new side is formatted, and marked as
//! lacking everything, before any table lists it, so that the next start finds every listed side. A
//! new side must not become a member before its rebuild is complete. A side that leaves is removed
//! from the table only when it is no longer accessed and all flushed changes are durable on another
//! side. The requested operation is remembered together with the table ([`Remembered`]), and
//! `operations.rs` resumes it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Rt;

use super::device_path::DevicePath;
use super::formatting::{NewSide, make_side};
use super::lifecycle::{AbsentReason, Life};
use super::opening::store_device;
use super::shared::{Shared, VolumeState};
use super::side::{Side, SideParts};
use super::sides::NUMBERS_MAX;
use super::store::Store;
use super::superblock::{Candidate, Leaving, Remembered, Superblock, place_in};
use super::volume::Volume;
use crate::device::Device;
use crate::error::IoError;

/// Deadline for writing the superblocks of the sides.
const MARKED_WITHIN: Duration = Duration::from_secs(30);
/// Delay before a failed flush is retried while a side is being removed.
const FLUSH_RETRY_AFTER: Duration = Duration::from_millis(100);

/// Guard of a store that has begun its work but does not belong to a side of the volume yet.
/// Dropping the guard stops the store. This is needed because the operation that makes the side can
/// be cancelled while it waits for the superblocks.
pub(super) struct Begun {
    rt: Rt,
    store: Option<Rc<Store>>,
}

impl Begun {
    fn of(rt: &Rt, store: Rc<Store>) -> Begun {
        Begun {
            rt: rt.clone(),
            store: Some(store),
        }
    }

    /// Disarms the guard, because a side of the volume owns the store from now on.
    pub(super) fn for_a_side(mut self) -> Rc<Store> {
        self.store.take().expect("it is taken once")
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(store) = self.store.take() {
            self.rt.spawn(async move { store.stop().await }).detach();
        }
    }
}

impl Shared {
    /// Adds a device as a further side, which is then rebuilt from the other sides. If `replaced`
    /// is given, the new side replaces that side once the rebuild is complete. The volume remembers
    /// both operations and resumes them after any stop. If the side has already been added, the
    /// device is left unchanged and only the request to replace is recorded again. With `force`, a
    /// device that holds a side of another volume is accepted, and the content of that side is
    /// lost.
    ///
    /// # Errors
    /// One line with the reason why the side was not added. The volume is then unchanged, or lists
    /// a side that is not present.
    pub(super) async fn add_side(
        self: &Rc<Self>,
        candidate: Candidate,
        replaced: Option<&str>,
        force: bool,
    ) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        if let Ok(index) = self.side_named(&candidate.name) {
            return self.ask_again(volume, index, replaced).await;
        }
        let replaced = replaced.map(|name| self.place_to_leave(name)).transpose()?;
        if self.sides.len() == NUMBERS_MAX {
            return Err(
                "too many sides have been added and removed; restart the server".to_owned(),
            );
        }
        let durable = !self.config.ephemeral.contains(&candidate.name);
        // Like every side, the new side is accessed through a device path.
        let device_path = DevicePath::new(&self.rt, candidate.device, &Rc::new(Cell::new(false)));
        let candidate = Candidate {
            name: candidate.name,
            device: Rc::clone(&device_path) as Rc<dyn Device>,
        };
        let new = NewSide {
            asked: self
                .config
                .asked(&candidate.name, self.kind_in_place_of(volume, replaced)),
            not_durable: !durable,
        };
        let own = self.own_side_on(volume, &candidate).await;
        new.check(&candidate, &volume.room(), force || own.is_some())
            .await
            .map_err(|error| error.message)?;
        // If the device holds a listed side of this volume, this side is formatted again at the
        // same place of the table, which keeps the operations remembered for that place.
        let before = own.flatten();
        let (place, listed) = volume.entry_of_new_side(before)?;
        let mut template = volume.any_superblock();
        template.table[place] = Some(listed);
        // The side is completely formatted before any superblock lists it, so that the next start
        // finds the side.
        let made = make_side(&self.rt, &candidate, &template, place, new).await;
        let superblock = made.map_err(|error| error.message)?;
        let begun = self.begin_made(&candidate, &superblock).await?;
        if let Some(place) = before {
            self.drop_unfound(place);
        }
        volume.enter(place, listed);
        volume.remember(|remembered| {
            remembered.set_added(place, true);
            if let Some(replaced) = replaced {
                remembered.set_leaving(replaced, Some(Leaving::OnceComplete(place)));
            }
        });
        if let Err(why) = self.announce_table(volume).await {
            volume.strike(place);
            return Err(why);
        }
        let store = begun.for_a_side();
        let index = self.sides.len();
        let place = SideParts {
            device: Rc::clone(&candidate.device),
            device_path: Some(device_path),
            data_offset: 0,
            store: Some(store),
            durable,
            life: Life::Resyncing,
        };
        let (name, volume_bytes) = (candidate.name.clone(), self.size_bytes());
        let side = Side::logged(index, name, place, self.rules, volume_bytes);
        side.note_lack(0..volume_bytes);
        volume.push(candidate, superblock);
        self.sides.push(side);
        self.note_logs();
        self.monitor(index);
        self.release_logs();
        Ok(())
    }

    /// Opens the store of a side that was just formatted, and begins its rebuild.
    ///
    /// # Errors
    /// One line with the name of the side and the error of its device.
    pub(super) async fn begin_made(
        &self,
        candidate: &Candidate,
        superblock: &Superblock,
    ) -> Result<Begun, String> {
        let on = store_device(&candidate.device, superblock, &self.config);
        let failed = |error| format!("side {}: {error}", candidate.name);
        let store = Store::begin_new(&self.rt, &on).await.map_err(failed)?;
        Ok(Begun::of(&self.rt, store))
    }

    /// Returns `Some` if the device may be formatted again: it holds a side of this volume, the
    /// volume does not use this side, and the side has not diverged. The inner value is the place
    /// of that side in the table, if the table still lists it.
    async fn own_side_on(&self, volume: &Volume, candidate: &Candidate) -> Option<Option<usize>> {
        // An unreadable superblock is refused by the check that the caller makes next.
        let found = candidate.superblock().await.ok().flatten()?;
        let same_volume = found.volume == volume.any_superblock().volume;
        if !same_volume || !volume.was_in_epoch_of(&found) {
            return None;
        }
        match place_in(&volume.table(), &found.side) {
            None => Some(None),
            Some(place) => {
                let unfound = volume.unfound();
                let is_unfound = unfound.iter().any(|(other, _)| *other == place);
                is_unfound.then_some(Some(place))
            }
        }
    }

    /// Marks the side at this place of the table as removed if it was not found at the opening. The
    /// caller gives its place to another side.
    fn drop_unfound(&self, place: usize) {
        let mut sides = self.sides.iter();
        let unfound = sides.find(|side| self.place_of_side(side.index) == Some(place));
        if let Some(side) = unfound.filter(|side| !side.is_active()) {
            self.change_life(side, Life::Removed);
        }
    }

    /// Repeats an earlier request to add a side or to replace one, for the side called `name`.
    /// Returns `None` when the volume has no such side.
    pub(super) async fn ask_again_of(
        self: &Rc<Self>,
        name: &str,
        replaced: Option<&str>,
    ) -> Option<Result<(), String>> {
        let _one = self.membership.changing.acquire(1).await;
        let index = self.side_named(name).ok()?;
        let volume = match self.changeable() {
            Ok(volume) => volume,
            Err(why) => return Some(Err(why)),
        };
        Some(self.ask_again(volume, index, replaced).await)
    }

    /// Handles a request to add a side, or to replace another side with it, when the volume already
    /// has this side. Such a request succeeds if it repeats an earlier one.
    async fn ask_again(
        self: &Rc<Self>,
        volume: &Volume,
        index: usize,
        replaced: Option<&str>,
    ) -> Result<(), String> {
        let side = &self.sides[index];
        let (name, place) = (&side.name, self.place_of_side(index));
        let remembered = volume.remembered();
        let has_come = place.is_some_and(|place| remembered.is_added(place));
        if !has_come && side.is_healthy() {
            return Err(format!("{name} is a side of the volume already"));
        }
        let (Some(replaced), Some(place)) = (replaced, place) else {
            return Ok(());
        };
        if self.side_named(replaced).is_err() && remembered.left_count() > 0 {
            // The side to be replaced has already left the volume.
            return Ok(());
        }
        let leaving = self.place_to_leave(replaced)?;
        if leaving == place {
            return Err(format!("{name} cannot replace itself"));
        }
        let once_complete = Some(Leaving::OnceComplete(place));
        if remembered.leaving(leaving) == once_complete {
            return Ok(());
        }
        self.remember_durably(volume, |r| r.set_leaving(leaving, once_complete))
            .await
    }

    /// Returns the place in the table of the side with this name, which is to leave the volume.
    fn place_to_leave(&self, name: &str) -> Result<usize, String> {
        let index = self.side_named(name)?;
        self.place_of_side(index).ok_or_else(|| {
            format!(
                "several sides are missing, and it is unknown which of them is {name}: add the new \
                side with `side add`, and remove {name} with `side remove` when the new side is \
                complete"
            )
        })
    }

    /// Removes a side from the volume permanently. Content that only this side has is first copied
    /// to another side. The volume remembers the operation and resumes it after any stop.
    ///
    /// # Errors
    /// One line with the reason; the side then stays in the volume.
    pub(super) async fn remove_side(self: &Rc<Self>, name: &str) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        let index = self.side_named(name)?;
        self.can_do_without(index)?;
        let place = self.place_of_side(index);
        let before = place.map(|place| volume.remembered().leaving(place));
        let stay = |_why: &String| {
            if let (Some(place), Some(before)) = (place, before) {
                self.remember(volume, |remembered| remembered.set_leaving(place, before));
            }
        };
        if let Some(place) = place {
            let leaves = |remembered: &mut Remembered| {
                remembered.set_leaving(place, Some(Leaving::Now));
            };
            let remembered = self.remember_durably(volume, leaves).await;
            remembered.inspect_err(stay)?;
        }
        let has_gone = self.let_go(volume, index, place).await;
        if self.sides[index].life.is_removed() {
            return has_gone;
        }
        has_gone.inspect_err(stay)
    }

    /// Removes the side at a place permanently, as a remembered operation requires. The set of
    /// sides must not change during the call.
    ///
    /// # Errors
    /// One line with the reason; the caller must retry.
    pub(super) async fn leave(
        self: &Rc<Self>,
        volume: &Volume,
        place: usize,
    ) -> Result<(), String> {
        let mut sides = self.sides.iter();
        let leaving = sides.find(|side| self.place_of_side(side.index) == Some(place));
        match leaving.map(|side| side.index) {
            Some(index) => {
                self.can_do_without(index)?;
                self.let_go(volume, index, Some(place)).await
            }
            // The side is not present, and its name is unknown.
            None => {
                volume.strike_left(place);
                self.announce_table(volume).await
            }
        }
    }

    /// Returns an error when the side is the last durable side that is healthy.
    pub(super) fn can_do_without(&self, index: usize) -> Result<(), String> {
        let mut others = self.sides.iter().filter(|other| other.index != index);
        if others.any(|other| other.durable.get() && other.is_healthy()) {
            return Ok(());
        }
        let name = &self.sides[index].name;
        Err(format!("{name} is the last durable side that is complete"))
    }

    async fn let_go(
        self: &Rc<Self>,
        volume: &Volume,
        index: usize,
        place: Option<usize>,
    ) -> Result<(), String> {
        let side = &self.sides[index];
        let name = &side.name;
        self.hand_over(index).await?;
        if let Some(place) = place {
            volume.strike_left(place);
        }
        if side.is_active() {
            self.dismiss(index, AbsentReason::Error(IoError::Offline));
        }
        self.change_life(side, Life::Removed);
        side.out_of_sync.clear();
        self.note_logs();
        if let Some(preferred) = self.healthy().first() {
            self.preference.side.set(*preferred);
        }
        let acknowledged = self.announce_table(volume).await;
        volume.forget(index);
        side.stop().await;
        // Once this function returns, the device of the side can be used for another purpose, so an
        // attempt to open the side again must have ended.
        let left_alone = side.changed.until(|| !side.coming_back.get());
        let left_alone = self.rt.timeout(MARKED_WITHIN, left_alone).await;
        if left_alone.is_err() {
            return Err(format!(
                "{name} was removed from the volume, but its device does not answer and may still \
                be in use"
            ));
        }
        self.release_logs();
        acknowledged
    }

    /// Makes the volume independent of a side: from now on, flushes do not depend on this side, and
    /// another durable side has everything that this side has.
    ///
    /// # Errors
    /// One line with the reason; flushes then depend on the side as before.
    pub(super) async fn hand_over(self: &Rc<Self>, index: usize) -> Result<(), String> {
        let side = &self.sides[index];
        // From now on, flushes must not depend on this side. First, the changes that only this side
        // has flushed are made durable on another side. Only then is the epoch that excludes this
        // side allowed to begin.
        let was_durable = side.durable.replace(false);
        let number = self.admission.next_number();
        for other in self.sides.iter().filter(|other| other.index != index) {
            self.want_flushed(other.index, number);
            self.pump(other.index);
        }
        if self
            .rt
            .timeout(MARKED_WITHIN, self.until_elsewhere(index, number))
            .await
            .is_err()
        {
            side.durable.set(was_durable);
            return Err(format!(
                "no other side has received all the data of {} within {} s",
                side.name,
                MARKED_WITHIN.as_secs()
            ));
        }
        Ok(())
    }

    /// Waits until another side, which stays in the volume, durably holds every change below
    /// `number` and has no unrepaired corrupt block. Side `index`, which leaves, may have the last
    /// intact copy of a block that is corrupt on the other side, so the wait includes the repair.
    async fn until_elsewhere(self: &Rc<Self>, index: usize, number: u64) {
        let has = |other: &&Side| {
            let stays = other.durable.get() && other.is_healthy();
            let repaired = other.out_of_sync.is_empty();
            let store = other
                .store()
                .filter(|_| other.index != index && stays && repaired);
            store.is_some_and(|store| store.complete_durable() >= number)
        };
        loop {
            // In addition, the superblock of the leaving side must already name another healthy
            // side as a member.
            let found = || {
                let whole = self.sides.iter().find(has);
                whole.filter(|_| self.another_is_healthy(index))
            };
            self.flushes.changed.until(|| found().is_some()).await;
            let Some(store) = found().and_then(|side| side.store()) else {
                continue;
            };
            // A repaired block has no sequence number of its own, so the check of the numbers does
            // not cover it. Another flush makes it durable.
            match store.flush(number).await {
                Ok(()) if found().is_some() => return,
                Ok(()) => {}
                Err(_) => self.rt.sleep(FLUSH_RETRY_AFTER).await,
            }
        }
    }

    pub(super) fn changeable(&self) -> Result<&Volume, String> {
        let open = matches!(self.state.get(), VolumeState::Open | VolumeState::ReadOnly);
        let volume = self
            .membership
            .superblocks
            .as_ref()
            .filter(|_| open && self.writable);
        volume.ok_or_else(|| "the volume is not open for changes".to_owned())
    }

    pub(super) fn side_named(&self, name: &str) -> Result<usize, String> {
        let side = self.sides.iter().find(|side| side.name == name);
        side.map(|side| side.index).ok_or_else(|| {
            let names: Vec<&str> = self.sides.iter().map(|s| s.name.as_str()).collect();
            format!("no side {name}; there are: {}", names.join(", "))
        })
    }

    /// Begins an epoch with the current table of sides, and writes both to all healthy sides.
    pub(super) async fn announce_table(self: &Rc<Self>, volume: &Volume) -> Result<(), String> {
        self.announce(volume, || ()).await
    }

    /// Applies `change` to the volume, begins an epoch, and writes the change and the epoch to all
    /// healthy sides. Before the change, all of these sides are marked dirty, which means that a
    /// peer may be ahead. So a side without the new epoch cannot be started alone.
    pub(super) async fn announce(
        self: &Rc<Self>,
        volume: &Volume,
        change: impl FnOnce(),
    ) -> Result<(), String> {
        self.is_busy();
        let active = || {
            let mut healthy = self.healthy().into_iter();
            healthy.all(|index| volume.is_marked_active(index))
        };
        for index in self.healthy() {
            self.mark_side(index);
        }
        let waited = self.membership.changed.until(active);
        self.rt
            .timeout(MARKED_WITHIN, waited)
            .await
            .map_err(not_written)?;
        change();
        if let Some(epoch) = self.begin_epoch() {
            self.membership.need(epoch);
        }
        let acknowledged = || {
            let mut healthy = self.healthy().into_iter();
            healthy.all(|index| volume.has_current_epoch(index))
        };
        let waited = self.membership.changed.until(acknowledged);
        self.rt
            .timeout(MARKED_WITHIN, waited)
            .await
            .map_err(not_written)
    }

    /// Changes the operations that the volume remembers, and waits until the change is durable on
    /// all healthy sides.
    ///
    /// # Errors
    /// When the superblocks are not written in time. Any superblock written later contains the
    /// change.
    pub(super) async fn remember_durably(
        self: &Rc<Self>,
        volume: &Volume,
        change: impl FnOnce(&mut Remembered),
    ) -> Result<(), String> {
        self.remember(volume, change);
        let acknowledged = || self.has_remembered(volume);
        let waited = self.membership.changed.until(acknowledged);
        self.rt
            .timeout(MARKED_WITHIN, waited)
            .await
            .map_err(not_written)
    }

    /// Changes the operations that the volume remembers, and starts writing them to the healthy
    /// sides.
    pub(super) fn remember(self: &Rc<Self>, volume: &Volume, change: impl FnOnce(&mut Remembered)) {
        volume.remember(change);
        for index in self.healthy() {
            self.mark_side(index);
        }
    }
}

fn not_written(_elapsed: bimetal_rt::Elapsed) -> String {
    let seconds = MARKED_WITHIN.as_secs();
    format!("the superblocks of the sides could not be written within {seconds} s")
}
