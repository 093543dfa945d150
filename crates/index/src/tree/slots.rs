//! Slots of nodes, found by node id. A slot has the location of the node's image, its content in
//! memory, and a lock that is held only to inspect or change the node, never across I/O.

use super::inner::Inner;
use super::patch::{Patch, Patched, Placed, print_of};
use crate::node::{Delta, Image, NodeId, Seq};
use crate::segments::Location;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// Content of a node in memory.
#[derive(Clone, Debug, Default)]
pub(crate) enum Content {
    /// The node is not in memory.
    #[default]
    Absent,
    Leaf(Image),
    Inner(Arc<Inner>),
}

impl Content {
    /// Returns the memory that the content takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Content::Absent => 0,
            Content::Leaf(image) => image.memory_bytes(),
            Content::Inner(inner) => inner.memory_bytes(),
        }
    }
}

/// A node. The fields that a get reads come first, so that they are in one or two cache lines.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Node {
    pub content: Content,
    /// Changes of a leaf since its image was written.
    pub delta: Option<Box<Delta>>,
    /// Lowest sequence number at which the image gives a reader correct answers.
    pub floor: Seq,
    /// Sequence number at which the node was last written back.
    pub consolidated_at: Seq,
    /// Location of the image. A leaf that has no image is empty and has the location `NOWHERE`.
    pub location: Location,
    /// First log position of the changes that are in the delta.
    pub logged_at: u64,
    /// Ordinal of the leaf's delta among all deltas, in the order in which the deltas were begun.
    pub dirty_since: u64,
    /// Additional state of a leaf with patches.
    pub patched: Option<Box<Patched>>,
    /// Usual number of batches between two updates of the leaf, as the exponent of a power of two.
    pub interval: u8,
    /// True if the content must stay in memory: it has not reached the storage, or it is an inner
    /// node that has changed.
    pub is_pinned: bool,
}

impl Node {
    /// Returns the locations of those images of a leaf that can contain the key, in the order in
    /// which to read them: patches from the newest to the oldest, then the image of the whole leaf.
    pub(crate) fn places_of<'a>(&'a self, key: &[u8]) -> impl Iterator<Item = Location> + 'a {
        let patches = self.patches();
        let print = if patches.is_empty() { 0 } else { print_of(key) };
        let patches = patches.iter().rev();
        let patches = patches.filter(move |patch| patch.filter.may_have(print));
        patches.map(|patch| patch.location).chain([self.location])
    }

    /// Returns the patches, the oldest first.
    pub(crate) fn patches(&self) -> &[Patch] {
        self.patched.as_deref().map_or(&[], |p| &p.patches)
    }

    /// Returns those images of a leaf that have not reached the storage yet. Only leaves with
    /// patches have this list.
    pub(crate) fn unflushed(&self) -> &[Placed] {
        self.patched.as_deref().map_or(&[], |p| &p.unflushed)
    }

    /// Returns the memory of content and patches, in bytes.
    pub(crate) fn content_bytes(&self) -> usize {
        let patched = self.patched.as_deref().map_or(0, Patched::memory_bytes);
        self.content.memory_bytes() + patched
    }
}

/// A node and its lock. A slot takes 96 bytes: one and a half cache lines.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct Slot {
    /// True if the content was used since the eviction last inspected this slot.
    used: AtomicBool,
    /// True if the node is in the list of nodes that the eviction visits. The flag is changed only
    /// with the lock of the node held.
    listed: AtomicBool,
    /// Time of the last miss, as [`Memory`](super::Memory) counts misses.
    missed_at: AtomicU32,
    pub node: RwLock<Node>,
}

impl Slot {
    /// Notes that the content was used.
    pub(crate) fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the content was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Marks the node as listed for the eviction. Returns true if the node was not listed before:
    /// then the caller must add it to the list. The caller holds the lock.
    pub(crate) fn enlist(&self) -> bool {
        !self.listed.swap(true, Ordering::Relaxed)
    }

    /// Notes a miss at the time `now`, and returns the time of the previous miss; 0 if there was
    /// none.
    pub(crate) fn miss(&self, now: u32) -> u32 {
        self.missed_at.swap(now, Ordering::Relaxed)
    }

    /// Marks the node as not listed for eviction. The caller holds the lock of the node.
    pub(crate) fn unlist(&self) {
        self.listed.store(false, Ordering::Relaxed);
    }
}

/// Number of slots in the first chunk; each further chunk has twice the number of the previous
/// chunk.
const FIRST_CHUNK: usize = 1024;
const CHUNKS: usize = 23;

/// All slots. They are created on first use, and never move.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
}

/// Returns the chunk of a node's slot, the index of the slot in that chunk, and the length of the
/// chunk.
fn place(node: NodeId) -> (usize, usize, usize) {
    let shifted = node as usize + FIRST_CHUNK;
    let chunk = (shifted / FIRST_CHUNK).ilog2() as usize;
    let len = FIRST_CHUNK << chunk;
    (chunk, shifted - len, len)
}

/// Exclusive upper bound of the node ids.
pub(crate) const NODES_MAX: NodeId = u32::MAX - FIRST_CHUNK as u32;

impl Slots {
    /// Returns the slot of a node.
    pub(crate) fn get(&self, node: NodeId) -> &Slot {
        let (chunk, index, len) = place(node);
        let make = || (0..len).map(|_| Slot::default()).collect();
        &self.chunks[chunk].get_or_init(make)[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/index.md promises this size.
    #[test]
    fn a_node_takes_what_the_documentation_says() {
        assert_eq!(size_of::<Slot>() + size_of::<Location>(), 104);
    }

    #[test]
    fn every_number_has_a_place_of_its_own() {
        assert_eq!(place(0), (0, 0, 1024));
        assert_eq!(place(1023), (0, 1023, 1024));
        assert_eq!(place(1024), (1, 0, 2048));
        assert_eq!(place(3071), (1, 2047, 2048));
        assert_eq!(place(3072), (2, 0, 4096));
        let (chunk, index, len) = place(NODES_MAX - 1);
        assert!(chunk < CHUNKS && index < len);
    }
}
