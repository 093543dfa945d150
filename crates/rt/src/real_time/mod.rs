//! Real time: operations on files and sockets, which the kernel executes. A driver passes the
//! operations to the kernel.
//!
//! Every operation has a slot that owns the memory that the kernel can access (see the crate's
//! contract). The slot is identified by a key, which the driver returns with the result of the
//! operation.
//!
//! This module may use `unsafe`: it hands memory to the kernel. It must never free or reuse memory
//! that a slot owns before the completion of that slot has been seen.

mod choice;
mod command;
mod driver;
mod file;
mod limits;
mod lock;
mod message;
mod op;
mod ring;
mod signal;
mod socket;
mod spin;
#[cfg(test)]
mod spin_worlds;
mod sys;
mod threads;
mod trial;
mod watch;

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use crate::buf::BufPool;
use crate::notices::Notices;
use crate::time::Instant;
pub use choice::{Driven, DriverChoice, DriverKind};
pub use command::{CommandFile, DriverPages, LONG_COMMAND_BYTES};
use driver::{Completion, Descriptor, Driver, Request};
pub use file::{File, OpenOptions};
pub use limits::{ProcessLimit, limit_in_words, raise_open_files};
pub use lock::{try_claim, try_lock_range};
pub use message::{MessageBuf, MessageFile};
pub(crate) use op::{Handle, Owned};
pub use signal::{Signals, fail_writes_instead_of_ending};
pub(crate) use socket::{Socket, SocketListener};
use spin::{Spin, Watched};
pub use sys::{MemoryLock, keep_memory_resident, set_nonblocking};
pub(crate) use sys::{begin_thread, block_signals, boot_id, random_bytes, unix_seconds};
pub use watch::Watch;

/// Maximum number of operations in flight. Further operations wait for a slot, so the completion
/// queue never overflows.
const IN_FLIGHT_MAX: usize = 8192;

/// Options of a real-time runtime.
#[derive(Clone, Debug)]
pub struct UringOptions {
    /// Size of the region that buffers are allocated from and that is registered with the ring.
    pub pool_bytes: usize,
    /// Part of the region that has memory from the start. The rest gets it only from
    /// [`Growth`](crate::growth::Growth).
    pub pool_bytes_at_start: usize,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Registers buffers and files with the ring, which was measured to save a fifth of the CPU
    /// time per operation. If the limit on locked memory forbids the registration, buffers and
    /// files are used without it, and no error is returned.
    pub register: bool,
    /// The driver that executes operations.
    pub driver: DriverChoice,
    /// Maximum time that a thread busy-polls for work before it sleeps, while requests follow each
    /// other closely. An idle thread sleeps immediately. If this time is zero, no thread
    /// busy-polls.
    pub spin: Duration,
    /// Collection to which notices are posted. Runtimes created from these options share it.
    pub notices: Notices,
}

/// Default of [`UringOptions::spin`]: the time that a server and its client together need to fall
/// asleep and be woken in a virtual machine. Two wake-ups were measured to take 44 to 70 us on one
/// machine and about 100 us on another. Busy-polling must last long enough to receive the next
/// request of a client whose own wake-up takes 50 us.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(100);

impl Default for UringOptions {
    fn default() -> Self {
        UringOptions {
            pool_bytes: 64 << 20,
            pool_bytes_at_start: usize::MAX,
            seed: 0,
            register: true,
            driver: DriverChoice::Auto,
            spin: SPIN_DEFAULT,
            notices: Notices::default(),
        }
    }
}

enum State {
    InFlight(Option<Waker>),
    Done(i32),
    Orphan,
}

struct Slot {
    state: State,
    owned: Owned,
    file: Rc<Descriptor>,
}

