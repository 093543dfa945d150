//! A slice of the simulation tester, and the tests of the tester itself: it must find planted bugs,
//! replay, and reach the states that it is there for.

use bimetal_sim::tester::{self, Options, Plant};

const SLICE: std::ops::Range<u64> = 10_000..10_250;

/// A planted bug has to be found within so many seeds.
const SEEDS_PER_PLANT: u64 = 40;

/// Faults that are in no class.
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
        "acknowledged early",
        "blocks lost in a power cut",
        "client left",
        "closed cleanly",
        "crash under load",
        "drained",
        "exposed on the disks",
        "held back",
        "merged",
        "mode switched",
        "opened with a resync",
        "resynced",
        "side absent",
        "side delayed",
        "side resyncing",
    ] {
        assert!(
            summary.reached.contains_key(state),
            "never reached: {state}"
        );
    }
    for fault in ALWAYS_ON {
        assert!(summary.faults[fault] > 0, "never hit: {fault}");
    }
    assert!(summary.events / summary.seeds > 100, "{}", summary.text());
}

#[test]
fn every_planted_bug_is_found() {
    for plant in Plant::ALL {
        let options = Options {
            plant: Some(plant),
            once: true,
            ..Options::default()
        };
        let found = (0..SEEDS_PER_PLANT).find(|&seed| tester::run(seed, options).finding.is_some());
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
        let (quiet, logged) = (tester::run(seed, once), tester::run(seed, verbose));
        assert_eq!(quiet.hash, logged.hash);
        assert!(!logged.log.is_empty() && quiet.log.is_empty());
        assert_ne!(quiet.hash, tester::run(seed + 1, once).hash);
    }
}
