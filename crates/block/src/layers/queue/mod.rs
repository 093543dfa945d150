//! The queue in front of one device: adjacent requests are merged, and a scheduler decides which
//! request is issued next and when it is better to wait.
//!
//! The decisions are made by [`bimetal_policy::scheduler`], with the same objects that run in
//! experiments; this layer provides tags, time and a device. A bio is a request as submitted,
//! before merging. A merged request is executed by the future of the bio that started it, so that a
//! request that merges with no other needs no separate task; the futures of the other bios wait for
//! their part of the answer. Only reads and writes are queued. A flush makes completed changes
//! durable, and queued writes have not completed, so a flush is forwarded immediately, and so are
//! operations without data. This layer must never lose a request, give one answer to two requests,
//! or fail a request because of a merged neighbour: when a merged request fails, its bios are
//! retried one by one.

mod config;
pub mod journal;
mod tags;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::Context;

use bimetal_policy::scheduler::{
    Bio, DirectionCounters, QueueCounters, RequestQueue as Policy, Tag,
};
use bimetal_rt::sync::{Event, Semaphore};
use bimetal_rt::{Instant, Payload, Rt, Task};
use futures_util::future::{join_all, select};

pub use config::{PlugConfig, QueueConfig};

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::{IoResult, Op, Reply, Request};
use journal::{Event as Noted, Journal};
use tags::{Tags, Turn};

/// Unit of the schedulers' addresses and lengths.
const SECTOR_BYTES: u64 = 512;

/// Maximum number of tasks that schedulers distinguish. Schedulers keep state for each task, so the
/// number must have a bound. If there are more tasks, several tasks share an entry.
const TASKS_MAX: u32 = 1024;

/// Wake-up time of the timer task if no wake-up is scheduled.
const NEVER_NS: u64 = u64::MAX;

/// A queue in front of a device; see the module.
pub struct QueueLayer {
    core: Rc<Core>,
    /// Timer task that asks the scheduler again after the scheduler has deferred a decision. The
    /// task ends with the layer.
    clock: RefCell<Option<Task<()>>>,
}

impl QueueLayer {
    /// Creates a queue over `below`.
    ///
    /// # Errors
    /// When the configuration is wrong, or the device has blocks smaller than a sector of 512
    /// bytes.
    pub fn new(
        rt: &Rt,
        below: Rc<dyn Device>,
        config: &QueueConfig,
    ) -> Result<QueueLayer, OpenError> {
        config.check().map_err(OpenError::new)?;
        let policy = config.policy().map_err(OpenError::new)?;
        if u64::from(below.geometry().block_bytes) < SECTOR_BYTES {
            let why = "a queue needs a device of whole sectors of 512 bytes below it";
            return Err(OpenError::new(why.to_owned()));
        }
        let tags = config.tags as usize;
        let core = Rc::new(Core {
            rt: rt.clone(),
            below,
            free: Semaphore::new(u64::from(config.tags)),
            state: RefCell::new(QueueState {
                policy,
                tags: Tags::new(tags),
                in_flight: 0,
            }),
            clock: Event::new(),
            asked_at_ns: Cell::new(NEVER_NS),
            waited: Cell::new(0),
            journal: OnceCell::new(),
            depth: config.depth,
            piece_bytes: config.request_max.0,
        });
        let clock = rt.spawn(keep_time(Rc::clone(&core)));
        Ok(QueueLayer {
            core,
            clock: RefCell::new(Some(clock)),
        })
    }

    /// Returns the counters.
    pub fn counts(&self) -> QueueCounters {
        self.core.state.borrow().policy.counts()
    }

    /// Starts a journal of at most `events_max` events, or returns the existing journal. A journal
    /// does not cover requests that are already queued, so it must be started before the first
    /// request.
    pub fn keep_journal(&self, events_max: usize) -> Rc<Journal> {
        let new = || Rc::new(Journal::new(events_max));
        Rc::clone(self.core.journal.get_or_init(new))
    }
}

