//! Encoding and decoding of requests. A command frame carries one request, or several requests that
//! are merged (section "Commands").

use super::frame::{Head, Outbound};
use super::wire::{
    DATA_BYTES_MAX, ENTRIES_MAX, Op, ProtocolError, REQUEST_BYTES, command_flag, kind,
    request_flag, u16_at, u32_at, u64_at,
};

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// See [`request_flag`].
    pub flags: u8,
    /// Identifies the request in its response.
    pub tag: u32,
    /// First byte of the range.
    pub offset_bytes: u64,
    /// Length of the range.
    pub length_bytes: u32,
    /// CRC-32C of the data of a write, if checks were negotiated.
    pub check: u32,
}

impl Request {
    /// Creates a request without flags, tag and check.
    pub fn new(op: Op, offset_bytes: u64, length_bytes: u32) -> Request {
        Request {
            op,
            flags: 0,
            tag: 0,
            offset_bytes,
            length_bytes,
            check: 0,
        }
    }

    /// Returns the number of data bytes that the request carries.
    pub fn data_bytes(&self) -> u32 {
        if self.op == Op::Write {
            self.length_bytes
        } else {
            0
        }
    }

    /// Returns the exclusive end of the range, or `u64::MAX` if the end is larger than that. The
    /// range of a request that was not validated can exceed the volume.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes
            .saturating_add(u64::from(self.length_bytes))
    }

    /// Returns true if one command is allowed to carry the request together with other requests.
    pub fn may_merge(&self) -> bool {
        self.op.may_merge(self.length_bytes)
    }

    /// Returns true when the change must be durable before it is answered.
    pub fn has_fua(&self) -> bool {
        self.flags & request_flag::FUA != 0
    }

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.op as u8, self.flags, 0, 0]);
        out.extend_from_slice(&self.tag.to_le_bytes());
        out.extend_from_slice(&self.offset_bytes.to_le_bytes());
        out.extend_from_slice(&self.length_bytes.to_le_bytes());
        out.extend_from_slice(&self.check.to_le_bytes());
    }

    fn decode(bytes: &[u8]) -> Result<Request, ProtocolError> {
        let op = Op::from_wire(bytes[0]).ok_or(ProtocolError::BadField("op"))?;
        if bytes[1] & !op.flags() != 0 {
            return Err(ProtocolError::BadField("flags"));
        }
        if u16_at(bytes, 2) != 0 {
            return Err(ProtocolError::BadField("reserved"));
        }
        Ok(Request {
            op,
            flags: bytes[1],
            tag: u32_at(bytes, 4),
            offset_bytes: u64_at(bytes, 8),
            length_bytes: u32_at(bytes, 16),
            check: u32_at(bytes, 20),
        })
    }
}

/// Appends the head and the entries of a command to `out`. After them, the caller must send the
/// data of the command's writes, in the order of the entries. `in_turn` asks the target to handle
/// the requests one at a time.
///
/// # Panics
/// If the command is invalid: it has no request, too many requests, several requests of which one
/// must not be merged, or too much data.
pub fn encode_command(
    outbound: &mut Outbound,
    out: &mut Vec<u8>,
    requests: &[Request],
    in_turn: bool,
) {
    let data_bytes: u64 = requests.iter().map(|r| u64::from(r.data_bytes())).sum();
    let mergeable = requests.len() == 1 || requests.iter().all(Request::may_merge);
    assert!(
        (1..=ENTRIES_MAX).contains(&requests.len())
            && mergeable
            && data_bytes <= u64::from(DATA_BYTES_MAX),
        "only a valid command is sent"
    );
    let mut entries = Vec::with_capacity(requests.len() * REQUEST_BYTES);
    requests.iter().for_each(|r| r.encode(&mut entries));
    let flags = if in_turn { command_flag::IN_TURN } else { 0 };
    let head = (kind::COMMAND, requests.len() as u8, flags);
    outbound.frame(out, head, &entries, data_bytes as u32);
}

/// Checks the head of a command, and returns the length of its entries in bytes. The entries need
/// not have arrived. `merge` is true when merging was negotiated.
pub(super) fn entries_bytes(head: &Head, merge: bool) -> Result<usize, ProtocolError> {
    head.entries_bytes(REQUEST_BYTES, merge, command_flag::IN_TURN)
}

/// Decodes and checks the entries of a command, and stores them in `requests`. `crc` is true when
/// checks were negotiated.
pub(super) fn decode_entries(
    head: &Head,
    entries: &[u8],
    crc: bool,
    requests: &mut Vec<Request>,
) -> Result<(), ProtocolError> {
    requests.clear();
    let mut data_bytes = 0_u64;
    for entry in entries.chunks_exact(REQUEST_BYTES) {
        let request = Request::decode(entry)?;
        if head.count > 1 && !request.may_merge() {
            return Err(ProtocolError::NotMergeable);
        }
        if request.check != 0 && (!crc || request.op != Op::Write) {
            return Err(ProtocolError::BadField("check"));
        }
        data_bytes += u64::from(request.data_bytes());
        requests.push(request);
    }
    head.check_length(entries.len(), data_bytes)
}
