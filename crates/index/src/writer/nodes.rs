//! The current location of every node: the table that a checkpoint copies, and the source of free
//! node ids.
//!
//! Source: the mapping table of log-structured file systems and of the Bw-tree. The slots of the
//! tree tell readers where a node is. This table tells the writer, together with facts that readers
//! do not need: which leaves have patches, which inner nodes are newer in memory than any image,
//! and which ids are free for new nodes. An id must never be free while a location or a patch is
//! recorded for it. Otherwise a checkpoint would name a node that does not exist.

use crate::node::NodeId;
use crate::segments::Location;
use crate::tree::slots::NODES_MAX;
use std::collections::BTreeSet;

/// Table of all nodes.
#[derive(Debug)]
pub(super) struct NodeTable {
    /// Location of each node; `NOWHERE` for a free id, and for a node that has no image yet.
    locations: Vec<Location>,
    /// Leaves with patches.
    patched: BTreeSet<NodeId>,
    /// Free ids for new nodes; the last one is allocated next.
    free_ids: Vec<NodeId>,
    /// Inner nodes that have changed since their last image was written.
    changed_inners: BTreeSet<NodeId>,
}

impl NodeTable {
    /// Creates the table from the nodes of a checkpoint. Every id without a location is free,
    /// except that of the root, which may have no image.
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

    /// Returns the exclusive upper bound of the node ids.
    pub(super) fn end(&self) -> NodeId {
        self.locations.len() as NodeId
    }

    /// Returns the number of existing nodes, including the parts of long values.
    pub(super) fn count(&self) -> u32 {
        (self.locations.len() - self.free_ids.len()) as u32
    }

    /// Returns the locations of all nodes, by id.
    pub(super) fn locations(&self) -> &[Location] {
        &self.locations
    }

    /// Returns the location of a node, or `None` if no node with this id has an image.
    pub(super) fn find(&self, id: NodeId) -> Option<Location> {
        let location = self.locations.get(id as usize).copied();
        location.filter(|location| !location.is_nowhere())
    }

    /// Returns the location of a node, `NOWHERE` if it has no image.
    pub(super) fn location(&self, id: NodeId) -> Location {
        self.locations[id as usize]
    }

    /// Records the new location of a node's image; `NOWHERE` means that the node has no image any
    /// more. Returns the previous location.
    #[must_use]
    pub(super) fn relocate(&mut self, id: NodeId, location: Location) -> Location {
        std::mem::replace(&mut self.locations[id as usize], location)
    }

    /// Returns true if ids for `count` new nodes are available.
    pub(super) fn has_ids_left(&self, count: usize) -> bool {
        let needed = count.saturating_sub(self.free_ids.len()) as NodeId;
        self.end() <= NODES_MAX - needed
    }

    /// Allocates an id for a new node, which has no location yet. Skips a free id that a damaged
    /// tree uses nevertheless.
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

    /// Frees the id of a node that no longer exists.
    pub(super) fn free_id(&mut self, id: NodeId) {
        assert!(
            self.location(id).is_nowhere() && !self.patched.contains(&id),
            "nothing of it is left"
        );
        self.changed_inners.remove(&id);
        self.free_ids.push(id);
    }

    /// Notes that a leaf has a patch.
    pub(super) fn note_patched(&mut self, id: NodeId) {
        assert!(
            !self.location(id).is_nowhere(),
            "a patch is one of an image"
        );
        self.patched.insert(id);
    }

    /// Notes that a leaf has no patches.
    pub(super) fn note_whole(&mut self, id: NodeId) {
        self.patched.remove(&id);
    }

    /// Returns true if a leaf has patches.
    pub(super) fn is_patched(&self, id: NodeId) -> bool {
        self.patched.contains(&id)
    }

    /// Returns the leaves with patches, in ascending order.
    pub(super) fn patched(&self) -> impl ExactSizeIterator<Item = NodeId> {
        self.patched.iter().copied()
    }

    /// Returns the lowest id of a leaf with patches.
    pub(super) fn first_patched(&self) -> Option<NodeId> {
        self.patched.first().copied()
    }

    /// Notes that an inner node has changed in memory, where it stays until it is written.
    pub(super) fn note_changed(&mut self, inner: NodeId) {
        self.changed_inners.insert(inner);
    }

    /// Notes that the current state of an inner node was written.
    pub(super) fn note_written(&mut self, inner: NodeId) {
        let was_changed = self.changed_inners.remove(&inner);
        assert!(was_changed, "only what has changed is written");
    }

    /// Returns true if an inner node has changed since its last image was written.
    pub(super) fn is_changed(&self, inner: NodeId) -> bool {
        self.changed_inners.contains(&inner)
    }

    /// Returns the lowest id of an inner node that has changed.
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

    /// A table with the nodes 0, 2 and 4 of a checkpoint; the root is node 3, which is empty.
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
        // Id 1 is free, and the ids from 5 on are new.
        let new = (NODES_MAX - 5) as usize;
        assert!(table.has_ids_left(new + 1));
        assert!(!table.has_ids_left(new + 2));
    }
}
