//! BFQ: every task has its own queue for its sync requests. The queues are served in budgets of
//! sectors, in proportion to their weights, so that a task's share does not depend on the layout of
//! its requests. The weight of a new queue is raised for a while. The weight of a queue with soft
//! real-time requests, such as those of a media player, is also raised.
//!
//! Source: `block/bfq-iosched.c` and `block/bfq-wf2q.c` of Linux 6.1, for one group. Not
//! implemented: merging of queues whose requests interleave, bursts of new queues, request
//! injection during a pause, and detection of queues that wake other queues.

mod busy;
mod fair;
mod flow;
mod raise;
mod rate;
mod weight;

use super::head::Head;
use super::lanes::{Expiries, Lane};
use super::queues::{ASYNC_QUEUES, Queues, Rank, queue_of, share_queue};
use super::{Bio, DispatchList, MS_NS, Requests, Scheduler, Tag, Task};
use busy::Busy;
use fair::Fair;
use flow::{Flow, is_seeky};
use raise::player_ns;
use rate::Rate;
use weight::Raise;

/// Maximum budget, in sectors, before the rate of the device has been measured.
const BUDGET_SECTORS: u64 = 16 * 1024;
/// Ratio of the maximum budget to the minimum budget.
const BUDGET_PARTS: u64 = 32;
/// Minimum value of the budget counter at which budgets are limited to the measured maximum budget.
/// The counter approaches 256 with every service.
const BUDGETS_KNOWN: u64 = 194;
/// Number of sectors that the budget of a queue is charged for each sector of an async request, if
/// the busy queues do not differ in class or weight.
const ASYNC_CHARGE: u64 = 3;
/// Maximum pause for a seeky queue. A queue whose service was too short to measure is charged for
/// at least this time.
const SHORT_PAUSE_NS: u64 = 2 * MS_NS;
/// Minimum pause for a queue whose weight is raised.
const RAISED_PAUSE_NS: u64 = 20 * MS_NS;
/// A queue is judged slow by its throughput only if its service took longer than `SLOW_NS`. The
/// duration of a service shorter than `TOO_SHORT_NS` is not used as a measurement.
const SLOW_NS: u64 = 20 * MS_NS;
const TOO_SHORT_NS: u64 = MS_NS;
/// Time without service after which the idle class is served even if other classes have requests.
const IDLE_CLASS_NS: u64 = 200 * MS_NS;
/// If the device has had more than `DEVICE_QUEUES` requests at a time within `DEVICE_SAMPLES`
/// samples, it is known to have an internal queue.
const DEVICE_QUEUES: usize = 3;
const DEVICE_SAMPLES: u64 = 32;

/// Parameters of BFQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfqParameters {
    /// Maximum time for which the device is kept idle for a queue (a pause); 0 disables pauses.
    pub slice_idle_ns: u64,
    /// Expiry age of a sync request. Once in each service of a queue, the oldest request of the
    /// queue is checked, and is dispatched next if it has expired.
    pub fifo_expire_sync_ns: u64,
    /// Expiry age of an async request, which is checked in the same way as that of a sync request
    /// (`fifo_expire_sync_ns`).
    pub fifo_expire_async_ns: u64,
    /// Distance behind the head, in sectors, beyond which a request is left for the next sweep.
    pub back_seek_sectors_max: u64,
    /// Factor by which the cost of a backward seek is multiplied.
    pub back_seek_penalty: u64,
    /// Time after which the service of a queue ends even if budget is left.
    pub timeout_sync_ns: u64,
    /// Maximum budget of a queue; 0 selects the number of sectors that the device can serve in
    /// `timeout_sync_ns`.
    pub max_budget_sectors: u64,
    /// True to raise the weights of queues that are new or soft real-time.
    pub low_latency: bool,
    /// True to keep the device idle for a queue at every pause, even if that costs throughput.
    pub strict_guarantees: bool,
    /// True for a device with moving heads. The kernel obtains this value from the device.
    pub rotational: bool,
}

