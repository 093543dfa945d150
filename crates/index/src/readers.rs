//! Sequence numbers at which readers read. They determine the versions that must be kept.
//!
//! A thread that is about to drop old versions reads the visible sequence number and those of the
//! snapshots under one lock. A new snapshot is registered under the same lock. If the thread does
//! not see a new snapshot, the snapshot begins at the visible number that the thread has read, or
//! at a later one. The thread keeps all versions that readers need from that number on.

use crate::node::Seq;
use crate::planted::{Bug, is_planted};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;

/// The visible sequence number and the snapshots.
#[derive(Debug)]
pub(crate) struct Readers {
    visible: AtomicU64,
    snapshots: Mutex<BTreeMap<Seq, usize>>,
    batches_max: u64,
}

/// Statistics of the snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotStatistics {
    /// Number of open snapshots.
    pub open: usize,
    /// Number of batches since the oldest open snapshot.
    pub oldest_batches: u64,
}

impl Readers {
    pub(crate) fn new(visible: Seq, batches_max: u64) -> Readers {
        Readers {
            visible: AtomicU64::new(visible),
            snapshots: Mutex::new(BTreeMap::new()),
            batches_max,
        }
    }

    /// Returns the sequence number of the last batch that readers see.
    pub(crate) fn visible(&self) -> Seq {
        self.visible.load(Ordering::Acquire)
    }

    /// Makes all batches up to `seq` visible to readers.
    pub(crate) fn publish(&self, seq: Seq) {
        self.visible.store(seq, Ordering::Release);
    }

    /// Returns the oldest sequence number that is still guaranteed to readers. This is the sequence
    /// number of the oldest snapshot that is not too old. Without such a snapshot, it is the
    /// visible sequence number.
    pub(crate) fn oldest(&self) -> Seq {
        let snapshots = self.snapshots.lock();
        let visible = self.visible();
        let allowed = visible.saturating_sub(self.batches_max);
        let oldest = snapshots.range(allowed..).next();
        oldest.map_or(visible, |(seq, _)| (*seq).min(visible))
    }

    /// Returns, in order, the sequence numbers of the snapshots that are not too old, and the
    /// visible sequence number for future readers. A version that is visible at none of these
    /// numbers is not needed any more.
    pub(crate) fn held(&self) -> Vec<Seq> {
        let snapshots = self.snapshots.lock();
        let visible = self.visible();
        let allowed = visible.saturating_sub(self.batches_max);
        let held = snapshots.range(allowed..visible).map(|(seq, _)| *seq);
        let held = held.filter(|_| !is_planted(Bug::PrunesSnapshots));
        held.chain([visible]).collect()
    }

    /// Registers a new snapshot at the visible sequence number, and returns that number. While the
    /// snapshot is open and not too old, the versions that it sees are kept.
    pub(crate) fn hold(&self) -> Seq {
        let mut snapshots = self.snapshots.lock();
        let seq = self.visible();
        *snapshots.entry(seq).or_default() += 1;
        seq
    }

    /// Adds a holder to a sequence number that is held already.
    pub(crate) fn hold_at(&self, seq: Seq) {
        *self.snapshots.lock().entry(seq).or_default() += 1;
    }

    /// Ends one snapshot at `seq`.
    pub(crate) fn release(&self, seq: Seq) {
        let mut snapshots = self.snapshots.lock();
        if let Some(count) = snapshots.get_mut(&seq) {
            *count -= 1;
            if *count == 0 {
                snapshots.remove(&seq);
            }
        }
    }

    pub(crate) fn statistics(&self) -> SnapshotStatistics {
        let snapshots = self.snapshots.lock();
        let oldest = snapshots.keys().next();
        SnapshotStatistics {
            open: snapshots.values().sum(),
            oldest_batches: oldest.map_or(0, |seq| self.visible() - seq),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_oldest_snapshot_sees_is_kept_unless_it_is_too_old() {
        let readers = Readers::new(10, 100);
        assert_eq!(readers.oldest(), 10);
        let first = readers.hold();
        readers.publish(50);
        let second = readers.hold();
        assert_eq!((first, second, readers.oldest()), (10, 50, 10));
        assert_eq!(readers.held(), [10, 50]);
        readers.publish(111);
        assert_eq!(readers.oldest(), 50, "the first is 101 batches old");
        assert_eq!(readers.held(), [50, 111]);
        assert_eq!(readers.statistics().oldest_batches, 101);
        readers.release(first);
        readers.release(second);
        assert_eq!(readers.oldest(), 111);
        assert_eq!(readers.statistics(), SnapshotStatistics::default());
    }
}
