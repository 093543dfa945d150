//! The decision what to do with the sides that were found: which of them are the volume, which
//! are behind and how, and when the volume must not be opened. Pure: no I/O, no clock, no state.
//! It must never take for the volume what may lack a flushed change, unless the operator says so.
//! T6, T7 and T8 stand in `docs/trust.md`.
//!
//! # Rules
//!
//! **Who is related.** Every side carries the history of its epochs. Side P *descends* from side Q
//! when the identity of Q's current epoch is in P's history, or has been dropped from it and is the
//! one that P's table has for Q ([`is_past`]). Numbers decide nothing: two sides that each ran
//! alone both count on from the same number.
//!
//! **Which epoch is the newest.** The one whose history contains the current epoch of every other
//! consistent side. When there is none, two sides each ran without the other: split (T8). When a
//! side's epoch may only have been dropped from a full history, and no table names it, that cannot
//! be told: refused too.
//!
//! **Who is asked.** Inconsistent sides are not: when one began to be rebuilt, it was decided whose
//! content counts. Neither are sides that the operator gave up by naming them in `rebuild`; that is
//! how a split is resolved. Neither are sides whose logs have lost entries that had been durable
//! ([`Seen::damaged`]). What they know still counts as evidence: if an inconsistent side was told
//! of an epoch after the newest of the others, these are not the newest; nor are they if a damaged
//! side was told of one without them, or that they had one which they do not have.
//!
//! **Sources.** The sides whose logs together make the volume: the consistent members of the newest
//! epoch, whatever their state is. A side whose superblock still has an earlier epoch is one of
//! them when every epoch after its own has it as a member: the crash came before it was told. A
//! side that lacks what a peer knows it had ([`Seen::shared_below`]; a clean or quiet peer says it
//! of all sides), or that is clean while a peer has more, is an older copy of itself, and is made
//! anew. So is one whose current epoch is neither the newest nor one that the table of the side
//! with the newest history names as its last.
//!
//! **Who may be ahead (T7).** A durable member of the newest epoch that is missing may have
//! acknowledged flushes that the sources lack, and so may the true side of which an older copy was
//! found: a member that is neither a source nor about to join. Nobody is ahead of a source that has
//! the newest epoch and is clean or quiet. A side that is not durable may be missing, but not all
//! durable members at once: flushed is what a durable side has. A damaged member may be ahead when
//! it has been complete up to more than the sources are. The only member of an epoch starts alone,
//! also after a crash (T6). The operator can [`Force`] the opening.
//!
//! **What counts.** When every side of the table is a source, every record in their logs. Else only
//! what is complete: nothing from [`Plan::counts_below`] on (T6). That goes for a side that is
//! missing, and for one that is behind: it may have a change that the members have lost in a crash,
//! and would bring it back (T4) unless the epoch that the opening begins says from where on it does
//! not count. And what counts beside a side that is behind must count without it as well, at the
//! next opening.
//!
//! **Who is listed.** The side with the newest history has the newest table of sides, because every
//! change of the table comes with an epoch. A side that it does not list has left the volume, or
//! was about to come when a crash intervened: it is left alone, as if it were missing. A place that
//! no configured side has is given up with the next epoch, unless its side counts and may be ahead.
//! A side that the operator gives up and that is none of the volume, such as a new disk in the
//! place of a dead one, is made anew ([`Plan::made`]) in the place of one that was not found, or a
//! free one.
//!
//! **How large it is.** The side with the newest history has the newest size, for the same reason.
//! A smaller one of another source is grown: nothing was written beyond it before every member had
//! the new size.
//!
//! **Behind.** A side lacks the regions changed since the last epoch it was a member of, and its
//! own changes count only up to the first change of any epoch that followed ([`Behind::Since`]),
//! and no further than the sources are complete: those may have lost in a crash what they had not
//! flushed, and then it counts nowhere. The epoch that the opening begins says so to sides that
//! come later. Where that is unknown, everything is copied; so when that epoch has been dropped
//! from the history, and when it should have been a member of an epoch between that one and the
//! newest, for then it is an older copy (or was lost while it was being told). An older copy from
//! the very epoch in which the side was left cannot be recognised.
//!
//! # What the running volume owes to these rules
//!
//! - Every opening that is not read-only begins an epoch ([`Plan::next_epoch`]), also when nobody
//!   left or joined: else an older copy that runs alone could not be told from the true side.
//!   Nothing is admitted before every source is durably marked active in it.
//! - What the sources lack of each other is durable on all of them before the first is told of that
//!   epoch, in entries of the newest epoch until then, and so is the word of their logs that they
//!   are complete: a source may be the only one of the next opening, where only what is complete
//!   counts. After that the opening takes a number, like a change without content, and
//!   [`Seen::shared_below`] is the one after it. So an older copy of a side is not complete, and
//!   cannot bring back what the opening decided to be lost (T4).
//! - Every epoch comes with a table that says which one each side had last, as far as that is known
//!   ([`remember`]), before the history drops it.
//! - An epoch without a side begins only when what was flushed is durable on one durable member of
//!   the new epoch. Until one member has it durably, nothing is acknowledged that the side lacks.
//! - A side is given up only when its superblock says of another healthy side that it counts. Else,
//!   started alone, it would be the only member of the last epoch that it was told of.
//! - A superblock with a new epoch says what the side is durably complete up to now, at most the
//!   first change of that epoch, and never what it was complete up to in a life that was given up.
//! - A side joins when everything that was copied to it is durable on every member, and marked in
//!   its map, which begins as that of the source, for the sides that are no members. The epoch is
//!   written to the other members first, and to it last; until then what it alone has flushed is
//!   not acknowledged, because it would not be asked. Then the join takes a number, like an
//!   opening, before anything is dropped from a log.
//! - The entries of a log carry the epoch in which they were written. What a side that was not told
//!   of an epoch has beyond its first change is what was given up before ([`Plan::discards`]).
//! - A side that is to be rebuilt is marked before anything is copied to it: inconsistent, with the
//!   history of [`Behind::history`], which ends in the running volume's current epoch; a member
//!   must have that one durably before. After a crash the side then does not pass for one that
//!   lacks less than it does, or for a part of another history; and sides that were left earlier do
//!   not pass for the newest.

