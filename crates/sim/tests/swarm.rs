//! Tests of the mirror tester: a slice of its seeds, and checks of the tester itself. The tester
//! must find planted bugs, give the same result for the same seed, and reach the states that it was
//! written to test.

use bimetal_block::layers::mirror::planted::Bug;
use bimetal_sim::tester::every::{Every, every};
use bimetal_sim::tester::{self, Class, Classes, Extent, Options, Plant, Scenario};

const SLICE: std::ops::Range<u64> = 10_000..10_150;

/// Returns the maximum number of seeds that the tester is allowed to need to find a planted bug.
/// The number is about three times the number of seeds that the tester needs today (the table in
/// `docs/simulation.md`). So a change that only shifts the seeds does not fail the test, but a
/// change that keeps the tester from finding the bug does.
fn seeds_for(plant: Plant) -> u64 {
    match plant {
        Plant::UnorderedMarks | Plant::ForgetsRebuild => 60,
        Plant::ChecksNothing => 130,
        Plant::Mirror(bug) => match bug {
            Bug::FreesEarly
            | Bug::FreesPinned
            | Bug::FreesUncounted
            | Bug::RefersBeforeWritten
            | Bug::DiscardsEarly => 180,
            Bug::ForgetsDuringCommit => 420,
            Bug::DropsRunsEarly => 1950,
            Bug::CommitsUnflushed => 500,
            Bug::MovesOverNewer => 430,
            Bug::OrdersOverNewer => 660,
            Bug::BelievesOldSummary | Bug::KeepsRoom => 80,
            _ => 40,
        },
        _ => 40,
    }
}

/// Returns true if a seed can reveal a planted bug, so that it is worth running: bugs of logged
/// sides need such a side.
fn can_reveal(plant: Plant, seed: u64, options: Options) -> bool {
    let scenario = || Scenario::draw(seed, options.classes, options.extent);
    !matches!(plant, Plant::Mirror(_)) || scenario().has_logged_side()
}

/// Names of faults that are always on, because they belong to no class.
const ALWAYS_ON: [&str; 8] = [
    "frozen",
    "slowed",
    "failed reads",
    "failed writes",
    "failed flushes",
    "offline",
    "after death",
    "lost blocks",
];

#[test]
fn a_slice_of_seeds_finds_nothing_and_reaches_everything() {
    let summary = tester::swarm(SLICE, Options::default(), |_| {});
    assert!(summary.failed.is_empty(), "{}", summary.text());
    for state in [
        "a foreign side refused",
        "a side alone refused with a list",
        "a side alone was looked at",
        "acknowledged early",
        "at rest: a superblock lost",
        "at rest: an older side",
        "blocks lost in a power cut",
        "client left",
        "closed cleanly",
        "crash at a change of epoch",
        "crash in resync",
        "crash under load",
        "crash when a side is added",
        "crash when a side is removed",
        "crash when a side is replaced",
        "drained",
        "exposed on the disks",
        "held back",
        "killed",
        "log full",
        "merged",
        "mode switched",
        "power cut while opening",
        "read everything",
        "resynced",
        "side absent",
        "side delayed",
        "side resyncing",
        "sides: changed",
    ] {
        assert!(
            summary.reached.contains_key(state),
            "never reached: {state}"
        );
    }
    for fault in ALWAYS_ON {
        assert!(summary.faults[fault].times > 0, "never hit: {fault}");
    }
    assert!(summary.faults["landed late"].times > 0, "never hit: kill");
    assert!(summary.operations_min >= Some(tester::OPERATIONS_MIN));
}

/// Runs fifty seeds with a single class enabled, and asserts that no seed fails.
fn fifty_seeds_of(class: Class) -> tester::Summary {
    let options = Options {
        classes: [class].into_iter().collect(),
        once: true,
        ..Options::default()
    };
    let summary = tester::swarm(0..50, options, |_| {});
    assert!(summary.failed.is_empty(), "{}", summary.text());
    summary
}

/// A class whose faults never occur would test nothing.
#[test]
fn the_faults_of_every_class_of_corruption_happen() {
    for (class, fault) in [
        (Class::Torn, "torn blocks"),
        (Class::Rot, "rotten blocks"),
        (Class::LostWrites, "lost writes"),
        (Class::MisdirectedWrites, "misdirected writes"),
        (Class::MisdirectedReads, "misdirected reads"),
        (Class::AllCopies, "rotten blocks"),
    ] {
        let summary = fifty_seeds_of(class);
        let hits = summary.faults[fault].times;
        assert!(hits > 0, "{}: {fault} never hit", class.name());
    }
}

