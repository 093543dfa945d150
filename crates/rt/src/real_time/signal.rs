//! Termination signals as events that a task can wait for.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::{MessageBuf, MessageFile};
use crate::executor::Rt;

/// Signals that are blocked for the process and read from a descriptor instead.
pub struct Signals {
    file: MessageFile,
    rt: Rt,
    /// True if a hangup (SIGHUP) only posts a notice. Otherwise a hangup asks the process to end,
    /// like the other signals.
    outlives_terminal: bool,
}

/// Makes a write beyond `RLIMIT_FSIZE` fail with `EFBIG`, and a write to a pipe or socket without a
/// reader fail with `EPIPE`. By default the kernel ends the process at such a write, as a crash
/// would. With this setting, the failed write is reported like any other failure of a device. Call
/// this before other threads are started.
pub fn fail_writes_instead_of_ending() {
    for signal in [libc::SIGXFSZ, libc::SIGPIPE] {
        // SAFETY: both signals can be ignored, and no handler is set.
        let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
        assert_ne!(before, libc::SIG_ERR, "signal {signal} can be ignored");
    }
}

impl Signals {
    /// Takes over the signals that ask a process to end: SIGTERM, SIGINT, and SIGHUP, which is sent
    /// when the terminal closes.
    ///
    /// # Errors
    /// The errors of `sigprocmask(2)` and `signalfd(2)`; `Unsupported` in virtual time.
    pub fn termination(rt: &Rt) -> io::Result<Signals> {
        Signals::take_over(rt, false)
    }

    /// Takes over the same signals as [`Signals::termination`], for a server: a SIGHUP only posts a
    /// [notice](Rt::notices), and the server continues without its terminal.
    ///
    /// # Errors
    /// The errors of [`Signals::termination`].
    pub fn of_server(rt: &Rt) -> io::Result<Signals> {
        Signals::take_over(rt, true)
    }

    fn take_over(rt: &Rt, outlives_terminal: bool) -> io::Result<Signals> {
        super::of(rt)?;
        // SAFETY: the set is initialised by `sigemptyset` before it is read; each call uses its
        // pointer to the set only until it returns.
        let fd = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
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
            rt: rt.clone(),
            outlives_terminal,
        })
    }

    /// Waits for the next signal that asks the process to end, and returns its number.
    ///
    /// # Errors
    /// The errors of `read(2)`.
    pub async fn next(&self) -> io::Result<i32> {
        loop {
            let number = self.read().await?;
            if number != libc::SIGHUP || !self.outlives_terminal {
                return Ok(number);
            }
            let message = "the server goes on; nothing is read again, SIGTERM stops it";
            self.rt.notices().post("SIGHUP", "hangup", message);
        }
    }

    async fn read(&self) -> io::Result<i32> {
        const RECORD_BYTES: usize = size_of::<libc::signalfd_siginfo>();
        // One record fits into the head exactly, so no byte is read into the body.
        let buf = MessageBuf::new(RECORD_BYTES, self.rt.pool().alloc_now(1));
        let (read, buf) = self.file.read(buf).await;
        match (read?, buf.head().first_chunk()) {
            // The number is the first field, `ssi_signo`.
            (RECORD_BYTES, Some(number)) => Ok(i32::from_ne_bytes(*number)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
