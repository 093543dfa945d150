//! Making room in the log: changes that are still only there are logged again, densely, before the
//! ring comes round to them.
//!
//! A commit of one change fills a block of the log; the change itself is a hundredth of it. Writing
//! its leaf back just because the log comes round would cost a whole image for one change, so its
//! delta is put into the log once more beside many others. Where deltas take a large part of the
//! log themselves, carrying them would go in circles, and leaves are written back instead.

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

/// Operations in a frame of carried records, in bytes, at most about this; in a short log a part of
/// it.
const FRAME_BYTES_MAX: usize = 60 << 10;
/// Frames of carried records that go into the log.
const FRAMES_MIN: usize = 32;

impl Writer {
    /// The first position in the log that some leaf needs, or a deletion of a range that not every
    /// leaf has taken in, or the head.
    pub(super) fn needed_from(&mut self) -> u64 {
        let leaves_from = self.leaves_needed_from();
        let deletions_from = self.deletions_needed_from(leaves_from);
        let needed_from = leaves_from.into_iter().chain(deletions_from).min();
        needed_from.unwrap_or(self.log.head())
    }

    /// The first position in the log that some leaf needs, if one does.
    fn leaves_needed_from(&mut self) -> Option<u64> {
        let first = self.dirty.first_logged(&self.tree.slots);
        first.map(|(position, _)| position)
    }

    fn is_needed_before(&mut self, target: u64) -> bool {
        self.leaves_needed_from().is_some_and(|from| from < target)
    }

    /// True if deltas take so little of the log that logging them again gives room, and there is
    /// room to do it.
    fn may_carry(&self) -> bool {
        let has_room = self.log.free_blocks() as usize * BLOCK_BYTES > self.frame_bytes() * 2;
        has_room && self.tree.memory.delta_bytes() < self.log_bytes() as u64 / 4
    }

    fn log_bytes(&self) -> usize {
        self.log.ring_blocks() as usize * BLOCK_BYTES
    }

    pub(super) fn frame_bytes(&self) -> usize {
        FRAME_BYTES_MAX.min(self.log_bytes() / FRAMES_MIN)
    }

    /// Frees some of the log before `target`: one frame of carried records, or one leaf written
    /// back. False if nothing before it is needed.
    pub(super) fn free_log(&mut self, target: u64) -> Result<bool, Error> {
        if self.needed_from() >= target {
            return Ok(false);
        }
        if !self.may_carry() {
            match self.is_needed_before(target) {
                true => self.fold_first_logged()?,
                // There is no room to log deletions again, so leaves take them in, and are written
                // for it.
                false => _ = self.take_in_some(LEAVES_IN_TURN)?,
            }
        } else if !self.carry_deletions(target)? {
            self.carry(target)?;
        }
        Ok(true)
    }

    /// Writes the leaf back whose changes are first in the log.
    fn fold_first_logged(&mut self) -> Result<(), Error> {
        if let Some((_, id)) = self.dirty.first_logged(&self.tree.slots) {
            // It is in the queue until it is written: what is needed of the log is known by that.
            self.write_leaf_back(id)?;
        }
        Ok(())
    }

    /// Logs the deltas of the leaves again that are needed before `target`, as many as make a
    /// frame.
    fn carry(&mut self, target: u64) -> Result<(), Error> {
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
            // What is logged again is as of now. This may bring it forward, and it stays the first,
            // unless nothing of its changes is left.
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
            // The first is too long for any frame, or they are for what room there is.
            self.dirty.put_back(leaves);
            return self.fold_first_logged();
        }
        let position = self.log.head();
        if let Err(error) = self.log.log_again(&*storage, &records) {
            self.dirty.put_back(leaves);
            return Err(error);
        }
        self.figures.carried += leaves.len() as u64;
        self.dirty.logged_again(leaves, &self.tree.slots, position);
        Ok(())
    }

    /// Appends the newest of every key of a leaf's delta.
    fn push_delta(&self, id: NodeId, records: &mut Vec<u8>) {
        let node = self.tree.slots.get(id).node.read();
        let Some(delta) = &node.delta else { return };
        let ranges = match is_planted(Bug::CarriesNoRanges) {
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
