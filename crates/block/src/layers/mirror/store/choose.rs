//! Choice of the log entries to destage next, and of the parts of them to write to their home
//! locations.
//!
//! The log keeps an entry while a member of the epoch lacks a change of the entry, and no later
//! entry has that change. The exception is a full log that has waited too long for the member: it
//! drops the entry. So after a crash at any time, the changes that a lagging member lacks are found
//! in this log (T13, T14), except for changes that a full log had to drop. The choice is made in
//! slices, with a yield between two of them, so that a log of many small records does not block the
//! thread.

use std::ops::Range;

use bimetal_rt::yield_now;

use super::Store;
use super::index::{Entry, Index, Logged};
use super::log_area::CHUNKS_PER_LOG;
use super::segments::commit_bytes_of;
use crate::BLOCK_BYTES;
use crate::extent_map::Cut;
use crate::layers::mirror::superblock::segmented::LOG_FOLD_DIVISOR;

/// Maximum number of bytes that one chunk writes to home locations. The bound is needed because all
/// these bytes are in memory during the destage.
const CHUNK_LIVE_BYTES_MAX: u64 = 64 << 20;
/// Number of bytes of the log of a logged side from which on it is folded beside other work. An
/// opening reads what is not folded, and a disk needs a second for 100 to 200 MB.
const UNFOLDED_BYTES: u64 = 128 << 20;
/// The same while less space is free than cleaning aims for. Of what the log has newer records, the
/// older content counts as live, and cleaning moves it in vain, until the records are folded.
const UNFOLDED_SHORT_BYTES: u64 = 32 << 20;
/// Number of records processed between two yields.
const RECORDS_PER_SLICE: usize = 256;

/// Returns the maximum number of bytes that a commit of a logged side takes for the records of an
/// entry.
fn commit_bytes_of_entry(entry: &Entry) -> u64 {
    let blocks = |(range, _): &(Range<u64>, Logged)| (range.end - range.start) / BLOCK_BYTES;
    let records = entry.records.iter();
    records.map(|record| commit_bytes_of(blocks(record))).sum()
}

/// Log entries that are destaged and dropped together.
pub(super) struct Chunk {
    /// Position up to which the entries are dropped after the chunk was destaged.
    pub(super) end: u64,
    /// Content to write to home locations: ranges of the volume, each with the record that holds
    /// its content.
    pub(super) pieces: Vec<(Range<u64>, Logged)>,
    /// Ranges of changes that an absent side lacks. Once the entries of the chunk are dropped from
    /// the log, the side must be recorded as lacking these ranges.
    pub(super) unreleased: Vec<Range<u64>>,
    /// Number of bytes of the entries' ranges that are not destaged, because newer records have
    /// replaced them.
    pub(super) replaced_bytes: u64,
}

/// State of the log at the start of a choice. The values only grow over time: a condition that is
/// true for an entry at the start of the choice is still true at the end of the choice.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Position below which the log is durable.
    flushed: u64,
    /// Sequence number below which changes are allowed to be written to their home locations.
    home_below: u64,
    /// Sequence number below which every change is durable on every other member of the epoch.
    released_below: u64,
}

impl Limits {
    /// Returns true when `other`, a record of the same blocks, makes `record` superfluous. For
    /// this, `other` must be a newer change of these blocks or a copy of the same change, and every
    /// volume that is started from this side must have `other`.
    fn replaces(&self, other: &Logged, record: &Logged) -> bool {
        let newer = other.number > record.number;
        let copy = other.number == record.number && other.entry > record.entry;
        (newer || copy) && other.number < self.home_below && other.entry < self.flushed
    }

    /// Returns true when an entry is durable and all its changes are allowed to be written to their
    /// home locations.
    pub(super) fn may_be_destaged(&self, entry: &Entry) -> bool {
        entry.end <= self.flushed && entry.highest().unwrap_or(0) < self.home_below
    }
}

/// Returns the parts of a record that no other record replaces. Only log records at or after
/// position `end` are considered as replacements.
fn parts_left(
    index: &Index,
    limits: &Limits,
    (range, record): (&Range<u64>, &Logged),
    end: u64,
) -> Vec<Range<u64>> {
    let (mut left, mut position) = (Vec::new(), range.start);
    for (part, other) in index.newest_in(range) {
        if other.entry >= end && limits.replaces(&other, record) {
            left.push(position..part.start);
            position = part.end;
        }
    }
    left.push(position..range.end);
    left.retain(|part| !part.is_empty());
    left
}

/// Fill level of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fill {
    /// The log is less than seven eighths full: entries are destaged only while the side is idle.
    /// Content that is replaced before that never has to be destaged.
    Low,
    /// The log is at least seven eighths full: entries are destaged whenever the side has no other
    /// work.
    Much,
    /// The log is at least fifteen sixteenths full, or has many incarnations: the destager runs in
    /// parallel to all other work.
    High,
    /// Changes wait for space in the log: the destager takes precedence over all other work.
    Full,
}

