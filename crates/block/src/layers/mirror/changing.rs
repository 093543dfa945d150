//! Sides that come and go while the volume is in use.
//!
//! Every change of the set of sides is a change of the table of sides in the superblocks, and comes
//! with an epoch: so the newest history has the newest table, and after a crash between the writes
//! of two superblocks the one that was written decides. A new side is in the table before it is
//! formatted, counts for nothing until it is whole, and is marked so. A side that leaves is out of
//! the table when it is touched no more, and only once what was flushed is durable elsewhere.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::formatting::{NewSide, make_side};
use super::lifecycle::Life;
use super::opening::store_device;
use super::shared::{Shared, VolumeState};
use super::side::{Place, Side};
use super::sides::NUMBERS_MAX;
use super::store::Store;
use super::superblock::{Candidate, State};
use super::volume::Volume;
use super::way::Way;
use crate::device::Device;
use crate::error::IoError;

/// The superblocks of the sides must be written within this.
const MARKED_WITHIN: Duration = Duration::from_secs(30);
/// A flush that failed while a side is to be removed is tried again after this.
const FLUSH_RETRY_AFTER: Duration = Duration::from_millis(100);

impl Shared {
    /// Takes a blank device as a further side; it is then rebuilt from the others. In the place of
    /// the side `replaced` when it is whole, if given.
    ///
    /// # Errors
    /// One line that says why not. The volume is as it was then, or lists a side that is not there.
    pub(super) async fn add_side(
        self: &Rc<Self>,
        candidate: Candidate,
        replaced: Option<&str>,
    ) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        let replaced = replaced.map(|name| self.side_named(name)).transpose()?;
        if self.side_named(&candidate.name).is_ok() {
            return Err(format!(
                "{} is a side of the volume already",
                candidate.name
            ));
        }
        if self.sides.len() == NUMBERS_MAX {
            return Err("too many sides have come and gone; restart the server".to_owned());
        }
        let durable = !self.config.ephemeral.contains(&candidate.name);
        // Reached by the way that all sides are reached by.
        let way = Way::new(&self.rt, candidate.device, &Rc::new(Cell::new(false)));
        let candidate = Candidate {
            name: candidate.name,
            device: Rc::clone(&way) as Rc<dyn Device>,
        };
        let new = NewSide {
            asked: self.config.asked(),
            not_durable: !durable,
        };
        new.check(&candidate, volume.volume_bytes(), false)
            .await
            .map_err(|error| error.message)?;
        let place = volume.list_new_side()?;
        if let Err(why) = self.announce_table(volume).await {
            volume.strike(place);
            return Err(why);
        }
        let template = volume.any_superblock();
        let made = make_side(&self.rt, &candidate, &template, place, new).await;
        let superblock = match made {
            Ok(superblock) => superblock,
            Err(error) => {
                volume.strike(place);
                let _told = self.announce_table(volume).await;
                return Err(error.message);
            }
        };
        let on = store_device(&candidate.device, &superblock, &self.config);
        let begun = async {
            let store = Store::open(&self.rt, &on).await?;
            store.begin_mixing(None);
            store.begin().await?;
            Ok::<_, IoError>(store)
        };
        let store = begun.await.map_err(|error| {
            format!(
                "side {}: {error}; it is listed, and missing",
                candidate.name
            )
        })?;
        let index = self.sides.len();
        let place = Place {
            device: Rc::clone(&candidate.device),
            way: Some(way),
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
        self.tend(index);
        self.release_logs();
        if let Some(old) = replaced {
            let shared = Rc::clone(self);
            self.watchers.spawn(async move {
                let new = &shared.sides[index];
                let is_whole = || new.is_healthy() || new.life.is_removed();
                new.life.changed.until(is_whole).await;
                if !new.life.is_removed() {
                    // What cannot be removed now stays a side, and `status` shows it.
                    let _left = shared.remove_side(&shared.sides[old].name).await;
                }
            });
        }
        Ok(())
    }

