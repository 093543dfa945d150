//! Which queues want service, as far as decisions ask: how many, of which classes and weights.
//! Counted and not looked through, since every request asks.

use super::super::queues::Rank;
use super::flow::Flow;
use crate::lists::take_at;

/// Queues that want service.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    count: usize,
    raised: usize,
    ranks: [usize; 3],
    /// How many there are of each weight, the least first.
    weights: Vec<(u64, usize)>,
}

impl Busy {
    /// Counts a queue, as it is now. It must be counted out before its class, weight or raise
    /// changes.
    pub(super) fn add(&mut self, flow: &Flow) {
        self.count += 1;
        self.raised += usize::from(flow.raise.is_up());
        self.ranks[flow.rank as usize] += 1;
        match self.weights.binary_search_by_key(&flow.weight(), |of| of.0) {
            Ok(at) => self.weights[at].1 += 1,
            Err(at) => self.weights.insert(at, (flow.weight(), 1)),
        }
    }

    /// Counts a queue out, as it was when it was counted.
    pub(super) fn remove(&mut self, flow: &Flow) {
        self.count -= 1;
        self.raised -= usize::from(flow.raise.is_up());
        self.ranks[flow.rank as usize] -= 1;
        let at = self.weights.binary_search_by_key(&flow.weight(), |of| of.0);
        let at = at.expect("a queue is counted by the weight that it has");
        self.weights[at].1 -= 1;
        if self.weights[at].1 == 0 {
            take_at(&mut self.weights, at);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Those whose weight is raised.
    pub(super) fn raised(&self) -> usize {
        self.raised
    }

    /// True if they differ in class, or in weight with `of` not having the least.
    pub(super) fn is_uneven(&self, of: Option<&Flow>) -> bool {
        let least = self.weights.first().map(|of| of.0);
        let has_least = of.is_some_and(|flow| Some(flow.weight()) == least);
        let is = |rank: Rank| self.ranks[rank as usize] > 0;
        let classes = [Rank::RealTime, Rank::BestEffort, Rank::Idle].map(is);
        let several = classes.into_iter().filter(|is| *is).count() > 1;
        several || (self.weights.len() > 1 && !has_least)
    }
}
