//! Journal of metadata, as in ext3 and ReiserFS: the transactions, and the locations of their
//! blocks in the ring of the journal. This module does no I/O.
//!
//! The open transaction collects changes while the previous transaction is being committed. A
//! commit writes descriptors, the changed blocks, and a commit block, contiguously in the ring.
//! Before the ring is overwritten, a checkpoint must write the blocks in the ring to their home
//! locations.

use std::collections::BTreeSet;
use std::ops::Range;

use super::pages::FileId;

/// Number of blocks that one descriptor lists; each entry has 8 bytes.
const BLOCKS_IN_DESCRIPTOR: usize = 500;

/// Metadata changes that become durable together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// Changed blocks of metadata.
    pub blocks: BTreeSet<u32>,
    /// Files whose new data must be on the device before the commit.
    pub files: BTreeSet<FileId>,
}

/// The journal of metadata; see the module.
pub(crate) struct Journal {
    ring: Range<u32>,
    next: u32,
    used: u32,
    blocks_max: usize,
    running: Transaction,
    /// Number of commits begun, and number of commits completed.
    begun: u64,
    done: u64,
}

impl Journal {
    /// Creates an empty journal whose ring has these blocks of the device. A transaction can have
    /// at most `blocks_max` blocks, and at most a quarter of the ring.
    pub(crate) fn new(ring: Range<u32>, blocks_max: usize) -> Journal {
        let quarter = (ring.len() / 4).max(1);
        Journal {
            next: ring.start,
            ring,
            used: 0,
            blocks_max: blocks_max.min(quarter),
            running: Transaction::default(),
            begun: 0,
            done: 0,
        }
    }

    /// Adds a changed block to the open transaction.
    pub(crate) fn join(&mut self, block: u32) {
        self.running.blocks.insert(block);
    }

    /// Adds a file with newly allocated blocks to the open transaction: its data must be written
    /// before the commit.
    pub(crate) fn order(&mut self, file: FileId) {
        self.running.files.insert(file);
    }

    /// Removes a deleted file from the open transaction.
    pub(crate) fn forget_file(&mut self, file: FileId) {
        self.running.files.remove(&file);
    }

    /// Returns true if the open transaction must be committed before it accepts more blocks.
    pub(crate) fn is_full(&self) -> bool {
        self.running.blocks.len() >= self.blocks_max
    }

    /// Returns true if a block is in the open transaction.
    pub(crate) fn has(&self, block: u32) -> bool {
        self.running.blocks.contains(&block)
    }

    /// Closes the open transaction and returns it to be committed; `None` if it has no changes.
    pub(crate) fn begin_commit(&mut self) -> Option<Transaction> {
        if self.running == Transaction::default() {
            return None;
        }
        self.begun += 1;
        Some(std::mem::take(&mut self.running))
    }

    /// Marks the commit that was begun last as durable.
    pub(crate) fn end_commit(&mut self) {
        self.done += 1;
    }

    /// Returns the number of the commit that makes all changes so far durable.
    pub(crate) fn awaited_commit(&self) -> u64 {
        self.begun + u64::from(self.running != Transaction::default())
    }

    /// Returns the number of completed commits.
    pub(crate) fn commits(&self) -> u64 {
        self.done
    }

    /// Returns true if a transaction of `blocks` blocks would leave less than a quarter of the ring
    /// free, so that a checkpoint must precede the transaction.
    pub(crate) fn needs_checkpoint(&self, blocks: usize) -> bool {
        let length = self.ring.len() as u32;
        self.used + Journal::length(blocks) > length - length / 4
    }

    /// Frees the whole ring, after all its blocks have been written to their home locations.
    pub(crate) fn has_been_checkpointed(&mut self) {
        self.used = 0;
    }

    fn length(blocks: usize) -> u32 {
        (blocks + blocks.div_ceil(BLOCKS_IN_DESCRIPTOR).max(1) + 1) as u32
    }

    /// Allocates blocks of the ring for a transaction of `blocks` blocks. Returns the allocated
    /// blocks in write order; the last one is the commit block.
    pub(crate) fn places(&mut self, blocks: usize) -> Vec<u32> {
        let length = Journal::length(blocks).min(self.ring.len() as u32);
        self.used += length;
        (0..length)
            .map(|_| {
                let at = self.next;
                self.next = match at + 1 {
                    end if end == self.ring.end => self.ring.start,
                    next => next,
                };
                at
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a ring of 16 blocks, a transaction of 3 blocks uses 5 blocks, with its descriptor and its
    /// commit block. At most 12 blocks are allowed to be in use.
    #[test]
    fn the_ring_goes_round_and_asks_for_a_checkpoint() {
        let mut journal = Journal::new(100..116, 1000);
        assert_eq!(journal.places(3), [100, 101, 102, 103, 104]);
        assert_eq!(journal.places(3), [105, 106, 107, 108, 109]);
        assert!(journal.needs_checkpoint(3) && !journal.needs_checkpoint(0));
        journal.has_been_checkpointed();
        assert!(!journal.needs_checkpoint(3));
        assert_eq!(journal.places(6), [110, 111, 112, 113, 114, 115, 100, 101]);
    }

    #[test]
    fn a_transaction_takes_what_comes_until_it_is_committed() {
        let mut journal = Journal::new(0..64, 2);
        assert_eq!(journal.begin_commit(), None);
        assert_eq!(journal.awaited_commit(), 0);
        journal.join(7);
        journal.join(7);
        journal.order(3);
        assert!(!journal.is_full());
        assert_eq!(journal.awaited_commit(), 1);
        journal.join(9);
        assert!(journal.is_full());
        let taken = journal.begin_commit().unwrap();
        assert_eq!(taken.blocks.into_iter().collect::<Vec<_>>(), [7, 9]);
        assert_eq!(taken.files.into_iter().collect::<Vec<_>>(), [3]);
        assert_eq!((journal.awaited_commit(), journal.commits()), (1, 0));
        journal.end_commit();
        assert_eq!(journal.commits(), 1);
    }
}
