//! Planted bugs, which test the tests: each bug breaks one promise of the engine in a place where a
//! programmer might break it, and at least one test must find the bug ([`tests`]).
//!
//! Only two sets of tests can plant a bug. The tests of this crate plant it for one thread. The
//! tests of `interleavings/`, which build the crate themselves, plant it for all threads. In all
//! other builds, [`is_planted`] always returns false, so the shipped code never contains a path for
//! a bug.

#[cfg(test)]
mod tests;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A superblock is written before the content that its checkpoint names is durable.
    UnsyncedCheckpoint,
    /// A checkpoint names images that have not been written.
    NamesUnwritten,
    /// A checkpoint lets the log begin one block too late.
    TailTooLate,
    /// Opening ignores the patches in the checkpoint.
    ForgetsPatches,
    /// The checksum of an image is not verified.
    BelievesImages,
    /// An image is accepted even if it was written in another generation of its segment.
    BelievesLeftovers,
    /// The checksum of a log frame is not verified.
    BelievesFrames,
    /// Planted bug: a log frame of an earlier lap (pass over the ring of the log) is accepted as a
    /// frame of the current lap.
    TakesOlderLaps,
    /// A log frame is accepted although its incarnation is older than the minimum in the
    /// superblock.
    TrustsTheTail,
    /// Opening does not begin a new incarnation of the log.
    KeepsOpening,
    /// Planted bug: a segment is freed as soon as it has no live content, although a checkpoint
    /// names it.
    FreesEarly,
    /// Versions that only a snapshot sees are dropped when their leaf is rewritten.
    PrunesSnapshots,
    /// Range deletions in the delta of a leaf are not relogged when the log needs space.
    RelogsNoRanges,
    /// Bug: a checkpoint does not list the range deletions that leaves may lack.
    ForgetsDeletions,
    /// A leaf is rewritten without the range deletions that it has not applied yet.
    WritesWithoutDeletions,
    /// Readers ignore the range deletions that are kept beside the leaves.
    OverlooksDeletions,
    /// Bug: a group is made durable only if its first batch requests that.
    FollowsTheFirst,
    /// A transaction is not checked for conflicts with the other batches of its group.
    OverlooksRivals,
    /// Planted bug: a failed sync is retried once, and the second result is trusted.
    RetriesSync,
    /// Opening syncs the replayed part of the log without rewriting it first, although after an
    /// earlier failed sync the page cache can have wrongly marked that part as clean.
    BelievesTheCache,
    /// Writes are accepted after a failed write.
    GoesOn,
    /// Readers see a group before it is applied to the leaves.
    PublishesEarly,
    /// A reader that has descended to a leaf does not check that the structure of the tree is
    /// unchanged.
    LooksOnce,
    /// Content read for a node is accepted although the node has moved during the read.
    BelievesOldReads,
    /// Readers find the location of a part of a long value before the part is written to that
    /// location.
    PublishesUnwritten,
    /// A node or a part of a long value is considered unmoved if its location is the same, although
    /// its segment has a new generation.
    OverlooksGenerations,
}

/// Returns false: a bug can be planted in tests only.
#[cfg(not(any(test, interleaved)))]
pub(crate) const fn is_planted(_: Bug) -> bool {
    false
}

/// Returns true if this bug is planted for the current thread.
#[cfg(all(test, not(interleaved)))]
pub(crate) fn is_planted(bug: Bug) -> bool {
    tests::PLANTED.get() == Some(bug)
}

/// Bug that is planted for all threads.
#[cfg(interleaved)]
static PLANTED: std::sync::Mutex<Option<Bug>> = std::sync::Mutex::new(None);

/// Plants a bug for all threads, or removes it with `None`.
#[cfg(interleaved)]
pub fn plant(bug: Option<Bug>) {
    *PLANTED.lock().expect("nobody panics with it") = bug;
}

/// Returns true if this bug is planted for all threads.
#[cfg(interleaved)]
pub(crate) fn is_planted(bug: Bug) -> bool {
    *PLANTED.lock().expect("nobody panics with it") == Some(bug)
}
