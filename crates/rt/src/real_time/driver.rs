//! The interface between operations and the two drivers (`io_uring` and threads), which have the
//! kernel execute the operations.
//!
//! The code above this interface (slots, futures, ownership, cancelling, waiting) exists once. A
//! driver starts operations, sleeps until one completes, and reports their results. A driver must
//! never free or reuse memory that a request refers to, and must report each operation that was
//! given to it exactly once.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Weak;
use std::time::Duration;

use super::RealTime;

/// A request to the kernel to execute an operation, with the addresses of memory that the
/// operation's slot owns. The result of a request is the result of the system call that is named at
/// the request's variant, or a negative error number.
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
    /// `readv(2)` of a file without offsets, such as a device file. Each call reads one message.
    ReadMessage {
        vectors: *const libc::iovec,
        count: u32,
    },
    /// `writev(2)` to a file without offsets, such as a device file. Each call writes one message.
    WriteMessage {
        vectors: *const libc::iovec,
        count: u32,
    },
    /// `recv(2)`.
    Receive { start: *mut u8, len: u32 },
    /// `sendmsg(2)`; only a part of the message can be sent.
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

/// Driver of a runtime. It passes operations to the kernel, which executes them, and reports their
/// completions.
pub(crate) trait Driver {
    /// Starts an operation. The operation can complete before this returns; [`reap`](Self::reap)
    /// reports its completion in that case, too.
    fn start(&self, key: usize, file: &Descriptor, request: &Request);

    /// Requests the cancellation of an operation that was started and whose completion was not
    /// reported. The operation can still complete normally.
    fn cancel(&self, key: usize, file: &Descriptor);

    /// Returns true when an operation has been started but not yet submitted to the kernel.
    fn must_enter(&self) -> bool;

    /// Submits the started operations to the kernel and checks for completions. With `wait`, sleeps
    /// until an operation completes, for at most `at_most` (`None`: no limit). The sleep can end
    /// early, without a completion.
    fn enter(&self, wait: bool, at_most: Option<Duration>);

    /// Returns true when a completion can be reaped.
    fn has_completed(&self) -> bool;

    /// Returns true when another call of [`enter`](Self::enter) could find a new completion.
    fn has_work(&self) -> bool;

    /// Appends the completions that have been found and not yet reported.
    fn reap(&self, completions: &mut Vec<Completion>);

    /// Prepares for operations on `fd`. Returns the index of `fd` in the driver's table of files,
    /// if the driver has such a table and the table has room.
    fn register(&self, fd: RawFd) -> Option<u32>;

    /// Registers a piece of the pool's region with the kernel, or ends its registration, if the
    /// driver registers memory. No operation on the piece is in flight.
    fn register_piece(&self, piece: usize, is_there: bool);

    /// Removes `fd` from the driver before it is closed. The caller makes sure that no operation on
    /// `fd` is in flight. `fixed` is the index that [`register`](Self::register) returned.
    fn forget(&self, fd: RawFd, fixed: Option<u32>);
}

/// An open file, which stays open while an operation on it is in flight.
///
/// Operations identify files by descriptor number. If a file were closed before its operations have
/// completed, the kernel could reuse the file's descriptor number for another file, and a write of
/// an old operation would go to that other file.
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
        // After the runtime has been dropped, there is no driver whose table of files could have an
        // entry for this file.
        if let Some(real_time) = self.real_time.upgrade() {
            real_time.driver().forget(self.raw(), self.fixed);
        }
    }
}
