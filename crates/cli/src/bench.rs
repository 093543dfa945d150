//! `bimetal bench`: runs a load on one device of a configuration, without an export, in real time
//! or in virtual time.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bimetal_block::graph::{OpenOptions, Stack};
use bimetal_block::units::{Size, Time, parse_size, parse_time, show_size};
use bimetal_block::{Device, Geometry};
use bimetal_rt::{Rt, VirtualOptions};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::config::Config;
use crate::load::{Load, Outcome, Pattern, Run, op_name};
use crate::runtime;
use bimetal_block::units::show_count;
use bimetal_console::latency::show_latency;
use bimetal_console::table::{Align, Table};

/// Interval at which the progress bar is updated.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Maximum queue depth.
const DEPTH_MAX: i64 = 4096;

/// Arguments of the verb `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, by its name in the configuration
    #[arg(long, value_name = "NAME")]
    device: String,
    /// The access pattern
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    rw: Pattern,
    /// Size of a request
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_size)]
    bs: Size,
    /// Number of requests to keep in flight
    #[arg(long, value_name = "N", default_value = "32",
          value_parser = clap::value_parser!(u32).range(1..=DEPTH_MAX))]
    depth: u32,
    /// Duration of the measurement [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_time, conflicts_with = "ops")]
    time: Option<Time>,
    /// End after this number of requests, instead of after a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Use only the first SIZE bytes of the device [default: the whole device]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<Size>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    /// Run in virtual time; every medium below the device must be `memory` or `null`
    #[arg(long = "virtual")]
    in_virtual_time: bool,
    /// Allow writes, which overwrite the data on the device
    #[arg(long)]
    destroy_data: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let device = config.device(&args.device)?;
    if args.rw.writes() && !args.destroy_data {
        bail!(
            "device {device}: --rw {} overwrites its data; add --destroy-data to allow that",
            name_of(args.rw)
        );
    }
    let rt = if args.in_virtual_time {
        check_virtual(&config, device)?;
        Rt::virtual_time(VirtualOptions {
            seed: args.seed,
            shuffle: false,
        })
    } else {
        runtime::start(config.server.runtime(args.seed))?
    };
    let measured = rt.block_on(measure(&rt, &config, device, args))?;
    print(&config, device, args, &measured)?;
    if measured.outcome.errors > 0 {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

struct Measured {
    outcome: Outcome,
    geometry: Geometry,
    load: Load,
    cpu: Option<Duration>,
}

async fn measure(rt: &Rt, config: &Config, name: &str, args: &Args) -> Result<Measured> {
    let stack = Stack::open(rt, &config.graph, &[name], &OpenOptions::default()).await?;
    let top = Rc::clone(stack.get(name).expect("the root of a stack is open"));
    let geometry = *top.geometry();
    let measured = match load_of(name, &geometry, args) {
        Ok(load) => Ok(drive(rt, top, load).await),
        Err(error) => Err(error),
    };
    let closed = stack.close().await;
    let (outcome, load, cpu) = measured?;
    if let Err((device, error)) = closed {
        bail!("device {device}: closing failed: {error}");
    }
    if outcome.stuck {
        bail!(
            "device {name}: requests take no virtual time, so --time would never elapse; use \
            --ops, or add a timing model to the stack"
        );
    }
    Ok(Measured {
        outcome,
        geometry,
        load,
        cpu,
    })
}

/// Returns the requested load, or an error if the device does not support it.
fn load_of(name: &str, geometry: &Geometry, args: &Args) -> Result<Load> {
    let block = u64::from(geometry.block_bytes);
    let bytes = args.bs.0;
    ensure!(
        bytes > 0 && bytes.is_multiple_of(block),
        "device {name}: --bs must be a multiple of its block of {block} bytes"
    );
    let longest = u64::from(geometry.transfer_bytes_max);
    ensure!(
        bytes <= longest,
        "device {name}: --bs is larger than its maximum request of {}",
        show_size(longest)
    );
    let region_bytes = args.size.map_or(geometry.size_bytes, |size| size.0);
    ensure!(
        region_bytes <= geometry.size_bytes,
        "device {name}: --size is larger than the device, which has {}",
        show_size(geometry.size_bytes)
    );
    ensure!(
        region_bytes >= bytes,
        "device {name}: a request of {} does not fit into {}",
        show_size(bytes),
        show_size(region_bytes)
    );
    ensure!(
        geometry.writable || !args.rw.writes(),
        "device {name}: is read-only"
    );
    let time = match (args.time, args.ops) {
        (Some(time), _) => Some(time.0),
        (None, Some(_)) => None,
        (None, None) => Some(Duration::from_secs(5)),
    };
    Ok(Load {
        pattern: args.rw,
        request_bytes: bytes,
        depth: args.depth,
        region_bytes,
        time,
        operations: args.ops,
        seed: args.seed,
    })
}

async fn drive(rt: &Rt, device: Rc<dyn Device>, load: Load) -> (Outcome, Load, Option<Duration>) {
    let run = Run::new(rt, device, load);
    // A load in virtual time runs faster than real time, and a progress bar would only cost CPU
    // time.
    let bar = (!rt.is_virtual()).then(|| show_progress(rt, &run));
    let cpu_before = cpu_time();
    run.finish().await;
    let cpu = cpu_time()
        .zip(cpu_before)
        .map(|(now, before)| now.saturating_sub(before));
    if let Some(bar) = bar {
        bar.cancel().await;
    }
    (run.into_outcome(), load, cpu)
}

/// Updates a progress bar until the task is cancelled. The bar is shown only if standard error is a
/// terminal.
fn show_progress(rt: &Rt, run: &Rc<Run>) -> bimetal_rt::Task<()> {
    const STEPS: u64 = 1000;
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} %  {msg}")
        .expect("the template is well formed")
        .progress_chars("=> ");
    let (rt_of_bar, run) = (rt.clone(), Rc::clone(run));
    rt.spawn(async move {
        let bar = ClearedBar(ProgressBar::new(STEPS).with_style(style));
        let mut before = run.answered();
        loop {
            rt_of_bar.sleep(PROGRESS_EVERY).await;
            let answered = run.answered();
            let rate = (answered - before) as f64 / PROGRESS_EVERY.as_secs_f64();
            before = answered;
            bar.0
                .set_message(format!("{} ops/s", show_count(rate as u64)));
            bar.0.set_position((run.progress() * STEPS as f64) as u64);
        }
    })
}

