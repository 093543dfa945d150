//! Use of the segments of a logged side: what each segment is used for, how many of its blocks are
//! live, and which segments are free.
//!
//! A segment must never be filled again while the map on the device, or a read in flight, refers to
//! a block in it. So a segment without live blocks is *dead*, and it becomes free only after the
//! map that no longer refers to it was committed.

use std::collections::BTreeSet;

use super::record::Record;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::store::entry::{put_u32, u32_at};
use crate::layers::mirror::superblock::areas::ENTRIES_BYTES;
use crate::layers::mirror::superblock::segmented::TABLE_PAGE_ENTRIES;

/// Length in bytes of an entry of the segment table.
const ENTRY_BYTES: usize = 8;
/// State of a segment in the segment table: the digest of its summary is known, or it is retired.
const SUMMARISED: u8 = 1;
const RETIRED: u8 = 2;

/// Use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The segment can be filled.
    Free,
    /// The log fills the segment, or has entries in it that were not dropped.
    Log,
    /// A stream fills the segment.
    Open,
    /// The segment is full, or is no longer filled. The field says how many blocks had been
    /// appended to the side by then.
    Sealed(u64),
    /// A block of the segment could not be read or written, so it is not used again.
    Retired,
}

/// A segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) state: State,
    /// Number of its blocks that are live: to which the map, the page table or the journal refers.
    pub(super) live: u32,
    /// Number of requests in flight that read or write the segment.
    pub(super) pins: u32,
}

impl Segment {
    /// Returns true when the segment has no live block and nothing uses it.
    fn is_dead(&self) -> bool {
        matches!(self.state, State::Sealed(_))
            && self.live == 0
            && (self.pins == 0 || is_planted(Bug::FreesPinned))
    }
}

/// The use of all segments; see the module documentation.
pub(super) struct Usage {
    segments: Vec<Segment>,
    /// A bit for each block of the segments, which is set while the block is live.
    live: Vec<u64>,
    /// Digest of the summary of each segment; `None` if it is not known.
    summaries: Vec<Option<u32>>,
    /// Whether each segment was free when the side was opened. Nothing that is read from the side
    /// refers to such a segment.
    was_free: Vec<bool>,
    /// Pages of the segment table in which an entry has changed.
    changed: BTreeSet<u64>,
    segment_blocks: u32,
    /// Segments that can be taken.
    free: BTreeSet<u32>,
    /// Free segments that still hold on the device what they were used for.
    undiscarded: BTreeSet<u32>,
    /// The free segment whose discard is in flight, or has failed and may still take effect. It
    /// cannot be taken.
    withheld: Option<u32>,
    /// Number of the segment after the one that was taken last. Segments are taken in ascending
    /// order from here, which is the order of the arm of a disk.
    next: u32,
    /// Whether the segment is taken first that became free last.
    pub(super) newest_first: bool,
    /// The segment that became free last.
    freed_last: Option<u32>,
    /// Number of blocks that were appended to the side since it was opened.
    pub(super) appended_blocks: u64,
}

impl Usage {
    /// Creates the use of the segments of a side whose record is `record`. All are sealed and
    /// without live blocks, apart from those of the log. Those that are free in the record can be
    /// taken after they were [released](Self::release).
    pub(super) fn of_record(record: &Record, segment_blocks: u32) -> Usage {
        let segments = record.segments;
        let sealed = Segment {
            state: State::Sealed(0),
            live: 0,
            pins: 0,
        };
        let words = (segments * u64::from(segment_blocks)).div_ceil(64);
        let mut usage = Usage {
            segments: vec![sealed; segments as usize],
            live: vec![0; words as usize],
            summaries: vec![None; segments as usize],
            was_free: vec![false; segments as usize],
            changed: BTreeSet::new(),
            segment_blocks,
            free: BTreeSet::new(),
            undiscarded: BTreeSet::new(),
            withheld: None,
            next: 0,
            newest_first: false,
            freed_last: None,
            appended_blocks: 0,
        };
        for segment in &record.log.segments {
            usage.set_state(*segment, State::Log);
        }
        for segment in &record.free {
            usage.was_free[*segment as usize] = true;
        }
        usage
    }