/// The operations of a thread, and the driver that executes them.
pub(crate) struct RealTime {
    driver: Box<dyn Driver>,
    slots: RefCell<Slab<Slot>>,
    /// Operations that wait for a free slot.
    starved: RefCell<Vec<Waker>>,
    /// Buffer for the completions of a turn.
    completions: RefCell<Vec<Completion>>,
    start: std::time::Instant,
    spin: Cell<Spin>,
    /// Number of bytes that operations have transferred so far. The throughput is computed from
    /// this number, in order to compare busy-polling with sleeping.
    moved_bytes: Cell<u64>,
    options: UringOptions,
    driven: Driven,
}

impl RealTime {
    pub(crate) fn new(options: &UringOptions, pool: &BufPool) -> io::Result<RealTime> {
        let (driver, driven) = choice::choose(options, pool)?;
        Ok(RealTime {
            driver,
            slots: RefCell::new(Slab::with_capacity(256)),
            starved: RefCell::new(Vec::new()),
            completions: RefCell::new(Vec::with_capacity(256)),
            start: sys::monotonic_now(),
            spin: Cell::new(Spin::new(options.spin)),
            moved_bytes: Cell::new(0),
            // The driver that was chosen replaces the requested one, so runtimes that are created
            // from these options later use the same driver as this runtime.
            // Nothing makes their pools grow.
            options: UringOptions {
                driver: driven.kind.into(),
                pool_bytes_at_start: usize::MAX,
                ..options.clone()
            },
            driven,
        })
    }

