//! What leaves were made of that have been written since the last checkpoint.
//!
//! A power cut may leave several images of a leaf half written, one made of the other; then a
//! rebuild goes back to the one that the checkpoint names. So each says that one as well, and from
//! where the log has everything since. Only the latest leaves are known here: images that were
//! written long ago have reached the storage, and nothing is lost but a little certainty if they
//! have not.

use crate::footer::Base;
use crate::node::NodeId;
use std::collections::{BTreeMap, VecDeque};

/// Leaves that are remembered, at most.
const LEAVES_MAX: usize = 1024;
/// Bases of a leaf, at most.
pub(super) const BASES_MAX: usize = 64;

/// What a leaf was made of.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub bases: Vec<Base>,
    /// Where in the log everything begins that it has and they have not.
    pub logged_from: u64,
}

impl Origin {
    /// Goes back beyond a base that was made of `other` itself.
    fn reach_back(&mut self, other: &Origin) {
        for base in &other.bases {
            if self.bases.len() < BASES_MAX && !self.bases.contains(base) {
                self.bases.push(*base);
            }
        }
        self.logged_from = self.logged_from.min(other.logged_from);
    }
}

/// The leaves and when they were written, counted.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    origins: BTreeMap<NodeId, (u64, Origin)>,
    order: VecDeque<(u64, NodeId)>,
    written: u64,
}

impl Unsettled {
    /// The origin of what is made of leaves now, as far back as is known.
    pub(super) fn trace(&self, bases: &[Base], logged_from: u64) -> Origin {
        let mut origin = Origin {
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

    /// A leaf was written.
    pub(super) fn note(&mut self, leaf: NodeId, origin: Origin) {
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

    /// How many have been written so far.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// A checkpoint counts now that was taken when so many had been written.
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
        // What was written before the checkpoint was taken is in it; what came later is not.
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
