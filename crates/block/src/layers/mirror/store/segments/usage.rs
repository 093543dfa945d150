//! Use of the segments of a logged side: what each segment is used for, how many of its blocks are
//! live, and which segments are free.
//!
//! A segment must never be filled again while the map on the device, or a read in flight, refers to
//! a block in it. So a segment without live blocks is *dead*, and it becomes free only after the
//! map that no longer refers to it was committed.

use std::collections::BTreeSet;

use crate::layers::mirror::planted::{Bug, is_planted};

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
    /// Digest of the summary of each segment; `None` if an earlier program has filled the segment.
    summaries: Vec<Option<u32>>,
    segment_blocks: u32,
    free: BTreeSet<u32>,
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
    /// Creates the use of `segments` segments, which are all sealed and without live blocks.
    pub(super) fn new(segments: u64, segment_blocks: u32) -> Usage {
        let sealed = Segment {
            state: State::Sealed(0),
            live: 0,
            pins: 0,
        };
        let words = (segments * u64::from(segment_blocks)).div_ceil(64);
        Usage {
            segments: vec![sealed; segments as usize],
            live: vec![0; words as usize],
            summaries: vec![None; segments as usize],
            segment_blocks,
            free: BTreeSet::new(),
            next: 0,
            newest_first: false,
            freed_last: None,
            appended_blocks: 0,
        }
    }

    /// Returns the number of the segment of a block.
    pub(super) fn segment_of(&self, block: u32) -> u32 {
        block / self.segment_blocks
    }

    /// Returns the number of live blocks in a segment.
    pub(super) fn live_in(&self, segment: u32) -> u32 {
        self.segments[segment as usize].live
    }

    /// Returns the number of segments.
    pub(super) fn count(&self) -> usize {
        self.segments.len()
    }

    /// Returns the number of free segments.
    pub(super) fn free_count(&self) -> usize {
        self.free.len()
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
        self.segments[segment as usize].live += 1;
    }

    /// Counts blocks as live, unless one of them counts already or is named twice; returns false
    /// then.
    pub(super) fn try_add_live(&mut self, blocks: &[u32]) -> bool {
        for (count, block) in blocks.iter().enumerate() {
            if self.is_live(*block) {
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

    /// Returns the digest of the summary of a segment that this program has filled.
    pub(super) fn summary(&self, segment: u32) -> Option<u32> {
        self.summaries[segment as usize]
    }

    /// Records the digest of the summary of a segment that was filled.
    pub(super) fn set_summary(&mut self, segment: u32, digest: Option<u32>) {
        self.summaries[segment as usize] = digest;
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
        let newest = self.freed_last.take().filter(|_| self.newest_first);
        let next = self.free.range(self.next..).next();
        let next = newest.as_ref().or(next);
        let segment = *next.or_else(|| self.free.first())?;
        self.free.remove(&segment);
        self.summaries[segment as usize] = None;
        self.next = segment + 1;
        self.set_state(segment, state);
        Some(segment)
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
