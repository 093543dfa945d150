//! The driver for systems without usable `io_uring`: `epoll(7)` for operations whose readiness the
//! kernel reports, and a small pool of threads for operations on files.
//!
//! An operation on a socket or a message file is first tried with a system call that does not wait.
//! If it cannot complete, it is tried again when the kernel reports a change of the file. Reads,
//! writes and other operations on files and block devices have no system call that does not wait,
//! so the threads of a [`pool`] execute them. The driver must never poll repeatedly for an event
//! that the kernel would report: an idle thread sleeps.

mod attempt;
mod pool;
mod waiting;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use super::driver::{Completion, Descriptor, Driver, Request};
use super::set_nonblocking;
use crate::collections::Map;
use attempt::attempt;
use pool::{Job, Pool};
use waiting::Waiting;

pub use pool::THREADS_MAX;

/// Maximum number of changes of files that one call of `epoll_wait` reports; the next call reports
/// the remaining changes.
const EVENTS_MAX: usize = 256;
/// User data of an event of the pool's doorbell. The user data of other events is a descriptor.
const DOORBELL: u64 = u64::MAX;

/// The driver.
pub(super) struct Threads {
    epoll: OwnedFd,
    pool: Pool,
    /// Number of operations in the pool.
    in_pool: Cell<usize>,
    /// The files that `epoll` watches, each with the operations that wait until the file changes.
    files: RefCell<Map<RawFd, Waiting>>,
    /// Completions that were not reported yet.
    ended: RefCell<Vec<Completion>>,
}

impl Threads {
    /// Creates the driver; threads are started with the first operation on a file.
    ///
    /// # Errors
    /// The errors of `epoll_create(2)` and `eventfd(2)`.
    pub(super) fn new() -> io::Result<Threads> {
        // SAFETY: the call takes an integer; the result is checked before it is owned.
        let epoll = unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)) }?;
        let pool = Pool::new()?;
        let threads = Threads {
            epoll,
            pool,
            in_pool: Cell::new(0),
            files: RefCell::default(),
            ended: RefCell::default(),
        };
        let doorbell = threads.pool.doorbell().as_raw_fd();
        threads.control(
            libc::EPOLL_CTL_ADD,
            doorbell,
            libc::EPOLLIN as u32,
            DOORBELL,
        )?;
        Ok(threads)
    }

    fn control(&self, what: i32, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: data };
        // SAFETY: the pointer is to `event`, which lives through the call.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn end(&self, key: usize, result: i32) {
        self.ended.borrow_mut().push((key, result));
    }

    /// Tries an operation. If the operation cannot complete now, queues it until the kernel reports
    /// a change of its file.
    fn try_or_wait(&self, key: usize, file: &Descriptor, request: &Request) {
        if let Err(error) = make_nonblocking(file, request) {
            return self.end(key, negative(&error));
        }
        let fd = file.raw();
        // Operations on a file that wait for the same kind of change (readable or writable) are
        // executed in order. A new operation must therefore not be tried while another operation
        // waits for the same kind of change.
        let must_queue = self.files.borrow().get(&fd).is_some_and(|w| w.has(request));
        if !must_queue && let Some(result) = attempt(fd, request) {
            return self.end(key, result);
        }
        if let Err(error) = self.wait_for(key, fd, request) {
            self.end(key, negative(&error));
        }
    }

    /// Queues an operation until the kernel reports a change of the operation's file. The kernel
    /// reports each change once (`EPOLLET`), and it also reports a change that occurred between the
    /// attempt to execute the operation and this call.
    fn wait_for(&self, key: usize, fd: RawFd, request: &Request) -> io::Result<()> {
        let mut files = self.files.borrow_mut();
        let is_new = !files.contains_key(&fd);
        let waiting = files.entry(fd).or_default();
        let wanted = waiting.push(key, request);
        let what = match (is_new, wanted) {
            (true, _) => libc::EPOLL_CTL_ADD,
            (false, true) => libc::EPOLL_CTL_MOD,
            (false, false) => return Ok(()),
        };
        let watched = self.control(what, fd, waiting.events(), fd as u64);
        if watched.is_err() {
            waiting.remove(key);
            if is_new {
                files.remove(&fd);
            }
        }
        watched
    }

    /// Retries the operations that waited for the file descriptor `fd` to become ready, after the
    /// poller has reported `events` for it.
    fn changed(&self, fd: RawFd, events: u32) {
        let mut files = self.files.borrow_mut();
        // A file without an entry was closed while this event was pending. The event is ignored.
        let Some(waiting) = files.get_mut(&fd) else {
            return;
        };
        let mut ended = self.ended.borrow_mut();
        waiting.changed(events, |key, request| {
            let result = attempt(fd, request);
            ended.extend(result.map(|result| (key, result)));
            result.is_some()
        });
        if waiting.watches_in_vain() {
            let watched = self.control(libc::EPOLL_CTL_MOD, fd, waiting.events(), fd as u64);
            watched.expect("changing what is watched of a watched file cannot fail");
        }
    }

    /// Polls the registered file descriptors for readiness, and blocks for at most `at_most`;
    /// `None` means without a limit.
    fn probe(&self, at_most: Option<Duration>) {
        // `epoll_pwait2(2)`, which takes nanoseconds (Linux 5.11), cannot be used: this driver is
        // used under system call filters, which do not know that call and reject it.
        let limit_ms = match at_most {
            None => -1,
            Some(at_most) if at_most.is_zero() => 0,
            Some(at_most) => {
                if !self.sleep(at_most) {
                    return;
                }
                0
            }
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: the pointer and the length describe `events`, which lives through the call.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS_MAX as i32,
                limit_ms,
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return must_be_interrupted("waiting for files");
        };
        for event in &events[..count] {
            match event.u64 {
                DOORBELL => self.pool.hear(),
                fd => self.changed(fd as RawFd, event.events),
            }
        }
    }

    /// Sleeps until there are events; returns false when `at_most` has passed without an event.
    fn sleep(&self, at_most: Duration) -> bool {
        let mut watched = libc::pollfd {
            fd: self.epoll.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let limit = libc::timespec {
            // A longer time is practically unlimited.
            tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: at_most.subsec_nanos().into(),
        };
        // SAFETY: both pointers are to values that live through the call; the signal mask is null.
        let ready = unsafe { libc::ppoll(&raw mut watched, 1, &raw const limit, std::ptr::null()) };
        if ready < 0 {
            must_be_interrupted("sleeping");
        }
        ready > 0
    }
}

