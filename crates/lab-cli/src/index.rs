//! `bimetal-lab index`: runs the experiment of the CHC-Tree paper in virtual time.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use bimetal_console::progress::progress_bar;
use bimetal_console::table::{Align, Table};
use bimetal_sim::experiment::index::{
    Area, Comparison, Extent, Gain, Kind, Scheme, Setting, SweepPoint, compare, sweep,
};
use serde_json::json;

use crate::options::ExperimentArgs;
use crate::output::{percent, print_lines};

/// Arguments of the verb `bimetal-lab index`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    experiment: ExperimentArgs,
    /// Number of keys to load
    #[arg(long, value_name = "N", default_value = "1000000",
          value_parser = clap::value_parser!(u64).range(100_000..=100_000_000))]
    keys: u64,
    /// Number of updates before the measurement
    #[arg(long, value_name = "N", default_value = "60000",
          value_parser = clap::value_parser!(u64).range(0..=100_000_000))]
    warm_up: u64,
    /// Number of measured operations for each kind of load
    #[arg(long, value_name = "N", default_value = "40000",
          value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    operations: u64,
    /// Size of the flash area: same (all schemes have the same area), own (each scheme has the area
    /// that its nodes need) [default: both]
    #[arg(
        long,
        value_name = "AREA,...",
        value_delimiter = ',',
        value_enum,
        conflicts_with = "sweep"
    )]
    area: Vec<AreaName>,
    /// Vary one parameter at a time instead, to see which parameters matter
    #[arg(long)]
    sweep: bool,
}

/// Definition of the size of the flash area of a scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AreaName {
    /// Every scheme gets as much flash as the nodes of the ordinary B+-tree occupy.
    Same,
    /// Each scheme has the area that its own nodes occupy.
    Own,
}

