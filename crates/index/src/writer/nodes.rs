//! Where every node is, as of now: what a checkpoint copies, and what tells which numbers are free.
//!
//! Source: the mapping table of log-structured file systems and of the Bw-tree. The slots of the
//! tree say for readers where a node is; this says it for the one that changes, beside what the
//! readers need not know: which leaves have patches, which inner nodes are newer in memory than any
//! image, and which numbers may be given to new nodes. A number must never be free while a place or
//! a patch is known for it: a checkpoint would name what is not there.

use crate::node::NodeId;
use crate::segments::Location;
use crate::tree::slots::NODES_MAX;
use std::collections::BTreeSet;

/// All nodes.
#[derive(Debug)]
pub(super) struct NodeTable {
    /// Where each node is; nowhere for a number that is free, and for a node that has no image yet.
    locations: Vec<Location>,
    /// Leaves with patches.
    patched: BTreeSet<NodeId>,
    /// Numbers that new nodes may have; the last is the next.
    free_ids: Vec<NodeId>,
    /// Inner nodes that have changed since an image of them was written.
    changed_inners: BTreeSet<NodeId>,
}

impl NodeTable {
    /// The nodes of a checkpoint. Every number without a place is free but that of the root, which
    /// may have no image.
    pub(super) fn new(
        locations: Vec<Location>,
        patched: BTreeSet<NodeId>,
        root: NodeId,
    ) -> NodeTable {
        let is_free = |(id, location): (usize, &Location)| {
            (location.is_nowhere() && id as NodeId != root).then_some(id as NodeId)
        };
        let free_ids = locations.iter().enumerate().rev();
        let free_ids = free_ids.filter_map(is_free).collect();
        NodeTable {
            locations,
            patched,
            free_ids,
            changed_inners: BTreeSet::new(),
        }
    }

    /// Numbers of nodes are below this.
    pub(super) fn end(&self) -> NodeId {
        self.locations.len() as NodeId
    }

    /// Nodes there are, parts of long values among them.
    pub(super) fn count(&self) -> u32 {
        (self.locations.len() - self.free_ids.len()) as u32
    }

    /// Where every node is, by number.
    pub(super) fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Where a node is, if there is an image of one with this number.
    pub(super) fn find(&self, id: NodeId) -> Option<Location> {
        let location = self.locations.get(id as usize).copied();
        location.filter(|location| !location.is_nowhere())
    }

    /// Where a node is, nowhere without an image.
    pub(super) fn location(&self, id: NodeId) -> Location {
        self.locations[id as usize]
    }

    /// The image of a node is here now, or there is none any more. Returns where it was.
    #[must_use]
    pub(super) fn relocate(&mut self, id: NodeId, location: Location) -> Location {
        std::mem::replace(&mut self.locations[id as usize], location)
    }

    /// True if so many new nodes can have numbers.
    pub(super) fn has_ids_left(&self, count: usize) -> bool {
        let needed = count.saturating_sub(self.free_ids.len()) as NodeId;
        self.end() <= NODES_MAX - needed
    }

    /// A number for a new node, which is nowhere yet. One that a damaged tree uses all the same is
    /// passed over.
    pub(super) fn take_id(&mut self) -> NodeId {
        while let Some(id) = self.free_ids.pop() {
            if self.location(id).is_nowhere() {
                return id;
            }
        }
        let id = self.end();
        self.locations.push(Location::NOWHERE);
        id
    }

    /// There is no node with this number any more.
    pub(super) fn free_id(&mut self, id: NodeId) {
        assert!(
            self.location(id).is_nowhere() && !self.patched.contains(&id),
            "nothing of it is left"
        );
        self.changed_inners.remove(&id);
        self.free_ids.push(id);
    }

    /// A leaf has a patch.
    pub(super) fn note_patched(&mut self, id: NodeId) {
        assert!(
            !self.location(id).is_nowhere(),
            "a patch is one of an image"
        );
        self.patched.insert(id);
    }

    /// A leaf has no patches.
    pub(super) fn note_whole(&mut self, id: NodeId) {
        self.patched.remove(&id);
    }

