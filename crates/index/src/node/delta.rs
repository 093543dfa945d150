//! What has changed in a leaf since its image was written.

use super::{Kind, Row, Seq};
use std::ops::Bound;

/// What a delta says about a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a> {
    /// It has this value.
    Put(&'a [u8]),
    /// It has been deleted.
    Deleted,
    /// Nothing: ask the image.
    Nothing,
}

/// The deletion of all keys between two bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeDeletion {
    /// The batch that deleted.
    pub seq: Seq,
    /// Where the range starts.
    pub start: Bound<Box<[u8]>>,
    /// Where the range ends.
    pub end: Bound<Box<[u8]>>,
}

/// Recent versions of a leaf's keys. An empty one owns no memory but itself.
#[derive(Debug, Default)]
pub struct Delta {
    ranges: Vec<RangeDeletion>,
    floor: Seq,
}

impl Delta {
    /// An empty delta.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a version of `key`, or replaces the one with the same `seq`, which an earlier change of
    /// the same batch has left. Versions of this key that no reader at `prune_at` or above can see
    /// are dropped, and [`Delta::floor`] rises to the version that hides them.
    ///
    /// # Panics
    /// If `kind` is [`Kind::Blob`] (content moves out of line when a leaf is folded), or if the key
    /// is longer than [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX).
    pub fn insert(&mut self, _key: &[u8], _seq: Seq, _kind: Kind, _value: &[u8], _prune_at: Seq) {}

    /// Adds the deletion of all keys between `start` and `end`, with the batch `seq`. Versions that
    /// no reader at `prune_at` or above can see any more are dropped.
    pub fn insert_range(
        &mut self,
        _start: Bound<&[u8]>,
        _end: Bound<&[u8]>,
        _seq: Seq,
        _prune_at: Seq,
    ) {
    }

    /// What a reader at `seq` is told about `key`.
    pub fn find(&self, _key: &[u8], _seq: Seq) -> Found<'_> {
        Found::Nothing
    }

    /// Answers for readers below this may be wrong: versions that they would see were dropped.
    pub fn floor(&self) -> Seq {
        self.floor
    }

    /// True if there is neither a version nor a range deletion.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of versions, without the range deletions.
    pub fn rows(&self) -> usize {
        0
    }

    /// Memory that it takes in bytes, unused capacity and this struct included.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }

    /// Calls `visit` with the newest version of each key, keys ascending, without those that a
    /// range deletion hides. With the range deletions inserted first, these make an equal delta
    /// for readers that are as new as all of it.
    pub fn newest(&self, _visit: &mut dyn FnMut(Row<'_>)) {}

    /// The range deletions, in the order of their batches.
    pub fn ranges(&self) -> &[RangeDeletion] {
        &self.ranges
    }
}
