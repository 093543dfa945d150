//! Anticipatory: after a read completes, the disk stays idle for a moment to wait for the next read
//! of the same task, which is likely to be near. Batches of reads and batches of writes alternate
//! by time.
//!
//! Source: `block/as-iosched.c` of Linux 2.6.26, and Iyer and Druschel (*Anticipatory scheduling*,
//! SOSP 2001). A "sync" request is a read, or a write that a task waits for; an "async" request is
//! any other write.

use super::head::Head;
use super::lanes::{Expiries, Lane};
use super::means::{Mean, Share, SlowMean};
use super::{Bio, DispatchList, MS_NS, Requests, Scheduler, Tag, Task};

/// Exclusive upper bound of a counted think time.
const THINK_NS_MAX: u64 = 20 * MS_NS;
/// Distance behind the head, in sectors, beyond which a request is left for the next sweep.
const BACK_SECTORS_MAX: u64 = 1024 * 1024;
/// Factor by which the cost of a backward seek is multiplied.
const BACK_PENALTY: u64 = 2;
/// Distance ahead of the head, in sectors, up to which a request counts as close if the disk has
/// not waited yet. Behind the head, the limit is half of this distance. Each millisecond of waiting
/// doubles both limits.
const CLOSE_SECTORS: u64 = 8192;
/// When the disk has waited longer than this number of milliseconds, any request counts as close to
/// the last one. If `antic_expire_ns` is shorter, it is used instead of this number.
const CLOSE_MS_MAX: u64 = 20;

/// Parameters of Anticipatory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnticipatoryParameters {
    /// Age from which a sync request is dispatched first.
    pub read_expire_ns: u64,
    /// Age from which an async request is dispatched first.
    pub write_expire_ns: u64,
    /// Maximum duration of a batch of sync requests while async requests wait.
    pub read_batch_expire_ns: u64,
    /// Maximum duration of a batch of async requests while sync requests wait.
    pub write_batch_expire_ns: u64,
    /// Time for which the disk waits for the next request of a task; 0 disables waiting.
    pub antic_expire_ns: u64,
}

impl Default for AnticipatoryParameters {
    /// Returns 125 ms, 250 ms, 500 ms, 125 ms, 6 ms.
    fn default() -> AnticipatoryParameters {
        AnticipatoryParameters {
            read_expire_ns: 125 * MS_NS,
            write_expire_ns: 250 * MS_NS,
            read_batch_expire_ns: 500 * MS_NS,
            write_batch_expire_ns: 125 * MS_NS,
            antic_expire_ns: 6 * MS_NS,
        }
    }
}

/// The kind of a request, and of a batch, which contains requests of one kind only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Async,
    Sync,
}

fn kind_of(bio: &Bio) -> Kind {
    if bio.is_sync() {
        Kind::Sync
    } else {
        Kind::Async
    }
}

/// The history of a task.
#[derive(Clone, Copy, Debug, Default)]
struct History {
    /// Number of the task's requests that wait here.
    queued: usize,
    /// Number of the task's requests on the list for the device.
    listed: usize,
    /// Number of the task's requests with the device.
    issued: usize,
    /// True when the task has made a sync request before.
    started: bool,
    exited: bool,
    /// Time at which the task's most recent request completed.
    ended_ns: Option<u64>,
    /// The sector after the end of the task's last sync request.
    end_sector: u64,
    think_ns: Mean,
    seek_sectors: Mean,
}

/// The state of the wait in which the disk is kept idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// The disk is not kept idle.
    Off,
    /// A request of the task is still at the device. The time limit of the wait is set when that
    /// request completes.
    ForCompletion,
    /// The disk waits for the task's next request, at most until the given time.
    ForNext { until_ns: u64 },
    /// The wait has ended, and the next request is dispatched without a further wait.
    Over,
}