    /// Takes over the entries of the segment table from the segment `first` on.
    ///
    /// Returns false, and takes over nothing, when one of them is impossible.
    pub(super) fn load_table(&mut self, first: u32, entries: &[u8]) -> bool {
        let entries = entries.chunks_exact(ENTRY_BYTES);
        if entries.clone().any(|entry| entry[4] > RETIRED) {
            return false;
        }
        for (segment, entry) in (first as usize..self.segments.len()).zip(entries) {
            let is_sealed = matches!(self.segments[segment].state, State::Sealed(_));
            match entry[4] {
                SUMMARISED if is_sealed && !self.was_free[segment] => {
                    self.summaries[segment] = Some(u32_at(entry, 0));
                }
                // The entry is that of an earlier use of the segment.
                SUMMARISED => self.note_changed(segment as u32),
                RETIRED if is_sealed => self.segments[segment].state = State::Retired,
                _ => {}
            }
        }
        true
    }

    /// Fills in the entries of the segment table from the segment `first` on, as the format page
    /// draws them.
    pub(super) fn encode_table(&self, first: u32, bytes: &mut [u8; ENTRIES_BYTES]) {
        bytes.fill(0);
        let segments = first as usize..self.segments.len();
        for (segment, entry) in segments.zip(bytes.chunks_exact_mut(ENTRY_BYTES)) {
            match (self.segments[segment].state, self.summaries[segment]) {
                (State::Retired, _) => entry[4] = RETIRED,
                (_, Some(digest)) => {
                    put_u32(entry, 0, digest);
                    entry[4] = SUMMARISED;
                }
                (_, None) => {}
            }
        }
    }

