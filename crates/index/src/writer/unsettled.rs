//! Sources of the leaves written since the last checkpoint: the images that each of them was made
//! from.
//!
//! A power cut can leave several images of a leaf half written, each made from the previous image.
//! A rebuild then uses the image that the checkpoint names. So each new image lists three things:
//! its bases (the images that it was made from), the image that the checkpoint names, and the log
//! position from which the log has all later changes. Only the sources of the latest leaves are
//! kept, because older images have normally reached the storage. If an older image has not reached
//! the storage, a rebuild can report as lost some keys that are not lost.

use crate::footer::Base;
use crate::node::NodeId;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of leaves remembered.
const LEAVES_MAX: usize = 1024;
/// Maximum number of base images recorded for a leaf.
pub(super) const BASES_MAX: usize = 64;

/// Images that a leaf was made from.
#[derive(Clone, Debug)]
pub(super) struct LeafSources {
    pub bases: Vec<Base>,
    /// Log position from which the log has every change that is in the leaf but not in `bases`.
    pub logged_from: u64,
}

impl LeafSources {
    /// Adds `other`, the sources of a base of this leaf. The bases in `other` become bases of this
    /// leaf too, up to `BASES_MAX` bases. `logged_from` becomes the lower of the two positions.
    fn reach_back(&mut self, other: &LeafSources) {
        for base in &other.bases {
            if self.bases.len() < BASES_MAX && !self.bases.contains(base) {
                self.bases.push(*base);
            }
        }
        self.logged_from = self.logged_from.min(other.logged_from);
    }
}

/// Sources of the recently written leaves, and the order in which these leaves were written.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    origins: BTreeMap<NodeId, (u64, LeafSources)>,
    order: VecDeque<(u64, NodeId)>,
    written: u64,
}

impl Unsettled {
    /// Returns the sources of new images that are made from the images `bases`. The sources are
    /// `bases` themselves and the recorded images from which `bases` were made.
    pub(super) fn trace(&self, bases: &[Base], logged_from: u64) -> LeafSources {
        let mut origin = LeafSources {
            bases: bases.to_vec(),
            logged_from,
        };
        for base in bases {
            if let Some((_, other)) = self.origins.get(&base.node) {
                origin.reach_back(other);
            }
        }
        origin
    }

    /// Notes that `leaf` was written, and the images that it was made from (`origin`).
    pub(super) fn note(&mut self, leaf: NodeId, origin: LeafSources) {
        self.written += 1;
        self.origins.insert(leaf, (self.written, origin));
        self.order.push_back((self.written, leaf));
        while self.order.len() > LEAVES_MAX {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((written, leaf)) = self.order.pop_front()
            && self
                .origins
                .get(&leaf)
                .is_some_and(|(at, _)| *at == written)
        {
            self.origins.remove(&leaf);
        }
    }

    /// Returns the number of leaves written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Forgets the leaf writes numbered up to `written`, because a checkpoint that includes them is
    /// in effect.
    pub(super) fn settle(&mut self, written: u64) {
        while self.order.front().is_some_and(|(at, _)| *at <= written) {
            self.forget_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(node: NodeId, lsn: u64) -> Base {
        Base {
            node,
            lsn,
            patches: 0,
        }
    }

    #[test]
    fn an_origin_reaches_back_to_what_the_checkpoint_has_and_no_further() {
        let mut unsettled = Unsettled::default();
        let first = unsettled.trace(&[base(1, 10)], 5);
        unsettled.note(1, first);
        let taken = unsettled.written();
        let second = unsettled.trace(&[base(1, 20)], 8);
        assert_eq!(second.bases, [base(1, 20), base(1, 10)]);
        assert_eq!(second.logged_from, 5);
        unsettled.note(1, second);
        let joined = unsettled.trace(&[base(1, 30), base(2, 7)], 9);
        assert_eq!(joined.bases.len(), 4);
        // Leaves that were written before the checkpoint was taken are in that checkpoint; leaves
        // that were written later are not.
        unsettled.settle(taken);
        assert_eq!(unsettled.trace(&[base(1, 30)], 9).bases.len(), 3);
        unsettled.settle(unsettled.written());
        assert_eq!(unsettled.trace(&[base(1, 30)], 9).bases, [base(1, 30)]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut unsettled = Unsettled::default();
        for leaf in 0..5000 {
            let origin = unsettled.trace(&[base(leaf % 3000, 1)], 0);
            unsettled.note(leaf % 3000, origin);
        }
        assert!(unsettled.order.len() <= LEAVES_MAX);
        assert!(unsettled.origins.len() <= LEAVES_MAX);
    }
}
