//! Runs this program once more, for what the process that serves must not do itself: wait for the
//! kernel while the kernel waits for an answer of the server. A thread is not enough: it could wait
//! for good, and as long as a thread of the server waits, not even the end of the server breaks
//! that off.

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

use crate::said::say;

/// The program that runs, also when its file has been replaced since.
const PROGRAM: &str = "/proc/self/exe";

/// Runs a verb of this program and gives what it printed. What it says on standard error is said.
///
/// # Errors
/// When it cannot be run, or its status is not 0.
pub(crate) async fn run(rt: &Rt, args: Vec<OsString>) -> Result<String> {
    let verb = args.first().map(|verb| verb.to_string_lossy().into_owned());
    let verb = verb.unwrap_or_default();
    let cannot = || format!("cannot run `bimetal {verb}`");
    let (sender, receiver) = mailbox().with_context(cannot)?;
    let mut letters = receiver.listen(rt).with_context(cannot)?;
    let thread = std::thread::Builder::new().name(verb.clone());
    let started = thread.spawn(move || {
        // Nobody waits for it any more when the server has been told to give up.
        let _ = sender.send(output(&args));
    });
    started.with_context(cannot)?;
    let outcome = letters.next().await.and_then(|mut all| all.pop_front());
    let output = outcome.with_context(cannot)?.with_context(cannot)?;
    if !output.status.success() {
        bail!("`bimetal {verb}` has failed");
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The words that have a mount taken away by a process of its own.
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
        // What is typed at a terminal is for the server.
        .process_group(0)
        .output()
}

/// This program once more, which whoever started it waits for as long as he likes.
pub(crate) struct Worker {
    child: Child,
    /// It tells something when the process can say nothing more, as at its end.
    ended: Receiver<()>,
}

impl Worker {
    /// Runs a verb of this program. What it says on standard error is said by this process: where
    /// the kernel keeps it beyond the end of this one, nobody who reads that waits for it. Signals
    /// from a terminal go to both.
    ///
    /// # Errors
    /// When it cannot be run.
    pub(crate) fn start(args: Vec<OsString>) -> Result<Worker> {
        let mut child = Command::new(PROGRAM)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run this program once more")?;
        let stderr = child.stderr.take().context("a process without output")?;
        let (sender, ended) = channel();
        let wait = move || {
            let mut lines = BufReader::new(stderr).split(b'\n');
            while let Some(Ok(line)) = lines.next() {
                say(String::from_utf8_lossy(&line));
            }
            // Nobody waits for it any more when this process is about to end.
            let _ = sender.send(());
        };
        let thread = std::thread::Builder::new().name("worker".to_owned());
        thread.spawn(wait).context("cannot wait for a process")?;
        Ok(Worker { child, ended })
    }

    /// With which status it has ended; `None` when it still runs after so long.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub(crate) fn ended_within(&mut self, patience: Duration) -> Result<Option<ExitCode>> {
        match self.ended.recv_timeout(patience) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => bail!("a process was not waited for"),
        }
        let status = self.child.wait().context("cannot wait for a process")?;
        let code = status.code();
        // Without a code it was killed.
        let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        Ok(Some(ExitCode::from(code)))
    }

    /// Ends it, at the latest when what it waits for has come.
    pub(crate) fn kill(&mut self) {
        // It fails only where it has ended by itself.
        let _ = self.child.kill();
    }
}