mod ancestry;
#[cfg(test)]
mod model;
mod refusal;
mod remembering;
#[cfg(test)]
mod tests;

use super::superblock::{
    Epoch, History, Remembered, SIDES_MAX, State, Superblock, Table, Uuid, place_in,
};
pub use ancestry::{is_past, remember};
pub use refusal::{Refusal, Split};

/// Why a side has no superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absence {
    /// Its device is not there.
    Missing,
    /// Its device is there and cannot be read.
    Unreadable(String),
    /// It was read, and is no side of a volume.
    NoVolume,
    /// It was read, and what is there cannot be believed.
    Damaged(String),
}

/// What was found of one side of the configuration.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its superblock, or why there is none.
    pub found: Result<Superblock, Absence>,
    /// All changes below this number are on it, as far as its log says. 0 when the log was not
    /// read.
    pub complete_below: u64,
    /// All changes below this number were durable on every member of its epoch, as far as its log
    /// says. 0 when that is unknown.
    pub shared_below: u64,
    /// Changes below this number may have been let go of by its log without a mark in its map. 0
    /// when there are none.
    pub unmarked_below: u64,
    /// Number of the newest epoch in its log: it has been told of that one, whatever its superblock
    /// says. `None` when records that do not count were left out already by whoever read the log.
    pub log_epoch: Option<u64>,
    /// When it was last written, as far as its log says, in seconds since 1970.
    pub written_s: u64,
    /// Its log has lost entries that had been durable, so what it holds is not that of one moment.
    pub damaged: bool,
    /// False when it is lost with its machine.
    pub durable: bool,
}

impl Seen {
    /// A durable side of which nothing is known but its superblock.
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
        }
    }
}

