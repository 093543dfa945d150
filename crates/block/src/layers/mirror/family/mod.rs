//! Decision at an opening: which of the found sides make up the volume, which sides are behind and
//! how far, and when the volume must not be opened. The decision is pure: no I/O, no clock, no
//! state. It must never accept a side as the volume if that side might lack a flushed change,
//! unless the operator forces it. T6, T7 and T8 are defined in `docs/trust.md`.
//!
//! # Rules
//!
//! - **Descent.** Every side carries the history of its epochs. Side P *descends* from side Q if
//!   Q's current epoch is in P's history, or was dropped from that history and is recorded for Q in
//!   P's table ([`is_past`]). Epoch numbers decide nothing: two sides that each ran alone both
//!   continue from the same number.
//! - **The newest epoch.** The newest epoch is that of the side that descends from every other
//!   consistent side. If there is no such side, two sides each ran without the other: they have
//!   diverged (split brain, T8). If a side's epoch might merely have been dropped from a full
//!   history, and no table records it, the opening is refused too.
//! - **Sides without a vote.** Three kinds of sides do not vote: inconsistent sides, because the
//!   start of their rebuild has decided against their content; sides that the operator discards by
//!   naming them in `rebuild`, which resolves a split; and sides whose logs have lost durable
//!   entries ([`Seen::damaged`]). Their superblocks are still evidence. The voting sides are not
//!   the newest if an inconsistent side has an epoch after theirs, or if a damaged side has a later
//!   epoch that excludes them or a table that records an epoch for them that they lack.
//! - **Sources.** The logs of the sources together make the volume. Sources are the consistent
//!   members of the newest epoch, in any state. A side whose superblock still has an earlier epoch
//!   is a source if every later epoch has it as a member: the crash came before its superblock was
//!   written. A side is an older copy of itself, and is rebuilt completely, in three cases: it
//!   lacks changes that it had according to a peer ([`Seen::shared_below`]; a clean or clean-idle
//!   peer proves this for all sides); it is clean while a peer has more changes; or its current
//!   epoch is neither the newest nor recorded for it in the table of the side with the newest
//!   history.
//! - **Sides that might be ahead (T7).** A missing durable member of the newest epoch might have
//!   acknowledged flushes that the sources lack. So might the true side of an older copy (a found
//!   member that is neither a source nor about to join). No side is ahead of a source that has the
//!   newest epoch and is clean or clean-idle. Non-durable sides can be missing, because only
//!   durable sides make a flush valid. If there are durable members, one must be present. A damaged
//!   member might be ahead if it once had more complete changes than the sources. The only member
//!   of an epoch starts alone, also after a crash (T6). The operator can [`Force`] the opening.
//! - **Valid records.** If every side of the table is a source, every record in their logs is
//!   valid. Otherwise only complete changes are valid, those below [`Plan::counts_below`] (T6),
//!   whether a side is missing or behind. A side that is behind might have a change that the
//!   members lost in a crash. It would bring the change back (T4) unless the epoch that the opening
//!   begins records the number from which changes are discarded. A change that is valid while such
//!   a side is present must also be valid without it, at the next opening.
//! - **The table of sides.** The side with the newest history has the newest table of sides,
//!   because every change of the table comes with an epoch. A side that this table does not list
//!   has left the volume, or was about to join when a crash intervened: it is treated as missing. A
//!   place that no configured side has is freed with the next epoch, unless its side is a member
//!   and might be ahead. A side that the operator discards and that does not belong to the volume,
//!   such as a new disk in the place of a dead one, is formatted ([`Plan::made`]) for the place of
//!   a side that was not found, or for a free place.
//! - **The size.** The side with the newest history has the newest size, because every change of
//!   the size comes with an epoch. Another source with a smaller size is grown: no change was
//!   written beyond that size before every member had the new size.
//! - **Sides that are converted.** A side whose superblock says that its device is to be formatted
//!   again ([`Superblock::awaits_formatting`]) lacks everything and has no vote. If formatting was
//!   interrupted, its areas are void ([`Seen::unformatted`]), or no table lists it yet. It is then
//!   treated as missing: the running volume formats its device. Its superblock is still evidence.
//! - **Sides that are behind.** A side lacks the regions changed since the last epoch of which it
//!   was a member. Its own changes are valid only below the first change of any later epoch
//!   ([`Behind::Since`]), and only as far as the sources are complete: unflushed changes that the
//!   sources lost in a crash are discarded everywhere. The epoch that the opening begins records
//!   this for sides that come back later. A side lacks everything when its last epoch is unknown or
//!   was dropped from the history, and when it should have been a member of an epoch between its
//!   last one and the newest: it is then an older copy (or was lost while its superblock was
//!   written). An older copy from the epoch in which the side was left out is not recognizable.
//!
//! # Duties of the running volume
//!
//! - Every opening that is not read-only begins an epoch ([`Plan::next_epoch`]), even if no side
//!   left or joined: otherwise an older copy that runs alone could not be told from the true side.
//!   No change is admitted before every source is durably marked dirty in that epoch.
//! - Each change that only some sources have is made durable on all of them before the first source
//!   gets that epoch. Until then these changes are in log entries of the newest epoch. The logs of
//!   the sources also durably state that they are complete: a source might be the only source of
//!   the next opening, where only complete changes are valid. Then the opening uses up a sequence
//!   number, like a change without content, and [`Seen::shared_below`] is the number after it. So
//!   an older copy is not complete, and cannot bring back changes decided to be lost (T4).
//! - Every epoch comes with a table that records the last epoch of each side, as far as it is known
//!   ([`remember`]), before the history drops that epoch.
//! - An epoch that excludes a side begins only when every flushed change is durable on one durable
//!   member of that epoch. Until a member durably has the epoch, no change that the excluded side
//!   lacks is acknowledged.
//! - A side is ejected only when its superblock names another healthy side as a member. Otherwise,
//!   started alone, it would be the only member of the last epoch in its superblock.
//! - A superblock with a new epoch records the number below which the side is now durably complete:
//!   at most that of the first change of that epoch, and never a number from a discarded history.
//! - A side joins when everything copied to it is durable on every member, and is marked in its
//!   dirty-region bitmap for the sides that are not members; the bitmap begins as a copy of the
//!   source's. The epoch is written to the other members first, and to the joining side last; until
//!   then, changes that only this side has flushed are not acknowledged, because an opening would
//!   not take it as a source. Then the join uses up a sequence number before a log drops an entry.
//! - The entries of a log carry their epoch. If a side did not get an epoch, its changes from the
//!   first change of that epoch on are discarded ([`Plan::discards`]).
//! - A side that is to be rebuilt is marked before anything is copied to it: inconsistent, with the
//!   history of [`Behind::history`], which ends in the running volume's current epoch; a member
//!   must durably have that epoch before. So after a crash the side does not seem to lack less than
//!   it does, or to belong to another history, and no side left out earlier seems newest.

