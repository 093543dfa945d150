//! What came of a plan, for people and for programs: medians with intervals, ratios to the
//! baseline, and the counts, as JSON, as CSV and as one page.

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

/// The version of the report's JSON.
pub const SCHEMA: u32 = 1;

/// What came of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellSummary {
    /// What was chosen on each axis.
    pub choice: Choice,
    /// Runs.
    pub runs: usize,
    /// The unit of the main figure.
    pub unit: String,
    /// The main figure.
    pub value: Estimate,
    /// Its interval is as narrow as the plan asks.
    pub is_narrow: bool,
    /// The main figure of each run, in the order of seeds.
    pub values: Vec<f64>,
    /// The main figure as a ratio to that of the baseline cell, seed by seed; nothing for the
    /// baseline itself.
    pub ratio: Option<Ratio>,
    /// Medians of the other figures.
    pub figures: BTreeMap<String, f64>,
    /// The curves of the first seed.
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
    /// Medians of what was counted of reads.
    pub reads: Direction,
    /// Of writes.
    pub writes: Direction,
    /// Median of flushes.
    pub flushes: u64,
    /// Median of seeks.
    pub seeks: u64,
    /// Median of the time of a run, in ns.
    pub elapsed_ns: u64,
    /// What bios took, where that is known: medians over the seeds, and the maps of the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latencies>,
    /// Median of the processor time of this program for each request issued, in ns, on a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_ns_per_request: Option<u64>,
    /// How far behind their models emulated devices were: sum of events, median of the means, the
    /// latest of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

impl CellSummary {
    /// True if an emulated device was behind its model by a good part of what it emulates, so that
    /// the cell shows this machine as much as the model: in the mean by more than a twentieth of
    /// what half of the bios took.
    pub fn is_late(&self) -> bool {
        let (Some(lateness), Some(latency)) = (self.lateness, &self.latency) else {
            return false;
        };
        let ways = [&latency.reads, &latency.writes].into_iter();
        let least = ways.filter(|of| of.count > 0).map(|of| of.p50_ns).min();
        least.is_some_and(|p50_ns| lateness.mean_ns > p50_ns / LATE_PARTS)
    }
}

/// An emulated device is late from this part of its latency on.
const LATE_PARTS: u64 = 20;

/// A load of ours beside the program that makes the same load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What was chosen for ours.
    pub choice: Choice,
    /// The program.
    pub program: String,
    /// The unit of the main figure.
    pub unit: String,
    /// Our main figure, and the program's.
    pub values: (Estimate, Estimate),
    /// Medians of bios.
    pub bios: (u64, u64),
    /// Medians of requests issued.
    pub issued: (u64, u64),
}

/// What came of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// The version of this.
    pub schema: u32,
    /// The plan's name.
    pub name: String,
    /// Its identity.
    pub id: String,
    /// Where its runs were made.
    pub backend: Backend,
    /// The release of the kernel that made them, on a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Runs that the plan has, and that have been made.
    pub runs: (usize, usize),
    /// The names on each axis.
    pub axes: BTreeMap<String, Vec<String>>,
    /// What the others are compared with.
    pub baseline: Choice,
    /// The cells, in the plan's order.
    pub cells: Vec<CellSummary>,
    /// Loads of ours beside programs that make the same ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
}

/// Sums up the runs of a plan.
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

/// Cells of programs, each with the cell that differs from it in the load alone, and has the same
/// of our own.
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

/// Medians of what bios took, and the maps of the first run.
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

/// The median of a count.
fn median_count(own: &[&Outcome], of: impl Fn(&Outcome) -> u64) -> u64 {
    let all: Vec<f64> = own.iter().map(|outcome| of(outcome) as f64).collect();
    median(&all).map_or(0, |median| median.round() as u64)
}

/// The median of each count by itself.
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

/// One line for each run, with every count.
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

/// What bios took, and what the program took; empty where that is not known.
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

/// The names of what is counted in one direction.
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

/// A text as a field of CSV.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what)
        .expect("text can always be added to a string");
}
