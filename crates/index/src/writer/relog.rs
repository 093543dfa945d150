//! Making room in the log: changes that exist only in the log are relogged, densely, before the
//! ring wraps around to them.
//!
//! A commit of one change fills a block of the log, although the change itself is a hundredth of
//! the block. Writing a leaf back only because the log wraps around would cost a whole image for
//! one change. So the leaf's delta is relogged together with many other deltas. But if the deltas
//! themselves take a large part of the log, relogging would never end. Leaves are then written back
//! instead.

use super::Writer;
use super::deletions::LEAVES_IN_TURN;
use super::dirty::Logged;
use crate::batch::{Operation, push_operation};
use crate::error::Error;
use crate::limits::Limits;
use crate::node::{Kind, NodeId};
use crate::planted::{Bug, is_planted};
use crate::storage::BLOCK_BYTES;
use std::ops::Bound;

/// Approximate maximum number of bytes of operations in a frame of relogged records; in a short log
/// the maximum is a fraction of the log.
const FRAME_BYTES_MAX: usize = 60 << 10;
/// Minimum number of frames of relogged records that fit into the log together. In a short log, the
/// length of the log divided by this number is the maximum length of a frame.
const FRAMES_MIN: usize = 32;

impl Writer {
    /// Returns the first log position that is still needed, either by a leaf or by a range deletion
    /// that some leaf has not applied. Returns the head of the log if no part of the log is needed.
    pub(super) fn needed_from(&mut self) -> u64 {
        let leaves_from = self.leaves_needed_from();
        let deletions_from = self.deletions_needed_from(leaves_from);
        let needed_from = leaves_from.into_iter().chain(deletions_from).min();
        needed_from.unwrap_or(self.log.head())
    }

    /// Returns the first log position that a leaf needs; `None` if no leaf needs the log.
    fn leaves_needed_from(&mut self) -> Option<u64> {
        let first = self.dirty.first_logged(&self.tree.slots);
        first.map(|(position, _)| position)
    }

    fn is_needed_before(&mut self, target: u64) -> bool {
        self.leaves_needed_from().is_some_and(|from| from < target)
    }

    /// Returns true if deltas can be relogged and relogging them frees space in the log. The log
    /// must have room for the new records, and the deltas must take less memory than a quarter of
    /// the size of the log.
    fn may_relog(&self) -> bool {
        let has_room = self.log.free_blocks() as usize * BLOCK_BYTES > self.frame_bytes() * 2;
        has_room && self.tree.memory.delta_bytes() < self.log_bytes() as u64 / 4
    }

    fn log_bytes(&self) -> usize {
        self.log.ring_blocks() as usize * BLOCK_BYTES
    }

    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_BYTES_MAX.min(self.log_bytes() / FRAMES_MIN)
    }

    /// Frees some of the log before `target`: relogs one frame of records, or writes back one leaf.
    /// Returns false if the log before `target` is not needed.
    pub(super) fn free_log(&mut self, target: u64) -> Result<bool, Error> {
        if self.needed_from() >= target {
            return Ok(false);
        }
        if !self.may_relog() {
            match self.is_needed_before(target) {
                true => self.consolidate_first_logged()?,
                // The log has no room to relog the deletions. So leaves apply the deletions, and
                // are then written back.
                false => _ = self.take_in_some(LEAVES_IN_TURN)?,
            }
        } else if !self.relog_deletions(target)? {
            self.relog(target)?;
        }
        Ok(true)
    }

    /// Writes back the leaf whose changes are first in the log.
    fn consolidate_first_logged(&mut self) -> Result<(), Error> {
        if let Some((_, id)) = self.dirty.first_logged(&self.tree.slots) {
            // The leaf stays in the queue until it is written: the leaves in the queue determine
            // the position from which the log is needed.
            self.write_leaf_back(id)?;
        }
        Ok(())
    }

    /// Relogs the deltas of leaves that need the log before `target`, until a frame is full.
    fn relog(&mut self, target: u64) -> Result<(), Error> {
        let storage = self.storage();
        self.log.write_out(&*storage, false)?;
        let frame_bytes = self.frame_bytes();
        let mut records = Vec::with_capacity(frame_bytes * 2);
        let mut leaves: Vec<Logged> = Vec::new();
        let longest = Limits::of(&self.tree.geometry).batch_bytes_max;
        while records.len() < frame_bytes
            && let Some((position, id)) = self.dirty.first_logged(&self.tree.slots)
            && position < target
        {
            // A relogged delta gets the current sequence number, so the leaf must first apply the
            // range deletions that it lacks. Such a deletion may have an earlier log position than
            // the delta. So the leaf is still the first in the queue after it has applied the
            // deletions, unless it has no changes left.
            self.take_in_of(id)?;
            let first = self.dirty.first_logged(&self.tree.slots);
            if first.is_none_or(|(_, first)| first != id) {
                continue;
            }
            let before = records.len();
            self.push_delta(id, &mut records);
            if records.len() > longest {
                records.truncate(before);
                break;
            }
            leaves.extend(self.dirty.take_first_logged(&self.tree.slots));
        }
        let blocks = (records.len() / BLOCK_BYTES + 2) as u64;
        if leaves.is_empty() || self.log.free_blocks() < blocks {
            // The changes cannot be relogged: the first delta is too long for any frame, or the
            // free part of the log is too short for the records.
            self.dirty.put_back(leaves);
            return self.consolidate_first_logged();
        }
        let position = self.log.head();
        if let Err(error) = self.log.log_again(&*storage, &records) {
            self.dirty.put_back(leaves);
            return Err(error);
        }
        self.statistics.relogged += leaves.len() as u64;
        self.dirty.logged_again(leaves, &self.tree.slots, position);
        Ok(())
    }

    /// Appends the newest version of every key of a leaf's delta, and the delta's range deletions.
    fn push_delta(&self, id: NodeId, records: &mut Vec<u8>) {
        let node = self.tree.slots.get(id).node.read();
        let Some(delta) = &node.delta else { return };
        let ranges = match is_planted(Bug::RelogsNoRanges) {
            true => &[],
            false => delta.ranges(),
        };
        for range in ranges {
            let start = match &range.start {
                Bound::Included(start) | Bound::Excluded(start) => &start[..],
                Bound::Unbounded => &[],
            };
            let end = match &range.end {
                Bound::Included(end) | Bound::Excluded(end) => Some(&end[..]),
                Bound::Unbounded => None,
            };
            push_operation(records, Operation::DeleteRange { start, end });
        }
        delta.newest(&mut |row| {
            let operation = match row.kind {
                Kind::Put | Kind::Blob => Operation::Put {
                    key: row.key,
                    value: row.value,
                },
                Kind::Delete => Operation::Delete { key: row.key },
            };
            push_operation(records, operation);
        });
    }
}
