//! `bimetal-lab tester run`, `swarm` and `every`: executes one run of the simulation tester, or
//! many runs on all cores, in batches whose results are kept. `index-run` and `index-swarm` do the
//! same for the index tester.
//!
//! Threads are used only to occupy all cores. Each thread runs whole seeds, which share no state.

use std::collections::VecDeque;
use std::io::Write;
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, mpsc};

use anyhow::{Context, Result, bail};
use bimetal_console::progress::progress_bar;
use bimetal_console::stderr::say;
use bimetal_sim::campaign::{Campaign, Meaning, Outcome, Replay};
use bimetal_sim::index_tester;
use bimetal_sim::tester::every::{Every, every, scenario_of};
use bimetal_sim::tester::{self, Classes, Extent, FailAt, Interference, Options, Report, Summary};
use indicatif::ProgressBar;
use serde_json::json;

use crate::output::status_of;

/// Arguments of the verb `tester`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Run one seed on a mirror twice, and show its faults and the bugs found.
    Run(RunArgs),
    /// Run many seeds on mirrors, in batches on all cores, and count the situations that they
    /// reached.
    Swarm(SwarmArgs),
    /// Repeat small runs with one fault at each possible point: a power cut at every I/O boundary,
    /// or a failure of every single operation.
    Every(EveryArgs),
    /// Run one seed on an index twice, and show its faults and the bugs found.
    IndexRun(IndexRunArgs),
    /// Run many seeds on indexes, in batches on all cores.
    IndexSwarm(IndexSwarmArgs),
}

/// Arguments of the verb `tester run`.
#[derive(clap::Args)]
struct RunArgs {
    /// The seed
    #[arg(long, value_name = "N")]
    seed: u64,
    /// Classes of faults, as for `swarm`
    #[arg(long, value_name = "NAMES", default_value = "withstood", allow_hyphen_values = true,
          value_parser = Classes::parse)]
    classes: Classes,
    /// Extent of the run: `usual`, `heavy-tailed`, or `small` (which has no faults, as in `tester
    /// every`)
    #[arg(long, value_name = "NAME", default_value = "usual", value_parser = parse_extent)]
    extent: Extent,
    /// Cut the power at the I/O boundary N, or at two boundaries; boundaries are counted from 1
    #[arg(long, value_name = "N", value_delimiter = ',', num_args = 1..=2)]
    cut: Vec<u64>,
    /// Make the N-th operation of a class fail; classes are 0 (reads), 1 (writes) and 2 (flushes)
    #[arg(long, value_name = "CLASS:N", value_parser = parse_failure)]
    fail: Option<FailAt>,
    /// Print every event
    #[arg(long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of the verb `tester swarm`.
#[derive(clap::Args)]
struct SwarmArgs {
    /// Range of seeds, from A up to but not including B
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Classes of faults, separated by commas: `withstood`, `all`, `none` or names of classes; a
    /// name after `-` is excluded
    #[arg(long, value_name = "NAMES", default_value = "withstood", allow_hyphen_values = true,
          value_parser = Classes::parse)]
    classes: Classes,
    /// Extent of each run: `usual`, `heavy-tailed` or `small`
    #[arg(long, value_name = "NAME", default_value = "usual", value_parser = parse_extent)]
    extent: Extent,
    #[command(flatten)]
    campaign: CampaignArgs,
}

/// Arguments of the verb `tester index-swarm`.
#[derive(clap::Args)]
struct IndexSwarmArgs {
    /// Range of seeds, from A up to but not including B
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Classes of faults, separated by commas: `withstood`, `all`, `none` or names of classes; a
    /// name after `-` is excluded
    #[arg(long, value_name = "NAMES", default_value = "withstood", allow_hyphen_values = true,
          value_parser = index_tester::Classes::parse)]
    classes: index_tester::Classes,
    #[command(flatten)]
    campaign: CampaignArgs,
}

/// Arguments of the verb `tester index-run`.
#[derive(clap::Args)]
struct IndexRunArgs {
    /// The seed
    #[arg(long, value_name = "N")]
    seed: u64,
    /// Classes of faults, as for `index-swarm`
    #[arg(long, value_name = "NAMES", default_value = "withstood", allow_hyphen_values = true,
          value_parser = index_tester::Classes::parse)]
    classes: index_tester::Classes,
    /// Print every event
    #[arg(long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of the verbs that run many seeds.
