//! Reasons why a volume is not opened, worded for the operator: the findings and the possible
//! remedies.

use super::{Present, Seen, missing, names};
use crate::layers::mirror::superblock::show_uuid;
use crate::units::show_unix_time;

/// Two sides that have diverged, because each ran without the other (split brain).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// Names of the two sides.
    pub sides: [String; 2],
    /// Number of the last epoch that both sides shared, if it is still known. The sides can differ
    /// in two places: in the regions that the dirty-region bitmap of either side marks as changed
    /// since that epoch, and in the ranges of the changes in their logs.
    pub since_epoch: Option<u64>,
}

/// Reason why a volume is not opened; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The sides belong to different volumes.
    #[error(
        "side {side}: foreign: it belongs to volume {volume}, but side {other} belongs to volume \
        {other_volume}"
    )]
    Foreign {
        /// Name of the side that does not belong to the volume of `other`.
        side: String,
        /// UUID and name of the volume of `side`.
        volume: String,
        /// Name of another side, which belongs to `other_volume`.
        other: String,
        /// UUID and name of the volume of `other`.
        other_volume: String,
    },
    /// Two devices hold superblocks of the same side.
    #[error("side {side}: is the same side as {twin} (is one a copy of the other?)")]
    SameSideTwice {
        /// Name of the second device.
        side: String,
        /// Name of the first device.
        twin: String,
    },
    /// A device was never formatted, or both copies of its superblock were overwritten.
    #[error(
        "side {side}: holds no volume; prepare the sides with `bimetal format`, or rebuild this \
        side from the others with `bimetal serve FILE --rebuild {side}`"
    )]
    NotAVolume {
        /// Name of the side.
        side: String,
    },
    /// The superblock copies of a device are invalid.
    #[error("side {side}: {why}; `serve --rebuild {side}` rebuilds it from the other sides")]
    DamagedSuperblock {
        /// Name of the side.
        side: String,
        /// Description of the damage.
        why: String,
    },
    /// The list of sides to rebuild contains a name that no side has.
    #[error("cannot rebuild {side}: there is no side with that name")]
    UnknownSide {
        /// The unknown name.
        side: String,
    },
    /// The sides in the configuration do not match the sides of the volume.
    #[error(
        "the volume has {formatted} sides, but the configuration names {configured}; name all \
        sides of the volume"
    )]
    WrongNumberOfSides {
        /// Number of sides of the volume.
        formatted: usize,
        /// Number of sides in the configuration.
        configured: usize,
    },
    /// No side can be used.
    #[error("no side can be used ({})", missing.join(", "))]
    TooFew {
        /// Names of the sides that cannot be used.
        missing: Vec<String>,
    },
    /// A side that is missing, or present only as an older copy, might have acknowledged changes
    /// that the present sides lack (promise T7 in `docs/trust.md`).
    #[error(
        "{}, and may have newer changes; the last known change is {} (on {known_from}, last \
        written {}); reconnect it, or inspect the known state with `serve --force-open read-only`, \
        or continue from that state with `serve --force-open fork`",
        show_ahead(missing, older),
        known_until.saturating_sub(1),
        show_unix_time(*written_s)
    )]
    FreshestMissing {
        /// Sides that are absent and may be ahead.
        missing: Vec<String>,
        /// Sides of which only an older copy was found; the true side might be ahead of the copy.
        older: Vec<String>,
        /// The present side that is complete up to `known_until`.
        known_from: String,
        /// Sequence number below which `known_from` has every change.
        known_until: u64,
        /// Time at which `known_from` was last written, in seconds since 1970.
        written_s: u64,
    },
    /// Sides have diverged, because each ran without the other (T8).
    #[error(
        "split: {}; choose the side to keep, and rebuild the other one with `serve --rebuild SIDE`",
        show_splits(splits)
    )]
    SplitBrain {
        /// The pairs of diverged sides.
        splits: Vec<Split>,
    },
    /// No present side holds a consistent state of the volume.
    #[error(
        "no side holds a consistent state of the volume: {} can only be rebuilt from another \
        side{}",
        sides.join(", "),
        show_missing(missing)
    )]
    OnlyInconsistent {
        /// Names of the sides that are present.
        sides: Vec<String>,
        /// Names of the sides that are missing.
        missing: Vec<String>,
    },
    /// A side was absent for more epochs than the other sides remember. It is unknown whether the
    /// side ran alone meanwhile.
    #[error(
        "side {side}: its epoch {epoch} is too old for the other sides to remember; rebuild it \
        with `serve --rebuild {side}`"
    )]
    HistoryTooOld {
        /// Name of the side.
        side: String,
        /// Number of the current epoch of the side.
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
    let missing = (!missing.is_empty()).then(|| format!("{} missing", are(missing)));
    let older =
        (!older.is_empty()).then(|| format!("{} present only as an older copy", are(older)));
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
    format!("; reconnect {}", missing.join(", "))
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