mod ancestry;
#[cfg(test)]
mod model;
mod next_table;
mod refusal;
mod remembering;
#[cfg(test)]
mod tests;

use super::superblock::{
    Epoch, History, Remembered, SIDES_MAX, SideState, Superblock, Table, Uuid, place_in,
};
pub use ancestry::{is_past, remember};
use next_table::next_table;
pub use refusal::{Refusal, Split};

/// Reason why no superblock of a side is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// The device is absent, or could not be opened.
    Missing,
    /// The device could not be read.
    Unreadable(String),
    /// The device was read and holds no side of any volume.
    NoVolume,
    /// The device was read and its superblock is invalid.
    Damaged(String),
}

/// Findings about one configured side.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The name of the side.
    pub name: String,
    /// The superblock of the side, or the reason why no superblock is known.
    pub found: Result<Superblock, Absence>,
    /// Sequence number below which the side has every change, according to its log; 0 if the log
    /// was not read.
    pub complete_below: u64,
    /// Sequence number below which every change was durable on every member of the epoch, according
    /// to the log of the side; 0 if unknown.
    pub shared_below: u64,
    /// Sequence number below which the log of the side might have dropped changes without a mark in
    /// its dirty-region bitmap; 0 if there are no such changes.
    pub unmarked_below: u64,
    /// Number of the newest epoch in the log of the side; the superblock might not have this epoch
    /// yet. `None` if the reader of the log has already dropped the records of discarded histories.
    pub log_epoch: Option<u64>,
    /// Time at which the side was last written, according to its log, in seconds since 1970.
    pub written_s: u64,
    /// Whether the log of the side has lost durable entries. The content is then inconsistent.
    pub damaged: bool,
    /// Whether the content of the side survives the loss of its machine.
    pub durable: bool,
    /// Whether formatting the side again was interrupted, so that only its superblock is valid.
    pub unformatted: bool,
}

