//! `bimetal mount` exposes a device of a configuration as a file in a folder of this machine,
//! optionally with a loop device over the file. It runs in the foreground until a signal.
//! `bimetal unmount` removes such a mount from another process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bimetal_block::graph::OpenOptions;
use bimetal_block::units::{Time, parse_time};
use bimetal_export::fuse::loop_device::{self, LoopOptions};
use bimetal_export::fuse::{self, MountOptions, Mounted};
use bimetal_rt::Rt;
use bimetal_rt::real_time::Signals;
use futures_util::future::{Either, select};

use crate::config::Config;
use crate::itself::{self, Worker};
use crate::limits;
use crate::running::Running;
use crate::serve::{Failure, OpenArgs, conclude, lock_into_memory};
use bimetal_console::stderr::say;

/// Arguments of the verb `mount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, by its name in the configuration; the file has the same name
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The mount point, an empty folder
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Also create a loop device over the file
    #[arg(long = "loop")]
    make_loop: bool,
    /// Sector size of the loop device in bytes, or `physical` for the physical block size of the
    /// device, but at most 4096
    #[arg(long, value_name = "BYTES", requires = "make_loop", default_value = "512", value_parser = sector)]
    block_size: Sector,
    /// Make the file read-only
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    open: OpenArgs,
}

/// Arguments of the verb `unmount`.
#[derive(clap::Args)]
pub(crate) struct UnmountArgs {
    /// The mount point
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Unmount even if the file is in use; a file system on a loop device over the file is flushed
    /// first, and fails afterwards
    #[arg(long)]
    force: bool,
    /// Time to wait for a volume that does not answer. After this time, the volume stays mounted
    /// without `--force`; with `--force`, its requests fail and it is unmounted
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    within: Time,
}

/// Arguments of the hidden verb `take-away`. The verbs `mount` and `unmount` run `take-away` in a
/// separate process.
#[derive(clap::Args)]
pub(crate) struct TakeAwayArgs {
    /// The mount point
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Unmount even if the file is in use
    #[arg(long)]
    force: bool,
}

/// Arguments of the hidden verb `make-loop`. The server runs `make-loop` in a separate process.
#[derive(clap::Args)]
pub(crate) struct LoopArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Sector size in bytes
    #[arg(long, value_name = "BYTES", value_parser = block_bytes)]
    block_size: u32,
    /// Make the loop device read-only
    #[arg(long)]
    read_only: bool,
}

/// Sector size of a loop device. The kernel reports it also as the physical block size.
#[derive(Clone, Copy, Debug)]
enum Sector {
    /// A number of bytes.
    Bytes(u32),
    /// The physical block size of the device below, at most [`SECTOR_BYTES_MAX`].
    Physical,
}

/// Maximum sector size that loop devices support on every kernel.
const SECTOR_BYTES_MAX: u32 = 4096;

fn sector(text: &str) -> Result<Sector, String> {
    match text {
        "physical" => Ok(Sector::Physical),
        bytes => block_bytes(bytes)
            .map(Sector::Bytes)
            .map_err(|why| format!("{why}, or physical")),
    }
}

/// Parses a sector size. The kernel must accept the size, and a block of a volume (4096 bytes) must
/// be a multiple of it.
fn block_bytes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes @ (512 | 1024 | 2048 | 4096)) => Ok(bytes),
        _ => Err("expected 512, 1024, 2048 or 4096".to_owned()),
    }
}

/// Runs the verb `mount`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut config = Config::load(&args.file)?;
    config.device(&args.device)?;
    let mount = MountOptions {
        folder: args.folder.clone(),
        name: args.device.clone(),
        source: source(&config.path),
        read_only: args.read_only,
    };
    mount.check()?;
    // A volume can be open in only one process. This process serves only the kernel, so it starts
    // no export.
    config.exports.clear();
    let rt = limits::start_server(&config)?;
    conclude(rt.block_on(serve(&rt, config, args, &mount)))
}

async fn serve(rt: &Rt, config: Config, args: &Args, mount: &MountOptions) -> Result<(), Failure> {
    // Handle signals before opening the devices: a signal during the open must stop them cleanly.
    let signals = Signals::of_server(rt)
        .context("cannot set up signal handling")
        .map_err(Failure::NotStarted)?;
    let lock_memory = config.server.memory_to_lock();
    let deadline = config.server.stop_deadline;
    let options: OpenOptions = args.open.options();
    let running = Running::start(rt, config, &[&args.device], &options)
        .await
        .map_err(Failure::NotStarted)?;
    if let Some(heap_bytes_max) = lock_memory {
        lock_into_memory(running.heap_bytes().min(heap_bytes_max) as usize);
    }
    running.warn_of_missing_sides();
    running.tell_reduced_exposure();
    let waited = match running.mount(&args.device, mount).await {
        Ok(file) => {
            let sector = match args.block_size {
                Sector::Bytes(bytes) => bytes,
                Sector::Physical => running.physical_bytes(&args.device).min(SECTOR_BYTES_MAX),
            };
            served(rt, &signals, &file, args, sector).await
        }
        Err(error) => Err(error),
    };
    let stopped = running.stop_within(deadline, &signals).await;
    // The first error is reported, because the first error ended the mount.
    waited.and(stopped).map_err(Failure::NotStopped)
}

