//! Threads that execute operations on files and block devices.
//!
//! All [`THREADS_MAX`] threads are started with the first operation, so that no thread must be
//! created later. At that time the machine might be short of memory, and might get free memory only
//! after this process has written data. When all threads are busy, operations wait in a queue,
//! whose length is bounded by the slots of the runtime. Threads sleep while the queue is empty, and
//! end with the pool. A thread must access only the memory that the slot of its operation owns.
//! Once the completion of an operation is visible, the thread must not access the memory of the
//! operation any more.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::owned;
use crate::real_time::begin_thread;
use crate::real_time::driver::{Completion, Request};

/// Number of threads of one runtime, and therefore the maximum number of file operations that are
/// executed at the same time. Drives reach most of their throughput at this queue depth, and each
/// further thread costs a stack.
pub const THREADS_MAX: usize = 16;
/// Stack size of a thread. The stack is small, since a thread makes only one system call at a time
/// and the stack might be locked into memory.
const STACK_BYTES: usize = 128 << 10;

/// An operation for a thread.
pub(super) struct Job {
    key: usize,
    fd: RawFd,
    request: Request,
}

// SAFETY: the slot owns the memory that the request refers to, until the runtime's own thread has
// seen the completion. Until then that thread does not use the memory, as with an operation that
// the kernel executes.
unsafe impl Send for Job {}

impl Job {
    /// Creates a file operation whose slot has the key `key`. The slot keeps `fd` open until the
    /// operation completes.
    pub(super) fn new(key: usize, fd: RawFd, request: &Request) -> Job {
        Job {
            key,
            fd,
            request: *request,
        }
    }

    /// Executes the operation and waits until it ends, without a time limit.
    fn run(&self) -> i32 {
        loop {
            match self.call() {
                // The kernel moves less than 2 GiB at a time.
                result @ 0.. => return result as i32,
                _ => match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EINTR) => {}
                    error => return -error.unwrap_or(libc::EIO),
                },
            }
        }
    }

    fn call(&self) -> isize {
        let fd = self.fd;
        // SAFETY: the slot of the operation owns the memory that the request refers to. An offset
        // beyond the kernel's maximum becomes a negative offset, which the kernel refuses.
        unsafe {
            match self.request {
                Request::Read { start, len, offset } => {
                    libc::pread64(fd, start.cast(), len as usize, offset as i64)
                }
                Request::Write {
                    vectors,
                    count,
                    offset,
                    flags,
                } => libc::pwritev2(fd, vectors, count as i32, offset as i64, flags),
                Request::SyncData => libc::fdatasync(fd) as isize,
                Request::Allocate { offset, len, mode } => {
                    libc::fallocate64(fd, mode, offset as i64, len as i64) as isize
                }
                _ => unreachable!("only operations on files come to the threads"),
            }
        }
    }
}

/// State shared by the threads and their runtime.
struct Shared {
    state: Mutex<PoolState>,
    work: Condvar,
    /// True when there are completions that the runtime has not taken.
    has_ended: AtomicBool,
    /// The doorbell: an eventfd that wakes the runtime.
    doorbell: OwnedFd,
}

struct PoolState {
    jobs: VecDeque<Job>,
    ended: Vec<Completion>,
    /// True when the runtime sleeps or is about to sleep.
    is_listening: bool,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // No thread panics while it holds the lock, so poisoning can be ignored.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes operations until the pool ends; the main loop of a thread.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let result = job.run();
                state = self.end(job.key, result);
            } else if state.is_over {
                return;
            } else {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn end(&self, key: usize, result: i32) -> MutexGuard<'_, PoolState> {
        let mut state = self.lock();
        state.ended.push((key, result));
        self.has_ended.store(true, Ordering::Release);
        if !std::mem::take(&mut state.is_listening) {
            return state;
        }
        drop(state);
        ring(&self.doorbell);
        self.lock()
    }
}

/// The threads of a runtime.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: RefCell<Vec<JoinHandle<()>>>,
}

