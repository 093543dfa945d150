//! Superseded changes: changes in the log of a side that are older than the content that a rebuild
//! writes directly to the home locations. A store discards these changes only in memory; a new
//! store that reads the same log finds them again until the log has dropped their entries.
//!
//! This set must never name a change that entered the log after the rebuild began, since such a
//! change is valid.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::range_set::RangeSet;

/// Superseded ranges of log entries, by the position of the entry. Only the changes of that entry
/// are superseded: changes of the same ranges in later entries are valid.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Superseded {
    by_entry: BTreeMap<u64, RangeSet>,
}

impl Superseded {
    /// Records that the given ranges of the entry at position `entry` are superseded.
    pub(super) fn note(&mut self, entry: u64, ranges: Vec<Range<u64>>) {
        if !ranges.is_empty() {
            self.by_entry.entry(entry).or_default().extend(ranges);
        }
    }

    /// Returns the ranges of a log entry that newer changes have superseded; `None` when there are
    /// none. `entry` is the position of the entry.
    pub(super) fn of_entry(&self, entry: u64) -> Option<&RangeSet> {
        self.by_entry.get(&entry)
    }

    /// Returns the position of the last entry with a superseded range.
    pub(super) fn last_entry(&self) -> Option<u64> {
        self.by_entry.keys().next_back().copied()
    }

    /// Returns a copy without the entries before `position`.
    pub(super) fn without_before(&self, position: u64) -> Superseded {
        let kept = self.by_entry.range(position..);
        Superseded {
            by_entry: kept.map(|(entry, set)| (*entry, set.clone())).collect(),
        }
    }
}
