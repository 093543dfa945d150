//! The seam between operations and the two ways to have the kernel carry them out.
//!
//! What is above this seam (slots, futures, ownership, cancelling, waiting) exists once; a driver
//! starts operations, sleeps until one ends, and says how each ended. It must never free or reuse
//! memory that a request names, and must report each operation that it was given exactly once.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Weak;
use std::time::Duration;

use super::RealTime;

/// What an operation asks of the kernel, with the addresses of memory that its slot owns. The
/// result of each is that of the system call named, or a negative error number.
#[derive(Clone, Copy)]
pub(crate) enum Request {
    /// `pread(2)`.
    Read {
        start: *mut u8,
        len: u32,
        offset: u64,
    },
    /// `pwritev2(2)`.
    Write {
        vectors: *const libc::iovec,
        count: u32,
        offset: u64,
        flags: i32,
    },
    /// `fdatasync(2)`.
    SyncData,
    /// `fallocate(2)`.
    Allocate { offset: u64, len: u64, mode: i32 },
    /// `readv(2)` of a file without offsets, one message at a time.
    ReadMessage {
        vectors: *const libc::iovec,
        count: u32,
    },
    /// `writev(2)` to a file without offsets, one message at a time.
    WriteMessage {
        vectors: *const libc::iovec,
        count: u32,
    },
    /// `recv(2)`.
    Receive { start: *mut u8, len: u32 },
    /// `sendmsg(2)`; the driver may send less than all.
    Send { message: *const libc::msghdr },
    /// `connect(2)`.
    Connect {
        address: *const libc::sockaddr,
        len: libc::socklen_t,
    },
    /// `accept4(2)`; the result is a descriptor that is closed on `execve(2)`.
    Accept,
    /// `poll(2)` for something to read, or the end of it.
    Readable,
    /// A command that the driver of the file defines (`IORING_OP_URING_CMD`).
    Command { op: u32, bytes: [u8; 16] },
}

/// An end of an operation: its key and its result.
pub(crate) type Completion = (usize, i32);

/// A way to have operations carried out.
pub(crate) trait Driver {
    /// Starts an operation. It may end before this returns, and is reported by
    /// [`reap`](Self::reap) all the same.
    fn start(&self, key: usize, file: &Descriptor, request: &Request);

    /// Asks for an early end of an operation that was started and not yet reported. It may end as
    /// if nobody had asked.
    fn cancel(&self, key: usize, file: &Descriptor);

    /// True when something was started that the kernel has not been given.
    fn must_enter(&self) -> bool;

    /// Gives the kernel what was started and looks for ends; with `wait` sleeps until there is
    /// one, but no longer than `at_most`. It may return early without one.
    fn enter(&self, wait: bool, at_most: Option<Duration>);

    /// True when an end can be reaped.
    fn has_completed(&self) -> bool;

    /// True when looking again could show an end that is not yet seen.
    fn has_work(&self) -> bool;

    /// Appends the ends that were seen and not yet reported.
    fn reap(&self, completions: &mut Vec<Completion>);

    /// Prepares for operations on `fd`: the place in the driver's table of files, if it has one.
    fn register(&self, fd: RawFd) -> Option<u32>;

    /// Forgets `fd`, on which no operation is under way, before it is closed.
    fn forget(&self, fd: RawFd, fixed: Option<u32>);
}

/// An open file, which stays open as long as an operation on it is under way.
///
/// Operations name files by number. If one could be closed before its operations have ended, the
/// number could be given to another file, and a write would go there.
pub(crate) struct Descriptor {
    /// Weak, since the slots of operations hold descriptors.
    real_time: Weak<RealTime>,
    fd: OwnedFd,
    /// Its place in the table of the driver.
    fixed: Option<u32>,
}

impl Descriptor {
    /// Prepares the driver for operations on `fd`.
    pub(super) fn new(real_time: &std::rc::Rc<RealTime>, fd: OwnedFd) -> Descriptor {
        let fixed = real_time.driver().register(fd.as_raw_fd());
        Descriptor {
            real_time: std::rc::Rc::downgrade(real_time),
            fd,
            fixed,
        }
    }

    /// The file.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Its number.
    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Its place in the table of the driver.
    pub(super) fn fixed(&self) -> Option<u32> {
        self.fixed
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // Without a runtime the table is gone already.
        if let Some(real_time) = self.real_time.upgrade() {
            real_time.driver().forget(self.raw(), self.fixed);
        }
    }
}