impl Seen {
    /// Creates the findings about a durable side whose log was not read.
    pub fn of(name: &str, found: Result<Superblock, Absence>) -> Seen {
        Seen {
            name: name.to_owned(),
            found,
            complete_below: 0,
            shared_below: 0,
            unmarked_below: 0,
            log_epoch: None,
            written_s: 0,
            damaged: false,
            durable: true,
            unformatted: false,
        }
    }
}

/// Ways to force the opening of a volume although a side that might be ahead is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Opens the volume read-only. No side is written to.
    ReadOnly,
    /// Continues from the present sides. Changes that only missing sides have are discarded.
    Fork,
}

/// Extent to which a side lacks content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The side has the content of the sources (the sides that make up the volume), except at most:
    /// the regions that a source's dirty-region bitmap marks as changed after `epoch`, the changes
    /// in the sources' logs, and the ranges of the side's own changes from `discard_from` on. These
    /// own changes are discarded.
    Since {
        /// Number of the last epoch of which the side was a member.
        epoch: u64,
        /// Sequence number from which the side's own changes are discarded.
        discard_from: u64,
    },
    /// The side lacks everything: the operator discarded the side, its log is damaged, its content
    /// is an older copy, or the changes since its last epoch are not known.
    Everything,
}

impl Behind {
    /// Returns the history to write to the side at `place` of the table when the side is marked
    /// inconsistent, before content is copied to it. It equals `running`, the history of the
    /// volume, with one difference: the side is not a member of the epochs after the last epoch
    /// whose changes it has. A side that lacks everything is not a member of any epoch.
    pub fn history(&self, running: &History, place: usize) -> History {
        let whole_until = match self {
            Behind::Since { epoch, .. } => *epoch,
            Behind::Everything => 0,
        };
        let epochs = running.epochs().iter().map(|epoch| Epoch {
            members: match epoch.number {
                number if number <= whole_until => epoch.members,
                _ => epoch.members & !(1 << place),
            },
            ..*epoch
        });
        History::of(epochs.collect()).expect("only members have changed")
    }
}

/// The decision of [`decide`]. A side is identified by its index in the list passed to [`decide`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The sides whose logs are merged into the volume; at least one. Sides with the newest epoch
    /// come first.
    pub sources: Vec<usize>,
    /// Sources whose logs contain discarded records: the side, and the sequence number of its first
    /// discarded record. That number is the first of an epoch that the side did not learn of.
    pub discards: Vec<(usize, u64)>,
    /// The sides that are present and must be rebuilt before they become members.
    pub behind: Vec<(usize, Behind)>,
    /// The sides that cannot be used: they are missing, without superblock, or not in the table.
    pub missing: Vec<usize>,
    /// The common history of the sources, up to the newest epoch.
    pub newest: History,
    /// Bit set of the sources by their places in the table of sides.
    pub members: u32,
    /// Sequence number below which the most complete source has every change.
    pub complete_below: u64,
    /// Sequence number below which changes are valid; changes from this number on are discarded.
    /// `None` if every record is valid.
    pub counts_below: Option<u64>,
    /// How the opening was forced; `None` if forcing was not necessary.
    pub forced: Option<Force>,
    /// The table of sides for the opened volume. The place of a side to be formatted is empty.
    pub table: Table,
    /// Size of the volume in bytes, from the side with the newest history.
    pub volume_bytes: u64,
    /// The sides to be formatted on their devices, each with its place in the table.
    pub made: Vec<(usize, usize)>,
    /// Unfinished operations of the volume.
    pub remembered: Remembered,
    /// The configured sides that a command has removed from the volume.
    pub gone: Vec<usize>,
}

