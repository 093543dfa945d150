//! Tests that every planted bug is found. Each call of `assert_found` lists the bugs that one
//! scenario (`life`) must find.

use super::Bug;
use crate::MaintenanceStatistics;
use crate::world::past::{self, Part};
use crate::world::{gate, lives, small_options};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Bug that is planted for this thread.
    pub(super) static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Returns the first number below `limit` for which a scenario finds the bug, if any.
fn found_by(life: &dyn Fn(u64), bug: Bug, limit: u64) -> Option<u64> {
    PLANTED.set(Some(bug));
    let finds = |number: &u64| catch_unwind(AssertUnwindSafe(|| life(*number))).is_err();
    let found = (0..limit).find(finds);
    PLANTED.set(None);
    // Without the bug the same scenario must find no error.
    found.inspect(|number| life(*number))
}

/// Asserts that a scenario finds each bug with a number (a seed) below the limit given for that
/// bug. A limit for random scenarios is at least ten, and about three times what is needed today.
/// So a change that merely shifts the seeds does not fail the assertion, but a change that makes
/// the tests miss a bug does.
fn assert_found(life: &dyn Fn(u64), bugs: &[(Bug, u64)]) {
    let found = |(bug, limit): &(Bug, u64)| (*bug, found_by(life, *bug, *limit));
    let found: Vec<(Bug, Option<u64>)> = bugs.iter().map(found).collect();
    assert!(
        found.iter().all(|(_, number)| number.is_some()),
        "{found:?}"
    );
    println!("{found:?}");
}

fn crash(seed: u64) {
    lives::crash(seed, small_options, &mut MaintenanceStatistics::default());
}

#[test]
fn power_cuts_find_bugs_of_durability() {
    assert_found(
        &crash,
        &[
            (Bug::UnsyncedCheckpoint, 30),
            (Bug::NamesUnwritten, 30),
            (Bug::TailTooLate, 30),
            (Bug::TakesOlderLaps, 30),
            (Bug::FreesEarly, 100),
            (Bug::RelogsNoRanges, 160),
            (Bug::ForgetsPatches, 200),
            (Bug::WritesWithoutDeletions, 100),
        ],
    );
}

#[test]
fn stops_in_long_deletions_find_bugs_of_deletions() {
    let life = |seed| _ = lives::long_deletions(seed, 4000, &mut |_| {});
    let bugs = [(Bug::ForgetsDeletions, 10), (Bug::OverlooksDeletions, 10)];
    assert_found(&life, &bugs);
}

#[test]
fn power_cuts_of_long_frames_find_bugs_of_the_log() {
    assert_found(&lives::relaxed, &[(Bug::BelievesFrames, 60)]);
    let bugs = [(Bug::KeepsOpening, 2), (Bug::TrustsTheTail, 2)];
    assert_found(&lives::leftover, &bugs);
}

#[test]
fn lives_beside_a_map_find_bugs_of_snapshots() {
    let life = |seed| lives::ordered_map(seed, small_options, 400);
    assert_found(
        &life,
        &[(Bug::PrunesSnapshots, 10), (Bug::ForgetsPatches, 30)],
    );
}

#[test]
fn failures_find_bugs_of_failing() {
    let life = |number| _ = lives::failure(number);
    assert_found(&life, &[(Bug::RetriesSync, 40), (Bug::GoesOn, 10)]);
    assert_found(&lives::failed_sync, &[(Bug::BelievesTheCache, 10)]);
}

#[test]
fn changed_bytes_find_who_does_not_check() {
    let life = |_| _ = lives::changed_bytes(61);
    assert_found(&life, &[(Bug::BelievesImages, 1), (Bug::BelievesFrames, 1)]);
}

#[test]
fn blocks_that_come_back_find_who_does_not_check() {
    let life = |_| _ = past::blocks_come_back(lives::small(), Part::Segments);
    assert_found(&life, &[(Bug::BelievesLeftovers, 1)]);
}

#[test]
fn threads_find_bugs_of_groups() {
    let followers = |_| {
        let planted = PLANTED.get();
        gate::followers(&|| PLANTED.set(planted));
    };
    assert_found(&followers, &[(Bug::FollowsTheFirst, 1)]);
    let rivals = |_| {
        let planted = PLANTED.get();
        gate::rivals(&|| PLANTED.set(planted));
    };
    assert_found(&rivals, &[(Bug::OverlooksRivals, 1)]);
}
