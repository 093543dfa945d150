//! Content that is stored out of line: a value, or a part of one, in an image of its own.

use super::header::{ColumnHead, Form, Header, Seal, Sort};
use super::{BLOB_BYTES_MAX, GRANULE_BYTES, HEADER_BYTES, IMAGE_BYTES_MAX, ImageError, NodeId};

/// A blob whose bytes have been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blob<'a> {
    /// Number of the blob.
    pub node: NodeId,
    /// LSN at which the blob was written.
    pub lsn: u64,
    /// The content.
    pub content: &'a [u8],
}

/// Returns the image of a blob, to be sealed with [`seal`](super::seal).
///
/// # Panics
/// If `content` is longer than [`BLOB_BYTES_MAX`].
pub fn blob_image(node: NodeId, lsn: u64, content: &[u8]) -> Vec<u8> {
    assert!(content.len() <= BLOB_BYTES_MAX, "the content fits an image");
    let len = (HEADER_BYTES + content.len()).next_multiple_of(GRANULE_BYTES);
    let small = |n| u32::try_from(n).expect("an image is shorter than 4 MiB");
    let column = |len| ColumnHead {
        form: Form::Fixed,
        width: 0,
        len,
    };
    let header = Header {
        sort: Sort::Blob,
        level: 0,
        has_seqs: false,
        has_kinds: false,
        has_range: false,
        len_bytes: small(len),
        seal: Seal::default(),
        lsn,
        node,
        rows: 1,
        prefix_len: 0,
        interval: 0,
        keys: column(0),
        values: column(small(content.len())),
        seq_width: 0,
        key_base: 0,
    };
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&header.encode());
    bytes.extend_from_slice(content);
    bytes.resize(len, 0);
    bytes
}

/// Parses the image of a blob. The image was read from `meant`: a location, with the generation of
/// the segment there. Bytes after the image are ignored.
///
/// # Errors
/// If the bytes are not a complete, unchanged image of a blob that was sealed for `meant`.
pub fn parse_blob(bytes: &[u8], meant: impl Into<Seal>) -> Result<Blob<'_>, ImageError> {
    let header = Header::open(bytes, meant.into(), IMAGE_BYTES_MAX)?;
    if header.sort != Sort::Blob {
        return Err(ImageError::Malformed("a node where a blob belongs"));
    }
    let image = &bytes[HEADER_BYTES..header.len_bytes as usize];
    let content = image
        .get(..header.values.len as usize)
        .ok_or(ImageError::Malformed("content beyond the end of the image"))?;
    Ok(Blob {
        node: header.node,
        lsn: header.lsn,
        content,
    })
}