/// Some classes aim at a rare state, such as a full log or a crash during a scrub. Each of these
/// classes must reach its state.
#[test]
fn the_moments_that_classes_wait_for_are_met() {
    for (class, state) in [
        (Class::FullLog, "log full"),
        (Class::DeepQueue, "log full"),
        (Class::CrashInScrub, "crash in scrub"),
        (Class::CrashInResync, "crash in resync"),
        (Class::CrashAtEpoch, "crash at a change of epoch"),
        (Class::CrashInCommit, "crash at a commit"),
        (Class::CrashInCommit, "segments cleaned"),
        (Class::CrashInCommit, "segments discarded"),
        (Class::CrashInCommit, "put in order"),
        (Class::SmallMap, "map page read again"),
        (Class::ConvertedSides, "crash when a side is converted"),
        (
            Class::ConvertedSides,
            "sides: a conversion went on by itself",
        ),
    ] {
        let summary = fifty_seeds_of(class);
        let reached = summary.reached.get(state);
        assert!(reached.is_some(), "{}: never {state}", class.name());
    }
}

/// For a few seeds, cuts the power at a random sample of the I/O boundaries (arrivals and
/// completions of requests), and fails a random sample of the operations of each class.
#[test]
fn a_slice_of_boundaries_finds_nothing() {
    for what in Every::ALL {
        let mut runs = 0;
        for seed in 0..2 {
            let count = every(
                seed,
                what,
                Some(25),
                Options::default(),
                |number, report| {
                    runs += 1;
                    let name = what.name();
                    assert!(
                        report.finding.is_none(),
                        "{name} at {number}: {}",
                        report.summary()
                    );
                },
            );
            assert!(count > 0, "seed {seed} has no boundaries");
        }
        assert!(runs > 20, "{} ran {runs} times", what.name());
    }
}

/// Power cuts at a sample of the I/O boundaries (arrivals and completions of requests) reveal a
/// planted bug: a mirror that sends flushes to no side.
#[test]
fn a_cut_at_many_boundaries_finds_a_mirror_that_skips_flushes() {
    let options = Options {
        plant: Some(Plant::SkipsFlush),
        once: true,
        ..Options::default()
    };
    // Two of the first nine seeds reveal the bug. Each seed has a few hundred boundaries, and cuts
    // at a third of the boundaries suffice.
    let mut found = false;
    every(3, Every::Cut, Some(100), options, |_, report| {
        found |= report.finding.is_some();
    });
    assert!(found, "nothing is found");
}

/// A heavy-tailed seed has up to a hundred times the usual number of operations. A second run of
/// such a seed must also give the same result.
#[test]
fn heavy_tailed_seeds_do_more_and_replay() {
    let heavy = Options {
        extent: Extent::HeavyTailed,
        ..Options::default()
    };
    let factor = |seed| {
        let scenario = |options: Options| Scenario::draw(seed, Classes::NONE, options.extent);
        let usual = scenario(Options::default()).load.operations;
        scenario(heavy).load.operations / usual
    };
    let factors: Vec<u64> = (0..200).map(factor).collect();
    let many = factors.iter().filter(|&&factor| factor >= 10).count();
    // About half of 200 seeds have a factor of ten or more, because the factors are log-uniform
    // over two orders of magnitude. The standard deviation is 7, and each bound is six standard
    // deviations from the mean.
    assert!((58..=142).contains(&many), "{many}");
    let small = (0..200).find(|&seed| (3..6).contains(&factors[seed]));
    let seed = small.expect("a seed of a few times as much") as u64;
    let report = tester::run(seed, heavy);
    assert!(report.finding.is_none(), "{}", report.summary());
}

#[test]
fn every_planted_bug_is_found() {
    for plant in Plant::all() {
        let options = Options {
            plant: Some(plant),
            classes: plant.classes(),
            once: true,
            ..Options::default()
        };
        let mut seeds = (0..seeds_for(plant)).filter(|&seed| can_reveal(plant, seed, options));
        let found = seeds.find(|&seed| tester::run(seed, options).finding.is_some());
        assert!(found.is_some(), "{} is not found", plant.name());
    }
}

#[test]
fn a_seed_replays_and_its_log_changes_nothing() {
    for seed in [3, 11, 12] {
        let once = Options {
            once: true,
            ..Options::default()
        };
        let verbose = Options {
            verbose: true,
            ..once
        };
        let (silent, logged) = (tester::run(seed, once), tester::run(seed, verbose));
        assert_eq!(silent.hash, logged.hash);
        assert!(!logged.log.is_empty() && silent.log.is_empty());
        assert_ne!(silent.hash, tester::run(seed + 1, once).hash);
    }
}