impl Plan {
    /// Marks a side, which the caller has already removed from `sources`, as a side to be rebuilt.
    pub(super) fn leave_out(&mut self, index: usize, superblock: &Superblock) {
        self.members &= !(1 << superblock.place());
        self.discards.retain(|(discarding, _)| *discarding != index);
        let epoch = superblock.history.current().number;
        let discard_from = u64::MAX;
        self.behind.push((
            index,
            Behind::Since {
                epoch,
                discard_from,
            },
        ));
    }

    /// Returns the epoch that the opening begins. Its first change is `counts_below` if changes are
    /// discarded, otherwise `next_change`, the first sequence number that is in no log of a source.
    pub fn next_epoch(&self, id: Uuid, next_change: u64, now_s: u64) -> Epoch {
        Epoch {
            number: self.newest.current().number + 1,
            id,
            first_change: self.counts_below.unwrap_or(next_change),
            members: self.members,
            began_s: now_s,
        }
    }
}

/// A configured side whose superblock is known.
#[derive(Clone, Copy)]
struct Present<'s> {
    index: usize,
    seen: &'s Seen,
    superblock: &'s Superblock,
    given_up: bool,
    /// Sequence number from which the changes of the side are discarded; `None` if all are valid.
    discard_from: Option<u64>,
}

impl Present<'_> {
    fn current(&self) -> &Epoch {
        self.superblock.history.current()
    }

    fn complete_below(&self) -> u64 {
        let complete_below = self.seen.complete_below.max(self.superblock.complete_below);
        complete_below.min(self.discard_from.unwrap_or(u64::MAX))
    }

    /// Returns the sequence number below which every member has every change, according to this
    /// side. It is limited to the number below which this side itself has every change.
    fn shared_below(&self) -> u64 {
        let said = if self.superblock.state.is_complete() {
            self.superblock.complete_below
        } else {
            0
        };
        self.seen.shared_below.max(said).min(self.complete_below())
    }

    fn written_s(&self) -> u64 {
        self.seen.written_s.max(self.superblock.written_s)
    }

    /// Returns true if the content of the side is consistent and not discarded by the operator, and
    /// the side is a member of its current epoch.
    fn is_consistent(&self) -> bool {
        let counts = self.current().has_member(self.superblock.place());
        let usable = !self.given_up && !self.seen.damaged;
        self.superblock.state != SideState::Inconsistent && counts && usable
    }

    /// Returns the sequence number below which the side had every change of the history `newest` at
    /// some time, according to its log and superblock. The result is 0 if the side lacks the newest
    /// epoch and is not a member of every epoch after its own.
    fn had_below(&self, newest: &History) -> u64 {
        let had = self.complete_below().max(self.seen.shared_below);
        if self.superblock.history.contains(&newest.current().id) {
            return had;
        }
        if !self.counts_in(newest) {
            return 0;
        }
        let after = newest.after(&self.current().id).unwrap_or_default();
        let limit = after.iter().map(|epoch| epoch.first_change).min();
        had.min(limit.unwrap_or(u64::MAX))
    }

    /// Returns true if this side is damaged and its superblock proves that every source is
    /// outdated: this side knows epochs later than the source's, and either the source is not a
    /// member of all these epochs, or the table of this side records another epoch for it.
    fn outdates(&self, sources: &[Present<'_>]) -> bool {
        let (history, table) = (&self.superblock.history, &self.superblock.table);
        let is_later = |side: &Present<'_>| history.next_after(&side.current().id).is_some();
        let counts = |side: &Present<'_>| side.counts_in(history) && side.is_as_acknowledged(table);
        self.seen.damaged && sources.iter().all(|side| is_later(side) && !counts(side))
    }

    /// Returns true if the table records the current epoch of the side, or no epoch for the side.
    /// If the table records another epoch, the side is an older copy.
    fn is_as_acknowledged(&self, table: &Table) -> bool {
        let listed = place_in(table, &self.superblock.side).and_then(|place| table[place]);
        let acknowledged = listed.map(|listed| listed.acknowledged).unwrap_or_default();
        acknowledged.is_unknown() || acknowledged.may_be(&self.current().id)
    }

    /// Returns true if this side descends from the side `other`, or both are in the same epoch.
    fn descends_from(&self, other: &Present<'_>) -> bool {
        let (own, side) = (self.superblock, &other.superblock.side);
        is_past(&own.history, &own.table, side, other.current())
    }

    /// Returns true if the current epoch of the side is the newest, or if the side is a member of
    /// every later epoch.
    fn counts_in(&self, newest: &History) -> bool {
        let place = self.superblock.place();
        let after = newest.after(&self.current().id);
        after.is_some_and(|epochs| epochs.iter().all(|epoch| epoch.has_member(place)))
    }
}

