//! The head of a frame, with its sequence number and its checksum, which protect the order and the
//! content of the frames of a connection (section "Transport and bytes").

use super::wire::{
    DATA_BYTES_MAX, ENTRIES_MAX, HEAD_BYTES, ProtocolError, feature, kind, u16_at, u32_at,
};

/// Returns the CRC-32C of bytes.
pub fn check_of(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Returns the CRC-32C of a sequence of bytes that ends with `bytes`. `check` is the CRC-32C of the
/// bytes before `bytes`.
pub fn check_appended(check: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(check, bytes)
}

/// Head of a frame as received. It has not been checked whether its lengths agree with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Kind of the frame, see [`kind`].
    pub kind: u8,
    /// Number of entries in the body.
    pub count: u8,
    /// Flags of the frame.
    pub flags: u16,
    /// Length of the body, which follows the head.
    pub body_bytes: u32,
    sequence: u32,
    check: u32,
}

impl Head {
    /// Decodes the head at the start of `bytes`, if it is complete.
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let bytes = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Head {
            kind: bytes[0],
            count: bytes[1],
            flags: u16_at(bytes, 2),
            body_bytes: u32_at(bytes, 4),
            sequence: u32_at(bytes, 8),
            check: u32_at(bytes, 12),
        })
    }

    /// Returns true when the frame carries requests or results.
    pub fn has_entries(&self) -> bool {
        matches!(self.kind, kind::COMMAND | kind::RESPONSE)
    }

    /// Checks the number of entries and the flags of a command or a response. Returns the total
    /// length of its entries, each of which has `entry_bytes` bytes. `merge` is true if a frame is
    /// allowed to have more than one entry.
    pub(super) fn entries_bytes(
        &self,
        entry_bytes: usize,
        merge: bool,
        known_flags: u16,
    ) -> Result<usize, ProtocolError> {
        let count = usize::from(self.count);
        if count == 0 || count > ENTRIES_MAX || (count > 1 && !merge) {
            return Err(ProtocolError::BadCount(self.count));
        }
        if self.flags & !known_flags != 0 {
            return Err(ProtocolError::BadField("flags"));
        }
        Ok(count * entry_bytes)
    }

    /// Checks that the length of the body is the length of the entries plus the length of the data
    /// that the entries announce.
    pub(super) fn check_length(
        &self,
        entries_bytes: usize,
        data_bytes: u64,
    ) -> Result<(), ProtocolError> {
        let sound = data_bytes <= u64::from(DATA_BYTES_MAX)
            && u64::from(self.body_bytes) == entries_bytes as u64 + data_bytes;
        if sound {
            Ok(())
        } else {
            Err(ProtocolError::BadLength(self.body_bytes))
        }
    }
}

/// Encoder for the frames of one direction, in the order in which they are sent.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    sequence: u32,
    pub(super) crc: bool,
}

impl Outbound {
    /// Creates the encoder in its state before the first frame.
    pub fn new() -> Outbound {
        Outbound::default()
    }

    /// Records that the connection has become a path for which the features `features` were
    /// negotiated.
    pub fn open(&mut self, features: u32) {
        self.crc = features & feature::CRC != 0;
    }

    /// Returns true when commands and responses carry checks.
    pub fn has_checks(&self) -> bool {
        self.crc
    }

    /// Appends the head of a frame and the bytes `checked` to `out`. `checked` is the body of a
    /// control frame, or the entries of a command or a response. After these bytes, the caller must
    /// send the `data_bytes` bytes of data.
    pub fn frame(
        &mut self,
        out: &mut Vec<u8>,
        (kind, count, flags): (u8, u8, u16),
        checked: &[u8],
        data_bytes: u32,
    ) {
        let body_bytes = checked.len() as u32 + data_bytes;
        let start = out.len();
        out.extend_from_slice(&[kind, count]);
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&body_bytes.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        self.sequence = self.sequence.wrapping_add(1);
        let entries = matches!(kind, kind::COMMAND | kind::RESPONSE);
        let check = if entries && !self.crc {
            0
        } else {
            check_appended(check_of(&out[start..]), checked)
        };
        out.extend_from_slice(&check.to_le_bytes());
        out.extend_from_slice(checked);
    }

    /// Appends a control frame without flags.
    pub fn control(&mut self, out: &mut Vec<u8>, kind: u8, body: &[u8]) {
        self.frame(out, (kind, 0, 0), body, 0);
    }
}

/// The receiver's state for one direction of a connection: the sequence number that the next frame
/// must have, and whether commands and responses carry checksums.
#[derive(Clone, Debug, Default)]
pub(super) struct Order {
    sequence: u32,
    pub(super) crc: bool,
}

impl Order {
    /// Checks that the next frame has the expected sequence number and a correct checksum. `bytes`
    /// begins with the head of the frame. The checksum covers the head and the first
    /// `checked_bytes` bytes of the body.
    pub(super) fn take(
        &mut self,
        head: &Head,
        bytes: &[u8],
        checked_bytes: usize,
    ) -> Result<(), ProtocolError> {
        if head.sequence != self.sequence {
            return Err(ProtocolError::OutOfSequence {
                expected: self.sequence,
                got: head.sequence,
            });
        }
        let expected = if head.has_entries() && !self.crc {
            0
        } else {
            let body = &bytes[HEAD_BYTES..HEAD_BYTES + checked_bytes];
            check_appended(check_of(&bytes[..HEAD_BYTES - 4]), body)
        };
        if head.check != expected {
            return Err(ProtocolError::WrongCheck);
        }
        self.sequence = self.sequence.wrapping_add(1);
        Ok(())
    }
}