/// State shared by requests and the timer task.
struct Core {
    rt: Rt,
    below: Rc<dyn Device>,
    /// Permits for tags; each free tag has one.
    free: Rc<Semaphore>,
    state: RefCell<QueueState>,
    /// Signals the timer task that its wake-up time has become earlier.
    clock: Event,
    /// Time at which the timer task will wake up; `NEVER_NS` if no wake-up is scheduled.
    asked_at_ns: Cell<u64>,
    /// Number of requests that had to wait for a tag.
    waited: Cell<u64>,
    /// Journal of events, if one was requested.
    journal: OnceCell<Rc<Journal>>,
    depth: u32,
    piece_bytes: u64,
}

/// The queued requests, and the policy's view of them.
struct QueueState {
    policy: Policy,
    tags: Tags,
    /// Number of requests in flight on the device.
    in_flight: u32,
}

impl Core {
    /// Splits a request that is longer than `piece_bytes` into pieces, executes the pieces
    /// concurrently, and joins their answers.
    async fn run_pieces(self: &Rc<Core>, request: Request) -> IoResult {
        let starts = (request.offset..request.end()).step_by(self.piece_bytes as usize);
        let pieces = starts.map(|start| {
            let end = request.end().min(start + self.piece_bytes);
            let piece = request.part(start, end, start);
            self.run_piece(piece, start > request.offset)
        });
        let mut data = Payload::empty();
        for answer in join_all(pieces).await {
            if let Reply::Data(part) = answer? {
                data.append(part);
            }
        }
        Ok(match request.op {
            Op::Read => Reply::Data(data),
            _ => Reply::Done,
        })
    }

    /// Executes a request that is not longer than `piece_bytes`. `continued` is true if the request
    /// is a piece of a longer request, but not the first piece.
    async fn run_piece(self: &Rc<Core>, request: Request, continued: bool) -> IoResult {
        let permit = match self.free.try_acquire(1) {
            Some(permit) => permit,
            None => {
                self.waited.set(self.waited.get() + 1);
                self.free.acquire(1).await
            }
        };
        let bio = bio_of(&request, continued);
        let at_ns = self.rt.now().as_ns();
        let tag = {
            let mut state = self.state.borrow_mut();
            let tag = state.tags.take(request, permit);
            state.policy.add(tag, bio, at_ns);
            self.note(|| Noted::Added { tag, bio, at_ns });
            tag
        };
        let mut held = Held {
            core: self,
            tag: Some(tag),
        };
        self.advance(at_ns);
        if self.state.borrow().tags.is_issued(tag) {
            self.carry(tag, Some(at_ns)).await;
        } else {
            let turn =
                |context: &mut Context<'_>| self.state.borrow_mut().tags.poll_turn(tag, context);
            if let Turn::Carry = std::future::poll_fn(turn).await {
                self.carry(tag, None).await;
            }
        }
        held.tag = None;
        self.state.borrow_mut().tags.leave(tag)
    }

    fn note(&self, event: impl FnOnce() -> Noted) {
        if let Some(journal) = self.journal.get() {
            journal.note(event());
        }
    }

    /// Issues requests to the device as long as the scheduler selects one and the queue depth
    /// permits another.
    fn advance(self: &Rc<Core>, now_ns: u64) {
        let state = &mut *self.state.borrow_mut();
        self.note(|| Noted::Asked { at_ns: now_ns });
        while state.in_flight < self.depth {
            let Some(tag) = state.policy.next(now_ns) else {
                self.ask_again(state.policy.wake_at_ns(), now_ns);
                return;
            };
            state.in_flight += 1;
            self.note(|| Noted::Issued { tag });
            if !state.tags.issue(tag) {
                self.carry_for_nobody(tag);
            }
        }
    }

    /// Schedules the timer task for the given time, unless it will already wake up earlier.
    fn ask_again(&self, wake_at_ns: Option<u64>, now_ns: u64) {
        // The wake-up time is at least 1 ns in the future. Otherwise the timer task would run in an
        // endless loop if the scheduler named a time in the past without issuing a request.
        let at_ns = wake_at_ns.map_or(NEVER_NS, |at_ns| at_ns.max(now_ns + 1));
        if at_ns < self.asked_at_ns.get() {
            self.asked_at_ns.set(at_ns);
            self.clock.notify();
        }
    }

    /// Executes, in a separate task, an issued request whose own future was dropped.
    fn carry_for_nobody(self: &Rc<Core>, tag: Tag) {
        let core = Rc::clone(self);
        let task = self.rt.spawn(async move { core.carry(tag, None).await });
        task.detach();
    }

