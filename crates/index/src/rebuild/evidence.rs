//! Facts found on a storage whose superblocks and checkpoints may be lost: images, and the intact
//! part of the log.

use crate::footer::Base;
use crate::node::{KeyRange, NodeId, Seal, Seq};
use crate::storage::{BLOCK_BYTES, Storage};
use std::collections::BTreeSet;

/// Place of an image, and the node and the LSN that the image claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImageLocation {
    /// Seal that the image must have.
    pub seal: Seal,
    /// Offset in bytes from the start of the storage.
    pub offset: u64,
    pub bytes: usize,
    pub node: NodeId,
    pub lsn: Seq,
}

/// An image of a leaf.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub place: ImageLocation,
    pub range: KeyRange,
    pub is_whole: bool,
    /// Images from which this image was made.
    pub bases: Vec<Base>,
    /// Log position from which the log has all changes that are in this image but not in its bases.
    pub logged_from: u64,
    /// True if the image can be read, a checkpoint names it, and the log has all later changes:
    /// then no other image of the same keys is needed.
    pub is_proven: bool,
}

/// Write 1 is alone in the first group. Write 4 overlaps write 3 and replaces it. The side is given
/// write 4 before writes 2 and 5. Once the side is also given write 2, point 5 is consistent,
/// because the side has the content of all writes below 5. Point 4 is not consistent: without write
/// 4, the side lacks the content of write 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub range: KeyRange,
    pub up_to: Seq,
}

impl Doubt {
    /// Creates a doubt about all keys.
    pub(super) fn of_all(up_to: Seq) -> Doubt {
        Doubt {
            range: KeyRange::default(),
            up_to,
        }
    }
}

/// Position from which the log is complete up to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompleteLog {
    /// Position in the log; 0 is the beginning of the index.
    pub from: u64,
    /// Sequence number of the first batch from that position on.
    pub first_seq: Seq,
}

/// Readable patches, by node and LSN.
pub(super) type WholePatches = BTreeSet<(NodeId, Seq)>;

/// Reads into `buffer`. If that fails, reads block by block, and fills unreadable blocks with
/// zeroes. Returns the offsets of the unreadable blocks in the buffer.
pub(super) fn read_what_can_be(
    storage: &dyn Storage,
    offset: u64,
    buffer: &mut [u8],
) -> Vec<usize> {
    if storage.read(offset, buffer).is_ok() {
        return Vec::new();
    }
    let mut unread = Vec::new();
    for (block, at) in buffer
        .chunks_mut(BLOCK_BYTES)
        .zip((0..).step_by(BLOCK_BYTES))
    {
        if storage.read(offset + at as u64, block).is_err() {
            block.fill(0);
            unread.push(at);
        }
    }
    unread
}
