//! What a run says: the hash over everything that happened, what it reached, and what was wrong.

use std::collections::BTreeMap;

use bimetal_index::model::Draw;
use serde::Serialize;

use super::scenario::Scenario;
use crate::campaign::{Account, Outcome, Told};

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// After so many events.
    pub at_event: u64,
    /// What.
    pub what: String,
}

/// What came of a seed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over every event.
    pub hash: u64,
    /// Events in it.
    pub events: u64,
    /// What was wrong, if anything.
    pub finding: Option<Finding>,
    /// Steps by kind, those that failed under `failed ...`.
    pub operations: BTreeMap<String, u64>,
    /// Calls of the disk.
    pub disk_requests: u64,
    /// Faults that were hit.
    pub faults: BTreeMap<&'static str, u64>,
    /// How often states were reached that only some seeds reach.
    pub reached: BTreeMap<String, u64>,
    /// What the seed drew.
    pub scenario: Scenario,
    /// The log of a verbose run.
    #[serde(skip)]
    pub log: Vec<String>,
}

impl Report {
    /// The report in words.
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

    /// The report in one line; with a finding, and how to see it again.
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

    /// What runs this seed again. A class that the seed does not draw changes nothing.
    pub fn command(&self) -> String {
        format!(
            "bimetal sim index-run --seed {} --classes {}",
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
    /// Without an event.
    pub fn new(verbose: bool) -> Trace {
        Trace {
            hash: 0,
            events: 0,
            log: verbose.then(Vec::new),
        }
    }

    /// Adds an event, a few numbers. The words are for the log only.
    pub fn event(&mut self, numbers: &[u64], words: impl FnOnce() -> String) {
        for number in numbers {
            // The generator as a finaliser: every bit reaches every bit.
            self.hash = Draw::new(self.hash ^ number).number();
        }
        self.events += 1;
        if let Some(log) = &mut self.log {
            log.push(format!("{:8}  {}", self.events, words()));
        }
    }

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Takes the log.
    pub fn take_log(&mut self) -> Vec<String> {
        self.log.take().unwrap_or_default()
    }
}
