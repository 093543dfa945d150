//! Replay of the log after a stop: all changes in the log from its tail on are applied to the
//! leaves again.
//!
//! The changes of one key are in order in the log, and keys do not depend on each other. So a part
//! of the log (a stretch) is collected and sorted by key. For each stretch, each leaf is visited
//! once. It gets all its changes together, and only the last change of each key. A range deletion
//! ends a stretch, because it concerns keys that are not listed in it. Replay must never read a
//! leaf: the cost of opening would then grow with the number of changed leaves.

use crate::batch::{Operation, Operations, ranges_first};
use crate::error::Error;
use crate::log::Frame;
use crate::node::{Kind, NodeId, Row, Seq};
use crate::tree::Tree;
use crate::tree::inner::Inner;
use crate::writer::Writer;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

/// Minimum number of bytes of a stretch (the part of the log that is sorted and applied together),
/// however small the memory is.
const STRETCH_BYTES_MIN: usize = 64 << 10;
/// Maximum number of bytes of a stretch (the part of the log that is sorted and applied together).
/// Longer stretches would not make replay faster.
const STRETCH_BYTES_MAX: usize = 1 << 30;

/// One change of one key.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// First sixteen bytes of the key, as a number with the same order.
    head: u128,
    key_at: usize,
    value_len: u32,
    key_len: u16,
    is_put: bool,
    seq: Seq,
    position: u64,
}

impl Change {
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.key_at..][..usize::from(self.key_len)]
    }

    fn row<'a>(&self, bytes: &'a [u8]) -> Row<'a> {
        let (key, rest) = bytes[self.key_at..].split_at(usize::from(self.key_len));
        Row {
            key,
            seq: self.seq,
            kind: if self.is_put { Kind::Put } else { Kind::Delete },
            value: &rest[..self.value_len as usize],
        }
    }

    /// Compares keys. The keys themselves are read only if their heads do not decide, because the
    /// keys are scattered in memory.
    fn compare_key(&self, other: &Change, bytes: &[u8]) -> Ordering {
        let is_all_head = self.key_len <= 16 && other.key_len <= 16;
        self.head.cmp(&other.head).then_with(|| match is_all_head {
            // The heads are equal, but one key may be the other key followed by zeroes. The shorter
            // key comes first.
            true => self.key_len.cmp(&other.key_len),
            false => self.key(bytes).cmp(other.key(bytes)),
        })
    }
}

/// A stretch of the log that is being replayed.
#[derive(Debug)]
pub(crate) struct Replay {
    /// Keys, each followed by its value.
    bytes: Vec<u8>,
    changes: Vec<Change>,
    /// Memory that a stretch is allowed to take, in bytes.
    bytes_max: usize,
}

impl Replay {
    /// Creates a replay that collects about `bytes_max` bytes of changes before it applies them to
    /// the leaves. The more bytes it collects, the more changes a leaf gets together.
    pub(crate) fn new(bytes_max: u64) -> Replay {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(STRETCH_BYTES_MAX);
        Replay {
            bytes: Vec::new(),
            changes: Vec::new(),
            bytes_max: bytes_max.clamp(STRETCH_BYTES_MIN, STRETCH_BYTES_MAX),
        }
    }

    /// Adds the changes of a frame to the collected changes. If the collected changes would then
    /// take too much memory, applies them to the leaves first.
    pub(crate) fn take(&mut self, frame: &Frame<'_>, writer: &mut Writer) -> Result<(), Error> {
        let memory_bytes = self.bytes.len() + self.changes.len() * size_of::<Change>();
        if memory_bytes + frame.operations.len() > self.bytes_max {
            self.finish(writer)?;
            writer.maintain_in_replay()?;
        }
        let last = frame.each_batch(|seq, operations| {
            let ordered = match frame.is_relogged {
                // A relogged frame holds the changes of several leaves, grouped by leaf. In each
                // group the range deletions come first, so the order need not be changed.
                true => Ok(Cow::Borrowed(operations)),
                false => ranges_first(operations),
            };
            let ordered = ordered.map_err(|_| frame.not_a_batch())?;
            let mut operations = Operations::new(&ordered);
            while let Some(operation) = operations.take().map_err(|_| frame.not_a_batch())? {
                match operation {
                    Operation::Put { key, value } => {
                        self.push(key, Some(value), seq, frame.position);
                    }
                    Operation::Delete { key } => self.push(key, None, seq, frame.position),
                    Operation::DeleteRange { start, end } => {
                        self.finish(writer)?;
                        writer.replay_deletion(seq, (start, end), frame)?;
                    }
                    // Skip the record of a range deletion that was already applied: the checkpoint
                    // contains this deletion, or the log contains it in its original form.
                    Operation::RangeDeleted { .. } | Operation::End => {}
                }
            }
            Ok(())
        })?;
        writer.replayed(last, frame);
        Ok(())
    }

