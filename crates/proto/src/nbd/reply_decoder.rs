//! Decodes and checks the server's replies at the client.
//!
//! This module decodes only the fixed part of a reply. [`ReplyHeader::payload_bytes`] announces the
//! part of variable length (data, extents, an error message). The caller receives that part; data
//! is received directly into the buffer of the request. A header must not be trusted by itself.
//! Before the caller uses it, [`check_reply`] must compare it with its request, and
//! [`ReadCoverage`] must record every content chunk of a read.

use super::fields::{Fields, gather};
use super::reply::Extent;
use super::request::{Negotiated, Request};
use super::wire::{
    CHUNK_HEADER_BYTES, Command, EXTENTS_MAX, Errno, PAYLOAD_HARD_MAX_BYTES, ProtocolError,
    SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRING_MAX_BYTES, STRUCTURED_REPLY_MAGIC, chunk,
    command_flag, reply_flag,
};

/// Largest fixed part of a reply: a hole chunk.
pub const REPLY_HEADER_MAX_BYTES: usize = CHUNK_HEADER_BYTES + 12;

/// The fixed part of one reply message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request the message belongs to.
    pub cookie: u64,
    /// True when this is the last message for its request.
    pub done: bool,
    /// Number of bytes that follow the fixed part in the stream.
    ///
    /// A simple reply does not contain the length of its payload, so this number is 0 for it. Use
    /// [`simple_payload_bytes`] instead.
    pub payload_bytes: u32,
    /// Content of the message.
    pub body: ReplyBody,
}

/// Content of a reply message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// A simple reply: the request has succeeded (`None`), or has failed with an error.
    Simple(Option<Errno>),
    /// The request is complete.
    None,
    /// `payload_bytes` bytes of content from this offset on.
    OffsetData {
        /// Offset from the start of the export.
        offset_bytes: u64,
    },
    /// Zeroes from this offset on.
    OffsetHole {
        /// Offset from the start of the export.
        offset_bytes: u64,
        /// Length, not 0.
        hole_bytes: u32,
    },
    /// `payload_bytes / 8` extents, see [`extents`].
    BlockStatus {
        /// The metadata context.
        context_id: u32,
    },
    /// An error; the payload starts with a message for people.
    Error {
        /// The error.
        error: Errno,
        /// Length of the message.
        message_bytes: u16,
        /// True if the offset of the error follows the error message in the payload, see
        /// [`error_offset_bytes`].
        has_offset: bool,
    },
}

/// Decodes the fixed part of a reply at the start of `input`.
///
/// Returns the header and the size of the fixed part, or `None` if `input` is too short; at most
/// [`REPLY_HEADER_MAX_BYTES`] are needed. `structured_replies` is true when structured replies were
/// negotiated.
///
/// # Errors
/// A wrong magic; a chunk that was not negotiated, is of unknown type, or has a length or content
/// that its type does not allow (section "Structured reply types").
pub fn decode_reply_header(
    input: &[u8],
    structured_replies: bool,
) -> Result<Option<(ReplyHeader, usize)>, ProtocolError> {
    let mut fields = Fields::new(input);
    match fields.u32() {
        None => Ok(None),
        Some(SIMPLE_REPLY_MAGIC) => Ok(simple(fields).map(|header| (header, SIMPLE_REPLY_BYTES))),
        Some(STRUCTURED_REPLY_MAGIC) if !structured_replies => Err(ProtocolError::WrongReplyKind),
        Some(STRUCTURED_REPLY_MAGIC) => structured(fields),
        Some(other) => Err(ProtocolError::BadMagic(u64::from(other))),
    }
}

fn simple(mut fields: Fields<'_>) -> Option<ReplyHeader> {
    let error = Errno::from_wire(fields.u32()?);
    let cookie = fields.u64()?;
    Some(ReplyHeader {
        cookie,
        done: true,
        payload_bytes: 0,
        body: ReplyBody::Simple(error),
    })
}

fn structured(mut fields: Fields<'_>) -> Result<Option<(ReplyHeader, usize)>, ProtocolError> {
    let (Some(flags), Some(kind), Some(cookie), Some(length_bytes)) =
        (fields.u16(), fields.u16(), fields.u64(), fields.u32())
    else {
        return Ok(None);
    };
    let done = flags & reply_flag::DONE != 0;
    let fixed_bytes = check_chunk(kind, done, length_bytes)?;
    let Some(body) = chunk_body(kind, &mut fields) else {
        return Ok(None);
    };
    let payload_bytes = length_bytes - fixed_bytes;
    match body {
        ReplyBody::OffsetHole { hole_bytes: 0, .. } => {
            return Err(ProtocolError::MalformedChunk(kind));
        }
        ReplyBody::Error {
            message_bytes,
            has_offset,
            ..
        } => {
            let described_bytes = u32::from(message_bytes) + if has_offset { 8 } else { 0 };
            if described_bytes > payload_bytes {
                return Err(ProtocolError::MalformedChunk(kind));
            }
        }
        _ => {}
    }
    let header = ReplyHeader {
        cookie,
        done,
        payload_bytes,
        body,
    };
    Ok(Some((header, CHUNK_HEADER_BYTES + fixed_bytes as usize)))
}