    /// Removes and returns the pages of the segment table in which an entry has changed.
    pub(super) fn take_changed(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.changed)
    }

    fn note_changed(&mut self, segment: u32) {
        self.changed.insert(u64::from(segment) / TABLE_PAGE_ENTRIES);
    }

    /// Retires a segment, because a block of it could not be read or written.
    pub(super) fn retire(&mut self, segment: u32) {
        self.set_state(segment, State::Retired);
        self.note_changed(segment);
    }

    /// Returns the segments that were free when the side was opened, and to which nothing refers
    /// now.
    pub(super) fn unused(&self) -> Vec<u32> {
        let all = self.all().zip(&self.was_free);
        let unused = all.filter(|((_, segment), was_free)| **was_free && segment.is_dead());
        unused.map(|((number, _), _)| number).collect()
    }

    /// Returns the segments that are free, or are freed by a commit that frees `dead`.
    pub(super) fn free_with(&self, dead: &[u32]) -> BTreeSet<u32> {
        let mut free = self.free.clone();
        free.extend(dead.iter().chain(&self.withheld));
        if is_planted(Bug::ListsFilledAsFree) {
            let open = self
                .all()
                .filter(|(_, segment)| segment.state == State::Open);
            free.extend(open.map(|(number, _)| number));
        }
        free
    }

    /// Returns the number of the segment of a block.
    pub(super) fn segment_of(&self, block: u32) -> u32 {
        block / self.segment_blocks
    }

    /// Returns the number of live blocks in a segment.
    pub(super) fn live_in(&self, segment: u32) -> u32 {
        self.segments[segment as usize].live
    }

    /// Returns true when a segment has no live block and nothing uses it.
    pub(super) fn is_dead(&self, segment: u32) -> bool {
        self.segments[segment as usize].is_dead()
    }

    /// Returns the number of segments.
    pub(super) fn count(&self) -> usize {
        self.segments.len()
    }

    /// Returns the number of free segments that can be taken.
    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of free segments that cannot be taken.
    pub(super) fn withheld_count(&self) -> usize {
        usize::from(self.withheld.is_some())
    }

    /// Returns all segments, each with its number.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, Segment)> {
        (0..).zip(self.segments.iter().copied())
    }

    /// Sets the use of a segment that is not free.
    pub(super) fn set_state(&mut self, segment: u32, state: State) {
        assert!(state != State::Free, "a segment becomes free by a commit");
        self.segments[segment as usize].state = state;
    }

    /// Returns whether a block counts as live.
    pub(super) fn is_live(&self, block: u32) -> bool {
        self.live[(block / 64) as usize] & bit_of(block) != 0
    }

    /// Counts a block as live.
    ///
    /// # Panics
    /// When it counts already.
    pub(super) fn add_live(&mut self, block: u32) {
        assert!(!self.is_live(block), "block {block} has one owner");
        self.live[(block / 64) as usize] |= bit_of(block);
        let segment = self.segment_of(block);
        assert_ne!(
            self.withheld,
            Some(segment),
            "what is discarded holds nothing"
        );
        self.segments[segment as usize].live += 1;
    }

    /// Counts blocks as live to which something refers that was read from the side, unless one of
    /// them counts already, is named twice, or is in a segment that was free; returns false then.
    pub(super) fn try_add_live(&mut self, blocks: &[u32]) -> bool {
        for (count, block) in blocks.iter().enumerate() {
            if self.is_live(*block) || self.was_free[self.segment_of(*block) as usize] {
                blocks[..count]
                    .iter()
                    .for_each(|block| self.remove_live(*block));
                return false;
            }
            self.add_live(*block);
        }
        true
    }

    /// Counts a block as dead.
    ///
    /// # Panics
    /// When it was not live.
    pub(super) fn remove_live(&mut self, block: u32) {
        assert!(self.is_live(block), "block {block} dies once");
        self.live[(block / 64) as usize] &= !bit_of(block);
        let segment = self.segment_of(block);
        self.segments[segment as usize].live -= 1;
    }

    /// Returns the live blocks of a segment.
    pub(super) fn live_blocks(&self, segment: u32) -> impl Iterator<Item = u32> {
        let first = segment * self.segment_blocks;
        let blocks = first..first + self.segment_blocks;
        blocks.filter(|block| self.is_live(*block))
    }

    /// Returns the digest of the summary of a segment; `None` if it is not known.
    pub(super) fn summary(&self, segment: u32) -> Option<u32> {
        self.summaries[segment as usize]
    }

    /// Records the digest of the summary of a segment that was filled.
    pub(super) fn set_summary(&mut self, segment: u32, digest: Option<u32>) {
        self.summaries[segment as usize] = digest;
        self.note_changed(segment);
    }

    /// Protects a segment from becoming free until [`unpin`](Self::unpin).
    pub(super) fn pin(&mut self, segment: u32) {
        self.segments[segment as usize].pins += 1;
    }

    /// Undoes one [`pin`](Self::pin).
    pub(super) fn unpin(&mut self, segment: u32) {
        let pins = &mut self.segments[segment as usize].pins;
        *pins = pins.checked_sub(1).expect("it was pinned");
    }

    /// Takes a free segment for `state`; `None` when at most `spared` segments are free.
    pub(super) fn take(&mut self, state: State, spared: usize) -> Option<u32> {
        if self.free.len() <= spared {
            return None;
        }
        let newest = self.freed_last.take();
        let newest = newest.filter(|newest| self.newest_first && self.free.contains(newest));
        let segment = newest.or_else(|| self.in_order().next())?;
        self.free.remove(&segment);
        self.undiscarded.remove(&segment);
        self.next = segment + 1;
        self.set_state(segment, state);
        Some(segment)
    }

    /// Returns the segments that can be taken, in the order in which they are.
    fn in_order(&self) -> impl Iterator<Item = u32> {
        let behind = self.free.range(self.next..);
        behind.chain(self.free.range(..self.next)).copied()
    }

    /// Records that segments hold on the device what they were used for, those of them that a
    /// commit has made free.
    pub(super) fn note_undiscarded(&mut self, segments: &[u32]) {
        let free = segments
            .iter()
            .filter(|segment| self.free.contains(segment));
        self.undiscarded.extend(free);
    }

    /// Returns the segment that should be discarded now: of those that hold something, the one that
    /// is taken last, unless it is among the next `kept` that are taken; `None` while another one
    /// is withheld.
    pub(super) fn to_discard(&self, kept: usize) -> Option<u32> {
        let before = self.undiscarded.range(..self.next).next_back();
        let last = *before.or_else(|| self.undiscarded.last())?;
        let is_soon_taken = self.in_order().take(kept).any(|segment| segment == last);
        (self.withheld.is_none() && !is_soon_taken).then_some(last)
    }

    /// Withholds a free segment, because it is being discarded.
    pub(super) fn withhold(&mut self, segment: u32) {
        assert!(
            self.free.remove(&segment),
            "only a free segment is discarded"
        );
        assert_eq!(self.withheld.replace(segment), None, "one at a time");
        self.undiscarded.remove(&segment);
    }

    /// Lets the withheld segment be taken again.
    pub(super) fn end_withholding(&mut self) {
        self.free.extend(self.withheld.take());
    }

    /// Returns the segments without live blocks that nothing uses.
    pub(super) fn dead(&self) -> Vec<u32> {
        let dead = self.all().filter(|(_, segment)| segment.is_dead());
        dead.map(|(number, _)| number).collect()
    }

    /// Returns the number of [dead](Self::dead) segments.
    pub(super) fn dead_count(&self) -> usize {
        self.segments
            .iter()
            .filter(|segment| segment.is_dead())
            .count()
    }

    /// Frees segments that were [dead](Self::dead) before the map was committed.
    ///
    /// # Panics
    /// When one of them has a live block.
    pub(super) fn release(&mut self, dead: &[u32]) {
        for number in dead {
            let segment = &mut self.segments[*number as usize];
            assert_eq!(segment.live, 0, "a dead segment is not filled");
            if segment.pins == 0 || is_planted(Bug::FreesPinned) {
                segment.state = State::Free;
                self.free.insert(*number);
                self.freed_last = Some(*number);
            }
            // The commit after this one removes the digest from the segment table, so no record
            // says that the segment is filled again and has this digest.
            if self.summaries[*number as usize].take().is_some() {
                self.note_changed(*number);
            }
        }
    }

    /// Gives a segment back that was taken and not used.
    pub(super) fn give_back(&mut self, segment: u32) {
        self.segments[segment as usize].state = State::Free;
        self.free.insert(segment);
    }
}

