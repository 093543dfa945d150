//! Values out of line: the reference that a row has in place of a long value, and the reading of
//! that value.
//!
//! A reference is the length of the value (8 bytes), its checksum (4), and the ids of the blobs
//! that hold the value in order (4 each). A blob is freed when no row needs it. The id of the blob
//! is then reused, for nodes as well. A reader that follows the reference afterwards detects the
//! reuse, because the id belongs to a node or the checksum does not match.

use super::Tree;
use super::load::ATTEMPTS_MAX;
use super::slots::{Content, Node};
use crate::error::Error;
use crate::node::{Image, NodeId, parse_blob};
use crate::segments::Spot;

/// Bytes of a reference before the blob ids.
const HEAD_BYTES: usize = 12;

/// Reference to a long value, as a row holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub bytes: u64,
    pub crc: u32,
    pub blobs: Vec<NodeId>,
}

impl Reference {
    /// Returns the approximate length of the reference to a value of `value_bytes` bytes. The
    /// reference has an id for each blob. All blobs except the last hold at least 32 KiB, because a
    /// segment has at least 64 KiB.
    pub(crate) fn bytes_for(value_bytes: usize) -> usize {
        HEAD_BYTES + value_bytes.div_ceil(32 << 10) * 4
    }

    /// Returns the maximum number of parts that a reference of `reference_bytes` bytes can name.
    pub(crate) fn parts_max(reference_bytes: usize) -> usize {
        reference_bytes.saturating_sub(HEAD_BYTES) / 4
    }

    /// Returns true if `value` has the length and the checksum of this reference.
    pub(crate) fn is_of(&self, value: &[u8]) -> bool {
        value.len() as u64 == self.bytes && crc32c::crc32c(value) == self.crc
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.blobs.len() * 4);
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.crc.to_le_bytes());
        for blob in &self.blobs {
            bytes.extend_from_slice(&blob.to_le_bytes());
        }
        bytes
    }

    /// Decodes a reference; returns `None` if the bytes are not a reference.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Reference> {
        let (head, blobs) = bytes.split_at_checked(HEAD_BYTES)?;
        let (length, crc) = head.split_at(8);
        let blobs = blobs.chunks_exact(4);
        if !blobs.remainder().is_empty() {
            return None;
        }
        Some(Reference {
            bytes: u64::from_le_bytes(length.try_into().ok()?),
            crc: u32::from_le_bytes(crc.try_into().ok()?),
            blobs: blobs
                .map(|blob| blob.try_into().map(u32::from_le_bytes))
                .collect::<Result<_, _>>()
                .ok()?,
        })
    }
}

impl Tree {
    /// Replaces the reference in `out` by the value that it refers to. Returns false if the value
    /// was freed.
    pub(crate) fn read_blob(&self, out: &mut Vec<u8>) -> Result<bool, Error> {
        let Some(reference) = Reference::decode(out) else {
            return Err(Error::Damaged {
                what: "the reference to a value out of line".to_owned(),
                offset: 0,
            });
        };
        let mut value = Vec::with_capacity(reference.blobs.len().min(16) << 12);
        for blob in &reference.blobs {
            match self.read_where_it_is(*blob)? {
                Some(part) => value.extend_from_slice(&part),
                None => return Ok(false),
            }
        }
        let is_whole =
            value.len() as u64 == reference.bytes && crc32c::crc32c(&value) == reference.crc;
        if is_whole {
            *out = value;
        }
        Ok(is_whole)
    }

    /// Returns the content of one blob, or `None` if the blob was freed. If cleaning moves the blob
    /// during the read, the read is retried at the new location.
    fn read_where_it_is(&self, blob: NodeId) -> Result<Option<Vec<u8>>, Error> {
        let spot = || {
            let node = self.slots.get(blob).node.read();
            let is_gone = node.location.is_nowhere() || is_used_again(&node);
            (!is_gone).then(|| self.generations.spot(node.location))
        };
        if !self.has(blob) {
            return Ok(None);
        }
        let mut now = spot();
        for _ in 0..ATTEMPTS_MAX {
            let Some(tried) = now else {
                return Ok(None);
            };
            let read = self.read_part(blob, tried);
            now = spot();
            match read {
                Ok(part) => return Ok(part),
                Err(error) if now == Some(tried) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Returns the content of one blob, or `None` if the blob's id now belongs to a node.
    fn read_part(&self, blob: NodeId, spot: Spot) -> Result<Option<Vec<u8>>, Error> {
        let bytes = self.read_image(spot.location)?;
        let offset = self.offset(spot.location);
        let damaged = |what: String| Error::Damaged { what, offset };
        let meant = spot.seal();
        match parse_blob(&bytes, meant) {
            Ok(read) if read.node == blob => Ok(Some(read.content.to_vec())),
            Ok(read) => Err(damaged(format!(
                "blob {blob}, in whose place blob {} is",
                read.node
            ))),
            Err(error) => match Image::parse(&bytes, meant) {
                Ok(image) if image.node() == blob => Ok(None),
                _ => Err(damaged(format!("blob {blob}: {error}"))),
            },
        }
    }
}

/// Returns true if the id of a blob now belongs to a node. The slot of a blob never has content in
/// memory, so a slot with content belongs to a node.
fn is_used_again(node: &Node) -> bool {
    node.is_pinned || node.delta.is_some() || !matches!(node.content, Content::Absent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_read_as_it_was_written() {
        let reference = Reference {
            bytes: 1 << 33,
            crc: 0xDEAD_BEEF,
            blobs: vec![7, 1 << 30],
        };
        let bytes = reference.encode();
        assert_eq!(bytes.len(), 20);
        assert_eq!(Reference::decode(&bytes), Some(reference));
        assert_eq!(Reference::decode(&bytes[..19]), None);
        assert_eq!(Reference::decode(&bytes[..11]), None);
    }
}
