//! The leaves that have changes: in which order they are written back, what the log is needed from
//! for them, and how much memory they may take.
//!
//! Both orders are queues whose entries count only as long as the leaf says the same: a leaf that
//! is written back is not looked for in them, its entries are dropped when their turn comes. A
//! queue must never lack an entry for a leaf that has changes, or the log would be cut off before
//! they are in a node; and the order of the log must never be asked while a replay, which goes by
//! keys, has left it out of order.

use crate::node::NodeId;
use crate::tree::slots::{Node, Slots};
use std::collections::VecDeque;

/// How much less memory changes may have after a group, by the bytes of its changes: more than what
/// they take in memory themselves.
const PAID_OFF_SHARE: u64 = 8;
/// The least that it is, so that it ends. A leaf gives back some five times as much, and writing
/// one in every commit after an opening made those commits a fifth slower.
const PAID_OFF_BYTES: u64 = 256;

/// A leaf, and the first position in the log that is needed for it.
pub(super) type Logged = (u64, NodeId);

/// The leaves that have changes.
#[derive(Debug)]
pub(super) struct DirtyLeaves {
    /// Those that have had them longest first. An entry counts if the leaf still has its number.
    by_age: VecDeque<(u64, NodeId)>,
    /// The same by the first position in the log that is needed for them.
    by_log: VecDeque<Logged>,
    /// `by_log` is in order.
    is_ordered: bool,
    /// Deltas that have begun.
    begun: u64,
    /// Leaves whose deltas have become longer than is good for a lookup or an insertion.
    overgrown: Vec<NodeId>,
    /// Memory that changes may take for the time being, because so many were found in the log, in
    /// bytes.
    taken_up_bytes: u64,
}

impl DirtyLeaves {
    /// None yet.
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

    /// A leaf is about to get a change that is in the log at `position`. In a replay, which goes by
    /// keys, the first change of a leaf need not be the oldest, nor that of the next leaf newer.
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

    /// A leaf is about to get a change that stands earlier in the log, at `position`, than what
    /// other leaves have.
    pub(super) fn note_late(&mut self, id: NodeId, node: &mut Node, position: u64) {
        let is_new = node.delta.is_none();
        if is_new {
            self.begin(id, node);
        }
        if is_new || position < node.logged_at {
            node.logged_at = position;
            // Near the front, for it is old.
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

    /// The leaf that has had changes longest. It stays so until it is written back.
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

    /// The leaf whose changes are first in the log, and where: nothing before that is needed for
    /// any leaf. It stays so until it is written back or [taken](Self::take_first_logged).
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

    /// Takes the leaf whose changes are first in the log, to log them again: it is to be [put
    /// back](Self::put_back) or [noted](Self::logged_again) before anybody asks from where the log
    /// is needed.
    pub(super) fn take_first_logged(&mut self, slots: &Slots) -> Option<Logged> {
        let first = self.first_logged(slots);
        if first.is_some() {
            self.by_log.pop_front();
        }
        first
    }

    /// Puts leaves back that were not logged again, each before those that are needed from the same
    /// position.
    pub(super) fn put_back(&mut self, taken: Vec<Logged>) {
        for leaf in taken.into_iter().rev() {
            let at = self.by_log.partition_point(|(other, _)| *other < leaf.0);
            self.by_log.insert(at, leaf);
        }
    }

    /// The changes of these leaves were logged again, at `position`, which is behind all others.
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

    /// Brings the leaves into the order in which the log is needed for them: a replay goes by keys.
    pub(super) fn order_by_log(&mut self, slots: &Slots) {
        self.by_log.retain_mut(|(position, id)| {
            let node = slots.get(*id).node.read();
            *position = node.logged_at;
            node.delta.is_some()
        });
        self.by_log.make_contiguous().sort_unstable();
        self.is_ordered = true;
    }

    /// The delta of a leaf has become longer than is good for a lookup or an insertion.
    pub(super) fn note_overgrown(&mut self, id: NodeId) {
        self.overgrown.push(id);
    }

    /// A leaf that was overgrown. It may have been written back since, and its number may be
    /// another node's.
    pub(super) fn last_overgrown(&self) -> Option<NodeId> {
        self.overgrown.last().copied()
    }

    /// Forgets the last that was overgrown.
    pub(super) fn pop_overgrown(&mut self) {
        self.overgrown.pop();
    }

    /// Bytes of memory that changes may take, where the buffer is of so many.
    pub(super) fn bytes_max(&self, buffer_bytes: u64) -> u64 {
        buffer_bytes.max(self.taken_up_bytes)
    }

    /// Changes may take so many bytes of memory even if the buffer has less, until that is paid
    /// off.
    pub(super) fn lend(&mut self, bytes: u64) {
        self.taken_up_bytes = bytes;
    }

    /// Takes back from the changes what memory they were given when the index was opened, faster
    /// than a group can bring new ones, but not so fast that a commit of one change waits for many
    /// leaves.
    pub(super) fn pay_off(&mut self, changes_bytes: u64) {
        let paid_bytes = (changes_bytes * PAID_OFF_SHARE).max(PAID_OFF_BYTES);
        self.taken_up_bytes = self.taken_up_bytes.saturating_sub(paid_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Leaves that are changed and written back as the writer does it.
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

        /// Writes leaves back in the order of the log.
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
        // It begins anew behind the other, and what is left of the first time does not count.
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
        // It begins anew behind the other, and what is left of the first time does not count.
        leaves.write_back(1);
        leaves.change(1, 40);
        assert_eq!(leaves.first_logged(), Some((20, 2)));
        // What a leaf takes in late stands before all of that in the log.
        leaves.change_late(2, 15);
        leaves.change_late(3, 5);
        leaves.change_late(4, 17);
        // One that is in the log later than what the leaf has changes nothing.
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
        // Their age is what it was.
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
        // A small group pays the least there is to pay: 256 bytes.
        dirty.pay_off(1);
        assert_eq!(dirty.bytes_max(1000), 8944);
        dirty.pay_off(5000);
        assert_eq!(dirty.bytes_max(1000), 1000);
        assert_eq!(dirty.bytes_max(0), 0, "all is paid");
    }
}