#[derive(clap::Args)]
struct CampaignArgs {
    /// Run every N-th seed twice, to check that it replays identically; 0 for no seed
    #[arg(long, value_name = "N", default_value = "16")]
    replay_every: u64,
    /// Number of threads [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Number of seeds in a batch
    #[arg(long, value_name = "N", default_value = "250")]
    batch: NonZero<u64>,
    /// File with the results of finished batches; a later call skips these batches
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Start no new batch after N minutes
    #[arg(long, value_name = "N")]
    minutes: Option<NonZero<u32>>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of the verb `tester every`.
#[derive(clap::Args)]
struct EveryArgs {
    /// Faults: `cut`, `cut-twice`, `fail-reads`, `fail-writes`, `fail-flushes` [default: all]
    #[arg(value_name = "WHAT", value_parser = parse_every)]
    what: Vec<Every>,
    /// Range of seeds, from A up to but not including B
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Try only N boundaries of each seed, chosen at random
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// Classes of faults, as for `swarm`
    #[arg(long, value_name = "NAMES", default_value = "withstood", allow_hyphen_values = true,
          value_parser = Classes::parse)]
    classes: Classes,
    /// Number of threads [default: one for each core]
    #[arg(long, value_name = "N")]
    jobs: Option<NonZero<usize>>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Parses a range of seeds in the form `A..B`.
fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let expected = "expected a range of seeds such as 0..1000";
    let (from, to) = text.split_once("..").ok_or(expected)?;
    let number = |part: &str| part.parse::<u64>().map_err(|_| expected);
    let range = number(from)?..number(to)?;
    if range.is_empty() {
        return Err("the range of seeds is empty".to_owned());
    }
    Ok(range)
}

fn parse_extent(text: &str) -> Result<Extent, String> {
    let extent = Extent::ALL.into_iter().find(|extent| extent.name() == text);
    extent.ok_or_else(|| "expected `usual`, `heavy-tailed` or `small`".to_owned())
}

fn parse_failure(text: &str) -> Result<FailAt, String> {
    let expected = "expected a class of operations and a number, such as 1:20";
    let (class, number) = text.split_once(':').ok_or(expected)?;
    let class: usize = class.parse().map_err(|_| expected)?;
    let number = number.parse().map_err(|_| expected)?;
    if class > 2 {
        return Err("the classes are 0 (reads), 1 (writes) and 2 (flushes)".to_owned());
    }
    Ok(FailAt { class, number })
}

