//! What is found on a storage that has lost its order: images, and how much of the log.

use crate::footer::Base;
use crate::node::{KeyRange, NodeId, Seal, Seq};
use crate::storage::{BLOCK_BYTES, Storage};
use std::collections::BTreeSet;

/// An image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// What it is sealed for.
    pub seal: Seal,
    /// In bytes from the start of the storage.
    pub offset: u64,
    pub bytes: usize,
    pub node: NodeId,
    pub lsn: Seq,
}

/// An image of a leaf.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    pub place: Place,
    pub range: KeyRange,
    pub is_whole: bool,
    /// The leaves that it was made of, when it was written.
    pub bases: Vec<Base>,
    /// What it adds to them is in the log from here on.
    pub logged_from: u64,
    /// It can be read, a checkpoint names it, and the log has everything since: whatever else there
    /// was of its keys need not be there.
    pub is_proven: bool,
}

/// Keys of which something may be missing or older than it was, where they come from an image of a
/// batch below `up_to` and the log does not have all batches since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub range: KeyRange,
    pub up_to: Seq,
}

impl Doubt {
    /// Of all keys.
    pub(super) fn of_all(up_to: Seq) -> Doubt {
        Doubt {
            range: KeyRange::default(),
            up_to,
        }
    }
}

/// From where on the log that was found has everything, to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WholeLog {
    /// A position; 0 is the beginning of the index.
    pub from: u64,
    /// The number of the first batch there.
    pub first_seq: Seq,
}

/// Patches by node and batch.
pub(super) type WholePatches = BTreeSet<(NodeId, Seq)>;

/// Reads, block by block where that fails; what cannot be read is zeroes. Where in the buffer these
/// blocks are.
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