    /// Executes an issued request on the device, and distributes the answer to its bios (the
    /// requests before merging). `now_ns` is the current time if the caller has just read the
    /// clock. If the device answers immediately, this time is used instead of a second reading. A
    /// reading of the clock is a large part of the cost of this layer.
    async fn carry(self: &Rc<Core>, tag: Tag, now_ns: Option<u64>) {
        let (request, alone) = self.whole(tag);
        let under_way = self.below.submit(request);
        // `now_ns` is used only if the device answered without waiting. After a wait, the policy
        // might already have received a later time, so the clock is read again.
        let now_ns = now_ns.filter(|_| matches!(under_way, IoFuture::Ready(_)));
        let answer = under_way.await;
        if alone {
            let at_ns = now_ns.unwrap_or_else(|| self.rt.now().as_ns());
            return self.complete(tag, at_ns, std::iter::once(answer));
        }
        let parts = match answer {
            Ok(reply) => self.shares(tag, reply),
            // Boxed, because this rare case would otherwise make the future of every request
            // larger.
            Err(_) => Box::pin(self.one_by_one(tag)).await,
        };
        self.complete(tag, self.rt.now().as_ns(), parts.into_iter());
    }

    /// Joins all bios of an issued merged request into one request. A bio is a request as
    /// submitted, before merging. Returns the joined request, and true if it consists of a single
    /// bio.
    fn whole(&self, tag: Tag) -> (Request, bool) {
        let state = &mut *self.state.borrow_mut();
        let mut bios = state.policy.bios(tag);
        let first = bios.next().expect("a request has a bio");
        let alone = bios.clone().next().is_none();
        if alone {
            return (state.tags.give(first), true);
        }
        let mut request = state.tags.request(first).clone();
        for next in bios.map(|bio| state.tags.request(bio)) {
            assert_eq!(request.end(), next.offset, "the bios of a request meet");
            request.len += next.len;
            request.flags.fua |= next.flags.fua;
            request.payload.append(next.payload.clone());
        }
        (request, false)
    }

    /// Splits the answer to a merged request into one answer for each of its bios, the requests
    /// before merging.
    fn shares(&self, tag: Tag, reply: Reply) -> Vec<IoResult> {
        let state = self.state.borrow();
        let lengths = state
            .policy
            .bios(tag)
            .map(|bio| state.tags.request(bio).len as usize);
        match reply {
            Reply::Data(data) => {
                let mut from = 0;
                let cut = lengths.map(|length| {
                    from += length;
                    Ok(Reply::Data(data.slice(from - length..from)))
                });
                cut.collect()
            }
            Reply::Done | Reply::Extents(_) => lengths.map(|_| Ok(Reply::Done)).collect(),
        }
    }

    /// Retries each bio of a failed request separately: usually only one bio is at fault, and the
    /// others must not fail because they were merged with it.
    async fn one_by_one(&self, tag: Tag) -> Vec<IoResult> {
        let requests: Vec<Request> = {
            let state = self.state.borrow();
            let bios = state.policy.bios(tag);
            bios.map(|bio| state.tags.request(bio).clone()).collect()
        };
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.below.submit(request).await);
        }
        answers
    }

    /// Completes a merged request: stores an answer for each of its bios (the requests before
    /// merging). `answers` gives the answers in ascending order of the offsets of the bios.
    fn complete(self: &Rc<Core>, tag: Tag, at_ns: u64, answers: impl Iterator<Item = IoResult>) {
        {
            let state = &mut *self.state.borrow_mut();
            state.in_flight -= 1;
            let mut bios = state.tags.take_list();
            state.policy.complete(tag, at_ns, &mut bios);
            self.note(|| Noted::Completed { tag, at_ns });
            let mut answers = answers;
            for bio in bios.drain(..) {
                let answer = answers.next().expect("an answer for each bio");
                state.tags.answer(bio, answer);
            }
            state.tags.put_list(bios);
        }
        self.advance(at_ns);
    }

    /// Ends plugging, because a caller waits for all queued requests.
    fn unplug(self: &Rc<Core>) {
        self.state.borrow_mut().policy.unplug();
        self.note(|| Noted::Unplugged);
        self.advance(self.rt.now().as_ns());
    }
}

