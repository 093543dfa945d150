//! Requests to append to the log of a side.

use std::ops::Range;

use bimetal_rt::Payload;

use super::digests::Digests;
use super::entry::{Kind, Space};
use crate::extent_map::Cut;

/// A change to be appended, or a part of a change.
pub(in super::super) struct Append {
    /// Range of the volume in bytes.
    pub(super) range: Range<u64>,
    pub(super) kind: Kind,
    /// Data of the change; empty unless it is a write.
    pub(super) payload: Payload,
    /// Digests of the data, if they were computed before. A side with another algorithm computes
    /// its own digests.
    pub(super) digests: Option<Digests>,
    /// Sequence number of the change.
    pub(super) number: u64,
    /// Lowest sequence number that this change covers: its own number, or the number of an older
    /// change that it has replaced. The older change was never given to the side.
    pub(super) stands_for: u64,
}

impl Append {
    /// Creates the append of a complete write.
    pub(in super::super) fn of(range: Range<u64>, payload: Payload, number: u64) -> Append {
        Append::known(range, payload, None, number)
    }

    /// Creates the append of a complete write, with its digests if they were computed before.
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

    /// Creates the append of a change to zeroes: from now on, the range reads as zeroes.
    pub(in super::super) fn zeroes(range: Range<u64>, space: Space, number: u64) -> Append {
        Append::without_data(range, Kind::Zeroes(space), number)
    }

    /// Creates the append that marks the content of a range as lost.
    pub(in super::super) fn lost(range: Range<u64>, number: u64) -> Append {
        Append::without_data(range, Kind::Lost, number)
    }

    /// Creates an append that describes no change. The log writes such an append in an entry that
    /// states up to which sequence number the log is complete.
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

    /// Removes the first `bytes` bytes, after they were put into an entry.
    ///
    /// # Panics
    /// When no bytes would remain.
    pub(super) fn advance(&mut self, bytes: u64) {
        let len = self.range.end - self.range.start;
        assert!(bytes < len, "something is left");
        if self.kind == Kind::Write {
            self.payload = self.payload.slice(bytes as usize..len as usize);
            self.digests = self.digests.as_ref().map(|digests| digests.cut(bytes..len));
        }
        self.range.start += bytes;
    }

    /// Returns true when the append marks the content of its range as lost.
    pub(in super::super) fn is_lost(&self) -> bool {
        self.kind == Kind::Lost
    }

    /// Returns the number of bytes of data that the append adds to the log.
    pub(super) fn data_bytes(&self) -> u64 {
        self.payload.len() as u64
    }

    /// Returns the range of the volume in bytes.
    pub(in super::super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns the append with `number` as the lowest sequence number for which it stands: the
    /// number of the oldest change that it has replaced.
    pub(in super::super) fn standing_for(mut self, number: u64) -> Append {
        self.stands_for = number;
        self
    }
}
