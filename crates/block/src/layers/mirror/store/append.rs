//! What a side is asked to keep.

use std::ops::Range;

use bimetal_rt::Payload;

use super::digests::Digests;
use super::entry::{Kind, Space};
use crate::extent_map::Cut;

/// A change, or a part of one.
pub(in super::super) struct Append {
    /// Bytes of the volume.
    pub(super) range: Range<u64>,
    pub(super) kind: Kind,
    /// The data, of a write.
    pub(super) payload: Payload,
    /// The digests of the data, if they were made before. A side that makes them in another way
    /// makes its own.
    pub(super) digests: Option<Digests>,
    /// The number of the change.
    pub(super) number: u64,
    /// The lowest number of a change that this one stands for: its own, or that of one it has
    /// replaced before the side had it.
    pub(super) stands_for: u64,
}

impl Append {
    /// A whole change of known content.
    pub(in super::super) fn of(range: Range<u64>, payload: Payload, number: u64) -> Append {
        Append::known(range, payload, None, number)
    }

    /// A whole change of which digests may have been made already.
    pub(in super::super) fn known(
        range: Range<u64>,
        payload: Payload,
        digests: Option<Digests>,
        number: u64,
    ) -> Append {
        Append {
            range,
            kind: Kind::Write,
            payload,
            digests,
            number,
            stands_for: number,
        }
    }

    /// A range that is to read as zeroes.
    pub(in super::super) fn zeroes(range: Range<u64>, space: Space, number: u64) -> Append {
        Append::without_data(range, Kind::Zeroes(space), number)
    }

    /// A range of which nobody knows what it should be.
    pub(in super::super) fn lost(range: Range<u64>, number: u64) -> Append {
        Append::without_data(range, Kind::Lost, number)
    }

    /// Nothing; it stands for no change.
    pub(super) fn nothing() -> Append {
        Append::without_data(0..0, Kind::Zeroes(Space::Freed), 0).standing_for(u64::MAX)
    }

    fn without_data(range: Range<u64>, kind: Kind, number: u64) -> Append {
        Append {
            range,
            kind,
            payload: Payload::empty(),
            digests: None,
            number,
            stands_for: number,
        }
    }

    /// Takes the first bytes off: they have been given to the device.
    ///
    /// # Panics
    /// When there are not more bytes than that.
    pub(super) fn advance(&mut self, bytes: u64) {
        let len = self.range.end - self.range.start;
        assert!(bytes < len, "something is left");
        if self.kind == Kind::Write {
            self.payload = self.payload.slice(bytes as usize..len as usize);
            self.digests = self.digests.as_ref().map(|digests| digests.cut(bytes..len));
        }
        self.range.start += bytes;
    }

    /// True when it says that nobody knows what the range should be.
    pub(in super::super) fn is_lost(&self) -> bool {
        self.kind == Kind::Lost
    }

    /// Bytes of data that it puts into the log.
    pub(super) fn data_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// The bytes of the volume that it is about.
    pub(in super::super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// The same, in the place of all changes from a number on that the side never had.
    pub(in super::super) fn standing_for(mut self, number: u64) -> Append {
        self.stands_for = number;
        self
    }
}
