//! What a run of the tester says: the hash of its trace, what it reached, and what was wrong.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use bimetal_rt::sync::Event;
use bimetal_rt::{Instant, Rt};
use serde::Serialize;

use super::scenario::Scenario;
use super::switch::FaultCounts;
use crate::campaign::{Account, Outcome, Told};

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// When, in nanoseconds of virtual time.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

/// The first finding of a run; later ones are consequences.
pub struct Findings {
    rt: Rt,
    first: RefCell<Option<Finding>>,
    /// There is one.
    pub added: Event,
}

impl Findings {
    /// None so far.
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

    /// The first.
    pub fn first(&self) -> Option<Finding> {
        self.first.borrow().clone()
    }

    /// True when there is one.
    pub fn any(&self) -> bool {
        self.first.borrow().is_some()
    }
}

/// The hash over everything that happened, and the log of it when asked for.
pub struct Trace {
    rt: Rt,
    hash: Cell<u64>,
    events: Cell<u64>,
    log: Option<RefCell<Vec<String>>>,
}

impl Trace {
    /// An empty trace.
    pub fn new(rt: &Rt, verbose: bool) -> Trace {
        Trace {
            rt: rt.clone(),
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
            events: Cell::new(0),
            log: verbose.then(RefCell::default),
        }
    }

    /// Adds an event, a few numbers, and at which time it happened. The words are for the log only.
    pub fn event(&self, numbers: &[u64], words: impl FnOnce() -> String) {
        let now = self.rt.now();
        let mut hash = self.hash.get();
        for number in [now.as_ns()].iter().chain(numbers) {
            // The finaliser of SplitMix64 over the running value: every bit reaches every bit.
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

    /// The hash so far.
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Events so far.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// Takes the log.
    pub fn take_log(&self) -> Vec<String> {
        self.log.as_ref().map_or_else(Vec::new, RefCell::take)
    }
}

fn as_ms(at: Instant) -> f64 {
    at.as_ns() as f64 / 1e6
}

/// What came of a seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash over every event.
    pub hash: u64,
    /// Events in it.
    pub events: u64,
    /// Virtual time in nanoseconds.
    pub virtual_ns: u64,
    /// What was wrong, if anything.
    pub finding: Option<Finding>,
    /// Operations of clients by kind, those that failed under `failed ...`.
    pub operations: BTreeMap<String, u64>,
    /// Requests to the disks.
    pub disk_requests: u64,
    /// Boundaries of I/O that were passed.
    pub boundaries: u64,
    /// Reads, writes and flushes that came to their completion.
    pub by_class: [u64; 3],
    /// The interference that was asked for has happened.
    pub struck: bool,
    /// Faults that were hit.
    pub faults: FaultCounts,
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
            faults: format!("{:?}", self.faults),
            reached: &self.reached,
            summary: self.summary(),
        };
        account.text()
    }

    /// The report in one line.
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
            // Where the volume stays shut, that is the point of the run.
            may_do_little: self.reached.contains_key("stayed shut"),
            operations: &self.operations,
            faults: self.faults.named().to_vec(),
            reached: &self.reached,
        }
    }
}