/// Decides which sides make up the volume; see the module documentation. `rebuild` names the sides
/// to discard.
///
/// # Errors
/// The reason why the volume must not be opened.
///
/// # Panics
/// If `seen` is empty.
pub fn decide(seen: &[Seen], rebuild: &[String], force: Option<Force>) -> Result<Plan, Refusal> {
    assert!(!seen.is_empty(), "a volume has sides");
    let present = believable(seen, rebuild)?;
    check_family(&present)?;
    let consistent: Vec<Present<'_>> = present
        .iter()
        .copied()
        .filter(Present::is_consistent)
        .collect();
    if consistent.is_empty() {
        return Err(Refusal::only_inconsistent(seen, &present));
    }
    let holder = newest_of(&consistent)?;
    let is_listed = |side: &Present<'_>| {
        let listed = place_in(&holder.superblock.table, &side.superblock.side);
        listed == Some(side.superblock.place())
    };
    let (present, unlisted): (Vec<Present<'_>>, Vec<Present<'_>>) =
        present.iter().copied().partition(is_listed);
    let consistent: Vec<Present<'_>> = consistent.into_iter().filter(is_listed).collect();
    let remembered = remembering::remembered(&consistent, &holder);
    let left = remembered.left_count();
    let table = next_table(seen, &present, &unlisted, (&holder, left), rebuild)?;
    let newest = holder.superblock.history.clone();
    let (mut sources, older_copies) = sources(&consistent, &holder);
    sources.sort_by_key(|side| (side.current().id != newest.current().id, side.index));
    let ahead = may_be_ahead(seen, &present, &sources, &newest, &table.table);
    let must_be_forced = !ahead.is_empty();
    if must_be_forced && force.is_none() {
        return Err(Refusal::freshest_missing(seen, &sources, ahead));
    }
    let unformatted = present.iter().filter(|side| side.seen.unformatted);
    let mut plan = Plan {
        behind: behind(&present, &sources, &older_copies, &newest),
        missing: missing(seen)
            .into_iter()
            .chain(unlisted.iter().map(|side| side.index))
            .chain(unformatted.map(|side| side.index))
            .collect(),
        members: members(&sources),
        complete_below: complete_below(&sources),
        counts_below: counts_below(&sources, &newest, &table.table, must_be_forced),
        forced: force.filter(|_| must_be_forced),
        discards: sources
            .iter()
            .filter_map(|side| Some((side.index, side.discard_from?)))
            .collect(),
        table: table.table,
        volume_bytes: holder.superblock.volume_bytes,
        made: table.made,
        sources: sources.iter().map(|side| side.index).collect(),
        newest,
        remembered,
        gone: Vec::new(),
    };
    plan.gone = remembering::gone(seen, &plan);
    Ok(plan)
}