fn bit_of(block: u32) -> u64 {
    1 << (block % 64)
}

#[cfg(test)]
mod tests {
    use super::super::chain::Listed;
    use super::*;

    /// Returns the use of six segments of 16 blocks: 0 is in the log, 1 and 2 are free.
    fn usage() -> Usage {
        let record = Record {
            segments: 6,
            log: Listed {
                first: 0,
                segments: [0].into(),
            },
            free: [1, 2].into(),
            ..Record::default()
        };
        Usage::of_record(&record, 16)
    }

    fn encoded(usage: &Usage) -> Vec<u8> {
        let mut bytes = [0xFF; ENTRIES_BYTES];
        usage.encode_table(0, &mut bytes);
        assert_eq!(
            bytes[48..],
            [0; ENTRIES_BYTES - 48],
            "there are no more segments"
        );
        bytes[..48].to_vec()
    }

    #[test]
    fn the_segment_table_is_as_the_format_page_draws_it() {
        let mut usage = usage();
        usage.set_summary(3, Some(0x0102_0304));
        usage.retire(5);
        assert_eq!(usage.take_changed(), BTreeSet::from([0]));
        assert_eq!(usage.take_changed(), BTreeSet::new());
        let mut golden = vec![0; 48];
        golden[24..29].copy_from_slice(&[4, 3, 2, 1, 1]);
        golden[44] = 2;
        assert_eq!(encoded(&usage), golden);
        let mut read = self::usage();
        assert!(read.load_table(0, &golden));
        assert_eq!(read.summary(3), Some(0x0102_0304));
        assert_eq!(read.segments[5].state, State::Retired);
        assert_eq!(encoded(&read), golden);
        golden[44] = 3;
        assert!(!read.load_table(0, &golden), "no segment has this state");
    }

    /// A segment that was free, or that the log fills, has the entry of its earlier use.
    #[test]
    fn an_entry_of_an_earlier_use_of_a_segment_is_removed() {
        let mut usage = usage();
        let all = [0, 0, 0, 0, 1, 0, 0, 0].repeat(6);
        assert!(usage.load_table(0, &all));
        let known: Vec<bool> = (0..6).map(|n| usage.summary(n).is_some()).collect();
        assert_eq!(known, [false, false, false, true, true, true]);
        assert_eq!(usage.take_changed(), BTreeSet::from([0]));
        usage.release(&[4]);
        assert_eq!(usage.summary(4), None);
        assert_eq!(usage.take_changed(), BTreeSet::from([0]));
    }

    #[test]
    fn nothing_that_is_read_is_in_a_segment_that_was_free() {
        let mut usage = usage();
        assert!(!usage.try_add_live(&[48, 32]));
        assert!(!usage.is_live(48), "none of them counts");
        assert!(usage.try_add_live(&[48, 0]));
        assert_eq!(usage.unused(), [1, 2]);
        usage.release(&[1, 2]);
        assert_eq!(usage.free_with(&[5]), BTreeSet::from([1, 2, 5]));
        let taken = usage.take(State::Open, 0).expect("two are free");
        usage.add_live(taken * 16);
        assert_eq!(usage.live_in(taken), 1, "what is appended now may be there");
    }
}
