//! The simulation tester: a seed draws a stack, devices, a load and faults, and what the clients
//! see is checked against a model of the volume.
//!
//! - [`scenario`] draws, with what [`classes`] switches on; [`disk`] is the fault model and its
//!   disks, which hold their data in [`platter`]s and have a [`switch`]; [`corruption`] is the rule
//!   for what may be corrupted; [`stack`] builds the sides; [`client`] is the load; [`volume`] is
//!   the model; [`world`] makes the checks of every step; [`life`] opens, stops and crashes, with
//!   [`opening`], [`faults`], and between two lives [`rest`], [`probes`] and [`changing`];
//!   [`plant`] holds the bugs that the tester must find.
//! - [`boundaries`] cuts the power or fails an operation at a chosen one, [`ambush`] some after a
//!   moment; [`every`] does so at every one; [`campaign`] adds up many seeds.
//! - A run depends on its seed and its options alone: [`run`] runs a seed twice and compares the
//!   hashes over everything that happened.
//!
//! The tester must never know how the mirror works: it uses what a client, an operator and the
//! disks can see.

pub mod ambush;
pub mod boundaries;
pub mod changing;
pub mod classes;
pub mod client;
pub mod content;
pub mod corruption;
pub mod disk;
pub mod every;
mod extras;
pub mod faults;
pub mod life;
mod notes;
pub mod opening;
pub mod plant;
pub mod platter;
pub mod probes;
pub mod report;
pub mod rest;
pub mod scenario;
pub mod stack;
pub mod switch;
pub mod volume;
pub mod world;

use std::cell::Cell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bimetal_rt::{Rt, VirtualOptions};

use crate::campaign::{self, Replay};

pub use crate::campaign::Summary;
pub use boundaries::{FailAt, Interference};
pub use classes::{Class, Classes};
pub use plant::Plant;
pub use report::{Finding, Report};
pub use scenario::{Extent, Scenario};
use world::World;

/// How seeds are run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep a log of every event.
    pub verbose: bool,
    /// Run each seed once only: half the time, and replay is not checked.
    pub once: bool,
    /// A bug to plant.
    pub plant: Option<Plant>,
    /// The classes of faults that are on.
    pub classes: Classes,
    /// How much a seed does.
    pub extent: Extent,
    /// Where the run is interfered with.
    pub interference: Interference,
}

/// Runs a seed.
pub fn run(seed: u64, options: Options) -> Report {
    let scenario = Scenario::draw(seed, options.classes, options.extent);
    run_scenario(&scenario, options)
}

/// A run with fewer operations of clients proves too little to count as clean.
pub const OPERATIONS_MIN: u64 = 40;

/// Runs a scenario, drawn or made by hand.
pub fn run_scenario(scenario: &Scenario, options: Options) -> Report {
    let mut report = run_once(scenario, options);
    check_operations(&mut report);
    if options.once || report.finding.is_some() {
        return report;
    }
    let again = run_once(scenario, options);
    if again.hash != report.hash {
        report.finding = Some(Finding {
            at_ns: report.virtual_ns,
            what: format!("replayed with hash {:016x}", again.hash),
        });
    }
    report
}

/// Enough has to happen in a run, unless its whole point is that the volume stays shut.
fn check_operations(report: &mut Report) {
    let operations: u64 = report.operations.values().sum();
    let may_do_less =
        report.scenario.extent == Extent::Small || report.reached.contains_key("stayed shut");
    if report.finding.is_none() && operations < OPERATIONS_MIN && !may_do_less {
        report.finding = Some(Finding {
            at_ns: report.virtual_ns,
            what: format!("only {operations} operations of clients"),
        });
    }
}

/// Runs seeds one after the other, telling each report.
pub fn swarm(seeds: Range<u64>, options: Options, progress: impl FnMut(&Report)) -> Summary {
    campaign::run_seeds(
        seeds,
        1,
        |seed, replay| run_replayed(seed, replay, options),
        progress,
    )
}

/// Runs a seed as often as a campaign asks, but once if the options say so.
pub fn run_replayed(seed: u64, replay: Replay, options: Options) -> Report {
    let once = options.once || replay == Replay::Once;
    run(seed, Options { once, ..options })
}

/// Makes a panic name the seed that ran, for builds in which a panic ends the program.
pub fn name_seed_on_panic() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if let Some(seed) = current_seed() {
            eprintln!("seed {seed}:");
        }
        hook(info);
    }));
}

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The seed that runs on this thread, for whoever reports a panic.
pub fn current_seed() -> Option<u64> {
    SEED.get()
}

fn run_once(scenario: &Scenario, options: Options) -> Report {
    let rt = Rt::virtual_time(VirtualOptions {
        seed: scenario.seed,
        shuffle: scenario.shuffle,
    });
    let world = Rc::new(World::new(&rt, scenario.clone(), options));
    // A failed assertion is a finding like any other; what the world looks like afterwards is of no
    // interest.
    let outcome = while_seed_runs(scenario.seed, || {
        catch_unwind(AssertUnwindSafe(|| life::run(&rt, &world)))
    });
    let disks = match outcome {
        Ok(disks) => disks,
        Err(panic) => {
            world
                .findings
                .add(format!("panic: {}", message_of(&*panic)));
            life::Disks::default()
        }
    };
    let mut faults = disks.faults;
    faults.add(&world.faults());
    let boundaries = &world.around.boundaries;
    Report {
        seed: scenario.seed,
        hash: world.trace.hash(),
        events: world.trace.events(),
        virtual_ns: rt.now().as_ns(),
        finding: world.findings.first(),
        operations: world.operations(),
        disk_requests: disks.requests,
        boundaries: boundaries.passed(),
        by_class: boundaries.by_class(),
        struck: boundaries.struck(),
        faults,
        reached: world.reached(),
        scenario: scenario.clone(),
        log: world.trace.take_log(),
    }
}

/// Runs something as part of a seed, for whoever reports a panic.
pub(crate) fn while_seed_runs<T>(seed: u64, run: impl FnOnce() -> T) -> T {
    SEED.set(Some(seed));
    let outcome = run();
    SEED.set(None);
    outcome
}

/// What a panic said.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
