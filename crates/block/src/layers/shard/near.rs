//! The asker's end: which requests are over there, who waits for their answers, and what is known
//! of the device beyond. It must answer every request, also when the other thread has died.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use bimetal_rt::mailbox::{Letters, Outbox, mailbox};
use bimetal_rt::sync::{Event, Permit, Semaphore};
use bimetal_rt::{BufPool, Rt, Task, UringOptions, thread};
use slab::Slab;

use super::crossing::{Answered, Asked, Detached, Opened, Told, What};
use super::far::{self, Shown};
use super::{BYTES_MAX, REQUESTS_MAX, Seen, Subtree};
use crate::device::{Figure, FigureVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::{Geometry, GrowingGeometry};
use crate::request::{IoResult, Op, Request};

/// Buffers of the shard's thread: those of all reads that may be there at a time.
const POOL_BYTES: usize = BYTES_MAX as usize;

/// See the module.
pub(super) struct Near {
    state: Rc<State>,
    shown: Shown,
    tasks: RefCell<Vec<Task<()>>>,
    thread: RefCell<Option<JoinHandle<()>>>,
}

/// What the device and its tasks share.
struct State {
    pool: BufPool,
    outbox: Outbox<Asked>,
    places: Rc<Semaphore>,
    bytes: Rc<Semaphore>,
    /// For what an operator asks, one thing at a time.
    operations: Rc<Semaphore>,
    crossed: RefCell<Slab<Crossed>>,
    /// Requests that wait for room.
    waiting: Cell<usize>,
    geometry: GrowingGeometry,
    interruptions: Cell<Option<u64>>,
    phase: Cell<Phase>,
    /// How closing went over there.
    closed: Cell<Option<Result<(), IoError>>>,
    changed: Event,
    requests: Cell<u64>,
    waited_for_room: Cell<u64>,
}

/// How far the life of the other thread is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Takes no more requests, and those that are there go on.
    Closing,
    /// Nothing more comes from the other thread.
    Ended,
    /// The same, and nobody had asked for it.
    Died,
}

/// A request that is with the other thread.
struct Crossed {
    answer: Awaited,
    /// Its room over there.
    _room: Room,
}

/// A place, and room for bytes where some are transferred.
type Room = (Permit, Option<Permit>);

/// The answer to a request, as who asked sees it.
enum Awaited {
    /// Still to come, and who is woken then.
    Open(Option<Waker>),
    /// Here, until it is taken.
    Here(Option<IoResult>),
    /// Still to come, and nobody waits for it any more.
    Orphan,
}

