//! `bimetal-lab papers`: runs the experiments of the five papers again, and writes one report with
//! the papers' values beside ours.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Result, bail};
use bimetal_console::progress::progress_bar;
use bimetal_console::table::{Align, Table};
use bimetal_lab::papers::{
    Cell, Folder, Item, Made, PAPERS, PlanFile, Report, Scale, Scope, Traces, Verdict, cells, html,
    markdown, plan, report, selected,
};
use bimetal_sim::experiment::parallel::{all_cores, run_all};

/// Arguments of the verb `papers`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the items of this paper, 1 to 5
    #[arg(long, value_name = "N")]
    source: Option<u8>,
    /// Only these items, such as 1.7 (a figure), 3.t3 (a table) or 2.c2 (a claim)
    #[arg(long, value_name = "ITEM,...", value_delimiter = ',')]
    only: Vec<String>,
    /// Extent of the runs: `default` has the cells of the papers with two seeds, `full` has all
    /// cells with five seeds, `small` is shortened and only shows that everything works
    #[arg(
        long,
        value_name = "SCALE",
        value_enum,
        default_value = "default",
        conflicts_with = "merge"
    )]
    scale: ScaleArg,
    /// Folder for the runs and the report
    #[arg(long, value_name = "DIR", default_value = "papers.results")]
    out: PathBuf,
    /// First seed
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "merge")]
    seed: u64,
    /// Folder with traces for source 4: files whose names contain gcc, viewperf or cscope replace
    /// the stand-ins
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Make only part I of N of the runs, and no report
    #[arg(long, value_name = "I/N", conflicts_with = "merge")]
    shard: Option<Shard>,
    /// Put the runs of these folders together in the folder of --out, and report on them
    #[arg(long, value_name = "DIR", num_args = 1..)]
    merge: Vec<PathBuf>,
    /// Number of concurrent runs [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ScaleArg {
    Small,
    Default,
    Full,
}

impl ScaleArg {
    fn scale(self) -> Scale {
        match self {
            ScaleArg::Small => Scale::Small,
            ScaleArg::Default => Scale::Default,
            ScaleArg::Full => Scale::Full,
        }
    }
}

/// A part of the runs: number `part` of `parts`, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shard {
    part: usize,
    parts: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let expected = || "expected I/N with I from 1 to N, such as 2/4".to_owned();
        let (part, parts) = text.split_once('/').ok_or_else(expected)?;
        let number = |text: &str| text.parse().map_err(|_| expected());
        let shard = Shard {
            part: number(part)?,
            parts: number(parts)?,
        };
        let is_possible = shard.part >= 1 && shard.part <= shard.parts;
        is_possible.then_some(shard).ok_or_else(expected)
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let traces = match &args.traces {
        Some(folder) => Traces::in_folder(folder)?,
        None => Traces::default(),
    };
    match args.merge.is_empty() {
        true => run_here(args, traces),
        false => merge(args, traces),
    }
}

