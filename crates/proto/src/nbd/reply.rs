//! Encoders for the server's replies.
//!
//! The encoders on the hot path (a simple reply, the head of a data chunk) return arrays, so that
//! answering a request allocates nothing. The caller sends the payload directly after the head.

use super::request::Request;
use super::wire::{
    CHUNK_HEADER_BYTES, EXTENTS_MAX, Errno, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC,
    STRING_MAX_BYTES, STRUCTURED_REPLY_MAGIC, chunk, command_flag, reply_flag,
};

/// One block descriptor of a block status chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length, not 0.
    pub length_bytes: u32,
    /// See [`state`](super::wire::state).
    pub status: u32,
}

/// Encodes a simple reply. The data of a successful read follows the reply (section "Simple reply
/// message").
pub fn simple_reply(cookie: u64, error: Option<Errno>) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.map_or(0, Errno::to_wire).to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// Returns an array of `N` bytes, of which the first 20 are the header of a chunk and the rest is
/// zero.
fn chunk_head<const N: usize>(kind: u16, cookie: u64, payload_bytes: u32, done: bool) -> [u8; N] {
    let mut bytes = [0; N];
    let flags = if done { reply_flag::DONE } else { 0 };
    bytes[0..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..20].copy_from_slice(&payload_bytes.to_be_bytes());
    bytes
}

/// Encodes an `NBD_REPLY_TYPE_NONE` chunk, which has no content. It is always the last chunk of a
/// reply.
pub fn none_chunk(cookie: u64) -> [u8; CHUNK_HEADER_BYTES] {
    chunk_head(chunk::NONE, cookie, 0, true)
}

/// Encodes the head of a data chunk, which `data_bytes` bytes of data must follow.
///
/// # Panics
/// If `data_bytes` is 0 or does not fit the chunk's length field.
pub fn offset_data_head(cookie: u64, offset_bytes: u64, data_bytes: u32, done: bool) -> [u8; 28] {
    assert!(data_bytes > 0, "a data chunk holds at least one byte");
    let payload_bytes = data_bytes
        .checked_add(8)
        .expect("a data chunk fits its length field");
    let mut bytes: [u8; 28] = chunk_head(chunk::OFFSET_DATA, cookie, payload_bytes, done);
    bytes[20..28].copy_from_slice(&offset_bytes.to_be_bytes());
    bytes
}

/// Encodes a hole chunk, which says that `hole_bytes` bytes from `offset_bytes` on read as zeroes.
///
/// # Panics
/// If `hole_bytes` is 0.
pub fn offset_hole_chunk(cookie: u64, offset_bytes: u64, hole_bytes: u32, done: bool) -> [u8; 32] {
    assert!(hole_bytes > 0, "a hole chunk describes at least one byte");
    let mut bytes: [u8; 32] = chunk_head(chunk::OFFSET_HOLE, cookie, 12, done);
    bytes[20..28].copy_from_slice(&offset_bytes.to_be_bytes());
    bytes[28..32].copy_from_slice(&hole_bytes.to_be_bytes());
    bytes
}

/// Encodes an error chunk without a message, which is always the last chunk of its reply.
pub fn error_chunk(cookie: u64, error: Errno) -> [u8; 26] {
    let mut bytes: [u8; 26] = chunk_head(chunk::ERROR, cookie, 6, true);
    bytes[20..24].copy_from_slice(&error.to_wire().to_be_bytes());
    bytes
}

/// Appends an error chunk with a message for people, truncated to 4096 bytes.
pub fn error_chunk_with_message(
    out: &mut Vec<u8>,
    cookie: u64,
    error: Errno,
    message: &str,
    done: bool,
) {
    let message = cut(message);
    let head: [u8; 20] = chunk_head(chunk::ERROR, cookie, 6 + message.len() as u32, done);
    out.extend_from_slice(&head);
    out.extend_from_slice(&error.to_wire().to_be_bytes());
    out.extend_from_slice(&(message.len() as u16).to_be_bytes());
    out.extend_from_slice(message.as_bytes());
}

/// Encodes an error chunk for one offset inside the request, without a message.
pub fn error_offset_chunk(cookie: u64, error: Errno, offset_bytes: u64, done: bool) -> [u8; 34] {
    let mut bytes: [u8; 34] = chunk_head(chunk::ERROR_OFFSET, cookie, 14, done);
    bytes[20..24].copy_from_slice(&error.to_wire().to_be_bytes());
    bytes[26..34].copy_from_slice(&offset_bytes.to_be_bytes());
    bytes
}

/// Truncates a message at a character boundary to the maximum length of a string of the protocol.
fn cut(message: &str) -> &str {
    &message[..message.floor_char_boundary(STRING_MAX_BYTES)]
}

/// Appends a block status chunk with consecutive extents. The first extent starts at the request's
/// offset.
///
/// # Panics
/// If there are no extents, more than [`EXTENTS_MAX`] extents, or an extent of length 0.
/// [`fit_extents`] makes sure that there are not too many.
pub fn block_status_chunk(
    out: &mut Vec<u8>,
    cookie: u64,
    context_id: u32,
    extents: &[Extent],
    done: bool,
) {
    assert!(!extents.is_empty() && extents.len() <= EXTENTS_MAX as usize);
    let payload_bytes = 4 + 8 * extents.len() as u32;
    let head: [u8; 20] = chunk_head(chunk::BLOCK_STATUS, cookie, payload_bytes, done);
    out.extend_from_slice(&head);
    out.extend_from_slice(&context_id.to_be_bytes());
    for extent in extents {
        assert!(
            extent.length_bytes > 0,
            "an extent covers at least one byte"
        );
        out.extend_from_slice(&extent.length_bytes.to_be_bytes());
        out.extend_from_slice(&extent.status.to_be_bytes());
    }
}

/// Truncates a list of extents to the length allowed in the reply to `request` (section "Structured
/// reply types").
///
/// With `REQ_ONE`, only the first extent remains, and its length is limited to the length of the
/// request. Without `REQ_ONE`, extents that start beyond the request's end are removed. The list is
/// also truncated to [`EXTENTS_MAX`] extents, and to the number of extents that fit in
/// `max_payload_bytes`; the client requests the missing extents again.
pub fn fit_extents(request: &Request, max_payload_bytes: u32, extents: &mut Vec<Extent>) {
    if request.flags & command_flag::REQ_ONE != 0 {
        extents.truncate(1);
        for extent in extents {
            extent.length_bytes = extent.length_bytes.min(request.length_bytes);
        }
        return;
    }
    extents.truncate(EXTENTS_MAX.min(max_payload_bytes / 8).max(1) as usize);
    let mut start_bytes = 0_u64;
    let needed = extents.iter().take_while(|extent| {
        let starts_inside = start_bytes < u64::from(request.length_bytes);
        start_bytes += u64::from(extent.length_bytes);
        starts_inside
    });
    let needed = needed.count();
    extents.truncate(needed);
}