/// Checks a chunk's length against its type and returns the size of its fixed fields.
fn check_chunk(kind: u16, done: bool, length_bytes: u32) -> Result<u32, ProtocolError> {
    let message_max_bytes = STRING_MAX_BYTES as u32;
    let (good, fixed_bytes) = match kind {
        chunk::NONE => (length_bytes == 0 && done, 0),
        chunk::OFFSET_DATA => ((9..=8 + PAYLOAD_HARD_MAX_BYTES).contains(&length_bytes), 8),
        chunk::OFFSET_HOLE => (length_bytes == 12, 12),
        chunk::BLOCK_STATUS => {
            let whole = length_bytes % 8 == 4;
            (
                whole && (12..=4 + 8 * EXTENTS_MAX).contains(&length_bytes),
                4,
            )
        }
        chunk::ERROR_OFFSET => ((14..=14 + message_max_bytes).contains(&length_bytes), 6),
        // All error chunks begin with the same fields, and an error chunk of an unknown type still
        // fails its request. After these fields and the message, an error chunk is allowed to have
        // further fields. Their total length is at most that of a second message.
        kind if kind & chunk::ERROR_BIT != 0 => {
            ((6..=6 + 2 * message_max_bytes).contains(&length_bytes), 6)
        }
        kind => return Err(ProtocolError::UnexpectedChunk(kind)),
    };
    if good {
        Ok(fixed_bytes)
    } else {
        Err(ProtocolError::MalformedChunk(kind))
    }
}

/// Decodes the fixed fields of a chunk; returns `None` if they have not all arrived.
fn chunk_body(kind: u16, fields: &mut Fields<'_>) -> Option<ReplyBody> {
    Some(match kind {
        chunk::NONE => ReplyBody::None,
        chunk::OFFSET_DATA => ReplyBody::OffsetData {
            offset_bytes: fields.u64()?,
        },
        chunk::OFFSET_HOLE => ReplyBody::OffsetHole {
            offset_bytes: fields.u64()?,
            hole_bytes: fields.u32()?,
        },
        chunk::BLOCK_STATUS => ReplyBody::BlockStatus {
            context_id: fields.u32()?,
        },
        _ => ReplyBody::Error {
            // An error chunk with the error number 0 is a failure, too.
            error: Errno::from_wire(fields.u32()?).unwrap_or(Errno::Inval),
            message_bytes: fields.u16()?,
            has_offset: kind == chunk::ERROR_OFFSET,
        },
    })
}

/// Collects the fixed parts of replies from fragments of the stream.
///
/// The decoder holds at most [`REPLY_HEADER_MAX_BYTES`] and never consumes a byte of a payload.
#[derive(Debug)]
pub struct ReplyDecoder {
    structured_replies: bool,
    partial: Vec<u8>,
}

impl ReplyDecoder {
    /// A decoder at the start of the transmission phase.
    pub fn new(structured_replies: bool) -> Self {
        ReplyDecoder {
            structured_replies,
            partial: Vec::with_capacity(REPLY_HEADER_MAX_BYTES),
        }
    }

    /// Bytes held at the moment.
    pub fn buffered_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Consumes bytes of the stream up to the end of the fixed part of a reply.
    ///
    /// Returns the number of bytes consumed, and the header if it is complete. After a header, the
    /// caller must consume the reply's payload from the stream before it calls this function again.
    ///
    /// # Errors
    /// See [`decode_reply_header`]. The caller must then close the connection.
    pub fn feed(&mut self, input: &[u8]) -> Result<(usize, Option<ReplyHeader>), ProtocolError> {
        if self.partial.is_empty() {
            // In the common case the whole fixed part is in `input`, and no byte is copied.
            if let Some((header, taken)) = decode_reply_header(input, self.structured_replies)? {
                return Ok((taken, Some(header)));
            }
        }
        let mut consumed = 0;
        // Decoding is tried at each of these sizes, in ascending order. Some are possible sizes of
        // the fixed part of a reply. At each of the others, more is learned about the size of the
        // fixed part. If the fixed part is not complete at one size, it has at least the next size.
        // Collecting bytes up to the next size therefore never consumes a byte of the payload.
        for need_bytes in [4, SIMPLE_REPLY_BYTES, CHUNK_HEADER_BYTES, 24, 26, 28, 32] {
            if need_bytes < self.partial.len() {
                continue;
            }
            if !gather(&mut self.partial, need_bytes, input, &mut consumed) {
                return Ok((consumed, None));
            }
            let decoded = decode_reply_header(&self.partial, self.structured_replies)?;
            if let Some((header, taken)) = decoded {
                assert_eq!(taken, self.partial.len(), "a payload byte was taken");
                self.partial.clear();
                return Ok((consumed, Some(header)));
            }
        }
        unreachable!("every fixed part ends within {REPLY_HEADER_MAX_BYTES} bytes")
    }
}

