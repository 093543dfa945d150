//! Runs this program as a child process, for calls that a server must not make itself: calls that
//! wait for the kernel while the kernel waits for an answer of the server. A thread is not enough,
//! because it could block forever, and even the exit of the server does not interrupt a blocked
//! thread.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bimetal_rt::Rt;
use bimetal_rt::mailbox::mailbox;

use bimetal_console::stderr::say;

/// Path of the running program. It is valid even if the program's file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Runs a verb of this program in a child process, and returns the child's standard output. The
/// child's standard error is that of this process.
///
/// # Errors
/// If the program cannot be run, or its exit status is not 0.
pub(crate) async fn run(rt: &Rt, args: Vec<OsString>) -> Result<String> {
    let verb = args.first().map(|verb| verb.to_string_lossy().into_owned());
    let verb = verb.unwrap_or_default();
    let cannot = || format!("cannot run `bimetal {verb}`");
    let (sender, receiver) = mailbox().with_context(cannot)?;
    let mut messages = receiver.listen(rt).with_context(cannot)?;
    let thread = std::thread::Builder::new().name(verb.clone());
    let started = thread.spawn(move || {
        // The receiver no longer exists if the server has been told to abandon its work.
        let _ = sender.send(output(&args));
    });
    started.with_context(cannot)?;
    let outcome = messages.next().await.and_then(|mut all| all.pop_front());
    let output = outcome.with_context(cannot)?.with_context(cannot)?;
    if !output.status.success() {
        bail!("`bimetal {verb}` has failed");
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns the arguments for a child process that removes the mount on a folder.
pub(crate) fn take_away_words(folder: &Path, force: bool) -> Vec<OsString> {
    let mut words = vec!["take-away".into(), folder.into()];
    if force {
        words.push("--force".into());
    }
    words
}

fn output(args: &[OsString]) -> io::Result<Output> {
    Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        // Terminal signals are meant for the server only.
        .process_group(0)
        .output()
}

/// A child process that runs this program and for which the caller can wait with a timeout.
pub(crate) struct Worker {
    child: Child,
    /// Receives a message when the child can write no more output, at the latest when it exits.
    ended: Receiver<()>,
}

impl Worker {
    /// Starts a verb of this program in a child process. The child does not inherit the standard
    /// error of this process. Instead, this process copies the child's standard error to its own.
    /// The reader of standard error then sees its end when this process exits, even if the kernel
    /// keeps the child alive. Signals from a terminal reach both processes.
    ///
    /// # Errors
    /// If the program cannot be run.
    pub(crate) fn start(args: Vec<OsString>) -> Result<Worker> {
        let mut child = Command::new(PROGRAM)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start this program again")?;
        let stderr = child.stderr.take().context("the process has no output")?;
        let (sender, ended) = channel();
        let wait = move || {
            let mut lines = BufReader::new(stderr).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                say(String::from_utf8_lossy(&line));
            }
            // The receiver no longer exists if this process is about to exit.
            let _ = sender.send(());
        };
        let thread = std::thread::Builder::new().name("worker".to_owned());
        thread.spawn(wait).context("cannot wait for a process")?;
        Ok(Worker { child, ended })
    }

    /// Waits at most `patience` for the end of the child, and returns its exit status; `None` if
    /// the child is still running.
    ///
    /// # Errors
    /// If waiting for the child fails.
    pub(crate) fn ended_within(&mut self, patience: Duration) -> Result<Option<ExitCode>> {
        match self.ended.recv_timeout(patience) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("a process was not waited for"),
        }
        let status = self.child.wait().context("cannot wait for a process")?;
        let code = status.code();
        // A child without an exit code was killed by a signal.
        let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        Ok(Some(ExitCode::from(code)))
    }

    /// Kills the child. If the child waits in a kernel call, it exits when the call returns.
    pub(crate) fn kill(&mut self) {
        // The call fails only if the child has already exited.
        let _ = self.child.kill();
    }
}
