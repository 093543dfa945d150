//! The superblocks of a volume in use: writing down who counts whenever that changes.
//!
//! Every opening that finds fewer sides than the epoch before, every side that is given up and
//! every side that joins begins a new epoch, whose members are the sides that hold everything. A
//! side must never be told of an epoch before it counts in it, and never be left in one that says
//! that it still counts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::{Rng, Rt};

use super::family::{Behind, is_past, remember};
use super::superblock::{
    Candidate, Epoch, History, Listed, Remembered, SIDES_MAX, State, Superblock, Table, Uuid,
    place_in, short_uuid,
};
use crate::error::{IoError, OpenError};

/// A side that has a superblock.
struct Marked {
    candidate: Candidate,
    /// As it was written last, or is being written.
    superblock: Superblock,
    /// Its current epoch and its state, as they durably are.
    written: (Uuid, State),
    /// Whether it may say durably that nobody is ahead of it: it does, or was to since, and nothing
    /// is known yet of what has come of that.
    may_be_complete: bool,
    /// The revision of what is remembered, as it durably is.
    written_revision: u64,
    /// The copy of the superblock to write first, when that is known.
    spare: Rc<Cell<Option<usize>>>,
}

impl Marked {
    /// A side with the superblock that was found on it.
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

/// See the module.
pub(super) struct Volume {
    rt: Rt,
    /// `None` where a side is not there.
    sides: RefCell<Vec<Option<Marked>>>,
    /// The table of sides, as it is to be.
    table: RefCell<Table>,
    /// What the volume has been told to do and has not finished, as it is to be.
    remembered: Cell<Remembered>,
    /// The size of the volume, as it is to be.
    volume_bytes: Cell<u64>,
    history: RefCell<History>,
    ids: RefCell<Rng>,
}

impl Volume {
    /// The volume of these sides, whose common past is `history`. Writes nothing.
    ///
    /// # Errors
    /// When there are no random numbers to name epochs with.
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

    /// Number of the current epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.history.borrow().current().number
    }

    /// The epochs of the volume, up to the current one.
    pub(super) fn history(&self) -> History {
        self.history.borrow().clone()
    }

    /// Number of the epoch in which a change was admitted; see [`History::epoch_of`].
    pub(super) fn epoch_of(&self, change: u64) -> u64 {
        self.history.borrow().epoch_of(change)
    }

    /// True when the volume has been in the current epoch of a side, which then did not run alone.
    pub(super) fn was_in_epoch_of(&self, found: &Superblock) -> bool {
        let (history, table) = (self.history.borrow(), self.table.borrow());
        is_past(&history, &table, &found.side, found.history.current())
    }

    /// True when the history still has this epoch.
    pub(super) fn knows_epoch(&self, id: &Uuid) -> bool {
        self.history.borrow().contains(id)
    }

    /// True when every side of the table is there.
    pub(super) fn is_whole_table(&self) -> bool {
        let listed = self.table.borrow().iter().flatten().count();
        listed == self.sides.borrow().iter().flatten().count()
    }

    /// A superblock that says what all of them say.
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

    /// A place for a side that is to come, and its entry there: `place` if it is given, else a free
    /// one. The table is not changed.
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

    /// Puts a side in the table, of which nothing is remembered yet. The table is on the sides with
    /// their next superblocks.
    pub(super) fn enter(&self, place: usize, listed: Listed) {
        self.table.borrow_mut()[place] = Some(listed);
    }

    /// Gives a side that is to come this place in the table.
    pub(super) fn list(&self, place: usize) {
        let listed = Listed::new(self.random());
        self.table.borrow_mut()[place] = Some(listed);
    }

    /// The size of the volume as it is to be.
    pub(super) fn volume_bytes(&self) -> u64 {
        self.volume_bytes.get()
    }

    /// Makes the volume this large. The size is on the sides with their next superblocks, which
    /// must be those of a new epoch.
    pub(super) fn set_volume_bytes(&self, volume_bytes: u64) {
        self.volume_bytes.set(volume_bytes);
    }

    /// The largest volume that a side has room for; `None` when it is not there.
    pub(super) fn volume_bytes_max(&self, index: usize) -> Option<u64> {
        self.of(index, |side| {
            let device_bytes = side.candidate.device.geometry().size_bytes;
            side.superblock.layout.volume_bytes_max(device_bytes)
        })
    }

    /// The table of sides as it is to be.
    pub(super) fn table(&self) -> Table {
        *self.table.borrow()
    }

    /// True when a superblock is the one that side `index` should have: that of the side it was, or
    /// of one that is in the table and was not found.
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

    /// A side that was not there is, with this superblock.
    pub(super) fn found(&self, index: usize, candidate: Candidate, superblock: Superblock) {
        self.sides.borrow_mut()[index] = Some(Marked::found(candidate, superblock));
    }

    /// Takes a side out of the table, and nothing is remembered of its place.
    pub(super) fn strike(&self, place: usize) {
        self.table.borrow_mut()[place] = None;
        self.remember(|remembered| remembered.clear_place(place));
    }

    /// Takes a side out of the table that leaves by a command, which is remembered.
    pub(super) fn strike_left(&self, place: usize) {
        let listed = self.table.borrow()[place];
        if let Some(listed) = listed {
            self.remember(|remembered| remembered.note_left(&listed.side));
        }
        self.strike(place);
    }

