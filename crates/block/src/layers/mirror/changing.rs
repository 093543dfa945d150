//! Sides that come and go while the volume is in use.
//!
//! Every change of the set of sides is a change of the table of sides in the superblocks, and comes
//! with an epoch: so the newest history has the newest table, and after a crash between the writes
//! of two superblocks the one that was written decides. A new side is formatted, and marked as one
//! that lacks everything, before any table lists it: so one that is listed is found at the next
//! start. It counts for nothing until it is whole. A side that leaves is out of the table when it
//! is touched no more, and only once what was flushed is durable elsewhere. What was asked for is
//! remembered with the table ([`Remembered`]), and `operations.rs` goes on with it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Rt;

use super::formatting::{NewSide, make_side};
use super::lifecycle::Life;
use super::opening::store_device;
use super::shared::{Shared, VolumeState};
use super::side::{Place, Side};
use super::sides::NUMBERS_MAX;
use super::store::Store;
use super::superblock::{Candidate, Leaving, Remembered, place_in};
use super::volume::Volume;
use super::way::Way;
use crate::device::Device;
use crate::error::IoError;

/// The superblocks of the sides must be written within this.
const MARKED_WITHIN: Duration = Duration::from_secs(30);
/// A flush that failed while a side is to be removed is tried again after this.
const FLUSH_RETRY_AFTER: Duration = Duration::from_millis(100);

/// A store that has begun its work and is of no side of the volume yet. When this is dropped the
/// store ends: an operation may be given up while it waits for the superblocks.
struct Begun {
    rt: Rt,
    store: Option<Rc<Store>>,
}

impl Begun {
    fn of(rt: &Rt, store: &Rc<Store>) -> Begun {
        Begun {
            rt: rt.clone(),
            store: Some(Rc::clone(store)),
        }
    }

    /// From now on a side of the volume has it.
    fn given_to_a_side(mut self) {
        self.store = None;
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
    /// Takes a device as a further side; it is then rebuilt from the others. In the place of the
    /// side `replaced` when it is whole, if given. The volume remembers both, and goes on with them
    /// after any stop. A side that has come before is left as it is: what is asked of it is asked
    /// again. With `force` the device may hold a side of another volume, which is lost.
    ///
    /// # Errors
    /// One line that says why not. The volume is as it was then, or lists a side that is not there.
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
        let own = self.own_side_on(volume, &candidate).await;
        new.check(&candidate, volume.volume_bytes(), force || own.is_some())
            .await
            .map_err(|error| error.message)?;
        // The side that the device holds is made anew in its own place, which keeps what is
        // remembered of it.
        let before = own.flatten();
        let (place, listed) = volume.entry_of_new_side(before)?;
        let mut template = volume.any_superblock();
        template.table[place] = Some(listed);
        // It is whole as a side before any superblock lists it: the next start finds it.
        let made = make_side(&self.rt, &candidate, &template, place, new).await;
        let superblock = made.map_err(|error| error.message)?;
        let on = store_device(&candidate.device, &superblock, &self.config);
        let begun = async {
            let store = Store::open(&self.rt, &on).await?;
            store.begin_mixing(None);
            store.begin().await?;
            Ok::<_, IoError>(store)
        };
        let store = begun
            .await
            .map_err(|error| format!("side {}: {error}", candidate.name))?;
        let begun = Begun::of(&self.rt, &store);
        if let Some(place) = before {
            self.drop_unfound(place);
        }
        volume.enter(place, listed);
        volume.remember(|remembered| {
            remembered.set_added(place, true);
            if let Some(replaced) = replaced {
                remembered.set_leaving(replaced, Some(Leaving::OnceWhole(place)));
            }
        });
        if let Err(why) = self.announce_table(volume).await {
            volume.strike(place);
            return Err(why);
        }
        begun.given_to_a_side();
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
        Ok(())
    }

