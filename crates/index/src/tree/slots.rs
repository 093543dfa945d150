//! Every node has a slot, found by its number: where its image is, what of it is in memory, and a
//! lock that is held for the moment of a look or a change, never across I/O.

use super::inner::Inner;
use super::patch::{Patch, Patched, Placed, print_of};
use crate::node::{Delta, Image, NodeId, Seq};
use crate::segments::Location;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// What of a node's image is in memory.
#[derive(Clone, Debug, Default)]
pub(crate) enum Content {
    /// Nothing.
    #[default]
    Absent,
    Leaf(Image),
    Inner(Arc<Inner>),
}

impl Content {
    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        match self {
            Content::Absent => 0,
            Content::Leaf(image) => image.memory_bytes(),
            Content::Inner(inner) => inner.memory_bytes(),
        }
    }
}

/// A node. What a get looks at stands first, so that it is in one cache line or two.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Node {
    pub content: Content,
    /// What has changed since the image was written; of leaves only.
    pub delta: Option<Box<Delta>>,
    /// Answers from the image are right for readers from here on.
    pub floor: Seq,
    /// The sequence number when it was written back last.
    pub folded_at: Seq,
    /// Where its image is; nowhere for a leaf without one, which is empty.
    pub location: Location,
    /// The first position in the log that has something of the delta.
    pub logged_at: u64,
    /// When the delta began, in the order in which deltas did.
    pub dirty_since: u64,
    /// Of leaves with patches.
    pub patched: Option<Box<Patched>>,
    /// How far its updates lie apart, as a power of two of sequence numbers.
    pub interval: u8,
    /// The content is needed in memory: it has not landed, or it is an inner node that has changed.
    pub is_pinned: bool,
}

impl Node {
    /// The images of a leaf that may have a key, in the order in which they are to be asked.
    pub(crate) fn places_of<'a>(&'a self, key: &[u8]) -> impl Iterator<Item = Location> + 'a {
        let patches = self.patches();
        let print = if patches.is_empty() { 0 } else { print_of(key) };
        let patches = patches.iter().rev();
        let patches = patches.filter(move |patch| patch.filter.may_have(print));
        patches.map(|patch| patch.location).chain([self.location])
    }

    /// Patches, the oldest first.
    pub(crate) fn patches(&self) -> &[Patch] {
        self.patched.as_deref().map_or(&[], |p| &p.patches)
    }

    /// Images of a leaf with patches that have not reached the storage.
    pub(crate) fn unlanded(&self) -> &[Placed] {
        self.patched.as_deref().map_or(&[], |p| &p.unlanded)
    }

    /// Memory of content and patches, in bytes.
    pub(crate) fn content_bytes(&self) -> usize {
        let patched = self.patched.as_deref().map_or(0, Patched::memory_bytes);
        self.content.memory_bytes() + patched
    }
}

/// A node and its lock. Three of them are in three pairs of half cache lines.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct Slot {
    /// Used since the eviction passed by.
    used: AtomicBool,
    /// The eviction passes by; changed with the lock held.
    listed: AtomicBool,
    /// When it was missed last, as [`Memory`](super::Memory) counts.
    missed_at: AtomicU32,
    pub node: RwLock<Node>,
}

impl Slot {
    /// Notes that the content is of use.
    pub(crate) fn touch(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was used since this was asked last.
    pub(crate) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// True if it was not among those that the eviction passes by, and has to be brought there. The
    /// lock is held.
    pub(crate) fn enlist(&self) -> bool {
        !self.listed.swap(true, Ordering::Relaxed)
    }

    /// Notes a miss, and returns the one before; 0 if there was none.
    pub(crate) fn miss(&self, now: u32) -> u32 {
        self.missed_at.swap(now, Ordering::Relaxed)
    }

    /// The eviction does not pass by any more. The lock is held.
    pub(crate) fn unlist(&self) {
        self.listed.store(false, Ordering::Relaxed);
    }
}

/// Slots in the first chunk; each further one has twice as many as the one before.
const FIRST_CHUNK: usize = 1024;
const CHUNKS: usize = 23;

/// All slots. They are made as they are asked for, and stay where they are.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
}

/// Chunk, place in it, and its length.
fn place(node: NodeId) -> (usize, usize, usize) {
    let shifted = node as usize + FIRST_CHUNK;
    let chunk = (shifted / FIRST_CHUNK).ilog2() as usize;
    let len = FIRST_CHUNK << chunk;
    (chunk, shifted - len, len)
}

/// Numbers of nodes are below this.
pub(crate) const NODES_MAX: NodeId = u32::MAX - FIRST_CHUNK as u32;

impl Slots {
    /// The slot of a node.
    pub(crate) fn get(&self, node: NodeId) -> &Slot {
        let (chunk, index, len) = place(node);
        let make = || (0..len).map(|_| Slot::default()).collect();
        &self.chunks[chunk].get_or_init(make)[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/index.md promises it.
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
