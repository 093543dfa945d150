//! Choosing which entries of the log are destaged next, and which parts of them are written home.
//!
//! An entry is not dropped while a member of the epoch lacks a change that is nowhere else in this
//! log, unless a full log has waited for that member in vain. So after a crash at any moment, the
//! changes that a late member lacks are found here (T13, T14). The choice is made in slices with a
//! yield between two of them, so that a log of many small records does not hold up the thread.

use std::ops::Range;

use bimetal_rt::yield_now;

use super::Store;
use super::index::{Entry, Index, Logged};
use crate::extent_map::Cut;

/// Maximum number of bytes that a chunk writes home; they are in memory meanwhile.
const CHUNK_LIVE_BYTES_MAX: u64 = 64 << 20;
/// Number of records that are handled between two yields.
const RECORDS_PER_SLICE: usize = 256;

/// Log entries that are destaged together.
pub(super) struct Chunk {
    /// The entries before this position are dropped afterwards.
    pub(super) end: u64,
    /// The content to write home: parts of the volume, and the records that hold their content.
    pub(super) pieces: Vec<(Range<u64>, Logged)>,
    /// Ranges that an absent side will lack once the entries are dropped.
    pub(super) unreleased: Vec<Range<u64>>,
    /// Bytes that newer records have replaced.
    pub(super) replaced_bytes: u64,
}

/// The state of the log when the choice began. Each field only grows, so that a condition that was
/// true of an entry then stays true while the choice is made.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Everything in the log below this position is durable.
    flushed: u64,
    /// Changes below this number may be written home.
    home_below: u64,
    /// Changes below this number are durable on every other member of the epoch.
    released_below: u64,
}

impl Limits {
    /// Returns true when `other`, a record of the same place in the volume, makes `record`
    /// superfluous: `other` is a newer change of that place or a copy of the same change, and any
    /// volume started from this side will have it.
    fn replaces(&self, other: &Logged, record: &Logged) -> bool {
        let newer = other.number > record.number;
        let copy = other.number == record.number && other.entry > record.entry;
        (newer || copy) && other.number < self.home_below && other.entry < self.flushed
    }

    /// Returns true when an entry is durable, and all its changes may be written home.
    pub(super) fn may_be_destaged(&self, entry: &Entry) -> bool {
        entry.end <= self.flushed && entry.highest().unwrap_or(0) < self.home_below
    }
}

/// Returns the parts of a record that no record in the log from position `end` on replaces.
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
    /// Less than seven eighths: entries are destaged only while the side is idle. Content that is
    /// replaced meanwhile never has to be destaged.
    Low,
    /// Seven eighths or more: entries are destaged whenever the side has no other work.
    Much,
    /// Fifteen sixteenths or more, or many incarnations of the log: the destage runs beside all
    /// other work.
    High,
    /// Changes wait for space: the destage runs before all other work.
    Full,
}

impl Store {
    /// Returns the fill level of the log.
    pub(super) fn fill(&self) -> Fill {
        let (used, all) = (self.log.used_bytes(), self.log.usable_bytes());
        if self.log.is_full() {
            Fill::Full
        } else if used >= all / 16 * 15 || self.log.has_many_runs() {
            Fill::High
        } else if used >= all / 8 * 7 {
            Fill::Much
        } else {
            Fill::Low
        }
    }

    /// Returns the present state of the log.
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

    /// Returns true when a member of the epoch lacks a change of this entry that no newer change
    /// replaces.
    pub(super) fn is_needed(&self, index: &Index, limits: &Limits, entry: &Entry) -> bool {
        let needed = |(range, record): &(Range<u64>, Logged)| {
            record.number >= limits.released_below
                && !parts_left(index, limits, (range, record), entry.end).is_empty()
        };
        entry.records.iter().any(needed)
    }

    /// Returns true when the log keeps this entry for now, although the entry could be destaged: a
    /// member lacks a change of it. While the log has room, the entry is kept even when newer
    /// changes have replaced that change.
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

    /// Returns true when the oldest entry could be destaged if no other member lacked it.
    pub(super) fn keeps_first(&self) -> bool {
        let (index, limits) = (self.log.index.borrow(), self.limits());
        let first = index.entries().front();
        first.is_some_and(|first| {
            limits.may_be_destaged(first) && self.is_kept(&index, &limits, first)
        })
    }

    /// Chooses the oldest entries that are durable, complete, and needed by no member that is
    /// merely late; `None` when the oldest entry cannot be destaged. The caller must let no other
    /// task drop entries meanwhile.
    pub(super) async fn choose_chunk(&self) -> Option<Chunk> {
        let (limits, log_bytes_max) = (self.limits(), self.log.area.bytes / 16);
        let (mut newest, mut end, mut begin, mut records) = (Index::default(), 0, None, 0);
        for at in 0.. {
            let entry = {
                let index = self.log.index.borrow();
                let Some(entry) = index.entries().get(at) else {
                    break;
                };
                let begin = *begin.get_or_insert(entry.position);
                let large =
                    newest.bytes() >= CHUNK_LIVE_BYTES_MAX || entry.end - begin > log_bytes_max;
                let kept = self.is_kept(&index, &limits, entry);
                if !limits.may_be_destaged(entry) || kept || large && end > 0 {
                    break;
                }
                entry.clone()
            };
            end = entry.end;
            records += entry.records.len();
            newest.push(entry);
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

    /// Returns the newest records of the entries before `end`, without the parts that later records
    /// replace.
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

    /// Adds to the chunk the parts of some records that no record behind the chunk replaces.
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
