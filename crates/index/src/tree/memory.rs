//! How much memory content and changes take, and what is given up when it is too much.
//!
//! Images and inner nodes that can be read again are given up, those that were not used since the hand
//! passed last (CLOCK). Changes are kept: who writes makes room for them. It must never give up what
//! has not reached the storage.

use super::slots::{Content, Node, Slots};
use crate::node::NodeId;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Memory of a tree, in bytes.
#[derive(Debug)]
pub(crate) struct Memory {
    /// For images, inner nodes and changes together.
    budget_bytes: u64,
    content_bytes: AtomicU64,
    delta_bytes: AtomicU64,
    hand: AtomicU32,
    /// Slots in use are below this.
    nodes: AtomicU32,
    /// Nodes that are to be given up after the operation, where none is kept for longer.
    passing: Option<Mutex<Vec<NodeId>>>,
}

impl Memory {
    /// With `keeps` content stays while the budget allows it, else until the operation has ended.
    pub(crate) fn new(budget_bytes: u64, keeps: bool) -> Memory {
        Memory {
            budget_bytes,
            content_bytes: AtomicU64::new(0),
            delta_bytes: AtomicU64::new(0),
            hand: AtomicU32::new(0),
            nodes: AtomicU32::new(0),
            passing: (!keeps).then(Mutex::default),
        }
    }

    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    pub(crate) fn content_bytes(&self) -> u64 {
        self.content_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn delta_bytes(&self) -> u64 {
        self.delta_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn add_content(&self, bytes: usize) {
        self.content_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn drop_content(&self, bytes: usize) {
        let before = self
            .content_bytes
            .fetch_sub(bytes as u64, Ordering::Relaxed);
        assert!(
            before >= bytes as u64,
            "content is counted before it is dropped"
        );
    }

    /// The changes of a leaf took `before` and take `after`.
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
        self.content_bytes() + self.delta_bytes() > self.budget_bytes
    }

    /// Gives content up until the budget is kept, or twice round all nodes.
    pub(crate) fn evict(&self, slots: &Slots) {
        let nodes = self.nodes.load(Ordering::Relaxed);
        let mut left = u64::from(nodes) * 2;
        while left > 0 && self.excess() {
            left -= 1;
            let hand = self.hand.fetch_add(1, Ordering::Relaxed) % nodes;
            let slot = slots.get(hand);
            if slot.take_used() {
                continue;
            }
            // Who holds the lock uses it.
            let Some(mut node) = slot.node.try_write() else {
                continue;
            };
            self.give_up(&mut node);
        }
    }

    fn give_up(&self, node: &mut Node) {
        if !node.is_pinned && !node.location.is_nowhere() {
            let content = std::mem::replace(&mut node.content, Content::Absent);
            self.drop_content(content.memory_bytes());
        }
    }

    /// The content of this node is in memory, and could be read again.
    pub(crate) fn note_kept(&self, node: NodeId) {
        if let Some(passing) = &self.passing {
            passing.lock().push(node);
        }
    }

    /// Ends an operation: where nothing is kept, gives up what was noted.
    pub(crate) fn give_up_kept(&self, slots: &Slots) {
        let Some(passing) = &self.passing else { return };
        let nodes = std::mem::take(&mut *passing.lock());
        for node in nodes {
            self.give_up(&mut slots.get(node).node.write());
        }
    }
}
