//! `bimetal-lab mirror`: runs the experiment of the hetero-mirroring paper in virtual time.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use bimetal_block::BLOCK_BYTES;
use bimetal_block::layers::mirror::superblock::SideKind;
use bimetal_block::units::show_size;
use bimetal_block::units::{Size, parse_size};
use bimetal_console::progress::progress_bar;
use bimetal_console::table::{Align, Table};
use bimetal_sim::experiment::comparison::{
    Comparison, Extent, Summary, SweepPoint, TAIL_WRITES_PER_S, WRITES_PER_S, compare,
    sweep_devices, sweep_point, sweep_rules,
};
use bimetal_sim::experiment::hetero::{Devices, Outcome, Scheme, schemes};
use serde_json::json;

use crate::options::ExperimentArgs;
use crate::output::{percent, print_lines};

/// Arguments of the verb `mirror`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Duration of the measured part of each run in seconds of virtual time
    #[arg(long, value_name = "N", default_value = "300",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seconds: u64,
    /// Seconds of virtual time for which each run is loaded before the measured part
    #[arg(long, value_name = "N", default_value = "0",
          value_parser = clap::value_parser!(u64).range(0..=100_000))]
    warm_up: u64,
    #[command(flatten)]
    experiment: ExperimentArgs,
    /// Loads in writes per second [default: those of the paper; for the pair qlc, loads near the
    /// capacity of the SSD]
    #[arg(long, value_name = "N,...", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    loads: Vec<u64>,
    /// Pairs of devices: `b` and `a` are two models fitted to the pair in the paper; `qlc` is used
    /// only with --log [default: all]
    #[arg(
        long,
        value_name = "PAIR,...",
        value_delimiter = ',',
        value_enum,
        conflicts_with = "sweep"
    )]
    pair: Vec<Pair>,
    /// Run variations of the devices and rules instead of the pairs, to see which parameters matter
    #[arg(long)]
    sweep: bool,
    /// Use a mirror on formatted sides with logs of this length, instead of mirrors on bare sides
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log: Option<Size>,
    /// With --log: layouts of the sides, one row for each [default: home,log]
    #[arg(
        long,
        value_name = "LAYOUT,...",
        value_delimiter = ',',
        value_enum,
        requires = "log"
    )]
    layout: Vec<Layout>,
    /// With --log: size of the part of the volume to which the load writes, also that of one SSD
    /// [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "log")]
    span: Option<Size>,
    /// With --log: write the span once, in sequence, and rest for 60 s, before the load
    #[arg(long, requires = "log")]
    fill: bool,
    /// Size of each SSD
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32GB")]
    fast_size: Size,
    /// Size of the hard disk; its profile has 250 GB, of which the outer part is used
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32GB")]
    slow_size: Size,
}

/// How the sides of a mirror with logs store the blocks of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Layout {
    /// Each block has a home, to which the log is destaged.
    Home,
    /// Each side is a log and nothing else.
    Log,
}