/// Makes the missing runs, and reports on all.
fn run_here(args: &Args, traces: Traces) -> Result<ExitCode> {
    let items = selected(args.source, &args.only)?;
    let scope = Scope {
        scale: args.scale.scale(),
        first_seed: args.seed,
        traces,
    };
    let cells = cells(&scope, &items);
    let plan = plan(&scope, &items, &cells);
    let folder = Folder::create(&args.out, &plan)?;
    let part = |at: usize| args.shard.is_none_or(|of| at % of.parts == of.part - 1);
    let mine = cells.iter().enumerate().filter(|(at, _)| part(*at));
    let mine: Vec<&Cell> = mine.map(|(_, cell)| cell).collect();
    make(&folder, &scope, &mine, args.jobs)?;
    if let Some(Shard { part, parts }) = args.shard {
        // The files of the runs are checked here, so that a damaged part is found where it is made.
        folder.runs(mine.iter().copied())?;
        let (count, all, path) = (mine.len(), cells.len(), args.out.display());
        writeln!(
            std::io::stdout().lock(),
            "part {part} of {parts}: {count} of {all} runs are in {path}; `bimetal-lab papers \
             --merge` puts the parts together"
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    write_report(args, &scope, &items, (&plan, &cells, &folder))
}

/// Makes the runs that are not stored yet, the longest first.
fn make(folder: &Folder, scope: &Scope, cells: &[&Cell], threads: Option<u16>) -> Result<()> {
    let stored = folder.runs(cells.iter().copied())?;
    let missing = cells.iter().filter(|cell| stored.get(cell).is_err());
    let mut missing: Vec<&Cell> = missing.copied().collect();
    missing.sort_by_key(|cell| std::cmp::Reverse(cell.weight()));
    let made = made();
    let bar = progress_bar(missing.len() as u64);
    let threads = threads.map_or_else(all_cores, usize::from);
    let ended = run_all(
        &missing,
        threads,
        |cell| -> Result<()> {
            let outcome = cell.run(&scope.traces)?;
            folder.keep(cell, &outcome, &made)?;
            Ok(())
        },
        |done, _| bar.set_position(done),
    );
    bar.finish_and_clear();
    ended.map(|_| ())
}

/// Puts the runs of several folders together. All folders have parts of the same plan.
fn merge(args: &Args, traces: Traces) -> Result<ExitCode> {
    let mut parts = Vec::new();
    for path in &args.merge {
        parts.push((path, Folder::open(path)?));
    }
    let Some((first, (_, plan_of_first))) = parts.first() else {
        bail!("--merge needs a folder");
    };
    for (path, (_, plan)) in &parts {
        if plan != plan_of_first {
            let (first, path) = (first.display(), path.display());
            bail!("{path} has runs of another plan than {first}");
        }
    }
    let scope = Scope {
        scale: scale_of(first, plan_of_first)?,
        first_seed: plan_of_first.seed,
        traces,
    };
    let items = selected(args.source, &plan_of_first.items)?;
    let cells = cells(&scope, &items);
    let plan = plan(&scope, &items, &cells);
    if args.source.is_none() && plan.id != plan_of_first.id {
        bail!(
            "{}: its plan differs from that of this program with these traces; use the program \
             that made the runs, and the same --traces",
            first.display()
        );
    }
    let folder = Folder::create(&args.out, &plan)?;
    let mut lacking = 0;
    for cell in &cells {
        let mut is_found = false;
        for (_, (part, _)) in &parts {
            is_found = is_found || folder.take(part, cell)?;
        }
        lacking += usize::from(!is_found);
    }
    if lacking > 0 {
        bail!(
            "{lacking} of {} runs are in none of the folders; run the missing parts, or run \
             `bimetal-lab papers` on {} to make them",
            cells.len(),
            args.out.display()
        );
    }
    write_report(args, &scope, &items, (&plan, &cells, &folder))
}

fn scale_of(path: &Path, plan: &PlanFile) -> Result<Scale> {
    let all = [Scale::Small, Scale::Default, Scale::Full];
    match all.into_iter().find(|scale| scale.name() == plan.scale) {
        Some(scale) => Ok(scale),
        None => bail!("{}: unknown scale {:?}", path.display(), plan.scale),
    }
}

/// Reads all runs, and writes the report as JSON and as a page.
fn write_report(
    args: &Args,
    scope: &Scope,
    items: &[&Item],
    (plan, cells, folder): (&PlanFile, &[Cell], &Folder),
) -> Result<ExitCode> {
    let runs = folder.runs(cells)?;
    let report = report(scope, items, plan, (&runs, cells.len()));
    let json = serde_json::to_string_pretty(&report)?;
    folder.write("report.json", &(json.clone() + "\n"))?;
    folder.write("report.html", &html(&report))?;
    folder.write("items.md", &markdown(&report))?;
    let values = serde_json::to_string_pretty(&report.values())?;
    folder.write("values.json", &(values + "\n"))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{json}")?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in table_of(&report).lines() {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "report: {}", folder.path("report.html").display())?;
    Ok(ExitCode::SUCCESS)
}

/// Formats the number of items of each paper by verdict.
fn table_of(report: &Report) -> Table {
    let mut headings = vec![("source", Align::Left)];
    headings.extend(Verdict::ALL.map(|verdict| (verdict.words(), Align::Right)));
    let mut table = Table::new(&headings);
    for paper in PAPERS {
        let items = report
            .items
            .iter()
            .filter(|item| item.source == paper.number);
        let verdicts: Vec<Verdict> = items.map(|item| item.verdict).collect();
        if verdicts.is_empty() {
            continue;
        }
        let count = |of: Verdict| verdicts.iter().filter(|verdict| **verdict == of).count();
        let counts = Verdict::ALL.map(|of| count(of).to_string());
        table.row(
            [paper.number.to_string()]
                .into_iter()
                .chain(counts)
                .collect(),
        );
    }
    table
}

/// Returns what made the runs: this program and this machine.
fn made() -> Made {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find_map(|line| {
        let (name, model) = line.split_once(':')?;
        (name.trim() == "model name").then(|| model.trim().to_owned())
    });
    Made {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: std::env::var("BIMETAL_COMMIT")
            .ok()
            .filter(|commit| !commit.is_empty()),
        host: format!(
            "Linux {}, {}, {} cores",
            kernel.trim(),
            model.as_deref().unwrap_or("unknown processor"),
            all_cores()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_one_of_the_parts() {
        let of = |text: &str| text.parse::<Shard>();
        assert_eq!(of("2/4"), Ok(Shard { part: 2, parts: 4 }));
        for text in ["", "1", "0/2", "3/2", "a/2", "1/", "-1/2", "1/0"] {
            assert!(of(text).is_err(), "{text}");
        }
    }
}
