//! Where a log is on the device: in one area that is used in a circle, or in segments. Also the
//! limits that follow from this: the length of an entry, and the space that may be in flight.

use std::rc::Rc;

use super::entry::{DATA_BLOCKS_MAX, HEADER_BYTES, Header};
use super::segments::Chain;
use crate::BLOCK_BYTES;

/// Maximum number of entries in flight: one entry that the device writes, and one queued after it.
pub(super) const ENTRIES_IN_FLIGHT_MAX: usize = 2;
/// Share of the log that a chunk takes, as a divisor. Chunks are chosen by it, and room for one of
/// them is withheld.
pub(super) const CHUNKS_PER_LOG: u64 = 16;

/// Location of the log on the device, and the size limit of its entries.
#[derive(Clone)]
pub(super) struct Area {
    place: Place,
    /// Length of the log in bytes.
    pub(super) bytes: u64,
    /// Maximum number of data blocks in an entry.
    pub(super) data_blocks_max: u64,
}

/// Where the log is on the device.
#[derive(Clone)]
enum Place {
    /// In one area from this offset on, whose end is followed by its start.
    Circle(u64),
    /// In segments.
    Chain(Rc<Chain>),
}

impl Area {
    /// Creates the log area of a side on a device that accepts `transfer_bytes_max` in one request.
    pub(super) fn new((offset, bytes): (u64, u64), transfer_bytes_max: u64) -> Area {
        Area::at_place(Place::Circle(offset), bytes, transfer_bytes_max)
    }

    /// Creates the area of a log of `bytes` in segments, on a device that accepts
    /// `transfer_bytes_max` in one request.
    pub(super) fn in_segments(chain: Rc<Chain>, bytes: u64, transfer_bytes_max: u64) -> Area {
        Area::at_place(Place::Chain(chain), bytes, transfer_bytes_max)
    }

    fn at_place(place: Place, bytes: u64, transfer_bytes_max: u64) -> Area {
        let fits = (transfer_bytes_max / BLOCK_BYTES).saturating_sub(1);
        let share = bytes / 32 / BLOCK_BYTES;
        Area {
            place,
            bytes,
            data_blocks_max: DATA_BLOCKS_MAX.min(share).min(fits).max(1),
        }
    }

    /// Returns the in-flight window: the maximum number of bytes in flight when a crash happens.
    pub(super) fn window(&self) -> u64 {
        ENTRIES_IN_FLIGHT_MAX as u64 * (HEADER_BYTES + self.data_blocks_max * BLOCK_BYTES)
    }

    /// Returns the number of bytes that can be in use before changes must wait for space.
    pub(super) fn usable_bytes(&self) -> u64 {
        self.bytes.saturating_sub(3 * self.window())
    }

    /// Returns the offset on the device of a position in the log.
    pub(super) fn at(&self, position: u64) -> u64 {
        match &self.place {
            Place::Circle(offset) => offset + position % self.bytes,
            Place::Chain(chain) => chain.at(position),
        }
    }

    /// Returns the number of bytes from a position to the next position that no entry crosses: the
    /// end of the area, or of the segment.
    pub(super) fn bytes_left_at(&self, position: u64) -> u64 {
        match &self.place {
            Place::Circle(_) => self.bytes - position % self.bytes,
            Place::Chain(chain) => chain.bytes_left_at(position),
        }
    }

    /// Returns the number of bytes that may be appended at `head` now, as far as cleaning limits
    /// them.
    pub(super) fn granted_bytes(&self, head: u64) -> u64 {
        match &self.place {
            Place::Circle(_) => u64::MAX,
            Place::Chain(chain) => chain.granted_bytes(head),
        }
    }

    /// Wakes the cleaner of a logged side, because the log waits for it.
    pub(super) fn wake_cleaner(&self) {
        if let Place::Chain(chain) = &self.place {
            chain.wake_cleaner();
        }
    }

    /// Records that an entry is appended. Returns what is to be written behind it, with the offset
    /// on the device: the summary of its segment, if the entry is the last one in it.
    pub(super) fn note_appended(&self, header: &Header) -> Option<(u64, Vec<u8>)> {
        match &self.place {
            Place::Circle(_) => None,
            Place::Chain(chain) => chain.note_appended(header),
        }
    }

    /// Records that an entry was found in the log.
    pub(super) fn note_found(&self, header: &Header) {
        if let Place::Chain(chain) = &self.place {
            chain.describe(header);
        }
    }

    /// Returns true when the log has space at a position that was read from the device.
    pub(super) fn holds(&self, position: u64) -> bool {
        match &self.place {
            Place::Circle(_) => true,
            Place::Chain(chain) => (chain.start()..=chain.end()).contains(&position),
        }
    }

    /// Returns the position at which the space of the log ends while the space from position
    /// `floor` on must not be overwritten.
    pub(super) fn limit(&self, floor: u64) -> u64 {
        match &self.place {
            Place::Circle(_) => floor + self.bytes,
            Place::Chain(chain) => chain.end().min(floor.saturating_add(self.bytes)),
        }
    }
}
