//! The dirty leaves: the order in which they are written back, the log position from which each of
//! them needs the log, and the memory that their changes are allowed to take.
//!
//! There are two queues of leaves: one in order of age, for the write-back, and one in order of log
//! position. A queue entry is valid only while the leaf still has the value in the entry. When a
//! leaf is written back, its entries stay in the queues; they are dropped when they reach the
//! front. Every leaf that has changes must have an entry in each queue. Otherwise the log would be
//! truncated before the changes are in a node. The queue in log order must never be read while it
//! is unsorted. A replay leaves that queue unsorted, because a replay adds changes in key order.

use crate::node::NodeId;
use crate::tree::slots::{Node, Slots};
use std::collections::VecDeque;

/// Number of bytes by which the temporary memory limit after an opening decreases for each
/// committed byte of changes. At this value, the limit decreases faster than changes fill memory.
const PAID_OFF_SHARE: u64 = 8;
/// Minimum number of bytes by which each group of batches lowers the temporary memory limit that
/// applies after an opening. Because of this minimum, the limit finally falls below the normal
/// limit and has no effect. Writing back one leaf frees about five times this number of bytes, so
/// not every commit has to write back a leaf. In a measurement, commits that each wrote back a leaf
/// were a fifth slower.
const PAID_OFF_BYTES: u64 = 256;

/// A log position from which a leaf needs the log, and the id of that leaf.
pub(super) type Logged = (u64, NodeId);

/// The dirty leaves.
#[derive(Debug)]
pub(super) struct DirtyLeaves {
    /// Leaves in the order in which they became dirty, the oldest first. An entry is valid while
    /// the leaf's `dirty_since` equals the number in the entry.
    by_age: VecDeque<(u64, NodeId)>,
    /// Queue of leaves, each with the log position from which it needs the log.
    by_log: VecDeque<Logged>,
    /// True if `by_log` is sorted.
    is_ordered: bool,
    /// Number of deltas begun so far.
    begun: u64,
    /// Leaves whose deltas have grown too long for fast lookups and insertions.
    overgrown: Vec<NodeId>,
    /// Temporary memory limit for changes, in bytes. It applies while it is above the size of the
    /// buffer. An opening sets it, because the log may have had more changes than fit into the
    /// buffer.
    taken_up_bytes: u64,
}

impl DirtyLeaves {
    /// Creates an empty set.
    pub(super) fn new() -> DirtyLeaves {
        DirtyLeaves {
            by_age: VecDeque::new(),
            by_log: VecDeque::new(),
            is_ordered: true,
            begun: 0,
            overgrown: Vec::new(),
            taken_up_bytes: 0,
        }
    }

    /// Notes that a leaf is about to get a change that is in the log at `position`. A replay adds
    /// changes in key order. So during a replay `position` can be before the position of an earlier
    /// call, for the same leaf or for another leaf.
    pub(super) fn note(&mut self, id: NodeId, node: &mut Node, position: u64) {
        if node.delta.is_none() {
            self.begin(id, node);
            node.logged_at = position;
            self.push_logged((position, id));
        } else if position < node.logged_at {
            node.logged_at = position;
            self.is_ordered = false;
        }
    }

    /// Notes that a leaf is about to get a change that is in the log at `position`. This position
    /// can be before the log positions of changes that were noted earlier.
    pub(super) fn note_late(&mut self, id: NodeId, node: &mut Node, position: u64) {
        let is_new = node.delta.is_none();
        if is_new {
            self.begin(id, node);
        }
        if is_new || position < node.logged_at {
            node.logged_at = position;
            // The entry is inserted near the front, because the position is old.
            let at = self.by_log.partition_point(|(other, _)| *other <= position);
            self.by_log.insert(at, (position, id));
        }
    }

    fn begin(&mut self, id: NodeId, node: &mut Node) {
        self.begun += 1;
        node.dirty_since = self.begun;
        self.by_age.push_back((self.begun, id));
    }

    fn push_logged(&mut self, (position, id): Logged) {
        let last = self.by_log.back();
        self.is_ordered &= last.is_none_or(|(before, _)| *before <= position);
        self.by_log.push_back((position, id));
    }

    /// Returns the leaf that has been dirty longest. The answer stays the same until that leaf is
    /// written back.
    pub(super) fn oldest(&mut self, slots: &Slots) -> Option<NodeId> {
        while let Some((since, id)) = self.by_age.front() {
            let node = slots.get(*id).node.read();
            if node.delta.is_some() && node.dirty_since == *since {
                return Some(*id);
            }
            drop(node);
            self.by_age.pop_front();
        }
        None
    }

    /// Returns the leaf whose changes are first in the log, and the log position of these changes:
    /// no leaf needs the log before that position. The answer stays the same until that leaf is
    /// written back or [taken](Self::take_first_logged).
    pub(super) fn first_logged(&mut self, slots: &Slots) -> Option<Logged> {
        assert!(self.is_ordered, "a replay ends with the order of the log");
        while let Some((position, id)) = self.by_log.front() {
            let node = slots.get(*id).node.read();
            if node.delta.is_some() && node.logged_at == *position {
                return Some((*position, *id));
            }
            drop(node);
            self.by_log.pop_front();
        }
        None
    }

