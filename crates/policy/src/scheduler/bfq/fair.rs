//! B-WF2Q+: the choice of the next queue to serve, such that each queue gets a share of the served
//! sectors in proportion to its weight.
//!
//! Virtual time advances by the number of served sectors, divided by the total weight of all queues
//! present. A queue's virtual start is the current virtual time, or the virtual end of its last
//! service. Its virtual finish is the virtual time at which it will have used its budget. Among the
//! queues whose start has passed, the queue with the earliest finish is served next, so no queue
//! waits longer than its share by more than one budget. A queue without requests is still treated
//! as present until virtual time has passed its finish, since it has been served ahead of its share
//! until then.
//!
//! Source: `block/bfq-wf2q.c` of Linux 6.1, for one group.

use super::super::queues::Rank;
use crate::lists::take_at;

/// Virtual times are fixed-point numbers: sectors divided by weight, shifted left by this number of
/// bits.
const SHIFT: u32 = 22;

/// Virtual times, weight and budget of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Share {
    start: u128,
    finish: u128,
    /// Weight of the queue while it is included in its class's total weight, otherwise 0.
    weight: u64,
    rank: Rank,
    /// Maximum number of sectors for which the queue is served before its service ends.
    pub(super) budget: u64,
    /// Number of sectors that the queue has been charged since its service began.
    pub(super) service: u64,
}

impl Share {
    /// Returns the unused part of the budget, in sectors.
    pub(super) fn left(&self) -> u64 {
        self.budget.saturating_sub(self.service)
    }

    fn finish_after(&mut self, sectors: u64) {
        self.finish = self.start + span(sectors, self.weight);
    }
}

fn span(sectors: u64, weight: u64) -> u128 {
    let weight = weight.max(1);
    if sectors.leading_zeros() >= SHIFT {
        // Requests of usual size take this branch; a 128-bit division takes many times as long.
        return u128::from((sectors << SHIFT) / weight);
    }
    (u128::from(sectors) << SHIFT) / u128::from(weight)
}

/// The queues of one class.
#[derive(Clone, Debug, Default)]
struct Class {
    vtime: u128,
    weights: u64,
    /// Queues with requests, except the queue being served, in order of virtual finish.
    active: Vec<(u128, usize)>,
    /// Queues without requests whose weights are still included in the class's total weight, in
    /// order of virtual finish.
    idle: Vec<(u128, usize)>,
}

fn put(list: &mut Vec<(u128, usize)>, finish: u128, at: usize) {
    let place = list.partition_point(|entry| *entry < (finish, at));
    list.insert(place, (finish, at));
}

fn take(list: &mut Vec<(u128, usize)>, finish: u128, at: usize) -> bool {
    let found = list.binary_search(&(finish, at));
    found.map(|place| take_at(list, place)).is_ok()
}

/// The state of all classes.
#[derive(Clone, Debug, Default)]
pub(super) struct Fair {
    classes: [Class; 3],
    shares: Vec<Share>,
}

impl Fair {
    /// Allocates the state of the queue with index `at`.
    pub(super) fn know(&mut self, at: usize) {
        crate::lists::grow(&mut self.shares, at + 1, Share::default());
    }

    pub(super) fn share(&mut self, at: usize) -> &mut Share {
        &mut self.shares[at]
    }

    /// Returns the budget of the queue with index `at`.
    pub(super) fn budget(&self, at: usize) -> u64 {
        self.shares[at].budget
    }

    /// Returns the unused part of the budget of the queue with index `at`, in sectors.
    pub(super) fn left(&self, at: usize) -> u64 {
        self.shares[at].left()
    }

    /// Returns true if any queue of the class `rank`, other than the queue being served, has
    /// requests.
    pub(super) fn has(&self, rank: Rank) -> bool {
        !self.classes[rank as usize].active.is_empty()
    }