/// Converts a request to a bio for the schedulers.
fn bio_of(request: &Request, continued: bool) -> Bio {
    let start_sector = request.offset / SECTOR_BYTES;
    let sectors = u32::try_from(request.len / SECTOR_BYTES).expect("a transfer is below 4 GiB");
    let task = request.origin.task % TASKS_MAX;
    let bio = match request.op {
        Op::Write => Bio::write(task, start_sector, sectors),
        _ => Bio::read(task, start_sector, sectors),
    };
    Bio {
        sync: bio.sync || request.flags.fua,
        priority: request.origin.priority,
        continued,
        ..bio
    }
}

/// Guard of the tag of a waiting request. If the request is dropped, the merged request that it
/// started continues, because other bios can be part of the merged request.
struct Held<'a> {
    core: &'a Rc<Core>,
    tag: Option<Tag>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let Some(tag) = self.tag else { return };
        let was_issued = self.core.state.borrow_mut().tags.abandon(tag);
        if was_issued {
            self.core.carry_for_nobody(tag);
        }
    }
}

/// Runs the timer task: asks the policy for requests at the wake-up times that the policy names.
async fn keep_time(core: Rc<Core>) {
    loop {
        let at_ns = core.asked_at_ns.get();
        let earlier = core.clock.until(|| core.asked_at_ns.get() < at_ns);
        if at_ns == NEVER_NS {
            earlier.await;
            continue;
        }
        let sleep = core.rt.sleep_until(Instant::from_ns(at_ns));
        select(sleep, std::pin::pin!(earlier)).await;
        let now_ns = core.rt.now().as_ns();
        if now_ns >= at_ns {
            core.asked_at_ns.set(NEVER_NS);
            core.advance(now_ns);
        }
    }
}

impl Device for QueueLayer {
    fn geometry(&self) -> &Geometry {
        self.core.below.geometry()
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        match request.op {
            Op::Read | Op::Write if request.len > 0 => {
                // The schedulers do not check requests, so the geometry is checked here.
                match self.core.below.geometry().check(&request) {
                    // Requests of one piece and longer requests have separate futures. So the
                    // future of the common case, one piece, is small, which matters because a
                    // future is moved when it is boxed.
                    Ok(()) if request.len <= self.core.piece_bytes => {
                        IoFuture::new(self.core.run_piece(request, false))
                    }
                    Ok(()) => IoFuture::new(self.core.run_pieces(request)),
                    Err(error) => IoFuture::ready(Err(error)),
                }
            }
            Op::Flush => {
                self.core.unplug();
                self.core.below.submit(request)
            }
            Op::Read | Op::Write | Op::Discard | Op::WriteZeroes | Op::Extents => {
                self.core.below.submit(request)
            }
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(async {
            self.core.unplug();
            let tags = self.core.state.borrow().tags.count();
            // Waits for all tags, including tags of requests that were dropped.
            drop(self.core.free.acquire(tags as u64).await);
            let clock = self.clock.borrow_mut().take();
            if let Some(clock) = clock {
                clock.cancel().await;
            }
            Ok(())
        })
    }

    fn interruptions(&self) -> Option<u64> {
        self.core.below.interruptions()
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let state = self.core.state.borrow();
        let scheduler = state.policy.scheduler().to_owned();
        out.statistic("", "scheduler", Statistic::State(scheduler));
        let counts = state.policy.counts();
        let gauge = |count: u64| Statistic::Gauge(count as f64);
        out.statistic("", "queued_requests", gauge(counts.queued()));
        out.statistic("", "in_flight_requests", gauge(u64::from(state.in_flight)));
        out.statistic(
            "",
            "waited_for_a_tag",
            Statistic::Counter(self.core.waited.get()),
        );
        direction_statistics("read", &counts.reads, out);
        direction_statistics("write", &counts.writes, out);
    }
}

fn direction_statistics(part: &str, counts: &DirectionCounters, out: &mut dyn StatisticVisitor) {
    let statistics = [
        ("bios", counts.bios),
        ("splits", counts.splits),
        ("back_merges", counts.back_merges),
        ("front_merges", counts.front_merges),
        ("request_merges", counts.request_merges),
        ("issued_requests", counts.issued),
        ("completed_requests", counts.completed),
    ];
    for (name, count) in statistics {
        out.statistic(part, name, Statistic::Counter(count));
    }
}
