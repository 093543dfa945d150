//! `bimetal attach` exposes a device of a configuration as a block device of this machine. It runs
//! in the foreground until a signal. `bimetal detach` removes such a block device from another
//! process.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bimetal_block::graph::OpenOptions;
use bimetal_export::ublk::{self, AttachOptions, Attachment};
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, UringOptions};
use futures_util::future::{Either, select};

use crate::config::Config;
use crate::limits;
use crate::running::Running;
use crate::runtime;
use crate::serve::{Failure, OpenArgs, conclude, lock_into_memory};
use bimetal_console::stderr::say;

/// Range of device numbers that the driver supports.
const NUMBERS: std::ops::Range<i64> = 0..1 << 20;
/// Path of a block device up to the device number, which ends the path.
const PATH_START: &str = "/dev/ublkb";

/// Arguments of the verb `attach`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, by its name in the configuration
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The number N of /dev/ublkbN [default: the lowest free number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(NUMBERS))]
    number: Option<u32>,
    /// Make the block device read-only
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    open: OpenArgs,
}

/// Arguments of the verb `detach`.
#[derive(clap::Args)]
pub(crate) struct DetachArgs {
    /// The block device: /dev/ublkbN
    #[arg(value_name = "PATH", value_parser = number_of)]
    number: u32,
}

/// Parses the number from the path of a block device.
fn number_of(path: &str) -> Result<u32, String> {
    let number = path.strip_prefix(PATH_START).and_then(|n| n.parse().ok());
    let number = number.filter(|n| NUMBERS.contains(&i64::from(*n)));
    number.ok_or_else(|| format!("expected {PATH_START}N"))
}

/// Runs the verb `attach`.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut config = Config::load(&args.file)?;
    if !config.graph.nodes().contains_key(&args.device) {
        let (file, device) = (config.path.display(), &args.device);
        bail!("{file}: there is no [device.{device}] to attach");
    }
    // A volume can be open in only one process. This process serves only the kernel, so it starts
    // no export.
    config.exports.clear();
    let rt = limits::start_server(&config)?;
    conclude(rt.block_on(serve(&rt, config, args)))
}

async fn serve(rt: &Rt, config: Config, args: &Args) -> Result<(), Failure> {
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
    let options = AttachOptions {
        number: args.number,
        read_only: args.read_only,
    };
    let block = match running.attach(&args.device, options).await {
        Ok(block) => block,
        Err(error) => {
            // If the driver could not stop the device, requests may still be in flight. The volume
            // is then stopped under a deadline, as after a regular end.
            let stopped = running.stop_within(deadline, &signals).await;
            return stopped.and(Err(error)).map_err(Failure::NotStopped);
        }
    };
    let mut out = std::io::stdout();
    // A failed write is ignored, because the parent process possibly does not read standard output.
    let _ = writeln!(out, "{}\nready", block.path()).and_then(|()| out.flush());
    let waited = until_over(&signals, &block).await;
    let stopped = running.stop_within(deadline, &signals).await;
    stopped.and(waited).map_err(Failure::NotStopped)
}

/// Waits for a signal or for the end of the block device. Returns an error if the block device
/// ended first.
async fn until_over(signals: &Signals, block: &Attachment) -> Result<()> {
    let signal = std::pin::pin!(signals.next());
    let ended = std::pin::pin!(block.ended());
    match select(signal, ended).await {
        Either::Left((waited, _)) => {
            for place in mounts_of(&block.path()) {
                say(format_args!(
                    "bimetal: warning: {} is still mounted on {place}: the data written there is \
                    flushed now, and every later access fails; run `umount {place}`",
                    block.path()
                ));
            }
            waited.map(|_| ()).context("cannot wait for signals")
        }
        Either::Right(_) => {
            say(format_args!(
                "bimetal: {} has ended; stopping",
                block.path()
            ));
            Ok(())
        }
    }
}

/// Returns the mount points of a block device and of its partitions, as written in the kernel's
/// mount table, where a blank in a path is `\040`.
fn mounts_of(path: &str) -> Vec<String> {
    // If the table cannot be read, only a warning is omitted.
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts_in(&table, path)
}

fn mounts_in(table: &str, path: &str) -> Vec<String> {
    let place = |line: &str| {
        let (source, rest) = line.split_once(' ')?;
        let partition = source.strip_prefix(path)?;
        let is_partition = partition.strip_prefix('p').is_some_and(|number| {
            !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
        });
        let place = rest.split(' ').next()?;
        (partition.is_empty() || is_partition).then(|| place.to_owned())
    };
    table.lines().filter_map(place).collect()
}

/// Runs the verb `detach`.
pub(crate) fn run_detach(args: &DetachArgs) -> Result<ExitCode> {
    let rt = runtime::start_quietly(UringOptions {
        pool_bytes: 0,
        ..UringOptions::default()
    })?;
    rt.block_on(ublk::detach(&rt, args.number))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_number() {
        assert_eq!(number_of("/dev/ublkb0"), Ok(0));
        assert_eq!(number_of("/dev/ublkb17"), Ok(17));
        for wrong in [
            "0",
            "/dev/ublkb",
            "/dev/ublkb-1",
            "/dev/ublkb0p1",
            "/dev/ublkb1048576",
        ] {
            assert!(number_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mounts_of_a_device_and_of_its_partitions_are_found() {
        let table = "/dev/ublkb1 /a ext4 rw 0 0\n\
                     /dev/ublkb1p2 /b\\040c ext4 rw 0 0\n\
                     /dev/ublkb10 /d ext4 rw 0 0\n\
                     tmpfs /dev/ublkb1 tmpfs rw 0 0\n";
        assert_eq!(mounts_in(table, "/dev/ublkb1"), ["/a", "/b\\040c"]);
        assert_eq!(mounts_in(table, "/dev/ublkb10"), ["/d"]);
    }
}