/// Returns the sides with a superblock. A side on a blank device, such as a new disk in the place
/// of a dead one, is treated as missing. An invalid superblock is an error, unless the operator has
/// discarded the side or the side is not durable.
fn believable<'s>(seen: &'s [Seen], rebuild: &[String]) -> Result<Vec<Present<'s>>, Refusal> {
    let mut present = Vec::new();
    for (index, side) in seen.iter().enumerate() {
        let given_up = rebuild.contains(&side.name);
        let expected = side.durable && !given_up;
        let name = side.name.clone();
        match &side.found {
            Ok(superblock) => present.push(Present {
                index,
                seen: side,
                superblock,
                given_up,
                discard_from: None,
            }),
            Err(Absence::Damaged(why)) if expected => {
                let why = why.clone();
                return Err(Refusal::DamagedSuperblock { side: name, why });
            }
            Err(_) => {}
        }
    }
    if let Some(unknown) = rebuild
        .iter()
        .find(|name| seen.iter().all(|side| side.name != **name))
    {
        let side = unknown.clone();
        return Err(Refusal::UnknownSide { side });
    }
    if present.is_empty() {
        let blank = seen.iter().find(|side| is_blank(side));
        if let Some(side) = blank.filter(|side| side.durable && !rebuild.contains(&side.name)) {
            let side = side.name.clone();
            return Err(Refusal::NotAVolume { side });
        }
        return Err(Refusal::TooFew {
            missing: names(seen, missing(seen)),
        });
    }
    Ok(present)
}

fn is_blank(side: &Seen) -> bool {
    matches!(side.found, Err(Absence::NoVolume))
}

/// Checks that all sides are different sides of one volume.
fn check_family(present: &[Present<'_>]) -> Result<(), Refusal> {
    let first = present[0];
    for (at, side) in present.iter().enumerate() {
        if side.superblock.volume != first.superblock.volume {
            return Err(Refusal::foreign(side, &first));
        }
        let twin = present[..at]
            .iter()
            .find(|other| other.superblock.side == side.superblock.side);
        if let Some(twin) = twin {
            return Err(Refusal::SameSideTwice {
                side: side.seen.name.clone(),
                twin: twin.seen.name.clone(),
            });
        }
    }
    Ok(())
}

/// Returns the side that descends from all other consistent sides; an error if there is none.
fn newest_of<'s>(consistent: &[Present<'s>]) -> Result<Present<'s>, Refusal> {
    let newest = consistent
        .iter()
        .find(|side| consistent.iter().all(|other| side.descends_from(other)));
    if let Some(newest) = newest {
        return Ok(*newest);
    }
    let mut splits = Vec::new();
    for (at, one) in consistent.iter().enumerate() {
        for other in &consistent[at + 1..] {
            if one.descends_from(other) || other.descends_from(one) {
                continue;
            }
            if let Some(old) = perhaps_dropped(one, other) {
                return Err(Refusal::HistoryTooOld {
                    side: old.seen.name.clone(),
                    epoch: old.current().number,
                });
            }
            let common = one.superblock.history.common(&other.superblock.history);
            splits.push(Split {
                sides: [one.seen.name.clone(), other.seen.name.clone()],
                since_epoch: common.map(|epoch| epoch.number),
            });
        }
    }
    assert!(!splits.is_empty(), "without a split one side is the newest");
    Err(Refusal::SplitBrain { splits })
}

/// Examines two sides that do not descend from each other. If the epoch of one of them might have
/// been dropped from the full history of the other, returns the side with that epoch.
fn perhaps_dropped<'p, 's>(
    one: &'p Present<'s>,
    other: &'p Present<'s>,
) -> Option<&'p Present<'s>> {
    let older = |side: &Present<'_>, than: &Present<'_>| {
        let history = &than.superblock.history;
        history.may_have_dropped(side.current())
    };
    if older(one, other) {
        return Some(one);
    }
    older(other, one).then_some(other)
}