fn parse_every(text: &str) -> Result<Every, String> {
    let every = Every::ALL.into_iter().find(|every| every.name() == text);
    every.ok_or_else(|| {
        let names: Vec<&str> = Every::ALL.into_iter().map(Every::name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// Runs the verb. The exit status is 1 if a run has found a bug.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    tester::name_seed_on_panic();
    match &args.verb {
        Verb::Run(args) => run_one(args),
        Verb::Swarm(args) => swarm(args),
        Verb::Every(args) => run_every(args),
        Verb::IndexRun(args) => index_run(args),
        Verb::IndexSwarm(args) => index_swarm(args),
    }
}

/// Runs one seed on a mirror. The exit status is 1 if the run has found a bug.
fn run_one(args: &RunArgs) -> Result<ExitCode> {
    let mut interference = Interference {
        fail_at: args.fail,
        ..Interference::default()
    };
    for (place, number) in interference.cuts.iter_mut().zip(&args.cut) {
        *place = *number;
    }
    let options = Options {
        verbose: args.verbose,
        classes: args.classes,
        extent: args.extent,
        interference,
        ..Options::default()
    };
    let report = match options.extent {
        Extent::Small => tester::run_scenario(&scenario_of(args.seed, options), options),
        _ => tester::run(args.seed, options),
    };
    show(&report, args.json, || report.text())
}

/// Prints the report of one seed as text or as JSON. The exit status is 1 if the run has found a
/// bug.
fn show<R>(report: &R, as_json: bool, text: impl FnOnce() -> String) -> Result<ExitCode>
where
    R: Outcome + serde::Serialize,
{
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string_pretty(report)?)?;
    } else {
        write!(out, "{}", text())?;
    }
    Ok(status_of(report.told().finding.is_some()))
}

/// Runs `run` on each element of `work`, on `jobs` threads. Each result is passed to `done` on the
/// calling thread.
fn on_all_cores<W: Send, R: Send>(
    jobs: Option<NonZero<usize>>,
    work: Vec<W>,
    run: impl Fn(&W) -> R + Sync,
    mut done: impl FnMut(W, R) -> Result<()>,
) -> Result<()> {
    let jobs = match jobs {
        Some(jobs) => jobs.get(),
        None => std::thread::available_parallelism()?.get(),
    };
    let left = Mutex::new(VecDeque::from(work));
    let next = || left.lock().map_or(None, |mut left| left.pop_front());
    let (results, arrived) = mpsc::sync_channel(jobs);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let results = results.clone();
            scope.spawn(|| {
                let results = results;
                while let Some(work) = next() {
                    let result = run(&work);
                    // The receiver no longer exists if `done` has failed. The calling thread
                    // reports that error.
                    if results.send((work, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let arrived = arrived;
        for (work, result) in &arrived {
            done(work, result)?;
        }
        Ok(())
    })
}

/// Runs many seeds on mirrors. The exit status is 1 if a run has found a bug.
fn swarm(args: &SwarmArgs) -> Result<ExitCode> {
    let meaning = Meaning {
        subject: "mirror".to_owned(),
        seeds: args.seeds.clone(),
        batch_seeds: args.campaign.batch.get(),
        classes: args.classes.text(),
        extent: args.extent.name().to_owned(),
        replay_every: args.campaign.replay_every,
    };
    let options = Options {
        classes: args.classes,
        extent: args.extent,
        ..Options::default()
    };
    let seed = |seed, replay| tester::run_replayed(seed, replay, options);
    run_campaign(&args.campaign, &meaning, seed, Report::summary)
}

/// Runs many seeds on indexes. The exit status is 1 if a run has found a bug.
fn index_swarm(args: &IndexSwarmArgs) -> Result<ExitCode> {
    let meaning = Meaning {
        subject: "index".to_owned(),
        seeds: args.seeds.clone(),
        batch_seeds: args.campaign.batch.get(),
        classes: args.classes.text(),
        extent: "usual".to_owned(),
        replay_every: args.campaign.replay_every,
    };
    let options = index_tester::Options {
        classes: args.classes,
        ..index_tester::Options::default()
    };
    let seed = |seed, replay| index_tester::run_replayed(seed, replay, options);
    let line = index_tester::Report::summary;
    run_campaign(&args.campaign, &meaning, seed, line)
}

/// Runs one seed on an index. The exit status is 1 if the run has found a bug.
fn index_run(args: &IndexRunArgs) -> Result<ExitCode> {
    let options = index_tester::Options {
        verbose: args.verbose,
        classes: args.classes,
        ..index_tester::Options::default()
    };
    let report = index_tester::run(args.seed, options);
    show(&report, args.json, || report.text())
}

fn tell<O: Outcome>(bar: &ProgressBar, outcome: &O, line: impl Fn(&O) -> String) {
    bar.inc(1);
    if outcome.told().finding.is_some() {
        bar.suspend(|| say(line(outcome)));
    }
}

/// Runs the remaining seeds of a campaign, and prints a line (formatted by `line`) for each run
/// that has found a bug.
fn run_campaign<O: Outcome>(
    args: &CampaignArgs,
    meaning: &Meaning,
    seed: impl Fn(u64, Replay) -> O + Sync,
    line: impl Fn(&O) -> String + Sync,
) -> Result<ExitCode> {
    let mut campaign = taken_up(args.state.as_deref(), meaning)?;
    let spent_s = campaign.wall_s;
    let bar = progress_bar(meaning.seeds.end - meaning.seeds.start);
    bar.inc(campaign.summary.seeds);
    let is_over = || {
        let minutes = args.minutes.map(|minutes| f64::from(minutes.get()));
        minutes.is_some_and(|minutes| bar.elapsed().as_secs_f64() >= minutes * 60.0)
    };
    let run = |batch: &u64| {
        let run = || meaning.run(*batch, &seed, |outcome| tell(&bar, outcome, &line));
        (!is_over()).then(run)
    };
    on_all_cores(args.jobs, campaign.left(), run, |batch, summary| {
        let Some(summary) = summary else {
            return Ok(());
        };
        campaign.add(batch, &summary);
        campaign.wall_s = spent_s + bar.elapsed().as_secs_f64();
        let keep = |file| keep(file, &campaign);
        args.state.as_deref().map_or(Ok(()), keep)
    })?;
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&campaign)?)?;
    } else {
        write!(out, "{}", campaign.summary.text())?;
        writeln!(out, "{:.0} s", campaign.wall_s)?;
    }
    Ok(status_of(!campaign.summary.failed.is_empty()))
}

fn taken_up(file: Option<&Path>, meaning: &Meaning) -> Result<Campaign> {
    let Some(file) = file.filter(|file| file.exists()) else {
        return Ok(Campaign::new(meaning.clone()));
    };
    let state = std::fs::read_to_string(file);
    let state = state.with_context(|| format!("reading {}", file.display()))?;
    match Campaign::resume(&state, meaning) {
        Ok(campaign) => Ok(campaign),
        Err(why) => bail!("{}: {why}", file.display()),
    }
}

/// Writes the state to a second file and renames it, so that a complete state file exists at any
/// time.
fn keep(file: &Path, campaign: &Campaign) -> Result<()> {
    let new = file.with_extension("new");
    let state = serde_json::to_vec_pretty(campaign)?;
    std::fs::write(&new, state).with_context(|| format!("writing {}", new.display()))?;
    std::fs::rename(&new, file).with_context(|| format!("renaming {}", new.display()))
}

/// Results of the runs of one seed. Each run has a fault at one boundary of the seed (one point at
/// which a fault is possible).
struct AtEvery {
    boundaries: u64,
    summary: Summary,
    findings: Vec<String>,
}

/// Repeats each seed with a fault at each of its boundaries (the points at which a fault is
/// possible). The exit status is 1 if a run has found a bug.
fn run_every(args: &EveryArgs) -> Result<ExitCode> {
    let what = match args.what.as_slice() {
        [] => Every::ALL.to_vec(),
        some => some.to_vec(),
    };
    let work: Vec<(Every, u64)> = what
        .iter()
        .flat_map(|&what| args.seeds.clone().map(move |seed| (what, seed)))
        .collect();
    let options = Options {
        classes: args.classes,
        ..Options::default()
    };
    let bar = progress_bar(work.len() as u64);
    let run = |&(what, seed): &(Every, u64)| {
        let (mut summary, mut findings) = (Summary::default(), Vec::new());
        let boundaries = every(seed, what, args.sample, options, |number, report| {
            summary.add(report);
            if report.finding.is_some() {
                let name = what.name();
                findings.push(format!("{name} at {number}: {}", report.summary()));
            }
        });
        AtEvery {
            boundaries,
            summary,
            findings,
        }
    };
    let (mut boundaries, mut summary, mut findings) = (0, Summary::default(), Vec::new());
    on_all_cores(args.jobs, work, run, |_, result| {
        bar.inc(1);
        boundaries += result.boundaries;
        summary.merge(&result.summary);
        findings.extend(result.findings);
        Ok(())
    })?;
    bar.finish_and_clear();
    let found = !findings.is_empty();
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({
            "version": 1, "boundaries": boundaries, "findings": findings, "summary": summary,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        write!(out, "{}", summary.text())?;
        for finding in &findings {
            writeln!(out, "{finding}")?;
        }
        let runs = summary.seeds;
        writeln!(
            out,
            "{runs} runs at {boundaries} boundaries, {} with findings",
            findings.len()
        )?;
    }
    Ok(status_of(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("3..9"), Ok(3..9));
        for bad in ["", "3", "3..", "9..3", "3..3", "a..b", "-1..3"] {
            assert!(parse_seeds(bad).is_err(), "{bad}");
        }
    }
}