/// Linux 2.6.26's Anticipatory.
#[derive(Clone, Debug)]
pub struct Anticipatory {
    parameters: AnticipatoryParameters,
    lanes: [Lane; 2],
    expiries: Expiries,
    /// The next request in the sweep of each kind.
    next: [Option<Tag>; 2],
    last_sector: [u64; 2],
    /// Time at which the age of the oldest request was last checked, for each kind.
    looked_ns: [u64; 2],
    batch: Kind,
    /// True when the current batch is of another kind than the previous one, and requests of the
    /// previous kind are still in flight.
    changed: bool,
    /// True when a batch of sync requests has begun, and none of its requests has completed.
    fresh: bool,
    batch_expires_ns: u64,
    /// `write_quota` is the maximum number of requests that a batch of async requests dispatches.
    /// `writes_left` is the part of the quota that the current batch has not used.
    write_quota: u64,
    writes_left: u64,
    /// True if, at some time in the current batch of async requests, no sync request waited and the
    /// batch had no quota or no requests left. The duration of such a batch must not reduce the
    /// quota.
    idled: bool,
    /// Number of requests on the list or with the device.
    under_way: usize,
    waiting: Waiting,
    /// Task of the last dispatched request: the scheduler may wait for the next request of this
    /// task. `None` if the last dispatched request was async.
    awaited: Option<Task>,
    /// Time of the latest completion of a request of the `awaited` task; `None` if none has
    /// completed since the last dispatch.
    awaited_done_ns: Option<u64>,
    tasks: Vec<History>,
    /// Mean of the first think time of each task (the time from a completion to the task's next
    /// request), used for a task that has no mean of its own yet. `seek_sectors` is the same for
    /// the first seek distances.
    think_ns: SlowMean,
    seek_sectors: SlowMean,
    /// Share of new tasks that make no second request while the disk waits.
    ends_at_once: Share,
    /// Share of the exited tasks after whose exit no other task requested a sector nearby.
    nobody_follows: Share,
}

impl Anticipatory {
    /// Creates the scheduler for `tags` tags.
    pub fn new(tags: usize, parameters: AnticipatoryParameters) -> Anticipatory {
        Anticipatory {
            lanes: [Lane::new(tags), Lane::new(tags)],
            expiries: Expiries::new(tags),
            next: [None; 2],
            last_sector: [0; 2],
            looked_ns: [0; 2],
            batch: Kind::Sync,
            changed: false,
            fresh: false,
            batch_expires_ns: parameters.read_batch_expire_ns,
            // The initial quota is one request per 10 ms.
            write_quota: (parameters.write_batch_expire_ns / (10 * MS_NS)).max(2),
            writes_left: 0,
            idled: false,
            under_way: 0,
            waiting: Waiting::Off,
            awaited: None,
            awaited_done_ns: None,
            tasks: Vec::new(),
            think_ns: SlowMean::default(),
            seek_sectors: SlowMean::default(),
            ends_at_once: Share::default(),
            nobody_follows: Share::default(),
            parameters,
        }
    }

