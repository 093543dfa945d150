//! The index of a log in memory: the entries in order, and the newest record of each block of the
//! volume.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::digests::Digests;
use super::entry::{Kind, Space};
use crate::BLOCK_BYTES;
use crate::extent_map::{Cut, ExtentMap};
use crate::layers::mirror::digest::BlockDigest;
use crate::range_set::RangeSet;

/// Location of the content of a record, or of a part of a record.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// The content is in the log.
    Data {
        /// Position of the first block in the log.
        position: u64,
        /// Digests of the blocks.
        digests: Digests,
    },
    /// The content is zeroes, which take no space in the log.
    Zeroes(Space),
    /// The content is lost, so it cannot be read.
    Lost,
}

/// A record in the log, or a part of a record.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    /// Sequence number of the change.
    pub(super) number: u64,
    /// Position of the entry that holds the record.
    pub(super) entry: u64,
    /// Location of the content of the record.
    pub(super) content: Content,
}

impl Cut for Logged {
    fn cut(&self, range: Range<u64>) -> Logged {
        let content = match &self.content {
            Content::Data { position, digests } => Content::Data {
                position: position + range.start,
                digests: digests.cut(range),
            },
            Content::Zeroes(space) => Content::Zeroes(*space),
            Content::Lost => Content::Lost,
        };
        Logged {
            number: self.number,
            entry: self.entry,
            content,
        }
    }
}

/// A stored entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Position at which the entry begins.
    pub(super) position: u64,
    /// Position at which the entry ends.
    pub(super) end: u64,
    /// Position behind which the entry follows, as its header says.
    pub(super) follows: u64,
    /// Incarnation of the log in which the entry was written.
    pub(super) run: u64,
    /// Position before which the log was durable when the entry was written.
    pub(super) flushed: u64,
    /// Number of the epoch in which the entry was written.
    pub(super) epoch: u64,
    /// Number of records in the header of the entry on the device; some of these may have been
    /// discarded.
    pub(super) records_written: usize,
    /// Sequence number below which the side holds every change once this entry and all earlier
    /// entries are in its log.
    pub(super) complete_below: u64,
    /// Time at which the entry was written, in seconds since 1970.
    pub(super) written_s: u64,
    /// Sequence number below which every change was durable on every member of the epoch when the
    /// entry was written.
    pub(super) shared_below: u64,
    /// Records in the order of their position in the entry, each with its range of the volume in
    /// bytes.
    pub(super) records: Vec<(Range<u64>, Logged)>,
}

impl Entry {
    /// Creates an entry from its header, on a side with the digest algorithm `made_by`.
    pub(super) fn of(header: &super::entry::Header, made_by: BlockDigest) -> Entry {
        let mut position = header.position + super::entry::HEADER_BYTES;
        let all = Digests::new(made_by, header.digests.clone());
        let mut taken = 0;
        let record = |record: &super::entry::Record| {
            let range = record.offset..record.offset + record.bytes();
            let content = match record.kind {
                Kind::Zeroes(space) => Content::Zeroes(space),
                Kind::Lost => Content::Lost,
                Kind::Write => {
                    let digests = all.cut(taken..taken + record.bytes());
                    taken += record.bytes();
                    let at = position;
                    position += record.bytes();
                    Content::Data {
                        position: at,
                        digests,
                    }
                }
            };
            let logged = Logged {
                number: record.number,
                entry: header.position,
                content,
            };
            (range, logged)
        };
        Entry {
            position: header.position,
            end: header.end(),
            follows: header.follows,
            run: header.run,
            flushed: header.flushed,
            epoch: header.epoch,
            records_written: header.records.len(),
            complete_below: header.complete_below,
            written_s: header.written_s,
            shared_below: header.shared_below,
            records: header.records.iter().map(record).collect(),
        }
    }

    /// Returns the highest sequence number in the entry; `None` for an entry without records.
    pub(super) fn highest(&self) -> Option<u64> {
        self.records.iter().map(|(_, logged)| logged.number).max()
    }
}

/// The index of a log; see the module documentation.
#[derive(Default)]
pub(super) struct Index {
    newest: ExtentMap<Logged>,
    entries: VecDeque<Entry>,
    /// Positions from which the log is being read, with the number of readers of each position. No
    /// space at or after the lowest of these positions is reused.
    pins: BTreeMap<u64, u32>,
}

impl Index {
    /// Adds a stored entry, which must lie after all others.
    pub(super) fn push(&mut self, entry: Entry) {
        assert!(
            self.entries
                .back()
                .is_none_or(|last| last.end <= entry.position),
            "positions only grow"
        );
        for (range, logged) in &entry.records {
            self.insert(range.clone(), logged);
        }
        self.entries.push_back(entry);
    }