/// Returns two lists of sides: the sources, whose logs together make the volume; and the sides
/// whose content is older than what they held before.
fn sources<'s>(
    consistent: &[Present<'s>],
    holder: &Present<'s>,
) -> (Vec<Present<'s>>, Vec<Present<'s>>) {
    let (newest, table) = (&holder.superblock.history, &holder.superblock.table);
    let counting: Vec<Present<'s>> = consistent
        .iter()
        .filter(|side| side.counts_in(newest))
        .map(|side| Present {
            discard_from: discard_from(side, newest),
            ..*side
        })
        .collect();
    let reach = complete_below(&counting);
    let shared = counting.iter().map(Present::shared_below).max();
    let shared = shared.expect("the side with the newest history counts");
    counting.into_iter().partition(|side| {
        let outrun = side.superblock.state == SideState::Clean && side.complete_below() < reach;
        let is_newest = side.current().id == newest.current().id;
        let is_as_acknowledged = is_newest || side.is_as_acknowledged(table);
        side.complete_below() >= shared && !outrun && is_as_acknowledged
    })
}

/// Returns the sequence number from which changes of the side are discarded. This is the lowest of
/// the first changes of all epochs that are newer than the newest epoch in the side's log.
fn discard_from(side: &Present<'_>, newest: &History) -> Option<u64> {
    let acknowledged = side.seen.log_epoch?;
    let after = newest.after(&side.current().id)?;
    let unacknowledged = after.iter().filter(|epoch| epoch.number > acknowledged);
    unacknowledged.map(|epoch| epoch.first_change).min()
}

