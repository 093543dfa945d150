//! Repeats a run with a fault at a different place each time. For power cuts, there is one run for
//! each I/O boundary (the arrival or the completion of a request at a disk), with a cut at that
//! boundary. For failures, there is one run for each operation, which then fails. The series ends
//! at the first finding, or with the first run in which no fault occurs. SQLite tests its error
//! paths by failing each operation (<https://sqlite.org/testing.html>, sections 3.2 and 3.3).
//!
//! The runs are small ([`Extent::Small`](super::Extent)) and have no other faults, so any violation
//! is a consequence of the injected fault.

use bimetal_rt::Rng;
use serde::Serialize;

use super::boundaries::{FailAt, Interference};
use super::report::Report;
use super::scenario::{Extent, Scenario};
use super::{Options, run_scenario};

/// Kind of fault to inject at every boundary, or into every operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Every {
    /// The power is cut.
    Cut,
    /// The power is cut, and cut a second time while the volume recovers.
    CutTwice,
    /// An operation of this class fails: 0 reads, 1 writes, 2 flushes.
    Fail(usize),
}

impl Every {
    /// All kinds.
    pub const ALL: [Every; 5] = [
        Every::Cut,
        Every::CutTwice,
        Every::Fail(0),
        Every::Fail(1),
        Every::Fail(2),
    ];

    /// Returns the name of the kind on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Every::Cut => "cut",
            Every::CutTwice => "cut-twice",
            Every::Fail(0) => "fail-reads",
            Every::Fail(1) => "fail-writes",
            Every::Fail(_) => "fail-flushes",
        }
    }
}

/// Maximum number of boundaries between the first and the second cut. Opening a volume takes a few
/// dozen boundaries.
const SECOND_CUT_AFTER_MAX: u64 = 60;

/// Runs a seed without faults. Then runs it once for each boundary or operation, with a fault
/// there, or only for a random `sample` of the boundaries or operations. After each run, calls
/// `progress` with the number of the boundary or operation and with the report. The number is 0 for
/// the run without faults, and the others count from 1. Ends at the first finding, or with the
/// first numbered run in which the fault did not occur because the run was over before.
///
/// Returns the number before that of the last run. Returns 0 if the run without faults has a
/// finding.
pub fn every(
    seed: u64,
    every: Every,
    sample: Option<u64>,
    options: Options,
    mut progress: impl FnMut(u64, &Report),
) -> u64 {
    let scenario = scenario_of(seed, options);
    let mut run = |number: u64, interference: Interference| {
        let options = Options {
            interference,
            once: options.once || number > 0,
            ..options
        };
        let report = run_scenario(&scenario, options);
        progress(number, &report);
        report
    };
    let untouched = run(0, Interference::default());
    if untouched.finding.is_some() {
        return 0;
    }
    let mut rng = Rng::labelled(seed, every.name());
    let count = match every {
        Every::Cut | Every::CutTwice => untouched.boundaries,
        Every::Fail(class) => untouched.by_class[class],
    };
    let chance = sample.map_or(1.0, |sample| sample as f64 / count.max(1) as f64);
    // A failed operation changes the rest of its run, so a later run can have more operations than
    // the run without faults. The loop therefore ends with the first run in which no fault occurs.
    for number in 1.. {
        let second = 1 + rng.below(SECOND_CUT_AFTER_MAX);
        let chosen = rng.chance(chance);
        if number <= count && !chosen {
            continue;
        }
        let report = run(number, interference(every, number, second));
        if report.finding.is_some() || !report.struck {
            return number - 1;
        }
    }
    unreachable!("a run has an end")
}

/// Returns the small scenario of the seed, without faults and ambushes (operations during which a
/// fault is planned). It is repeated with one fault each time.
pub fn scenario_of(seed: u64, options: Options) -> Scenario {
    let mut scenario = Scenario::draw(seed, options.classes, Extent::Small);
    for life in &mut scenario.lives {
        life.faults.clear();
        life.ambushes.clear();
    }
    scenario.steadfast = None;
    scenario
}

fn interference(every: Every, number: u64, second: u64) -> Interference {
    let mut interference = Interference::default();
    match every {
        Every::Cut => interference.cuts = [number, 0],
        Every::CutTwice => interference.cuts = [number, number + second],
        Every::Fail(class) => interference.fail_at = Some(FailAt { class, number }),
    }
    interference
}
