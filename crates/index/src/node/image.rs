//! Reading images.

use super::{Kind, NodeId, Seq};
use std::cmp::Ordering;

/// Why bytes are not taken for an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// There are fewer bytes than the image has.
    #[error("the image is cut short")]
    Short,
    /// This is something else than an image.
    #[error("there is no image here")]
    Magic,
    /// Its format is not known.
    #[error("the image has version {0} of the format")]
    Version(u8),
    /// It gives itself a length that no image has.
    #[error("the image has an impossible length")]
    Length,
    /// Its bytes have changed since it was sealed.
    #[error("the checksum of the image is wrong")]
    Checksum,
    /// It belongs elsewhere.
    #[error("the image belongs to location {found}, not to {expected}")]
    Location {
        /// The location that it was sealed for.
        found: u64,
        /// The location that it was read from.
        expected: u64,
    },
    /// Its checksum is right, but what it says cannot be.
    #[error("the image is malformed: {0}")]
    Malformed(&'static str),
}

/// What a header says, unchecked: enough to walk through a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peek {
    /// Number of the node or blob.
    pub node: NodeId,
    /// The position in the log that it was written at.
    pub lsn: u64,
    /// Length of the image in bytes: a multiple of [`GRANULE_BYTES`](super::GRANULE_BYTES).
    pub len_bytes: usize,
    /// The location that it was sealed for.
    pub location: u64,
    /// True for a blob, false for a node.
    pub is_blob: bool,
    /// Level of the node; 0 for a leaf and for a blob.
    pub level: u8,
    /// Class of its update interval, as it was given.
    pub interval: u8,
}

/// A value in an image: a slice of it, or up to 8 bytes that were unpacked.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a>(Repr<'a>);

#[derive(Clone, Copy, Debug)]
enum Repr<'a> {
    Slice(&'a [u8]),
}

impl Value<'_> {
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        let Repr::Slice(bytes) = self.0;
        bytes
    }
}

impl std::ops::Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

/// A packed node whose bytes have been checked.
#[derive(Debug)]
pub struct Image {
    bytes: Vec<u8>,
}

impl Image {
    /// Checks the image of a node that was read from `location`. Bytes behind it are cut off.
    ///
    /// # Errors
    /// If the bytes are not, whole and unchanged, an image of a node sealed for `location`.
    pub fn parse(_bytes: Vec<u8>, _location: u64) -> Result<Self, ImageError> {
        Err(ImageError::Magic)
    }

    /// What the header at the start of `bytes` says, if it looks like one. Nothing is checked
    /// beyond that: the checksum is not.
    pub fn peek(_bytes: &[u8]) -> Option<Peek> {
        None
    }

    /// The bytes as they are on flash, for moving the image: [`seal`](super::seal) a copy.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of the node.
    pub fn node(&self) -> NodeId {
        0
    }

    /// Level of the node: 0 for a leaf.
    pub fn level(&self) -> u8 {
        0
    }

    /// The position in the log that it was written at.
    pub fn lsn(&self) -> u64 {
        0
    }

    /// Class of its update interval, as it was given.
    pub fn interval(&self) -> u8 {
        0
    }

    /// Length on flash in bytes.
    pub fn len_bytes(&self) -> usize {
        0
    }

    /// Memory that it takes in bytes, unused capacity and this struct included.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + size_of::<Self>()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        0
    }

    /// True if any row has a sequence number other than 0.
    pub fn is_versioned(&self) -> bool {
        false
    }

    /// The first row whose key is not less than `key` (of several versions the newest), or the
    /// number of rows.
    pub fn lower_bound(&self, _key: &[u8]) -> usize {
        0
    }

    /// Replaces `out` with the key of a row.
    ///
    /// # Panics
    /// If there is no such row; so do the other functions that take one.
    pub fn key(&self, _row: usize, _out: &mut Vec<u8>) {}

    /// How the key of a row compares with `key`.
    pub fn compare_key(&self, _row: usize, _key: &[u8]) -> Ordering {
        Ordering::Equal
    }

    /// The value of a row.
    pub fn value(&self, _row: usize) -> Value<'_> {
        Value(Repr::Slice(&[]))
    }

    /// The sequence number of a row.
    pub fn seq(&self, _row: usize) -> Seq {
        0
    }

    /// The kind of a row.
    pub fn kind(&self, _row: usize) -> Kind {
        Kind::Put
    }

    /// The child that a row of an inner node refers to.
    ///
    /// # Panics
    /// If the node is a leaf.
    pub fn child(&self, _row: usize) -> NodeId {
        0
    }

    /// The newest version of `key` that is not newer than `seq`, a deletion included.
    pub fn find(&self, _key: &[u8], _seq: Seq) -> Option<(Kind, Value<'_>)> {
        None
    }
}
