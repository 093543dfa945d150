//! `bimetal record`: records the requests on a device of a running server as a trace.

use std::io::Write;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bimetal_control::record::{Recorded, Recording};
use bimetal_rt::UringOptions;
use bimetal_rt::real_time::Signals;
use bimetal_trace::TraceFile;
use futures_util::future::{Either, select};
use serde_json::json;

use crate::config::Config;
use crate::runtime;
use bimetal_console::stderr::say;

/// Duration that is used for a recording without a time limit.
const WITHOUT_END: Duration = Duration::from_secs(u32::MAX as u64);

/// Arguments of the verb `record`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, by its name in the configuration
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The file to write, which must not exist; the extension .csv selects the CSV format of the
    /// MSR Cambridge traces, any other extension the compact format
    #[arg(long, value_name = "TRACE")]
    out: PathBuf,
    /// Duration in seconds [default: until SIGINT (Ctrl-C) or SIGTERM]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// Print the counts of recorded requests as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let control = &config.server.control;
    let about = || args.out.display().to_string();
    let mut file = TraceFile::create_new(&args.out).with_context(about)?;
    let recording = Recording::start(control, &args.device)
        .with_context(|| format!("control socket {}", control.display()));
    let recording = match recording {
        Ok(recording) => recording,
        Err(error) => {
            // The file is empty, so it is removed. The error of the recording is returned; an error
            // of the removal is ignored.
            let _ = std::fs::remove_file(&args.out);
            return Err(error);
        }
    };
    let recorded = record(recording, &mut file, args);
    // The records received so far are kept, whatever has ended the recording.
    file.finish().with_context(about)?;
    let so_far = |error: anyhow::Error| {
        error.context(format!("{}: the trace ends early", args.out.display()))
    };
    report(&recorded.map_err(so_far)?, args)?;
    Ok(ExitCode::SUCCESS)
}

/// Records until the duration of the recording has passed or a signal is received.
fn record(recording: Recording, to: &mut TraceFile, args: &Args) -> Result<Recorded> {
    let rt = runtime::start_quietly(UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    })?;
    rt.block_on(async {
        let signals = Signals::termination(&rt).context("cannot set up signal handling")?;
        let lasting = args.seconds.map(|n| Duration::from_secs(u64::from(n)));
        let over = pin!(async {
            let time = pin!(rt.sleep(lasting.unwrap_or(WITHOUT_END)));
            match select(time, pin!(signals.next())).await {
                Either::Left(_) => Ok(()),
                Either::Right((signal, _)) => signal.map(|_| ()),
            }
        });
        say(format_args!("recording device {}", args.device));
        let mut write = |record: &_| to.push(record);
        Ok(recording.run(&rt, &mut write, over).await?)
    })
}

/// Prints a summary of the recording. Lost requests are also reported on standard error.
fn report(recorded: &Recorded, args: &Args) -> Result<()> {
    let [reads, writes, trims] = recorded.requests;
    let mut out = std::io::stdout().lock();
    if args.json {
        let value = json!({
            "trace": args.out.display().to_string(),
            "requests": { "read": reads, "write": writes, "trim": trims },
            "dropped": recorded.dropped,
            "flushes_and_extents": recorded.flushes_and_extents,
        });
        writeln!(out, "{value}")?;
    } else {
        writeln!(
            out,
            "{}: {reads} reads, {writes} writes and {trims} trims of device {}",
            args.out.display(),
            args.device
        )?;
    }
    if recorded.dropped > 0 {
        say(format_args!(
            "bimetal: {}: {} requests arrived faster than they could be recorded, and are missing \
             from the trace",
            args.out.display(),
            recorded.dropped
        ));
    }
    Ok(())
}