    /// Removes from the queue the leaf whose changes are first in the log, so that its changes can
    /// be relogged. The caller must then [put the leaf back](Self::put_back) or [note its new
    /// position](Self::logged_again). Until then the queue does not show that the leaf needs the
    /// log.
    pub(super) fn take_first_logged(&mut self, slots: &Slots) -> Option<Logged> {
        let first = self.first_logged(slots);
        if first.is_some() {
            self.by_log.pop_front();
        }
        first
    }

    /// Puts leaves that were not relogged back into the queue, before all leaves that have the same
    /// log position.
    pub(super) fn put_back(&mut self, taken: Vec<Logged>) {
        for leaf in taken.into_iter().rev() {
            let at = self.by_log.partition_point(|(other, _)| *other < leaf.0);
            self.by_log.insert(at, leaf);
        }
    }

    /// Notes that the changes of these leaves were relogged at `position`. `position` must not be
    /// lower than the log position of any leaf in the queue.
    pub(super) fn logged_again(&mut self, taken: Vec<Logged>, slots: &Slots, position: u64) {
        let last = self.by_log.back();
        assert!(
            last.is_none_or(|(before, _)| *before <= position),
            "the head of the log is behind everything"
        );
        for (_, id) in taken {
            slots.get(id).node.write().logged_at = position;
            self.by_log.push_back((position, id));
        }
    }

    /// Sorts the queue of leaves by the log position from which each leaf needs the log. A replay
    /// leaves the queue unsorted, because a replay adds changes in key order.
    pub(super) fn order_by_log(&mut self, slots: &Slots) {
        self.by_log.retain_mut(|(position, id)| {
            let node = slots.get(*id).node.read();
            *position = node.logged_at;
            node.delta.is_some()
        });
        self.by_log.make_contiguous().sort_unstable();
        self.is_ordered = true;
    }

    /// Notes that the delta of a leaf has grown too long for fast lookups and insertions.
    pub(super) fn note_overgrown(&mut self, id: NodeId) {
        self.overgrown.push(id);
    }

    /// Returns the leaf noted last as overgrown. It may have been written back since, and its id
    /// may belong to another node now.
    pub(super) fn last_overgrown(&self) -> Option<NodeId> {
        self.overgrown.last().copied()
    }

    /// Forgets the leaf noted last as overgrown.
    pub(super) fn pop_overgrown(&mut self) {
        self.overgrown.pop();
    }

    /// Returns the memory that changes are allowed to take, in bytes: `buffer_bytes`, or the
    /// temporary limit after an opening if that limit is higher.
    pub(super) fn bytes_max(&self, buffer_bytes: u64) -> u64 {
        buffer_bytes.max(self.taken_up_bytes)
    }

    /// Sets the temporary memory limit for changes: they are allowed to take `bytes` bytes even if
    /// the buffer is smaller. [`pay_off`](Self::pay_off) reduces the limit step by step.
    pub(super) fn lend(&mut self, bytes: u64) {
        self.taken_up_bytes = bytes;
    }

