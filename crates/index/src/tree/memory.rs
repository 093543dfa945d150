//! Accounting of the memory for content and changes, and eviction when the budget is exceeded.
//!
//! Images and inner nodes that can be read again are evicted, beginning with those that were not
//! used since the eviction last inspected them (CLOCK). Changes are kept; the writer makes room for
//! them. The eviction visits only nodes in memory, so its cost does not depend on the number of
//! nodes on the storage. It must never evict content that has not reached the storage.

use super::slots::{Content, Node, Slot, Slots};
use crate::node::NodeId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::VecDeque;

/// Maximum number of nodes that an eviction inspects in a row without evicting one of them. If all
/// of them are in use or not yet on the storage, the next nodes probably cannot be evicted either.
const LOOKS_MAX: usize = 256;

/// Of the content that can be read again, the part that a pass of an eviction keeps in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spared {
    /// Content used since the last inspection.
    Used,
    Nothing,
}

/// Accounting of the memory of a tree, in bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Budget for images, inner nodes and changes together.
    budget_bytes: u64,
    content_bytes: AtomicU64,
    delta_bytes: AtomicU64,
    /// Queue of the nodes that the eviction inspects, the next one first. It has every node with
    /// content once, and some nodes that have no content any more.
    resident: Mutex<VecDeque<NodeId>>,
    /// Length of `resident`.
    residents: AtomicUsize,
    /// Number of misses of leaves with patches.
    misses: AtomicU32,
    /// True if content stays in memory while the budget allows it; false if it is evicted after
    /// each operation.
    keeps: bool,
}

impl Memory {
    /// Creates the accounting. If `keeps` is true, content stays in memory while the budget allows
    /// it; otherwise only until the operation that uses it has ended.
    pub(crate) fn new(budget_bytes: u64, keeps: bool) -> Memory {
        Memory {
            budget_bytes,
            content_bytes: AtomicU64::new(0),
            delta_bytes: AtomicU64::new(0),
            resident: Mutex::default(),
            residents: AtomicUsize::new(0),
            misses: AtomicU32::new(0),
            keeps,
        }
    }

