//! The requester's end of a shard: requests in flight to the other thread, futures that wait for
//! answers, and the last known state of the device on the other thread. The requester's end must
//! answer every request, even if the other thread has died.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use bimetal_rt::mailbox::{Messages, SendBatch, mailbox};
use bimetal_rt::sync::{Event, Permit, Semaphore};
use bimetal_rt::{BufPool, Rt, Task, UringOptions, thread};
use slab::Slab;

use super::crossing::{Answered, Asked, Detached, Opened, Told, What};
use super::far::{self, Shown};
use super::{BYTES_MAX, REQUESTS_MAX, Seen, Subtree};
use crate::device::{Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::{Geometry, GrowingGeometry};
use crate::request::{IoResult, Op, Request};

/// Size of the buffer pool of the shard's thread: enough for all reads that can be in flight.
const POOL_BYTES: usize = BYTES_MAX as usize;

/// The requester's end of a shard; see the module.
pub(super) struct Near {
    state: Rc<ShardState>,
    shown: Shown,
    tasks: RefCell<Vec<Task<()>>>,
    thread: RefCell<Option<JoinHandle<()>>>,
}

/// State shared by the device and its tasks on the requester's thread.
struct ShardState {
    pool: BufPool,
    send_batch: SendBatch<Asked>,
    places: Rc<Semaphore>,
    bytes: Rc<Semaphore>,
    /// Permit for the message with which the operator accepts the data loss of a cache. At most one
    /// such message is in flight.
    operations: Rc<Semaphore>,
    crossed: RefCell<Slab<Crossed>>,
    /// Number of requests that wait for their permits.
    waiting: Cell<usize>,
    geometry: GrowingGeometry,
    interruptions: Cell<Option<u64>>,
    phase: Cell<Phase>,
    /// Result of closing the devices on the other thread; `None` until the result has arrived.
    closed: Cell<Option<Result<(), IoError>>>,
    changed: Event,
    requests: Cell<u64>,
    waited_for_room: Cell<u64>,
}

/// Phase of the other thread's life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// No more requests are accepted, and requests in flight continue.
    Closing,
    /// The thread has ended after a close and will send no more messages.
    Ended,
    /// The thread has ended without a close.
    Died,
}

/// A request in flight to the other thread.
struct Crossed {
    answer: Awaited,
    /// Permits that the request holds while it is in flight.
    _room: Room,
}

/// Permit for one request, and a permit for its bytes if it transfers data.
type Room = (Permit, Option<Permit>);

/// State of an answer.
enum Awaited {
    /// Pending, with the waker of the requester.
    Open(Option<Waker>),
    /// Received, until the requester takes it.
    Here(Option<IoResult>),
    /// Pending, but the requester has dropped its future.
    Orphan,
}