    fn expire_ns(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Sync => self.parameters.read_expire_ns,
            Kind::Async => self.parameters.write_expire_ns,
        }
    }

    fn has(&self, kind: Kind) -> bool {
        !self.lanes[kind as usize].is_empty()
    }

    fn head(&self, kind: Kind) -> Head {
        Head {
            sector: self.last_sector[kind as usize],
            back_sectors_max: BACK_SECTORS_MAX,
            back_penalty: BACK_PENALTY,
        }
    }

    fn history(&mut self, task: Task) -> &mut History {
        crate::lists::grow(&mut self.tasks, task as usize + 1, History::default());
        &mut self.tasks[task as usize]
    }

    fn is_waiting(&self) -> bool {
        matches!(
            self.waiting,
            Waiting::ForCompletion | Waiting::ForNext { .. }
        )
    }

    fn is_batch_over(&self, now_ns: u64) -> bool {
        let timed = !self.changed && !self.fresh;
        let used_up = self.batch == Kind::Async && self.writes_left == 0;
        timed && (now_ns > self.batch_expires_ns || used_up)
    }

    /// Returns the oldest request of `kind` if it has expired. Requests of one kind are checked at
    /// most once per expiry time.
    fn expired(&mut self, kind: Kind, now_ns: u64) -> Option<Tag> {
        let expire_ns = self.expire_ns(kind);
        let looked_ns = &mut self.looked_ns[kind as usize];
        let since_ns = now_ns.saturating_sub(*looked_ns);
        if since_ns == 0 || since_ns < expire_ns {
            return None;
        }
        *looked_ns = now_ns;
        self.lanes[kind as usize].expired(&self.expiries, now_ns)
    }

    /// Returns the request to dispatch, and begins a new batch if the current batch is over; `None`
    /// if the disk should wait.
    fn choose(&mut self, requests: &Requests, now_ns: u64) -> Option<Tag> {
        let (reads, writes) = (self.has(Kind::Sync), self.has(Kind::Async));
        if !(reads && writes && self.is_batch_over(now_ns)) {
            let candidate = self.next[self.batch as usize];
            if self.batch == Kind::Sync && self.parameters.antic_expire_ns > 0 {
                if let Some(expired) = self.expired(Kind::Sync, now_ns) {
                    return Some(expired);
                }
                if self.should_wait(candidate, requests, now_ns) {
                    self.begin_waiting();
                    return None;
                }
            }
            if let Some(tag) = candidate {
                if reads && !writes {
                    self.batch_expires_ns = now_ns + self.parameters.read_batch_expire_ns;
                }
                return Some(self.expired(self.batch, now_ns).unwrap_or(tag));
            }
        }
        self.begin_batch(reads, writes, now_ns);
        self.lanes[self.batch as usize].oldest()
    }

    /// Begins the next batch. The caller dispatches the oldest request of the new batch's kind
    /// first.
    fn begin_batch(&mut self, reads: bool, writes: bool, now_ns: u64) {
        let to_writes = writes && (!reads || self.batch == Kind::Sync);
        let kind = if to_writes { Kind::Async } else { Kind::Sync };
        self.changed |= self.batch != kind;
        if to_writes {
            self.fresh = false;
            self.writes_left = self.write_quota;
            self.idled = false;
        }
        self.batch = kind;
        self.looked_ns[kind as usize] = now_ns;
    }

    /// Completes a change from a batch of sync requests to a batch of async requests, or the
    /// reverse, once no request is in flight. Returns true if no change is pending.
    fn settle_change(&mut self, now_ns: u64) -> bool {
        if self.changed && self.under_way == 0 {
            self.changed = false;
            match self.batch {
                Kind::Async => {
                    self.batch_expires_ns = now_ns + self.parameters.write_batch_expire_ns;
                }
                Kind::Sync => self.fresh = true,
            }
        }
        !self.changed
    }

    fn move_to_list(&mut self, tag: Tag, requests: &Requests, list: &mut DispatchList) {
        let bio = requests[tag].bio;
        let kind = kind_of(&bio);
        self.waiting = Waiting::Off;
        self.last_sector[kind as usize] = bio.end_sector();
        match kind {
            Kind::Sync => self.awaited = Some(bio.task),
            Kind::Async => {
                self.awaited = None;
                self.writes_left = self.writes_left.saturating_sub(1);
            }
        }
        self.awaited_done_ns = None;
        let lane = &self.lanes[kind as usize];
        self.next[kind as usize] = self.head(kind).following(tag, &lane.sorted, requests);
        self.lanes[kind as usize].remove(tag, bio.start_sector, &mut self.expiries);
        let history = self.history(bio.task);
        history.queued -= 1;
        history.listed += 1;
        self.under_way += 1;
        list.push_sorted(tag, requests);
    }

    /// Returns true if waiting for the task of the last dispatched request is better than
    /// dispatching `candidate`.
    fn should_wait(&mut self, candidate: Option<Tag>, requests: &Requests, now_ns: u64) -> bool {
        let Some(task) = self.awaited else {
            return false;
        };
        self.waiting != Waiting::Over && !self.should_go_on(task, candidate, requests, now_ns)
    }

    fn should_go_on(
        &mut self,
        task: Task,
        candidate: Option<Tag>,
        requests: &Requests,
        now_ns: u64,
    ) -> bool {
        let expire_ns = self.parameters.antic_expire_ns;
        let late = |done_ns: u64| now_ns >= done_ns + expire_ns;
        let history = *self.history(task);
        let bio = candidate.map(|tag| requests[tag].bio);
        if bio.is_some_and(|bio| bio.task == task)
            || self.awaited_done_ns.is_some_and(late)
            || history.queued > 0
            || history.listed > 0
        {
            return true;
        }
        if let Some(bio) = bio.filter(|b| b.is_sync() && self.is_close(&history, b, now_ns)) {
            // A near request of another task shows that the two tasks cooperate, so the request is
            // added to the history of the awaited task. If that task has exited, the request also
            // counts as evidence that another task follows it.
            if history.exited {
                self.nobody_follows.note(false);
            }
            self.note_request(task, &bio, now_ns);
            return true;
        }
        let half = Share::ALWAYS / 2;
        if history.exited && self.nobody_follows.get() > half {
            return true;
        }
        match history.think_ns.get() {
            Some(think_ns) => think_ns > expire_ns,
            None => {
                let alone = self.ends_at_once.get() * self.nobody_follows.get();
                self.think_ns.get() > expire_ns || alone > half * Share::ALWAYS
            }
        }
    }

    /// Returns true if `bio` is so near the head that waiting for the task of `history` is not
    /// worthwhile.
    fn is_close(&self, history: &History, bio: &Bio, now_ns: u64) -> bool {
        let done_ns = self
            .awaited_done_ns
            .filter(|_| self.waiting != Waiting::Off);
        let waited_ms = done_ns.map_or(0, |done_ns| (now_ns - done_ns) / MS_NS);
        let expire_ms = self.parameters.antic_expire_ns / MS_NS;
        if waited_ms > CLOSE_MS_MAX.min(expire_ms) {
            return true;
        }
        let close = CLOSE_SECTORS << waited_ms;
        let (last, start) = (self.last_sector[self.batch as usize], bio.start_sector);
        let near = last <= start.saturating_add(close / 2) && start <= last.saturating_add(close);
        let mean = history.seek_sectors.get();
        near || mean.unwrap_or(self.seek_sectors.get()) > start.abs_diff(last)
    }

    fn begin_waiting(&mut self) {
        if self.waiting == Waiting::Off {
            self.waiting = match self.awaited_done_ns {
                Some(done_ns) => self.until_next(done_ns),
                None => Waiting::ForCompletion,
            };
        }
    }

    fn until_next(&self, done_ns: u64) -> Waiting {
        Waiting::ForNext {
            until_ns: done_ns + self.parameters.antic_expire_ns,
        }
    }

    /// Ends a wait in which no request arrived in time.
    fn time_out(&mut self, now_ns: u64) {
        let Waiting::ForNext { until_ns } = self.waiting else {
            return;
        };
        if now_ns < until_ns {
            return;
        }
        self.waiting = Waiting::Over;
        let Some(task) = self.awaited else {
            return;
        };
        let history = *self.history(task);
        if history.think_ns.get().is_none() {
            self.ends_at_once.note(true);
        }
        if history.exited {
            self.nobody_follows.note(true);
        }
    }

    /// Updates the think time and seek distance of `task` with a sync request of the task itself,
    /// or of another task that cooperates with it.
    fn note_request(&mut self, task: Task, bio: &Bio, now_ns: u64) {
        if !bio.is_sync() {
            return;
        }
        let history = *self.history(task);
        if history.started {
            let busy = history.queued + history.listed + history.issued > 0;
            let ended_ns = history.ended_ns.filter(|_| !busy);
            let think_ns = ended_ns.map_or(0, |ended_ns| now_ns - ended_ns);
            self.note_thinking(task, think_ns.min(THINK_NS_MAX - MS_NS));
            let distance = history.end_sector.abs_diff(bio.start_sector);
            if history.seek_sectors.get().is_none() {
                self.seek_sectors.add(distance);
            }
            self.history(task).seek_sectors.add_seek(distance);
        }
        let history = self.history(task);
        history.started = true;
        history.end_sector = bio.end_sector();
    }

    fn note_thinking(&mut self, task: Task, think_ns: u64) {
        if self.history(task).think_ns.get().is_none() {
            self.think_ns.add(think_ns);
            self.ends_at_once.note(false);
        }
        self.history(task).think_ns.add(think_ns);
    }

    /// Adapts the quota of async requests to the duration of the last async batch. The caller does
    /// this when the first sync request after the batch completes. The device can delay writes, but
    /// by then it has also completed the delayed writes.
    fn tune_quota(&mut self, now_ns: u64) {
        let limit_ns = self.parameters.write_batch_expire_ns;
        let took_ns = (now_ns + limit_ns).saturating_sub(self.batch_expires_ns);
        if took_ns > limit_ns && !self.idled {
            self.write_quota = if took_ns > 3 * limit_ns {
                self.write_quota / 2
            } else {
                self.write_quota - 1
            };
        } else if took_ns < limit_ns && self.writes_left == 0 {
            self.write_quota = if 3 * took_ns < limit_ns {
                self.write_quota.saturating_mul(2)
            } else {
                self.write_quota + 1
            };
        }
        self.write_quota = self.write_quota.max(1);
    }

    fn forget(&mut self, tag: Tag, kind: Kind, requests: &Requests) {
        if self.next[kind as usize] == Some(tag) {
            let sorted = &self.lanes[kind as usize].sorted;
            self.next[kind as usize] = self.head(kind).following(tag, sorted, requests);
        }
    }
}

