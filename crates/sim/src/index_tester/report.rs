//! Result of a run of the index tester: the hash over all events of the run, the states that the
//! run has reached, and the bug that it has found, if any.

use std::collections::BTreeMap;

use bimetal_index::model::Draw;
use serde::Serialize;

use super::scenario::Scenario;
use crate::campaign::{Account, Outcome, Told};

/// A violation that the tester has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Number of events before the finding.
    pub at_event: u64,
    /// Description of the finding.
    pub what: String,
}

/// Result of a seed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over every event.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Finding, if there is one.
    pub finding: Option<Finding>,
    /// Number of steps by kind.
    pub operations: BTreeMap<String, u64>,
    /// Number of operations of the disk.
    pub disk_requests: u64,
    /// Number of faults that occurred, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Number of times that the run has reached each rare state.
    pub reached: BTreeMap<String, u64>,
    /// Scenario that the seed drew.
    pub scenario: Scenario,
    /// The log of a verbose run.
    #[serde(skip)]
    pub log: Vec<String>,
}

impl Report {
    /// Returns the full report as text.
    pub fn text(&self) -> String {
        let account = Account {
            log: &self.log,
            scenario: &self.scenario,
            operations: &self.operations,
            disk_requests: self.disk_requests,
            faults: format!("faults: {:?}", self.faults),
            reached: &self.reached,
            summary: self.summary(),
        };
        account.text()
    }

    /// Returns the report as one line. If there is a finding, a second line has the command that
    /// reproduces it.
    pub fn summary(&self) -> String {
        let outcome = match &self.finding {
            None => "ok".to_owned(),
            Some(finding) => format!(
                "FAILED at event {}: {}\n    {}",
                finding.at_event,
                finding.what,
                self.command()
            ),
        };
        format!(
            "seed {}: hash {:016x}, {} events, {} disk requests: {outcome}",
            self.seed, self.hash, self.events, self.disk_requests
        )
    }

    /// Returns the command that runs this seed again. The command names only the classes that occur
    /// in the seed, because the other classes have no effect on it.
    pub fn command(&self) -> String {
        format!(
            "bimetal-lab tester index-run --seed {} --classes {}",
            self.seed,
            self.scenario.classes.text()
        )
    }
}

impl Outcome for Report {
    fn told(&self) -> Told<'_> {
        Told {
            seed: self.seed,
            events: self.events,
            virtual_ns: 0,
            disk_requests: self.disk_requests,
            finding: self.finding.as_ref().map(|finding| &*finding.what),
            may_do_little: false,
            operations: &self.operations,
            faults: self.faults.iter().map(|(name, n)| (*name, *n)).collect(),
            reached: &self.reached,
        }
    }
}

/// The hash over all events of a run, and the log of the events in a verbose run.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    events: u64,
    log: Option<Vec<String>>,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new(verbose: bool) -> Trace {
        Trace {
            hash: 0,
            events: 0,
            log: verbose.then(Vec::new),
        }
    }

    /// Adds an event, which consists of a few numbers. `words` returns the text for the log and
    /// does not affect the hash.
    pub fn event(&mut self, numbers: &[u64], words: impl FnOnce() -> String) {
        for number in numbers {
            // The random generator serves as a hash finaliser: every input bit affects every output
            // bit.
            self.hash = Draw::new(self.hash ^ number).number();
        }
        self.events += 1;
        if let Some(log) = &mut self.log {
            log.push(format!("{:8}  {}", self.events, words()));
        }
    }

    /// Returns the hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the log and leaves an empty one.
    pub fn take_log(&mut self) -> Vec<String> {
        self.log.take().unwrap_or_default()
    }
}