impl Default for BfqParameters {
    /// Returns a pause of 8 ms, expiry ages of 125 ms and 250 ms, backward seeks of at most 16 MiB
    /// at a penalty of 2, a timeout of 124 ms, a measured maximum budget, and low latency on a
    /// rotating disk.
    fn default() -> BfqParameters {
        BfqParameters {
            slice_idle_ns: 8 * MS_NS,
            fifo_expire_sync_ns: 125 * MS_NS,
            fifo_expire_async_ns: 250 * MS_NS,
            back_seek_sectors_max: 2 * 16_384,
            back_seek_penalty: 2,
            timeout_sync_ns: 124 * MS_NS,
            max_budget_sectors: 0,
            low_latency: true,
            strict_guarantees: false,
            rotational: true,
        }
    }
}

/// The reason that the service of a queue ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    TooIdle,
    Timeout,
    Exhausted,
    NoMoreRequests,
    Preempted,
}

/// The next step of the served queue.
enum Step {
    /// Dispatch the request with the given tag, and charge the given number of sectors to the
    /// budget.
    Dispatch(Tag, u64),
    Wait,
    End(Reason),
}

/// Samples of the device's queue depth, which show whether the device has an internal queue.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceQueue {
    samples: u64,
    deepest: usize,
    /// True if the device has an internal queue, false if not, `None` until enough samples exist.
    seen: Option<bool>,
}

/// Linux 6.1's BFQ.
#[derive(Clone, Debug)]
pub struct Bfq {
    parameters: BfqParameters,
    flows: Vec<Flow>,
    fair: Fair,
    /// Queues that want service.
    busy: Busy,
    expiries: Expiries,
    rate: Rate,
    budget_max: u64,
    /// Counter of the budgets granted, which approaches 256.
    budgets: u64,
    /// Index of the queue being served. `served_since_ns` is the time at which its service began.
    served: Option<usize>,
    served_since_ns: u64,
    /// Start and end of the current pause, during which the device is kept idle for the queue being
    /// served, which is empty.
    pause_ns: Option<(u64, u64)>,
    idle_class_ns: u64,
    device: DeviceQueue,
    /// Number of requests that wait.
    waiting: usize,
    /// Number of requests on the list or with the device.
    under_way: usize,
    /// The sector after the end of the last dispatched request.
    head_sector: u64,
}