/// Returns the number of data bytes that follow a simple reply. Only a successful read has data
/// (section "Simple reply message").
pub fn simple_payload_bytes(request: &Request, error: Option<Errno>) -> u32 {
    let has_data = error.is_none() && request.command() == Some(Command::Read);
    if has_data { request.length_bytes } else { 0 }
}

/// Checks that a reply is permitted for its request.
///
/// # Errors
/// - A simple reply to a read, although structured replies were negotiated;
/// - a simple reply without an error to a block status request;
/// - a chunk type that the request cannot have;
/// - content outside the request's range;
/// - extents of a context that was not selected;
/// - several extents despite `REQ_ONE`.
pub fn check_reply(
    request: &Request,
    negotiated: &Negotiated,
    header: &ReplyHeader,
) -> Result<(), ProtocolError> {
    let command = request.command();
    match header.body {
        ReplyBody::Simple(error) => {
            let wrong = match command {
                Some(Command::Read) => negotiated.structured_replies,
                Some(Command::BlockStatus) => error.is_none(),
                _ => false,
            };
            if wrong {
                Err(ProtocolError::WrongReplyKind)
            } else {
                Ok(())
            }
        }
        ReplyBody::None | ReplyBody::Error { .. } => Ok(()),
        ReplyBody::OffsetData { offset_bytes } if command == Some(Command::Read) => {
            inside(request, offset_bytes, header.payload_bytes)
        }
        ReplyBody::OffsetHole {
            offset_bytes,
            hole_bytes,
        } if command == Some(Command::Read) => inside(request, offset_bytes, hole_bytes),
        ReplyBody::BlockStatus { context_id } if command == Some(Command::BlockStatus) => {
            let selected = negotiated.base_allocation_id == Some(context_id);
            let too_many = request.has(command_flag::REQ_ONE) && header.payload_bytes != 8;
            if selected && !too_many {
                Ok(())
            } else {
                Err(ProtocolError::MalformedChunk(chunk::BLOCK_STATUS))
            }
        }
        ReplyBody::OffsetData { .. } => Err(ProtocolError::UnexpectedChunk(chunk::OFFSET_DATA)),
        ReplyBody::OffsetHole { .. } => Err(ProtocolError::UnexpectedChunk(chunk::OFFSET_HOLE)),
        ReplyBody::BlockStatus { .. } => Err(ProtocolError::UnexpectedChunk(chunk::BLOCK_STATUS)),
    }
}

/// Checks that a range lies inside the request's range.
fn inside(request: &Request, offset_bytes: u64, length_bytes: u32) -> Result<(), ProtocolError> {
    let end = offset_bytes.checked_add(u64::from(length_bytes));
    let fits = offset_bytes >= request.offset_bytes
        && end
            .zip(request.end_bytes())
            .is_some_and(|(end, limit)| end <= limit);
    if fits {
        Ok(())
    } else {
        Err(ProtocolError::ChunkOutOfRange)
    }
}

/// Returns the offset that the payload of an error chunk contains, for a chunk of the type with an
/// offset. The offset must lie in the request's range (section "Structured reply types").
///
/// # Errors
/// A payload without the offset, or an offset outside the request.
pub fn error_offset_bytes(
    request: &Request,
    payload: &[u8],
    message_bytes: u16,
) -> Result<u64, ProtocolError> {
    let mut fields = Fields::new(payload);
    let offset = fields
        .bytes(usize::from(message_bytes))
        .and_then(|_| fields.u64());
    let offset = offset.ok_or(ProtocolError::MalformedChunk(chunk::ERROR_OFFSET))?;
    inside(request, offset, 0).map(|()| offset)
}