impl Store {
    /// Returns the fill level of the log.
    pub(super) fn fill(&self) -> Fill {
        let (used, all) = (self.log.used_bytes(), self.log.usable_bytes());
        if self.log.is_full() {
            Fill::Full
        } else if let Some(segments) = &self.segments {
            let left = self.log.open_bytes().1 + segments.lengthening_bytes(self.log.floor());
            let covered = self.log.index.borrow().bytes();
            let is_short = segments.is_below_target();
            Store::fill_of_segments((used, covered), (used + left, all), is_short)
        } else if used >= all / 16 * 15 || self.log.has_many_runs() {
            Fill::High
        } else if used >= all / 8 * 7 {
            Fill::Much
        } else {
            Fill::Low
        }
    }

    /// Returns the fill level of the log of a logged side, which has `used` bytes in use, and
    /// records of `covered` bytes of the volume. It may have `most` bytes in use as far as there is
    /// space for it now, and `all` with enough space. Folding costs such a side no seeks, so it
    /// begins earlier, and earlier still while the side is short of space: what the records cover
    /// is dead once they are folded, and those of discards cover much and need little of the log. A
    /// side that is not short has space that a commit gives to the log.
    fn fill_of_segments(
        (used, covered): (u64, u64),
        (most, all): (u64, u64),
        is_short: bool,
    ) -> Fill {
        let is_owed = is_short && used.max(covered) >= (all / 2).min(UNFOLDED_SHORT_BYTES);
        let is_worth = !is_short && used >= (all / 4).min(UNFOLDED_SHORT_BYTES);
        let all = if is_worth { most.min(all) } else { all };
        if used >= all / 4 * 3 || is_owed {
            Fill::High
        } else if used >= (all / 2).min(UNFOLDED_BYTES) {
            Fill::Much
        } else {
            Fill::Low
        }
    }

    /// Returns the maximum number of bytes of entries that one chunk drops from the log.
    fn chunk_bytes_max(&self) -> u64 {
        match self.segments.is_some() {
            true => self.log.area.bytes / LOG_FOLD_DIVISOR,
            false => self.log.area.bytes / CHUNKS_PER_LOG,
        }
    }

    /// Returns the number of bytes of its commit after which a chunk ends. On a logged side, the
    /// commit must fit into the free segments.
    fn chunk_commit_bytes_max(&self) -> u64 {
        let segments = self.segments.as_ref();
        segments.map_or(u64::MAX, |segments| segments.commit_bytes_max())
    }

    /// Returns the maximum number of bytes of content in one chunk.
    fn chunk_live_bytes_max(&self) -> u64 {
        match self.segments.is_some() {
            true => u64::MAX,
            false => CHUNK_LIVE_BYTES_MAX,
        }
    }

    /// Returns the current limits of the log.
    pub(super) fn limits(&self) -> Limits {
        let home_below = match self.mixes.get() {
            true => u64::MAX,
            false => self.log.complete_durable(),
        };
        Limits {
            flushed: self.log.flushed(),
            home_below,
            released_below: self.released_below.get(),
        }
    }

    /// Returns true when an entry has a change that a member of the epoch lacks, and no later
    /// record of the log replaces that change completely.
    pub(super) fn is_needed(&self, index: &Index, limits: &Limits, entry: &Entry) -> bool {
        let needed = |(range, record): &(Range<u64>, Logged)| {
            record.number >= limits.released_below
                && !parts_left(index, limits, (range, record), entry.end).is_empty()
        };
        entry.records.iter().any(needed)
    }

    /// Returns true when the log keeps an entry that could be destaged, because another member
    /// lacks a change of the entry. While the log has room, the entry is kept even if newer changes
    /// have replaced the change that the member lacks.
    fn is_kept(&self, index: &Index, limits: &Limits, entry: &Entry) -> bool {
        if self.let_go.get() {
            return false;
        }
        let patient = self.fill() < Fill::High;
        let unreleased = entry
            .highest()
            .is_some_and(|highest| highest >= limits.released_below);
        unreleased && (patient || self.is_needed(index, limits, entry))
    }

    /// Returns true when the oldest entry can be destaged now.
    pub(super) fn first_may_go(&self) -> bool {
        let (index, limits) = (self.log.index.borrow(), self.limits());
        let first = index.entries().front();
        first.is_some_and(|first| {
            limits.may_be_destaged(first) && !self.is_kept(&index, &limits, first)
        })
    }

    /// Returns true when the oldest entry could be destaged and is kept only for another member.
    pub(super) fn keeps_first(&self) -> bool {
        let (index, limits) = (self.log.index.borrow(), self.limits());
        let first = index.entries().front();
        first.is_some_and(|first| {
            limits.may_be_destaged(first) && self.is_kept(&index, &limits, first)
        })
    }

