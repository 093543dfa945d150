//! Taking up the log after a stop: all that is in it from the tail on goes into the leaves again.
//!
//! What the log says of one key is in order, and keys do not depend on each other, so a stretch of the
//! log is sorted by key first: each leaf is gone to once, and of each key only the last change is made.
//! A deletion of a range ends a stretch, since it concerns keys that are not named.

use crate::batch::{Operation, Operations};
use crate::error::Error;
use crate::log::Frame;
use crate::node::{Kind, NodeId, Seq};
use crate::writer::Writer;
use std::cmp::Ordering;

/// Bytes of operations in a stretch: few enough to stay in a cache of the processor while they are sorted.
const STRETCH_BYTES: usize = 32 << 20;

/// One change of one key.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// The first sixteen bytes of the key, as a number that orders as they do.
    head: u128,
    key_at: usize,
    key_len: u16,
    is_put: bool,
    value_len: u32,
    seq: Seq,
    position: u64,
}

impl Change {
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        &bytes[self.key_at..self.key_at + usize::from(self.key_len)]
    }

    /// Compares keys, without a look at them where their heads say enough: they lie anywhere in memory.
    fn compare_key(&self, other: &Change, bytes: &[u8]) -> Ordering {
        let is_all_head = self.key_len <= 16 && other.key_len <= 16;
        self.head.cmp(&other.head).then_with(|| match is_all_head {
            // One may be the other with zeroes behind it.
            true => self.key_len.cmp(&other.key_len),
            false => self.key(bytes).cmp(other.key(bytes)),
        })
    }
}

/// A stretch of the log.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// Keys, each with its value behind it.
    bytes: Vec<u8>,
    changes: Vec<Change>,
}

impl Replay {
    /// Takes a frame.
    pub(crate) fn take(&mut self, frame: &Frame<'_>, writer: &mut Writer) -> Result<(), Error> {
        let mut seq = frame.first_seq;
        let mut operations = Operations::new(frame.operations);
        while let Some(operation) = operations
            .take()
            .map_err(|_| crate::writer::not_a_batch())?
        {
            match operation {
                Operation::End => seq += u64::from(!frame.is_carried),
                Operation::Put { key, value } => self.push(key, Some(value), seq, frame.position),
                Operation::Delete { key } => self.push(key, None, seq, frame.position),
                Operation::DeleteRange { .. } => {
                    self.finish(writer)?;
                    writer.replay_operation(seq, operation, frame.position)?;
                }
            }
        }
        let last = if frame.is_carried { seq } else { seq - 1 };
        writer.replayed(last);
        if self.bytes.len() >= STRETCH_BYTES {
            self.finish(writer)?;
            writer.keep_house_in_replay()?;
        }
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

    /// Makes the changes of the stretch.
    pub(crate) fn finish(&mut self, writer: &mut Writer) -> Result<(), Error> {
        let bytes = &self.bytes;
        // Of one key the order of the log decides, which is that of the places.
        self.changes.sort_unstable_by(|a, b| {
            let by_key = a.compare_key(b, bytes);
            by_key.then_with(|| a.key_at.cmp(&b.key_at))
        });
        let mut leaf: Option<Leaf> = None;
        for (index, change) in self.changes.iter().enumerate() {
            let next = self.changes.get(index + 1);
            if next.is_some_and(|next| next.compare_key(change, bytes).is_eq()) {
                continue;
            }
            let key = change.key(bytes);
            let current = match leaf.take_if(|leaf| leaf.has(key)) {
                Some(current) => current,
                None => writer.leaf_with_edge(key)?,
            };
            let value_at = change.key_at + usize::from(change.key_len);
            let value = &bytes[value_at..value_at + change.value_len as usize];
            let kind = if change.is_put {
                Kind::Put
            } else {
                Kind::Delete
            };
            writer.replay_change(current.id, key, change.seq, kind, value, change.position);
            leaf = Some(current);
        }
        self.changes.clear();
        self.bytes.clear();
        Ok(())
    }
}

/// The leaf that keys go to at the moment.
#[derive(Debug)]
pub(crate) struct Leaf {
    pub id: NodeId,
    /// The least key above that is not its own.
    pub edge: Option<Box<[u8]>>,
}

impl Leaf {
    /// True if a key is its own that is not below one that was.
    fn has(&self, key: &[u8]) -> bool {
        self.edge.as_ref().is_none_or(|edge| key < &**edge)
    }
}

fn head(key: &[u8]) -> u128 {
    let mut first = [0; 16];
    let len = key.len().min(16);
    first[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(first)
}
