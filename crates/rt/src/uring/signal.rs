//! Termination signals as something to wait for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::{opcode, types};

use super::{Operation, Owned, Uring};
use crate::executor::Rt;

/// Signals that are blocked for the process and read from a descriptor instead.
pub struct Signals {
    uring: Rc<Uring>,
    fd: OwnedFd,
}

impl Signals {
    /// Takes over SIGTERM and SIGINT of this process.
    ///
    /// # Errors
    /// Those of `sigprocmask(2)` and `signalfd(2)`; `Unsupported` in virtual time.
    pub fn termination(rt: &Rt) -> io::Result<Signals> {
        let uring = super::of(rt)?;
        // SAFETY: the set is initialised by `sigemptyset` before it is read; all calls take
        // pointers to it only for their own duration.
        let fd = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGTERM);
            libc::sigaddset(&mut set, libc::SIGINT);
            if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Signals { uring, fd })
    }

    /// Waits for the next signal and gives its number.
    ///
    /// # Errors
    /// Those of `read(2)`.
    pub async fn next(&self) -> io::Result<i32> {
        let mut bytes = vec![0u8; size_of::<libc::signalfd_siginfo>()].into_boxed_slice();
        let target = types::Fd(self.fd.as_raw_fd());
        let entry = opcode::Read::new(target, bytes.as_mut_ptr(), bytes.len() as u32).build();
        let (result, owned) = Operation::new(&self.uring, entry, Owned::Bytes(bytes)).await;
        let read = super::file::count(result)?;
        match owned {
            Owned::Bytes(bytes) if read == bytes.len() => {
                // The number is the first field, `ssi_signo`.
                Ok(i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