impl AreaName {
    fn area(self) -> Area {
        match self {
            AreaName::Same => Area::Same,
            AreaName::Own => Area::Own,
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let setting = Setting {
        keys: args.keys,
        warm_up: args.warm_up,
        operations: args.operations,
        ..Setting::default()
    };
    let bar = progress_bar(0);
    let progress = |done, runs| {
        bar.set_length(runs);
        bar.set_position(done);
    };
    let mut out = std::io::stdout().lock();
    if args.sweep {
        let points = sweep(&setting, args.experiment.seeds, progress);
        bar.finish_and_clear();
        return print_sweep(&mut out, &points?, args);
    }
    let areas = match &args.area[..] {
        [] => Area::ALL.to_vec(),
        some => some.iter().map(|area| area.area()).collect(),
    };
    let extent = Extent {
        schemes: Scheme::ALL.to_vec(),
        areas,
        first_seed: 1,
        seeds: args.experiment.seeds,
    };
    let comparison = compare(&setting, &extent, progress);
    bar.finish_and_clear();
    print_comparison(&mut out, &comparison?, args.experiment.json)
}

fn print_comparison(
    out: &mut impl Write,
    comparison: &Comparison,
    as_json: bool,
) -> Result<ExitCode> {
    if as_json {
        let all = json!({ "version": 1, "comparison": comparison, "gains": comparison.gains() });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let setting = &comparison.setting;
    writeln!(
        out,
        "{} keys, {} updates before, {} operations of each kind, medians of {} seeds. CPU is not charged.",
        setting.keys, setting.warm_up, setting.operations, comparison.extent.seeds
    )?;
    writeln!(out)?;
    for &area in &comparison.extent.areas {
        writeln!(out, "Area: {}", area.name())?;
        writeln!(out)?;
        for kind in Kind::ALL {
            print_lines(out, &loads_table(comparison, area, kind))?;
        }
        print_lines(out, &costs_table(comparison, area))?;
    }
    let gains = comparison.gains();
    let named = gains.iter().map(|gain| (gain.area.name(), gain));
    print_lines(out, &gains_table("area", named))?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the throughput and the mean response time of each scheme, with one row for each load.
fn loads_table(comparison: &Comparison, area: Area, kind: Kind) -> Table {
    let schemes = &comparison.extent.schemes;
    let done = schemes.iter().map(|s| format!("{}/s", s.name()));
    let response = schemes.iter().map(|s| format!("{} ms", s.name()));
    let names: Vec<String> = done.chain(response).collect();
    let first = format!("{}/s", kind.name());
    let mut headings = vec![(&first[..], Align::Right)];
    headings.extend(names.iter().map(|name| (&name[..], Align::Right)));
    let mut table = Table::new(&headings);
    let columns: Vec<_> = schemes
        .iter()
        .map(|scheme| comparison.served(area, kind, *scheme))
        .collect();
    for (at, load) in kind.loads_per_s().enumerate() {
        let served = columns.iter().map(|column| column[at].1);
        let mut cells = vec![load.to_string()];
        cells.extend(served.clone().map(|s| format!("{:.0}", s.done_per_s)));
        cells.extend(served.map(|s| format!("{:.2}", s.mean_ms)));
        table.row(cells);
    }
    table
}

/// Formats the number of flash operations that one index operation needs, for each scheme.
fn costs_table(comparison: &Comparison, area: Area) -> Table {
    let mut table = Table::new(&[
        ("an operation", Align::Left),
        ("scheme", Align::Left),
        ("us", Align::Right),
        ("reads", Align::Right),
        ("programs", Align::Right),
        ("erases", Align::Right),
        ("splits", Align::Right),
        ("in use", Align::Right),
        ("area taken", Align::Right),
        ("hot", Align::Right),
        ("keys/node", Align::Right),
    ]);
    for cost in comparison.costs.iter().filter(|cost| cost.area == area) {
        let p = &cost.per_operation;
        let area_taken = match p.area_share > 0.0 {
            true => format!("{:.0} %", p.area_share * 100.0),
            false => "-".to_owned(),
        };
        table.row(vec![
            cost.kind.name().to_owned(),
            cost.scheme.name().to_owned(),
            format!("{:.0}", p.service_us),
            format!("{:.2}", p.reads),
            format!("{:.3}", p.programs),
            format!("{:.4}", p.erases),
            format!("{:.4}", p.splits),
            format!("{:.1} %", p.utilisation * 100.0),
            area_taken,
            format!("{:.0} %", p.hot_share * 100.0),
            format!("{:.0}", p.keys_per_node),
        ]);
    }
    table
}

fn gains_table<'g>(first: &str, gains: impl Iterator<Item = (&'g str, &'g Gain)>) -> Table {
    let mut table = Table::new(&[
        (first, Align::Left),
        ("CHCTR over", Align::Left),
        ("mix 2,400/s", Align::Right),
        ("updates 2,400/s", Align::Right),
        ("past 900/s", Align::Right),
        ("mix response", Align::Right),
        ("update response", Align::Right),
        ("searches 5,000/s", Align::Right),
        ("search response", Align::Right),
        ("its area in use", Align::Right),
    ]);
    for (name, gain) in gains {
        table.row(vec![
            name.to_owned(),
            gain.over.name().to_owned(),
            percent(gain.mix),
            percent(gain.update),
            percent(gain.update_past),
            percent(gain.mix_response),
            percent(gain.update_response),
            percent(gain.search),
            percent(gain.search_response),
            format!("{:.0} %", gain.utilisation_over * 100.0),
        ]);
    }
    table
}

fn print_sweep(out: &mut impl Write, points: &[SweepPoint], args: &Args) -> Result<ExitCode> {
    if args.experiment.json {
        let all = json!({ "version": 1, "seeds": args.experiment.seeds, "points": points });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "One parameter changed at a time, all schemes with the same area, medians of {} seeds.",
        args.experiment.seeds
    )?;
    writeln!(out)?;
    let named = points.iter().flat_map(|point| {
        let name = &point.setting.name[..];
        point.gains.iter().map(move |gain| (name, gain))
    });
    print_lines(out, &gains_table("changed", named))?;
    Ok(ExitCode::SUCCESS)
}
