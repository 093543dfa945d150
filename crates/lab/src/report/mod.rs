//! Report on the runs of an experiment plan: medians with intervals, ratios to the baseline, and
//! counters. The report is available as JSON and CSV for programs, and as one page for people.

mod page;

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::device::Backend;
use crate::latency::{DirectionLatency, Latencies};
use crate::outcome::{Direction, Lateness, Outcome};
use crate::plan::{AXES, Cell, Choice, Plan};
use crate::results::jobs;
use crate::statistics::{Estimate, Ratio, estimate, median, paired_ratio};
use crate::workload::Resolved;

pub use page::html;

/// Version of the JSON format of the report.
pub const SCHEMA: u32 = 1;

/// Summary of all runs of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellSummary {
    /// Choice on each axis.
    pub choice: Choice,
    /// Number of runs.
    pub runs: usize,
    /// Unit of the main metric.
    pub unit: String,
    /// Median and interval of the main metric.
    pub value: Estimate,
    /// Whether the interval of the main metric is as narrow as the plan requires.
    pub is_narrow: bool,
    /// Main metric of each run, in the order of the seeds.
    pub values: Vec<f64>,
    /// Ratio of this cell's main metric to that of the baseline cell, computed from pairs of runs
    /// with the same seed. `None` for the baseline cell itself, without such pairs, or if a
    /// baseline value is 0.
    pub ratio: Option<Ratio>,
    /// Median of each other metric, by name.
    pub figures: BTreeMap<String, f64>,
    /// Curves of the run with the first seed, by name.
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
    /// Counters of reads, each the median over the runs.
    pub reads: Direction,
    /// Counters of writes, each the median over the runs.
    pub writes: Direction,
    /// Median number of flushes.
    pub flushes: u64,
    /// Median number of seeks.
    pub seeks: u64,
    /// Median duration of a run, in ns.
    pub elapsed_ns: u64,
    /// Latencies of bios, if known. The values are medians over the runs; the heat maps are those
    /// of the first run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latencies>,
    /// Median of this program's CPU time per issued request in ns, for runs that measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_request: Option<u64>,
    /// Delay of emulated devices relative to their models, summarized over all runs: the number of
    /// events of the models, the median of the mean delays, and the maximum delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

impl CellSummary {
    /// Returns true if the mean delay of an emulated device, relative to its model, is more than a
    /// twentieth of the smaller of two medians: the median latency of reads and of writes. The
    /// result of such a cell depends on this machine as much as on the model.
    pub fn is_late(&self) -> bool {
        let (Some(lateness), Some(latency)) = (self.lateness, &self.latency) else {
            return false;
        };
        let ways = [&latency.reads, &latency.writes].into_iter();
        let least = ways.filter(|of| of.count > 0).map(|of| of.p50_ns).min();
        least.is_some_and(|p50_ns| lateness.mean_ns > p50_ns / LATE_PARTS)
    }
}

/// Divisor of the median latency: an emulated device is late if its mean delay exceeds the
/// quotient.
const LATE_PARTS: u64 = 20;

/// Comparison of a load of this project with the same load made by an external program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// Choices of the cell with the load of this project.
    pub choice: Choice,
    /// Name of the external program.
    pub program: String,
    /// Unit of the main metric.
    pub unit: String,
    /// Main metric of two runs: first of this project's load, then of the external program.
    pub values: (Estimate, Estimate),
    /// Median number of bios of this project's load, and of the external program.
    pub bios: (u64, u64),
    /// Median number of issued requests of this project's load, and of the external program.
    pub issued: (u64, u64),
}

/// Summary of the runs of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Version of the format of this summary.
    pub schema: u32,
    /// Name of the plan.
    pub name: String,
    /// Identity of the plan.
    pub id: String,
    /// Backend of the runs.
    pub backend: Backend,
    /// Release of the kernel of the runs; `None` for runs in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Number of runs that the plan requires, and number of runs that have been made.
    pub runs: (usize, usize),
    /// Names of the choices on each axis.
    pub axes: BTreeMap<String, Vec<String>>,
    /// Choices of the baseline cell.
    pub baseline: Choice,
    /// Cells, in the order of the plan.
    pub cells: Vec<CellSummary>,
    /// Comparisons of loads of this project with the same loads made by external programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

/// Summarizes the runs of a plan.
pub fn summary(plan: &Plan, outcomes: &[Outcome]) -> Summary {
    let of = |choice: &Choice| -> Vec<&Outcome> {
        let own = outcomes.iter().filter(|outcome| outcome.choice == *choice);
        own.collect()
    };
    let cells = plan.cells.iter().filter_map(|cell| {
        let base = plan
            .baseline_of(&cell.choice)
            .filter(|base| *base != cell.choice);
        cell_summary(
            plan,
            &cell.choice,
            &of(&cell.choice),
            &base.map_or(Vec::new(), |base| of(&base)),
        )
    });
    let cells: Vec<CellSummary> = cells.collect();
    Summary {
        checks: checks(plan, &cells),
        schema: SCHEMA,
        name: plan.name.clone(),
        id: plan.id(),
        backend: plan.backend,
        kernel: outcomes
            .iter()
            .find_map(|run| run.machine.as_ref())
            .map(|machine| machine.kernel.clone()),
        runs: (jobs(plan, outcomes).len(), outcomes.len()),
        axes: plan.axes.clone(),
        baseline: plan.baseline.clone(),
        cells,
    }
}