fn complete_below(sides: &[Present<'_>]) -> u64 {
    let most = sides.iter().map(Present::complete_below).max();
    most.unwrap_or(0)
}

fn members(sources: &[Present<'_>]) -> u32 {
    let bit = |side: &Present<'_>| 1 << side.superblock.place();
    sources.iter().map(bit).fold(0, |all, bit: u32| all | bit)
}

fn is_among(side: &Present<'_>, sides: &[Present<'_>]) -> bool {
    sides.iter().any(|other| other.index == side.index)
}

/// Returns the sides that might hold acknowledged changes that the sources lack. If a member of the
/// newest epoch is missing, any durable missing side could be that member.
fn may_be_ahead(
    seen: &[Seen],
    present: &[Present<'_>],
    sources: &[Present<'_>],
    newest: &History,
    table: &Table,
) -> Vec<usize> {
    let current = newest.current();
    let found = |place: usize| present.iter().find(|side| side.superblock.place() == place);
    let unseen = (0..SIDES_MAX)
        .any(|place| current.has_member(place) && found(place).is_none() && table[place].is_some());
    let mut asked = present.iter().filter(|side| !side.given_up);
    if knows_a_later_epoch(present, newest) || asked.any(|side| side.outdates(sources)) {
        return outdated_by(seen, present, sources);
    }
    let mut ahead = if unseen { missing(seen) } else { Vec::new() };
    let copies = present
        .iter()
        .filter(|side| current.has_member(side.superblock.place()) && !side.given_up)
        .filter(|side| !is_among(side, sources) && !is_about_to_join(side, sources, newest))
        .filter(|side| !side.seen.damaged || side.had_below(newest) > complete_below(sources));
    ahead.extend(copies.map(|side| side.index));
    ahead.retain(|&index| seen[index].durable);
    let nobody_is_ahead =
        |side: &Present<'_>| side.superblock.state.is_complete() && side.current().id == current.id;
    let durable = sources.iter().any(|side| side.seen.durable);
    if durable && sources.iter().any(nobody_is_ahead) {
        ahead.clear();
    }
    ahead
}

/// Returns true if a crash might have interrupted the joining of this side: the newest epoch began,
/// but the side's superblock lacks that epoch and marks the side as being rebuilt, and no log knows
/// that a change of that epoch is on every member. Such a side has no change that others lack.
fn is_about_to_join(side: &Present<'_>, sources: &[Present<'_>], newest: &History) -> bool {
    let shared = sources.iter().map(Present::shared_below).max().unwrap_or(0);
    side.superblock.state == SideState::Inconsistent
        && side.current().id != newest.current().id
        && shared <= newest.current().first_change
}

/// Returns the missing sides, durable or not: they might have a later epoch than the sources. If no
/// side is missing or discarded, returns the sources, which must then be older copies.
fn outdated_by(seen: &[Seen], present: &[Present<'_>], sources: &[Present<'_>]) -> Vec<usize> {
    let missing = missing(seen);
    if !missing.is_empty() || present.iter().any(|side| side.given_up) {
        return missing;
    }
    sources.iter().map(|side| side.index).collect()
}

/// Returns true if a side that is neither discarded nor damaged has an epoch later than `newest`.
fn knows_a_later_epoch(present: &[Present<'_>], newest: &History) -> bool {
    let asked = |side: &&Present<'_>| !side.given_up && !side.seen.damaged;
    present.iter().filter(asked).any(|side| {
        let next = side.superblock.history.next_after(&newest.current().id);
        next.is_some()
    })
}

/// Returns the sequence number below which logged changes are valid; `None` if all are valid.
fn counts_below(
    sources: &[Present<'_>],
    newest: &History,
    table: &Table,
    forced: bool,
) -> Option<u64> {
    let sources_bits = members(sources);
    let is_source = |place: usize| sources_bits & 1 << place != 0;
    let counts = |place: usize| table[place].is_some() || newest.current().has_member(place);
    let others = (0..SIDES_MAX).any(|place| counts(place) && !is_source(place));
    (forced || others).then(|| complete_below(sources))
}

/// Returns, for each side that is present and not a source, how far it is behind.
fn behind(
    present: &[Present<'_>],
    sources: &[Present<'_>],
    older_copies: &[Present<'_>],
    newest: &History,
) -> Vec<(usize, Behind)> {
    let unmarked_below = sources.iter().map(|side| side.seen.unmarked_below).max();
    let unmarked_below = unmarked_below.unwrap_or(0);
    let others = present.iter().filter(|side| !is_among(side, sources));
    others
        .filter(|side| !side.seen.unformatted)
        .map(|side| {
            let unmarked = side.complete_below() < unmarked_below;
            let unknown = side.given_up || side.seen.damaged || unmarked;
            let unknown = unknown || is_among(side, older_copies);
            let since = (!unknown).then(|| since(side, sources, newest)).flatten();
            (side.index, since.unwrap_or(Behind::Everything))
        })
        .collect()
}

/// Returns how far a side is behind; `None` if no dirty-region bitmap shows this. A bitmap omits
/// changes that all members had, so the side must not be a member of any epoch after the last epoch
/// whose changes it has. The newest epoch is exempt if no log has dropped an entry in it, since the
/// side might have joined at its start. The current epoch of the side must be in `newest`, because
/// content copied to the side must belong to this history.
fn since(side: &Present<'_>, sources: &[Present<'_>], newest: &History) -> Option<Behind> {
    let place = side.superblock.place();
    let last_own = side.superblock.last_epoch()?;
    let after = newest.after(&last_own.id)?;
    let (last, between) = after.split_last()?;
    let shared = sources.iter().map(Present::shared_below).max().unwrap_or(0);
    let known = newest.contains(&side.current().id)
        && between.iter().all(|epoch| !epoch.has_member(place))
        && (!last.has_member(place) || shared <= last.first_change);
    let began = after.iter().map(|epoch| epoch.first_change).min()?;
    known.then_some(Behind::Since {
        epoch: last_own.number,
        discard_from: began.min(complete_below(sources)),
    })
}

fn missing(seen: &[Seen]) -> Vec<usize> {
    (0..seen.len())
        .filter(|&index| seen[index].found.is_err())
        .collect()
}

fn names(seen: &[Seen], sides: Vec<usize>) -> Vec<String> {
    let name = |index: usize| seen[index].name.clone();
    sides.into_iter().map(name).collect()
}
