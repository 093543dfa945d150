//! Counters of the queues that have requests or for which the device is kept idle, by class and by
//! weight.
//!
//! The counters are maintained at every change and not computed by a scan, since every request
//! reads them.

use super::super::queues::Rank;
use super::flow::Flow;
use crate::lists::take_at;

/// Queues that want service.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy {
    count: usize,
    raised: usize,
    ranks: [usize; 3],
    /// Pairs of a weight and the number of queues with that weight, in ascending order of weight.
    weights: Vec<(u64, usize)>,
}

impl Busy {
    /// Adds a queue to the counters, under its current class, weight and raise. Before any of these
    /// three values changes, the caller must remove the queue.
    pub(super) fn add(&mut self, flow: &Flow) {
        self.count += 1;
        self.raised += usize::from(flow.raise.is_up());
        self.ranks[flow.rank as usize] += 1;
        match self.weights.binary_search_by_key(&flow.weight(), |of| of.0) {
            Ok(at) => self.weights[at].1 += 1,
            Err(at) => self.weights.insert(at, (flow.weight(), 1)),
        }
    }

    /// Removes a queue from the counters; its class, weight and raise must be those with which it
    /// was added.
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

    /// Returns the number of queues whose weight is raised.
    pub(super) fn raised(&self) -> usize {
        self.raised
    }

    /// Returns true if the counted queues differ in class. Also returns true if they differ in
    /// weight, unless `of` is a queue with the smallest weight.
    pub(super) fn is_uneven(&self, of: Option<&Flow>) -> bool {
        let least = self.weights.first().map(|of| of.0);
        let has_least = of.is_some_and(|flow| Some(flow.weight()) == least);
        let is = |rank: Rank| self.ranks[rank as usize] > 0;
        let classes = [Rank::RealTime, Rank::BestEffort, Rank::Idle].map(is);
        let several = classes.into_iter().filter(|is| *is).count() > 1;
        several || (self.weights.len() > 1 && !has_least)
    }
}