impl Near {
    /// Opens a device on a thread of its own, as described at
    /// [`Shard::start`](super::Shard::start).
    pub(super) async fn start<S: Subtree + 'static>(
        rt: &Rt,
        name: &str,
        open: impl AsyncFnOnce(&Rt) -> Result<S, OpenError> + Send + 'static,
    ) -> Result<Near, OpenError> {
        let options = rt.uring_options();
        let options = UringOptions {
            pool_bytes: POOL_BYTES,
            ..options.expect("virtual time has no threads").clone()
        };
        let cannot = |error: std::io::Error| OpenError::new(format!("its thread: {error}"));
        let (to, asked) = mailbox().map_err(cannot)?;
        let (told, from) = mailbox().map_err(cannot)?;
        let mut from = from.listen(rt).map_err(cannot)?;
        let shown = Shown::default();
        let run = {
            let shown = Arc::clone(&shown);
            move |rt| far::run(rt, asked, Arc::new(told), &shown, open)
        };
        let thread = thread::start(name, options, run).map_err(cannot)?;
        match opened(&mut from).await {
            Ok(opened) => {
                let state = Rc::new(ShardState::new(rt, SendBatch::new(Arc::new(to)), opened));
                let (sends, takes) = (Rc::clone(&state), Rc::clone(&state));
                let tasks = vec![
                    rt.spawn(async move { sends.send_batch.carry().await }),
                    rt.spawn(async move { takes.take_all(from).await }),
                ];
                Ok(Near {
                    state,
                    shown,
                    tasks: RefCell::new(tasks),
                    thread: RefCell::new(Some(thread)),
                })
            }
            Err(error) => {
                // The thread is joined, so that its resources are free when the error is returned.
                while from.next().await.is_some() {}
                join(thread);
                Err(error)
            }
        }
    }

    pub(super) fn geometry(&self) -> &Geometry {
        self.state.geometry.get()
    }

    pub(super) fn interruptions(&self) -> Option<u64> {
        self.state.interruptions.get()
    }

    pub(super) fn seen(&self) -> Arc<Vec<Seen>> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&shown)
    }

    /// Executes on the other thread a request that has already been checked against the geometry.
    pub(super) async fn cross(&self, request: Request) -> IoResult {
        let state = &self.state;
        state.check_open()?;
        state.requests.set(state.requests.get() + 1);
        let room = state.room(&request).await;
        // The thread might have died during the wait. The shard cannot have been closed, because a
        // close waits for waiting requests.
        if state.phase.get() == Phase::Died {
            return Err(IoError::Offline);
        }
        let copy = Detached::new(&request)?;
        // Only the copy is sent, so the request's own memory can be freed now.
        drop(request);
        let key = state.ask(What::Request(copy), Awaited::Open(None), room);
        let answer = Answer { state, key };
        std::future::poll_fn(|context| answer.poll(context)).await
    }

    /// Sends the message that the operator accepts the data loss of the cache `name`. The message
    /// takes effect before requests that are submitted later. Returns false if the thread has
    /// ended.
    pub(super) fn accept_loss(&self, name: &str) -> bool {
        let state = &self.state;
        if state.check_open().is_err() {
            return false;
        }
        // If the permit is not free, an earlier message of this kind is in flight, and no second
        // message is sent.
        if let Some(place) = state.operations.try_acquire(1) {
            let what = What::AcceptLoss(name.to_owned());
            state.ask(what, Awaited::Orphan, (place, None));
        }
        true
    }

    /// Closes the shard as described at the head of [the layer](super). A repeated close returns
    /// the result of the first close.
    pub(super) async fn close(&self) -> Result<(), IoError> {
        let state = &self.state;
        if state.phase.get() == Phase::Open {
            state.phase.set(Phase::Closing);
            let is_idle = || state.waiting.get() == 0 && state.crossed.borrow().is_empty();
            state.changed.until(is_idle).await;
            state.send_batch.close();
        }
        let has_ended = || matches!(state.phase.get(), Phase::Ended | Phase::Died);
        state.changed.until(has_ended).await;
        let tasks = self.tasks.take();
        for task in tasks {
            task.cancel().await;
        }
        let thread = self.thread.borrow_mut().take();
        match (state.phase.get(), thread) {
            // A thread that has died is not joined: it has closed its mailbox, but it can still be
            // waiting for its ring, and then the join would not return.
            (Phase::Died, _) => return Err(IoError::Offline),
            // The thread closes its mailbox as its last action, so the join is short.
            (_, Some(thread)) => join(thread),
            (_, None) => {}
        }
        state.closed.get().unwrap_or(Err(IoError::Offline))
    }

    pub(super) fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let state = &self.state;
        let health = match state.phase.get() {
            Phase::Died => "failed",
            Phase::Open | Phase::Closing | Phase::Ended => "healthy",
        };
        out.statistic("", "health", Statistic::State(health.to_owned()));
        out.statistic("", "requests", Statistic::Counter(state.requests.get()));
        let in_flight = state.crossed.borrow().len() as f64;
        out.statistic("", "in_flight_requests", Statistic::Gauge(in_flight));
        let in_flight_bytes = (BYTES_MAX - state.bytes.free()) as f64;
        out.statistic("", "in_flight_bytes", Statistic::Gauge(in_flight_bytes));
        let waited = state.waited_for_room.get();
        out.statistic("", "waited_for_a_tag", Statistic::Counter(waited));
    }
}

/// Receives the first message of the other thread: the result of opening.
async fn opened(from: &mut Messages<Told>) -> Result<Opened, OpenError> {
    let first = from.next().await.and_then(|mut told| told.pop_front());
    match first {
        Some(Told::Opened(opened)) => opened,
        Some(Told::Answered(_) | Told::Closed(_)) => unreachable!("nothing was asked before"),
        None => Err(OpenError::new("its thread died while it was opened")),
    }
}

/// Joins a thread that has finished its work.
fn join(thread: JoinHandle<()>) {
    // The result is ignored: a panic of the thread has been printed, and its requests have failed.
    let _ = thread.join();
}

impl ShardState {
    fn new(rt: &Rt, send_batch: SendBatch<Asked>, opened: Opened) -> ShardState {
        let geometry = Geometry {
            transfer_bytes_max: opened.geometry.transfer_bytes_max.min(BYTES_MAX as u32),
            ..opened.geometry
        };
        ShardState {
            pool: rt.pool().clone(),
            send_batch,
            places: Semaphore::new(REQUESTS_MAX),
            bytes: Semaphore::new(BYTES_MAX),
            operations: Semaphore::new(1),
            crossed: RefCell::new(Slab::new()),
            waiting: Cell::new(0),
            geometry: GrowingGeometry::new(geometry),
            interruptions: Cell::new(opened.interruptions),
            phase: Cell::new(Phase::Open),
            closed: Cell::new(None),
            changed: Event::new(),
            requests: Cell::new(0),
            waited_for_room: Cell::new(0),
        }
    }

    fn check_open(&self) -> Result<(), IoError> {
        match self.phase.get() {
            Phase::Open => Ok(()),
            Phase::Closing | Phase::Ended => Err(IoError::Closed),
            Phase::Died => Err(IoError::Offline),
        }
    }

