//! `bimetal serve`: serves the exports of a configuration in the foreground until a signal.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bimetal_block::graph::OpenOptions;
use bimetal_block::layers::mirror::{self, Force, OpeningStep};
use bimetal_block::units::show_size;
use bimetal_rt::Rt;
use bimetal_rt::real_time::{Signals, keep_memory_resident};

use crate::config::Config;
use crate::limits;
use crate::running::Running;
use bimetal_console::stderr::{say, say_notices};

/// Arguments of the verb `serve`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
}

/// Options for opening volumes with missing or diverged sides.
#[derive(clap::Args)]
pub(crate) struct OpenArgs {
    /// Open a mirror even if a missing side may have newer data: `read-only` to inspect the last
    /// known state, or `fork` to continue from it, after which the missing side can only be rebuilt
    #[arg(long, value_name = "HOW")]
    force_open: Option<ForceOpen>,
    /// Discard the content of this side and rebuild it from the other sides; may be repeated
    #[arg(long, value_name = "SIDE")]
    rebuild: Vec<String>,
}

/// Mode for opening a mirror whose opening would otherwise be refused.
#[derive(Clone, Copy, clap::ValueEnum)]
enum ForceOpen {
    ReadOnly,
    Fork,
}

impl OpenArgs {
    /// Converts the options to the form that the device graph accepts.
    pub(crate) fn options(&self) -> OpenOptions {
        let force = self.force_open.map(|how| match how {
            ForceOpen::ReadOnly => Force::ReadOnly,
            ForceOpen::Fork => Force::Fork,
        });
        OpenOptions {
            mirror: mirror::OpenOptions {
                force,
                rebuild: self.rebuild.clone(),
                progress: Some(tell_progress),
            },
        }
    }
}

/// Reports the progress of opening a mirror, if this takes long.
fn tell_progress(progress: &mirror::OpeningProgress) {
    let (step, of) = match progress.step {
        OpeningStep::ReadingLog => ("reading its log", "of at most"),
        OpeningStep::Giving => ("copying the changes that it lacks", "of"),
        OpeningStep::ReadingMap => ("reading its map", "of"),
        OpeningStep::RestoringMap => (
            "pages of its map are damaged; searching the segments for the lost places",
            "of",
        ),
    };
    let (done, all) = (
        show_size(progress.done_bytes),
        show_size(progress.bytes_max),
    );
    let side = &progress.side;
    say(format!(
        "bimetal: opening: side {side}: {step}: {done} {of} {all}"
    ));
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    if config.exports.is_empty() {
        bail!(
            "{}: nothing to serve: expected at least one [export.NAME]",
            config.path.display()
        );
    }
    let rt = limits::start_server(&config)?;
    conclude(rt.block_on(serve(&rt, config, &args.open.options())))
}

/// Reason why serving ended early.
pub(crate) enum Failure {
    /// The failure occurred when no request was in flight.
    NotStarted(anyhow::Error),
    /// The failure occurred while requests were possibly in flight.
    NotStopped(anyhow::Error),
}

/// Converts the outcome of serving to the outcome of the verb. After a failure with requests in
/// flight, prints the error and exits the process. The runtime must not have been dropped.
pub(crate) fn conclude(served: Result<(), Failure>) -> Result<ExitCode> {
    match served {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Failure::NotStarted(error)) => Err(error),
        Err(Failure::NotStopped(error)) => {
            say_notices("bimetal");
            say(format_args!("bimetal: {error:#}"));
            // The process exits immediately, because dropping the runtime would wait for a device
            // that may never answer.
            std::process::exit(1);
        }
    }
}

async fn serve(rt: &Rt, config: Config, options: &OpenOptions) -> Result<(), Failure> {
    // Handle signals before opening the devices, so that the server also stops cleanly after a
    // signal during the opening.
    let signals = Signals::of_server(rt)
        .context("cannot set up signal handling")
        .map_err(Failure::NotStarted)?;
    let lock_memory = config.server.memory_to_lock();
    let deadline = config.server.stop_deadline;
    let devices: Vec<String> = config.exports.iter().map(|e| e.device.clone()).collect();
    let roots: Vec<&str> = devices.iter().map(String::as_str).collect();
    let running = Running::start(rt, config, &roots, options)
        .await
        .map_err(Failure::NotStarted)?;
    if let Some(heap_bytes_max) = lock_memory {
        lock_into_memory(running.heap_bytes().min(heap_bytes_max) as usize);
    }
    running.warn_of_missing_sides();
    running.tell_reduced_exposure();
    let mut out = std::io::stdout();
    // A failed write is ignored, because the parent process possibly does not read standard output.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
    // The start is excluded from the longest turn of the runtime (the longest time without a poll
    // for events), because no client can have been delayed before the server was ready.
    rt.forget_longest_turn();
    let waited = signals.next().await.context("cannot wait for signals");
    let stopped = running.stop_within(deadline, &signals).await;
    stopped.and(waited).map(|_| ()).map_err(Failure::NotStopped)
}

/// Locks the process into memory and makes `heap_bytes` of heap resident, so that the server can
/// serve a volume to the machine on which it runs. If this fails, prints the reason in one line.
pub(crate) fn lock_into_memory(heap_bytes: usize) {
    let outcome = keep_memory_resident(heap_bytes);
    let reasons: Vec<String> = [
        outcome.lock_error.map(|e| format!("locking memory: {e}")),
        outcome
            .flusher_error
            .map(|e| format!("PR_SET_IO_FLUSHER: {e}")),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !reasons.is_empty() {
        say(format_args!(
            "bimetal: warning: a volume mounted on this machine may deadlock the machine when \
            memory is short ({}); grant CAP_IPC_LOCK and CAP_SYS_RESOURCE, or set `lock_memory = \
            false` in [server]",
            reasons.join(", ")
        ));
    }
}
