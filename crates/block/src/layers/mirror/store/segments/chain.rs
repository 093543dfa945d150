//! The segments of the log of a logged side, in the order in which the log fills them.
//!
//! The log of such a side has positions that only grow, like any log. A position is in the segment
//! whose number in this order is the position divided by the length of a segment. Segments at the
//! start are released when their entries were dropped, and other segments are appended.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::description::{self, Birth, Described};
use super::pace::Pace;
use crate::BLOCK_BYTES;
use crate::layers::mirror::store::entry::{HEADER_BYTES, Header};
use crate::layers::mirror::superblock::{SegmentLayout, Uuid};

/// Bit of a generation that says that the log has filled the segment. The rest is the place of the
/// segment in the chain.
const OF_LOG: u64 = 1 << 63;
/// Length of the shortest entry with data, in bytes.
const ENTRY_BYTES_MIN: u64 = HEADER_BYTES + BLOCK_BYTES;

/// The segments of a log; see the module documentation.
pub(in super::super) struct Chain {
    side: Uuid,
    layout: SegmentLayout,
    /// Number of the first block of the volume in the virtual range.
    first_block: u64,
    segments: RefCell<Listed>,
    /// What the blocks of the listed segments hold, by the place of the segment in the chain.
    described: RefCell<BTreeMap<u64, OfSegment>>,
    pace: Rc<Pace>,
}

/// What the blocks of a segment of the log hold.
struct OfSegment {
    described: Vec<Described>,
    /// Whether what the log has written to the segment is described completely.
    is_complete: bool,
    /// Digest of the summary with all of this, if it was given out to be written.
    summary: Option<u32>,
}

/// A segment that the log has released.
pub(super) struct Released {
    pub(super) segment: u32,
    /// What its blocks hold; empty if this is not completely known.
    pub(super) described: Vec<Described>,
    /// Digest of its summary; `None` if this program has not written one.
    pub(super) summary: Option<u32>,
}

/// Numbers of consecutive segments of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Place of the first segment in the order of the log.
    pub(super) first: u64,
    /// Numbers of the segments on the device.
    pub(super) segments: VecDeque<u32>,
}

impl Chain {
    /// Creates the chain of a side. `first_block` is the number of the first block of the volume in
    /// the virtual range.
    pub(super) fn new(
        (side, layout): (Uuid, &SegmentLayout),
        first_block: u64,
        listed: Listed,
        pace: Rc<Pace>,
    ) -> Chain {
        Chain {
            side,
            layout: *layout,
            first_block,
            segments: RefCell::new(listed),
            described: RefCell::default(),
            pace,
        }
    }

    /// Returns the number of bytes of a segment that the log fills: those before the summary.
    pub(super) fn usable_bytes(&self) -> u64 {
        self.layout.usable_blocks() * BLOCK_BYTES
    }

    /// Returns the offset on the device of a position in the log.
    ///
    /// # Panics
    /// When the position is before the first or behind the last segment.
    pub(in super::super) fn at(&self, position: u64) -> u64 {
        let segment = self.segment_at(position / self.usable_bytes());
        self.offset_of(segment) + position % self.usable_bytes()
    }

    fn segment_at(&self, place: u64) -> u32 {
        let listed = self.segments.borrow();
        let index = place.checked_sub(listed.first);
        listed.segments[index.expect("it is not released") as usize]
    }

    fn offset_of(&self, segment: u32) -> u64 {
        self.layout.area.0 + u64::from(segment) * self.layout.segment_bytes
    }

    /// Returns the position at which a segment begins; `None` when it is not listed.
    pub(super) fn start_of(&self, segment: u32) -> Option<u64> {
        let listed = self.segments.borrow();
        let index = listed.segments.iter().position(|other| *other == segment)?;
        Some((listed.first + index as u64) * self.usable_bytes())
    }

    /// Returns the number of bytes from a position to the end of its segment.
    pub(in super::super) fn bytes_left_at(&self, position: u64) -> u64 {
        self.usable_bytes() - position % self.usable_bytes()
    }

    /// Returns the position at which the first segment begins.
    pub(in super::super) fn start(&self) -> u64 {
        self.segments.borrow().first * self.usable_bytes()
    }

    /// Returns the position behind the last segment.
    pub(in super::super) fn end(&self) -> u64 {
        let listed = self.segments.borrow();
        (listed.first + listed.segments.len() as u64) * self.usable_bytes()
    }

    /// Returns the number of bytes that the log may append at `head` now.
    pub(in super::super) fn granted_bytes(&self, head: u64) -> u64 {
        self.pace.set_unspent(self.end().saturating_sub(head));
        self.pace.granted_to_log_bytes()
    }

    /// Wakes the cleaner, because the log waits for it or for more segments.
    pub(in super::super) fn wake_cleaner(&self) {
        self.pace.request();
    }

