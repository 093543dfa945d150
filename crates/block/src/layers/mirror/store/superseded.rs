//! What the log of a side has that is older than what a rebuild brings past it. A store forgets it
//! in memory only: another store that reads the log anew finds it again, as long as the log has not
//! let go of its entries.
//!
//! It must never name anything that came to the log after the rebuild had begun: that counts.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::range_set::RangeSet;

/// Ranges that entries of the log had, by the positions of the entries. What later entries have of
/// the same ranges counts.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Superseded {
    by_entry: BTreeMap<u64, RangeSet>,
}

impl Superseded {
    /// Of what the entry at a position has, these ranges are superseded.
    pub(super) fn note(&mut self, entry: u64, ranges: Vec<Range<u64>>) {
        if !ranges.is_empty() {
            self.by_entry.entry(entry).or_default().extend(ranges);
        }
    }

    /// The ranges of the entry at a position; `None` when nothing of it is superseded.
    pub(super) fn of_entry(&self, entry: u64) -> Option<&RangeSet> {
        self.by_entry.get(&entry)
    }

    /// The position of the last entry of which something is superseded.
    pub(super) fn last_entry(&self) -> Option<u64> {
        self.by_entry.keys().next_back().copied()
    }

    /// The same, without the entries before a position.
    pub(super) fn without_before(&self, position: u64) -> Superseded {
        let kept = self.by_entry.range(position..);
        Superseded {
            by_entry: kept.map(|(entry, set)| (*entry, set.clone())).collect(),
        }
    }
}
