//! Location of the log: the current ring of blocks, and the earlier rings of the log that still
//! contain needed blocks.
//!
//! An index begins with a short ring at the front of its storage. When few blocks of that ring are
//! free, the log continues in a longer ring, in contiguous segments. When no block of the log is
//! needed any more, the log returns to the front and the segments are freed. A position belongs to
//! one ring: the last ring whose first position is at or before that position. Each position in use
//! must be in a ring that at least one of the two superblocks lists.

use crate::geometry::{Geometry, LOG_OFFSET};
use crate::storage::BLOCK_BYTES;
use std::ops::Range;

/// Maximum number of rings of a log: one for each step of its growth.
pub(crate) const RINGS_MAX: usize = 9;
/// Bytes of a ring in a superblock.
pub(crate) const RING_BYTES: usize = 16;
/// Factor by which a log that is too short grows.
const GROWTH: u64 = 8;
/// Stored in a superblock in place of a segment number if the ring is at the front.
const FRONT: u32 = u32::MAX;

/// Location of the blocks of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingLocation {
    /// Between the superblocks and the segments.
    Front,
    /// In consecutive segments, beginning with this one.
    Segments(u32),
}

impl RingLocation {
    pub(crate) fn stored(self) -> u32 {
        match self {
            RingLocation::Front => FRONT,
            RingLocation::Segments(first) => first,
        }
    }

    pub(crate) fn from_stored(stored: u32) -> RingLocation {
        match stored {
            FRONT => RingLocation::Front,
            first => RingLocation::Segments(first),
        }
    }

    /// Returns the offset of the first byte of the ring, from the start of the storage.
    fn offset(self, geometry: &Geometry) -> u64 {
        match self {
            RingLocation::Front => LOG_OFFSET,
            RingLocation::Segments(first) => geometry.segment_offset(first),
        }
    }
}

/// A ring of blocks. The index of a block in the ring is the position of the block modulo the
/// number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// First position in this ring.
    pub from: u64,
    pub place: RingLocation,
    pub blocks: u64,
}

impl Ring {
    /// Returns the ring at the front of an index, with the given position as the first position of
    /// the ring.
    pub(crate) fn front(geometry: &Geometry, from: u64) -> Ring {
        Ring {
            from,
            place: RingLocation::Front,
            blocks: geometry.front_blocks,
        }
    }

    /// Returns the offset of the block at a position, in bytes from the start of the storage.
    pub(crate) fn offset_of(&self, geometry: &Geometry, position: u64) -> u64 {
        self.place.offset(geometry) + position % self.blocks * BLOCK_BYTES as u64
    }

    /// Returns the byte range of the ring.
    pub(crate) fn range(&self, geometry: &Geometry) -> Range<u64> {
        let start = self.place.offset(geometry);
        start..start + self.blocks * BLOCK_BYTES as u64
    }

    /// Returns the segments that the ring occupies.
    pub(crate) fn segments(&self, geometry: &Geometry) -> Range<u32> {
        match self.place {
            RingLocation::Front => 0..0,
            RingLocation::Segments(first) => {
                first..first.saturating_add(segments_for(geometry, self.blocks))
            }
        }
    }

    pub(crate) fn encode(&self) -> [u8; RING_BYTES] {
        let mut bytes = [0; RING_BYTES];
        bytes[..8].copy_from_slice(&self.from.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.place.stored().to_le_bytes());
        bytes[12..].copy_from_slice(&(self.blocks as u32).to_le_bytes());
        bytes
    }

    /// Decodes a ring; returns `None` if an index of this geometry cannot have such a ring.
    pub(crate) fn decode(bytes: &[u8; RING_BYTES], geometry: &Geometry) -> Option<Ring> {
        let ring = Ring {
            from: u64::from_le_bytes(*bytes.first_chunk()?),
            place: RingLocation::from_stored(u32::from_le_bytes(*bytes[8..].first_chunk()?)),
            blocks: u32::from_le_bytes(*bytes[12..].first_chunk()?).into(),
        };
        let is_possible = match ring.place {
            RingLocation::Front => ring.blocks == geometry.front_blocks,
            RingLocation::Segments(_) => (1..=geometry.log_blocks).contains(&ring.blocks),
        };
        is_possible.then_some(ring)
    }
}

/// Returns the number of segments that the given number of blocks takes.
pub(crate) fn segments_for(geometry: &Geometry, blocks: u64) -> u32 {
    let bytes = blocks * BLOCK_BYTES as u64;
    // A log has at most 2^28 blocks of 2^12 bytes, and a segment has at least 2^16 bytes. So the
    // quotient is at most 2^24.
    bytes.div_ceil(geometry.segment_bytes.into()) as u32
}

/// Rings of a log, in the order of their positions: the last ring is the one being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rings(Vec<Ring>);

impl Rings {
    /// Returns a list of one ring.
    pub(crate) fn of_one(ring: Ring) -> Rings {
        Rings(vec![ring])
    }

    /// Returns a list of several rings; `None` if a log cannot have these rings.
    pub(crate) fn of(rings: Vec<Ring>) -> Option<Rings> {
        let is_possible = (1..=RINGS_MAX).contains(&rings.len())
            && rings.is_sorted_by(|one, next| one.from < next.from);
        is_possible.then_some(Rings(rings))
    }

    pub(crate) fn all(&self) -> &[Ring] {
        &self.0
    }

    /// Returns the ring that is being written.
    pub(crate) fn current(&self) -> &Ring {
        self.0.last().expect("a log is in a ring")
    }

    /// Returns the ring of a position, and the first position after that ring.
    pub(crate) fn at(&self, position: u64) -> (&Ring, u64) {
        let later = self.0.partition_point(|ring| ring.from <= position);
        let index = later.saturating_sub(1);
        let end = self.0.get(index + 1).map_or(u64::MAX, |next| next.from);
        (&self.0[index], end)
    }

