//! The superblocks of a volume in use: recognising its sides when it is opened, and writing down
//! who counts whenever that changes.
//!
//! Every opening, every side that is given up and every side that joins begins a new epoch, whose
//! members are the sides that hold everything. A side must never be told of an epoch before it
//! counts in it, and never be left in one that says that it still counts.

use std::cell::RefCell;

use bimetal_rt::{Rng, Rt};

use super::family::{self, Absence, Force, Plan, Seen};
use super::superblock::{Candidate, Epoch, History, State, Superblock, Uuid};
use crate::error::{IoError, OpenError};
use crate::units::show_unix_time;

/// See the module.
pub(super) struct Volume {
    rt: Rt,
    sides: Vec<Candidate>,
    /// As they were written last, or are being written.
    superblocks: RefCell<Vec<Superblock>>,
    /// The current epoch of each side as its superblock durably says.
    written: RefCell<Vec<Uuid>>,
    history: RefCell<History>,
    ids: RefCell<Rng>,
    /// Number of the first change since the volume was opened.
    first_change: u64,
}

/// A volume that was found, and which of its sides lack something.
pub(super) struct Found {
    pub(super) volume: Volume,
    pub(super) data_offsets: Vec<u64>,
    pub(super) volume_bytes: u64,
    pub(super) stale: Vec<bool>,
}

impl Volume {
    /// Recognises the sides of a volume and decides what to do with each. Writes nothing.
    ///
    /// # Errors
    /// When a side is missing, foreign or unknown, or when the volume was not cleanly stopped and
    /// `resync` is not given: then the error says what is unknown.
    pub(super) async fn find(
        rt: &Rt,
        sides: Vec<Candidate>,
        resync: bool,
    ) -> Result<Found, OpenError> {
        let mut seen = Vec::new();
        for side in &sides {
            let found = match side.look().await {
                Ok(found) => found.ok_or(Absence::NoVolume),
                Err(why) => Err(Absence::Damaged(why)),
            };
            seen.push(Seen::of(&side.name, found));
        }
        let force = resync.then_some(Force::Fork);
        let plan = family::decide(&seen, &[], force);
        let plan = plan.map_err(|refusal| OpenError::new(refusal.to_string()))?;
        let superblocks: Vec<Superblock> = seen.into_iter().flat_map(|s| s.found).collect();
        assert_eq!(superblocks.len(), sides.len(), "no side is missing");
        let whole = whole_sides(&sides, &superblocks, &plan, resync)?;
        let first_change = superblocks.iter().map(|s| s.complete_below).max();
        let seed = rt
            .random_uuid()
            .map_err(|e| OpenError::new(format!("no random numbers: {e}")))?;
        Ok(Found {
            data_offsets: superblocks.iter().map(|s| s.layout.data.0).collect(),
            volume_bytes: superblocks[whole[0]].volume_bytes,
            stale: (0..sides.len()).map(|i| !whole.contains(&i)).collect(),
            volume: Volume {
                rt: rt.clone(),
                sides,
                written: superblocks
                    .iter()
                    .map(|s| s.history.current().id)
                    .collect::<Vec<_>>()
                    .into(),
                superblocks: superblocks.into(),
                history: plan.newest.into(),
                ids: Rng::new(u64::from_le_bytes(
                    seed[8..].try_into().expect("half of it"),
                ))
                .into(),
                first_change: first_change.expect("a volume has sides"),
            },
        })
    }

    /// Number of the current epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.history.borrow().current().number
    }

    /// Begins an epoch of these sides, after `changes` changes since the volume was opened; no
    /// side has it yet. Returns its number.
    pub(super) fn begin_epoch(&self, members: &[usize], changes: u64) -> u64 {
        let members = members.iter().map(|&index| 1u32 << self.place(index));
        let mut id = [0; 16];
        self.ids.borrow_mut().fill(&mut id);
        let number = self.epoch() + 1;
        self.history.borrow_mut().push(Epoch {
            number,
            id,
            first_change: self.first_change + changes,
            members: members.fold(0, |all, bit| all | bit),
            began_s: self.rt.unix_seconds(),
        });
        number
    }

    fn place(&self, index: usize) -> usize {
        self.superblocks.borrow()[index].place()
    }

    /// True when the superblock of the side lets it count: it has the current epoch, or an earlier
    /// one and has been a member ever since.
    pub(super) fn is_established(&self, index: usize) -> bool {
        let (history, written) = (self.history.borrow(), self.written.borrow());
        let after = history.after(&written[index]);
        after.is_some_and(|epochs| {
            let place = self.place(index);
            epochs.iter().all(|epoch| epoch.has_member(place))
        })
    }

    /// True when the superblock of side `index` says that the side `other` counts.
    pub(super) fn knows(&self, index: usize, other: usize) -> bool {
        let (history, written) = (self.history.borrow(), self.written.borrow());
        let epoch = history.epochs().iter().find(|e| e.id == written[index]);
        epoch.is_some_and(|epoch| epoch.has_member(self.place(other)))
    }

    /// Gives a side that holds everything the current epoch, durably. Sides that do not get it are
    /// known to lack something, whatever happens next. A `Clean` side has all `changes` since the
    /// volume was opened.
    pub(super) async fn mark_one(
        &self,
        index: usize,
        state: State,
        changes: u64,
    ) -> Result<(), IoError> {
        let superblock = {
            let mut superblocks = self.superblocks.borrow_mut();
            let superblock = &mut superblocks[index];
            superblock.history = self.history.borrow().clone();
            superblock.generation += 1;
            superblock.state = state;
            superblock.written_s = self.rt.unix_seconds();
            if state == State::Clean {
                superblock.complete_below = self.first_change + changes;
            }
            superblock.clone()
        };
        self.sides[index].write(&superblock, &self.rt).await?;
        self.written.borrow_mut()[index] = superblock.history.current().id;
        Ok(())
    }

    /// Marks sides that hold everything as in use, in an epoch of their own, each for itself.
    pub(super) async fn open(&self, whole: &[usize]) -> Vec<Result<(), IoError>> {
        self.begin_epoch(whole, 0);
        let marks = whole
            .iter()
            .map(|&index| self.mark_one(index, State::Active, 0));
        futures_util::future::join_all(marks).await
    }
}

/// The sides that hold everything, or why that cannot be decided.
///
/// Of the sides with the newest epoch those that are clean: before there is a log to ask, one that
/// was not told of the clean stop cannot be shown to have it all.
fn whole_sides(
    sides: &[Candidate],
    found: &[Superblock],
    plan: &Plan,
    resync: bool,
) -> Result<Vec<usize>, OpenError> {
    let newest = plan.newest.current().id;
    let mut sources = plan.sources.iter().copied();
    let truth = sources.next().expect("a plan has a source");
    let clean: Vec<usize> = (0..sides.len())
        .filter(|index| plan.sources.contains(index))
        .filter(|&index| found[index].history.current().id == newest)
        .filter(|&index| found[index].state == State::Clean)
        .collect();
    if !clean.is_empty() {
        return Ok(clean);
    }
    if resync {
        return Ok(vec![truth]);
    }
    let since = found.iter().map(|s| s.written_s).min().unwrap_or(0);
    let names: Vec<&str> = sides.iter().map(|side| side.name.as_str()).collect();
    Err(OpenError::new(format!(
        "not cleanly stopped: of the writes since {} that were not flushed, each may be on only \
         some of {}, and which is unknown; `bimetal serve --resync` makes all sides equal to {}",
        show_unix_time(since),
        names.join(", "),
        sides[truth].name
    )))
}
