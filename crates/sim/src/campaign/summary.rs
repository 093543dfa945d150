//! Sums over the results of many seeds of any tester. The sums do not depend on the order of the
//! seeds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Result of a seed that can be added to a [`Summary`].
pub trait Outcome {
    /// Returns the values to add to the sums.
    fn told(&self) -> Told<'_>;
}

/// Values that the result of one seed adds to the sums.
pub struct Told<'a> {
    /// The seed.
    pub seed: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time in nanoseconds; 0 if the tester has no clock.
    pub virtual_ns: u64,
    /// Number of requests to the disks.
    pub disk_requests: u64,
    /// Finding, if there is one.
    pub finding: Option<&'a str>,
    /// Whether the seed has few operations by design. Such a seed does not affect the minimum
    /// number of operations of all seeds.
    pub may_do_little: bool,
    /// Number of operations by kind.
    pub operations: &'a BTreeMap<String, u64>,
    /// Number of occurrences of each kind of fault.
    pub faults: Vec<(&'static str, u64)>,
    /// Number of times that the run has reached each state.
    pub reached: &'a BTreeMap<String, u64>,
}

/// Appends a line to `text`.
fn line_to(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes every line");
}

/// Returns the counters as one line that starts with `name`.
fn counted(name: &str, counts: &BTreeMap<String, u64>) -> String {
    let counts = counts.iter().map(|(what, count)| format!("{what} {count}"));
    format!("{name}: {}", counts.collect::<Vec<_>>().join(", "))
}

/// Parts of the report of a seed, for any tester.
pub(crate) struct Account<'a> {
    /// Log of the events of a verbose run.
    pub log: &'a [String],
    pub scenario: &'a dyn std::fmt::Debug,
    pub operations: &'a BTreeMap<String, u64>,
    pub disk_requests: u64,
    /// Number of occurrences of each kind of fault, as text.
    pub faults: String,
    pub reached: &'a BTreeMap<String, u64>,
    /// Result of the seed, which becomes the last line of the report.
    pub summary: String,
}

impl Account<'_> {
    /// Returns the report as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for line in self.log {
            line_to(&mut text, line);
        }
        line_to(&mut text, &format!("{:#?}", self.scenario));
        line_to(&mut text, &counted("operations", self.operations));
        line_to(&mut text, &format!("disk requests: {}", self.disk_requests));
        line_to(&mut text, &self.faults);
        line_to(&mut text, &counted("reached", self.reached));
        line_to(&mut text, &self.summary);
        text
    }
}

/// Number of occurrences of an event over many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Total number of occurrences.
    pub times: u64,
    /// Number of seeds with at least one occurrence.
    pub seeds: u64,
}

impl Tally {
    fn add(&mut self, times: u64) {
        self.times += times;
        self.seeds += u64::from(times > 0);
    }

    fn merge(&mut self, other: Tally) {
        self.times += other.times;
        self.seeds += other.seeds;
    }
}

/// Sums over many seeds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of seeds.
    pub seeds: u64,
    /// Findings of the failed seeds, by seed.
    pub failed: BTreeMap<u64, String>,
    /// Number of events.
    pub events: u64,
    /// Virtual time in milliseconds.
    pub virtual_ms: u64,
    /// Smallest number of operations of any seed. Seeds that have few operations by design are not
    /// included.
    pub operations_min: Option<u64>,
    /// Number of operations by kind.
    pub operations: BTreeMap<String, Tally>,
    /// Number of requests to the disks.
    pub disk_requests: u64,
    /// Number of occurrences of each kind of fault.
    pub faults: BTreeMap<String, Tally>,
    /// Number of times that each state was reached.
    pub reached: BTreeMap<String, Tally>,
}

fn tally(tallies: &mut BTreeMap<String, Tally>, what: &str, times: u64) {
    match tallies.get_mut(what) {
        Some(tally) => tally.add(times),
        None => tallies.entry(what.to_owned()).or_default().add(times),
    }
}

impl Summary {
    /// Adds the result of a seed to the sums.
    pub fn add(&mut self, outcome: &impl Outcome) {
        let told = outcome.told();
        self.seeds += 1;
        self.events += told.events;
        self.virtual_ms += told.virtual_ns / 1_000_000;
        self.disk_requests += told.disk_requests;
        if let Some(finding) = told.finding {
            self.failed.insert(told.seed, finding.to_owned());
        }
        let operations = told.operations.values().sum();
        self.note_operations(Some(operations).filter(|_| !told.may_do_little));
        for (what, count) in told.operations {
            tally(&mut self.operations, what, *count);
        }
        for (what, count) in told.reached {
            tally(&mut self.reached, what, *count);
        }
        for (what, count) in told.faults {
            tally(&mut self.faults, what, count);
        }
    }

    fn note_operations(&mut self, fewest: Option<u64>) {
        let known = self.operations_min.into_iter().chain(fewest);
        self.operations_min = known.min();
    }

    /// Adds the sums over other seeds to these sums.
    pub fn merge(&mut self, other: &Summary) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.virtual_ms += other.virtual_ms;
        self.disk_requests += other.disk_requests;
        self.failed.extend(other.failed.clone());
        self.note_operations(other.operations_min);
        for (mine, others) in [
            (&mut self.operations, &other.operations),
            (&mut self.reached, &other.reached),
            (&mut self.faults, &other.faults),
        ] {
            for (what, tally) in others {
                mine.entry(what.clone()).or_default().merge(*tally);
            }
        }
    }

    /// Returns the summary as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let line = format!(
            "{} seeds, {} events, {} disk requests, {} s of virtual time, {} failed",
            self.seeds,
            self.events,
            self.disk_requests,
            self.virtual_ms / 1_000,
            self.failed.len()
        );
        line_to(&mut text, &line);
        let fewest = self.operations_min.unwrap_or(0);
        let line = format!("at least {fewest} operations in each seed that has a minimum");
        line_to(&mut text, &line);
        for (title, tallies) in [
            ("operations", &self.operations),
            ("faults", &self.faults),
            ("reached", &self.reached),
        ] {
            line_to(
                &mut text,
                &format!("{title:48} {:>12} {:>9}", "times", "in seeds"),
            );
            for (what, tally) in tallies {
                let Tally { times, seeds } = tally;
                line_to(&mut text, &format!("    {what:44} {times:>12} {seeds:>9}"));
            }
        }
        for (seed, what) in &self.failed {
            line_to(&mut text, &format!("seed {seed}: {what}"));
        }
        text
    }
}