    /// True if a leaf has patches.
    pub(super) fn is_patched(&self, id: NodeId) -> bool {
        self.patched.contains(&id)
    }

    /// The leaves with patches, in ascending order.
    pub(super) fn patched(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.patched.iter().copied()
    }

    /// The first leaf with patches.
    pub(super) fn first_patched(&self) -> Option<NodeId> {
        self.patched.first().copied()
    }

    /// An inner node has changed in memory, where it has to stay until it is written.
    pub(super) fn note_changed(&mut self, inner: NodeId) {
        self.changed_inners.insert(inner);
    }

    /// An inner node was written as it is in memory.
    pub(super) fn note_written(&mut self, inner: NodeId) {
        let was_changed = self.changed_inners.remove(&inner);
        assert!(was_changed, "only what has changed is written");
    }

    /// True if an inner node has changed since an image of it was written.
    pub(super) fn is_changed(&self, inner: NodeId) -> bool {
        self.changed_inners.contains(&inner)
    }

    /// The first inner node that has changed.
    pub(super) fn first_changed(&self) -> Option<NodeId> {
        self.changed_inners.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(segment: u32) -> Location {
        Location::new(segment, 4096, 640)
    }

    /// Nodes 0, 2 and 4 of a checkpoint; the root is 3, which is empty.
    fn table() -> NodeTable {
        let nowhere = Location::NOWHERE;
        let locations = vec![place(1), nowhere, place(2), nowhere, place(3)];
        NodeTable::new(locations, BTreeSet::from([2]), 3)
    }

    #[test]
    fn numbers_without_a_node_are_given_out_first_and_the_root_has_one() {
        let mut table = table();
        assert_eq!((table.count(), table.end()), (4, 5));
        assert_eq!(table.take_id(), 1);
        assert_eq!(table.take_id(), 5, "3 is that of the root");
        assert_eq!((table.count(), table.end()), (6, 6));
        assert!(table.location(5).is_nowhere());
        table.free_id(1);
        assert_eq!((table.count(), table.end()), (5, 6));
        assert_eq!(table.take_id(), 1);
    }

    #[test]
    fn a_number_that_a_damaged_tree_uses_is_not_given_out() {
        let mut table = table();
        assert!(table.relocate(1, place(9)).is_nowhere());
        assert_eq!(table.take_id(), 5);
    }

    #[test]
    fn a_node_that_moves_says_where_it_was() {
        let mut table = table();
        assert_eq!(table.relocate(2, place(7)), place(2));
        assert_eq!(table.find(2), Some(place(7)));
        assert_eq!(table.find(3), None, "it has no image");
        assert_eq!(table.find(5), None, "there is no such number");
    }

    #[test]
    #[should_panic(expected = "nothing of it is left")]
    fn a_number_with_a_place_is_not_free() {
        table().free_id(4);
    }

    #[test]
    #[should_panic(expected = "nothing of it is left")]
    fn a_number_with_patches_is_not_free() {
        let mut table = table();
        assert_eq!(table.relocate(2, Location::NOWHERE), place(2));
        table.free_id(2);
    }

    #[test]
    fn patches_and_changes_end_with_their_node() {
        let mut table = table();
        assert!(table.is_patched(2) && !table.is_patched(4));
        table.note_patched(4);
        assert!(table.patched().eq([2, 4]));
        table.note_whole(2);
        assert!(table.patched().eq([4]));
        table.note_changed(3);
        table.note_changed(1);
        assert_eq!(table.first_changed(), Some(1));
        table.free_id(1);
        assert_eq!(table.first_changed(), Some(3));
        table.note_written(3);
        assert!(!table.is_changed(3));
        assert_eq!(table.first_changed(), None);
    }

    #[test]
    fn numbers_run_out_where_neither_free_ones_nor_new_ones_are_enough() {
        let table = table();
        // 1 is free, and those from 5 on are new.
        let new = (NODES_MAX - 5) as usize;
        assert!(table.has_ids_left(new + 1));
        assert!(!table.has_ids_left(new + 2));
    }
}
