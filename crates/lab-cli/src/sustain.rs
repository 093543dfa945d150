//! `bimetal-lab sustain`: loads a mirror, or one of its devices, for longer than the logs last, and
//! shows throughput and latency over time.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use bimetal_block::units::{Size, parse_size, show_size};
use bimetal_console::progress::progress_bar;
use bimetal_console::table::{Align, Table};
use bimetal_sim::experiment::pattern::Pattern;
use bimetal_sim::experiment::sustained::{
    Latencies, Modelled, Progress, Second, Setting, SilentTime, Sustained, SustainedLoad, Target,
    run as run_load,
};
use serde_json::json;

use crate::output::print_lines;

/// Number of rows of the curve that is printed.
const CURVE_ROWS: usize = 20;

/// Arguments of the verb `sustain`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Profile of the fast device; an unknown name is answered with the list of all names
    #[arg(long, value_name = "PROFILE", default_value = "nvme-tlc")]
    fast: String,
    /// Profile of the slow device
    #[arg(long, value_name = "PROFILE", default_value = "hdd-7200")]
    slow: String,
    /// Change a parameter of the fast device, such as `slc_cache_bytes_per_tb = 1000000`; may be
    /// repeated
    #[arg(long, value_name = "KEY = VALUE")]
    fast_set: Vec<String>,
    /// Change a parameter of the slow device; may be repeated
    #[arg(
        long,
        value_name = "KEY = VALUE",
        default_value = "disk_bytes = 250000000000"
    )]
    slow_set: Vec<String>,
    /// Size of the fast device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "40GiB")]
    fast_size: Size,
    /// Size of the slow device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "40GiB")]
    slow_size: Size,
    /// Load the mirror, or one of its devices alone
    #[arg(long, value_enum, default_value = "mirror")]
    on: On,
    /// Length of the log on each side [default: that of `bimetal format`]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log: Option<Size>,
    /// Set a key of the mirror, such as `exposure = { bytes = "16MiB" }`; may be repeated
    #[arg(long, value_name = "KEY = VALUE")]
    set: Vec<String>,
    /// Size of the part of the volume to which the load writes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "30GiB")]
    span: Size,
    /// Do not write the span once before the load
    #[arg(long)]
    empty: bool,
    /// Before the load, write one block at each step of this length, instead of the whole span: a
    /// volume of terabytes then has its metadata without its content
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "empty")]
    fill_step: Option<Size>,
    /// Kill the program of the mirror before the load, and open the mirror again
    #[arg(long)]
    kill: bool,
    /// Open the mirror without this device, so that it has one copy
    #[arg(long, value_enum, value_name = "DEVICE", conflicts_with_all = ["kill", "silent_from"])]
    absent: Option<Side>,
    /// Read instead of writing
    #[arg(long)]
    reads: bool,
    /// Length of a write
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4KiB")]
    block: Size,
    /// Offsets: uniform, sequential, zipf:THETA (such as zipf:0.9), or hot:WRITES/PLACES (such as
    /// hot:90/10)
    #[arg(long, value_name = "PATTERN", default_value = "uniform")]
    pattern: Pattern,
    /// Average number of writes that arrive per second [default: the next write starts when a write
    /// has completed]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    rate: Option<u64>,
    /// Maximum number of outstanding writes
    #[arg(long, value_name = "N", default_value = "32",
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    depth: u64,
    /// Flush after each n-th write
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    flush_every: Option<u64>,
    /// Second of the load from which the slow device answers nothing, for `--silent-for` seconds
    #[arg(long, value_name = "SECOND", requires = "silent_for")]
    silent_from: Option<u64>,
    /// Number of seconds for which the slow device answers nothing
    #[arg(long, value_name = "N", requires = "silent_from")]
    silent_for: Option<u64>,
    /// Duration of the load in seconds of virtual time
    #[arg(long, value_name = "N", default_value = "300",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seconds: u64,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum On {
    Mirror,
    Fast,
    Slow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Side {
    Fast,
    Slow,
}

