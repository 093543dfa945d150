//! Raised weights: the weight of a queue that is new, or soft real-time like a media player's, is
//! multiplied for a while, so that the queue is served promptly even when other queues are always
//! busy.

use super::super::MS_NS;
use super::Bfq;
use super::flow::Flow;
use super::weight::Raise;

/// Idle time of a queue after which the queue is treated as new again.
const NEW_NS: u64 = 2_000 * MS_NS;
/// `RAISE_TIMES` is the factor by which the weight of a new queue is raised. The weight of a media
/// player's queue is raised by `PLAYER_TIMES` in addition.
const RAISE_TIMES: u64 = 30;
const PLAYER_TIMES: u64 = 100;
/// `PLAYER_SECTORS_PER_S` is the maximum rate of a media player in sectors per second. `PLAYER_NS`
/// is the time for which a player's weight remains raised after each new request.
const PLAYER_SECTORS_PER_S: u64 = 7_000;
const PLAYER_NS: u64 = 300 * MS_NS;
/// Tolerance for the kernel's coarse clock: four ticks at 250 ticks per second.
const TICKS_NS: u64 = 16 * MS_NS;
/// Number of served sectors above which the raise of a new queue ends. The raise is meant for
/// starting programs, and a starting program reads fewer sectors than this.
const RAISED_SECTORS_MAX: u64 = 120_000;

impl Bfq {
    /// Raises the weight of the queue with index `at` if the queue is new, has been idle for long,
    /// or behaves like a media player.
    pub(super) fn raise_on_arrival(&mut self, at: usize, now_ns: u64) {
        let raised_ns = self.rate.raised_ns();
        let flow = &mut self.flows[at];
        if !self.parameters.low_latency || !flow.sync {
            return;
        }
        let is_done = flow.under_way == 0;
        let is_new = is_done
            && flow
                .idle_since_ns
                .is_none_or(|since_ns| since_ns + NEW_NS < now_ns);
        let is_player = is_done && flow.soft_real_time_ns < now_ns && flow.plain_weight() == 40;
        let was_up = flow.raise.is_up();
        if !is_new && !is_player {
            // In the usual case, the queue is neither new nor that of a media player. Its weight is
            // then not raised, and an earlier raise stays as it is.
            if !was_up {
                flow.raise.began_ns = now_ns;
            }
            return;
        }
        let player = Raise::new(RAISE_TIMES * PLAYER_TIMES, PLAYER_NS, true, now_ns);
        let old = flow.raise;
        flow.raise = match (was_up, is_new) {
            (false, true) => Raise::new(RAISE_TIMES, raised_ns, false, now_ns),
            (true, true) => Raise {
                sectors: old.sectors,
                ..Raise::new(RAISE_TIMES, raised_ns, false, now_ns)
            },
            (false, false) => player,
            (true, false) if !old.is_soft_real_time => Raise {
                before_ns: Some(old.began_ns),
                sectors: old.sectors,
                ..player
            },
            (true, false) => Raise {
                began_ns: now_ns,
                ..old
            },
        };
        if !was_up {
            let budget_max = 2 * self.budget_min();
            let share = self.fair.share(at);
            share.budget = share.budget.min(budget_max);
        }
    }

    /// Ends the raise of the queue with index `at` if the time of the raise has passed, or if the
    /// queue was raised as a new queue and has been served too many sectors.
    pub(super) fn lower(&mut self, at: usize, now_ns: u64) {
        let raise = &self.flows[at].raise;
        if !raise.is_up() {
            return;
        }
        let is_over = now_ns > raise.began_ns.saturating_add(raise.for_ns);
        let is_too_much = !raise.is_soft_real_time && raise.sectors > RAISED_SECTORS_MAX;
        if !is_over && !is_too_much {
            return;
        }
        let (raise, raised_ns) = (*raise, self.rate.raised_ns());
        let lowered = Raise {
            began_ns: now_ns,
            ..Raise::default()
        };
        // The raise of a player as a new queue may continue.
        let before_ns = raise
            .before_ns
            .filter(|since_ns| now_ns <= since_ns + raised_ns);
        if is_over
            && raise.is_soft_real_time
            && let Some(began_ns) = before_ns
        {
            let raise = Raise {
                sectors: raise.sectors,
                ..Raise::new(RAISE_TIMES, raised_ns, false, began_ns)
            };
            self.set_raise(at, raise);
        } else {
            self.set_raise(at, lowered);
        }
    }

    /// Sets the raise of the queue with index `at`, and updates the counters of busy queues if the
    /// queue is busy.
    pub(super) fn set_raise(&mut self, at: usize, raise: Raise) {
        let flow = &mut self.flows[at];
        if flow.is_busy {
            self.busy.remove(flow);
        }
        flow.raise = raise;
        if flow.is_busy {
            self.busy.add(flow);
        }
    }
}

/// Returns a time. If the next request of the task arrives after this time, the task is treated as
/// a media player. A player at the maximum rate would need until this time to consume the data
/// served. The time is never earlier than `now_ns` plus `idle_ns` plus four ticks.
pub(super) fn player_ns(flow: &Flow, idle_ns: u64, now_ns: u64) -> u64 {
    let used_ns = flow.busy_sectors * 1_000 * MS_NS / PLAYER_SECTORS_PER_S;
    (flow.busy_since_ns + used_ns).max(now_ns + idle_ns + TICKS_NS)
}
