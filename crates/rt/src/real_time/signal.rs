//! Termination signals as something to wait for.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::{MessageBuf, MessageFile};
use crate::buf::BufPool;
use crate::executor::Rt;

/// Signals that are blocked for the process and read from a descriptor instead.
pub struct Signals {
    file: MessageFile,
    pool: BufPool,
}

impl Signals {
    /// Takes over SIGTERM and SIGINT of this process.
    ///
    /// # Errors
    /// Those of `sigprocmask(2)` and `signalfd(2)`; `Unsupported` in virtual time.
    pub fn termination(rt: &Rt) -> io::Result<Signals> {
        super::of(rt)?;
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
        Ok(Signals {
            file: MessageFile::new(rt, fd)?,
            pool: rt.pool().clone(),
        })
    }

    /// Waits for the next signal and gives its number.
    ///
    /// # Errors
    /// Those of `read(2)`.
    pub async fn next(&self) -> io::Result<i32> {
        const RECORD_BYTES: usize = size_of::<libc::signalfd_siginfo>();
        // A record fills the head, so nothing is read into the body.
        let buf = MessageBuf::new(RECORD_BYTES, self.pool.alloc_now(1));
        let (read, buf) = self.file.read(buf).await;
        match (read?, buf.head().first_chunk()) {
            // The number is the first field, `ssi_signo`.
            (RECORD_BYTES, Some(number)) => Ok(i32::from_ne_bytes(*number)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