    /// A side that the device holds of this very volume, which the volume does without and which
    /// has not run alone: it may be made anew. With its place, if it still has one. `None` when the
    /// device holds no such side.
    async fn own_side_on(&self, volume: &Volume, candidate: &Candidate) -> Option<Option<usize>> {
        // What cannot be read is refused by the check that follows.
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

    /// A side that was not found is none any more: another one takes its place.
    fn drop_unfound(&self, place: usize) {
        let mut sides = self.sides.iter();
        let unfound = sides.find(|side| self.place_of_side(side.index) == Some(place));
        if let Some(side) = unfound.filter(|side| !side.is_active()) {
            self.change_life(side, Life::Removed);
        }
    }

    /// The same of a side of this name, if there is one; `None` when there is not.
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

    /// What was asked before is asked again of a side that the volume has.
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
            // It has left meanwhile.
            return Ok(());
        }
        let leaving = self.place_to_leave(replaced)?;
        if leaving == place {
            return Err(format!("{name} cannot take its own place"));
        }
        let once_whole = Some(Leaving::OnceWhole(place));
        if remembered.leaving(leaving) == once_whole {
            return Ok(());
        }
        self.remember_durably(volume, |r| r.set_leaving(leaving, once_whole))
            .await
    }

    /// The place of a side that is to leave, by the name of the side.
    fn place_to_leave(&self, name: &str) -> Result<usize, String> {
        let index = self.side_named(name)?;
        self.place_of_side(index).ok_or_else(|| {
            format!(
                "several sides are not there, and nothing tells which of them {name} is: \
                 `side add` the new one, and `side remove` {name} when it is whole"
            )
        })
    }

    /// Lets go of a side for good. What only it has is on another one before. The volume remembers
    /// that it leaves, and goes on with it after any stop.
    ///
    /// # Errors
    /// One line that says why not; the side stays then.
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

    /// Lets go of the side at a place for good, as the volume remembers. The set of sides must not
    /// change meanwhile.
    ///
    /// # Errors
    /// One line that says why not; it is to be tried again.
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
            // It is not there, and nothing tells which name it has.
            None => {
                volume.strike_left(place);
                self.announce_table(volume).await
            }
        }
    }

    /// Refuses to let go of the last durable side that is whole.
    fn can_do_without(&self, index: usize) -> Result<(), String> {
        let mut others = self.sides.iter().filter(|other| other.index != index);
        if others.any(|other| other.durable.get() && other.is_healthy()) {
            return Ok(());
        }
        let name = &self.sides[index].name;
        Err(format!("{name} is the last durable side that is whole"))
    }

    async fn let_go(
        self: &Rc<Self>,
        volume: &Volume,
        index: usize,
        place: Option<usize>,
    ) -> Result<(), String> {
        let side = &self.sides[index];
        let name = &side.name;
        // From now on a flush does not count on it, and what one counted on is made durable
        // elsewhere: the epoch without it may begin.
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
                "no other side has everything that is on {name}, within {} s",
                MARKED_WITHIN.as_secs()
            ));
        }
        if let Some(place) = place {
            volume.strike_left(place);
        }
        if side.is_active() {
            self.dismiss(index);
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
    /// copies of all blocks that were found wrong on it, for which side `index` may have the last
    /// one.
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

    pub(super) fn side_named(&self, name: &str) -> Result<usize, String> {
        let side = self.sides.iter().find(|side| side.name == name);
        side.map(|side| side.index).ok_or_else(|| {
            let names: Vec<&str> = self.sides.iter().map(|s| s.name.as_str()).collect();
            format!("no side {name}; there are: {}", names.join(", "))
        })
    }

    /// Writes the table of sides to all that count, with an epoch of its own.
    pub(super) async fn announce_table(self: &Rc<Self>, volume: &Volume) -> Result<(), String> {
        self.announce(volume, || ()).await
    }

    /// Tells all that count what `change` makes of the volume, with an epoch of its own. First all
    /// of them say that a peer may be ahead, so that none that has not been told can be started
    /// alone.
    pub(super) async fn announce(
        self: &Rc<Self>,
        volume: &Volume,
        change: impl FnOnce(),
    ) -> Result<(), String> {
        self.is_not_quiet();
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
        let told = || {
            let mut healthy = self.healthy().into_iter();
            healthy.all(|index| volume.has_current_epoch(index))
        };
        let waited = self.membership.changed.until(told);
        self.rt
            .timeout(MARKED_WITHIN, waited)
            .await
            .map_err(not_written)
    }

    /// Has the volume remember something, durably on all sides that count.
    ///
    /// # Errors
    /// When their superblocks are not written in time; the next ones that are have it.
    pub(super) async fn remember_durably(
        self: &Rc<Self>,
        volume: &Volume,
        change: impl FnOnce(&mut Remembered),
    ) -> Result<(), String> {
        self.remember(volume, change);
        let told = || self.has_remembered(volume);
        let waited = self.membership.changed.until(told);
        self.rt
            .timeout(MARKED_WITHIN, waited)
            .await
            .map_err(not_written)
    }

    /// Changes what the volume remembers, and has it written to the sides that count.
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
