//! Tests of the index tester: a slice of its seeds, the seeds that have found a bug, and checks of
//! the tester itself. The tester must give the same result for the same seed, reach the states for
//! which it exists, and detect a faulty index.

use bimetal_sim::campaign::FaultClass;
use bimetal_sim::index_tester::{self, Class, Classes, Options};

const SLICE: std::ops::Range<u64> = 10_000..10_150;

fn only(classes: &[Class]) -> Options {
    Options {
        classes: classes.iter().copied().collect(),
        ..Options::default()
    }
}

/// Returns options with the classes that existed when the seeds below found their bugs. A class
/// that was added later would change the scenarios of the seeds that draw this class.
fn early() -> Options {
    let later = [Class::GrowingLog, Class::HugeValues];
    Options {
        classes: Class::ALL
            .into_iter()
            .filter(|class| !later.contains(class))
            .collect(),
        ..Options::default()
    }
}

/// Seeds that have found a bug, each after a comment about its bug. All bugs are fixed.
#[test]
fn seeds_that_have_found_something_find_nothing() {
    for seed in [
        // A transaction missed changes of other writers, because it was older than the history that
        // the index keeps for each key.
        39, 97, 673,
        // A snapshot missed a version of a value. The leaf of the value had been rewritten while
        // there was no space for the version.
        206,
        // Bug that this seed found: after a kill, a part of the log was missing, and the next
        // program made changes durable behind that gap.
        519,
        // Bit rot had destroyed the end of the log, so the checkpoint included changes that the
        // rest of the log did not contain.
        835,
        // Bug that these seeds found: a scan read an out-of-line value after a node had been stored
        // under the number of the value, and reported damage.
        3225, 5146,
        // After a failed write, an out-of-line value that cleaning had moved was read as a node.
        7360, 8337,
        // A failed sync lost a write to a segment. As a result, an older image of a node remained
        // at the offset of its newer image.
        8736, 10_290,
        // After a failed sync, some data was only in the page cache of the system. The next program
        // read this data, and relied on its own sync, but this sync did not make the data durable.
        20_650,
        // Bit rot had destroyed a frame at the end of the log. A torn write at the same offset made
        // the frame valid again, and the batch of the frame reappeared.
        27_837, 27_944,
    ] {
        let report = index_tester::run(seed, early());
        assert_eq!(report.finding, None, "{}", report.summary());
    }
    for (seed, classes) in [
        // The memory of a long batch was released too late, during the following batches. Until
        // then, the memory in use exceeded the memory budget.
        (86, &[Class::PowerCut][..]),
        // The bug of seed 206: a snapshot missed a version of a value. Here the seed runs with
        // power cuts as the only class of faults.
        (206, &[Class::PowerCut]),
        // The log had no space to relog the changes of a leaf, and the index reported a full disk.
        (359, &[Class::PowerCut, Class::LostNodes]),
        // The parents of a leaf could not be written for lack of space. Out-of-line values that the
        // leaf no longer referenced were then never freed.
        (
            68_762,
            &[
                Class::PowerCut,
                Class::CutOpening,
                Class::FailedOpening,
                Class::Full,
                Class::Paper,
            ],
        ),
        // The first batch after an opening wrote back all changes that the opening had replayed.
        // The memory of these changes was released only at the end of the batch, and a power cut
        // prevented this end.
        (
            125_443,
            &[
                Class::PowerCut,
                Class::FailedOpening,
                Class::Paper,
                Class::LostWrites,
            ],
        ),
        // Bug that this seed found: a batch was too long for the ring of the log and arrived when
        // no part of the log was needed. The index then lost both superblocks.
        (
            300_080,
            &[
                Class::PowerCut,
                Class::FailedSyncs,
                Class::FailedOpening,
                Class::Full,
                Class::Rot,
                Class::MisdirectedReads,
                Class::GrowingLog,
                Class::HugeValues,
            ],
        ),
        (
            300_462,
            &[
                Class::PowerCut,
                Class::FailedSyncs,
                Class::FailedOpening,
                Class::Full,
                Class::OldSnapshots,
                Class::MisdirectedReads,
                Class::GrowingLog,
                Class::HugeValues,
            ],
        ),
        (
            325_475,
            &[
                Class::PowerCut,
                Class::Kill,
                Class::FailedSyncs,
                Class::Full,
                Class::OldSnapshots,
                Class::HugeValues,
            ],
        ),
        // During replay of the log, some leaves were written and then received older changes from
        // the log. A range deletion was not applied to these leaves again.
        (
            325_213,
            &[
                Class::PowerCut,
                Class::FailedReads,
                Class::FailedWrites,
                Class::LostNodes,
                Class::HugeValues,
            ],
        ),
        (
            300_005,
            &[
                Class::PowerCut,
                Class::Kill,
                Class::MisdirectedWrites,
                Class::HugeValues,
            ],
        ),
        // A leaf with several patches of the same sequence number was mistaken for a leaf with a
        // later sequence number, which would already include a certain deletion.
        (
            325_910,
            &[
                Class::PowerCut,
                Class::FailedReads,
                Class::FailedWrites,
                Class::HugeValues,
            ],
        ),
        // The log was about to continue in a longer ring. Before anything was written to the longer
        // ring, a batch needed a ring that was longer still.
        (
            302_492,
            &[
                Class::PowerCut,
                Class::CutOpening,
                Class::Kill,
                Class::Full,
                Class::OldSnapshots,
                Class::Rot,
                Class::GrowingLog,
                Class::HugeValues,
            ],
        ),
        // The log supplied older changes of a leaf, but the stored image of the leaf already
        // contained deletions of all keys of these changes. Afterwards no key led to the leaf, and
        // the index reported damage.
        (
            401_999,
            &[
                Class::PowerCut,
                Class::CutOpening,
                Class::Kill,
                Class::FailedReads,
                Class::FailedSyncs,
                Class::HugeValues,
            ],
        ),
        // A compaction wrote nodes, and kept all of these nodes in memory until the end of the next
        // batch.
        (304_326, &[Class::PowerCut, Class::Kill, Class::Full]),
        // After space on the disk had become free, the index still refused a batch that needs a
        // longer log.
        (
            325_729,
            &[
                Class::PowerCut,
                Class::Kill,
                Class::FailedWrites,
                Class::Full,
                Class::LostWrites,
                Class::MisdirectedWrites,
                Class::MisdirectedReads,
                Class::HugeValues,
            ],
        ),
    ] {
        let report = index_tester::run(seed, only(classes));
        assert_eq!(report.finding, None, "{}", report.summary());
    }
}