impl Args {
    fn setting(&self) -> Setting {
        let device = |profile: &str, overrides: &[String], size: Size| Modelled {
            profile: profile.to_owned(),
            overrides: overrides.join("\n"),
            bytes: size.0,
        };
        Setting {
            devices: [
                device(&self.fast, &self.fast_set, self.fast_size),
                device(&self.slow, &self.slow_set, self.slow_size),
            ],
            target: match self.on {
                On::Mirror => Target::Mirror,
                On::Fast => Target::Fast,
                On::Slow => Target::Slow,
            },
            log_bytes: self.log.map(|log| log.0),
            settings: self.set.join("\n"),
            span_bytes: self.span.0,
            fill: !self.empty,
            fill_step_bytes: self.fill_step.map(|step| step.0),
            kill: self.kill,
            absent: self.absent.map(|absent| match absent {
                Side::Fast => 0,
                Side::Slow => 1,
            }),
            silent: self
                .silent_from
                .zip(self.silent_for)
                .map(|(from_s, seconds)| SilentTime { from_s, seconds }),
            load: SustainedLoad {
                write_bytes: self.block.0,
                reads: self.reads,
                pattern: self.pattern,
                writes_per_s: self.rate,
                outstanding_max: self.depth,
                flush_every: self.flush_every,
                seconds: self.seconds,
                seed: self.seed,
            },
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let setting = args.setting();
    let bar = progress_bar(0);
    let shown = bar.clone();
    let result = run_load(&setting, move |progress| {
        let (what, done, all) = match progress {
            Progress::Filling {
                done_bytes,
                all_bytes,
            } => ("filling, MiB", done_bytes >> 20, all_bytes >> 20),
            Progress::Loading { done_s, all_s } => ("load, s", done_s, all_s),
        };
        shown.set_message(what);
        shown.set_length(all);
        shown.set_position(done);
    });
    bar.finish_and_clear();
    // The message of the error contains its source already.
    let result = result.map_err(|error| anyhow!("{error}"))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({ "version": 1, "setting": setting, "result": result });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        print(&mut out, &setting, &result)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, setting: &Setting, result: &Sustained) -> Result<()> {
    let load = &setting.load;
    let [fast, slow] = &setting.devices;
    let device = |of: &Modelled| format!("{} of {}", of.profile, show_size(of.bytes));
    let target = match setting.target {
        Target::Mirror => {
            let both = format!("a mirror of {} and {}", device(fast), device(slow));
            match setting.absent {
                None => both,
                Some(0) => format!("{both}, without the former"),
                Some(_) => format!("{both}, without the latter"),
            }
        }
        Target::Fast => device(fast),
        Target::Slow => device(slow),
    };
    let operation = operation(setting);
    let rate = match load.writes_per_s {
        Some(rate) => format!("{rate} {operation}s/s offered, "),
        None => String::new(),
    };
    writeln!(
        out,
        "{target}: {rate}{operation}s of {}, {} over {}, at most {} outstanding, {} s of virtual time",
        show_size(load.write_bytes),
        load.pattern,
        show_size(setting.span_bytes),
        load.outstanding_max,
        load.seconds
    )?;
    writeln!(out)?;
    print_lines(out, &curve(&result.seconds, operation))?;
    print_lines(out, &totals(result, operation))?;
    let mut sides = Table::new(&[
        ("device", Align::Left),
        ("written", Align::Right),
        ("per byte of the client", Align::Right),
        ("read", Align::Right),
    ]);
    for side in &result.sides {
        sides.row(vec![
            side.name.clone(),
            show_size(side.written_bytes),
            format!("{:.2}", side.written_share),
            show_size(side.read_bytes),
        ]);
    }
    print_lines(out, &sides)
}

/// Returns the operation of the load, in a word.
fn operation(setting: &Setting) -> &'static str {
    match setting.load.reads {
        true => "read",
        false => "write",
    }
}

/// Formats the load over time, in rows of equal length.
fn curve(seconds: &[Second], operation: &str) -> Table {
    let rate = format!("{operation}s/s");
    let mut table = Table::new(&[
        ("second", Align::Right),
        (&rate, Align::Right),
        ("least", Align::Right),
        ("mean ms", Align::Right),
        ("longest ms", Align::Right),
    ]);
    let length = seconds.len().div_ceil(CURVE_ROWS);
    for (number, some) in seconds.chunks(length).enumerate() {
        let done: u64 = some.iter().map(|second| second.done).sum();
        let least = some.iter().map(|second| second.done).min().unwrap_or(0);
        let total_ms: f64 = some.iter().map(|s| s.mean_ms * s.done as f64).sum();
        let longest = some.iter().map(|second| second.max_ms).fold(0.0, f64::max);
        table.row(vec![
            (number * length).to_string(),
            format!("{:.0}", done as f64 / some.len() as f64),
            least.to_string(),
            format!("{:.2}", total_ms / done.max(1) as f64),
            format!("{longest:.1}"),
        ]);
    }
    table
}

fn totals(result: &Sustained, operation: &str) -> Table {
    let mut table = Table::new(&[("whole load", Align::Left), ("", Align::Right)]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    let ms = |value: f64| format!("{value:.2} ms");
    row(
        &format!("{operation}s/s"),
        format!("{:.1}", result.done_per_s),
    );
    row(
        &format!("{operation}s/s, last quarter"),
        format!("{:.1}", result.sustained_per_s),
    );
    let mut latencies = |name: &str, of: &Latencies| {
        for (quantile, value) in [
            ("mean", of.mean_ms),
            ("p50", of.p50_ms),
            ("p99", of.p99_ms),
            ("p99.9", of.p999_ms),
            ("longest", of.max_ms),
        ] {
            row(&format!("{name}, {quantile}"), ms(value));
        }
    };
    latencies(operation, &result.writes);
    if let Some(flushes) = &result.flushes {
        latencies("flush", flushes);
    }
    row("longest time without an answer", ms(result.longest_gap_ms));
    if let Some(opening) = result.opening {
        row("opened again after", format!("{:.2} s", opening.seconds));
        row("read by the opening", show_size(opening.read_bytes));
    }
    if let Some(silence) = result.silence {
        row("ejected for silence", silence.ejections.to_string());
        let whole = silence.whole_after_s;
        let whole = whole.map_or("not yet".to_owned(), |s| format!("{s:.1} s"));
        row("whole after the silence", whole);
    }
    row("exposed at most", show_size(result.exposed_bytes_peak));
    row("rounds of the log", format!("{:.2}", result.log_rounds));
    table
}