    /// Chooses the oldest entries that can be destaged: they are durable and complete, and the log
    /// does not keep them for a lagging member. Returns `None` when the oldest entry cannot be
    /// destaged. No other task is allowed to drop entries during the call.
    pub(super) async fn choose_chunk(&self) -> Option<Chunk> {
        let (limits, log_bytes_max) = (self.limits(), self.chunk_bytes_max());
        let live_bytes_max = self.chunk_live_bytes_max();
        let (commit_max, mut commit_bytes) = (self.chunk_commit_bytes_max(), 0);
        let (mut newest, mut end, mut begin, mut records) = (Index::default(), 0, None, 0);
        for at in 0.. {
            let entry = {
                let index = self.log.index.borrow();
                let Some(entry) = index.entries().get(at) else {
                    break;
                };
                let begin = *begin.get_or_insert(entry.position);
                let large = newest.bytes() >= live_bytes_max || entry.end - begin > log_bytes_max;
                let kept = self.is_kept(&index, &limits, entry);
                if !limits.may_be_destaged(entry) || kept || large && end > 0 {
                    break;
                }
                entry.clone()
            };
            end = entry.end;
            records += entry.records.len();
            commit_bytes += commit_bytes_of_entry(&entry);
            newest.push(entry);
            if commit_bytes >= commit_max {
                break;
            }
            if records >= RECORDS_PER_SLICE {
                records = 0;
                yield_now().await;
            }
        }
        if end == 0 {
            return None;
        }
        Some(self.pieces_of(&newest, end, &limits).await)
    }

    /// Returns the chunk of the entries before `end`. The chunk consists of the newest records of
    /// these entries (`newest`), without the parts that records at or after `end` have replaced.
    async fn pieces_of(&self, newest: &Index, end: u64, limits: &Limits) -> Chunk {
        let mut chunk = Chunk {
            end,
            pieces: Vec::new(),
            unreleased: Vec::new(),
            replaced_bytes: 0,
        };
        let volume_bytes = self.volume_bytes.get();
        let mut some = newest.some_newest_in(&(0..volume_bytes), RECORDS_PER_SLICE);
        while let Some((last, _)) = some.last() {
            let rest = last.end..volume_bytes;
            self.take_pieces(&mut chunk, some, limits);
            yield_now().await;
            some = newest.some_newest_in(&rest, RECORDS_PER_SLICE);
        }
        chunk
    }

    /// Adds records to the chunk. Leaves out the parts of a record that are replaced by a record
    /// after the end of the chunk.
    fn take_pieces(&self, chunk: &mut Chunk, records: Vec<(Range<u64>, Logged)>, limits: &Limits) {
        for (range, record) in records {
            let lets_go = self.let_go.get() && record.number >= limits.released_below;
            if lets_go {
                self.log.let_go_below(record.number + 1);
            }
            if self.marks_all.get() || lets_go {
                chunk.unreleased.push(range.clone());
            }
            let left = {
                let index = self.log.index.borrow();
                parts_left(&index, limits, (&range, &record), chunk.end)
            };
            chunk.replaced_bytes += range.end - range.start;
            for part in left {
                chunk.replaced_bytes -= part.end - part.start;
                let cut = record.cut(part.start - range.start..part.end - range.start);
                chunk.pieces.push((part, cut));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A log that is folded only when it has reached its end makes changes wait for the commit.
    #[test]
    fn a_log_is_folded_before_it_uses_what_space_allows() {
        let fill = |used, most| {
            let used = (used * MIB, used * MIB);
            Store::fill_of_segments(used, (most * MIB, 160 * MIB), false)
        };
        assert_eq!(fill(76, 400), Fill::Low, "half of the log is not in use");
        assert_eq!(fill(76, 160), Fill::Low);
        assert_eq!(fill(76, 104), Fill::Much);
        assert_eq!(fill(76, 88), Fill::High);
        assert_eq!(fill(31, 32), Fill::Low, "a commit would free little");
        assert_eq!(fill(32, 32), Fill::High);
    }

    /// While a side is short of space, cleaning commits often anyway.
    #[test]
    fn a_side_that_is_short_of_space_folds_by_the_length_of_its_log() {
        let fill = |used| {
            let covered = (used * MIB, used * MIB);
            Store::fill_of_segments(covered, (used * MIB, 64 * MIB), true)
        };
        // A discard covers much and needs few bytes of the log.
        let of_discards = |covered, is_short| {
            let used = (4 << 10, covered * MIB);
            Store::fill_of_segments(used, (MIB, 64 * MIB), is_short)
        };
        assert_eq!(of_discards(1000, true), Fill::High);
        assert_eq!(of_discards(31, true), Fill::Low);
        assert_eq!(of_discards(1000, false), Fill::Low);
        assert_eq!(fill(31), Fill::Low);
        assert_eq!(fill(32), Fill::High);
    }
}