    /// Reduces the temporary memory limit for changes, after a group of batches whose changes take
    /// `changes_bytes` bytes. The limit decreases by more than that number of bytes, but slowly
    /// enough that a commit of one change does not have to write back many leaves.
    pub(super) fn pay_off(&mut self, changes_bytes: u64) {
        let paid_bytes = (changes_bytes * PAID_OFF_SHARE).max(PAID_OFF_BYTES);
        self.taken_up_bytes = self.taken_up_bytes.saturating_sub(paid_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test helper that changes leaves and writes them back as the writer does.
    struct Leaves {
        slots: Slots,
        dirty: DirtyLeaves,
    }

    impl Leaves {
        fn new() -> Leaves {
            Leaves {
                slots: Slots::default(),
                dirty: DirtyLeaves::new(),
            }
        }

        fn change(&mut self, id: NodeId, position: u64) {
            let mut node = self.slots.get(id).node.write();
            self.dirty.note(id, &mut node, position);
            node.delta.get_or_insert_default();
        }

        fn change_late(&mut self, id: NodeId, position: u64) {
            let mut node = self.slots.get(id).node.write();
            self.dirty.note_late(id, &mut node, position);
            node.delta.get_or_insert_default();
        }

        fn write_back(&self, id: NodeId) {
            self.slots.get(id).node.write().delta = None;
        }

        fn oldest(&mut self) -> Option<NodeId> {
            self.dirty.oldest(&self.slots)
        }

        fn first_logged(&mut self) -> Option<Logged> {
            self.dirty.first_logged(&self.slots)
        }

        fn take(&mut self) -> Logged {
            let first = self.dirty.take_first_logged(&self.slots);
            first.expect("a leaf has changes")
        }

        /// Returns the leaves in log order, writing each of them back.
        fn in_order_of_log(&mut self) -> Vec<Logged> {
            let mut all = Vec::new();
            while let Some((position, id)) = self.first_logged() {
                all.push((position, id));
                self.write_back(id);
            }
            all
        }
    }

    #[test]
    fn leaves_are_old_by_when_their_changes_began_not_by_their_last() {
        let mut leaves = Leaves::new();
        leaves.change(7, 10);
        leaves.change(3, 20);
        leaves.change(7, 30);
        assert_eq!(leaves.oldest(), Some(7));
        assert_eq!(leaves.oldest(), Some(7), "until it is written back");
        // Leaf 7 becomes dirty again after leaf 3, so the first queue entry of leaf 7 is no longer
        // valid.
        leaves.write_back(7);
        leaves.change(7, 40);
        assert_eq!(leaves.oldest(), Some(3));
        leaves.write_back(3);
        assert_eq!(leaves.oldest(), Some(7));
        leaves.write_back(7);
        assert_eq!(leaves.oldest(), None);
    }

    #[test]
    fn the_log_is_needed_from_the_first_change_that_is_in_no_node() {
        let mut leaves = Leaves::new();
        leaves.change(1, 10);
        leaves.change(2, 20);
        leaves.change(1, 30);
        assert_eq!(leaves.first_logged(), Some((10, 1)));
        // Leaf 1 becomes dirty again after leaf 2, so the first queue entry of leaf 1 is no longer
        // valid.
        leaves.write_back(1);
        leaves.change(1, 40);
        assert_eq!(leaves.first_logged(), Some((20, 2)));
        // These changes are noted late: their log positions are before the positions noted so far.
        leaves.change_late(2, 15);
        leaves.change_late(3, 5);
        leaves.change_late(4, 17);
        // Leaf 4 already has a change at position 17. So a late change at the later position 19
        // changes no queue entry.
        leaves.change_late(4, 19);
        let expected = [(5, 3), (15, 2), (17, 4), (40, 1)];
        assert_eq!(leaves.in_order_of_log(), expected);
    }

    #[test]
    fn what_is_logged_again_is_needed_from_there() {
        let mut leaves = Leaves::new();
        leaves.change(1, 10);
        leaves.change(2, 20);
        leaves.change(3, 30);
        let taken = vec![leaves.take(), leaves.take()];
        assert_eq!(taken, [(10, 1), (20, 2)]);
        leaves.dirty.logged_again(taken, &leaves.slots, 40);
        // The age of the leaves has not changed.
        assert_eq!(leaves.oldest(), Some(1));
        assert_eq!(leaves.in_order_of_log(), [(30, 3), (40, 1), (40, 2)]);
    }

    #[test]
    fn what_is_put_back_is_in_order_with_what_a_leaf_took_in_meanwhile() {
        let mut leaves = Leaves::new();
        leaves.change(1, 10);
        leaves.change(2, 20);
        leaves.change(3, 20);
        let mut taken = vec![leaves.take(), leaves.take()];
        leaves.change_late(3, 5);
        taken.push(leaves.take());
        assert_eq!(taken, [(10, 1), (20, 2), (5, 3)]);
        leaves.dirty.put_back(taken);
        assert_eq!(leaves.in_order_of_log(), [(5, 3), (10, 1), (20, 2)]);
    }

    #[test]
    fn a_replay_that_goes_by_keys_is_brought_into_the_order_of_the_log() {
        let mut leaves = Leaves::new();
        leaves.change(1, 30);
        leaves.change(2, 10);
        leaves.change(1, 20);
        leaves.change(3, 5);
        leaves.write_back(3);
        leaves.dirty.order_by_log(&leaves.slots);
        assert_eq!(leaves.in_order_of_log(), [(10, 2), (20, 1)]);
    }

    #[test]
    #[should_panic(expected = "a replay ends with the order of the log")]
    fn the_log_is_not_cut_off_by_an_order_of_keys() {
        let mut leaves = Leaves::new();
        leaves.change(1, 30);
        leaves.change(1, 20);
        leaves.first_logged();
    }

    #[test]
    fn memory_that_was_lent_is_paid_off_eight_times_as_fast_as_changes_come() {
        let mut dirty = DirtyLeaves::new();
        assert_eq!(dirty.bytes_max(1000), 1000);
        dirty.lend(10_000);
        assert_eq!(dirty.bytes_max(1000), 10_000);
        dirty.pay_off(100);
        assert_eq!(dirty.bytes_max(1000), 9200);
        // A small group pays off the minimum of 256 bytes.
        dirty.pay_off(1);
        assert_eq!(dirty.bytes_max(1000), 8944);
        dirty.pay_off(5000);
        assert_eq!(dirty.bytes_max(1000), 1000);
        assert_eq!(dirty.bytes_max(0), 0, "all is paid");
    }
}