impl Scheduler for Anticipatory {
    fn name(&self) -> &'static str {
        "anticipatory"
    }

    fn add(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        self.time_out(now_ns);
        let bio = requests[tag].bio;
        let kind = kind_of(&bio);
        self.note_request(bio.task, &bio, now_ns);
        self.history(bio.task).queued += 1;
        let expires_ns = now_ns.saturating_add(self.expire_ns(kind));
        let lane = &mut self.lanes[kind as usize];
        lane.add(tag, bio.start_sector, &mut self.expiries, expires_ns);
        let next = self.next[kind as usize];
        self.next[kind as usize] = self.head(kind).nearer(Some(tag), next, requests);
        let awaited = self.awaited.filter(|_| self.is_waiting());
        if awaited.is_some_and(|task| self.should_go_on(task, Some(tag), requests, now_ns)) {
            self.waiting = Waiting::Over;
        }
    }

    fn front_candidate(&self, bio: &Bio, _: &Requests) -> Option<Tag> {
        self.lanes[kind_of(bio) as usize]
            .sorted
            .at(bio.end_sector())
    }

    fn former(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        let bio = requests[tag].bio;
        let lane = &self.lanes[kind_of(&bio) as usize];
        lane.sorted.before(bio.start_sector, tag)
    }

    fn latter(&self, tag: Tag, requests: &Requests) -> Option<Tag> {
        let bio = requests[tag].bio;
        let lane = &self.lanes[kind_of(&bio) as usize];
        lane.sorted.after(bio.start_sector, tag)
    }

    fn grew_in_front(&mut self, tag: Tag, old_start_sector: u64, requests: &Requests) {
        let bio = requests[tag].bio;
        let lane = &mut self.lanes[kind_of(&bio) as usize];
        lane.moved(tag, old_start_sector, bio.start_sector);
    }

    fn absorbed(&mut self, survivor: Tag, absorbed: Tag, requests: &Requests) {
        let bio = requests[absorbed].bio;
        let kind = kind_of(&bio);
        self.forget(absorbed, kind, requests);
        self.history(bio.task).queued -= 1;
        let lane = &mut self.lanes[kind as usize];
        lane.absorbed(survivor, absorbed, bio.start_sector, &mut self.expiries);
    }

    fn dispatch(&mut self, requests: &Requests, now_ns: u64, list: &mut DispatchList) -> bool {
        self.time_out(now_ns);
        let (reads, writes) = (self.has(Kind::Sync), self.has(Kind::Async));
        if self.batch == Kind::Async && !reads {
            self.idled |= self.writes_left == 0 || !writes;
        }
        if !(reads || writes) || self.is_waiting() {
            return false;
        }
        if self.changed && self.under_way > 0 {
            return false;
        }
        let Some(tag) = self.choose(requests, now_ns) else {
            return false;
        };
        let settled = self.settle_change(now_ns);
        if settled {
            self.move_to_list(tag, requests, list);
        }
        settled
    }

    fn issued(&mut self, tag: Tag, requests: &Requests) {
        let history = self.history(requests[tag].bio.task);
        history.listed -= 1;
        history.issued += 1;
    }

    fn completed(&mut self, tag: Tag, requests: &Requests, now_ns: u64) {
        let bio = requests[tag].bio;
        self.under_way -= 1;
        if self.changed && self.under_way == 0 {
            self.settle_change(now_ns);
        }
        if self.fresh && self.batch == kind_of(&bio) {
            self.tune_quota(now_ns);
            self.batch_expires_ns = now_ns + self.parameters.read_batch_expire_ns;
            self.fresh = false;
        }
        let history = self.history(bio.task);
        history.issued -= 1;
        history.ended_ns = Some(now_ns);
        if self.awaited == Some(bio.task) {
            self.awaited_done_ns = Some(now_ns);
            if self.waiting == Waiting::ForCompletion {
                self.waiting = self.until_next(now_ns);
            }
        }
    }

    fn task_exited(&mut self, task: Task) {
        self.history(task).exited = true;
    }

    fn wake_at_ns(&self) -> Option<u64> {
        match self.waiting {
            Waiting::ForNext { until_ns } => Some(until_ns),
            _ => None,
        }
    }

    fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }
}
