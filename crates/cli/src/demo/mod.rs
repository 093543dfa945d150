//! `bimetal demo`: shows the purpose of this project within a minute. Three stacks get the same
//! load at the same time: an emulated SSD that freezes, an emulated hard disk, and the mirror of
//! such a pair, which is also served over NBD.
//!
//! The load is open: requests arrive whether or not earlier requests have completed, as with real
//! users. A load that waited for completions would hide that a device is frozen.

mod host;
mod screen;
mod targets;

use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bimetal_block::graph::{FormatOptions, OpenOptions};
use bimetal_block::layers::mirror::rescue::Rescue;
use bimetal_block::media::file::{FileConfig, FileDevice};
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::{Device, IoError, Request};
use bimetal_rt::real_time::Signals;
use bimetal_rt::{Rt, Task};
use futures_util::future::{Either, select};
use indicatif::{ProgressBar, ProgressStyle};

use crate::config::Config;
use crate::format;
use crate::logged::Log;
use crate::running::Running;
use crate::runtime;
use crate::terminal::{Picture, Terminal};
use bimetal_console::stderr::say;
use host::Host;
use screen::Screen;
use targets::{Arrivals, Target};

/// Size of each file of the demo's stand-alone devices. The load uses at most this number of bytes
/// of each of the compared device stacks.
const FILE_BYTES: u64 = 128 << 20;
/// Size of the files of the mirror's sides. A logged side of this size, with a log that is long
/// enough for the exposure, has room for the load. With homes, the logs have wrapped around when
/// the SSD freezes for seconds, and the disk, which must destage then, answers after 1 to 2 s.
const SIDE_BYTES: u64 = 768 << 20;
/// Devices of the configuration that are files of this machine.
const FILES: [&str; 4] = ["ssd-file", "hdd-file", "fast-file", "slow-file"];
/// Length of the pieces in which the sides are compared.
const COMPARED_BYTES: u64 = 1 << 20;
/// Interval at which the table is drawn, and duration of one step of the latency curves.
const STEP: Duration = Duration::from_secs(1);
/// Number of steps between two outputs of the table if standard output is not a terminal.
const STEPS_ON_A_PIPE: u64 = 5;