    /// Adds a record to the newest records, except where a record with a higher sequence number
    /// exists.
    fn insert(&mut self, range: Range<u64>, logged: &Logged) {
        let newer = |(_, other): &(Range<u64>, &Logged)| other.number > logged.number;
        let kept: Vec<(Range<u64>, Logged)> = self
            .newest
            .overlapping(&range)
            .filter(newer)
            .map(|(range, other)| (range, other.clone()))
            .collect();
        self.newest.insert(range.clone(), logged.clone());
        for (kept_range, other) in kept {
            self.newest.insert(kept_range, other);
        }
    }

    /// Returns the newest records in a range, cut to the range, in ascending order of position.
    pub(super) fn newest_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, Logged)> {
        self.some_newest_in(range, usize::MAX)
    }

    /// Returns the first `parts_max` of the newest records in a range, cut to the range, in
    /// ascending order of position.
    pub(super) fn some_newest_in(
        &self,
        range: &Range<u64>,
        parts_max: usize,
    ) -> Vec<(Range<u64>, Logged)> {
        let cut = |(part, logged): (Range<u64>, &Logged)| {
            let inside = part.start.max(range.start)..part.end.min(range.end);
            let logged = logged.cut(inside.start - part.start..inside.end - part.start);
            (inside, logged)
        };
        let parts = self.newest.overlapping(range).take(parts_max);
        parts.map(cut).collect()
    }

    /// Returns the first part of a range that is in the log, cut to the range, and whether it holds
    /// data. The flag is false when the part is recorded as zeroes.
    pub(super) fn first_in(&self, range: &Range<u64>) -> Option<(Range<u64>, bool)> {
        let (part, logged) = self.newest.overlapping(range).next()?;
        let inside = part.start.max(range.start)..part.end.min(range.end);
        Some((inside, !matches!(logged.content, Content::Zeroes(_))))
    }

    /// Returns the stored entries, oldest first.
    pub(super) fn entries(&self) -> &VecDeque<Entry> {
        &self.entries
    }

    /// Drops the oldest entry if the entry ends at or before `position`. Also drops the entry's
    /// records from the map of newest records, where they are still the newest. Returns false when
    /// the entry ends later, or when there is no entry.
    pub(super) fn drop_first_before(&mut self, position: u64) -> bool {
        let Some(entry) = self.entries.pop_front_if(|first| first.end <= position) else {
            return false;
        };
        for (range, _) in &entry.records {
            self.remove_newest_of(entry.position, range);
        }
        true
    }

    /// Protects the space of the log from a position on from reuse.
    pub(super) fn pin(&mut self, position: u64) {
        *self.pins.entry(position).or_default() += 1;
    }

    /// Undoes one call of [`pin`](Index::pin) with this position. The space stays protected until
    /// every call with this position is undone.
    pub(super) fn unpin(&mut self, position: u64) {
        let count = self.pins.get_mut(&position).expect("it was pinned");
        *count -= 1;
        if *count == 0 {
            self.pins.remove(&position);
        }
    }

    /// Returns the lowest pinned position; `None` when no position is pinned. The log protects the
    /// space from this position on.
    pub(super) fn lowest_pin(&self) -> Option<u64> {
        self.pins.keys().next().copied()
    }

    /// Returns the number of bytes of the volume whose newest content is in the log.
    pub(super) fn bytes(&self) -> u64 {
        self.newest.bytes()
    }

    /// Returns the ranges whose newest record has a sequence number of at least `first`, each with
    /// that number, in ascending order of position.
    pub(super) fn since_number(&self, first: u64) -> Vec<(Range<u64>, u64)> {
        let newest = self.newest.iter();
        let late = newest.filter(|(_, logged)| logged.number >= first);
        late.map(|(range, logged)| (range, logged.number)).collect()
    }

    /// Removes every record with a sequence number of at least `first`, as if the record had never
    /// been logged. A side that is started alone does this with changes that are not complete.
    /// Older records of the same blocks become the newest ones again.
    pub(super) fn forget_from(&mut self, first: u64) {
        for entry in &mut self.entries {
            entry.records.retain(|(_, logged)| logged.number < first);
        }
        self.newest = ExtentMap::new();
        let entries = std::mem::take(&mut self.entries);
        for (range, logged) in entries.iter().flat_map(|entry| &entry.records) {
            self.insert(range.clone(), logged);
        }
        self.entries = entries;
    }

    /// Removes the records of some ranges from the entry with the index `at`. Returns the parts of
    /// the ranges that the entry had. Older records of the same blocks do not become the newest
    /// ones again.
    ///
    /// # Panics
    /// When there is no such entry.
    pub(super) fn forget_ranges(&mut self, at: usize, ranges: &RangeSet) -> Vec<Range<u64>> {
        let entry = &mut self.entries[at];
        let position = entry.position;
        let mut had = Vec::new();
        for (range, logged) in std::mem::take(&mut entry.records) {
            had.extend(ranges.parts_in(&range));
            let kept = ranges.gaps(&range).into_iter().map(|part| {
                let cut = logged.cut(part.start - range.start..part.end - range.start);
                (part, cut)
            });
            entry.records.extend(kept);
        }
        for part in &had {
            self.remove_newest_of(position, part);
        }
        had
    }

    /// Removes the records of the entry at `position` from the map of newest records, for the
    /// blocks in `range`.
    fn remove_newest_of(&mut self, position: u64, range: &Range<u64>) {
        let of_entry = |(_, logged): &(Range<u64>, &Logged)| logged.entry == position;
        let inside =
            |(part, _): (Range<u64>, &Logged)| part.start.max(range.start)..part.end.min(range.end);
        let newest = self.newest.overlapping(range).filter(of_entry);
        let parts: Vec<Range<u64>> = newest.map(inside).collect();
        for part in parts {
            self.newest.remove(part);
        }
    }

    /// Removes every record and every entry.
    pub(super) fn forget_all(&mut self) {
        self.newest = ExtentMap::new();
        self.entries.clear();
    }
}

