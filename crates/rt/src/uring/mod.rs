//! The real-time driver: one `io_uring`, entered once a turn.
//!
//! Every operation has a slot that owns what the kernel may touch (see the crate's contract). The
//! slot is keyed by the `user_data` of the submission; completions are matched by it and by
//! nothing else.
//!
//! This module may use `unsafe`: it hands memory to the kernel. It must never free or reuse what a
//! slot owns before the completion of that slot has been seen.

mod command;
mod file;
mod lock;
mod message;
mod op;
mod signal;
mod socket;
mod spin;
mod sys;
mod trial;
mod watch;

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::Waker;
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use slab::Slab;

use crate::buf::BufPool;
use crate::time::Instant;
pub use command::{CommandFile, DriverPages, LONG_COMMAND_BYTES};
pub use file::{File, OpenOptions};
pub use lock::{try_claim, try_lock_range};
pub use message::{MessageBuf, MessageFile};
pub(crate) use op::{Operation, Owned};
pub use signal::Signals;
pub(crate) use socket::{Socket, SocketListener};
use spin::{Spin, Watched};
pub use sys::{MemoryLock, keep_memory_resident, set_nonblocking};
pub(crate) use sys::{begin_thread, boot_id, random_bytes, unix_seconds};
pub use watch::Watch;

/// Submission queue entries; more operations than this simply enter the ring more often.
const SUBMISSIONS: u32 = 1024;
/// Operations queued before they go to the kernel without waiting for the end of the turn. The
/// kernel holds a long batch back until all of it is prepared, and a device that works on many
/// requests at once stands still meanwhile: random reads of 4 KiB at depth 32 from a virtual disk
/// got a fifth faster, at less CPU each, than with one batch a turn (medians of 369 and 273 us).
const SUBMIT_AT: usize = 4;
/// Operations in flight at most; further ones wait for a slot, so completions never overflow.
const IN_FLIGHT_MAX: usize = 8192;
/// Files that can be registered.
const FIXED_FILES: u32 = 256;
/// `user_data` of requests to cancel, whose own completion nobody waits for.
const CANCEL: u64 = u64::MAX;

/// How a real-time runtime is set up.
#[derive(Clone, Debug)]
pub struct UringOptions {
    /// Size of the region that buffers are carved from and that is registered with the ring.
    pub pool_bytes: usize,
    /// The seed of the random numbers.
    pub seed: u64,
    /// Registers buffers and files with the ring (measured at a fifth less CPU per operation).
    /// What the locked-memory limit forbids is used unregistered, without an error.
    pub register: bool,
    /// How long a thread at most looks for something to do before it sleeps, while what it waits for comes
    /// that soon; an idle thread sleeps at once. With nothing it always does.
    pub spin: Duration,
}

/// What falling asleep and being woken costs in a virtual machine, on both sides.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);

