//! A slice of the tester of the index, the seeds that have found something, and tests of the tester
//! itself: it must replay, reach the states that it is there for, and notice an index that is
//! wrong.

use bimetal_sim::campaign::FaultClass;
use bimetal_sim::index_tester::{self, Class, Classes, Options};

const SLICE: std::ops::Range<u64> = 10_000..10_150;

fn only(classes: &[Class]) -> Options {
    Options {
        classes: classes.iter().copied().collect(),
        ..Options::default()
    }
}

/// All classes that there were when the seeds below found something: a seed does another thing with
/// one more.
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

/// What seeds have found; each is mended. With what they were about in a line.
#[test]
fn seeds_that_have_found_something_find_nothing() {
    for seed in [
        // A transaction did not see what others had written: it was older than what is known of
        // keys.
        39, 97, 673,
        // A snapshot missed a version, since its leaf had been written anew after there was no room
        // for it.
        206,
        // After a kill, what the next program made durable stood behind a gap in the log.
        519,
        // The log had lost its end to rot, and the checkpoint held more than what was left.
        835,
        // A scan that came too late for a value out of line took the node that has its number now
        // for damage.
        3225, 5146,
        // A value that cleaning had moved was taken for a node, after a failed write.
        7360, 8337,
        // A sync failed and lost what was written to a segment: an older image of the same node was
        // in its place.
        8736, 10_290,
        // A sync failed, the next program found what it had not saved in the system's cache, and
        // believed a sync.
        20_650,
        // A frame that rot had taken from the end of the log was whole again, and its batch back,
        // when a write to its place was cut.
        27_837, 27_944,
    ] {
        let report = index_tester::run(seed, early());
        assert_eq!(report.finding, None, "{}", report.summary());
    }
    for (seed, classes) in [
        // Content of a long batch was given up over the following ones, and beyond the budget till
        // then.
        (86, &[Class::PowerCut][..]),
        // The same as above, without other classes.
        (206, &[Class::PowerCut]),
        // Changes of one leaf had no room in the log to be logged again, and the disk was called
        // full.
        (359, &[Class::PowerCut, Class::LostNodes]),
        // The nodes above a leaf could not be written for want of room, and values out of line that
        // the leaf no longer names were never given back.
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
        // All that an opening had taken up was written back after one batch, and stayed in memory
        // until the end of that, to which a power cut did not let it come.
        (
            125_443,
            &[
                Class::PowerCut,
                Class::FailedOpening,
                Class::Paper,
                Class::LostWrites,
            ],
        ),
        // A batch that was too long for the ring of the log came when nothing of the log was
        // needed, and neither superblock counted any more.
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
        // A deletion of a range was not made again in leaves that were written while the log was
        // taken up, and that got older changes from it afterwards.
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
        // A leaf with several patches of one moment passed for one of a later moment, and so for
        // one that has a deletion.
        (
            325_910,
            &[
                Class::PowerCut,
                Class::FailedReads,
                Class::FailedWrites,
                Class::HugeValues,
            ],
        ),
        // The log was to go on in a longer ring, and before anything was written to that a batch
        // needed one that was longer.
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
        // Older changes of a leaf came from the log, and all of them were deleted in its image
        // already: no key was left that leads to the leaf, and the index was called damaged.
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
        // A compaction kept in memory what it had written, until the next batch ended.
        (304_326, &[Class::PowerCut, Class::Kill, Class::Full]),
        // There was room again on the disk, and a batch that needs a longer log was still refused.
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

/// A class that does nothing tests nothing.
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
        // A seed that does not draw it is as it was.
        assert!(changed < 20, "{}: {changed} of 30", class.name());
    }
}

/// Where the write of a node was lost, an older image of it may stand in its place: what is there
/// is told from what belongs there, and said to be damaged.
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