/// Returns the name of the mount's source that the mount table shows: the absolute path of the
/// configuration.
fn source(config: &Path) -> String {
    let whole = std::path::absolute(config).unwrap_or_else(|_| config.to_owned());
    whole.display().to_string()
}

/// Serves a mounted file until the mount ends or a signal is received.
async fn served(
    rt: &Rt,
    signals: &Signals,
    file: &Mounted,
    args: &Args,
    sector: u32,
) -> Result<()> {
    let path = match args.make_loop {
        true => loop_over(rt, file, args, sector).await?,
        false => file.path().display().to_string(),
    };
    let mut out = std::io::stdout();
    // A failed write is ignored, because the parent process possibly does not read standard output.
    let _ = writeln!(out, "{path}\nready").and_then(|()| out.flush());
    until_over(signals, file).await
}

/// Starts a child process that creates a loop device over the file. Returns the path of the loop
/// device.
async fn loop_over(rt: &Rt, file: &Mounted, args: &Args, sector: u32) -> Result<String> {
    let block_size = format!("--block-size={sector}");
    let mut words = vec!["make-loop".into(), file.path().into(), block_size.into()];
    if args.read_only {
        words.push("--read-only".into());
    }
    let path = itself::run(rt, words).await?;
    if path.is_empty() {
        bail!("no loop device was created");
    }
    Ok(path)
}

/// Waits for a signal or for the end of the mount. Returns an error if the mount ended first.
async fn until_over(signals: &Signals, file: &Mounted) -> Result<()> {
    let signal = std::pin::pin!(signals.next());
    let ended = std::pin::pin!(file.ended());
    match select(signal, ended).await {
        Either::Left((waited, _)) => waited.map(|_| ()).context("cannot wait for signals"),
        Either::Right(_) => {
            say(format_args!(
                "bimetal: {} is no longer mounted; stopping",
                file.folder().display()
            ));
            Ok(())
        }
    }
}

/// Runs the verb `unmount`. A child process does the work, because it can block in a way that no
/// signal interrupts.
pub(crate) fn run_unmount(args: &UnmountArgs) -> Result<ExitCode> {
    let within = args.within.0;
    let folder = args.folder.display();
    let mut worker = Worker::start(itself::take_away_words(&args.folder, args.force))?;
    if let Some(code) = worker.ended_within(within)? {
        return Ok(code);
    }
    let seconds = within.as_secs_f64();
    if !args.force {
        // The child is blocked in a kernel call. It exits when that call returns, and does nothing
        // after that.
        worker.kill();
        if !fuse::is_mounted(&args.folder) {
            bail!("{folder} is unmounted, but the unmount has not completed within {seconds} s");
        }
        bail!(
            "{folder} is still mounted: its volume has not answered within {seconds} s, and no \
            request was abandoned; `bimetal unmount --force {folder}` fails the requests that the \
            volume does not answer"
        );
    }
    say(format_args!(
        "bimetal: warning: the volume in {folder} has not answered within {seconds} s: its \
        unanswered requests fail now, and the data of unanswered writes is lost"
    ));
    fuse::abort(&args.folder)?;
    match worker.ended_within(within)? {
        // The exit status shows that data was lost or that requests were abandoned.
        Some(_) => Ok(ExitCode::FAILURE),
        None => bail!(
            "{folder}: all its requests have failed, but the process that uses it has not released \
            it within {seconds} s"
        ),
    }
}

/// Runs the hidden verb `take-away`, which removes a mount. It is run in a child process, because
/// the call can wait for the server forever.
pub(crate) fn run_take_away(args: &TakeAwayArgs) -> Result<ExitCode> {
    let mut warn = |line: String| say(format_args!("bimetal: warning: {line}"));
    fuse::unmount(&args.folder, args.force, &mut warn)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the hidden verb `make-loop`, which creates a loop device.
pub(crate) fn run_make_loop(args: &LoopArgs) -> Result<ExitCode> {
    let options = LoopOptions {
        block_bytes: args.block_size,
        read_only: args.read_only,
    };
    let device = loop_device::make(&args.file, options).context("cannot create a loop device")?;
    writeln!(std::io::stdout(), "{}", device.display())?;
    Ok(ExitCode::SUCCESS)
}