/// Decodes and checks the payload of a block status chunk: consecutive extents, which start at the
/// request's offset.
///
/// # Errors
/// A payload that is no whole number of descriptors; an extent of length 0; an extent that begins
/// beyond the request's end; with `REQ_ONE`, several extents, or an extent that ends beyond the
/// request's end.
pub fn extents(request: &Request, payload: &[u8]) -> Result<Vec<Extent>, ProtocolError> {
    let malformed = ProtocolError::MalformedChunk(chunk::BLOCK_STATUS);
    let (pairs, rest) = payload.as_chunks::<8>();
    if pairs.is_empty() || !rest.is_empty() || pairs.len() > EXTENTS_MAX as usize {
        return Err(malformed);
    }
    let requested_bytes = u64::from(request.length_bytes);
    let only_one = request.has(command_flag::REQ_ONE);
    let mut start_bytes = 0_u64;
    let mut extents = Vec::with_capacity(pairs.len());
    for [a, b, c, d, e, f, g, h] in pairs {
        let length_bytes = u32::from_be_bytes([*a, *b, *c, *d]);
        let status = u32::from_be_bytes([*e, *f, *g, *h]);
        let end_bytes = start_bytes + u64::from(length_bytes);
        if length_bytes == 0 || start_bytes >= requested_bytes {
            return Err(malformed);
        }
        if only_one && (pairs.len() > 1 || end_bytes > requested_bytes) {
            return Err(malformed);
        }
        extents.push(Extent {
            length_bytes,
            status,
        });
        start_bytes = end_bytes;
    }
    Ok(extents)
}

/// Record of the parts of a structured read that have arrived.
///
/// A server is allowed to send the parts of the content in any order, but each part only once. It
/// must not declare success while a part is missing. Without this check, old bytes in the client's
/// buffer could be mistaken for data of the export.
#[derive(Clone, Debug)]
pub struct ReadCoverage {
    request: Request,
    /// Disjoint ranges in order, neighbours joined.
    ranges: Vec<(u64, u64)>,
    chunks: u32,
}

impl ReadCoverage {
    /// Maximum number of separate ranges of a read that have arrived. It bounds the memory of a
    /// [`ReadCoverage`]. While the chunks of a reply arrive in ascending order, there is only one
    /// range.
    pub const RANGES_MAX: usize = 1024;

    /// Nothing of `request` has arrived.
    pub fn new(request: Request) -> Self {
        ReadCoverage {
            request,
            ranges: Vec::new(),
            chunks: 0,
        }
    }

    /// Records a content chunk.
    ///
    /// # Errors
    /// A chunk that is empty, that is outside the request, or that overlaps an earlier chunk; a
    /// second chunk although the request has the flag `DF`; more than [`Self::RANGES_MAX`] separate
    /// ranges.
    pub fn add(&mut self, offset_bytes: u64, length_bytes: u32) -> Result<(), ProtocolError> {
        inside(&self.request, offset_bytes, length_bytes)?;
        self.chunks = self.chunks.saturating_add(1);
        let fragmented = self.request.has(command_flag::DF) && self.chunks > 1;
        if length_bytes == 0 || fragmented {
            return Err(ProtocolError::ChunkOutOfRange);
        }
        let end_bytes = offset_bytes + u64::from(length_bytes);
        let at = self.ranges.partition_point(|range| range.0 < offset_bytes);
        let before = at.checked_sub(1).map(|index| self.ranges[index].1);
        let after = self.ranges.get(at).map(|range| range.0);
        if before.is_some_and(|end| end > offset_bytes) || after.is_some_and(|s| s < end_bytes) {
            return Err(ProtocolError::ChunkOutOfRange);
        }
        match (before == Some(offset_bytes), after == Some(end_bytes)) {
            (true, true) => self.ranges[at - 1].1 = self.ranges.remove(at).1,
            (true, false) => self.ranges[at - 1].1 = end_bytes,
            (false, true) => self.ranges[at].0 = offset_bytes,
            (false, false) if self.ranges.len() < Self::RANGES_MAX => {
                self.ranges.insert(at, (offset_bytes, end_bytes));
            }
            (false, false) => return Err(ProtocolError::ChunkOutOfRange),
        }
        Ok(())
    }

    /// Checks that no part of the read is missing. Call this when a reply without errors is
    /// complete.
    ///
    /// # Errors
    /// [`ProtocolError::IncompleteRead`].
    pub fn finish(&self) -> Result<(), ProtocolError> {
        let whole = (
            self.request.offset_bytes,
            self.request.end_bytes().unwrap_or(u64::MAX),
        );
        if self.ranges == [whole] {
            Ok(())
        } else {
            Err(ProtocolError::IncompleteRead)
        }
    }
}