/// Converts a length in bytes, which must be a multiple of the block size, to a number of blocks.
pub(super) fn block_count(bytes: u64) -> u32 {
    debug_assert!(bytes.is_multiple_of(BLOCK_BYTES));
    (bytes / BLOCK_BYTES) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(number: u64, entry: u64, position: u64, blocks: usize) -> Logged {
        Logged {
            number,
            entry,
            content: Content::Data {
                position,
                digests: Digests::new(BlockDigest::Xxh3, (0..blocks as u32).collect()),
            },
        }
    }

    fn entry(position: u64, records: Vec<(Range<u64>, Logged)>) -> Entry {
        Entry {
            position,
            end: position + 0x10000,
            follows: position,
            run: 1,
            flushed: 0,
            epoch: 1,
            records_written: records.len(),
            complete_below: 0,
            written_s: 0,
            shared_below: 0,
            records,
        }
    }

    fn numbers(index: &Index, range: Range<u64>) -> Vec<(Range<u64>, u64)> {
        let newest = index.newest_in(&range).into_iter();
        newest.map(|(range, l)| (range, l.number)).collect()
    }

    #[test]
    fn the_highest_number_counts_whatever_the_order() {
        let mut index = Index::default();
        index.push(entry(0, vec![(0x1000..0x3000, data(9, 0, 0x1000, 2))]));
        index.push(entry(
            0x10000,
            vec![(0..0x4000, data(7, 0x10000, 0x11000, 4))],
        ));
        let expected = vec![(0..0x1000, 7), (0x1000..0x3000, 9), (0x3000..0x4000, 7)];
        assert_eq!(numbers(&index, 0..0x4000), expected);
        // The part from 0x3000 on is cut from the record that starts at 0. The position is that of
        // the content of this part, not that of the whole record's content.
        let (_, last) = index.newest_in(&(0x3000..0x4000)).remove(0);
        let Content::Data { position, digests } = last.content else {
            panic!("it has data")
        };
        assert_eq!((position, digests.values()), (0x14000, &[3][..]));
    }

    #[test]
    fn what_is_dropped_goes_and_what_has_replaced_it_stays() {
        let mut index = Index::default();
        index.push(entry(0, vec![(0..0x4000, data(1, 0, 0x1000, 4))]));
        index.push(entry(
            0x10000,
            vec![(0x1000..0x2000, data(2, 0x10000, 0x11000, 1))],
        ));
        assert!(!index.drop_first_before(0xFFFF), "it ends behind that");
        assert_eq!(index.entries().len(), 2, "an entry goes as a whole");
        assert!(index.drop_first_before(0x10000));
        assert_eq!(numbers(&index, 0..0x4000), vec![(0x1000..0x2000, 2)]);
        assert_eq!(index.bytes(), 0x1000);
    }

    #[test]
    fn forgetting_brings_older_records_back() {
        let mut index = Index::default();
        index.push(entry(0, vec![(0..0x2000, data(1, 0, 0x1000, 2))]));
        index.push(entry(
            0x10000,
            vec![(0..0x1000, data(5, 0x10000, 0x11000, 1))],
        ));
        index.forget_from(5);
        assert_eq!(numbers(&index, 0..0x4000), vec![(0..0x2000, 1)]);
    }

    #[test]
    fn the_lowest_reader_is_known() {
        let mut index = Index::default();
        index.pin(0x5000);
        index.pin(0x3000);
        index.pin(0x3000);
        index.unpin(0x3000);
        assert_eq!(index.lowest_pin(), Some(0x3000));
        index.unpin(0x3000);
        assert_eq!(index.lowest_pin(), Some(0x5000));
        index.unpin(0x5000);
        assert_eq!(index.lowest_pin(), None);
    }
}
