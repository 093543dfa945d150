//! The fixed header of an image, and the seal over the whole image. Only this module knows the
//! positions of the header fields. Format: docs/format/index-node.md.

use super::{
    BLOB_BYTES_MAX, GRANULE_BYTES, HEADER_BYTES, IMAGE_BYTES_MAX, ImageError, KEY_BYTES_MAX,
    NodeId, VALUE_BYTES_MAX,
};
use crate::planted::{Bug, is_planted};

const MAGIC: [u8; 4] = *b"bmIN";
const VERSION: u8 = 1;

const HAS_SEQS: u8 = 1;
const HAS_KINDS: u8 = 2;
const HAS_RANGE: u8 = 4;

/// Offset at which the checksum ends and the bytes that it covers begin.
const COVERED_FROM: usize = 4;
const LENGTH_AT: usize = 12;
const LOCATION_AT: usize = 16;
const GENERATION_AT: usize = 52;

/// Place that an image is sealed for: its location, and the generation of the segment at that
/// location.
///
/// The location alone is not enough. If the write of an image is lost, an older image of the same
/// node at the same location would be mistaken for the lost image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seal {
    /// Location of the image.
    pub location: u64,
    /// Tag of the segment's generation; 0 in images that were written before this field existed.
    pub generation: u32,
}

impl From<u64> for Seal {
    /// Returns the seal of a location, with the generation tag 0.
    fn from(location: u64) -> Seal {
        Seal {
            location,
            generation: 0,
        }
    }
}

/// Layout of the cells of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Numbers: a base, and an offset of 0 to 8 bytes for each row.
    Ints,
    /// Byte strings of one length, one after the other.
    Fixed,
    /// Byte strings of any length, after a list of their boundaries.
    Var,
}

/// Description of a column in the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ColumnHead {
    pub form: Form,
    /// Width in bytes of each offset ([`Form::Ints`]) or of each boundary ([`Form::Var`]);
    /// otherwise 0.
    pub width: u8,
    /// Length of every cell in bytes; 0 for [`Form::Var`].
    pub len: u32,
}

/// Kind of content that an image holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// All rows of a node.
    Node = 0,
    /// A value that is stored out of line, or a part of one.
    Blob = 1,
    /// Changes of a leaf: the newest version of some of its keys, which override older images.
    Patch = 2,
}

/// Fields of the header of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub sort: Sort,
    pub level: u8,
    pub has_seqs: bool,
    pub has_kinds: bool,
    /// True if the key range of the leaf follows the columns.
    pub has_range: bool,
    pub len_bytes: u32,
    pub seal: Seal,
    pub lsn: u64,
    pub node: NodeId,
    pub rows: u16,
    pub prefix_len: u16,
    pub interval: u8,
    pub keys: ColumnHead,
    /// Column of values. In the header of a blob, `len` is the length of its content.
    pub values: ColumnHead,
    pub seq_width: u8,
    pub key_base: u64,
}

