//! Places of images in segments, and by which name each segment calls what it was filled with last.

use super::GRANULE_BYTES;
use crate::layout::Geometry;
use crate::node::Seal;
use crate::planted::{Bug, is_planted};
use crate::sync::RwLock;

/// Where an image is: segment, first granule in it, granules. Zero is nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location(u64);

impl Location {
    /// No place.
    pub(crate) const NOWHERE: Location = Location(0);

    /// A place of `bytes` bytes from byte `at` of a segment.
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

    /// As it stands in a checkpoint; `None` if no such place can be.
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

    /// Bytes from the start of the segment.
    pub(crate) fn at(self) -> usize {
        (self.0 >> 16 & 0xFFFF) as usize * GRANULE_BYTES
    }

    pub(crate) fn bytes(self) -> usize {
        (self.0 & 0xFFFF) as usize * GRANULE_BYTES
    }
}

/// A place, and the name of the filling of its segment. The same place in a later filling is
/// another.
///
/// What a reader has read counts, and what it could not read is damaged, only if the node has the
/// same [`Spot`] after the reading as before: its image may have been moved meanwhile, its segment
/// filled anew, and the node moved back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub location: Location,
    filling: u32,
}

impl Spot {
    /// What the image here is sealed for.
    pub(crate) fn seal(self) -> Seal {
        Seal {
            location: self.location.stored(),
            filling: self.filling,
        }
    }
}

impl PartialEq for Spot {
    fn eq(&self, other: &Spot) -> bool {
        let is_same_filling = self.filling == other.filling || is_planted(Bug::OverlooksFillings);
        self.location == other.location && is_same_filling
    }
}

/// By which name the images of each segment call its filling: 0 where they were written without.
#[derive(Debug)]
pub(crate) struct Fillings(RwLock<Vec<u32>>);

impl Fillings {
    /// Of segments in order.
    pub(crate) fn new(names: Vec<u32>) -> Fillings {
        Fillings(RwLock::new(names))
    }

    /// The spot of an image that is at this place now. A reader asks for it while it holds the lock
    /// of the node that names the place: until the lock is given up, the segment is in use and not
    /// filled anew.
    pub(crate) fn spot(&self, location: Location) -> Spot {
        let names = self.0.read();
        Spot {
            location,
            filling: names
                .get(location.segment() as usize)
                .copied()
                .unwrap_or_default(),
        }
    }

    /// What an image at this place has to be sealed for. For the writer, beside whom no segment is
    /// filled anew.
    pub(crate) fn seal_of(&self, location: Location) -> Seal {
        self.spot(location).seal()
    }

    pub(super) fn set(&self, segment: u32, name: u32) {
        let mut names = self.0.write();
        let len = names.len().max(segment as usize + 1);
        names.resize(len, 0);
        names[segment as usize] = name;
    }

    /// The names of so many segments.
    pub(super) fn all(&self, segments: usize) -> Vec<u32> {
        let mut names = self.0.read().clone();
        names.resize(segments, 0);
        names
    }
}
