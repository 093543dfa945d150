//! Result of a run: the hash over all its events, the states it reached, and its finding.

use std::collections::BTreeMap;

use bimetal_index::model::Draw;
use serde::Serialize;

use super::scenario::Scenario;
use crate::campaign::{Account, Outcome, Told};

/// A violation that must never happen.
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
    /// Number of calls of the disk.
    pub disk_requests: u64,
    /// Number of faults that occurred, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Number of times that rare states were reached.
    pub reached: BTreeMap<String, u64>,
    /// Scenario that the seed drew.
    pub scenario: Scenario,
    /// The log of a verbose run.
    #[serde(skip)]
    pub log: Vec<String>,
}

impl Report {
    /// Returns the report as text.
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

    /// Returns the report as one line; with a finding, also the command that reproduces it.
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

    /// Returns the command that runs this seed again. A class that the seed does not draw changes
    /// nothing.
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

/// The events of a run.
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

    /// Adds an event, which is a few numbers. The text is for the log only.
    pub fn event(&mut self, numbers: &[u64], words: impl FnOnce() -> String) {
        for number in numbers {
            // The generator serves as a finaliser: every input bit affects every output bit.
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

    /// Takes the log.
    pub fn take_log(&mut self) -> Vec<String> {
        self.log.take().unwrap_or_default()
    }
}
