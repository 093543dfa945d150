//! Runs this program once more, for what the process that serves must not do itself: wait for the kernel
//! while the kernel waits for an answer of the server. A thread is not enough: it could wait for good, and
//! as long as a thread of the server waits, not even the end of the server breaks that off.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};
use bimetal_rt::Rt;
use bimetal_rt::mailbox::mailbox;

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

fn output(args: &[OsString]) -> io::Result<Output> {
    Command::new(PROGRAM)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        // What is typed at a terminal is for the server.
        .process_group(0)
        .output()
}
