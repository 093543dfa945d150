//! One node of the tree as bytes in memory, without I/O.
//!
//! A node on flash is an immutable, packed *image*. The changes to a leaf since its image was
//! written are kept in memory as a *delta*. A lookup searches the delta, then the image. A scan
//! merges both ([`view`]). When a leaf is rewritten, [`consolidate`] merges both into the rows of
//! the next image. The format of an image is in docs/format/index-node.md.
//!
//! Every row is a version: it has the sequence number ([`Seq`]) of the batch that wrote it. A
//! reader at sequence number `s` sees, of each key, the newest version that is not newer than `s`.
//!
//! The module does no I/O and reads no clock, and its only lock is that of the image allocator
//! (`arena`). Bytes from a device are checked once, in [`Image::parse`] and [`parse_blob`]. The
//! module must not panic for any input bytes, and must never answer from bytes that were not
//! checked.

#[allow(unsafe_code, reason = "owns raw memory")]
mod arena;
mod blob;
mod build;
mod column;
mod consolidate;
mod delta;
mod error;
mod filter;
mod header;
mod image;
mod merge;
mod range;
mod search;
mod spread;
mod view;

pub use blob::{Blob, blob_image, parse_blob};
pub use build::Builder;
pub(crate) use column::{Start, head};
pub use consolidate::consolidate;
pub use delta::{Delta, Found, RangeDeletion};
pub use error::ImageError;
pub use header::{Seal, Sort, seal};
pub use image::{Image, Peek, Value};
pub use range::KeyRange;
pub(crate) use spread::Spread;
pub use view::{Rows, View, view};

/// Sequence number of a batch of changes. The number 0 marks a change that every reader sees.
pub type Seq = u64;

/// Number of a node of the tree or of a blob. A node keeps its number when it is written again.
pub type NodeId = u32;

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 4 << 10;

/// Maximum length of a value in a row, in bytes. Longer values are stored out of line, as blobs.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Maximum number of rows of an image.
pub const ROWS_MAX: usize = 65_535;

/// Unit of the length of an image, in bytes.
pub const GRANULE_BYTES: usize = 64;

/// Maximum length of an image, in bytes.
pub const IMAGE_BYTES_MAX: usize = (4 << 20) - GRANULE_BYTES;

/// Length of the header of an image, in bytes. [`Image::peek`] needs only these bytes.
pub const HEADER_BYTES: usize = 64;

/// Maximum length of the content of a blob, in bytes.
pub const BLOB_BYTES_MAX: usize = IMAGE_BYTES_MAX - HEADER_BYTES;

/// Number of padding bytes after an image in memory, so that an unaligned load of 8 bytes stays
/// inside the memory of the image.
pub const PADDING_BYTES: usize = 8;

/// Kind of change that a version makes to its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The key has this value.
    Put = 0,
    /// The key has no value.
    Delete = 1,
    /// The key has a value that is stored out of line; the value of the row is a reference to it.
    Blob = 2,
}

/// One version of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Sequence number of the batch that wrote the row; 0 if every reader sees the row.
    pub seq: Seq,
    /// Kind of the version.
    pub kind: Kind,
    /// The value, or the reference to a value that is stored out of line. Empty for
    /// [`Kind::Delete`].
    pub value: &'a [u8],
}