impl Bfq {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: BfqParameters) -> Bfq {
        let mut bfq = Bfq {
            parameters,
            flows: Vec::new(),
            fair: Fair::default(),
            busy: Busy::default(),
            expiries: Expiries::new(tags),
            rate: Rate::new(parameters.rotational),
            budget_max: match parameters.max_budget_sectors {
                0 => BUDGET_SECTORS,
                sectors => sectors,
            },
            budgets: 0,
            served: None,
            served_since_ns: 0,
            pause_ns: None,
            idle_class_ns: 0,
            device: DeviceQueue::default(),
            waiting: 0,
            under_way: 0,
            head_sector: 0,
        };
        bfq.know(ASYNC_QUEUES - 1);
        bfq
    }

    fn know(&mut self, at: usize) {
        // Every request calls this function, so the default queue is created only when the array
        // must grow.
        if at >= self.flows.len() {
            crate::lists::grow(&mut self.flows, at + 1, Flow::default());
            self.fair.know(at);
        }
    }

    /// Returns the current weight of a task's queue; `None` before the task's first request.
    #[cfg(test)]
    pub(super) fn weight_of_task(&self, task: Task) -> Option<u64> {
        let flow = self.flows.get(ASYNC_QUEUES + task as usize)?;
        Some(flow.weight())
    }

    fn head(&self) -> Head {
        Head {
            sector: self.head_sector,
            back_sectors_max: self.parameters.back_seek_sectors_max,
            back_penalty: self.parameters.back_seek_penalty,
        }
    }

    fn budget_min(&self) -> u64 {
        let max = if self.budgets < BUDGETS_KNOWN {
            BUDGET_SECTORS
        } else {
            self.budget_max
        };
        (max / BUDGET_PARTS).max(1)
    }

    /// Returns the number of sectors charged for one sector of an async request: 1 if the busy
    /// queues differ in class or weight, otherwise [`ASYNC_CHARGE`].
    fn async_charge(&self) -> u64 {
        if self.busy.is_uneven(None) {
            1
        } else {
            ASYNC_CHARGE
        }
    }

    fn charge(&self, at: usize, r: &Requests) -> Option<u64> {
        self.flows[at].charge(r, || self.async_charge())
    }

    /// Returns true if keeping the device idle for the queue with index `at` is worthwhile while
    /// the queue is empty.
    fn is_better_to_pause(&self, at: usize) -> bool {
        let flow = &self.flows[at];
        if self.parameters.strict_guarantees {
            return true;
        }
        if self.parameters.slice_idle_ns == 0 || !flow.sync || flow.rank == Rank::Idle {
            return false;
        }
        !flow.has_exited() && (self.is_faster_to_pause(at) || self.is_fairer_to_pause(at))
    }

    fn is_faster_to_pause(&self, at: usize) -> bool {
        let without_queue = self.device.seen == Some(false);
        let disk_alone = self.parameters.rotational && without_queue;
        let gains = self.parameters.rotational || without_queue;
        let is_faster = disk_alone || (gains && self.flows[at].is_stream());
        is_faster && self.busy.raised() == 0
    }

    fn is_fairer_to_pause(&self, at: usize) -> bool {
        let flow = &self.flows[at];
        let others_are_in_the_way =
            self.busy.raised() < self.busy.len() || self.under_way >= flow.under_way + 4;
        (flow.raise.is_up() && others_are_in_the_way)
            || self.busy.is_uneven(Some(&self.flows[at]))
            || self.busy.len() == 1
    }

    /// Returns true if the service of the queue with index `at` has reached its timeout. While the
    /// scheduler pauses for this queue, there is a second condition: at least a third of the
    /// queue's budget must be left.
    fn may_time_out(&self, at: usize, now_ns: u64) -> bool {
        let budget = self.fair.budget(at);
        let is_due = now_ns >= self.flows[at].budget_until_ns;
        is_due && (self.pause_ns.is_none() || self.fair.left(at) >= budget / 3)
    }

    fn must_pause(&self, at: usize) -> bool {
        self.flows[at].is_empty() && self.is_better_to_pause(at)
    }

    /// Returns the queue to be served, its request to dispatch, and the charge to its budget;
    /// `None` if no request should be dispatched now.
    fn select(&mut self, r: &Requests, now_ns: u64) -> Option<(usize, Tag, u64)> {
        self.end_pause(r, now_ns);
        if let Some(at) = self.served
            && self.may_time_out(at, now_ns)
            && !self.must_pause(at)
        {
            self.end_service(at, Reason::Timeout, false, r, now_ns);
        }
        loop {
            let at = match self.served {
                Some(at) => at,
                None => self.begin_service(r, now_ns)?,
            };
            match self.step(at, r) {
                Step::Dispatch(tag, charge) => {
                    self.pause_ns = None;
                    return Some((at, tag, charge));
                }
                Step::Wait => return None,
                Step::End(reason) => self.end_service(at, reason, false, r, now_ns),
            }
        }
    }

    fn step(&self, at: usize, r: &Requests) -> Step {
        let flow = &self.flows[at];
        if let (Some(tag), Some(charge)) = (flow.next, self.charge(at, r)) {
            return match charge > self.fair.left(at) {
                true => Step::End(Reason::Exhausted),
                false => Step::Dispatch(tag, charge),
            };
        }
        let waits = self.pause_ns.is_some() || flow.under_way > 0 && self.is_better_to_pause(at);
        if waits {
            Step::Wait
        } else {
            Step::End(Reason::NoMoreRequests)
        }
    }

    /// Ends a pause whose time is over.
    fn end_pause(&mut self, r: &Requests, now_ns: u64) {
        let is_over = self
            .pause_ns
            .is_some_and(|(_, until_ns)| now_ns >= until_ns);
        let Some(at) = self.served.filter(|_| is_over) else {
            return;
        };
        if now_ns >= self.flows[at].budget_until_ns {
            self.end_service(at, Reason::Timeout, true, r, now_ns);
        } else if self.flows[at].is_empty() {
            self.end_service(at, Reason::TooIdle, true, r, now_ns);
        }
        self.pause_ns = None;
    }

    fn begin_service(&mut self, r: &Requests, now_ns: u64) -> Option<usize> {
        let mut rank = None;
        if now_ns.saturating_sub(self.idle_class_ns) > IDLE_CLASS_NS {
            rank = Some(Rank::Idle).filter(|rank| self.fair.has(*rank));
            self.idle_class_ns = now_ns;
        }
        let at = self.fair.next(rank)?;
        self.budgets = (self.budgets * 7 + 256) / 8;
        self.served = Some(at);
        self.served_since_ns = now_ns;
        // The budget was granted for the queue's next request. A merge might have made this request
        // longer than the budget, so the budget is raised to the charge for the request.
        if let Some(charge) = self.charge(at, r) {
            let share = self.fair.share(at);
            share.budget = share.budget.max(charge);
        }
        let flow = &mut self.flows[at];
        flow.looked = false;
        let times = match flow.raise.is_soft_real_time {
            true => 1,
            false => flow.raise.factor(),
        };
        flow.budget_until_ns = now_ns.saturating_add(self.parameters.timeout_sync_ns * times);
        Some(at)
    }

    /// Ends the service of the queue with index `at`. `paused` is true if the service ends with a
    /// pause in which the queue made no request; the time of the pause is then not charged.
    fn end_service(&mut self, at: usize, reason: Reason, paused: bool, r: &Requests, now_ns: u64) {
        self.charge_time(at, reason, paused, now_ns);
        let low_latency = self.parameters.low_latency;
        let idle_ns = self.parameters.slice_idle_ns;
        let flow = &mut self.flows[at];
        if low_latency && !flow.raise.is_up() {
            flow.raise.began_ns = now_ns;
        }
        if low_latency && flow.is_empty() {
            flow.computes_later = flow.under_way > 0;
            if !flow.computes_later {
                flow.soft_real_time_ns = player_ns(flow, idle_ns, now_ns);
            }
        }
        let budget = self.next_budget(at, reason);
        let flow = &mut self.flows[at];
        flow.budget_next = budget;
        let has_ended = flow.is_empty();
        if has_ended {
            flow.is_busy = false;
            if flow.under_way == 0 {
                flow.idle_since_ns = Some(now_ns);
            }
            self.busy.remove(&self.flows[at]);
            self.fair.retire(at);
        } else {
            let weight = flow.weight();
            let budget = budget.max(self.charge(at, r).unwrap_or(0));
            self.fair.requeue(at, weight, budget);
        }
        (self.served, self.pause_ns) = (None, None);
        let may_come_back = has_ended && !matches!(reason, Reason::Timeout | Reason::Exhausted);
        if may_come_back {
            self.flows[at].may_come_back = true;
        } else {
            self.fair.share(at).service = 0;
        }
    }

    /// Charges the queue with index `at` for time instead of sectors if the queue is slow, or if
    /// its service timed out with much of the budget unused. Without this charge such a queue would
    /// get more device time than other queues.
    fn charge_time(&mut self, at: usize, reason: Reason, paused: bool, now_ns: u64) {
        let flow = &self.flows[at];
        let end_ns = match self.pause_ns {
            Some((since_ns, _)) if paused => since_ns,
            _ => now_ns,
        };
        let served_ns = end_ns.saturating_sub(self.served_since_ns);
        let share = self.fair.share(at);
        let service = share.service;
        let is_slow = flow.sync
            && match served_ns {
                0..=SLOW_NS => flow.is_seeky(),
                _ => service < self.budget_max / 2,
            };
        let is_late = reason == Reason::Timeout && share.left() >= share.budget / 3;
        if flow.raise.is_up() || !(is_slow || is_late) {
            return;
        }
        let charged_ns = match served_ns {
            0..TOO_SHORT_NS if flow.sync && self.parameters.rotational => {
                self.parameters.slice_idle_ns
            }
            0..TOO_SHORT_NS if flow.sync => SHORT_PAUSE_NS,
            _ if flow.sync => served_ns,
            _ => 0,
        };
        if charged_ns < MS_NS {
            // Only whole milliseconds count.
            return;
        }
        let timeout_ms = (self.parameters.timeout_sync_ns / MS_NS).max(1);
        let charged_ms = (charged_ns / MS_NS).min(timeout_ms);
        let charged = self.budget_max * charged_ms / timeout_ms;
        if charged > service {
            self.fair.serve(at, charged - service);
        }
        let share = self.fair.share(at);
        share.budget = share.budget.max(charged);
    }

    /// Returns the next budget of the queue with index `at`, whose last service ended for `reason`.
    fn next_budget(&mut self, at: usize, reason: Reason) -> u64 {
        let (min, max) = (self.budget_min(), self.budget_max);
        let service = self.fair.share(at).service;
        let flow = &self.flows[at];
        let old = if flow.raise.is_up() {
            2 * min
        } else {
            flow.budget_next
        };
        let budget = if !flow.sync {
            max
        } else if flow.raise.is_up() {
            old
        } else {
            match reason {
                // Requests of the queue are still in flight; its task probably continues when they
                // complete.
                Reason::TooIdle if flow.under_way > 0 => max.min(old * 2),
                Reason::TooIdle if old > 5 * min => old - 4 * min,
                Reason::TooIdle => min,
                Reason::Timeout => max.min(old * 2),
                Reason::Exhausted => max.min(old * 4),
                Reason::NoMoreRequests => service.max(min),
                Reason::Preempted => return flow.budget_next,
            }
        };
        let is_known = self.budgets >= BUDGETS_KNOWN && self.parameters.max_budget_sectors == 0;
        if is_known { budget.min(max) } else { budget }
    }

    /// Activates the queue with index `at`, which has a request again. Returns true if the queue
    /// continues with the unused part of its last budget.
    fn begin_asking(&mut self, at: usize, r: &Requests, now_ns: u64) -> bool {
        let in_time_ns = 3 * self.parameters.slice_idle_ns;
        let charge = self.charge(at, r).unwrap_or(0);
        let left = self.fair.left(at);
        let flow = &mut self.flows[at];
        let in_time = flow
            .ended_ns
            .is_none_or(|ended_ns| now_ns <= ended_ns + in_time_ns);
        let comes_back = std::mem::take(&mut flow.may_come_back) && in_time && left > 0;
        let budget = match comes_back {
            true => left.min(flow.budget_next),
            false => flow.budget_next.max(charge),
        };
        let share = self.fair.share(at);
        (share.service, share.budget) = (0, budget);
        self.raise_on_arrival(at, now_ns);
        let flow = &mut self.flows[at];
        flow.is_busy = true;
        let shifted = comes_back.then(|| flow.raise.factor());
        self.fair.activate(at, flow.rank, flow.weight(), shifted);
        flow.began(now_ns);
        self.busy.add(flow);
        comes_back
    }

    /// Returns true if the queue with index `at`, which was just activated, preempts the queue
    /// being served. `comes_back` is true if `at` continues with the unused part of its last
    /// budget.
    fn preempts(&self, at: usize, comes_back: bool) -> bool {
        let Some(served) = self.served.filter(|served| *served != at) else {
            return false;
        };
        let (old, new) = (&self.flows[served], &self.flows[at]);
        let comes_back = comes_back && new.raise.factor() >= old.raise.factor();
        comes_back || new.rank < old.rank || (new.rank == old.rank && new.weight() > old.weight())
    }

    /// Ends the pause for the queue with index `at`, for which a request arrived.
    fn resume(&mut self, at: usize, r: &Requests, now_ns: u64) {
        self.pause_ns = None;
        if now_ns >= self.flows[at].budget_until_ns {
            self.end_service(at, Reason::Timeout, false, r, now_ns);
        }
    }

    /// Removes the request `tag` from the waiting requests of the queue with index `at`, and counts
    /// it as in flight. The request has already been charged to the queue's budget.
    fn send_out(&mut self, at: usize, tag: Tag, r: &Requests, now_ns: u64) {
        let bio = r[tag].bio;
        let sectors = u64::from(bio.sectors);
        self.take_out(tag, at, r, now_ns);
        let flow = &mut self.flows[at];
        flow.lane.remove(tag, bio.start_sector, &mut self.expiries);
        flow.under_way += 1;
        flow.raise.sectors += sectors;
        flow.busy_sectors += sectors;
        let is_seeky = is_seeky(self.head_sector, &bio, self.parameters.rotational);
        let changed = self
            .rate
            .dispatched(sectors, is_seeky, self.under_way, now_ns);
        if changed && self.parameters.max_budget_sectors == 0 {
            self.budget_max = self.rate.sectors_in(self.parameters.timeout_sync_ns).max(1);
        }
        self.under_way += 1;
        self.head_sector = bio.end_sector();
        self.lower(at, now_ns);
        if self.busy.len() > 1 && self.flows[at].rank == Rank::Idle {
            self.end_service(at, Reason::Exhausted, false, r, now_ns);
        }
    }

    /// Removes the request `tag` from the counters of the queue with index `at`; the request
    /// remains in the queue's lane.
    fn take_out(&mut self, tag: Tag, at: usize, r: &Requests, now_ns: u64) {
        let head = Head {
            sector: r[tag].bio.end_sector(),
            ..self.head()
        };
        let flow = &mut self.flows[at];
        if flow.next == Some(tag) {
            let expired = flow.expired_once(tag, &self.expiries, now_ns);
            flow.next = expired.or_else(|| head.better_following(tag, &flow.lane.sorted, r));
        }
        self.waiting -= 1;
    }

    /// Samples the number of requests that are at the device at the same time.
    fn note_depth(&mut self) {
        let device = &mut self.device;
        device.deepest = device.deepest.max(self.under_way);
        if device.seen == Some(true) || self.under_way + self.waiting <= DEVICE_QUEUES {
            return;
        }
        // The sample is not used while the scheduler itself keeps the device idle for a queue: a
        // low queue depth then does not show that the device has no internal queue.
        if let Some(at) = self.served {
            let flow = &self.flows[at];
            let has_few = flow.under_way + flow.lane.len() < DEVICE_QUEUES;
            if flow.thinks_short() && has_few && self.under_way < DEVICE_QUEUES {
                return;
            }
        }
        device.samples += 1;
        if device.samples > DEVICE_SAMPLES {
            device.seen = Some(device.deepest > DEVICE_QUEUES);
            (device.samples, device.deepest) = (0, 0);
        }
    }

    /// Begins a pause: keeps the device idle for the queue being served, which has no more
    /// requests.
    fn begin_pause(&mut self, at: usize, now_ns: u64) {
        let flow = &self.flows[at];
        let idle_ns = self.parameters.slice_idle_ns;
        let pause_ns = if flow.raise.is_up() {
            idle_ns.max(RAISED_PAUSE_NS)
        } else if flow.is_seeky() && !self.busy.is_uneven(Some(&self.flows[at])) {
            idle_ns.min(SHORT_PAUSE_NS)
        } else {
            idle_ns
        };
        self.pause_ns = Some((now_ns, now_ns + pause_ns));
    }
}

