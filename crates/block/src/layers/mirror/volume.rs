//! The superblocks of a volume in use. Whenever the set of sides that hold everything changes, the
//! superblocks record the new set.
//!
//! The members of an epoch are the sides that hold everything. A new epoch begins whenever a side
//! is ejected, whenever a side joins, and at every opening that finds fewer sides than the previous
//! epoch has members. An epoch must never be written to a side that is not a member of that epoch
//! yet. A side that no longer holds everything must never remain a member of the current epoch.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::{Rng, Rt};

use super::family::{Behind, is_past, remember};
use super::superblock::{
    Candidate, Epoch, History, Listed, Remembered, SIDES_MAX, SideKind, SideState, Superblock,
    Table, Uuid, VolumeRoom, place_in, short_uuid,
};
use crate::error::{IoError, OpenError};

/// A side that has a superblock, with the known durable content of that superblock.
struct Marked {
    candidate: Candidate,
    /// Newest content of the superblock: written last, or being written now.
    superblock: Superblock,
    /// Durable content of the superblock: the identifier of the current epoch, and the state of the
    /// side.
    written: (Uuid, SideState),
    /// True if the superblock on the device says, or possibly says, that no peer is ahead of the
    /// side. It possibly says so if the outcome of a superblock write with this statement is
    /// unknown.
    may_be_complete: bool,
    /// Revision of the remembered operations in the durable superblock.
    written_revision: u64,
    /// Index of the superblock copy that the next write overwrites first; `None` if unknown.
    spare: Rc<Cell<Option<usize>>>,
}

impl Marked {
    /// Creates the entry of a side from the superblock that was found on its device.
    fn found(candidate: Candidate, superblock: Superblock) -> Marked {
        Marked {
            candidate,
            written: (superblock.history.current().id, superblock.state),
            may_be_complete: superblock.state.is_complete(),
            written_revision: superblock.remembered.revision,
            superblock,
            spare: Rc::default(),
        }
    }
}

/// The superblocks of a volume; see the module.
pub(super) struct Volume {
    rt: Rt,
    /// Sides by index; `None` where a side is not present.
    sides: RefCell<Vec<Option<Marked>>>,
    /// Current table of sides, which is possibly not written to all sides yet.
    table: RefCell<Table>,
    /// Record of the unfinished operations of the volume. The record is possibly not written to all
    /// sides yet.
    remembered: Cell<Remembered>,
    /// Current size of the volume, which is possibly not written to all sides yet.
    volume_bytes: Cell<u64>,
    history: RefCell<History>,
    ids: RefCell<Rng>,
}

impl Volume {
    /// Creates the state for the given sides, whose common history is `history`. Writes nothing.
    ///
    /// # Errors
    /// When there are no random numbers from which to make epoch identifiers.
    pub(super) fn new(
        rt: &Rt,
        sides: Vec<Option<(Candidate, Superblock)>>,
        history: History,
        (table, remembered): (Table, Remembered),
        volume_bytes: u64,
    ) -> Result<Volume, OpenError> {
        let seed = rt.random_uuid();
        let seed = seed.map_err(|e| OpenError::new(format!("no random numbers: {e}")))?;
        let half: [u8; 8] = seed[8..].try_into().expect("half of it");
        let marked = |(candidate, superblock)| Marked::found(candidate, superblock);
        let sides: Vec<Option<Marked>> = sides.into_iter().map(|side| side.map(marked)).collect();
        Ok(Volume {
            rt: rt.clone(),
            sides: sides.into(),
            table: table.into(),
            remembered: remembered.into(),
            volume_bytes: volume_bytes.into(),
            history: history.into(),
            ids: Rng::new(u64::from_le_bytes(half)).into(),
        })
    }

