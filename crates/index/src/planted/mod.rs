//! Planted bugs, so that the tests are tested: each breaks one promise of the engine in the place
//! where a programmer might, and some life of the tests must find it ([`tests`]).
//!
//! Only the tests of this crate can plant one, for one thread, and those of `interleavings/`, which
//! build the crate for themselves. Everywhere else [`is_planted`] is a constant, so that the code
//! that ships has no path for any of them.

#[cfg(test)]
mod tests;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A superblock is written before what its checkpoint names is durable.
    UnsyncedCheckpoint,
    /// A checkpoint names images that have not been written.
    NamesUnwritten,
    /// A checkpoint lets the log begin one block too late.
    TailTooLate,
    /// Patches are not taken up when the index is opened.
    ForgetsPatches,
    /// The checksum of an image is not looked at.
    BelievesImages,
    /// An image counts whatever filling of its segment it was written for.
    BelievesLeftovers,
    /// The checksum of a frame of the log is not looked at.
    BelievesFrames,
    /// A frame of an earlier lap of the log is taken for one of this.
    TakesOlderLaps,
    /// A frame of the log is taken whatever opening the superblock says that it must be of.
    TrustsTheTail,
    /// A log goes on in the opening that it was found in.
    KeepsOpening,
    /// A segment is free as soon as nothing of it is in use, though a checkpoint names it.
    FreesEarly,
    /// What only a snapshot sees goes when its leaf is written anew.
    PrunesSnapshots,
    /// Deletions of ranges are not logged again when the log comes round.
    CarriesNoRanges,
    /// A checkpoint does not list the deletions of ranges that leaves may lack.
    ForgetsDeletions,
    /// A leaf is written anew without the deletions of ranges that it lacks.
    WritesWithoutDeletions,
    /// Readers do not look for deletions of ranges beside the leaves.
    OverlooksDeletions,
    /// A group is as durable as its first batch has asked.
    FollowsTheFirst,
    /// Transactions of one group do not see each other.
    OverlooksRivals,
    /// A sync that has failed is tried once more, and believed.
    RetriesSync,
    /// Opening takes what it finds in the log for saved after a sync of its own.
    BelievesTheCache,
    /// Writing goes on after a failure.
    GoesOn,
    /// Readers see a group before it is in the leaves.
    PublishesEarly,
    /// A reader who has gone down to a leaf does not ask whether it is still the one.
    LooksOnce,
    /// What was read of a node counts though the node was moved meanwhile.
    BelievesOldReads,
    /// Readers find the place of a part of a long value before the part is written there.
    PublishesUnwritten,
    /// A part of a long value is where it was if its place is the same, though the segment was
    /// filled anew meanwhile.
    OverlooksFillings,
}

/// Never, but in tests.
#[cfg(not(any(test, interleaved)))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

/// True if this thread is to have this bug.
#[cfg(all(test, not(interleaved)))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    tests::PLANTED.get() == Some(bug)
}

/// The bug that all threads have.
#[cfg(interleaved)]
static PLANTED: std::sync::Mutex<Option<Bug>> = std::sync::Mutex::new(None);

/// All threads have this bug from now on.
#[cfg(interleaved)]
pub fn plant(bug: Option<Bug>) {
    *PLANTED.lock().expect("nobody panics with it") = bug;
}

/// True if all threads are to have this bug.
#[cfg(interleaved)]
pub(crate) fn is_planted(bug: Bug) -> bool {
    *PLANTED.lock().expect("nobody panics with it") == Some(bug)
}