    /// Waits for the permits of a request, in order of arrival.
    async fn room(&self, request: &Request) -> Room {
        let bytes = match request.op {
            Op::Read | Op::Write => request.len,
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => 0,
        };
        if let Some(place) = self.places.try_acquire(1) {
            if bytes == 0 {
                return (place, None);
            }
            if let Some(bytes) = self.bytes.try_acquire(bytes) {
                return (place, Some(bytes));
            }
        }
        self.waited_for_room.set(self.waited_for_room.get() + 1);
        let _waiting = Waiting::new(self);
        // A request acquires its request permit before the permits for its bytes. So requests wait
        // for permits for bytes in the order in which they received their request permits.
        let place = self.places.acquire(1).await;
        let bytes = match bytes {
            0 => None,
            bytes => Some(self.bytes.acquire(bytes).await),
        };
        (place, bytes)
    }

    /// Sends a message and returns the number of the slot for its answer.
    fn ask(&self, what: What, answer: Awaited, room: Room) -> usize {
        let crossed = Crossed {
            answer,
            _room: room,
        };
        let key = self.crossed.borrow_mut().insert(crossed);
        self.send_batch.put(Asked { key, what });
        key
    }

    /// Receives the messages of the other thread until its mailbox is closed.
    async fn take_all(&self, mut from: Messages<Told>) {
        while let Some(told) = from.next().await {
            for told in told {
                match told {
                    Told::Answered(answered) => self.take(answered),
                    Told::Closed(closed) => self.closed.set(Some(closed)),
                    Told::Opened(_) => unreachable!("it is opened once"),
                }
            }
        }
        self.end();
    }

    /// Applies the device state in an answer, then delivers the answer to the requester.
    fn take(&self, answered: Answered) {
        // Answers can overtake each other, so an answer with newer values might already have been
        // applied. Therefore both values (the number of interruptions and the size of the device)
        // are only ever increased.
        self.interruptions
            .set(self.interruptions.get().max(answered.interruptions));
        self.geometry.grow_to(answered.size_bytes);
        let key = answered.key;
        self.answer(key, answered.into_result(&self.pool));
    }

    fn answer(&self, key: usize, result: IoResult) {
        let mut crossed = self.crossed.borrow_mut();
        let request = crossed.get_mut(key).expect("what was asked has a place");
        match std::mem::replace(&mut request.answer, Awaited::Here(Some(result))) {
            Awaited::Open(waker) => {
                drop(crossed);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Awaited::Orphan => {
                drop(crossed);
                self.forget(key);
            }
            Awaited::Here(_) => unreachable!("a request is answered once"),
        }
    }

    /// Removes a request that has been answered, and releases its permits.
    fn forget(&self, key: usize) {
        let answered = self.crossed.borrow_mut().remove(key);
        drop(answered);
        self.changed.notify();
    }

    /// Handles the end of the thread of the shard: requests without an answer fail with `Offline`.
    fn end(&self) {
        self.phase.set(match (self.phase.get(), self.closed.get()) {
            (Phase::Closing, Some(_)) => Phase::Ended,
            _ => Phase::Died,
        });
        let is_left = |(key, request): (usize, &Crossed)| match request.answer {
            Awaited::Open(_) | Awaited::Orphan => Some(key),
            Awaited::Here(_) => None,
        };
        let left: Vec<usize> = self.crossed.borrow().iter().filter_map(is_left).collect();
        for key in left {
            self.answer(key, Err(IoError::Offline));
        }
        self.changed.notify();
    }
}

/// Guard that counts one request as waiting for permits.
struct Waiting<'a>(&'a ShardState);

impl Waiting<'_> {
    fn new(state: &ShardState) -> Waiting<'_> {
        state.waiting.set(state.waiting.get() + 1);
        Waiting(state)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
        self.0.changed.notify();
    }
}

/// Future of the answer to a request that was sent to the thread of the device.
struct Answer<'a> {
    state: &'a ShardState,
    key: usize,
}

impl Answer<'_> {
    fn poll(&self, context: &Context<'_>) -> Poll<IoResult> {
        let mut crossed = self.state.crossed.borrow_mut();
        let request = &mut crossed[self.key];
        match &mut request.answer {
            Awaited::Open(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Awaited::Here(result) => {
                Poll::Ready(result.take().expect("it is not polled after its end"))
            }
            Awaited::Orphan => unreachable!("somebody waits for it"),
        }
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let is_here = {
            let mut crossed = self.state.crossed.borrow_mut();
            let answer = &mut crossed[self.key].answer;
            let is_here = matches!(answer, Awaited::Here(_));
            if !is_here {
                *answer = Awaited::Orphan;
            }
            is_here
        };
        if is_here {
            self.state.forget(self.key);
        }
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        // Closing the mailbox ends the thread, even if the shard was not closed before. The thread
        // first executes all requests that were sent to it.
        self.state.send_batch.send();
        self.state.send_batch.close();
    }
}