impl Header {
    /// Encodes the header as it is stored on flash, with zeroes in place of the checksum.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &MAGIC);
        put(8, &[VERSION, self.sort as u8, self.level]);
        let seqs = if self.has_seqs { HAS_SEQS } else { 0 };
        let kinds = if self.has_kinds { HAS_KINDS } else { 0 };
        let range = if self.has_range { HAS_RANGE } else { 0 };
        put(11, &[seqs | kinds | range]);
        put(LENGTH_AT, &self.len_bytes.to_le_bytes());
        put(LOCATION_AT, &self.seal.location.to_le_bytes());
        put(GENERATION_AT, &self.seal.generation.to_le_bytes());
        put(24, &self.lsn.to_le_bytes());
        put(32, &self.node.to_le_bytes());
        put(36, &self.rows.to_le_bytes());
        put(38, &self.prefix_len.to_le_bytes());
        put(40, &[self.interval]);
        put(41, &[self.keys.form as u8, self.keys.width]);
        put(43, &[self.values.form as u8, self.values.width]);
        put(45, &[self.seq_width]);
        let key_len = u16::try_from(self.keys.len).expect("a key is at most 4 KiB");
        put(46, &key_len.to_le_bytes());
        put(48, &self.values.len.to_le_bytes());
        put(56, &self.key_base.to_le_bytes());
        out
    }

    /// Parses a header and makes all checks that need no other part of the image.
    pub fn decode(bytes: &[u8]) -> Result<Self, ImageError> {
        Self::decode_within(bytes, IMAGE_BYTES_MAX)
    }

    fn decode_within(bytes: &[u8], bytes_max: usize) -> Result<Self, ImageError> {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().ok_or(ImageError::Short)?;
        if bytes[4..8] != MAGIC {
            return Err(ImageError::Magic);
        }
        if bytes[8] != VERSION {
            return Err(ImageError::Version(bytes[8]));
        }
        if bytes[11] & !(HAS_SEQS | HAS_KINDS | HAS_RANGE) != 0 {
            return Err(ImageError::Malformed("an unknown flag"));
        }
        let header = Self {
            sort: match bytes[9] {
                0 => Sort::Node,
                1 => Sort::Blob,
                2 => Sort::Patch,
                _ => return Err(ImageError::Malformed("an image of an unknown kind")),
            },
            level: bytes[10],
            has_seqs: bytes[11] & HAS_SEQS != 0,
            has_kinds: bytes[11] & HAS_KINDS != 0,
            has_range: bytes[11] & HAS_RANGE != 0,
            len_bytes: u32::from_le_bytes(array(bytes, LENGTH_AT)),
            seal: Seal {
                location: u64::from_le_bytes(array(bytes, LOCATION_AT)),
                generation: u32::from_le_bytes(array(bytes, GENERATION_AT)),
            },
            lsn: u64::from_le_bytes(array(bytes, 24)),
            node: u32::from_le_bytes(array(bytes, 32)),
            rows: u16::from_le_bytes(array(bytes, 36)),
            prefix_len: u16::from_le_bytes(array(bytes, 38)),
            interval: bytes[40],
            keys: ColumnHead {
                form: form(bytes[41])?,
                width: bytes[42],
                len: u16::from_le_bytes(array(bytes, 46)).into(),
            },
            values: ColumnHead {
                form: form(bytes[43])?,
                width: bytes[44],
                len: u32::from_le_bytes(array(bytes, 48)),
            },
            seq_width: bytes[45],
            key_base: u64::from_le_bytes(array(bytes, 56)),
        };
        header.check(bytes_max)?;
        Ok(header)
    }

    fn check(&self, bytes_max: usize) -> Result<(), ImageError> {
        let len = self.len_bytes as usize;
        if !(HEADER_BYTES..=bytes_max).contains(&len) || !len.is_multiple_of(GRANULE_BYTES) {
            return Err(ImageError::Length);
        }
        let value_max = if self.sort == Sort::Blob {
            BLOB_BYTES_MAX
        } else {
            VALUE_BYTES_MAX
        };
        if usize::from(self.prefix_len) + self.keys.len as usize > KEY_BYTES_MAX
            || self.values.len as usize > value_max
        {
            return Err(ImageError::Malformed("a length beyond its limit"));
        }
        let fits = |c: &ColumnHead| match c.form {
            Form::Ints => c.width <= 8 && c.len <= 8,
            Form::Fixed => c.width == 0,
            Form::Var => c.width <= 4 && c.len == 0,
        };
        if !fits(&self.keys) || !fits(&self.values) || self.seq_width > 8 {
            return Err(ImageError::Malformed("a column of impossible width"));
        }
        Ok(())
    }

    /// Parses a header and checks that the image is complete, unchanged since it was sealed, and
    /// sealed for `meant`.
    ///
    /// `bytes_max` is the maximum length of the image. It is [`IMAGE_BYTES_MAX`] for an image on
    /// the storage; an image that stays in memory can be longer.
    pub fn open(bytes: &[u8], meant: Seal, bytes_max: usize) -> Result<Self, ImageError> {
        let header = Self::decode_within(bytes, bytes_max)?;
        let image = bytes
            .get(..header.len_bytes as usize)
            .ok_or(ImageError::Short)?;
        let is_whole =
            crc32c::crc32c(&image[COVERED_FROM..]).to_le_bytes() == image[..COVERED_FROM];
        if !is_whole && !is_planted(Bug::BelievesImages) {
            return Err(ImageError::Checksum);
        }
        if header.seal.location != meant.location {
            return Err(ImageError::Location {
                found: header.seal.location,
                expected: meant.location,
            });
        }
        if header.seal.generation != meant.generation && !is_planted(Bug::BelievesLeftovers) {
            return Err(ImageError::Generation {
                found: header.seal.generation,
                expected: meant.generation,
            });
        }
        Ok(header)
    }
}

fn form(code: u8) -> Result<Form, ImageError> {
    match code {
        0 => Ok(Form::Ints),
        1 => Ok(Form::Fixed),
        2 => Ok(Form::Var),
        _ => Err(ImageError::Malformed("a column of unknown form")),
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("inside the header")
}

/// Writes the seal and the checksum into an image that is new or was moved.
///
/// # Panics
/// If the length of `bytes` is not the length in the header.
pub fn seal(bytes: &mut [u8], seal: impl Into<Seal>) {
    let seal = seal.into();
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk().expect("an image has a header");
    let len = u32::from_le_bytes(array(header, LENGTH_AT));
    assert_eq!(bytes.len(), len as usize, "this is one whole image");
    bytes[LOCATION_AT..LOCATION_AT + 8].copy_from_slice(&seal.location.to_le_bytes());
    bytes[GENERATION_AT..GENERATION_AT + 4].copy_from_slice(&seal.generation.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[COVERED_FROM..]);
    bytes[..COVERED_FROM].copy_from_slice(&crc.to_le_bytes());
}
