//! `bimetal-lab run`, `plan`, `report`, `compare` and `restore`: executes the runs of an experiment
//! file, in virtual time or on this machine, and reports and compares the results.

mod native;
mod stack;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use bimetal_block::units::show_ns;
use bimetal_console::progress::progress_bar;
use bimetal_console::table::{Align, Table};
use bimetal_lab::compare::{Rule, compare};
use bimetal_lab::device::Backend;
use bimetal_lab::native::guest::run_inside;
use bimetal_lab::outcome::Outcome;
use bimetal_lab::plan::{AXES, Plan};
use bimetal_lab::plot::short;
use bimetal_lab::report::{CellSummary, Summary, csv, html, summary};
use bimetal_lab::results::{Job, Results, jobs, missing};
use bimetal_sim::experiment::parallel::{all_cores, run_all};
use serde_json::json;

use crate::output::status_of;

/// The verbs of experiments from a file.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Execute the runs of an experiment file that have no result yet, and report on all runs.
    Run {
        /// The experiment file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Folder for the results [default: FILE with the extension .results]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Number of concurrent runs [default: one for each core]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
        jobs: Option<u16>,
        /// Print the report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the axes of an experiment file and the estimated duration of its remaining runs,
    /// without executing them.
    Plan {
        /// The experiment file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Folder with earlier results [default: FILE with the extension .results]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Undo the changes that a killed run has left on this machine.
    Restore,
    /// Act as the first program of a guest, and execute the run that the folder requests.
    #[command(hide = true)]
    Guest {
        /// The folder of the run
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Write the report on the results in a folder again.
    Report {
        /// Folder with results
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Print the report as JSON
        #[arg(long, conflicts_with = "csv")]
        json: bool,
        /// Print one line of CSV for each run
        #[arg(long)]
        csv: bool,
    },
    /// Compare the results in two folders, cell by cell.
    Compare {
        /// Folder with the results that B is compared with
        #[arg(value_name = "A")]
        before: PathBuf,
        /// Folder with the results that are compared with A
        #[arg(value_name = "B")]
        after: PathBuf,
        /// Exit with status 1 if a result changes by more than noise and by more than RULE, such as
        /// "value<-5%"
        #[arg(long = "fail-if", value_name = "RULE")]
        rules: Vec<Rule>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the verb. The exit status is 1 if a comparison violates a rule.
pub(crate) fn run(verb: &Verb) -> Result<ExitCode> {
    match verb {
        Verb::Run {
            file,
            out,
            jobs,
            json,
        } => run_plan(file, &folder_of(file, out.as_deref()), *jobs, *json),
        Verb::Plan { file, out, json } => show_plan(file, &folder_of(file, out.as_deref()), *json),
        Verb::Restore => native::restore(),
        Verb::Guest { folder } => {
            run_inside(folder)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Report { folder, json, csv } => report(folder, *json, *csv),
        Verb::Compare {
            before,
            after,
            rules,
            json,
        } => compare_folders(before, after, rules, *json),
    }
}

fn folder_of(file: &Path, out: Option<&Path>) -> PathBuf {
    out.map_or_else(|| file.with_extension("results"), Path::to_owned)
}

fn read_plan(file: &Path) -> Result<Plan> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    Ok(Plan::parse(file, &text)?)
}

fn run_plan(file: &Path, folder: &Path, threads: Option<u16>, as_json: bool) -> Result<ExitCode> {
    let plan = read_plan(file)?;
    native::restore_what_is_left()?;
    let results = match plan.backend {
        Backend::Virtual => run_in_virtual_time(&plan, folder, threads)?,
        Backend::Stack => stack::run(&plan, folder, threads)?,
        Backend::Native => native::run(&plan, folder, threads)?,
        Backend::Uml => native::run_in_guests(&plan, folder, threads)?,
    };
    write_report(&results, &plan, folder, as_json)
}

fn run_in_virtual_time(plan: &Plan, folder: &Path, threads: Option<u16>) -> Result<Results> {
    let results = Results::create(folder, plan)?;
    let threads = threads.map_or_else(all_cores, usize::from);
    let mut made = results.made(plan)?;
    loop {
        // The set of missing runs depends on the results so far.
        let missing = missing(&jobs(plan, &made), &made);
        if missing.is_empty() {
            return Ok(results);
        }
        made.extend(make_runs(&results, &missing, threads)?);
    }
}

fn make_runs(results: &Results, missing: &[Job<'_>], threads: usize) -> Result<Vec<Outcome>> {
    let bar = progress_bar(missing.len() as u64);
    let made = run_all(
        missing,
        threads,
        |job| results.make(job),
        |done, _| bar.set_position(done),
    );
    bar.finish_and_clear();
    Ok(made?)
}

/// Writes a report to three files (JSON, CSV and HTML), and prints it as JSON or as a table.
fn write_report(results: &Results, plan: &Plan, folder: &Path, as_json: bool) -> Result<ExitCode> {
    let outcomes = results.outcomes(plan)?;
    let summary = summary(plan, &outcomes);
    let json = serde_json::to_string_pretty(&summary)?;
    results.write("report.json", &json)?;
    results.write("runs.csv", &csv(&outcomes))?;
    results.write("report.html", &html(&summary))?;
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{json}")?;
    } else {
        for line in table_of(&summary).lines() {
            writeln!(out, "{line}")?;
        }
        writeln!(out, "report: {}", folder.join("report.html").display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(folder: &Path, as_json: bool, as_csv: bool) -> Result<ExitCode> {
    let (results, plan) = Results::open(folder)?;
    if as_csv {
        let outcomes = results.outcomes(&plan)?;
        write!(std::io::stdout().lock(), "{}", csv(&outcomes))?;
        return Ok(ExitCode::SUCCESS);
    }
    write_report(&results, &plan, folder, as_json)
}

/// Returns the axes that have more than one value. The workload axis is always included.
fn varying(summary: &Summary) -> Vec<&'static str> {
    let varies = |axis: &&str| summary.axes[*axis].len() > 1 || *axis == "workload";
    AXES.into_iter().filter(varies).collect()
}

fn table_of(summary: &Summary) -> Table {
    let axes = varying(summary);
    let names: Vec<String> = axes.iter().map(|axis| axis.replace('_', " ")).collect();
    let mut columns: Vec<(&str, Align)> = names
        .iter()
        .map(|name| (name.as_str(), Align::Left))
        .collect();
    for name in ["result", "95 %"] {
        columns.push((name, Align::Right));
    }
    columns.push(("unit", Align::Left));
    for name in ["ratio", "bios", "issued", "flushes"] {
        columns.push((name, Align::Right));
    }
    let mut table = Table::new(&columns);
    for cell in &summary.cells {
        let mut row: Vec<String> = axes.iter().map(|axis| cell.choice[*axis].clone()).collect();
        let mut figures = figures_of(cell);
        if !summary.backend.has_times() {
            // The four columns are the result, its interval, its unit and the ratio.
            figures[..4].fill("-".to_owned());
        }
        row.extend(figures);
        table.row(row);
    }
    table
}

fn figures_of(cell: &CellSummary) -> [String; 7] {
    let ratio = cell.ratio.as_ref().map_or("-".to_owned(), |ratio| {
        let mark = if ratio.is_significant { "*" } else { " " };
        format!("{:.3}{mark}", ratio.estimate.median)
    });
    [
        short(cell.value.median),
        format!(
            "{}..{}{}",
            short(cell.value.low),
            short(cell.value.high),
            if cell.is_narrow { " " } else { "~" }
        ),
        cell.unit.clone(),
        ratio,
        (cell.reads.bios + cell.writes.bios).to_string(),
        (cell.reads.issued + cell.writes.issued).to_string(),
        cell.flushes.to_string(),
    ]
}

fn show_plan(file: &Path, folder: &Path, as_json: bool) -> Result<ExitCode> {
    let plan = read_plan(file)?;
    native::restore_what_is_left()?;
    let made = match folder.join("plan.toml").exists() {
        true => Results::open(folder)?.0.made(&plan)?,
        false => Vec::new(),
    };
    let all = jobs(&plan, &made);
    let missing = missing(&all, &made);
    let (estimate_ns, of_what) = match plan.backend {
        Backend::Virtual => {
            let all = missing.iter();
            let all = all.map(|job| job.cell.settings.workload.estimated_ns());
            (all.fold(0, u64::saturating_add), "of one core")
        }
        Backend::Stack | Backend::Native | Backend::Uml => {
            (native::estimate_ns(&missing, &made), "of this machine")
        }
    };
    let mut out = std::io::stdout().lock();
    if as_json {
        let cells: Vec<_> = plan
            .cells
            .iter()
            .map(|cell| json!({ "choice": cell.choice, "settings": cell.settings }))
            .collect();
        let all = json!({ "version": 1, "name": plan.name, "id": plan.id(), "repeats": plan.repeats, "repeats_max": plan.repeats_max,
            "runs": all.len(), "missing_runs": missing.len(), "backend": plan.backend, "estimated_cpu_ns": estimate_ns, "cells": cells });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{} ({})", plan.name, plan.id())?;
    for axis in AXES {
        writeln!(
            out,
            "  {:<12} {}",
            axis.replace('_', " "),
            plan.axes[axis].join(", ")
        )?;
    }
    writeln!(
        out,
        "{} cells, {} of each; {} of {} runs are to be made, about {} {of_what}",
        plan.cells.len(),
        runs_of_each(&plan),
        missing.len(),
        all.len(),
        rough(estimate_ns)
    )?;
    Ok(ExitCode::SUCCESS)
}

fn runs_of_each(plan: &Plan) -> String {
    let Plan {
        repeats,
        repeats_max,
        within,
        ..
    } = plan;
    match repeats_max > repeats {
        true => format!(
            "{repeats} to {repeats_max} runs (until {:.3} % of the median)",
            within * 100.0
        ),
        false => format!("{repeats} runs"),
    }
}

/// Formats an estimated time.
fn rough(ns: u64) -> String {
    let seconds = Duration::from_nanos(ns).as_secs();
    match seconds {
        0 => show_ns(ns),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn read_summary(folder: &Path) -> Result<Summary> {
    let (results, plan) = Results::open(folder)?;
    Ok(summary(&plan, &results.outcomes(&plan)?))
}

fn compare_folders(before: &Path, after: &Path, rules: &[Rule], as_json: bool) -> Result<ExitCode> {
    let (a, b) = (read_summary(before)?, read_summary(after)?);
    let all = compare(&a, &b, rules).map_err(|why| anyhow!(why))?;
    let fails = all.iter().any(|compared| compared.fails);
    let mut out = std::io::stdout().lock();
    if as_json {
        let cells: Vec<_> = all
            .iter()
            .map(|of| {
                json!({ "cell": of.cell, "figure": of.figure, "before": of.before, "after": of.after,
                    "percent": of.percent, "beyond_noise": of.is_beyond_noise, "fails": of.fails })
            })
            .collect();
        let all = json!({ "version": 1, "fails": fails, "cells": cells });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(status_of(fails));
    }
    let mut table = Table::new(&[
        ("cell", Align::Left),
        ("figure", Align::Left),
        ("before", Align::Right),
        ("after", Align::Right),
        ("change", Align::Right),
        ("", Align::Left),
    ]);
    for of in &all {
        let word = match (of.fails, of.is_beyond_noise) {
            (true, _) => "FAILS",
            (false, true) => "changed",
            (false, false) => "",
        };
        table.row(vec![
            of.cell.clone(),
            of.figure.clone(),
            short(of.before),
            short(of.after),
            format!("{:+.1} %", of.percent),
            word.to_owned(),
        ]);
    }
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    Ok(status_of(fails))
}