    /// Returns the offset of the block at a position, in bytes from the start of the storage.
    pub(crate) fn offset_of(&self, geometry: &Geometry, position: u64) -> u64 {
        self.at(position).0.offset_of(geometry, position)
    }

    /// Returns the rings that have blocks at or after a position. The current ring is always
    /// included.
    pub(crate) fn needed_from(&self, position: u64) -> Rings {
        let gone = self.0[1..].partition_point(|ring| ring.from <= position);
        Rings(self.0[gone..].to_vec())
    }

    /// Returns the list with a new current ring appended. If nothing was ever written to the old
    /// current ring, the new ring replaces it.
    pub(crate) fn with(&self, ring: Ring) -> Rings {
        assert!(self.current().from <= ring.from, "positions only grow");
        let mut rings = self.0.clone();
        if self.current().from == ring.from {
            rings.pop();
        }
        rings.push(ring);
        Rings(rings)
    }

    /// Returns the number of blocks of the next ring, which is longer than the current ring and has
    /// room for `needed_blocks`. Returns `None` if the log cannot be longer.
    pub(crate) fn longer(&self, geometry: &Geometry, needed_blocks: u64) -> Option<u64> {
        let (now, most) = (self.current().blocks, geometry.log_blocks);
        let is_last = self.0.len() + 1 >= RINGS_MAX;
        let blocks = (now * GROWTH).max(needed_blocks * 2);
        // Grow to the maximum at once if the ring after this one would otherwise be less than twice
        // as long as this one.
        let blocks = if is_last || blocks * 2 > most {
            most
        } else {
            blocks
        };
        (now < most && self.0.len() < RINGS_MAX).then_some(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry::new(1, 16 << 10, 1 << 20)
    }

    fn ring(from: u64, first: u32, blocks: u64) -> Ring {
        Ring {
            from,
            place: RingLocation::Segments(first),
            blocks,
        }
    }

    #[test]
    fn a_position_is_in_the_last_ring_that_begins_before_it() {
        let geometry = geometry();
        let rings = Rings::of_one(Ring::front(&geometry, 0)).with(ring(1000, 3, 512));
        assert_eq!(geometry.front_blocks, 240);
        assert_eq!(rings.at(999), (&Ring::front(&geometry, 0), 1000));
        assert_eq!(rings.at(1000).0.place, RingLocation::Segments(3));
        // Position 999 is in the front ring of 240 blocks: 999 = 4 * 240 + 39, so its block has the
        // index 39. Position 1030 is in the ring of 512 blocks in segment 3: 1030 = 2 * 512 + 6, so
        // its block has the index 6. Segments begin at 1 MiB.
        assert_eq!(rings.offset_of(&geometry, 999), (64 << 10) + 39 * 4096);
        assert_eq!(rings.offset_of(&geometry, 1030), (4 << 20) + 6 * 4096);
        assert_eq!(rings.current().segments(&geometry), 3..5);
    }

    #[test]
    fn rings_go_when_nothing_of_them_is_needed() {
        let geometry = geometry();
        let rings = Rings::of_one(Ring::front(&geometry, 0));
        let rings = rings.with(ring(100, 3, 512)).with(ring(300, 9, 4096));
        let left = |position| rings.needed_from(position).all().len();
        assert_eq!([left(0), left(99), left(100), left(299)], [3, 3, 2, 2]);
        assert_eq!([left(300), left(10_000)], [1, 1], "the current one stays");
    }

    #[test]
    fn a_log_grows_in_few_steps_to_its_bound_and_no_further() {
        let geometry = geometry();
        let mut rings = Rings::of_one(Ring::front(&geometry, 0));
        let mut steps = Vec::new();
        while let Some(blocks) = rings.longer(&geometry, 0) {
            steps.push(blocks);
            rings = rings.with(ring(steps.len() as u64, 0, blocks));
        }
        // The first step is from 240 blocks to 8 * 240. Another step by the factor 8 would lead to
        // more than half of the maximum of 16,384 blocks, so the second step leads to the maximum.
        assert_eq!(steps, [1920, 16 << 10]);
        let short = Rings::of_one(Ring::front(&geometry, 0));
        assert_eq!(short.longer(&geometry, 2000), Some(4000));
        // Each step of the log to a longer ring adds a ring to the list. Even for the longest
        // possible log, the list has room for all of these rings.
        let longest = Geometry::new(1, 1 << 28, 64 << 10);
        let mut rings = Rings::of_one(Ring::front(&longest, 0));
        while let Some(blocks) = rings.longer(&longest, 0) {
            let from = rings.current().from + 1;
            rings = rings.with(ring(from, 0, blocks));
        }
        assert_eq!(rings.current().blocks, 1 << 28);
    }

    #[test]
    fn a_ring_is_read_as_it_was_written_and_others_are_refused() {
        let geometry = geometry();
        for ring in [Ring::front(&geometry, 7), ring(9, 4, 16 << 10)] {
            assert_eq!(Ring::decode(&ring.encode(), &geometry), Some(ring));
        }
        for ring in [ring(9, 4, 0), ring(9, 4, (16 << 10) + 1)] {
            assert_eq!(Ring::decode(&ring.encode(), &geometry), None);
        }
        let shorter = Ring {
            blocks: 100,
            ..Ring::front(&geometry, 7)
        };
        assert_eq!(Ring::decode(&shorter.encode(), &geometry), None);
        assert_eq!(Rings::of(Vec::new()), None);
        assert_eq!(Rings::of(vec![ring(9, 4, 1), ring(9, 5, 1)]), None);
    }
}
