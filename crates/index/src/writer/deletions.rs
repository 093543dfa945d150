//! Deletions of ranges, a few leaves at a time.
//!
//! A deletion that touches a few leaves is taken in by them at once. A longer one counts at once as
//! well, for readers look for it beside the leaves
//! ([`Deletions`](crate::tree::deletions::Deletions)). Each group of batches makes some leaves take
//! it in, and each leaf that is written or logged again takes it in first. So no commit waits for
//! more than those, whatever the range. A leaf is read for it only if the deletion is of an earlier
//! opening, for then the image may be newer. Checkpoints list the deletions that leaves may lack,
//! and the log has them behind its tail, for a rebuild. A leaf must never get an image, or be
//! logged again, as of a batch after a deletion that it has not taken in.

use super::Writer;
use crate::batch::{Operation, push_operation};
use crate::error::Error;
use crate::limits::Limits;
use crate::node::{KeyRange, NodeId, Seq};
use crate::planted::{Bug, is_planted};
use crate::tree::Path;
use crate::tree::deletions::{Bounds, Deletion, take_in};
use std::ops::Bound;

/// A deletion that touches no more leaves than this is taken in at once.
const LEAVES_AT_ONCE: usize = 4;
/// Leaves that take in deletions after a group of batches.
pub(super) const LEAVES_IN_TURN: usize = 16;
/// Deletions that wait for leaves, at most: more of them wait for their turn themselves.
const WAITING_MAX: usize = 64;
/// Their bytes, as a share of the log, which has to have all of them.
const WAITING_SHARE: usize = 16;

/// A deletion that leaves may lack. One that every leaf has taken in stays until none of them needs
/// the log for it: a program that opens the index then finds these leaves without it.
#[derive(Debug)]
struct Waiting {
    deletion: Deletion,
    /// Leaves with keys before this one have it; none: all leaves.
    next: Option<Box<[u8]>>,
    /// Where the log has it.
    logged_at: u64,
    /// It was made before this opening, so that images may be newer.
    is_old: bool,
}

/// All of them, in the order of their batches.
#[derive(Debug, Default)]
pub(super) struct WaitingDeletions(Vec<Waiting>);

impl WaitingDeletions {
    /// Those of a checkpoint: the log is needed from `logged_at` on for them.
    pub(super) fn of(stored: Vec<Deletion>, logged_at: u64) -> WaitingDeletions {
        let mut waiting = WaitingDeletions::default();
        for deletion in stored {
            waiting.add(deletion, logged_at, true);
        }
        waiting
    }

    fn add(&mut self, deletion: Deletion, logged_at: u64, is_old: bool) {
        if self.has(&deletion) {
            return;
        }
        let at = self.0.partition_point(|w| w.deletion.seq <= deletion.seq);
        let waiting = Waiting {
            next: Some(deletion.start.clone()),
            deletion,
            logged_at,
            is_old,
        };
        self.0.insert(at, waiting);
    }

    /// True if a deletion is one of them, or a part of one.
    pub(super) fn has(&self, deletion: &Deletion) -> bool {
        let is_it = |w: &Waiting| w.deletion.seq == deletion.seq && w.deletion.covers(deletion);
        self.0.iter().any(is_it)
    }

    /// True if no leaf lacks any.
    fn is_done(&self) -> bool {
        self.0.iter().all(|waiting| waiting.next.is_none())
    }

    fn bytes(&self) -> usize {
        let bytes =
            |w: &Waiting| w.deletion.start.len() + w.deletion.end.as_ref().map_or(0, |e| e.len());
        self.0.iter().map(bytes).sum()
    }

    /// The first position of the log that has one that leaves lack.
    fn logged_from(&self) -> Option<u64> {
        let lacked = self.0.iter().filter(|waiting| waiting.next.is_some());
        lacked.map(|waiting| waiting.logged_at).min()
    }

    /// What a checkpoint lists.
    pub(super) fn all(&self) -> impl Iterator<Item = &Deletion> {
        self.0.iter().map(|waiting| &waiting.deletion)
    }
}

impl Writer {
    /// Deletes a range: at once in a few leaves, or, if it has more of them, as a deletion that
    /// they take in later.
    pub(super) fn delete_range(
        &mut self,
        seq: Seq,
        (start, end): (&[u8], Option<&[u8]>),
        position: u64,
    ) -> Result<(), Error> {
        if end.is_some_and(|end| end <= start) {
            return Ok(());
        }
        let deletion = Deletion {
            seq,
            start: start.into(),
            end: end.map(Into::into),
        };
        if self.options.paper.is_none() && self.has_many_leaves(start, end)? {
            self.let_wait(deletion, position);
            return Ok(());
        }
        self.delete_at_once(&deletion, position)
    }

