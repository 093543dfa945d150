//! Result of a run: the hash of its trace, the states that it reached, and its finding.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rt};
use serde::Serialize;

use super::scenario::Scenario;
use super::switch::FaultCounts;
use crate::campaign::{Account, Outcome, Told};

/// A violation that the tester has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Virtual time of the finding, in nanoseconds.
    pub at_ns: u64,
    /// Description of the finding.
    pub what: String,
}

/// Recorder of the first finding of a run. Later findings are ignored, because they are mostly
/// consequences of the first.
pub struct Findings {
    rt: Rt,
    first: RefCell<Option<Finding>>,
    /// Signalled when a finding is added.
    pub added: Event,
}

impl Findings {
    /// Creates a recorder without a finding.
    pub fn new(rt: &Rt) -> Findings {
        Findings {
            rt: rt.clone(),
            first: RefCell::new(None),
            added: Event::new(),
        }
    }

    /// Adds a finding.
    pub fn add(&self, what: String) {
        let at_ns = self.rt.now().as_ns();
        self.first
            .borrow_mut()
            .get_or_insert(Finding { at_ns, what });
        self.added.notify();
    }

    /// Returns the first finding.
    pub fn first(&self) -> Option<Finding> {
        self.first.borrow().clone()
    }

    /// Returns true if there is a finding.
    pub fn any(&self) -> bool {
        self.first.borrow().is_some()
    }
}

/// The hash over all events of a run, and the log of the events in a verbose run.
pub struct Trace {
    rt: Rt,
    hash: Cell<u64>,
    events: Cell<u64>,
    log: Option<RefCell<Vec<String>>>,
}

impl Trace {
    /// Creates an empty trace.
    pub fn new(rt: &Rt, verbose: bool) -> Trace {
        Trace {
            rt: rt.clone(),
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
            events: Cell::new(0),
            log: verbose.then(RefCell::default),
        }
    }

    /// Adds an event, which consists of a few numbers, at the present time. `words` returns the
    /// text for the log and does not affect the hash.
    pub fn event(&self, numbers: &[u64], words: impl FnOnce() -> String) {
        let now = self.rt.now();
        let mut hash = self.hash.get();
        for number in [now.as_ns()].iter().chain(numbers) {
            // This mixes the running hash with the finaliser of SplitMix64, so that every input bit
            // affects every output bit.
            hash = (hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
            hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            hash ^= hash >> 31;
        }
        self.hash.set(hash);
        self.events.set(self.events.get() + 1);
        if let Some(log) = &self.log {
            let mut log = log.borrow_mut();
            log.push(format!("{:14.6} ms  {}", as_ms(now), words()));
        }
    }

    /// Returns the hash so far.
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// Returns the log and leaves an empty one.
    pub fn take_log(&self) -> Vec<String> {
        self.log.as_ref().map_or_else(Vec::new, RefCell::take)
    }
}

fn as_ms(at: Instant) -> f64 {
    at.as_ns() as f64 / 1e6
}

/// Result of a seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over every event.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Virtual time in nanoseconds.
    pub virtual_ns: u64,
    /// Finding, if there is one.
    pub finding: Option<Finding>,
    /// Number of client operations by kind; failed operations are under `failed ...`.
    pub operations: BTreeMap<String, u64>,
    /// Number of requests to the disks.
    pub disk_requests: u64,
    /// Number of I/O boundaries in the run.
    pub boundaries: u64,
    /// Numbers of reads, writes and flushes that reached their completion.
    pub by_class: [u64; 3],
    /// Whether the injected fault has occurred.
    pub struck: bool,
    /// Number of requests and blocks that each kind of fault has affected.
    pub faults: FaultCounts,
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
            faults: format!("{:?}", self.faults),
            reached: &self.reached,
            summary: self.summary(),
        };
        account.text()
    }

    /// Returns the report as one line.
    pub fn summary(&self) -> String {
        let outcome = match &self.finding {
            None => "ok".to_owned(),
            Some(f) => format!("FAILED at {:.6} ms: {}", f.at_ns as f64 / 1e6, f.what),
        };
        format!(
            "seed {}: hash {:016x}, {} events in {:.3} s of virtual time: {outcome}",
            self.seed,
            self.hash,
            self.events,
            self.virtual_ns as f64 / 1e9
        )
    }
}

impl Outcome for Report {
    fn told(&self) -> Told<'_> {
        Told {
            seed: self.seed,
            events: self.events,
            virtual_ns: self.virtual_ns,
            disk_requests: self.disk_requests,
            finding: self.finding.as_ref().map(|finding| &*finding.what),
            // A run whose volume refuses to open has few operations by design.
            may_do_little: self.reached.contains_key("stayed shut"),
            operations: &self.operations,
            faults: self.faults.named().to_vec(),
            reached: &self.reached,
        }
    }
}
