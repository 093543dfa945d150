//! An event descriptor of the kernel, used as a flag that a program can poll.
//!
//! This module may use `unsafe` for one system call. It must never block.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A pollable flag, not raised at first; see the module documentation.
pub(super) struct EventFd(File);

impl EventFd {
    /// # Errors
    /// Those of `eventfd(2)`.
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
        // The write fails only when the counter would overflow; the descriptor is then readable
        // anyway.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(super) fn lower(&self) {
        // The read fails only when the descriptor is already unreadable.
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(super) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
