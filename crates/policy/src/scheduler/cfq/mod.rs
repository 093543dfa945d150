//! CFQ: every task has its own queue for its sync requests. The queues get the device in turn, each
//! for a time slice, and keep the device through short pauses within the slice.
//!
//! Source: `block/cfq-iosched.c` of Linux 2.6.26 (CFQ version 3).

mod flow;

use super::head::Head;
use super::lanes::{Expiries, Lane};
use super::means::Mean;
use super::queues::{ASYNC_QUEUES, Queues, Rank, queue_of, share_queue};
use super::{Bio, DispatchList, MS_NS, Requests, Scheduler, Tag, Task};
use flow::Flow;

/// Number of priority levels of a class.
const LEVELS: u64 = 8;
/// Total sample weight above which a mean is valid. The total weight is above this value from the
/// third sample on.
const VALID: u64 = 80;
/// Mean seek distance, in sectors, above which a task is seeky.
const SEEKY_SECTORS: u64 = 8192;
/// The longest pause of a seeky task.
const SEEKY_IDLE_NS: u64 = 2 * MS_NS;
/// In the order in which queues are served, a queue of the idle class is placed this long after the
/// last queue of the other classes.
const IDLE_DELAY_NS: u64 = 200 * MS_NS;
/// A device that has had more than this number of requests in progress at once is known to have an
/// internal queue.
const DEVICE_QUEUES: usize = 4;

/// Parameters of CFQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CfqParameters {
    /// Maximum number of requests that a queue dispatches in one round. While other queues wait, a
    /// queue with this number of requests in flight begins no further round.
    pub quantum: u64,
    /// Expiry age of a sync request. Once in each slice, the oldest request of the queue is
    /// checked, and is dispatched first if it has expired.
    pub fifo_expire_sync_ns: u64,
    /// Expiry age of an async request; it is checked and used in the same way as the expiry age of
    /// a sync request.
    pub fifo_expire_async_ns: u64,
    /// Distance behind the head, in sectors, beyond which a request is left for the next sweep.
    pub back_seek_sectors_max: u64,
    /// Factor by which the cost of a backward seek is multiplied.
    pub back_seek_penalty: u64,
    /// Length of the time slice of a sync queue at priority level 4.
    pub slice_sync_ns: u64,
    /// Length of the time slice of an async queue at priority level 4.
    pub slice_async_ns: u64,
    /// Half of the maximum number of requests in a slice of an async queue at priority level 7.
    pub slice_async_rq: u64,
    /// Maximum time for which the device is kept idle for a sync queue; 0 disables this.
    pub slice_idle_ns: u64,
}

impl Default for CfqParameters {
    /// Returns a quantum of 4, expiry ages of 125 ms and 250 ms, backward seeks of at most 16 MiB
    /// at a penalty of 2, slices of 100 ms (sync) and 40 ms (async), 2 requests for an async slice,
    /// and 8 ms of idling.
    fn default() -> CfqParameters {
        CfqParameters {
            quantum: 4,
            fifo_expire_sync_ns: 125 * MS_NS,
            fifo_expire_async_ns: 250 * MS_NS,
            back_seek_sectors_max: 2 * 16_384,
            back_seek_penalty: 2,
            slice_sync_ns: 100 * MS_NS,
            slice_async_ns: 40 * MS_NS,
            slice_async_rq: 2,
            slice_idle_ns: 8 * MS_NS,
        }
    }
}

impl CfqParameters {
    /// Returns the length of a queue's time slice: the slice of level 4, plus a fifth of it for
    /// each more urgent level, minus a fifth of it for each less urgent level.
    fn slice_ns(&self, sync: bool, level: u64) -> u64 {
        let base_ns = if sync {
            self.slice_sync_ns
        } else {
            self.slice_async_ns
        };
        base_ns / 5 * (5 + 4 - level)
    }
}

/// The history of a task.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    exited: bool,
    /// Time at which the task's most recent sync request completed.
    ended_ns: Option<u64>,
    /// The sector after the end of the task's last sync request.
    end_sector: Option<u64>,
    think_ns: Mean,
    seek_sectors: Mean,
}

impl History {
    fn is_seeky(&self) -> bool {
        let mean = self.seek_sectors.get();
        mean.is_some_and(|mean| mean > SEEKY_SECTORS)
    }
}

