//! Content out of line: one value in an image of its own.

use super::{HEADER_BYTES, IMAGE_BYTES_MAX, ImageError, NodeId};

/// Longest content of a blob, in bytes.
pub const BLOB_BYTES_MAX: usize = IMAGE_BYTES_MAX - HEADER_BYTES;

/// A blob whose bytes have been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blob<'a> {
    /// Number of the blob.
    pub node: NodeId,
    /// The position in the log that it was written at.
    pub lsn: u64,
    /// The content.
    pub content: &'a [u8],
}

/// The image of a blob, to be sealed with [`seal`](super::seal).
///
/// # Panics
/// If `content` is longer than [`BLOB_BYTES_MAX`].
pub fn blob_image(_node: NodeId, _lsn: u64, _content: &[u8]) -> Vec<u8> {
    Vec::new()
}

/// Checks the image of a blob that was read from `location`. Bytes behind the image are ignored.
///
/// # Errors
/// If the bytes are not, whole and unchanged, a blob sealed for `location`.
pub fn parse_blob(_bytes: &[u8], _location: u64) -> Result<Blob<'_>, ImageError> {
    Err(ImageError::Magic)
}
