//! Locations of images in segments, and the generation tag of each segment.

use super::GRANULE_BYTES;
use crate::layout::Geometry;
use crate::node::Seal;
use crate::planted::{Bug, is_planted};
use crate::sync::RwLock;

/// Location of an image: the segment, the first granule in the segment, and the number of granules.
/// The value zero means no location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location(u64);

impl Location {
    /// No location.
    pub(crate) const NOWHERE: Location = Location(0);

    /// Returns the location of `bytes` bytes from byte `at` of a segment.
    pub(crate) fn new(segment: u32, at: usize, bytes: usize) -> Location {
        assert!(
            bytes > 0 && at.is_multiple_of(GRANULE_BYTES) && bytes.is_multiple_of(GRANULE_BYTES)
        );
        let (at, granules) = (at / GRANULE_BYTES, bytes / GRANULE_BYTES);
        assert!(
            at < 1 << 16 && granules < 1 << 16,
            "segments are at most 4 MiB"
        );
        Location(u64::from(segment) << 32 | (at as u64) << 16 | granules as u64)
    }

    /// Decodes a location as a checkpoint stores it; returns `None` if no image can be at that
    /// location.
    pub(crate) fn from_stored(stored: u64, geometry: &Geometry, segments: u32) -> Option<Location> {
        let location = Location(stored);
        let fits = location.is_nowhere()
            || (location.bytes() > 0
                && location.segment() < segments
                && location.at() + location.bytes() <= geometry.segment_bytes as usize);
        fits.then_some(location)
    }

    pub(crate) fn stored(self) -> u64 {
        self.0
    }

    pub(crate) fn is_nowhere(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the offset from the start of the segment, in bytes.
    pub(crate) fn at(self) -> usize {
        (self.0 >> 16 & 0xFFFF) as usize * GRANULE_BYTES
    }

    pub(crate) fn bytes(self) -> usize {
        (self.0 & 0xFFFF) as usize * GRANULE_BYTES
    }
}

/// A location, and the generation tag of its segment. The same location in a later generation is
/// another spot.
///
/// During a read without a lock, the image of the node can be moved, the segment refilled, and the
/// node moved back to the same location. So a reader compares the [`Spot`] of the node before and
/// after the read. If the two are equal, the content read is valid, and a failed read is a sign of
/// damage. If they differ, the result of the read has no meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub location: Location,
    generation: u32,
}

impl Spot {
    /// Returns the seal that the image at this spot must have.
    pub(crate) fn seal(self) -> Seal {
        Seal {
            location: self.location.stored(),
            generation: self.generation,
        }
    }
}

impl PartialEq for Spot {
    fn eq(&self, other: &Spot) -> bool {
        let is_same_generation =
            self.generation == other.generation || is_planted(Bug::OverlooksGenerations);
        self.location == other.location && is_same_generation
    }
}

/// Generation tag of each segment, which the images in the segment carry; 0 if the images were
/// written without a tag.
#[derive(Debug)]
pub(crate) struct Generations(RwLock<Vec<u32>>);

impl Generations {
    /// Creates the table from the generation tags of all segments, in the order of the segments.
    pub(crate) fn new(names: Vec<u32>) -> Generations {
        Generations(RwLock::new(names))
    }

    /// Returns the spot (location and generation tag) of the image that is at this location now. A
    /// reader calls this while it holds the lock of the node that names the location: until the
    /// lock is released, the segment is in use and not refilled.
    pub(crate) fn spot(&self, location: Location) -> Spot {
        let names = self.0.read();
        Spot {
            location,
            generation: names
                .get(location.segment() as usize)
                .copied()
                .unwrap_or_default(),
        }
    }

    /// Returns the seal that an image at this location must have. The seal consists of the location
    /// and of the generation tag of the segment there. Only the writer calls this, and no segment
    /// is refilled during the call.
    pub(crate) fn seal_of(&self, location: Location) -> Seal {
        self.spot(location).seal()
    }

    pub(super) fn set(&self, segment: u32, name: u32) {
        let mut names = self.0.write();
        let len = names.len().max(segment as usize + 1);
        names.resize(len, 0);
        names[segment as usize] = name;
    }

    /// Returns the tags of the first `segments` segments.
    pub(super) fn all(&self, segments: usize) -> Vec<u32> {
        let mut names = self.0.read().clone();
        names.resize(segments, 0);
        names
    }
}