    pub(crate) fn now(&self) -> Instant {
        let ns = sys::monotonic_now().duration_since(self.start).as_nanos();
        Instant::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Returns the options of this runtime.
    pub(crate) fn options(&self) -> &UringOptions {
        &self.options
    }

    /// Returns the driver in use, and why it was chosen.
    pub(crate) fn driven(&self) -> &Driven {
        &self.driven
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.borrow().len()
    }

    fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Registers a piece of the pool's region with the kernel, or ends its registration. A piece
    /// that the kernel does not take can be used without.
    pub(crate) fn register_piece(&self, piece: usize, is_there: bool) {
        self.driver.register_piece(piece, is_there);
    }

    /// Submits queued operations to the kernel and handles completions. When `idle`, waits for a
    /// completion, at most until `deadline`.
    pub(crate) fn turn(&self, idle: bool, deadline: Option<Instant>) {
        // Completions are seen only by entering the driver, so enter it whenever an operation is in
        // flight.
        if idle && !self.driver.has_completed() {
            self.wait(deadline);
        } else if self.driver.must_enter() || self.in_flight() > 0 {
            self.driver.enter(false, None);
        }
        self.reap();
    }

    /// Waits for a completion, at most until `deadline`. The wait begins with busy-polling if
    /// `spin` decides so, and continues with sleeping.
    fn wait(&self, deadline: Option<Instant>) {
        let mut spin = self.spin.get();
        if !spin.is_on() {
            return self.sleep(deadline);
        }
        if self.driver.must_enter() {
            self.driver.enter(false, None);
            // Most sends complete during their submission. This is not recorded as a wait, since
            // such short waits would hide the long waits.
            if self.driver.has_completed() {
                return;
            }
        }
        let began = self.now();
        let budget = spin.budget(began, self.moved_bytes.get());
        if let Some(budget) = budget {
            let end = began + budget;
            if spin::probe(self, deadline.map_or(end, |deadline| end.min(deadline))) {
                spin.found();
                return self.spin.set(spin);
            }
        }
        self.sleep(deadline);
        spin.slept(self.now().since(began), budget.is_some());
        self.spin.set(spin);
    }

    fn sleep(&self, deadline: Option<Instant>) {
        let at_most = deadline.map(|deadline| deadline.since(self.now()));
        self.driver.enter(true, at_most);
    }

    fn reap(&self) {
        // Take all completions from the driver before handling them: handling a completion can
        // close a file, and closing a file calls the driver.
        let mut completions = self.completions.take();
        self.driver.reap(&mut completions);
        for (key, result) in completions.drain(..) {
            self.complete(key, result);
        }
        self.completions.replace(completions);
    }

    fn complete(&self, key: usize, result: i32) {
        let moved_bytes = u64::try_from(result).unwrap_or(0);
        self.moved_bytes.set(self.moved_bytes.get() + moved_bytes);
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(key).expect("a completion has a slot");
        match std::mem::replace(&mut slot.state, State::Done(result)) {
            State::InFlight(waker) => {
                drop(slots);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            State::Orphan => {
                let orphan = slots.remove(key);
                drop(slots);
                orphan.owned.discard(result);
                self.wake_starved();
            }
            State::Done(_) => unreachable!("an operation completes once"),
        }
    }

    /// Starts an operation and returns the key of its slot. If all slots are in use, the operation
    /// is not started: this returns `owned`, and wakes `waker` when a slot becomes free, so that
    /// the caller tries again.
    fn submit(
        &self,
        file: &Rc<Descriptor>,
        request: &Request,
        owned: Owned,
        waker: &Waker,
    ) -> Result<usize, Owned> {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= IN_FLIGHT_MAX {
            self.starved.borrow_mut().push(waker.clone());
            return Err(owned);
        }
        let key = slots.insert(Slot {
            state: State::InFlight(Some(waker.clone())),
            owned,
            file: Rc::clone(file),
        });
        drop(slots);
        self.driver.start(key, file, request);
        Ok(key)
    }

    /// Returns the result and the memory of a completed operation. If the operation is still in
    /// flight, stores `waker` and returns `None`.
    fn poll(&self, key: usize, waker: &Waker) -> Option<(i32, Owned)> {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(key).expect("a future's slot exists");
        match &mut slot.state {
            State::Done(result) => {
                let result = *result;
                let done = slots.remove(key);
                drop(slots);
                self.wake_starved();
                Some((result, done.owned))
            }
            State::InFlight(Some(known)) => {
                known.clone_from(waker);
                None
            }
            State::InFlight(None) | State::Orphan => {
                unreachable!("a future that lives is waited for")
            }
        }
    }

    /// Abandons an operation whose future has been dropped.
    fn abandon(&self, key: usize) {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get_mut(key).expect("a future's slot exists");
        match std::mem::replace(&mut slot.state, State::Orphan) {
            State::Done(result) => {
                let done = slots.remove(key);
                drop(slots);
                done.owned.discard(result);
                self.wake_starved();
            }
            State::InFlight(_) => {
                let file = Rc::clone(&slot.file);
                drop(slots);
                self.driver.cancel(key, &file);
            }
            State::Orphan => unreachable!("a future is dropped once"),
        }
    }

    /// Wakes all operations that wait for a slot, since a slot has become free. All of them must
    /// try again: if only the first operation were woken and its future had been dropped, the free
    /// slot would stay unused.
    fn wake_starved(&self) {
        if !self.starved.borrow().is_empty() {
            let starved = std::mem::take(&mut *self.starved.borrow_mut());
            starved.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until every operation in flight has completed.
    pub(crate) fn drain(&self) {
        while self
            .slots
            .borrow()
            .iter()
            .any(|(_, s)| !matches!(s.state, State::Done(_)))
        {
            self.turn(true, None);
        }
    }
}

impl Watched for RealTime {
    fn now(&self) -> Instant {
        RealTime::now(self)
    }

    fn has_completed(&self) -> bool {
        self.driver.has_completed()
    }

    fn has_work(&self) -> bool {
        self.driver.has_work()
    }

    fn do_work(&self) {
        self.driver.enter(false, None);
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        // Every future holds the runtime, and the runtime is being dropped, so no future exists any
        // more. Every operation in flight is therefore an orphan.
        self.drain();
    }
}

/// Returns the driver and operations of `rt`, or an error that says that files and sockets need
/// real time.
pub(crate) fn of(rt: &crate::Rt) -> io::Result<Rc<RealTime>> {
    rt.real().cloned().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "files and sockets exist in real time only, not in virtual time",
        )
    })
}