impl Pool {
    /// Creates a pool whose threads are not started yet.
    ///
    /// # Errors
    /// The errors of `eventfd(2)`.
    pub(super) fn new() -> io::Result<Pool> {
        // SAFETY: the call takes integers; the result is checked before it is owned.
        let doorbell = unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }?;
        let state = PoolState {
            jobs: VecDeque::with_capacity(256),
            ended: Vec::with_capacity(256),
            is_listening: false,
            is_over: false,
        };
        let shared = Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            has_ended: AtomicBool::new(false),
            doorbell,
        };
        Ok(Pool {
            shared: Arc::new(shared),
            threads: RefCell::default(),
        })
    }

    /// Returns the descriptor of the doorbell, which becomes readable when an operation completes
    /// while the runtime [listens](Self::listen).
    pub(super) fn doorbell(&self) -> &OwnedFd {
        &self.shared.doorbell
    }

    /// Queues an operation for the threads of the pool.
    ///
    /// # Errors
    /// If there is no thread and no thread can be created.
    pub(super) fn start(&self, job: Job) -> io::Result<()> {
        if self.threads.borrow().is_empty() {
            self.start_threads()?;
        }
        self.shared.lock().jobs.push_back(job);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Starts the threads. If the kernel refuses some of them, the pool works with fewer threads,
    /// but with at least one.
    fn start_threads(&self) -> io::Result<()> {
        let mut threads = self.threads.borrow_mut();
        for number in 0..THREADS_MAX {
            let shared = Arc::clone(&self.shared);
            let builder = Builder::new().name(format!("file {number}"));
            let started = builder.stack_size(STACK_BYTES).spawn(move || {
                begin_thread();
                shared.work();
            });
            match started {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                Err(_limit) => break,
            }
        }
        Ok(())
    }

    /// Removes an operation from the queue; returns false when a thread has already begun it.
    pub(super) fn cancel(&self, key: usize) -> bool {
        let mut state = self.shared.lock();
        let at = state.jobs.iter().position(|job| job.key == key);
        at.and_then(|at| state.jobs.remove(at)).is_some()
    }

    /// Requests that the doorbell be rung at the next completion. If there are completions that the
    /// runtime has not taken, requests nothing and returns false.
    pub(super) fn listen(&self) -> bool {
        let mut state = self.shared.lock();
        state.is_listening = state.ended.is_empty();
        state.is_listening
    }

    /// Cancels the request that `listen` made: the next completion does not ring the doorbell. A
    /// runtime that is awake does not need the doorbell.
    pub(super) fn stop_listening(&self) {
        self.shared.lock().is_listening = false;
    }

    /// Clears the doorbell after it was rung.
    pub(super) fn hear(&self) {
        let mut count = 0_u64;
        // SAFETY: the pointer and the length describe `count`, which lives through the call. The
        // read fails only when the doorbell was already cleared.
        unsafe { libc::read(self.shared.doorbell.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Returns true when there are completions to be taken.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Acquire)
    }

    /// Takes the completions.
    pub(super) fn reap(&self, completions: &mut Vec<Completion>) {
        if self.has_ended() {
            let mut state = self.shared.lock();
            completions.append(&mut state.ended);
            self.shared.has_ended.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.work.notify_all();
        for thread in self.threads.take() {
            thread.join().expect("a thread of the pool does not panic");
        }
    }
}

fn ring(doorbell: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: the pointer and the length describe `one`, which lives through the call. The write
    // fails only when the doorbell was rung 2^64 times without being cleared.
    unsafe { libc::write(doorbell.as_raw_fd(), (&raw const one).cast(), 8) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until the doorbell is rung. If no ring comes in time, the test fails instead of
    /// waiting forever.
    fn wait_for_doorbell(pool: &Pool) {
        let mut watched = libc::pollfd {
            fd: pool.doorbell().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the pointer is to `watched`, which lives through the call.
        let ready = unsafe { libc::poll(&raw mut watched, 1, 60_000) };
        assert_eq!(ready, 1, "the bell is rung");
        pool.hear();
    }

    #[test]
    fn every_end_is_told_once_and_no_bell_is_lost() {
        const JOBS: usize = 10 * THREADS_MAX;
        let pool = Pool::new().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        for round in 0..100 {
            for key in 0..JOBS {
                let job = Job::new(key, file.as_raw_fd(), &Request::SyncData);
                pool.start(job).unwrap();
            }
            let mut ended = Vec::new();
            while ended.len() < JOBS {
                if pool.listen() {
                    wait_for_doorbell(&pool);
                }
                pool.reap(&mut ended);
            }
            ended.sort_unstable();
            // The null device stores no data and does not support fdatasync(2).
            let expected: Vec<Completion> = (0..JOBS).map(|key| (key, -libc::EINVAL)).collect();
            assert_eq!(ended, expected, "round {round}");
            assert!(!pool.has_ended());
        }
        assert_eq!(pool.threads.borrow().len(), THREADS_MAX);
    }

    #[test]
    fn an_operation_that_has_ended_cannot_be_taken_back() {
        let pool = Pool::new().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let job = Job::new(7, file.as_raw_fd(), &Request::SyncData);
        pool.start(job).unwrap();
        while pool.listen() {
            wait_for_doorbell(&pool);
        }
        assert!(!pool.cancel(7));
        let mut ended = Vec::new();
        pool.reap(&mut ended);
        assert_eq!(ended, [(7, -libc::EINVAL)]);
    }
}