    /// Returns the number of the current epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.history.borrow().current().number
    }

    /// Returns the recorded epochs of the volume, up to and including the current one.
    pub(super) fn history(&self) -> History {
        self.history.borrow().clone()
    }

    /// Returns the number of the epoch in which a change was admitted; see [`History::epoch_of`].
    pub(super) fn epoch_of(&self, change: u64) -> u64 {
        self.history.borrow().epoch_of(change)
    }

    /// Returns true when the current epoch of the superblock `found` is in the past of the volume.
    /// The side of this superblock has then not accepted writes without the volume.
    pub(super) fn was_in_epoch_of(&self, found: &Superblock) -> bool {
        let (history, table) = (self.history.borrow(), self.table.borrow());
        is_past(&history, &table, &found.side, found.history.current())
    }

    /// Returns true when the history still contains the epoch `id`.
    pub(super) fn knows_epoch(&self, id: &Uuid) -> bool {
        self.history.borrow().contains(id)
    }

    /// Returns true when every side that the table lists is present.
    pub(super) fn is_whole_table(&self) -> bool {
        let listed = self.table.borrow().iter().flatten().count();
        listed == self.sides.borrow().iter().flatten().count()
    }

    /// Returns the superblock of one of the sides, with the current table, remembered operations
    /// and volume size. Only the values that are common to all sides are meaningful.
    pub(super) fn any_superblock(&self) -> Superblock {
        let sides = self.sides.borrow();
        let mut superblock = sides
            .iter()
            .flatten()
            .next()
            .expect("a volume has a side")
            .superblock
            .clone();
        superblock.table = *self.table.borrow();
        superblock.remembered = self.remembered.get();
        superblock.volume_bytes = self.volume_bytes.get();
        superblock
    }

    /// Returns a place (an index in the table of sides) for a new side, with the table entry for
    /// it. The place is `place` if given, otherwise a free one. The table is not changed.
    ///
    /// # Errors
    /// When the table is full.
    pub(super) fn entry_of_new_side(
        &self,
        place: Option<usize>,
    ) -> Result<(usize, Listed), String> {
        let free = || self.table.borrow().iter().position(Option::is_none);
        let place = place.or_else(free);
        let place = place.ok_or_else(|| format!("a volume has at most {SIDES_MAX} sides"))?;
        Ok((place, Listed::new(self.random())))
    }

    /// Enters a side in the table at `place`. The caller records the operations of this place. The
    /// superblock of each side gets the changed table with its next write.
    pub(super) fn enter(&self, place: usize, listed: Listed) {
        self.table.borrow_mut()[place] = Some(listed);
    }

    /// Enters a new side, with a random identifier, in the table at `place`.
    pub(super) fn list(&self, place: usize) {
        let listed = Listed::new(self.random());
        self.table.borrow_mut()[place] = Some(listed);
    }

    /// Returns the current size of the volume in bytes, which is possibly not in all superblocks
    /// yet.
    pub(super) fn volume_bytes(&self) -> u64 {
        self.volume_bytes.get()
    }

    /// Returns what a new side of the volume must have room for.
    pub(super) fn room(&self) -> VolumeRoom {
        VolumeRoom {
            volume_bytes: self.volume_bytes(),
            ..VolumeRoom::of(&self.any_superblock())
        }
    }

    /// Sets the size of the volume. The sides get the size with their next superblock write, which
    /// must be that of a new epoch.
    pub(super) fn set_volume_bytes(&self, volume_bytes: u64) {
        self.volume_bytes.set(volume_bytes);
    }

    /// Returns the size in bytes of the largest volume for which the side has room; `None` when the
    /// side is not present.
    pub(super) fn volume_bytes_max(&self, index: usize) -> Option<u64> {
        self.of(index, |side| {
            let device_bytes = side.candidate.device.geometry().size_bytes;
            side.superblock.layout.volume_bytes_max(device_bytes)
        })
    }

    /// Returns the current table of sides, which is possibly not written to all sides yet.
    pub(super) fn table(&self) -> Table {
        *self.table.borrow()
    }

    /// Returns true when `found` is a superblock that side `index` is expected to have. If the side
    /// was present before, `found` must belong to the same side. If the side was missing, `found`
    /// must belong to a listed side of this volume that was not found yet.
    pub(super) fn misses(&self, index: usize, found: &Superblock) -> bool {
        let is = |marked: &Marked| {
            let known = &marked.superblock;
            (known.volume, known.side) == (found.volume, found.side)
        };
        let sides = self.sides.borrow();
        if let Some(marked) = &sides[index] {
            return is(marked);
        }
        let same_volume = |marked: &Marked| marked.superblock.volume == found.volume;
        let listed = place_in(&self.table.borrow(), &found.side).is_some();
        let mut there = sides.iter().flatten();
        listed && there.clone().all(same_volume) && !there.any(is)
    }

    /// Records the superblock of a side that was not present before.
    pub(super) fn found(&self, index: usize, candidate: Candidate, superblock: Superblock) {
        self.sides.borrow_mut()[index] = Some(Marked::found(candidate, superblock));
    }

    /// Removes the side at `place` from the table, and deletes the operations that are remembered
    /// for that place.
    pub(super) fn strike(&self, place: usize) {
        self.table.borrow_mut()[place] = None;
        self.remember(|remembered| remembered.clear_place(place));
    }

    /// Removes the side at `place` from the table as [`strike`](Self::strike) does, and remembers
    /// that the side has left the volume. This is for a side that a command has removed.
    pub(super) fn strike_left(&self, place: usize) {
        let listed = self.table.borrow()[place];
        if let Some(listed) = listed {
            self.remember(|remembered| remembered.note_left(&listed.side));
        }
        self.strike(place);
    }

    /// Returns the unfinished operations that the volume remembers.
    pub(super) fn remembered(&self) -> Remembered {
        self.remembered.get()
    }

    /// Changes the volume's record of unfinished operations. The sides get the new record with
    /// their next superblock write.
    pub(super) fn remember(&self, change: impl FnOnce(&mut Remembered)) {
        let mut remembered = self.remembered.get();
        change(&mut remembered);
        remembered.revision += 1;
        self.remembered.set(remembered);
    }

    /// Returns true when the superblock of the side durably has the volume's present record of
    /// unfinished operations.
    pub(super) fn has_remembered(&self, index: usize) -> bool {
        let revision = self.remembered.get().revision;
        self.of(index, |side| side.written_revision == revision)
            .unwrap_or(false)
    }

    /// Returns the places of the listed sides that are not present, each with the short UUID of the
    /// side. The short UUID serves as the name of a side that no configured device holds.
    pub(super) fn unfound(&self) -> Vec<(usize, String)> {
        let (table, sides) = (self.table.borrow(), self.sides.borrow());
        let is_there = |side: &Uuid| {
            let mut there = sides.iter().flatten();
            there.any(|marked| marked.superblock.side == *side)
        };
        let places = table.iter().enumerate();
        let listed = places.filter_map(|(place, listed)| Some((place, (*listed)?.side)));
        let unfound = listed.filter(|(_, side)| !is_there(side));
        unfound
            .map(|(place, side)| (place, short_uuid(&side)))
            .collect()
    }

    /// Returns the place (index) of a side in the table; `None` when the side is not present.
    pub(super) fn place_of(&self, index: usize) -> Option<usize> {
        self.of(index, |side| side.superblock.place())
    }

    /// Adds a side with the given superblock, at the next index.
    pub(super) fn push(&self, candidate: Candidate, superblock: Superblock) {
        let side = Marked::found(candidate, superblock);
        self.sides.borrow_mut().push(Some(side));
    }

    /// Drops the superblock state of a side that has left the volume.
    pub(super) fn forget(&self, index: usize) {
        self.sides.borrow_mut()[index] = None;
    }

    /// Returns true when the current epoch is durable in the superblock of the side.
    pub(super) fn has_current_epoch(&self, index: usize) -> bool {
        let current = self.history.borrow().current().id;
        self.of(index, |side| side.written.0 == current)
            .unwrap_or(false)
    }

    /// Begins an epoch with the given members, in which `first_change` is the first change. The
    /// epoch is not written to any side yet. Returns the number of the epoch.
    pub(super) fn begin_epoch(&self, members: &[usize], first_change: u64) -> u64 {
        let members = members.iter().map(|&index| 1u32 << self.place(index));
        let number = self.epoch() + 1;
        let epoch = Epoch {
            number,
            id: self.random(),
            first_change,
            members: members.fold(0, |all, bit| all | bit),
            began_s: self.rt.unix_seconds(),
        };
        self.note_epochs_of_sides();
        self.history.borrow_mut().push(epoch);
        number
    }

    /// Records in the table the last epoch of each side. Called before a new epoch can push an old
    /// epoch out of the history.
    fn note_epochs_of_sides(&self) {
        let sides = self.sides.borrow();
        let current = |side: &Uuid| {
            let mut there = sides.iter().flatten();
            let marked = there.find(|marked| marked.superblock.side == *side)?;
            Some((marked.written.0, marked.superblock.history.current().id))
        };
        remember(
            &mut self.table.borrow_mut(),
            &self.history.borrow(),
            current,
        );
    }

    fn random(&self) -> Uuid {
        let mut id = [0; 16];
        self.ids.borrow_mut().fill(&mut id);
        id
    }

    fn place(&self, index: usize) -> usize {
        self.of(index, |side| side.superblock.place())
            .expect("only a side that is there counts")
    }

    fn of<T>(&self, index: usize, ask: impl FnOnce(&Marked) -> T) -> Option<T> {
        self.sides.borrow()[index].as_ref().map(ask)
    }

    /// Returns true when the durable superblock of the side makes it a valid member after a crash.
    /// For this, the superblock must not say that the side is being rebuilt, and must have either
    /// the current epoch or an earlier epoch after which every epoch has the side as a member.
    pub(super) fn is_established(&self, index: usize) -> bool {
        let history = self.history.borrow();
        let established = self.of(index, |side| {
            let (place, (epoch, state)) = (side.superblock.place(), side.written);
            assert!(place < SIDES_MAX, "a place is in the table");
            let after = history.after(&epoch);
            let member = after.is_some_and(|epochs| epochs.iter().all(|e| e.has_member(place)));
            member && state != SideState::Inconsistent
        });
        established.unwrap_or(false)
    }

    /// Returns true when the durable superblock of side `index` names the side `other` as a member.
    pub(super) fn knows(&self, index: usize, other: usize) -> bool {
        let history = self.history.borrow();
        let written = self.of(index, |side| side.written.0);
        let epoch = history.epochs().iter().find(|e| Some(e.id) == written);
        epoch.is_some_and(|epoch| epoch.has_member(self.place(other)))
    }

    /// Returns the durable state of a side, as far as it is known; `None` when the side is not
    /// present.
    pub(super) fn state(&self, index: usize) -> Option<SideState> {
        self.of(index, |side| side.written.1)
    }

    /// Returns true when the side is durably marked as active: its durable superblock has the state
    /// dirty (a peer may be ahead of the side), and no superblock write in flight could change this
    /// state.
    pub(super) fn is_marked_active(&self, index: usize) -> bool {
        let active = |side: &Marked| side.written.1 == SideState::Dirty && !side.may_be_complete;
        self.of(index, active).unwrap_or(false)
    }

    /// Returns true when the superblock of the side may say, now or after a superblock write in
    /// flight, that no peer is ahead of the side. Such a side can be started alone.
    pub(super) fn may_be_complete(&self, index: usize) -> bool {
        self.of(index, |side| side.may_be_complete).unwrap_or(false)
    }

    /// Durably writes the current epoch and `state` to the superblock of a side that holds
    /// everything. Sides that do not get the epoch are from then on known to lack changes. All
    /// changes below `complete_below` are on the side; `complete_below` is 0 when this is not
    /// known.
    ///
    /// # Errors
    /// Errors of the device. The side then has either the old superblock or the new one.
    pub(super) async fn mark_one(
        &self,
        index: usize,
        state: SideState,
        complete_below: u64,
    ) -> Result<(), IoError> {
        let history = self.history.borrow().clone();
        self.write(index, |superblock| {
            superblock.history = history;
            superblock.state = state;
            superblock.complete_below = complete_below.max(superblock.complete_below);
        })
        .await
    }

    /// Durably marks a side as being rebuilt. Must complete before the content of the side is
    /// changed.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn mark_inconsistent(
        &self,
        index: usize,
        behind: Behind,
    ) -> Result<(), IoError> {
        let history = behind.history(&self.history.borrow(), self.place(index));
        self.write(index, |superblock| {
            superblock.state = SideState::Inconsistent;
            superblock.complete_below = 0;
            superblock.history = history;
        })
        .await
    }

    async fn write(
        &self,
        index: usize,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), IoError> {
        let (candidate, superblock, spare) = {
            let mut sides = self.sides.borrow_mut();
            let side = sides[index].as_mut().ok_or(IoError::Offline)?;
            let table = *self.table.borrow();
            if place_in(&table, &side.superblock.side).is_none() {
                // The side has left the volume, so its superblock is no longer written.
                return Err(IoError::Offline);
            }
            change(&mut side.superblock);
            side.superblock.table = table;
            side.superblock.remembered = self.remembered.get();
            let volume_bytes = self.volume_bytes.get();
            side.superblock.volume_bytes = volume_bytes;
            side.superblock.layout = side.superblock.layout.reaching(volume_bytes);
            side.superblock.generation += 1;
            side.superblock.written_s = self.rt.unix_seconds();
            side.may_be_complete |= side.superblock.state.is_complete();
            let (candidate, spare) = (side.candidate.clone(), Rc::clone(&side.spare));
            (candidate, side.superblock.clone(), spare)
        };
        candidate.write(&superblock, &spare, &self.rt).await?;
        if let Some(side) = self.sides.borrow_mut()[index].as_mut() {
            side.written = (superblock.history.current().id, superblock.state);
            side.may_be_complete = superblock.state.is_complete();
            side.written_revision = superblock.remembered.revision;
        }
        Ok(())
    }

    /// Returns the number of copies of the superblock, on the device of the side, that differ from
    /// the superblock written last. The caller must not write the superblock during this call.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn wrong_copies(&self, index: usize) -> Result<u64, IoError> {
        let side = self.of(index, |s| (s.candidate.clone(), s.superblock.clone()));
        let (candidate, superblock) = side.ok_or(IoError::Offline)?;
        let wrong = candidate.wrong_copies(&superblock).await?;
        if wrong > 0 {
            // It is no longer known which copy can be overwritten safely, so the next write of the
            // superblock finds this out. Otherwise, that write could begin with the only good copy.
            let _unknown = self.of(index, |side| side.spare.set(None));
        }
        Ok(wrong)
    }

    /// Returns the device of a side with its name, as a candidate; `None` when the side is not
    /// present.
    pub(super) fn candidate(&self, index: usize) -> Option<Candidate> {
        self.of(index, |side| side.candidate.clone())
    }

    /// Returns true when every side whose superblock is known, and that has not left the volume,
    /// is logged.
    pub(super) fn all_logged(&self) -> bool {
        let (sides, table) = (self.sides.borrow(), self.table.borrow());
        let known = sides.iter().flatten().map(|side| &side.superblock);
        let mut listed = known.filter(|found| place_in(&table, &found.side).is_some());
        listed.all(|found| found.layout.kind() == SideKind::Log)
    }

    /// Returns how a side that the volume gets stores blocks if the configuration does not say it:
    /// as all sides of the volume do, or with a home if they differ.
    pub(super) fn kind_of_new_side(&self) -> SideKind {
        match self.all_logged() {
            true => SideKind::Log,
            false => SideKind::Home,
        }
    }

    /// Returns the newest superblock of a side; `None` when the side is not present.
    pub(super) fn superblock(&self, index: usize) -> Option<Superblock> {
        self.of(index, |side| side.superblock.clone())
    }
}