    fn push(&mut self, key: &[u8], value: Option<&[u8]>, seq: Seq, position: u64) {
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.changes.push(Change {
            head: head(key),
            key_at,
            key_len: key.len() as u16,
            is_put: value.is_some(),
            value_len: value.map_or(0, <[u8]>::len) as u32,
            seq,
            position,
        });
    }

    /// Applies the changes of the stretch.
    pub(crate) fn finish(&mut self, writer: &mut Writer) -> Result<(), Error> {
        let bytes = &self.bytes;
        // The changes of one key must be in the order of the log. `key_at` increases in this order,
        // because keys are appended to `bytes` in the order of the log.
        self.changes.sort_unstable_by(|a, b| {
            let by_key = a.compare_key(b, bytes);
            by_key.then_with(|| a.key_at.cmp(&b.key_at))
        });
        // Keep the last change of each key.
        self.changes.dedup_by(|later, kept| {
            let is_same = later.compare_key(kept, bytes).is_eq();
            if is_same {
                *kept = *later;
            }
            is_same
        });
        let tree = Arc::clone(&writer.tree);
        tree.read_ahead(self.changes.len(), &|index| self.changes[index].key(bytes))?;
        let mut leaves = Leaves::new(&tree);
        let mut rest = &self.changes[..];
        let mut rows = Vec::new();
        while let Some(first) = rest.first() {
            let leaf = leaves.leaf_of(first.key(bytes))?;
            let edge = leaves.edge();
            let is_own = |change: &&Change| edge.is_none_or(|edge| change.key(bytes) < edge);
            let own = rest.iter().take_while(is_own).count();
            let (own, others) = rest.split_at(own.max(1));
            rows.clear();
            rows.extend(own.iter().map(|change| change.row(bytes)));
            let position = own.iter().map(|change| change.position).min();
            writer.replay_rows(leaf, &rows, position.unwrap_or_default());
            rest = others;
        }
        self.changes.clear();
        self.bytes.clear();
        Ok(())
    }
}

/// Finds the leaves of ascending keys. Most leaves have the same parent as the previous leaf, so
/// the descent from the root happens once for each parent.
struct Leaves<'a> {
    tree: &'a Tree,
    /// Parent of the leaf that [`leaf_of`](Self::leaf_of) returned last; `None` before the first
    /// key, and if the root is a leaf.
    parent: Option<Parent>,
}

struct Parent {
    inner: Arc<Inner>,
    /// Index of the child that was returned last.
    index: usize,
    /// Exclusive end of the keys below this parent; `None` for the last parent.
    end: Option<Box<[u8]>>,
}

impl<'a> Leaves<'a> {
    fn new(tree: &'a Tree) -> Leaves<'a> {
        Leaves { tree, parent: None }
    }

    /// Returns the leaf of `key`. In each call, `key` must not be less than in the previous call.
    fn leaf_of(&mut self, key: &[u8]) -> Result<NodeId, Error> {
        if let Some(parent) = &mut self.parent
            && parent.end.as_ref().is_none_or(|end| key < &**end)
        {
            parent.index = parent.inner.find(key);
            return Ok(parent.inner.child(parent.index));
        }
        let (path, leaf) = self.tree.path(key)?;
        let mut end: Option<Box<[u8]>> = None;
        for (_, inner, index) in path.iter().rev().skip(1) {
            if end.is_none() && index + 1 < inner.len() {
                end = Some(inner.separator(index + 1).into());
            }
        }
        let parent = path.into_iter().last();
        self.parent = parent.map(|(_, inner, index)| Parent { inner, index, end });
        Ok(leaf)
    }

    /// Returns the exclusive upper bound of the keys of the leaf that [`leaf_of`](Self::leaf_of)
    /// returned last.
    fn edge(&self) -> Option<&[u8]> {
        let parent = self.parent.as_ref()?;
        match parent.index + 1 < parent.inner.len() {
            true => Some(parent.inner.separator(parent.index + 1)),
            false => parent.end.as_deref(),
        }
    }
}

fn head(key: &[u8]) -> u128 {
    let mut first = [0; 16];
    let len = key.len().min(16);
    first[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(first)
}