/// Compares each cell of an external program with the cell of this project's version of the same
/// load. The two cells have the same choice on every other axis.
fn checks(plan: &Plan, cells: &[CellSummary]) -> Vec<Check> {
    let summed = |choice: &Choice| cells.iter().find(|cell| cell.choice == *choice);
    let check = |theirs: &Cell| {
        let Resolved::Tool(tool) = &theirs.settings.workload else {
            return None;
        };
        let ours = plan.cells.iter().find(|cell| {
            let same_place = AXES
                .iter()
                .filter(|axis| **axis != "workload")
                .all(|axis| cell.choice[*axis] == theirs.choice[*axis]);
            same_place && cell.settings.workload == *tool.of
        })?;
        let (ours, theirs) = (summed(&ours.choice)?, summed(&theirs.choice)?);
        Some(Check {
            choice: ours.choice.clone(),
            program: tool.program().0.to_owned(),
            unit: ours.unit.clone(),
            values: (ours.value, theirs.value),
            bios: (
                ours.reads.bios + ours.writes.bios,
                theirs.reads.bios + theirs.writes.bios,
            ),
            issued: (
                ours.reads.issued + ours.writes.issued,
                theirs.reads.issued + theirs.writes.issued,
            ),
        })
    };
    plan.cells.iter().filter_map(check).collect()
}

fn cell_summary(
    plan: &Plan,
    choice: &Choice,
    own: &[&Outcome],
    base: &[&Outcome],
) -> Option<CellSummary> {
    let first = own.first()?;
    let values: Vec<f64> = own.iter().map(|outcome| outcome.measured.value).collect();
    let pairs: Vec<(f64, f64)> = own
        .iter()
        .filter_map(|outcome| {
            let same_seed = base.iter().find(|base| base.seed == outcome.seed)?;
            Some((outcome.measured.value, same_seed.measured.value))
        })
        .collect();
    let (mine, theirs): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
    let names = first.measured.figures.keys();
    let figure = |name: &String| {
        let all: Vec<f64> = own
            .iter()
            .filter_map(|o| o.measured.figures.get(name).copied())
            .collect();
        Some((name.clone(), median(&all)?))
    };
    let count = |of: fn(&Outcome) -> u64| median_count(own, of);
    let value = estimate(&values)?;
    Some(CellSummary {
        choice: choice.clone(),
        runs: own.len(),
        unit: first.measured.unit.clone(),
        value,
        is_narrow: value.is_within(plan.within),
        ratio: paired_ratio(&mine, &theirs),
        values,
        figures: names.filter_map(figure).collect(),
        curves: first.measured.curves.clone(),
        reads: direction(own, |outcome| outcome.reads),
        writes: direction(own, |outcome| outcome.writes),
        flushes: count(|outcome| outcome.flushes),
        seeks: count(|outcome| outcome.seeks),
        elapsed_ns: count(|outcome| outcome.elapsed_ns),
        latency: latency(own),
        cpu_ns_per_request: cpu_ns_per_request(own),
        lateness: lateness(own),
    })
}

/// Returns the medians, over the runs, of the bio latencies. The latency maps are those of the
/// first run.
fn latency(own: &[&Outcome]) -> Option<Latencies> {
    let all: Vec<&Latencies> = own.iter().filter_map(|run| run.latency.as_ref()).collect();
    let first = all.first()?;
    let median_of = |of: &dyn Fn(&Latencies) -> u64| {
        let values: Vec<f64> = all.iter().map(|latency| of(latency) as f64).collect();
        median(&values).map_or(0, |median| median.round() as u64)
    };
    let direction = |of: fn(&Latencies) -> &DirectionLatency| DirectionLatency {
        count: median_of(&|all| of(all).count),
        p50_ns: median_of(&|all| of(all).p50_ns),
        p99_ns: median_of(&|all| of(all).p99_ns),
        p999_ns: median_of(&|all| of(all).p999_ns),
        max_ns: median_of(&|all| of(all).max_ns),
        map: of(first).map.clone(),
    };
    Some(Latencies {
        interval_ns: first.interval_ns,
        reads: direction(|all| &all.reads),
        writes: direction(|all| &all.writes),
        freezes: median_of(&|all| all.freezes),
        pause_ns_max: median_of(&|all| all.pause_ns_max),
    })
}

fn cpu_ns_per_request(own: &[&Outcome]) -> Option<u64> {
    let of = |run: &&Outcome| {
        let cpu_ns = run.machine.as_ref()?.cpu_ns;
        let issued = run.reads.issued + run.writes.issued + run.flushes;
        (cpu_ns > 0 && issued > 0).then(|| cpu_ns as f64 / issued as f64)
    };
    let all: Vec<f64> = own.iter().filter_map(of).collect();
    median(&all).map(|ns| ns.round() as u64)
}