    /// What the volume has been told to do and has not finished.
    pub(super) fn remembered(&self) -> Remembered {
        self.remembered.get()
    }

    /// Changes what the volume remembers. The sides have it with their next superblocks.
    pub(super) fn remember(&self, change: impl FnOnce(&mut Remembered)) {
        let mut remembered = self.remembered.get();
        change(&mut remembered);
        remembered.revision += 1;
        self.remembered.set(remembered);
    }

    /// True when a side durably has what the volume remembers.
    pub(super) fn has_remembered(&self, index: usize) -> bool {
        let revision = self.remembered.get().revision;
        self.of(index, |side| side.written_revision == revision)
            .unwrap_or(false)
    }

    /// The places of the sides in the table that are not there, each with the name by which one
    /// goes that no device of the configuration holds.
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

    /// The place of a side in the table; `None` when it is not there.
    pub(super) fn place_of(&self, index: usize) -> Option<usize> {
        self.of(index, |side| side.superblock.place())
    }

    /// A side has come, with this superblock. It has the next number.
    pub(super) fn push(&self, candidate: Candidate, superblock: Superblock) {
        let side = Marked::found(candidate, superblock);
        self.sides.borrow_mut().push(Some(side));
    }

    /// A side has gone.
    pub(super) fn forget(&self, index: usize) {
        self.sides.borrow_mut()[index] = None;
    }

    /// True when a side has the current epoch durably.
    pub(super) fn has_current_epoch(&self, index: usize) -> bool {
        let current = self.history.borrow().current().id;
        self.of(index, |side| side.written.0 == current)
            .unwrap_or(false)
    }

    /// Begins an epoch of these sides with the change of this number; no side has it yet. Returns
    /// its number.
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

    /// Before an epoch is dropped from the history, the table says which sides had it last.
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

    /// True when the superblock of the side lets it count: it has the current epoch, or an earlier
    /// one and has been a member ever since.
    pub(super) fn is_established(&self, index: usize) -> bool {
        let history = self.history.borrow();
        let established = self.of(index, |side| {
            let (place, (epoch, state)) = (side.superblock.place(), side.written);
            assert!(place < SIDES_MAX, "a place is in the table");
            let after = history.after(&epoch);
            let member = after.is_some_and(|epochs| epochs.iter().all(|e| e.has_member(place)));
            member && state != State::Inconsistent
        });
        established.unwrap_or(false)
    }

    /// True when the superblock of side `index` says that the side `other` counts.
    pub(super) fn knows(&self, index: usize, other: usize) -> bool {
        let history = self.history.borrow();
        let written = self.of(index, |side| side.written.0);
        let epoch = history.epochs().iter().find(|e| Some(e.id) == written);
        epoch.is_some_and(|epoch| epoch.has_member(self.place(other)))
    }

    /// What the superblock of a side durably says, as far as is known; `None` when it is not there.
    pub(super) fn state(&self, index: usize) -> Option<State> {
        self.of(index, |side| side.written.1)
    }

    /// True when the side says durably that a peer may be ahead of it, whatever comes of a mark
    /// that is on its way.
    pub(super) fn is_marked_active(&self, index: usize) -> bool {
        let active = |side: &Marked| side.written.1 == State::Active && !side.may_be_complete;
        self.of(index, active).unwrap_or(false)
    }

    /// True when the side may say, now or once a mark that is on its way has arrived, that nobody
    /// is ahead of it: then it can be started alone.
    pub(super) fn may_be_complete(&self, index: usize) -> bool {
        self.of(index, |side| side.may_be_complete).unwrap_or(false)
    }

    /// Gives a side that holds everything the current epoch and a state, durably. Sides that do not
    /// get the epoch are known to lack something, whatever happens next. All changes below
    /// `complete_below` are on the side; 0 when that is not known.
    ///
    /// # Errors
    /// Those of the device. The side has either the old superblock or the new one then.
    pub(super) async fn mark_one(
        &self,
        index: usize,
        state: State,
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

    /// Marks a side as being rebuilt, durably, before it is touched.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn mark_inconsistent(
        &self,
        index: usize,
        behind: Behind,
    ) -> Result<(), IoError> {
        let history = behind.history(&self.history.borrow(), self.place(index));
        self.write(index, |superblock| {
            superblock.state = State::Inconsistent;
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
                // It has left the volume, and is left as it is.
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

    /// How many copies of a side's superblock on its device are not what was written last. It must
    /// not be written meanwhile.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) async fn wrong_copies(&self, index: usize) -> Result<u64, IoError> {
        let side = self.of(index, |s| (s.candidate.clone(), s.superblock.clone()));
        let (candidate, superblock) = side.ok_or(IoError::Offline)?;
        let wrong = candidate.wrong_copies(&superblock).await?;
        if wrong > 0 {
            // Whoever writes them again must not begin with the one that is left.
            let _unknown = self.of(index, |side| side.spare.set(None));
        }
        Ok(wrong)
    }

    /// The device of a side with its name; `None` when it is not there.
    pub(super) fn candidate(&self, index: usize) -> Option<Candidate> {
        self.of(index, |side| side.candidate.clone())
    }

    /// What the side was when it was written last.
    pub(super) fn superblock(&self, index: usize) -> Option<Superblock> {
        self.of(index, |side| side.superblock.clone())
    }
}
