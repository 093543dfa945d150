//! The interface between operations and the two drivers that have the kernel execute them.
//!
//! The code above this interface (slots, futures, ownership, cancelling, waiting) exists once; a
//! driver starts operations, sleeps until one completes, and reports their results. A driver must
//! never free or reuse memory that a request names, and must report each operation that was given
//! to it exactly once.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Weak;
use std::time::Duration;

use super::RealTime;

/// A request of an operation to the kernel, with the addresses of memory that the operation's slot
/// owns. The result of each is the result of the named system call, or a negative error number.
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
    /// `sendmsg(2)`; the driver may send only a part.
    Send { message: *const libc::msghdr },
    /// `connect(2)`.
    Connect {
        address: *const libc::sockaddr,
        len: libc::socklen_t,
    },
    /// `accept4(2)`; the result is a descriptor that is closed on `execve(2)`.
    Accept,
    /// `poll(2)` for data to read, or the end of the stream.
    Readable,
    /// A command that the driver of the file defines (`IORING_OP_URING_CMD`).
    Command { op: u32, bytes: [u8; 16] },
}

/// A completion of an operation: its key and its result.
pub(crate) type Completion = (usize, i32);

/// A way to have the kernel execute operations.
pub(crate) trait Driver {
    /// Starts an operation. The operation may complete before this returns, and is then still
    /// reported by [`reap`](Self::reap).
    fn start(&self, key: usize, file: &Descriptor, request: &Request);

    /// Requests the cancellation of an operation that was started and not yet reported. The
    /// operation may still complete normally.
    fn cancel(&self, key: usize, file: &Descriptor);

    /// Returns true when an operation was started and has not been submitted to the kernel.
    fn must_enter(&self) -> bool;

    /// Submits the started operations to the kernel and checks for completions. With `wait`, sleeps
    /// until there is one, for at most `at_most`; it may return early without one.
    fn enter(&self, wait: bool, at_most: Option<Duration>);

    /// Returns true when a completion can be reaped.
    fn has_completed(&self) -> bool;

    /// Returns true when another call of [`enter`](Self::enter) could find a completion that is not
    /// yet seen.
    fn has_work(&self) -> bool;

    /// Appends the completions that were seen and not yet reported.
    fn reap(&self, completions: &mut Vec<Completion>);

    /// Prepares for operations on `fd`; returns its index in the driver's table of files, if the
    /// driver has one.
    fn register(&self, fd: RawFd) -> Option<u32>;

    /// Removes `fd`, on which no operation is in flight, before it is closed.
    fn forget(&self, fd: RawFd, fixed: Option<u32>);
}

/// An open file, which stays open while an operation on it is in flight.
///
/// Operations name files by descriptor number. If a file could be closed before its operations have
/// completed, its number could be reused for another file, and a write would go there.
pub(crate) struct Descriptor {
    /// Weak, since the slots of operations hold descriptors.
    real_time: Weak<RealTime>,
    fd: OwnedFd,
    /// The file's index in the table of the driver.
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

    /// Returns the owned descriptor.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns the descriptor's number.
    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns the file's index in the table of the driver.
    pub(super) fn fixed(&self) -> Option<u32> {
        self.fixed
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // Without a runtime the table no longer exists.
        if let Some(real_time) = self.real_time.upgrade() {
            real_time.driver().forget(self.raw(), self.fixed);
        }
    }
}