    /// Records that an entry is appended. Returns the summary of its segment, with the offset to
    /// which it is to be written, if the segment has no room for another entry.
    pub(in super::super) fn note_appended(&self, header: &Header) -> Option<(u64, Vec<u8>)> {
        let entry = header.position..header.end();
        self.pace.set_unspent(self.end().saturating_sub(entry.end));
        self.pace.note_appended(entry.end - entry.start);
        self.describe(header);
        let place = entry.start / self.usable_bytes();
        let left = (place + 1) * self.usable_bytes() - entry.end;
        (left < ENTRY_BYTES_MIN).then(|| self.summary(place))
    }

    /// Returns the place in the chain of the segment with a position of the log, and the generation
    /// of the segment.
    pub(super) fn generation_at(&self, position: u64) -> (u64, u64) {
        let place = position / self.usable_bytes();
        (place, OF_LOG | place)
    }

    /// Returns a generation of a segment that was not filled by the log, and 0 for one that was.
    pub(super) fn moved_in(&self, generation: u64) -> u64 {
        match generation & OF_LOG {
            0 => generation,
            _ => 0,
        }
    }

    /// Records that what the log has written to a listed segment is not known completely. The
    /// segment gets no summary.
    pub(super) fn leave_undescribed(&self, place: u64) {
        let mut all = self.described.borrow_mut();
        self.of_segment(&mut all, place).is_complete = false;
    }

    fn of_segment<'m>(
        &self,
        all: &'m mut BTreeMap<u64, OfSegment>,
        place: u64,
    ) -> &'m mut OfSegment {
        let usable = self.layout.usable_blocks() as usize;
        all.entry(place).or_insert_with(|| OfSegment {
            described: vec![Described::NOTHING; usable],
            is_complete: true,
            summary: None,
        })
    }

    /// Records what an entry holds that is in the log.
    pub(in super::super) fn describe(&self, header: &Header) {
        let usable = self.layout.usable_blocks();
        let first = header.position / BLOCK_BYTES;
        let mut all = self.described.borrow_mut();
        let of = self.of_segment(&mut all, first / usable);
        of.summary = None;
        let index = (first % usable) as usize + 1;
        let described = self.described_by(header);
        of.described[index..index + described.len()].copy_from_slice(&described);
    }

    /// Returns what an entry says about its blocks of data.
    pub(super) fn described_by(&self, header: &Header) -> Vec<Described> {
        let mut described = Vec::with_capacity(header.digests.len());
        let mut digests = header.digests.iter();
        for record in &header.records {
            let start = self.first_block + record.offset / BLOCK_BYTES;
            let birth = Birth {
                epoch: header.epoch,
                number: record.number,
            };
            let blocks = start..start + record.data_blocks();
            described.extend(blocks.zip(&mut digests).map(|(block, digest)| Described {
                block,
                birth,
                digest: *digest,
            }));
        }
        described
    }

    /// Returns the summary of a segment, with the offset to which it is to be written. For a
    /// segment that gets none, this is a block of zeroes, since an older summary may be in its
    /// place.
    fn summary(&self, place: u64) -> (u64, Vec<u8>) {
        let offset = self.offset_of(self.segment_at(place)) + self.usable_bytes();
        let mut all = self.described.borrow_mut();
        let of = all.get_mut(&place).expect("it has entries");
        if !of.is_complete {
            return (offset, vec![0; BLOCK_BYTES as usize]);
        }
        let bytes = description::summary(&self.side, OF_LOG | place, &of.described);
        of.summary = Some(crc32c::crc32c(&bytes));
        (offset, bytes)
    }

    /// Returns the summaries of the segments that end at or before a position and that were not
    /// given out yet, each with the offset to which it is to be written.
    pub(super) fn unwritten_summaries(&self, position: u64) -> Vec<(u64, Vec<u8>)> {
        let listed = self.segments.borrow().first;
        let released = position / self.usable_bytes();
        let unwritten: Vec<u64> = {
            let all = self.described.borrow();
            let places = all.range(listed..released.max(listed));
            let unwritten = places.filter(|(_, of)| of.summary.is_none());
            unwritten.map(|(place, _)| *place).collect()
        };
        let summary = |place| self.summary(place);
        unwritten.into_iter().map(summary).collect()
    }

    /// Returns the segments.
    pub(super) fn listed(&self) -> Listed {
        self.segments.borrow().clone()
    }

    /// Removes and returns the segments that end at or before a position.
    pub(super) fn release_before(&self, position: u64) -> Vec<Released> {
        let mut listed = self.segments.borrow_mut();
        let mut all = self.described.borrow_mut();
        let mut released = Vec::new();
        while (listed.first + 1) * self.usable_bytes() <= position
            && let Some(segment) = listed.segments.pop_front()
        {
            let of = all.remove(&listed.first).filter(|of| of.is_complete);
            released.push(Released {
                segment,
                summary: of.as_ref().and_then(|of| of.summary),
                described: of.map(|of| of.described).unwrap_or_default(),
            });
            listed.first += 1;
        }
        released
    }

    /// Appends segments.
    pub(super) fn append(&self, segments: &[u32]) {
        self.segments.borrow_mut().segments.extend(segments);
    }
}
