//! Why a volume is not opened, in the operator's words: what was found, and what can be done.

use super::{Present, Seen, missing, names};
use crate::layers::mirror::superblock::show_uuid;
use crate::units::show_unix_time;

/// Two sides that each ran without the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Their names.
    pub sides: [String; 2],
    /// Number of the last epoch that they were in together, if it is still known. They may differ
    /// in what the map of either says has changed since, and in what is in their logs.
    pub since_epoch: Option<u64>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Sides of different volumes.
    #[error(
        "side {side}: foreign: it belongs to volume {volume}, but side {other} to volume {other_volume}"
    )]
    Foreign {
        /// The side.
        side: String,
        /// UUID and name of its volume.
        volume: String,
        /// The side it does not fit.
        other: String,
        /// UUID and name of that one's volume.
        other_volume: String,
    },
    /// Two devices that say they are the same side.
    #[error("side {side}: is the same side as {twin} (a copy of it?)")]
    SameSideTwice {
        /// The second of them.
        side: String,
        /// The first.
        twin: String,
    },
    /// A device that was never formatted, or whose superblocks were both overwritten.
    #[error(
        "side {side}: holds no volume; prepare the sides with `bimetal format`, or have this one \
         made anew from the others with `bimetal serve FILE --rebuild {side}`"
    )]
    NotAVolume {
        /// The side.
        side: String,
    },
    /// A device whose superblocks cannot be believed.
    #[error("side {side}: {why}; `serve --rebuild {side}` does without it")]
    DamagedSuperblock {
        /// The side.
        side: String,
        /// What is wrong.
        why: String,
    },
    /// A name that was given up is not that of a side.
    #[error("{side} is to be rebuilt, but there is no side of that name")]
    UnknownSide {
        /// The name.
        side: String,
    },
    /// The configuration does not name the sides that the volume has.
    #[error(
        "the volume has {formatted} sides, the configuration names {configured}; name all that count"
    )]
    WrongNumberOfSides {
        /// Sides of the volume.
        formatted: usize,
        /// Sides in the configuration.
        configured: usize,
    },
    /// Nothing to open.
    #[error("no side can be used ({})", missing.join(", "))]
    TooFew {
        /// The sides.
        missing: Vec<String>,
    },
    /// A side that may have acknowledged what the others lack is missing (T7).
    #[error(
        "{}, which may have newer changes; nothing is known after change {} \
         ({known_from}, last written {}); bring it back, or `serve --force-open read-only` shows what \
         is known, and `serve --force-open fork` goes on from there",
        show_ahead(missing, older),
        known_until.saturating_sub(1),
        show_unix_time(*written_s)
    )]
    FreshestMissing {
        /// Sides that are not there and may be ahead.
        missing: Vec<String>,
        /// Sides of which an older copy is there; the true one may be ahead.
        older: Vec<String>,
        /// The side that is complete up to `known_until`.
        known_from: String,
        /// Every change below this number is there.
        known_until: u64,
        /// When `known_from` was last written, in seconds since 1970.
        written_s: u64,
    },
    /// Sides that each ran without the other (T8).
    #[error(
        "split: {}; choose the side that counts, and `serve --rebuild SIDE` makes the other one anew",
        show_splits(splits)
    )]
    SplitBrain {
        /// Each pair of them.
        splits: Vec<Split>,
    },
    /// No side holds a state of the volume.
    #[error(
        "no side holds the volume: {} can only be rebuilt, from another one{}",
        sides.join(", "),
        show_missing(missing)
    )]
    OnlyInconsistent {
        /// The sides that are there.
        sides: Vec<String>,
        /// Those that are not.
        missing: Vec<String>,
    },
    /// A side was left so long ago that nobody knows any more whether it ran alone since.
    #[error(
        "side {side}: its epoch {epoch} is too old for the other sides to remember; \
         `serve --rebuild {side}` makes it anew"
    )]
    HistoryTooOld {
        /// The side.
        side: String,
        /// Its epoch.
        epoch: u64,
    },
}

impl Refusal {
    pub(super) fn foreign(side: &Present<'_>, other: &Present<'_>) -> Refusal {
        Refusal::Foreign {
            side: side.seen.name.clone(),
            volume: show_volume(side),
            other: other.seen.name.clone(),
            other_volume: show_volume(other),
        }
    }
}

fn show_volume(side: &Present<'_>) -> String {
    let superblock = side.superblock;
    format!(
        "{} (\"{}\")",
        show_uuid(&superblock.volume),
        superblock.name
    )
}

fn show_ahead(missing: &[String], older: &[String]) -> String {
    let missing = (!missing.is_empty()).then(|| format!("{} not there", are(missing)));
    let older = (!older.is_empty()).then(|| format!("{} there as an older copy", are(older)));
    let both: Vec<String> = missing.into_iter().chain(older).collect();
    both.join(", and ")
}

fn are(names: &[String]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}

fn show_splits(splits: &[Split]) -> String {
    let show = |split: &Split| {
        let [one, other] = &split.sides;
        let since = match split.since_epoch {
            Some(epoch) => format!(" since epoch {epoch}"),
            None => String::new(),
        };
        format!("{one} and {other} each ran without the other{since}")
    };
    let shown: Vec<String> = splits.iter().map(show).collect();
    shown.join("; ")
}

fn show_missing(missing: &[String]) -> String {
    if missing.is_empty() {
        return String::new();
    }
    format!("; bring back {}", missing.join(", "))
}

impl Refusal {
    pub(super) fn only_inconsistent(seen: &[Seen], present: &[Present<'_>]) -> Refusal {
        Refusal::OnlyInconsistent {
            sides: present.iter().map(|side| side.seen.name.clone()).collect(),
            missing: names(seen, missing(seen)),
        }
    }

    pub(super) fn freshest_missing(
        seen: &[Seen],
        sources: &[Present<'_>],
        ahead: Vec<usize>,
    ) -> Refusal {
        let known = sources.iter().max_by_key(|side| side.complete_below());
        let known = known.expect("there is at least one source");
        let (missing, older) = ahead
            .into_iter()
            .partition(|&index| seen[index].found.is_err());
        Refusal::FreshestMissing {
            missing: names(seen, missing),
            older: names(seen, older),
            known_from: known.seen.name.clone(),
            known_until: known.complete_below(),
            written_s: known.written_s(),
        }
    }
}
