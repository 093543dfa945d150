//! One node of the tree, without I/O: bytes in, bytes out.
//!
//! A node on flash is an immutable, packed *image*; what has changed in a leaf since its image was
//! written is a *delta* in memory. Lookups ask the delta, then the image; scans see both as one
//! ([`view`]); writing a leaf back merges both into the rows of its next image ([`fold`]). The
//! bytes of an image are in docs/format/index-node.md.
//!
//! Every row is a version: it has the number of the batch that wrote it ([`Seq`]), and a reader
//! with the number `s` sees of each key the newest version that is not newer than `s`.
//!
//! The module does no I/O, takes no lock and reads no clock. Bytes that come from a device are
//! checked once, in [`Image::parse`] and [`parse_blob`]; whatever they are, nothing here panics
//! because of them, and no answer is given from bytes that were not checked.

#[allow(unsafe_code, reason = "owns raw memory")]
mod arena;
mod blob;
mod build;
mod column;
mod delta;
mod error;
mod filter;
mod fold;
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
pub use delta::{Delta, Found, RangeDeletion};
pub use error::ImageError;
pub use fold::fold;
pub use header::{Seal, Sort, seal};
pub use image::{Image, Peek, Value};
pub use range::KeyRange;
pub(crate) use spread::Spread;
pub use view::{Rows, View, view};

/// Number of a batch of changes. 0 is older than every reader.
pub type Seq = u64;

/// Number of a node of the tree, or of a blob. It stays the same when the node is written anew.
pub type NodeId = u32;

/// Longest key in bytes.
pub const KEY_BYTES_MAX: usize = 4 << 10;

/// Longest value in a row, in bytes. Longer ones are kept out of line, as blobs.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// Most rows of an image.
pub const ROWS_MAX: usize = 65_535;

/// Unit of the length of an image, in bytes.
pub const GRANULE_BYTES: usize = 64;

/// Longest image in bytes.
pub const IMAGE_BYTES_MAX: usize = (4 << 20) - GRANULE_BYTES;

/// Length of the header of an image, in bytes: as much as [`Image::peek`] needs.
pub const HEADER_BYTES: usize = 64;

/// Longest content of a blob, in bytes.
pub const BLOB_BYTES_MAX: usize = IMAGE_BYTES_MAX - HEADER_BYTES;

/// Bytes behind an image in memory, so that an unaligned load of 8 bytes stays inside.
pub const PADDING_BYTES: usize = 8;

/// What a version says about its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The key has this value.
    Put = 0,
    /// The key has no value.
    Delete = 1,
    /// The key has a value that is kept out of line; the row's value refers to it.
    Blob = 2,
}

/// One version of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The batch that wrote it; 0 if every reader is newer.
    pub seq: Seq,
    /// What the version says.
    pub kind: Kind,
    /// The value, or the reference to it. Empty for [`Kind::Delete`].
    pub value: &'a [u8],
}
