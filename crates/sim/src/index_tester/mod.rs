//! The tester of the index: a seed draws an index, its programs and their disk, and every answer of
//! the index is compared with a model.
//!
//! - [`classes`] names the faults; [`scenario`] draws the faults, the options and the kinds of
//!   operations; [`life`] is one life of a program, from an open to a stop; [`readers`] contains
//!   the snapshots, scans and transactions of a program, which see an earlier state; [`opening`] is
//!   the time between two lives; [`report`] describes the outcome.
//! - The model and the disk are those of the index's own tests ([`bimetal_index::model`],
//!   [`bimetal_index::storage::memory`]). The documentation of the disk describes the fault model.
//! - The index has no threads and no clock, so a run depends only on its seed and its options, and
//!   needs no executor: time is the number of disk operations.
//!
//! The tester must never know how the index works: it uses only the interfaces that a program and a
//! disk use.

pub mod classes;
pub mod life;
pub mod opening;
pub mod readers;
pub mod report;
pub mod scenario;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::campaign::{self, Replay, Summary};
use crate::tester::{message_of, while_seed_runs};

pub use classes::{Class, Classes};
pub use report::{Finding, Report};
pub use scenario::Scenario;

use world::World;

/// Options for running seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to keep a log of every event.
    pub verbose: bool,
    /// Whether to run each seed only once, which takes half the time but does not check that a
    /// second run is equal.
    pub once: bool,
    /// The classes of faults that are on.
    pub classes: Classes,
}

/// Runs a seed, and runs it again to check that both runs are equal.
pub fn run(seed: u64, options: Options) -> Report {
    let scenario = Scenario::draw(seed, options.classes);
    let mut report = run_once(&scenario, options);
    if options.once || report.finding.is_some() {
        return report;
    }
    let again = run_once(&scenario, options);
    if again.hash != report.hash {
        report.finding = Some(Finding {
            at_event: report.events,
            what: format!("replayed with hash {:016x}", again.hash),
        });
    }
    report
}

/// Runs a seed as `replay` requires: once, or twice to check that both runs are equal. If
/// `options.once` is set, the seed is always run once.
pub fn run_replayed(seed: u64, replay: Replay, options: Options) -> Report {
    let once = options.once || replay == Replay::Once;
    run(seed, Options { once, ..options })
}

/// Runs seeds in order, and calls `progress` with each report.
pub fn swarm(seeds: Range<u64>, options: Options, progress: impl FnMut(&Report)) -> Summary {
    let run = |seed, replay| run_replayed(seed, replay, options);
    campaign::run_seeds(seeds, 1, run, progress)
}

fn run_once(scenario: &Scenario, options: Options) -> Report {
    let mut world = World::new(scenario, options.verbose);
    // A panic, such as a failed assertion, is a finding.
    let outcome = while_seed_runs(scenario.seed, || {
        catch_unwind(AssertUnwindSafe(|| opening::run(&mut world)))
    });
    let finding = match outcome {
        Ok(outcome) => outcome.err(),
        Err(panic) => Some(format!("panic: {}", message_of(&*panic))),
    };
    world.report(finding)
}