impl Queues for Bfq {
    fn lane(&self, queue: usize) -> Option<&Lane> {
        self.flows.get(queue).map(|flow| &flow.lane)
    }
}

impl Scheduler for Bfq {
    fn name(&self) -> &'static str {
        "bfq"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let bio = requests[tag].bio;
        let at = queue_of(&bio);
        self.know(at);
        let p = self.parameters;
        let expire_ns = match bio.is_sync() {
            true => p.fifo_expire_sync_ns,
            false => p.fifo_expire_async_ns,
        };
        let first_budget = 2 * self.budget_max / 3;
        let head = self.head();
        let flow = &mut self.flows[at];
        flow.set_owner(&bio, first_budget, now_ns);
        flow.note_request(&bio, p.rotational, p.slice_idle_ns, now_ns);
        let is_no_player = flow.raise.is_soft_real_time && flow.is_all_seeks();
        let expires_ns = now_ns.saturating_add(expire_ns);
        flow.lane
            .add(tag, bio.start_sector, &mut self.expiries, expires_ns);
        flow.next = head.better(Some(tag), flow.next, requests);
        let was_busy = flow.is_busy;
        if is_no_player {
            self.set_raise(at, Raise::default());
        }
        self.waiting += 1;
        if !was_busy {
            let comes_back = self.begin_asking(at, requests, now_ns);
            if self.preempts(at, comes_back)
                && let Some(served) = self.served
            {
                self.end_service(served, Reason::Preempted, false, requests, now_ns);
            }
        } else if self.served == Some(at) && self.pause_ns.is_some() {
            self.resume(at, requests, now_ns);
        }
    }

    fn front_candidate(&self, bio: &Bio, _: &Requests) -> Option<Tag> {
        self.starting_behind(bio)
    }

    fn may_merge(&self, tag: Tag, bio: &Bio, requests: &Requests) -> bool {
        share_queue(tag, bio, requests)
    }

    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        self.before(tag, requests)
    }

    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        self.after(tag, requests)
    }

    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let bio = requests[tag].bio;
        let lane = &mut self.flows[queue_of(&bio)].lane;
        lane.moved(tag, old_start_sector, bio.start_sector);
    }

    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests) {
        let bio = requests[absorbed].bio;
        let flow = &mut self.flows[queue_of(&bio)];
        flow.next = flow
            .next
            .map(|next| if next == absorbed { survivor } else { next });
        self.waiting -= 1;
        let lane = &mut flow.lane;
        lane.absorbed(survivor, absorbed, bio.start_sector, &mut self.expiries);
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        let Some((at, tag, charge)) = self.select(requests, now_ns) else {
            return false;
        };
        self.fair.serve(at, charge);
        list.push(tag, requests);
        self.send_out(at, tag, requests, now_ns);
        true
    }

    fn completed(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let at = queue_of(&requests[tag].bio);
        self.note_depth();
        self.under_way -= 1;
        self.rate.completed(now_ns);
        let idle_ns = self.parameters.slice_idle_ns;
        let flow = &mut self.flows[at];
        flow.under_way -= 1;
        flow.ended_ns = Some(now_ns);
        let has_ended = flow.under_way == 0 && flow.is_empty();
        if has_ended && !flow.is_busy {
            flow.idle_since_ns = Some(now_ns);
        }
        if has_ended && std::mem::take(&mut flow.computes_later) {
            flow.soft_real_time_ns = player_ns(flow, idle_ns, now_ns);
        }
        let is_over = flow.is_empty();
        let none_under_way = flow.under_way == 0;
        if self.served != Some(at) {
            return;
        }
        if self.must_pause(at) {
            if none_under_way && self.pause_ns.is_none() {
                self.begin_pause(at, now_ns);
            }
        } else if self.may_time_out(at, now_ns) {
            self.end_service(at, Reason::Timeout, false, requests, now_ns);
        } else if is_over && (none_under_way || !self.is_better_to_pause(at)) {
            self.end_service(at, Reason::NoMoreRequests, false, requests, now_ns);
        }
    }

    fn task_exited(&mut self, task: Task) {
        let at = ASYNC_QUEUES + task as usize;
        self.know(at);
        self.flows[at].exit();
    }

    fn wake_at_ns(&self) -> Option<u64> {
        let until_ns = self.pause_ns.map(|(_, until_ns)| until_ns);
        until_ns.filter(|_| self.waiting > 0)
    }

    fn waiting(&self) -> usize {
        self.waiting
    }
}