impl Default for UringOptions {
    fn default() -> Self {
        UringOptions {
            pool_bytes: 64 << 20,
            seed: 0,
            register: true,
            spin: SPIN_DEFAULT,
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
}

/// The ring and its slots.
pub(crate) struct Uring {
    ring: RefCell<IoUring>,
    slots: RefCell<Slab<Slot>>,
    /// Operations that wait for a free slot.
    starved: RefCell<Vec<Waker>>,
    start: std::time::Instant,
    /// Addresses of the region that the kernel knows. Buffers of other pools and of the heap lie
    /// outside, and an operation that named them as registered would fail (`EFAULT`).
    registered: Range<usize>,
    files: RefCell<FixedFiles>,
    /// Entries pushed since the ring was last entered.
    pushed: Cell<bool>,
    spin: Cell<Spin>,
    /// Bytes that operations have moved so far: what waiting in one way or the other is judged by.
    moved_bytes: Cell<u64>,
    options: UringOptions,
}

/// Which places of the registered file table are free; none when registering failed.
struct FixedFiles {
    free: Vec<u32>,
}

impl Uring {
    pub(crate) fn new(options: &UringOptions, pool: &BufPool) -> io::Result<Uring> {
        let ring = new_ring()?;
        let mut files = FixedFiles { free: Vec::new() };
        let mut registered = 0..0;
        if options.register {
            if let Some(region) = pool.region_iovec() {
                // SAFETY: the region outlives the ring's use of it: `Drop` waits for every
                // operation, and the pool unmaps only after its last handle is gone.
                let result = unsafe { ring.submitter().register_buffers(&[region]) };
                if accept_limits(result)? {
                    let start = region.iov_base as usize;
                    registered = start..start + region.iov_len;
                }
            }
            if accept_limits(ring.submitter().register_files_sparse(FIXED_FILES))? {
                files.free = (0..FIXED_FILES).rev().collect();
            }
        }
        Ok(Uring {
            ring: RefCell::new(ring),
            slots: RefCell::new(Slab::with_capacity(256)),
            starved: RefCell::new(Vec::new()),
            start: sys::monotonic_now(),
            registered,
            files: RefCell::new(files),
            pushed: Cell::new(false),
            spin: Cell::new(Spin::new(options.spin)),
            moved_bytes: Cell::new(0),
            options: options.clone(),
        })
    }

    pub(crate) fn now(&self) -> Instant {
        let ns = sys::monotonic_now().duration_since(self.start).as_nanos();
        Instant::from_ns(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// How it was set up.
    pub(crate) fn options(&self) -> &UringOptions {
        &self.options
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.slots.borrow().len()
    }

    /// True when all of these bytes lie in the region that is registered with this ring.
    pub(crate) fn has_registered(&self, start: *const u8, len: usize) -> bool {
        let start = start as usize;
        self.registered.start <= start && start + len <= self.registered.end
    }

    /// Hands what has been queued to the kernel and takes what has completed. When `idle`, waits
    /// for a completion, at most until `deadline`.
    pub(crate) fn turn(&self, idle: bool, deadline: Option<Instant>) {
        // Completions appear only when the ring is entered (deferred task work), so it is entered
        // as long as anything is in flight.
        if idle && !self.has_completed() {
            self.wait(deadline);
        } else if self.pushed.get() || self.in_flight() > 0 {
            self.enter(false, None);
        }
        self.reap();
    }

    /// Waits for a completion, at most until `deadline`: looking first, where that pays, then asleep.
    fn wait(&self, deadline: Option<Instant>) {
        let mut spin = self.spin.get();
        if !spin.is_on() {
            return self.enter(true, deadline);
        }
        let began = self.now();
        let budget = spin.budget(began, self.moved_bytes.get());
        if let Some(budget) = budget {
            let end = began + budget;
            if self.pushed.get() {
                self.enter(false, None);
            }
            if spin::look(self, deadline.map_or(end, |deadline| end.min(deadline))) {
                spin.found();
                return self.spin.set(spin);
            }
        }
        self.enter(true, deadline);
        spin.slept(self.now().since(began), budget.is_some());
        self.spin.set(spin);
    }

    fn enter(&self, wait: bool, deadline: Option<Instant>) {
        const GET_EVENTS: u32 = 1;
        self.pushed.set(false);
        let queued = self.ring.borrow_mut().submission().len() as u32;
        let ring = self.ring.borrow();
        let submitter = ring.submitter();
        let result = match deadline {
            Some(deadline) if wait => {
                let left = deadline.since(self.now());
                let spec = types::Timespec::from(left.max(Duration::from_nanos(1)));
                let args = types::SubmitArgs::new().timespec(&spec);
                submitter.submit_with_args(1, &args)
            }
            _ if wait => submitter.submit_and_wait(1),
            // SAFETY: no argument is passed, so there is none to be invalid.
            _ => unsafe { submitter.enter::<libc::sigset_t>(queued, 0, GET_EVENTS, None) },
        };
        self.entered(result);
    }

    /// Hands what has been queued to the kernel; completions are left for the end of the turn.
    fn submit_queued(&self) {
        self.pushed.set(false);
        let result = self.ring.borrow().submitter().submit();
        self.entered(result);
    }

    fn entered(&self, result: io::Result<usize>) {
        match result {
            Ok(_) => {}
            // ETIME: the deadline came first. EINTR: a signal. EBUSY and EAGAIN: the kernel wants
            // completions reaped or lacks memory for now; the entries stay queued for the next turn.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                self.pushed.set(true);
            }
            Err(e) => panic!("entering the ring failed, which only a bug here can cause: {e}"),
        }
    }

    fn reap(&self) {
        let mut ring = self.ring.borrow_mut();
        for completion in ring.completion() {
            if completion.user_data() != CANCEL {
                self.complete(completion.user_data() as usize, completion.result());
            }
        }
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

    /// Queues an operation and names its slot. When every slot is taken, what it owned comes back
    /// and `waker` is woken for another try.
    fn submit(&self, entry: squeue::Entry, owned: Owned, waker: &Waker) -> Result<usize, Owned> {
        let mut slots = self.slots.borrow_mut();
        if slots.len() >= IN_FLIGHT_MAX {
            self.starved.borrow_mut().push(waker.clone());
            return Err(owned);
        }
        let key = slots.insert(Slot {
            state: State::InFlight(Some(waker.clone())),
            owned,
        });
        drop(slots);
        self.push(&entry.user_data(key as u64));
        Ok(key)
    }

    fn push(&self, entry: &squeue::Entry) {
        loop {
            let mut ring = self.ring.borrow_mut();
            // SAFETY: the entry points only at memory owned by its slot, which lives until the
            // completion; see the ownership contract.
            let pushed = unsafe { ring.submission().push(entry) };
            let queued = ring.submission().len();
            drop(ring);
            self.pushed.set(true);
            match pushed {
                Ok(()) if queued >= SUBMIT_AT => return self.submit_queued(),
                Ok(()) => return,
                Err(_full) => self.enter(false, None),
            }
        }
    }

    /// Forgets an operation whose future is gone.
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
                drop(slots);
                self.push(
                    &opcode::AsyncCancel::new(key as u64)
                        .build()
                        .user_data(CANCEL),
                );
            }
            State::Orphan => unreachable!("a future is dropped once"),
        }
    }

    /// A slot is free. All that starve look again, since the first of them may be gone.
    fn wake_starved(&self) {
        if !self.starved.borrow().is_empty() {
            let starved = std::mem::take(&mut *self.starved.borrow_mut());
            starved.into_iter().for_each(Waker::wake);
        }
    }

    /// Waits until every operation in flight that nobody waits for has completed.
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

    /// Puts a file into the registered table; `None` when there is no room or no table.
    fn register_file(&self, fd: i32) -> Option<u32> {
        let index = self.files.borrow_mut().free.pop()?;
        match self
            .ring
            .borrow()
            .submitter()
            .register_files_update(index, &[fd])
        {
            Ok(_) => Some(index),
            Err(_limit) => {
                self.files.borrow_mut().free.push(index);
                None
            }
        }
    }

    fn unregister_file(&self, index: u32) {
        self.ring
            .borrow()
            .submitter()
            .register_files_update(index, &[-1])
            .expect("clearing a place of the file table cannot fail");
        self.files.borrow_mut().free.push(index);
    }
}

impl Watched for Uring {
    fn now(&self) -> Instant {
        Uring::now(self)
    }