#[test]
fn a_slice_of_seeds_finds_nothing_and_reaches_everything() {
    let summary = index_tester::swarm(SLICE, Options::default(), |_| {});
    assert!(summary.failed.is_empty(), "{}", summary.text());
    for state in [
        "bytes have rotted",
        "changes carried",
        "checkpoint",
        "killed",
        "leaf folded",
        "leaf patched",
        "leaf split",
        "leaves joined",
        "log in another ring",
        "opening failed",
        "power cut",
        "power cut while opening",
        "read-only",
        "refused: a batch that is too long",
        "refused: full",
        "segment cleaned",
        "stayed shut",
        "stopped cleanly",
        "transactions in conflict",
        "transactions that took too long",
        "value of a mebibyte",
        "value out of line",
    ] {
        assert!(
            summary.reached.contains_key(state),
            "never reached: {state}"
        );
    }
    for (fault, tally) in &summary.faults {
        assert!(tally.times > 0, "never hit: {fault}");
    }
}

/// A class that changes no seed would test nothing.
#[test]
fn every_class_changes_what_happens() {
    let hashes = |options: Options| -> Vec<u64> {
        let options = Options {
            once: true,
            ..options
        };
        let runs = (0..30).map(|seed| index_tester::run(seed, options).hash);
        runs.collect()
    };
    let without = hashes(only(&[Class::PowerCut]));
    for class in Class::ALL
        .into_iter()
        .filter(|class| *class != Class::PowerCut)
    {
        let with = hashes(only(&[Class::PowerCut, class]));
        let changed = with.iter().zip(&without).filter(|(a, b)| a != b).count();
        assert!(changed > 0, "{}: {changed} of 30", class.name());
        // A seed in which the class does not occur is unchanged.
        assert!(changed < 20, "{}: {changed} of 30", class.name());
    }
}

/// If the write of a node is lost, an older image of the node can be at the same offset. The index
/// must detect that the image is outdated, and must report damage.
#[test]
fn nodes_that_are_lost_are_missed() {
    let options = only(&[Class::PowerCut, Class::Paper, Class::LostNodes]);
    let summary = index_tester::swarm(0..200, options, |_| {});
    assert!(summary.failed.is_empty(), "{}", summary.text());
    let missed = summary.reached.get("opened in part").copied();
    assert!(missed.is_some(), "{}", summary.text());
}

#[test]
fn a_finding_says_how_to_see_it_again() {
    let options = only(&[Class::PowerCut, Class::Kill]);
    let report = index_tester::run(3, options);
    let command = report.command();
    let (_, classes) = command.split_once("--classes ").expect("it names classes");
    let again = Options {
        classes: Classes::parse(classes).expect("classes"),
        ..Options::default()
    };
    assert!(command.contains("--seed 3 "), "{command}");
    assert_eq!(index_tester::run(3, again).hash, report.hash);
}