fn lateness(own: &[&Outcome]) -> Option<Lateness> {
    let of = |run: &&Outcome| run.machine.as_ref()?.lateness;
    let all: Vec<Lateness> = own.iter().filter_map(of).collect();
    let means: Vec<f64> = all.iter().map(|late| late.mean_ns as f64).collect();
    Some(Lateness {
        events: all.iter().map(|late| late.events).sum(),
        mean_ns: median(&means)?.round() as u64,
        max_ns: all.iter().map(|late| late.max_ns).max()?,
    })
}

/// Returns the median of a counter over the runs.
fn median_count(own: &[&Outcome], of: impl Fn(&Outcome) -> u64) -> u64 {
    let all: Vec<f64> = own.iter().map(|outcome| of(outcome) as f64).collect();
    median(&all).map_or(0, |median| median.round() as u64)
}

/// Returns the counters of one direction (reads or writes). Each counter is its median over the
/// runs.
fn direction(own: &[&Outcome], of: fn(&Outcome) -> Direction) -> Direction {
    let count = |what: fn(&Direction) -> u64| median_count(own, |outcome| what(&of(outcome)));
    Direction {
        bios: count(|of| of.bios),
        back_merges: count(|of| of.back_merges),
        front_merges: count(|of| of.front_merges),
        request_merges: count(|of| of.request_merges),
        splits: count(|of| of.splits),
        issued: count(|of| of.issued),
        completed: count(|of| of.completed),
        bytes: count(|of| of.bytes),
    }
}

/// Returns a CSV table with a heading and one line for each run. Each line contains all counters of
/// the run.
pub fn csv(outcomes: &[Outcome]) -> String {
    let mut out = AXES.join(",");
    out.push_str(",seed,value,unit,elapsed_ns");
    for way in ["read", "write"] {
        for name in COUNTS {
            put(&mut out, format_args!(",{way}_{name}"));
        }
    }
    out.push_str(",flushes,seeks,seek_distance_bytes");
    for way in ["read", "write"] {
        for name in ["p50_ns", "p99_ns", "p999_ns", "max_ns"] {
            put(&mut out, format_args!(",{way}_{name}"));
        }
    }
    out.push_str(",freezes,pause_ns_max,cpu_ns,late_ns,late_ns_max\n");
    for outcome in outcomes {
        for axis in AXES {
            put(&mut out, format_args!("{},", field(&outcome.choice[axis])));
        }
        let measured = &outcome.measured;
        put(
            &mut out,
            format_args!(
                "{},{},{},{}",
                outcome.seed,
                measured.value,
                field(&measured.unit),
                outcome.elapsed_ns
            ),
        );
        for of in [&outcome.reads, &outcome.writes] {
            for count in counts(of) {
                put(&mut out, format_args!(",{count}"));
            }
        }
        put(
            &mut out,
            format_args!(
                ",{},{},{}",
                outcome.flushes, outcome.seeks, outcome.seek_distance_bytes
            ),
        );
        latency_fields(&mut out, outcome);
    }
    out
}

/// Appends the latencies of bios, the CPU time of this program, and the delay of emulated devices,
/// as CSV fields. A field is empty if its value is unknown.
fn latency_fields(out: &mut String, outcome: &Outcome) {
    let latency = outcome.latency.as_ref();
    let mut values: Vec<Option<u64>> = Vec::new();
    for of in [
        latency.map(|all| &all.reads),
        latency.map(|all| &all.writes),
    ] {
        let known = of.filter(|of| of.count > 0);
        values.extend([
            known.map(|of| of.p50_ns),
            known.map(|of| of.p99_ns),
            known.map(|of| of.p999_ns),
            known.map(|of| of.max_ns),
        ]);
    }
    values.push(latency.map(|all| all.freezes));
    values.push(latency.map(|all| all.pause_ns_max));
    let cpu_ns = outcome.machine.as_ref().map(|machine| machine.cpu_ns);
    values.push(cpu_ns.filter(|ns| *ns > 0));
    let lateness = outcome.machine.as_ref().and_then(|of| of.lateness);
    values.push(lateness.map(|of| of.mean_ns));
    values.push(lateness.map(|of| of.max_ns));
    for value in values {
        let text = value.map(|value| value.to_string());
        put(out, format_args!(",{}", text.unwrap_or_default()));
    }
    out.push('\n');
}

/// Names of the counters of one direction in the heading of the CSV table.
const COUNTS: [&str; 8] = [
    "bios",
    "back_merges",
    "front_merges",
    "request_merges",
    "splits",
    "issued",
    "completed",
    "bytes",
];

fn counts(of: &Direction) -> [u64; 8] {
    [
        of.bios,
        of.back_merges,
        of.front_merges,
        of.request_merges,
        of.splits,
        of.issued,
        of.completed,
        of.bytes,
    ]
}

/// Formats a text as a field of CSV, quoted if necessary.
pub(crate) fn field(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what)
        .expect("text can always be added to a string");
}
