//! The simulation tester: a seed draws a stack, devices, a load and faults, and every answer that a
//! client receives is checked against a model of the volume.
//!
//! - [`scenario`] draws a run, with the faults that [`classes`] switches on. [`disk`] contains the
//!   fault model and the disks, which hold their data in [`platter`]s and have a [`switch`] for
//!   faults. [`corruption`] is the rule that decides which blocks can be corrupted.
//! - [`stack`] builds the sides, [`client`] is the load, [`volume`] is the model, and [`world`]
//!   makes the checks after operations and periodically. [`life`] opens, stops and crashes the
//!   volume, with [`opening`] and [`faults`]. [`rest`], [`probes`] and [`changing`] run between two
//!   lives.
//! - [`boundaries`] cuts the power or fails an operation at a chosen I/O boundary. [`ambush`] kills
//!   the program or cuts the power during a chosen operation. [`every`] repeats a run with a fault
//!   at every boundary. [`campaign`] adds up the results of many seeds. [`plant`] contains the bugs
//!   that the tester must find.
//! - A run depends only on its seed and its options: [`run`] runs a seed twice and compares the
//!   hashes over all events.
//!
//! The tester must never know how the mirror works: it uses only the interfaces of a client, an
//! operator and a disk.

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
mod room;
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

/// Options for running seeds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether to keep a log of every event.
    pub verbose: bool,
    /// Whether to run each seed only once, which takes half the time but does not check that a
    /// second run is equal.
    pub once: bool,
    /// Bug to plant, if there is one.
    pub plant: Option<Plant>,
    /// Classes of faults and checks that are enabled.
    pub classes: Classes,
    /// Amount of work of a seed.
    pub extent: Extent,
    /// Faults to inject at chosen points of the run.
    pub interference: Interference,
}

/// Runs a seed, and runs it again to check that both runs are equal.
pub fn run(seed: u64, options: Options) -> Report {
    let scenario = Scenario::draw(seed, options.classes, options.extent);
    run_scenario(&scenario, options)
}

/// Minimum number of client operations of a run. A run with fewer operations tests too little, so
/// it is treated as failed.
pub const OPERATIONS_MIN: u64 = 40;

/// Runs a scenario, which can be drawn from a seed or built by a caller.
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

/// Adds a finding if a run had too few operations, unless the run is small by design or its volume
/// refused to open.
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

/// Runs seeds in order, and calls `progress` with each report.
pub fn swarm(seeds: Range<u64>, options: Options, progress: impl FnMut(&Report)) -> Summary {
    campaign::run_seeds(
        seeds,
        1,
        |seed, replay| run_replayed(seed, replay, options),
        progress,
    )
}

/// Runs a seed twice and checks that both runs are equal. Runs it only once if `replay` or
/// `options` says so.
pub fn run_replayed(seed: u64, replay: Replay, options: Options) -> Report {
    let once = options.once || replay == Replay::Once;
    run(seed, Options { once, ..options })
}

/// Installs a panic hook that prints the seed that is running, for builds in which a panic ends the
/// program.
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

/// Returns the seed that is running on this thread, for the report of a panic.
pub fn current_seed() -> Option<u64> {
    SEED.get()
}

fn run_once(scenario: &Scenario, options: Options) -> Report {
    let rt = Rt::virtual_time(VirtualOptions {
        seed: scenario.seed,
        shuffle: scenario.shuffle,
    });
    let world = Rc::new(World::new(&rt, scenario.clone(), options));
    plant::in_mirror(options.plant);
    // A panic, such as a failed assertion, is a finding. The state of the world is not used after a
    // panic, except for its findings and counters.
    let outcome = while_seed_runs(scenario.seed, || {
        catch_unwind(AssertUnwindSafe(|| life::run(&rt, &world)))
    });
    plant::in_mirror(None);
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

/// Runs a closure and records `seed` as the running seed meanwhile, so that the report of a panic
/// can name the seed.
pub(crate) fn while_seed_runs<T>(seed: u64, run: impl FnOnce() -> T) -> T {
    SEED.set(Some(seed));
    let outcome = run();
    SEED.set(None);
    outcome
}

/// Returns the message of a panic.
pub(crate) fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "without a message".to_owned())
}