    /// Activates the queue with index `at`, which has requests again.
    ///
    /// `shifted` is given if the queue lost its turn only because its task sends each request after
    /// the previous one has completed. The queue then starts at the virtual finish of its last
    /// service. If its new finish would already have passed, its start and finish are moved towards
    /// the current virtual time. The value of `shifted` is the raise factor: the higher it is, the
    /// smaller the move.
    pub(super) fn activate(&mut self, at: usize, rank: Rank, weight: u64, shifted: Option<u64>) {
        self.forget_if(at, |share| share.rank != rank);
        let class = &mut self.classes[rank as usize];
        let share = &mut self.shares[at];
        let owed = share.finish > class.vtime;
        let is_here = take(&mut class.idle, share.finish, at);
        share.start = match shifted {
            Some(_) if !owed => share.finish,
            _ if is_here => share.finish.max(class.vtime),
            _ => class.vtime,
        };
        class.weights = class.weights - share.weight + weight;
        (share.rank, share.weight) = (rank, weight);
        share.finish_after(share.budget);
        if let Some(raise) = shifted.filter(|_| class.vtime > share.finish) {
            let by = (class.vtime - share.finish) / u128::from(raise.max(1));
            share.start += by;
            share.finish += by;
        }
        put(&mut class.active, share.finish, at);
    }

    /// Removes and returns the queue to serve next: a queue of the class `rank` if the class is
    /// given and has queues with requests, otherwise a queue of the highest class that has such
    /// queues.
    pub(super) fn next(&mut self, rank: Option<Rank>) -> Option<usize> {
        let all = [Rank::RealTime, Rank::BestEffort, Rank::Idle];
        let mut ranks = rank.into_iter().chain(all);
        let rank = ranks.find(|rank| self.has(*rank))?;
        let class = &mut self.classes[rank as usize];
        let starts = class.active.iter().map(|(_, at)| self.shares[*at].start);
        // If the virtual start of every queue is later than the virtual time, the virtual time
        // jumps to the earliest start.
        class.vtime = class.vtime.max(starts.min()?);
        let vtime = class.vtime;
        let mut places = class.active.iter();
        let place = places.position(|(_, at)| self.shares[*at].start <= vtime)?;
        let (_, at) = take_at(&mut class.active, place);
        Some(at)
    }

    /// Charges `sectors` served sectors to the queue with index `at`, and advances virtual time.
    pub(super) fn serve(&mut self, at: usize, sectors: u64) {
        let share = &mut self.shares[at];
        share.service += sectors;
        let class = &mut self.classes[share.rank as usize];
        class.vtime += span(sectors, class.weights);
        self.forget_passed(at);
    }

    /// Ends the service of the queue with index `at`. The queue still has requests, so it is
    /// returned to the waiting queues, with a new weight and budget.
    pub(super) fn requeue(&mut self, at: usize, weight: u64, budget: u64) {
        let share = &mut self.shares[at];
        share.finish_after(share.service);
        share.start = share.finish;
        let class = &mut self.classes[share.rank as usize];
        class.weights = class.weights - share.weight + weight;
        share.weight = weight;
        share.budget = budget;
        share.finish_after(budget);
        put(&mut class.active, share.finish, at);
    }

    /// Ends the service of the queue with index `at`, which has no more requests.
    pub(super) fn retire(&mut self, at: usize) {
        let share = &mut self.shares[at];
        share.finish_after(share.service);
        let class = &mut self.classes[share.rank as usize];
        if share.finish > class.vtime {
            put(&mut class.idle, share.finish, at);
        } else {
            class.weights -= std::mem::take(&mut share.weight);
        }
    }

    /// In the class of the queue with index `at`, forgets each idle queue whose virtual finish time
    /// has passed.
    fn forget_passed(&mut self, at: usize) {
        let class = &mut self.classes[self.shares[at].rank as usize];
        while let Some((finish, first)) = class.idle.first().copied() {
            if finish > class.vtime {
                return;
            }
            take_at(&mut class.idle, 0);
            class.weights -= std::mem::take(&mut self.shares[first].weight);
        }
    }