/// Linux 2.6.26's CFQ.
#[derive(Clone, Debug)]
pub struct Cfq {
    parameters: CfqParameters,
    flows: Vec<Flow>,
    /// Queues with requests, in the order in which they get slices.
    busy: Vec<(Rank, u64, usize)>,
    expiries: Expiries,
    tasks: Vec<History>,
    /// The queue that has the device.
    active: Option<usize>,
    /// While the active queue has no requests, the device is kept idle for that queue until this
    /// time.
    idle_until_ns: Option<u64>,
    /// Number of requests that wait.
    waiting: usize,
    /// Number of requests with the device.
    issued: usize,
    /// Number of sync requests on the list or with the device.
    sync_under_way: usize,
    /// True once the device has had more than [`DEVICE_QUEUES`] requests in progress at once, which
    /// shows that it has an internal queue.
    device_queues: bool,
    /// The sector after the end of the last issued request.
    head_sector: u64,
}

impl Cfq {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: CfqParameters) -> Cfq {
        Cfq {
            parameters,
            flows: vec![Flow::default(); ASYNC_QUEUES],
            busy: Vec::new(),
            expiries: Expiries::new(tags),
            tasks: Vec::new(),
            active: None,
            idle_until_ns: None,
            waiting: 0,
            issued: 0,
            sync_under_way: 0,
            device_queues: false,
            head_sector: 0,
        }
    }

    fn head(&self) -> Head {
        Head {
            sector: self.head_sector,
            back_sectors_max: self.parameters.back_seek_sectors_max,
            back_penalty: self.parameters.back_seek_penalty,
        }
    }

    /// Inserts a queue into the sorted list of queues with requests.
    fn file(&mut self, at: usize) {
        let entry = self.entry(at);
        let place = self.busy.partition_point(|other| *other < entry);
        self.busy.insert(place, entry);
    }

    /// Removes a queue from the sorted list of queues with requests.
    fn unfile(&mut self, at: usize) {
        let place = self.busy.binary_search(&self.entry(at));
        self.busy
            .remove(place.expect("a queue with requests is filed under its key"));
    }

    fn entry(&self, at: usize) -> (Rank, u64, usize) {
        let flow = &self.flows[at];
        (flow.rank, flow.key_ns, at)
    }

    /// Sets the position of the queue with index `at` in the order of slices. With `in_front`, the
    /// queue is served before the other queues of its class, unless it is of the idle class.
    fn place(&mut self, at: usize, in_front: bool, now_ns: u64) {
        let flow = &self.flows[at];
        let key_ns = if flow.rank == Rank::Idle {
            let others = self.busy.iter().filter(|(_, _, of)| *of != at);
            let last_ns = others.map(|(_, key_ns, _)| *key_ns).max();
            last_ns.unwrap_or(now_ns) + IDLE_DELAY_NS
        } else if in_front {
            0
        } else {
            let own_ns = self.parameters.slice_ns(flow.sync, flow.level);
            let longest_ns = self.parameters.slice_ns(true, 0);
            let others = (self.busy.len() as u64).saturating_sub(1);
            let offset_ns = others * longest_ns.saturating_sub(own_ns);
            now_ns + offset_ns + flow.residual_ns
        };
        self.unfile(at);
        let flow = &mut self.flows[at];
        flow.key_ns = key_ns;
        if !in_front && flow.rank != Rank::Idle {
            flow.residual_ns = 0;
        }
        self.file(at);
    }

    /// Ends the slice of the active queue. If `early`, the unused time of the slice is remembered
    /// and added to the queue's next position in the order of service, as Linux 2.6.26 does.
    fn expire(&mut self, early: bool, now_ns: u64) {
        self.idle_until_ns = None;
        let Some(at) = self.active.take() else {
            return;
        };
        let flow = &mut self.flows[at];
        if let Some(end_ns) = flow.slice_end_ns.filter(|_| early) {
            flow.residual_ns = end_ns.saturating_sub(now_ns);
        }
        if !flow.is_empty() {
            self.place(at, false, now_ns);
        }
    }

    /// Returns the queue that may dispatch now.
    fn select(&mut self, now_ns: u64) -> Option<usize> {
        if let Some(at) = self.active {
            let flow = &self.flows[at];
            if !flow.is_slice_over(now_ns) {
                if !flow.is_empty() {
                    return Some(at);
                }
                let idles = self.idle_until_ns.is_some_and(|until_ns| now_ns < until_ns);
                if idles || (flow.under_way > 0 && flow.may_idle) {
                    return None;
                }
            }
            let idled_out = self.idle_until_ns.is_some();
            self.expire(idled_out, now_ns);
        }
        let (_, _, at) = *self.busy.first()?;
        self.flows[at].begin_slice();
        self.active = Some(at);
        Some(at)
    }

    /// Returns true if the queue with index `at` must not dispatch now, either because enough of
    /// its requests are in flight, or because it is async and sync requests are in flight.
    fn is_held(&self, at: usize, round: usize) -> bool {
        let flow = &self.flows[at];
        let alone = self.busy.len() <= 1;
        let full = flow.under_way >= if alone { 4 * round } else { round };
        full || (self.sync_under_way > 0 && !flow.sync)
    }

    /// Dispatches one round of requests of the queue with index `at` to `list`.
    fn dispatch_round(&mut self, at: usize, r: &Requests, now_ns: u64, list: &mut DispatchList) {
        let round = self.round(at);
        for _ in 0..round {
            let expired = self.flows[at].expired_once(&self.expiries, now_ns);
            let Some(tag) = expired.or(self.flows[at].next) else {
                break;
            };
            self.take_out(tag, at, r);
            self.flows[at]
                .lane
                .remove(tag, r[tag].bio.start_sector, &mut self.expiries);
            let flow = &mut self.flows[at];
            flow.under_way += 1;
            flow.slice_dispatched += 1;
            self.sync_under_way += usize::from(flow.sync);
            list.push_sorted(tag, r);
        }
        if self.flows[at].is_empty() {
            self.unfile(at);
        }
        let flow = &self.flows[at];
        let rest = LEVELS - 1 - flow.level;
        let rq = self.parameters.slice_async_rq;
        let used_up = !flow.sync && flow.slice_dispatched >= 2 * (rq + rq * rest);
        let others = self.busy.len() - usize::from(!flow.is_empty());
        if others > 0 && (used_up || flow.rank == Rank::Idle) {
            self.expire(false, now_ns);
        }
    }

    /// Returns the maximum number of requests that the queue with index `at` dispatches in one
    /// round.
    fn round(&self, at: usize) -> usize {
        let idle = self.flows[at].rank == Rank::Idle;
        if idle {
            1
        } else {
            usize::try_from(self.parameters.quantum.max(1)).unwrap_or(usize::MAX)
        }
    }

    /// Removes the request `tag` from the counters of the queue with index `at`; the request
    /// remains in the queue's lane.
    fn take_out(&mut self, tag: Tag, at: usize, requests: &Requests) {
        let head = self.head();
        let flow = &mut self.flows[at];
        if flow.next == Some(tag) {
            flow.next = head.better_following(tag, &flow.lane.sorted, requests);
        }
        flow.metadata -= usize::from(requests[tag].bio.metadata);
        self.waiting -= 1;
    }

    fn history(&mut self, task: Task) -> &mut History {
        crate::lists::grow(&mut self.tasks, task as usize + 1, History::default());
        &mut self.tasks[task as usize]
    }

    /// Records a sync request of the bio's task in the history of the task, and decides whether the
    /// device is kept idle for the task's queue.
    fn note_request(&mut self, at: usize, bio: &Bio, now_ns: u64) {
        let (idle_ns, device_queues) = (self.parameters.slice_idle_ns, self.device_queues);
        let history = self.history(bio.task);
        let think_ns = history.ended_ns.map_or(0, |ended_ns| now_ns - ended_ns);
        history.think_ns.add(think_ns.min(2 * idle_ns));
        let from = history.end_sector.unwrap_or(bio.start_sector);
        history
            .seek_sectors
            .add_seek(from.abs_diff(bio.start_sector));
        history.end_sector = Some(bio.end_sector());
        let history = *history;
        let flow = &mut self.flows[at];
        if idle_ns == 0 || history.exited || (device_queues && history.is_seeky()) {
            flow.may_idle = false;
        } else if let Some(think_ns) = history.think_ns.get_above(VALID) {
            flow.may_idle = think_ns <= idle_ns;
        }
        flow.may_idle &= flow.rank != Rank::Idle;
    }

    /// Returns true if a new request of the queue with index `at` preempts the active queue.
    fn preempts(&self, at: usize, bio: &Bio, now_ns: u64) -> bool {
        let Some(active) = self.active else {
            return false;
        };
        let (old, new) = (&self.flows[active], &self.flows[at]);
        if old.is_slice_over(now_ns) {
            return true;
        }
        if new.rank == Rank::Idle || old.rank == Rank::Idle {
            return new.rank != Rank::Idle;
        }
        if (bio.is_sync() && !old.sync) || (bio.metadata && old.metadata == 0) {
            return true;
        }
        self.idle_until_ns.is_some() && self.is_near(active, bio)
    }

    /// Returns true if `bio` is as near to the head as the next request of the active queue
    /// probably is.
    fn is_near(&self, active: usize, bio: &Bio) -> bool {
        let history = self.tasks.get(active.wrapping_sub(ASYNC_QUEUES));
        let mean = history.and_then(|history| history.seek_sectors.get_above(VALID));
        bio.start_sector.abs_diff(self.head_sector) <= mean.unwrap_or(SEEKY_SECTORS)
    }

    /// The active queue has no more requests. Keeps the device idle for a short time, in which the
    /// task of the queue may submit its next request. Does nothing if idling is not worthwhile for
    /// this queue.
    fn begin_idling(&mut self, at: usize, task: Task, now_ns: u64) {
        let history = *self.history(task);
        if !self.flows[at].may_idle || history.exited || self.parameters.slice_idle_ns == 0 {
            return;
        }
        let seeky = history.seek_sectors.get_above(VALID);
        let seeky = seeky.is_some_and(|mean| mean > SEEKY_SECTORS);
        let longest_ns = if seeky { SEEKY_IDLE_NS } else { u64::MAX };
        self.idle_until_ns = Some(now_ns + self.parameters.slice_idle_ns.min(longest_ns));
    }
}