    fn has_many_leaves(&self, start: &[u8], end: Option<&[u8]>) -> Result<bool, Error> {
        let mut at: Box<[u8]> = start.into();
        for _ in 0..LEAVES_AT_ONCE {
            match self.tree.upper_edge(&at)? {
                Some(edge) if end.is_none_or(|end| *edge < *end) => at = edge,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// A deletion counts from now on, and leaves take it in later. It is in the log at `position`.
    fn let_wait(&mut self, deletion: Deletion, position: u64) {
        let is_old = !self.log.is_taken_up();
        self.deletions.add(deletion, position, is_old);
        self.show_deletions();
    }

    /// Every leaf that the range touches gets a note of it.
    pub(super) fn delete_at_once(
        &mut self,
        deletion: &Deletion,
        position: u64,
    ) -> Result<(), Error> {
        let oldest = self.readers.oldest();
        let end = deletion.end.as_deref();
        let mut at = deletion.start.clone();
        while end.is_none_or(|end| *at < *end) {
            // Cut to the leaf, so that it can be logged again for this leaf alone.
            let edge = self.tree.upper_edge(&at)?;
            let upper = upper_of(end, edge.as_deref());
            self.change_leaf(&at, position, |delta| {
                delta.insert_range(Bound::Included(&at), upper, deletion.seq, oldest);
            })?;
            match edge {
                Some(edge) => at = edge,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Readers find what leaves lack.
    pub(super) fn show_deletions(&self) {
        let lacked = self
            .deletions
            .0
            .iter()
            .filter(|waiting| waiting.next.is_some());
        let lacked = lacked.map(|waiting| waiting.deletion.clone());
        self.tree.deletions.set(lacked.collect());
    }

    /// True if a batch may bring so many deletions more.
    pub(crate) fn may_delete(&self, count: usize) -> bool {
        let waiting = &self.deletions;
        let bytes_max =
            self.log.ring_blocks() as usize * crate::storage::BLOCK_BYTES / WAITING_SHARE;
        waiting.0.is_empty()
            || (waiting.0.len() + count <= WAITING_MAX && waiting.bytes() < bytes_max)
    }

    /// Makes room for more deletions, by a step.
    pub(crate) fn advance_deletions(&mut self) -> Result<(), Error> {
        if self.deletions.is_done() {
            // Every leaf has them, but from the log alone: where these leaves are written, none is
            // needed any more.
            self.fold_oldest()?;
            self.needed_from();
        }
        // In which leaves take them in.
        self.keep_house(1, 0)
    }

    /// Makes so many leaves take in deletions that they lack. False if none lacks any.
    pub(super) fn take_in_some(&mut self, leaves: usize) -> Result<bool, Error> {
        if self.deletions.is_done() {
            return Ok(false);
        }
        let result = (0..leaves).try_for_each(|_| self.take_in_next());
        self.show_deletions();
        result.map(|()| true)
    }

    /// The first leaf that lacks the oldest deletion takes in all that it lacks.
    fn take_in_next(&mut self) -> Result<(), Error> {
        let next = self
            .deletions
            .0
            .iter()
            .find_map(|waiting| waiting.next.clone());
        let Some(key) = next else { return Ok(()) };
        let (path, id) = self.tree.path(&key)?;
        let range = super::fold::range_of(&path, &[id]);
        self.take_in(id, &range)?;
        self.figures.taken_in += 1;
        for waiting in &mut self.deletions.0 {
            let Some(next) = waiting.next.take() else {
                continue;
            };
            let is_here = range.from <= next && range.to.as_ref().is_none_or(|to| next < *to);
            waiting.next = match (is_here, &range.to) {
                (false, _) => Some(next),
                (true, None) => None,
                (true, Some(to)) => {
                    let end = waiting.deletion.end.as_ref();
                    end.is_none_or(|end| to < end).then(|| to.clone())
                }
            };
        }
        Ok(())
    }

    /// A leaf at the end of a path takes in all deletions that it lacks.
    pub(super) fn take_in_at(&mut self, path: &Path, id: NodeId) -> Result<(), Error> {
        if self.deletions.is_done() || is_planted(Bug::WritesWithoutDeletions) {
            return Ok(());
        }
        self.take_in(id, &super::fold::range_of(path, &[id]))
    }

    /// A leaf takes in all deletions that it lacks, wherever it is.
    pub(super) fn take_in_of(&mut self, id: NodeId) -> Result<(), Error> {
        if self.deletions.is_done() {
            return Ok(());
        }
        let path = self.path_of(id)?;
        self.take_in_at(&path, id)
    }

    /// A leaf with the keys of `range` takes in all deletions that it lacks.
    fn take_in(&mut self, id: NodeId, range: &KeyRange) -> Result<(), Error> {
        let oldest = self.readers.oldest();
        for number in 0..self.deletions.0.len() {
            let waiting = &self.deletions.0[number];
            let (deletion, logged_at) = (waiting.deletion.clone(), waiting.logged_at);
            let Some((start, end)) = shared(&deletion, range).filter(|_| waiting.next.is_some())
            else {
                continue;
            };
            let (is_old, folded_at) = (
                waiting.is_old,
                self.tree.slots.get(id).node.read().folded_at,
            );
            // It took it in when it was written, and what has changed since is newer. Of a deletion
            // of an earlier opening the second is not so: the log may have brought older changes
            // since.
            if folded_at >= deletion.seq && !is_old {
                continue;
            }
            let lsn = match is_old && folded_at < deletion.seq {
                true => self.tree.leaf_image(id)?.map_or(0, |image| image.lsn()),
                // The image is of this opening, or of before it and then older than the deletion.
                false => folded_at,
            };
            let has_changes = self.tree.slots.get(id).node.read().delta.is_some();
            if lsn < deletion.seq || has_changes {
                self.change_late(id, logged_at, |delta| {
                    take_in(delta, &deletion, (start, end), lsn, oldest);
                });
            }
        }
        Ok(())
    }

    /// The log has them again from its head on, those that leaves lack and that it has before
    /// `target` only. They are carried as they were, with the numbers of their batches: only for a
    /// rebuild, which has no checkpoint. False if there is none.
    pub(super) fn carry_deletions(&mut self, target: u64) -> Result<bool, Error> {
        let is_due = |w: &Waiting| w.next.is_some() && w.logged_at < target;
        if !self.deletions.0.iter().any(is_due) {
            return Ok(false);
        }
        let storage = self.storage();
        self.log.write_out(&*storage, false)?;
        let position = self.log.head();
        let bytes_max = self
            .frame_bytes()
            .min(Limits::of(&self.tree.geometry).batch_bytes_max);
        let mut records = Vec::new();
        for waiting in self.deletions.0.iter_mut().filter(|w| is_due(w)) {
            if !records.is_empty() && records.len() >= bytes_max / 2 {
                break;
            }
            let Deletion { seq, start, end } = &waiting.deletion;
            let operation = Operation::RangeDeleted {
                seq: *seq,
                start,
                end: end.as_deref(),
            };
            push_operation(&mut records, operation);
            waiting.logged_at = position;
        }
        self.log.log_again(&*storage, &records)?;
        Ok(true)
    }

    /// The first position of the log that is needed for a deletion that leaves lack. Those that
    /// every leaf has, and no leaf from the log alone, which leaves need from `leaves_from` on, are
    /// forgotten.
    pub(super) fn deletions_needed_from(&mut self, leaves_from: Option<u64>) -> Option<u64> {
        let is_logged = |w: &Waiting| leaves_from.is_some_and(|from| from <= w.logged_at);
        self.deletions
            .0
            .retain(|w| w.next.is_some() || is_logged(w));
        self.deletions.logged_from()
    }
}

/// The bounds of what a deletion deletes of the keys of a leaf: with a start that is in the leaf.
fn shared<'a>(deletion: &'a Deletion, range: &'a KeyRange) -> Option<Bounds<'a>> {
    let start = deletion.start.as_ref().max(range.from.as_ref());
    let (end, edge) = (deletion.end.as_deref(), range.to.as_deref());
    let is_empty = |end: Option<&[u8]>| end.is_some_and(|end| end <= start);
    match is_empty(end) || is_empty(edge) {
        true => None,
        false => Some((Bound::Included(start), upper_of(end, edge))),
    }
}

/// The lesser of two ends, of which none is the end of all keys.
fn upper_of<'a>(end: Option<&'a [u8]>, edge: Option<&'a [u8]>) -> Bound<&'a [u8]> {
    match (end, edge) {
        (Some(end), Some(edge)) => Bound::Excluded(end.min(edge)),
        (Some(end), None) | (None, Some(end)) => Bound::Excluded(end),
        (None, None) => Bound::Unbounded,
    }
}