    /// Lets go of a side for good. What only it has is on another one before.
    ///
    /// # Errors
    /// One line that says why not.
    pub(super) async fn remove_side(self: &Rc<Self>, name: &str) -> Result<(), String> {
        let _one = self.membership.changing.acquire(1).await;
        let volume = self.changeable()?;
        let index = self.side_named(name)?;
        let side = &self.sides[index];
        let others = || self.sides.iter().filter(|other| other.index != index);
        let stays = |other: &Side| other.durable.get() && other.is_healthy();
        if !others().any(stays) {
            return Err(format!("{name} is the last durable side that is whole"));
        }
        // From now on a flush does not count on it, and what one counted on is made durable
        // elsewhere: the epoch without it may begin.
        let was_durable = side.durable.replace(false);
        let number = self.admission.next_number();
        for other in others() {
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
                "no other side has everything that is on {name}, within {} s",
                MARKED_WITHIN.as_secs()
            ));
        }
        if let Some(place) = volume.place_of(index) {
            volume.strike(place);
        }
        if side.is_active() {
            self.give_up(index, IoError::Offline);
        }
        self.change_life(side, Life::Removed);
        side.out_of_sync.clear();
        self.note_logs();
        if let Some(preferred) = self.healthy().first() {
            self.preference.side.set(*preferred);
        }
        let told = self.announce_table(volume).await;
        volume.forget(index);
        side.stop().await;
        // Its device may be used for something else once this returns.
        let left_alone = side.changed.until(|| !side.coming_back.get());
        let left_alone = self.rt.timeout(MARKED_WITHIN, left_alone).await;
        if left_alone.is_err() {
            return Err(format!(
                "{name} has left the volume, but its device does not answer and may still be used"
            ));
        }
        self.release_logs();
        told
    }

    /// Waits until another side that stays holds, durably, every change below `number` and right
    /// copies of all blocks that were found wrong on it, for which side `index` may have the last one.
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
            // One that has just joined must be known to the side that goes.
            let found = || {
                let whole = self.sides.iter().find(has);
                whole.filter(|_| self.another_is_healthy(index))
            };
            self.flushes.changed.until(|| found().is_some()).await;
            let Some(store) = found().and_then(|side| side.store()) else {
                continue;
            };
            // A repair has no number of its own, so no boundary says that it is durable.
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

    fn side_named(&self, name: &str) -> Result<usize, String> {
        let side = self.sides.iter().find(|side| side.name == name);
        side.map(|side| side.index).ok_or_else(|| {
            let names: Vec<&str> = self.sides.iter().map(|s| s.name.as_str()).collect();
            format!("no side {name}; there are: {}", names.join(", "))
        })
    }

    /// Writes the table of sides to all that count, with an epoch of its own.
    async fn announce_table(self: &Rc<Self>, volume: &Volume) -> Result<(), String> {
        self.announce(volume, || ()).await
    }

    /// Tells all that count what `change` makes of the volume, with an epoch of its own. First all of
    /// them say that a peer may be ahead, so that none that has not been told can be started alone.
    pub(super) async fn announce(
        self: &Rc<Self>,
        volume: &Volume,
        change: impl FnOnce(),
    ) -> Result<(), String> {
        let late = |_| {
            let seconds = MARKED_WITHIN.as_secs();
            format!("the superblocks of the sides could not be written within {seconds} s")
        };
        self.is_not_quiet();
        let active = || {
            let mut healthy = self.healthy().into_iter();
            healthy.all(|index| volume.is_marked(index, State::Active))
        };
        for index in self.healthy() {
            self.mark_side(index);
        }
        let waited = self.membership.changed.until(active);
        self.rt.timeout(MARKED_WITHIN, waited).await.map_err(late)?;
        change();
        if let Some(epoch) = self.begin_epoch() {
            self.membership.need(epoch);
        }
        let told = || {
            let mut healthy = self.healthy().into_iter();
            healthy.all(|index| volume.has_current_epoch(index))
        };
        let waited = self.membership.changed.until(told);
        self.rt.timeout(MARKED_WITHIN, waited).await.map_err(late)
    }
}
