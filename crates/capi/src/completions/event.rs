//! An event descriptor of the kernel, used as a flag that a program can poll.
//!
//! This module may use `unsafe` for one system call. It must never block.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A flag that a program can poll through a descriptor. It is not raised at first.
pub(super) struct EventFd(File);

impl EventFd {
    /// Creates a flag that is not raised.
    ///
    /// # Errors
    /// The errors of `eventfd(2)`.
    pub(super) fn new() -> io::Result<EventFd> {
        // SAFETY: the call takes no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created the descriptor, and no other owner knows its number.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(EventFd(File::from(fd)))
    }

    /// Makes the descriptor readable.
    pub(super) fn raise(&self) {
        // The write fails only if the counter would overflow. In that case the descriptor is
        // readable, as intended.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(super) fn lower(&self) {
        // The read fails only if the counter is already 0. In that case the descriptor is not
        // readable, as intended.
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(super) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