impl Near {
    /// As [`Shard::start`](super::Shard::start).
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
                let state = Rc::new(State::new(rt, Outbox::new(Arc::new(to)), opened));
                let (sends, takes) = (Rc::clone(&state), Rc::clone(&state));
                let tasks = vec![
                    rt.spawn(async move { sends.outbox.carry().await }),
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
                // What it held of the machine is free again when the error is known.
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

    /// Runs a request that fits the geometry over there.
    pub(super) async fn cross(&self, request: Request) -> IoResult {
        let state = &self.state;
        state.check_open()?;
        state.requests.set(state.requests.get() + 1);
        let room = state.room(&request).await;
        // While it waited, the thread may have died, but not been told to close.
        if state.phase.get() == Phase::Died {
            return Err(IoError::Offline);
        }
        let copy = Detached::new(&request)?;
        // The copy is what crosses; the asker's memory is free again.
        drop(request);
        let key = state.ask(What::Request(copy), Awaited::Open(None), room);
        let answer = Answer { state, key };
        std::future::poll_fn(|context| answer.poll(context)).await
    }

    /// Says over there that the operator knows of what the cache `name` has lost. Requests that are
    /// submitted later find that done. False when it cannot be said, as the thread has ended.
    pub(super) fn accept_loss(&self, name: &str) -> bool {
        let state = &self.state;
        if state.check_open().is_err() {
            return false;
        }
        // Else the same is under way.
        if let Some(place) = state.operations.try_acquire(1) {
            let what = What::AcceptLoss(name.to_owned());
            state.ask(what, Awaited::Orphan, (place, None));
        }
        true
    }

    /// As the head of [the layer](super) says. Closing once more does nothing.
    pub(super) async fn close(&self) -> Result<(), IoError> {
        let state = &self.state;
        if state.phase.get() == Phase::Open {
            state.phase.set(Phase::Closing);
            let is_idle = || state.waiting.get() == 0 && state.crossed.borrow().is_empty();
            state.changed.until(is_idle).await;
            state.outbox.close();
        }
        let has_ended = || matches!(state.phase.get(), Phase::Ended | Phase::Died);
        state.changed.until(has_ended).await;
        let tasks = self.tasks.take();
        for task in tasks {
            task.cancel().await;
        }
        let thread = self.thread.borrow_mut().take();
        match (state.phase.get(), thread) {
            // It may still wait for its ring; whoever it died on need not.
            (Phase::Died, _) => return Err(IoError::Offline),
            // The end of its letters is the last that it does.
            (_, Some(thread)) => join(thread),
            (_, None) => {}
        }
        state.closed.get().unwrap_or(Err(IoError::Offline))
    }

    pub(super) fn figures(&self, out: &mut dyn FigureVisitor) {
        let state = &self.state;
        let health = match state.phase.get() {
            Phase::Died => "failed",
            Phase::Open | Phase::Closing | Phase::Ended => "healthy",
        };
        out.figure("", "health", Figure::State(health.to_owned()));
        out.figure("", "requests", Figure::Counter(state.requests.get()));
        let in_flight = state.crossed.borrow().len() as f64;
        out.figure("", "in_flight_requests", Figure::Gauge(in_flight));
        let in_flight_bytes = (BYTES_MAX - state.bytes.free()) as f64;
        out.figure("", "in_flight_bytes", Figure::Gauge(in_flight_bytes));
        let waited = state.waited_for_room.get();
        out.figure("", "waited_for_a_place", Figure::Counter(waited));
    }
}

/// What the other thread says first.
async fn opened(from: &mut Letters<Told>) -> Result<Opened, OpenError> {
    let first = from.next().await.and_then(|mut told| told.pop_front());
    match first {
        Some(Told::Opened(opened)) => opened,
        Some(Told::Answered(_) | Told::Closed(_)) => unreachable!("nothing was asked before"),
        None => Err(OpenError::new("its thread died while it was opened")),
    }
}

/// Waits for the end of a thread that does nothing more.
fn join(thread: JoinHandle<()>) {
    // A panic of the thread has been printed, and its requests have been told.
    let _ = thread.join();
}

impl State {
    fn new(rt: &Rt, outbox: Outbox<Asked>, opened: Opened) -> State {
        let geometry = Geometry {
            transfer_bytes_max: opened.geometry.transfer_bytes_max.min(BYTES_MAX as u32),
            ..opened.geometry
        };
        State {
            pool: rt.pool().clone(),
            outbox,
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

    /// Room for a request over there, in order of arrival.
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
        // Whoever has a place waits for bytes in the same order.
        let place = self.places.acquire(1).await;
        let bytes = match bytes {
            0 => None,
            bytes => Some(self.bytes.acquire(bytes).await),
        };
        (place, bytes)
    }

    /// Sends something over and says where its answer will be.
    fn ask(&self, what: What, answer: Awaited, room: Room) -> usize {
        let crossed = Crossed {
            answer,
            _room: room,
        };
        let key = self.crossed.borrow_mut().insert(crossed);
        self.outbox.put(Asked { key, what });
        key
    }

    /// Takes what the other thread says until it says no more.
    async fn take_all(&self, mut from: Letters<Told>) {
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

    /// Hands an answer to who waits for it, after what it says of the device.
    fn take(&self, answered: Answered) {
        // An answer may have been overtaken by one that knew more.
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

    /// Lets go of a request that has been answered, and of its room.
    fn forget(&self, key: usize) {
        let answered = self.crossed.borrow_mut().remove(key);
        drop(answered);
        self.changed.notify();
    }

    /// The other thread has ended. What it has not answered by now it never will.
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

/// One more request waits for room, as long as this lives.
struct Waiting<'a>(&'a State);

impl Waiting<'_> {
    fn new(state: &State) -> Waiting<'_> {
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

/// The answer to a request that has crossed.
struct Answer<'a> {
    state: &'a State,
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
        // What the thread takes for the end, also where nobody has closed it: after all that was
        // asked.
        self.state.outbox.send();
        self.state.outbox.close();
    }
}