    pub(crate) fn content_bytes(&self) -> u64 {
        self.content_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn delta_bytes(&self) -> u64 {
        self.delta_bytes.load(Ordering::Relaxed)
    }

    /// Replaces the content of a node. The caller holds the lock of the slot, as `node` proves.
    pub(crate) fn put_content(&self, id: NodeId, slot: &Slot, node: &mut Node, content: Content) {
        self.add_content(content.memory_bytes());
        let before = std::mem::replace(&mut node.content, content);
        self.drop_content(before.memory_bytes());
        if slot.enlist() {
            self.resident.lock().push_back(id);
            self.residents.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Adds `bytes` to the accounted content, without listing a node for the eviction.
    pub(crate) fn add_content(&self, bytes: usize) {
        self.content_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Updates the accounting: the content and the patches of a node took `before` bytes and now
    /// take `after` bytes.
    pub(crate) fn change_content(&self, before: usize, after: usize) {
        self.add_content(after);
        self.drop_content(before);
    }

    /// Notes a miss of a leaf with patches. Returns true if the leaf was also missed recently: if
    /// it had been read whole at that miss, it would still be in memory. Only such a leaf is worth
    /// reading whole.
    pub(crate) fn is_missed_again(&self, slot: &Slot) -> bool {
        let now = self.misses.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let before = slot.miss(now);
        let since = now.wrapping_sub(before) as usize;
        before != 0 && since <= self.residents.load(Ordering::Relaxed)
    }

    /// Subtracts `bytes` from the accounted content.
    pub(crate) fn drop_content(&self, bytes: usize) {
        let before = self
            .content_bytes
            .fetch_sub(bytes as u64, Ordering::Relaxed);
        assert!(
            before >= bytes as u64,
            "content is counted before it is dropped"
        );
    }

    /// Updates the accounting: the changes of a leaf took `before` bytes and now take `after`
    /// bytes.
    pub(crate) fn change_delta(&self, before: usize, after: usize) {
        if after >= before {
            self.delta_bytes
                .fetch_add((after - before) as u64, Ordering::Relaxed);
        } else {
            self.delta_bytes
                .fetch_sub((before - after) as u64, Ordering::Relaxed);
        }
    }

    fn excess(&self) -> bool {
        !self.has_room(0)
    }

    /// Returns true if `bytes` more bytes are within the budget.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.content_bytes() + self.delta_bytes() + bytes <= self.budget_bytes
    }

    /// Evicts content until memory is within the budget. Evicts unused content first. If
    /// [`LOOKS_MAX`] inspections in a row find no unused content, evicts any content that can be
    /// read again, because a load may use all nodes between two evictions.
    pub(crate) fn evict(&self, slots: &Slots) {
        if !self.excess() {
            return;
        }
        let mut resident = self.resident.lock();
        self.go_round(slots, &mut resident, Spared::Used);
        self.go_round(slots, &mut resident, Spared::Nothing);
    }

    /// Evicts content until memory is within the budget, or until [`LOOKS_MAX`] inspections in a
    /// row have evicted no content. Inspects each node at most once: an inspection clears the
    /// node's mark of use, so a second inspection would evict content that `spared` protects.
    /// Memory can therefore still exceed the budget afterwards.
    fn go_round(&self, slots: &Slots, resident: &mut VecDeque<NodeId>, spared: Spared) {
        let mut looks = LOOKS_MAX;
        for _ in 0..resident.len() {
            if looks == 0 || !self.excess() {
                return;
            }
            let Some(id) = resident.pop_front() else {
                return;
            };
            if self.give_up(slots.get(id), spared) {
                looks = LOOKS_MAX;
            } else {
                looks -= 1;
                resident.push_back(id);
            }
        }
    }

    /// Must be called at the end of each operation: if content is not kept between operations,
    /// evicts all content that can be read again.
    #[inline]
    pub(crate) fn give_up_kept(&self, slots: &Slots) {
        if !self.keeps {
            self.give_up_all(slots);
        }
    }

    #[cold]
    fn give_up_all(&self, slots: &Slots) {
        let mut resident = self.resident.lock();
        resident.retain(|id| !self.give_up(slots.get(*id), Spared::Nothing));
    }

    /// Evicts the content of a node, unless it is spared, in use, or not yet on the storage.
    /// Returns true if the node has no content now.
    fn give_up(&self, slot: &Slot, spared: Spared) -> bool {
        if slot.take_used() && spared == Spared::Used {
            return false;
        }
        // A thread that holds the lock uses the node.
        let Some(mut node) = slot.node.try_write() else {
            return false;
        };
        let is_there = !matches!(node.content, Content::Absent);
        if is_there && (node.is_pinned || node.location.is_nowhere()) {
            return false;
        }
        let content = std::mem::replace(&mut node.content, Content::Absent);
        self.drop_content(content.memory_bytes());
        slot.unlist();
        self.residents.fetch_sub(1, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::node::{Builder, Image, Kind, Row, seal};
    use crate::segments::Location;

    fn leaf(id: NodeId) -> Content {
        let mut builder = Builder::new(false);
        builder.push(Row {
            key: b"key",
            seq: 0,
            kind: Kind::Put,
            value: &[7; 1000],
        });
        let mut bytes = builder.finish(id, 0, 1, 0);
        let at = somewhere().stored();
        seal(&mut bytes, at);
        Content::Leaf(Image::parse(&bytes, at).expect("an image"))
    }

    /// A location of an image in segment 1.
    fn somewhere() -> Location {
        let geometry = Geometry::new(1, 1024, 1 << 20);
        Location::from_stored(1 << 32 | 1, &geometry, 2).expect("a place")
    }

    fn put(memory: &Memory, slots: &Slots, id: NodeId, is_pinned: bool) {
        let slot = slots.get(id);
        let mut node = slot.node.write();
        node.location = somewhere();
        node.is_pinned = is_pinned;
        memory.put_content(id, slot, &mut node, leaf(id));
    }

    fn is_there(slots: &Slots, id: NodeId) -> bool {
        !matches!(slots.get(id).node.read().content, Content::Absent)
    }

    #[test]
    fn unused_nodes_are_evicted_and_unflushed_ones_stay() {
        let one = leaf(0).memory_bytes() as u64;
        let (memory, slots) = (Memory::new(one * 3, true), Slots::default());
        for id in 0..6 {
            put(&memory, &slots, id, id == 0);
        }
        slots.get(2).touch();
        slots.get(5).touch();
        memory.evict(&slots);
        let there: Vec<NodeId> = (0..6).filter(|id| is_there(&slots, *id)).collect();
        assert_eq!(there, [0, 2, 5], "1, 3 and 4 were the oldest of the others");
        assert_eq!(memory.content_bytes(), one * 3);
    }

    #[test]
    fn where_all_is_in_use_the_oldest_goes() {
        let one = leaf(0).memory_bytes() as u64;
        let (memory, slots) = (Memory::new(one * 600, true), Slots::default());
        for id in 0..1000 {
            put(&memory, &slots, id, false);
            slots.get(id).touch();
        }
        memory.evict(&slots);
        assert_eq!(memory.content_bytes(), one * 600);
        let gone: Vec<NodeId> = (0..1000).filter(|id| !is_there(&slots, *id)).collect();
        let first = LOOKS_MAX as NodeId;
        let oldest: Vec<NodeId> = (first..first + 400).collect();
        assert_eq!(gone, oldest, "after those that were spared once");
    }

    #[test]
    fn a_node_that_comes_back_is_gone_round_once() {
        let one = leaf(0).memory_bytes() as u64;
        let (memory, slots) = (Memory::new(one, true), Slots::default());
        for turn in 0..100 {
            put(&memory, &slots, turn % 2, false);
            put(&memory, &slots, turn % 2, false);
            memory.evict(&slots);
            assert!(is_there(&slots, turn % 2), "the newest stays");
            assert!(memory.resident.lock().len() <= 2);
        }
        assert_eq!(memory.content_bytes(), one);
    }

    #[test]
    fn what_is_all_pinned_is_looked_at_a_bounded_number_of_times() {
        let (memory, slots) = (Memory::new(0, true), Slots::default());
        for id in 0..1000 {
            put(&memory, &slots, id, true);
        }
        memory.evict(&slots);
        assert_eq!(memory.resident.lock().len(), 1000);
        let front = *memory.resident.lock().front().expect("one");
        assert_eq!(
            front,
            2 * LOOKS_MAX as NodeId,
            "as many as were looked at went to the end"
        );
    }
}