impl Queues for Cfq {
    fn lane(&self, queue: usize) -> Option<&Lane> {
        self.flows.get(queue).map(|flow| &flow.lane)
    }
}

impl Scheduler for Cfq {
    fn name(&self) -> &'static str {
        "cfq"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let bio = requests[tag].bio;
        let at = queue_of(&bio);
        crate::lists::grow(&mut self.flows, at + 1, Flow::default());
        let expire_ns = match bio.is_sync() {
            true => self.parameters.fifo_expire_sync_ns,
            false => self.parameters.fifo_expire_async_ns,
        };
        let was_empty = self.flows[at].is_empty();
        let head = self.head();
        let flow = &mut self.flows[at];
        flow.set_owner(&bio);
        flow.metadata += usize::from(bio.metadata);
        let expires_ns = now_ns.saturating_add(expire_ns);
        flow.lane
            .add(tag, bio.start_sector, &mut self.expiries, expires_ns);
        flow.next = head.better(Some(tag), flow.next, requests);
        self.waiting += 1;
        if was_empty {
            self.file(at);
        }
        if was_empty && self.active != Some(at) {
            self.place(at, false, now_ns);
        }
        if bio.is_sync() {
            self.note_request(at, &bio, now_ns);
        }
        if self.active == Some(at) {
            self.idle_until_ns = None;
        } else if self.preempts(at, &bio, now_ns) {
            self.expire(true, now_ns);
            self.place(at, true, now_ns);
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
        let at = queue_of(&bio);
        self.take_out(absorbed, at, requests);
        let lane = &mut self.flows[at].lane;
        lane.absorbed(survivor, absorbed, bio.start_sector, &mut self.expiries);
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        let Some(at) = self.select(now_ns) else {
            return false;
        };
        if self.is_held(at, self.round(at)) {
            return false;
        }
        self.idle_until_ns = None;
        self.dispatch_round(at, requests, now_ns, list);
        true
    }

    fn issued(&mut self, tag: Tag, requests: &Requests) {
        self.issued += 1;
        self.device_queues |= self.issued > DEVICE_QUEUES;
        self.head_sector = requests[tag].bio.end_sector();
    }

    fn completed(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let bio = requests[tag].bio;
        let at = queue_of(&bio);
        self.issued -= 1;
        self.flows[at].under_way -= 1;
        if bio.is_sync() {
            self.sync_under_way -= 1;
            self.history(bio.task).ended_ns = Some(now_ns);
        }
        if self.active != Some(at) {
            return;
        }
        let flow = &mut self.flows[at];
        let slice_ns = self.parameters.slice_ns(flow.sync, flow.level);
        let end_ns = *flow.slice_end_ns.get_or_insert(now_ns + slice_ns);
        if now_ns >= end_ns {
            self.expire(true, now_ns);
        } else if flow.sync && flow.is_empty() {
            self.begin_idling(at, bio.task, now_ns);
        }
    }

    fn task_exited(&mut self, task: Task) {
        self.history(task).exited = true;
    }

    fn wake_at_ns(&self) -> Option<u64> {
        self.idle_until_ns.filter(|_| self.waiting > 0)
    }

    fn waiting(&self) -> usize {
        self.waiting
    }
}