impl Driver for Threads {
    fn start(&self, key: usize, file: &Descriptor, request: &Request) {
        match request {
            Request::Read { .. }
            | Request::Write { .. }
            | Request::SyncData
            | Request::Allocate { .. } => {
                match self.pool.start(Job::new(key, file.raw(), request)) {
                    Ok(()) => self.in_pool.set(self.in_pool.get() + 1),
                    Err(error) => self.end(key, negative(&error)),
                }
            }
            // Only the ring supports commands.
            Request::Command { .. } => self.end(key, -libc::EOPNOTSUPP),
            Request::ReadMessage { .. }
            | Request::WriteMessage { .. }
            | Request::Receive { .. }
            | Request::Send { .. }
            | Request::Connect { .. }
            | Request::Accept
            | Request::Readable => self.try_or_wait(key, file, request),
        }
    }

    /// Cancels an operation. If the operation waits for its file or for a thread, it ends
    /// immediately. If a thread has already begun the operation, the thread completes it.
    fn cancel(&self, key: usize, file: &Descriptor) {
        let mut files = self.files.borrow_mut();
        let waited = files.get_mut(&file.raw());
        if waited.is_some_and(|waiting| waiting.remove(key)) {
            self.end(key, -libc::ECANCELED);
        } else if self.in_pool.get() > 0 && self.pool.cancel(key) {
            self.in_pool.set(self.in_pool.get() - 1);
            self.end(key, -libc::ECANCELED);
        }
    }

    fn must_enter(&self) -> bool {
        false
    }

    fn enter(&self, wait: bool, at_most: Option<Duration>) {
        // The runtime can sleep if no operation is in the pool, or if the pool will ring the
        // doorbell. A thread of the pool rings the doorbell only if the runtime has requested a
        // ring before it sleeps.
        let may_sleep = wait && (self.in_pool.get() == 0 || self.pool.listen());
        self.probe(if may_sleep {
            at_most
        } else {
            Some(Duration::ZERO)
        });
        if may_sleep && self.in_pool.get() > 0 {
            self.pool.stop_listening();
        }
    }

    fn has_completed(&self) -> bool {
        !self.ended.borrow().is_empty() || self.in_pool.get() > 0 && self.pool.has_ended()
    }

    fn has_work(&self) -> bool {
        true
    }

    fn reap(&self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.ended.borrow_mut());
        if self.in_pool.get() > 0 {
            let before = completions.len();
            self.pool.reap(completions);
            let ended = completions.len() - before;
            self.in_pool.set(self.in_pool.get() - ended);
        }
    }

    fn register(&self, _fd: RawFd) -> Option<u32> {
        None
    }

    fn register_piece(&self, _piece: usize, _is_there: bool) {}

    fn forget(&self, fd: RawFd, _fixed: Option<u32>) {
        let Some(waiting) = self.files.borrow_mut().remove(&fd) else {
            return;
        };
        assert!(waiting.is_empty(), "a file outlives its operations");
        // This call is necessary: if a duplicate of the descriptor is open, closing the descriptor
        // alone does not end the watch.
        self.control(libc::EPOLL_CTL_DEL, fd, 0, 0)
            .expect("a watched file can be forgotten");
    }
}

/// Makes the file nonblocking for requests whose system call has no flag for that. The descriptor
/// belongs to the runtime, so no other code is affected.
fn make_nonblocking(file: &Descriptor, request: &Request) -> io::Result<()> {
    match request {
        Request::Connect { .. } | Request::Accept => set_nonblocking(file.fd().as_fd()),
        // Message files need nothing here: they were made nonblocking when `MessageFile` took
        // ownership of them.
        _ => Ok(()),
    }
}

/// Checks that a failed wait was interrupted by a signal; panics at any other failure, which would
/// be a bug of this module.
fn must_be_interrupted(what: &str) {
    let error = io::Error::last_os_error();
    let is_interrupted = error.kind() == io::ErrorKind::Interrupted;
    assert!(is_interrupted, "{what} failed: {error}");
}

/// Converts an error to the result of an operation.
fn negative(error: &io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Takes ownership of the descriptor that a system call returned. If the system call failed,
/// returns its error.
///
/// # Safety
/// No other code owns the descriptor.
unsafe fn owned(fd: i32) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller guarantees that the descriptor has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