    fn has_completed(&self) -> bool {
        !self.ring.borrow_mut().completion().is_empty()
    }

    fn has_work(&self) -> bool {
        self.ring.borrow_mut().submission().taskrun()
    }

    fn do_work(&self) {
        self.enter(false, None);
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // Futures hold the runtime, so none is left: every slot in flight is an orphan.
        self.drain();
    }
}

/// A ring with what newer kernels offer, or a plain one where they refuse.
fn new_ring() -> io::Result<IoUring> {
    let completions = (2 * IN_FLIGHT_MAX) as u32;
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_cqsize(completions)
        .build(SUBMISSIONS)
        .or_else(|e| match e.raw_os_error() {
            Some(libc::EINVAL) => IoUring::builder()
                .setup_cqsize(completions)
                .build(SUBMISSIONS),
            _ => Err(e),
        })
}

/// Registration is an optimisation: what a limit or an old kernel refuses is done without.
fn accept_limits(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOMEM | libc::EPERM | libc::EINVAL)
            ) =>
        {
            Ok(false)
        }
        Err(e) => Err(e),
    }
}

/// The ring of `rt`, or an error that says that this device needs real time.
pub(crate) fn of(rt: &crate::Rt) -> io::Result<Rc<Uring>> {
    rt.uring().cloned().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "files and sockets exist in real time only, not in virtual time",
        )
    })
}