impl Layout {
    fn kind(self) -> SideKind {
        match self {
            Layout::Home => SideKind::Home,
            Layout::Log => SideKind::Log,
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let extent = args.extent();
    let sized = |mut devices: Devices| {
        devices.ssd_bytes = args.fast_size.0;
        devices.hdd_bytes = args.slow_size.0;
        devices
    };
    let chosen = |all: &[Pair]| {
        let is_chosen = |pair: &&Pair| args.pair.is_empty() || args.pair.contains(pair);
        let all = all.iter().filter(is_chosen).map(|pair| pair.under(&extent));
        all.map(|(devices, extent)| (sized(devices), extent))
            .collect::<Vec<_>>()
    };
    if args.log.is_none() && args.pair.contains(&Pair::Qlc) {
        bail!("--pair qlc needs --log: that pair is only measured with logs");
    }
    let changed = || sweep_devices().into_iter().map(sized).collect::<Vec<_>>();
    match (&args.log, args.sweep) {
        (None, false) => hetero(&chosen(&PAPERS_PAIRS), &schemes(), args.experiment.json),
        (None, true) => {
            let extent = or_loads(&extent, &WRITES_PER_S);
            sweep_all(
                &sized(Devices::fit_b()),
                &changed(),
                &extent,
                args.experiment.json,
            )
        }
        (Some(log), is_sweep) => {
            let pairs = if is_sweep {
                pairs_for_logs_changed(changed(), &extent)
            } else {
                chosen(&PAIRS_FOR_LOGS)
            };
            hetero(&pairs, &args.formatted(*log), args.experiment.json)
        }
    }
}

impl Args {
    fn extent(&self) -> Extent {
        let span = match (self.span, self.log) {
            (Some(span), _) => span.0,
            (None, Some(_)) => SPAN_WITH_LOGS_BYTES,
            (None, None) => self.fast_size.0.min(self.slow_size.0) / BLOCK_BYTES * BLOCK_BYTES,
        };
        Extent {
            writes_per_s: self.loads.clone(),
            seconds: self.seconds,
            warm_up_s: self.warm_up,
            span_bytes: span,
            seeds: self.experiment.seeds,
        }
    }

    /// Returns the schemes on formatted sides with logs of this length, one for each layout.
    fn formatted(&self, log: Size) -> Vec<Scheme> {
        let layouts = match self.layout.as_slice() {
            [] => &[Layout::Home, Layout::Log],
            chosen => chosen,
        };
        let scheme = |layout: &Layout| Scheme::formatted(layout.kind(), log.0, self.fill);
        layouts.iter().map(scheme).collect()
    }
}

/// Pair of devices whose mirrors are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Pair {
    /// The pair of the paper, as modelled by fit B.
    B,
    /// The pair of the paper, as modelled by fit A.
    A,
    /// A QLC SSD whose fast cache is exhausted, and the hard disk.
    Qlc,
}

/// Size of the part of a volume with logs to which the load writes, if it is not given.
const SPAN_WITH_LOGS_BYTES: u64 = 1 << 30;
const PAPERS_PAIRS: [Pair; 2] = [Pair::B, Pair::A];
const PAIRS_FOR_LOGS: [Pair; 3] = [Pair::B, Pair::A, Pair::Qlc];

impl Pair {
    /// Returns the devices of the pair, and `extent` with the loads to run. If `extent` has no
    /// loads, the pairs `B` and `A` get the loads of the paper, and the pair `Qlc` gets loads just
    /// below and above the capacity of its SSD.
    fn under(self, extent: &Extent) -> (Devices, Extent) {
        match self {
            Pair::B => (Devices::fit_b(), or_loads(extent, &WRITES_PER_S)),
            Pair::A => (Devices::fit_a(), or_loads(extent, &WRITES_PER_S)),
            Pair::Qlc => (Devices::qlc_exhausted(), or_loads(extent, &[120, 200, 300])),
        }
    }
}

/// Returns `extent`, to which `loads` are added if it has no loads.
fn or_loads(extent: &Extent, loads: &[u64]) -> Extent {
    let mut extent = extent.clone();
    if extent.writes_per_s.is_empty() {
        extent.writes_per_s = loads.to_vec();
    }
    extent
}

/// Returns the modified devices of the sweep, each with `extent`. If `extent` has no loads, it gets
/// two: the load at which tail latencies are compared, and the load that saturates the devices.
fn pairs_for_logs_changed(changed: Vec<Devices>, extent: &Extent) -> Vec<(Devices, Extent)> {
    let saturation = WRITES_PER_S[WRITES_PER_S.len() - 1];
    let extent = or_loads(extent, &[TAIL_WRITES_PER_S, saturation]);
    let changed = changed.into_iter();
    changed.map(|devices| (devices, extent.clone())).collect()
}

/// Runs the comparison of the schemes and shows a progress bar.
fn compared(devices: &Devices, schemes: &[Scheme], extent: &Extent) -> Result<Comparison> {
    let bar = progress_bar(0);
    bar.set_message(devices.name.clone());
    let comparison = compare(devices, schemes, extent, |done, runs| {
        bar.set_length(runs);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    match comparison {
        Ok(comparison) => Ok(comparison),
        Err(error) => bail!("{}: {error}", devices.name),
    }
}

fn hetero(pairs: &[(Devices, Extent)], schemes: &[Scheme], as_json: bool) -> Result<ExitCode> {
    let mut all = Vec::new();
    for (devices, extent) in pairs {
        let comparison = compared(devices, schemes, extent)?;
        if as_json {
            all.push(json!({ "comparison": comparison, "summaries": comparison.summaries() }));
        } else {
            // The result of each pair is printed as soon as it is complete, because a run over long
            // logs takes almost an hour.
            print_comparison(&mut std::io::stdout().lock(), &comparison)?;
        }
    }
    if as_json {
        let all = serde_json::to_string_pretty(&json!({ "version": 1, "runs": all }))?;
        writeln!(std::io::stdout().lock(), "{all}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_comparison(out: &mut impl Write, comparison: &Comparison) -> Result<()> {
    let Extent { seconds, seeds, .. } = comparison.extent;
    let warm_up = match comparison.extent.warm_up_s {
        0 => String::new(),
        warm_up_s => format!(" after {warm_up_s} s"),
    };
    writeln!(
        out,
        "{}, {seconds} s of virtual time{warm_up}, medians of {seeds} seeds",
        comparison.devices.name
    )?;
    writeln!(out)?;
    let columns = [
        "writes/s",
        "done/s",
        "mean ms",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "longest ms",
        "exposed MB",
    ];
    let mut headings = vec![("scheme", Align::Left)];
    headings.extend(columns.map(|name| (name, Align::Right)));
    headings.push(("switches/s", Align::Right));
    // The column `rounds` shows how many times each log has wrapped around, and the column `moved`
    // shows how many bytes cleaning has moved for each byte of the client. The columns exist only
    // if a scheme has logs, or cleans.
    let has = |value: fn(&Outcome) -> f64| {
        let mut rows = comparison.rows.iter();
        rows.any(|row| value(&row.outcome) > 0.0)
    };
    let (logs, cleaned) = (has(|o| o.log_rounds), has(|o| o.moved_share));
    if logs {
        headings.push(("rounds", Align::Right));
    }
    if cleaned {
        headings.push(("moved", Align::Right));
    }
    let mut table = Table::new(&headings);
    for row in &comparison.rows {
        let o = &row.outcome;
        let mut cells = vec![
            row.scheme.clone(),
            row.writes_per_s.to_string(),
            format!("{:.1}", o.done_per_s),
            format!("{:.1}", o.mean_ms),
            format!("{:.1}", o.p50_ms),
            format!("{:.0}", o.p99_ms),
            format!("{:.0}", o.p999_ms),
            format!("{:.0}", o.max_ms),
            format!("{:.1}", o.exposed_bytes_peak as f64 / 1e6),
            format!("{:.2}", o.mode_switches_per_s),
        ];
        if logs {
            cells.push(format!("{:.1}", o.log_rounds));
        }
        if cleaned {
            cells.push(format!("{:.2}", o.moved_share));
        }
        table.row(cells);
    }
    print_lines(out, &table)?;
    print_lines(
        out,
        &summary_table(
            comparison
                .summaries()
                .iter()
                .map(|s| (s.scheme.as_str(), s)),
        ),
    )
}

/// Formats the summary of each scheme relative to the single SSD and to the SSD mirror.
fn summary_table<'s>(rows: impl Iterator<Item = (&'s str, &'s Summary)>) -> Table {
    let mut table = Table::new(&[
        ("against the single SSD", Align::Left),
        ("throughput", Align::Right),
        ("best", Align::Right),
        ("least", Align::Right),
        ("peak / SSD mirror", Align::Right),
        ("response", Align::Right),
        ("p99.9 at 80/s", Align::Right),
        ("exposed", Align::Right),
    ]);
    for (name, s) in rows {
        table.row(vec![
            name.to_owned(),
            percent(s.average_gain),
            percent(s.best_gain),
            percent(s.least_gain),
            percent(s.peak_gain_over_ssd_mirror),
            percent(s.response_change),
            format!("x {:.3}", s.tail_share),
            show_size(s.exposed_bytes_peak),
        ]);
    }
    table
}

/// Function that selects the summary of one scheme at a point of the sweep.
type OfScheme = fn(&SweepPoint) -> &Summary;

fn sweep_all(
    base: &Devices,
    changed: &[Devices],
    extent: &Extent,
    as_json: bool,
) -> Result<ExitCode> {
    let all: Vec<Scheme> = schemes().into_iter().chain(sweep_rules()).collect();
    let rules = compared(base, &all, extent)?;
    let points = changed
        .iter()
        .map(|devices| Ok(sweep_point(&compared(devices, &schemes(), extent)?)))
        .collect::<Result<Vec<SweepPoint>>>()?;
    let mut out = std::io::stdout().lock();
    if as_json {
        let all = json!({ "version": 1, "rules": rules.summaries(), "devices": points });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "Rules, on {}", rules.devices.name)?;
    writeln!(out)?;
    let summaries = rules.summaries();
    print_lines(
        &mut out,
        &summary_table(summaries.iter().map(|s| (s.scheme.as_str(), s))),
    )?;
    print_lines(&mut out, &switches_table(&rules))?;
    let schemes: [(&str, OfScheme); 3] = [
        (
            "The paper to the letter, acknowledged at the first completion",
            |p| &p.paper,
        ),
        ("The paper, acknowledged at the wait limit", |p| {
            &p.paper_wait_limit
        }),
        ("Bounded at 64 MiB", |p| &p.bounded),
    ];
    for (title, of) in schemes {
        writeln!(out, "{title}, on changed devices")?;
        writeln!(out)?;
        print_lines(
            &mut out,
            &summary_table(points.iter().map(|p| (p.change.as_str(), of(p)))),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Formats the number of mode switches of the sides per second, at loads that require no switches.
/// A side switches its mode when it becomes delayed, and when it is in time again.
fn switches_table(comparison: &Comparison) -> Table {
    let mut table = Table::new(&[
        ("mode switches/s", Align::Left),
        ("40 writes/s", Align::Right),
        ("80", Align::Right),
        ("320", Align::Right),
    ]);
    for summary in comparison.summaries() {
        let at = |rate| {
            let mut rows = comparison.rows.iter();
            let row = rows.find(|r| r.scheme == summary.scheme && r.writes_per_s == rate);
            row.map_or_else(String::new, |r| {
                format!("{:.2}", r.outcome.mode_switches_per_s)
            })
        };
        table.row(vec![summary.scheme.clone(), at(40), at(80), at(320)]);
    }
    table
}
