//! Planted bugs of logged sides, which test the simulation tester: each bug breaks one promise in a
//! line where a programmer might break it, and the tester must find it. The bugs of sides that a
//! wrapped device can imitate are not here but beside the tester.
//!
//! Only builds with debug assertions have these bugs, and in them only the thread that has called
//! [`plant`]. In all other builds `is_planted` always returns false, so the shipped code never
//! contains a path for a bug.

use serde::Serialize;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Bug {
    /// The segments that cleaning has emptied become free without a commit.
    FreesEarly,
    /// A segment counts as dead although requests in flight read or write it.
    FreesPinned,
    /// Cleaning changes the place of a block that has moved meanwhile.
    MovesOverNewer,
    /// Putting a window in order changes the place of a block that has changed meanwhile.
    OrdersOverNewer,
    /// The place of a moved block changes before its content is written.
    RefersBeforeWritten,
    /// A commit does not flush what it has written before it writes the record.
    CommitsUnflushed,
    /// A commit releases the segments of the log whose entries are about to be dropped.
    ReleasesBeforeDrop,
    /// Entries of the log are dropped before the map that replaces them is committed.
    DropsBeforeCommit,
    /// An opening does not void what the journal says about a page before it was written.
    ForgetsWritten,
    /// An opening applies the entries of the journal in reverse order.
    ReplaysBackwards,
    /// An opening does not apply what the journal says about the checksums.
    SkipsChecksums,
    /// A commit drops the runs of the journal that the map no longer needs, although the checksums
    /// need them.
    DropsRunsEarly,
    /// A commit forgets the changes that were made while it wrote.
    ForgetsDuringCommit,
    /// Changed checksums do not go into the journal.
    JournalsNoChecksums,
    /// Folding a discard leaves the checksums of the blocks.
    DiscardsPlaceOnly,
    /// Folding a discard leaves the places of the blocks.
    DiscardsChecksumOnly,
    /// A page of the map that was read from the device is used without what has changed since.
    ReadsPageAlone,
    /// Cleaning believes a summary of an earlier generation of a segment.
    BelievesOldSummary,
    /// A segment counts as dead although pages of the map that may refer to it were not read yet.
    FreesUncounted,
    /// The record lists segments as free that are being filled.
    ListsFilledAsFree,
    /// A segment is discarded before the commit that frees it is durable.
    DiscardsEarly,
    /// A write is admitted without room for its content.
    AdmitsWithoutRoom,
    /// A discard does not make room for other content.
    KeepsRoom,
    /// An opening does not count what the log has of the content of the volume.
    CountsMapOnly,
}

impl Bug {
    /// All bugs.
    pub const ALL: [Bug; 24] = [
        Bug::FreesEarly,
        Bug::FreesPinned,
        Bug::MovesOverNewer,
        Bug::OrdersOverNewer,
        Bug::RefersBeforeWritten,
        Bug::CommitsUnflushed,
        Bug::ReleasesBeforeDrop,
        Bug::DropsBeforeCommit,
        Bug::ForgetsWritten,
        Bug::ReplaysBackwards,
        Bug::SkipsChecksums,
        Bug::DropsRunsEarly,
        Bug::ForgetsDuringCommit,
        Bug::JournalsNoChecksums,
        Bug::DiscardsPlaceOnly,
        Bug::DiscardsChecksumOnly,
        Bug::ReadsPageAlone,
        Bug::BelievesOldSummary,
        Bug::FreesUncounted,
        Bug::ListsFilledAsFree,
        Bug::DiscardsEarly,
        Bug::AdmitsWithoutRoom,
        Bug::KeepsRoom,
        Bug::CountsMapOnly,
    ];

    /// Returns true when only a side whose map is not all in memory has the bug.
    pub fn is_of_small_map(self) -> bool {
        matches!(self, Bug::ReadsPageAlone | Bug::BelievesOldSummary)
    }

    /// Returns true when only a volume whose room is limited has the bug.
    pub fn is_of_limited_room(self) -> bool {
        matches!(
            self,
            Bug::AdmitsWithoutRoom | Bug::KeepsRoom | Bug::CountsMapOnly
        )
    }

    /// Returns the name of the bug on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Bug::FreesEarly => "frees-early",
            Bug::FreesPinned => "frees-pinned",
            Bug::MovesOverNewer => "moves-over-newer",
            Bug::OrdersOverNewer => "orders-over-newer",
            Bug::RefersBeforeWritten => "refers-before-written",
            Bug::CommitsUnflushed => "commits-unflushed",
            Bug::ReleasesBeforeDrop => "releases-before-drop",
            Bug::DropsBeforeCommit => "drops-before-commit",
            Bug::ForgetsWritten => "forgets-written",
            Bug::ReplaysBackwards => "replays-backwards",
            Bug::SkipsChecksums => "skips-checksums",
            Bug::DropsRunsEarly => "drops-runs-early",
            Bug::ForgetsDuringCommit => "forgets-during-commit",
            Bug::JournalsNoChecksums => "journals-no-checksums",
            Bug::DiscardsPlaceOnly => "discards-place-only",
            Bug::DiscardsChecksumOnly => "discards-checksum-only",
            Bug::ReadsPageAlone => "reads-page-alone",
            Bug::BelievesOldSummary => "believes-old-summary",
            Bug::FreesUncounted => "frees-uncounted",
            Bug::ListsFilledAsFree => "lists-filled-as-free",
            Bug::DiscardsEarly => "discards-early",
            Bug::AdmitsWithoutRoom => "admits-without-room",
            Bug::KeepsRoom => "keeps-room",
            Bug::CountsMapOnly => "counts-map-only",
        }
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for the current thread, or removes it with `None`.
///
/// # Panics
/// When a bug is to be planted in a build without debug assertions, which has no bugs to plant.
pub fn plant(bug: Option<Bug>) {
    #[cfg(debug_assertions)]
    PLANTED.set(bug);
    #[cfg(not(debug_assertions))]
    assert!(
        bug.is_none(),
        "a build without debug assertions has no bugs"
    );
}

/// Returns true if this bug is planted for the current thread.
#[cfg(debug_assertions)]
pub(super) fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Returns false: this build has no bugs to plant.
#[cfg(not(debug_assertions))]
pub(super) const fn is_planted(_: Bug) -> bool {
    false
}
