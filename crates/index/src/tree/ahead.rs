//! Read-ahead of inner nodes, many at a time, for a caller that is about to visit many leaves.
//!
//! After a checkpoint the images of inner nodes are adjacent on the storage. So a thousand of them
//! take a few long reads rather than a thousand short ones, each with its own latency. Read-ahead
//! only fills memory: a node that it cannot read is read again by the caller that needs it, which
//! then reports the error. Read-ahead must never read more nodes than memory has room for, and must
//! never read a leaf.

use super::Tree;
use super::slots::Content;
use crate::error::Error;
use crate::node::NodeId;
use crate::segments::Spot;
use crate::storage::{Aligned, BLOCK_BYTES, round_up};
use std::ops::Range;
use std::sync::Arc;

/// Maximum bytes of one read.
const READ_BYTES_MAX: u64 = 1 << 20;
/// Maximum gap in bytes between two nodes that are read with one read. The bytes of the gap are
/// read as well. Two nodes with a larger gap between them are read separately.
const GAP_BYTES_MAX: u64 = 32 << 10;

/// Nodes that lie close to each other and are read with one read.
struct Run {
    offset: u64,
    end: u64,
    nodes: Vec<(NodeId, Spot)>,
}

impl Tree {
    /// Reads the inner nodes on the paths to the leaves of `count` keys; `key` returns the keys in
    /// order.
    ///
    /// # Errors
    ///
    /// If a node cannot be read.
    pub(crate) fn read_ahead<'k>(
        &self,
        count: usize,
        key: &dyn Fn(usize) -> &'k [u8],
    ) -> Result<(), Error> {
        let mut level = vec![(self.root(), 0..count)];
        while !level.is_empty() {
            self.read_together(level.iter().map(|(id, _)| *id));
            let mut below = Vec::new();
            for (id, keys) in level {
                let Some(inner) = self.at_inner(id, Arc::clone)? else {
                    return Ok(());
                };
                if inner.level() > 1 {
                    below_of(&inner, keys, key, &mut below);
                }
            }
            level = below;
        }
        Ok(())
    }

    /// Reads the nodes among `ids` that are not in memory, as far as memory has room.
    fn read_together(&self, ids: impl Iterator<Item = NodeId>) {
        let mut absent: Vec<(u64, Spot, NodeId)> = ids
            .filter_map(|id| {
                let node = self.slots.get(id).node.read();
                let is_absent = matches!(node.content, Content::Absent);
                let is_read = is_absent && !node.location.is_nowhere() && node.delta.is_none();
                is_read.then(|| {
                    let spot = self.generations.spot(node.location);
                    (self.offset(node.location), spot, id)
                })
            })
            .collect();
        absent.sort_unstable_by_key(|(offset, ..)| *offset);
        let mut runs: Vec<Run> = Vec::new();
        for (offset, spot, id) in absent {
            let end = offset + spot.location.bytes() as u64;
            match runs.last_mut() {
                Some(run)
                    if offset <= run.end + GAP_BYTES_MAX && end - run.offset <= READ_BYTES_MAX =>
                {
                    run.end = end;
                    run.nodes.push((id, spot));
                }
                _ => runs.push(Run {
                    offset,
                    end,
                    nodes: vec![(id, spot)],
                }),
            }
        }
        for run in runs.iter().filter(|run| run.nodes.len() > 1) {
            if self.memory.has_room(run.end - run.offset) {
                self.read_run(run);
            }
        }
    }

    fn read_run(&self, run: &Run) {
        let first = run.offset / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let mut blocks = Aligned::zeroed(round_up((run.end - first) as usize));
        if self.storage.read(first, &mut blocks).is_err() {
            return;
        }
        for (id, spot) in &run.nodes {
            let at = (self.offset(spot.location) - first) as usize;
            let bytes = &blocks[at..at + spot.location.bytes()];
            let Ok(content) = self.content_of(*id, *spot, bytes) else {
                continue;
            };
            let slot = self.slots.get(*id);
            let mut node = slot.node.write();
            let is_there =
                !node.location.is_nowhere() && self.generations.spot(node.location) == *spot;
            let is_absent = matches!(node.content, Content::Absent);
            if is_there && is_absent && matches!(content, Content::Inner(_)) {
                self.memory.put_content(*id, slot, &mut node, content);
                slot.touch();
            }
        }
    }
}

/// Divides keys among the children of an inner node.
fn below_of<'k>(
    inner: &super::Inner,
    keys: Range<usize>,
    key: &dyn Fn(usize) -> &'k [u8],
    below: &mut Vec<(NodeId, Range<usize>)>,
) {
    let mut start = keys.start;
    while start < keys.end {
        let index = inner.find(key(start));
        let (mut low, mut high) = (start + 1, keys.end);
        if index + 1 < inner.len() {
            let edge = inner.separator(index + 1);
            while low < high {
                let middle = low + (high - low) / 2;
                if key(middle) < edge {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
        }
        below.push((inner.child(index), start..high));
        start = high;
    }
}