    /// Forgets the queue with index `at` if it is idle, and `condition` holds for its state.
    fn forget_if(&mut self, at: usize, condition: impl Fn(&Share) -> bool) {
        let share = &mut self.shares[at];
        if !condition(share) {
            return;
        }
        let class = &mut self.classes[share.rank as usize];
        if take(&mut class.idle, share.finish, at) {
            class.weights -= std::mem::take(&mut share.weight);
        }
        share.finish = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(budgets: &[(u64, u64)]) -> Fair {
        let mut fair = Fair::default();
        for (at, (weight, budget)) in budgets.iter().enumerate() {
            fair.know(at);
            fair.share(at).budget = *budget;
            fair.activate(at, Rank::BestEffort, *weight, None);
        }
        fair
    }

    /// Serves the next queue a whole budget.
    fn serve_next(fair: &mut Fair, weight: impl Fn(usize) -> u64) -> usize {
        let at = fair.next(None).expect("somebody waits");
        let budget = fair.share(at).budget;
        fair.serve(at, budget);
        fair.requeue(at, weight(at), budget);
        fair.share(at).service = 0;
        at
    }

    #[test]
    fn a_span_is_sectors_by_weight_however_many() {
        assert_eq!(span(30, 10), 3 << SHIFT);
        assert_eq!(span(30, 0), 30 << SHIFT);
        let bounds = [1_u64 << 41, (1 << 42) - 1, 1 << 42, u64::MAX];
        for sectors in bounds {
            assert_eq!(span(sectors, 1), u128::from(sectors) << SHIFT, "{sectors}");
        }
    }

    #[test]
    fn service_is_by_weight() {
        // The queue with twice the weight of the other is served two of every three budgets.
        let weight = |at| if at == 0 { 20 } else { 10 };
        let mut fair = with(&[(20, 100), (10, 100)]);
        let served: Vec<usize> = (0..9).map(|_| serve_next(&mut fair, weight)).collect();
        assert_eq!(served.iter().filter(|at| **at == 0).count(), 6);
        // A budget of 100 sectors spans 5 units of virtual time for queue 0 and 10 units for
        // queue 1. Virtual time advances by 100 / 30 = 3.3 units for each served budget. Queue 0
        // has the earlier finish and is served first. Its next virtual start is at 5. Virtual time
        // is then only 3.3, so queue 1 is served next, and after it queue 0 is served twice.
        assert_eq!(served[..6], [0, 1, 0, 0, 1, 0]);
    }

    #[test]
    fn who_was_served_beyond_its_share_waits_for_that_though_it_was_away() {
        // Queue 0 is served 300 sectors in one service while queue 1 waits with a budget of 100.
        // Queue 0 then retires and is activated again. It starts at the virtual finish of its last
        // service, so queue 1 is served 100 sectors three times before queue 0 is eligible again.
        let mut fair = with(&[(10, 300), (10, 100)]);
        // Queue 1 finishes first.
        assert_eq!(serve_next(&mut fair, |_| 10), 1);
        assert_eq!(fair.next(None), Some(0));
        fair.serve(0, 300);
        fair.retire(0);
        fair.share(0).service = 0;
        fair.share(0).budget = 100;
        fair.activate(0, Rank::BestEffort, 10, None);
        let served: Vec<usize> = (0..4).map(|_| serve_next(&mut fair, |_| 10)).collect();
        assert_eq!(served, [1, 1, 0, 1]);
    }

    #[test]
    fn a_higher_class_is_first_unless_another_is_asked_for() {
        let mut fair = Fair::default();
        for (at, rank) in [Rank::Idle, Rank::BestEffort, Rank::RealTime]
            .into_iter()
            .enumerate()
        {
            fair.know(at);
            fair.share(at).budget = 8;
            fair.activate(at, rank, 10, None);
        }
        assert_eq!(fair.next(Some(Rank::Idle)), Some(0));
        assert_eq!(fair.next(Some(Rank::Idle)), Some(2));
        assert_eq!(fair.next(None), Some(1));
        assert_eq!(fair.next(None), None);
    }

    #[test]
    fn weights_are_those_that_are_here_or_owed() {
        let mut fair = with(&[(10, 100), (30, 100)]);
        assert_eq!(fair.classes[1].weights, 40);
        let first = fair.next(None).expect("two wait");
        fair.serve(first, 100);
        fair.retire(first);
        assert_eq!(fair.classes[1].weights, 40, "its end has not been reached");
        let second = fair.next(None).expect("one waits");
        fair.serve(second, 1000);
        assert_eq!(fair.classes[1].weights, 40 - [10, 30][first]);
        fair.retire(second);
        fair.know(2);
        fair.share(2).budget = 8;
        fair.activate(2, Rank::BestEffort, 5, None);
        assert_eq!(fair.next(None), Some(2));
    }
}