/// How the operator opens a volume although a side that may be ahead is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// To look at what is there. Nothing is written to any side.
    ReadOnly,
    /// To go on from what is there. What the missing sides have beyond it never counts again.
    Fork,
}

/// How a side is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// It lacks at most the regions that the map of a source says have changed after `epoch`, what
    /// is in the logs of the sources, and the ranges of its own changes from `discard_from` on,
    /// which do not count.
    Since {
        /// Number of the last epoch it was a member of.
        epoch: u64,
        /// Number of the first change that does not count.
        discard_from: u64,
    },
    /// Nothing is known of what it has: it was given up, is an older copy of itself, or is no
    /// member of any epoch that it remembers.
    Everything,
}

impl Behind {
    /// The history with which the side at `place` of the table is marked inconsistent before
    /// anything is copied to it from a volume with the history `running`. In that it is a member of
    /// no epoch after the one since which it lacks changes; of none at all when it lacks
    /// everything.
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

/// What to do. Sides are named by their places in the list that [`decide`] was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The sides whose logs are merged, at least one. Those with the newest epoch come first.
    pub sources: Vec<usize>,
    /// Of some sources, the first number of a record that does not count: the side was not told of
    /// an epoch that began there.
    pub discards: Vec<(usize, u64)>,
    /// The sides that are there and must be rebuilt before they count.
    pub behind: Vec<(usize, Behind)>,
    /// The sides that cannot be used: missing, or without a superblock.
    pub missing: Vec<usize>,
    /// The history that the sources have in common, up to the newest epoch.
    pub newest: History,
    /// A bit for the place in the table of sides of each source.
    pub members: u32,
    /// The most that a source is known to be complete up to.
    pub complete_below: u64,
    /// Changes from this number on do not count; `None` when every record does.
    pub counts_below: Option<u64>,
    /// How the opening was forced, if it had to be.
    pub forced: Option<Force>,
    /// The table of sides to go on with. A side that is to be made anew has only a place in it.
    pub table: Table,
    /// The size of the volume, which the side with the newest history says, as it does the table.
    pub volume_bytes: u64,
    /// The sides that are to be made of what is on their devices, each with its place in the table.
    pub made: Vec<(usize, usize)>,
    /// What the volume has been told to do and has not finished.
    pub remembered: Remembered,
    /// The sides of the configuration that have left the volume by a command.
    pub gone: Vec<usize>,
}

impl Plan {
    /// A source is to be rebuilt instead: the caller has taken it out of the sources.
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

    /// The epoch that the opening begins. `next_change` is the first number that no log of a source
    /// has; it is lower when changes do not count.
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

/// A side with a superblock.
#[derive(Clone, Copy)]
struct Present<'s> {
    index: usize,
    seen: &'s Seen,
    superblock: &'s Superblock,
    given_up: bool,
    /// Its changes from this number on do not count.
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

    /// What it says all members have. It cannot know more than it has itself.
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

    /// True when its content is that of one moment, and counts.
    fn is_consistent(&self) -> bool {
        let counts = self.current().has_member(self.superblock.place());
        let usable = !self.given_up && !self.seen.damaged;
        self.superblock.state != State::Inconsistent && counts && usable
    }

    /// All changes below this number were on it once, by its own word and by what it knows of all
    /// members; limited to what counts in the newest epoch. 0 when it counts in none.
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