/// Arguments of the verb `demo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory for the files (at most 2 GiB), which are kept at the end [default: a temporary
    /// directory, which is removed]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Duration of the load in seconds
    #[arg(long, value_name = "N", default_value = "45",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Number of writes per second
    #[arg(long, value_name = "N", default_value = "50",
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rate: u64,
    /// Seed of the load and of the devices
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Print only the result, as JSON, at the end
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let place = Folder::make(args.dir.as_deref())?;
    let file = place.path.join("demo.toml");
    let text = configuration(args.seed);
    fs::write(&file, &text).with_context(|| file.display().to_string())?;
    for (name, bytes) in [
        ("ssd.img", FILE_BYTES),
        ("hdd.img", FILE_BYTES),
        ("fast.img", SIDE_BYTES),
        ("slow.img", SIDE_BYTES),
    ] {
        make_file(&place.path.join(name), bytes)?;
    }
    let mut config = Config::read(&file, &text)?;
    // The screen of the demo shows what happens to the devices, and a line would disturb it.
    config.server.log = Log::Nothing;
    let rt = runtime::start(config.server.runtime(args.seed))?;
    format::prepare(&rt, &config, FormatOptions::default())?;
    let screen = Screen::new(Terminal::of_stdout(), &file, args);
    let (targets, host) = rt.block_on(show(&rt, config, args, &screen))?;
    let compared_bytes = rt.block_on(compare_sides(&rt, &place.path))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", screen.to_json(&targets, &host, compared_bytes))?;
    } else {
        for line in screen.summary(&targets, &host, compared_bytes) {
            writeln!(out, "{line}")?;
        }
        if args.dir.is_some() {
            writeln!(out, "The files are kept in {}.", place.path.display())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the configuration of the three stacks. The emulated devices are configured twice,
/// because each device can have only one device above it.
fn configuration(seed: u64) -> String {
    let pair = |ssd: &str, hdd: &str| {
        format!(
            "[device.{ssd}-file]\ntype = \"file\"\npath = \"{ssd}.img\"\n\n\
             [device.{ssd}]                 # an SSD of 2009 that freezes, emulated over the file\n\
             type = \"ssd\"\nprofile = \"sata-2009\"\nseed = {seed}\nbelow = \"{ssd}-file\"\n\n\
             [device.{hdd}-file]\ntype = \"file\"\npath = \"{hdd}.img\"\n\n\
             [device.{hdd}]                 # a disk of 7200 rpm\n\
             type = \"hdd\"\nprofile = \"hdd-7200\"\nseed = {seed}\nbelow = \"{hdd}-file\"\n\n"
        )
    };
    format!(
        "# What `bimetal demo` runs: one SSD alone, one disk alone, and a mirror of such a \
        pair.\n\n{}{}[device.vol]\ntype = \"mirror\"\nsides = [\"fast\", \"slow\"]\nexposure = {{ \
        bytes = \"40MiB\", age = \"5s\" }}\nlog = \"164MiB\"                 # a little more than \
        four times the exposure\n\n[export.vol]\ndevice = \"vol\"\nprotocol = \"nbd\"\nlisten = \
        \"unix:vol.sock\"\n",
        pair("ssd", "hdd"),
        pair("fast", "slow"),
    )
}

/// Serves the configuration, runs the load, shows the progress, and stops everything cleanly.
/// Returns the targets with their results, and what was seen of the machine.
async fn show(
    rt: &Rt,
    config: Config,
    args: &Args,
    screen: &Screen,
) -> Result<(Vec<Rc<Target>>, Rc<Host>)> {
    let signals = Signals::termination(rt).context("cannot set up signal handling")?;
    let deadline = config.server.stop_deadline;
    let roots = ["ssd", "hdd", "vol"];
    let running = Running::start(rt, config, &roots, &OpenOptions::default()).await?;
    let targets: Vec<Rc<Target>> = [
        ("SSD alone", "ssd"),
        ("HDD alone", "hdd"),
        ("mirror", "vol"),
    ]
    .iter()
    .map(|(title, name)| {
        let device = running.stack().get(name).expect("every root is open");
        Target::new(rt, title, Rc::clone(device))
    })
    .collect();
    let arrivals = Arrivals {
        writes_per_s: args.rate as f64,
        device_bytes: FILE_BYTES,
        seed: args.seed,
        duration: Duration::from_secs(args.seconds),
    };
    let files = FILES.iter().filter_map(|name| running.stack().tap(name));
    let host = Host::new(files.collect());
    let timers = rt.spawn(Rc::clone(&host).watch_timers(rt.clone()));
    let load = rt.spawn(targets::run(rt.clone(), targets.clone(), arrivals));
    let drawn = draw_until_done(rt, &targets, &host, load, &signals, screen).await;
    timers.cancel().await;
    host.let_go();
    let told = match screen.says_more() {
        true => writeln!(
            std::io::stdout(),
            "Stopping: the delayed writes are written to their side."
        ),
        false => Ok(()),
    };
    let stopped = running.stop_within(deadline, &signals).await;
    if let Err(error) = stopped {
        // As in `serve`, the process exits without waiting for requests in flight.
        say(format_args!("bimetal: {error:#}"));
        std::process::exit(1);
    }
    drawn?;
    told?;
    targets.iter().for_each(|target| target.let_go());
    Ok((targets, host))
}

/// Draws the table every second until the load has ended or a signal is received, and then waits
/// for the requests in flight.
async fn draw_until_done(
    rt: &Rt,
    targets: &[Rc<Target>],
    host: &Host,
    load: Task<()>,
    signals: &Signals,
    screen: &Screen,
) -> Result<()> {
    let mut picture = Picture::default();
    let mut load = std::pin::pin!(load);
    let mut signal = std::pin::pin!(signals.next());
    let start = rt.now();
    for step in 1.. {
        let tick = rt.sleep_until(start + STEP * step);
        let ended = select(load.as_mut(), signal.as_mut());
        let over = matches!(select(ended, std::pin::pin!(tick)).await, Either::Left(_));
        if over {
            break;
        }
        targets.iter().for_each(|target| target.end_step());
        host.look(rt.now());
        let elapsed = rt.now().since(start);
        if screen.is_live() {
            picture.draw(&screen.live(targets, host, elapsed))?;
        } else if screen.says_more() && u64::from(step).is_multiple_of(STEPS_ON_A_PIPE) {
            let lines = screen.plain(targets, host, elapsed);
            writeln!(std::io::stdout().lock(), "{}\n", lines.join("\n"))?;
        }
    }
    for target in targets {
        target.finish().await;
    }
    Ok(())
}

/// Directory of the demo's files. It is removed at the end unless the user has named it.
struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    fn make(wanted: Option<&Path>) -> Result<Folder> {
        let Some(path) = wanted else {
            let path = std::env::temp_dir().join(format!("bimetal-demo-{}", std::process::id()));
            fs::DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .with_context(|| format!("cannot create {}; use --dir", path.display()))?;
            return Ok(Folder { path, keep: false });
        };
        fs::create_dir_all(wanted.unwrap_or(path))
            .with_context(|| format!("cannot make {}", path.display()))?;
        let mut found = fs::read_dir(path).with_context(|| path.display().to_string())?;
        ensure!(
            found.next().is_none(),
            "{}: not empty; the demo needs an empty directory",
            path.display()
        );
        Ok(Folder {
            path: path.to_owned(),
            keep: true,
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.keep {
            // A failed removal leaves files in the temporary directory, but is not a failure of the
            // demo.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let make = || fs::File::create_new(path)?.set_len(bytes);
    make().with_context(|| format!("cannot make {}", path.display()))
}

/// Compares the volume as each side alone has it, byte by byte, and returns the number of bytes
/// compared.
async fn compare_sides(rt: &Rt, folder: &Path) -> Result<u64> {
    let fast = content_of(rt, &folder.join("fast.img")).await?;
    let slow = content_of(rt, &folder.join("slow.img")).await?;
    let total = fast.geometry().size_bytes;
    ensure!(
        slow.geometry().size_bytes == total,
        "the sides of the mirror differ in their size"
    );
    let style = ProgressStyle::with_template("comparing the sides {bar:40} {percent:>3} %")
        .context("the template is well formed")?
        .progress_chars("=> ");
    let bar = ProgressBar::new(total).with_style(style);
    for start in (0..total).step_by(COMPARED_BYTES as usize) {
        let len = COMPARED_BYTES.min(total - start);
        let piece = async |side: &MemoryDevice| {
            let read = side.submit(Request::read(start, len)).await?;
            Ok::<_, IoError>(read.into_data().to_vec())
        };
        let (fast, slow) = (piece(&fast).await?, piece(&slow).await?);
        if let Some(at) = fast.iter().zip(&slow).position(|(a, b)| a != b) {
            bail!(
                "the sides of the mirror differ at byte {}",
                start + at as u64
            );
        }
        bar.set_position(start + len);
    }
    bar.finish_and_clear();
    Ok(total)
}

/// Returns the volume as the side in a file has it, read as `bimetal rescue` reads it.
async fn content_of(rt: &Rt, side: &Path) -> Result<Rc<MemoryDevice>> {
    let name = side.display().to_string();
    let file = FileConfig {
        read_only: true,
        ..FileConfig::at(side.to_owned())
    };
    let file: Rc<dyn Device> = Rc::new(FileDevice::open_when_free(rt, &file).await?);
    let opened = Rescue::open(rt, &name, &file, &|_| ()).await?;
    let copy = Rc::new(MemoryDevice::new(rt, opened.facts().volume_bytes));
    let into = Rc::clone(&copy) as Rc<dyn Device>;
    let rescued = opened.copy(&into, &|_| ()).await;
    let rescued = rescued.with_context(|| name.clone())?;
    ensure!(
        rescued.missing.is_empty(),
        "{name}: a part of the volume is missing"
    );
    Ok(copy)
}