/// A progress bar that is cleared from the screen when the value is dropped.
struct ClearedBar(ProgressBar);

impl Drop for ClearedBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Returns the user and system CPU time of this process and all its threads, including the kernel's
/// I/O workers. The source is fields 14 and 15 of `/proc/self/stat` (proc(5)), in ticks of 1/100 s.
fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the process name, which can contain spaces and is followed by the last
    // closing bracket of the line.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Duration::from_millis(10 * (ticks(11)? + ticks(12)?)))
}

/// Returns an error if a medium below `device` cannot run in virtual time.
pub(crate) fn check_virtual(config: &Config, device: &str) -> Result<()> {
    for name in config.graph.below(device) {
        let node = &config.graph.nodes()[name];
        if node.children().is_empty() && !matches!(node.kind(), "memory" | "null") {
            bail!(
                "device {name}: the type {} works in real time only; --virtual needs memory or \
                null media, with timing models over them",
                node.kind()
            );
        }
    }
    Ok(())
}

impl Measured {
    fn operations(&self) -> u64 {
        self.outcome.reads.count() + self.outcome.writes.count()
    }

    fn operations_per_s(&self) -> f64 {
        let seconds = self.outcome.elapsed.as_secs_f64();
        if seconds > 0.0 {
            self.operations() as f64 / seconds
        } else {
            0.0
        }
    }

    fn cpu_ns_per_operation(&self) -> Option<f64> {
        let cpu = self.cpu?.as_nanos() as f64;
        (self.operations() > 0).then(|| cpu / self.operations() as f64)
    }
}

fn print(config: &Config, device: &str, args: &Args, measured: &Measured) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", to_json(config, device, args, measured))?;
    } else {
        for line in to_lines(config, device, args, measured) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn to_json(config: &Config, device: &str, args: &Args, measured: &Measured) -> Value {
    let (load, outcome) = (&measured.load, &measured.outcome);
    json!({
        "version": 1,
        "device": device,
        "type": config.graph.nodes()[device].kind(),
        "size_bytes": measured.geometry.size_bytes,
        "rw": name_of(load.pattern),
        "request_bytes": load.request_bytes,
        "depth": load.depth,
        "region_bytes": load.region_bytes,
        "seed": load.seed,
        "virtual": args.in_virtual_time,
        "elapsed_ns": outcome.elapsed.as_nanos() as u64,
        "operations": measured.operations(),
        "operations_per_s": measured.operations_per_s(),
        "bytes_per_s": measured.operations_per_s() * load.request_bytes as f64,
        "cpu_ns_per_operation": measured.cpu_ns_per_operation(),
        "errors": outcome.errors,
        "first_error": outcome.first_error.map(|error| error.to_string()),
        "read": outcome.reads.to_json(),
        "write": outcome.writes.to_json(),
    })
}

fn to_lines(config: &Config, device: &str, args: &Args, measured: &Measured) -> Vec<String> {
    let (load, outcome) = (&measured.load, &measured.outcome);
    let mut lines = vec![format!(
        "{device} ({}, {}): {} of {} over {}, depth {}, {:.2} s{}",
        config.graph.nodes()[device].kind(),
        show_size(measured.geometry.size_bytes),
        name_of(load.pattern),
        show_size(load.request_bytes),
        show_size(load.region_bytes),
        load.depth,
        outcome.elapsed.as_secs_f64(),
        if args.in_virtual_time {
            " of virtual time"
        } else {
            ""
        },
    )];
    let headings = [
        "",
        "operations",
        "ops/s",
        "MB/s",
        "p50",
        "p99",
        "p99.9",
        "max",
    ];
    let mut table = Table::new(&headings.map(|h| (h, Align::Right)));
    for (read, latencies) in [(true, &outcome.reads), (false, &outcome.writes)] {
        if latencies.count() == 0 {
            continue;
        }
        let share = latencies.count() as f64 / measured.operations() as f64;
        let rate = measured.operations_per_s() * share;
        let p = latencies.percentiles();
        table.row(vec![
            op_name(read).to_owned(),
            show_count(latencies.count()),
            show_count(rate as u64),
            format!("{:.1}", rate * load.request_bytes as f64 / 1e6),
            show_latency(p.p50_ns),
            show_latency(p.p99_ns),
            show_latency(p.p999_ns),
            show_latency(p.max_ns),
        ]);
    }
    if !table.is_empty() {
        lines.extend(table.lines());
    }
    if let Some(cpu_ns) = measured.cpu_ns_per_operation() {
        lines.push(format!(
            "CPU per operation: {}",
            show_latency(cpu_ns as u64)
        ));
    }
    if let Some(error) = outcome.first_error {
        lines.push(format!(
            "{} requests failed, first: {error}",
            outcome.errors
        ));
    }
    lines
}

fn name_of(pattern: Pattern) -> String {
    use clap::ValueEnum;
    let value = pattern.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}