    /// True when it is damaged and knows that none of these sides holds all that counts: it was
    /// told of an epoch without them, or that they had been told of a later one than they have.
    fn outdates(&self, sources: &[Present<'_>]) -> bool {
        let (history, table) = (&self.superblock.history, &self.superblock.table);
        let is_later = |side: &Present<'_>| history.next_after(&side.current().id).is_some();
        let counts = |side: &Present<'_>| side.counts_in(history) && side.is_as_told(table);
        self.seen.damaged && sources.iter().all(|side| is_later(side) && !counts(side))
    }

    /// False when the table names other epochs than its current one as its last: then it is an
    /// older copy of the side.
    fn is_as_told(&self, table: &Table) -> bool {
        let listed = place_in(table, &self.superblock.side).and_then(|place| table[place]);
        let told = listed.map(|listed| listed.told).unwrap_or_default();
        told.is_unknown() || told.may_be(&self.current().id)
    }

    /// True when it descends from the other, or is in the same epoch.
    fn descends_from(&self, other: &Present<'_>) -> bool {
        let (own, side) = (self.superblock, &other.superblock.side);
        is_past(&own.history, &own.table, side, other.current())
    }

    /// True when it holds the newest epoch, or is a member of every epoch that followed its own.
    fn counts_in(&self, newest: &History) -> bool {
        let place = self.superblock.place();
        let after = newest.after(&self.current().id);
        after.is_some_and(|epochs| epochs.iter().all(|epoch| epoch.has_member(place)))
    }
}

/// Decides; see the module. `rebuild` names sides that the operator gave up.
///
/// # Errors
/// Why the volume must not be opened.
///
/// # Panics
/// When `seen` is empty.
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
    let table = table(seen, &present, &unlisted, (&holder, left), rebuild)?;
    let newest = holder.superblock.history.clone();
    let (mut sources, older_copies) = sources(&consistent, &holder);
    sources.sort_by_key(|side| (side.current().id != newest.current().id, side.index));
    let ahead = may_be_ahead(seen, &present, &sources, &newest, &table.table);
    let must_be_forced = !ahead.is_empty();
    if must_be_forced && force.is_none() {
        return Err(Refusal::freshest_missing(seen, &sources, ahead));
    }
    let mut plan = Plan {
        behind: behind(&present, &sources, &older_copies, &newest),
        missing: missing(seen)
            .into_iter()
            .chain(unlisted.iter().map(|side| side.index))
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

/// The sides with a superblock. A device that is blank, such as a new disk in the place of a dead
/// one, is a side that is missing. One that holds what cannot be believed is refused, unless
/// nothing is expected of it: it was given up, or is lost with its machine.
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

/// All sides must be different sides of one volume.
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

/// The table of sides to go on with, and which of the sides are to be made anew at which places.
struct NextTable {
    table: Table,
    made: Vec<(usize, usize)>,
}

/// What becomes of the table that the side with the newest history has. The sides that it lists and
/// nobody configured must count for nothing, and leave it; those that the operator gives up and
/// that are none of the volume take the places of sides that were not found, or free ones.
fn table(
    seen: &[Seen],
    present: &[Present<'_>],
    unlisted: &[Present<'_>],
    (holder, left): (&Present<'_>, usize),
    rebuild: &[String],
) -> Result<NextTable, Refusal> {
    let mut table = holder.superblock.table;
    let found = |place: usize| present.iter().any(|side| side.superblock.place() == place);
    let unseen = |place: &usize| table[*place].is_some() && !found(*place);
    let mut unseen: Vec<usize> = (0..SIDES_MAX).filter(unseen).collect();
    let is_unlisted = |index: usize| unlisted.iter().any(|side| side.index == index);
    let is_blank = |index: usize| {
        matches!(
            seen[index].found,
            Err(Absence::NoVolume | Absence::Damaged(_))
        )
    };
    let (mut made, mut unknown) = (Vec::new(), Vec::new());
    for (index, side) in seen.iter().enumerate() {
        let given_up = rebuild.contains(&side.name);
        if given_up && (is_unlisted(index) || is_blank(index)) {
            made.push(index);
        } else if side.found.is_err() {
            unknown.push(index);
        }
    }
    let wrong_number = Refusal::WrongNumberOfSides {
        formatted: holder.superblock.side_count(),
        configured: seen.len(),
    };
    // What cannot be read may be one of the unseen sides, but only one of them, or has left.
    if unknown.len() > unseen.len() + left {
        return Err(wrong_number);
    }
    let current = holder.current();
    let mut placed: Vec<(usize, usize)> = Vec::new();
    for index in made {
        let place = if unknown.len() < unseen.len() {
            unseen.remove(0)
        } else {
            let taken = |place: usize| placed.iter().any(|(_, other)| *other == place);
            let free = (0..SIDES_MAX).find(|place| table[*place].is_none() && !taken(*place));
            free.ok_or_else(|| wrong_number.clone())?
        };
        table[place] = None;
        placed.push((index, place));
    }
    // The rest is not configured. It may go if nobody would miss it.
    if unknown.is_empty() {
        let complete = holder.superblock.state.is_complete();
        if !complete && unseen.iter().any(|place| current.has_member(*place)) {
            return Err(wrong_number);
        }
        unseen.iter().for_each(|place| table[*place] = None);
    } else if unseen.len() > unknown.len() && unseen.iter().any(|p| current.has_member(*p)) {
        return Err(wrong_number);
    }
    let made = placed;
    Ok(NextTable { table, made })
}

/// The side whose history contains the current epochs of all consistent sides.
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

/// Of two sides of which neither descends from the other, the one whose epoch may only have been
/// dropped from the other's history.
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

/// The sides whose logs are merged, and those that turn out to be older copies of themselves.
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
        let outrun = side.superblock.state == State::Clean && side.complete_below() < reach;
        let is_newest = side.current().id == newest.current().id;
        let is_as_told = is_newest || side.is_as_told(table);
        side.complete_below() >= shared && !outrun && is_as_told
    })
}

/// The first number of a change of the side that does not count: the lowest first change of the
/// epochs that it was not told of.
fn discard_from(side: &Present<'_>, newest: &History) -> Option<u64> {
    let told = side.seen.log_epoch?;
    let after = newest.after(&side.current().id)?;
    let untold = after.iter().filter(|epoch| epoch.number > told);
    untold.map(|epoch| epoch.first_change).min()
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

/// The sides that may have acknowledged what the sources lack; empty when there are none.
///
/// Which of the missing sides has which place is unknown, so any that is durable may be the member
/// that is missing.
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

/// True when the side is what one looks like that the newest epoch began with, and that was not
/// told of it: it had nothing that the others lack. It was being rebuilt, and nothing has been
/// dropped from the logs in that epoch.
fn is_about_to_join(side: &Present<'_>, sources: &[Present<'_>], newest: &History) -> bool {
    let shared = sources.iter().map(Present::shared_below).max().unwrap_or(0);
    side.superblock.state == State::Inconsistent
        && side.current().id != newest.current().id
        && shared <= newest.current().first_change
}

/// The sides that have the later epoch: what is missing, durable or not; with all sides there,
/// those that count are older copies of themselves. The operator can have given them up.
fn outdated_by(seen: &[Seen], present: &[Present<'_>], sources: &[Present<'_>]) -> Vec<usize> {
    let missing = missing(seen);
    if !missing.is_empty() || present.iter().any(|side| side.given_up) {
        return missing;
    }
    sources.iter().map(|side| side.index).collect()
}

/// True when a side that is no source and not damaged has been told of an epoch after the newest
/// one.
fn knows_a_later_epoch(present: &[Present<'_>], newest: &History) -> bool {
    let asked = |side: &&Present<'_>| !side.given_up && !side.seen.damaged;
    present.iter().filter(asked).any(|side| {
        let next = side.superblock.history.next_after(&newest.current().id);
        next.is_some()
    })
}

/// From where on changes do not count.
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

/// How each side that is there and no source is behind.
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
        .map(|side| {
            let unmarked = side.complete_below() < unmarked_below;
            let unknown = side.given_up || side.seen.damaged || unmarked;
            let unknown = unknown || is_among(side, older_copies);
            let since = (!unknown).then(|| since(side, sources, newest)).flatten();
            (side.index, since.unwrap_or(Behind::Everything))
        })
        .collect()
}

/// What a side lacks that was last a member in an epoch of the newest history; `None` when no map
/// tells.
///
/// What all members had is in no map. So the side must not have been a member of any epoch since;
/// only the newest may have been meant to begin with it, as long as nothing was dropped from the
/// logs in it. And what was copied to it since must be of this history.
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
