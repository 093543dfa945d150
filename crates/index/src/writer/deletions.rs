//! Range deletions, applied to a few leaves at a time.
//!
//! A deletion that concerns only a few leaves is applied to them immediately. A deletion of a
//! longer range also takes effect immediately, because readers consult the list of such deletions
//! in addition to the leaves ([`Deletions`](crate::tree::deletions::Deletions)). After each group
//! of batches some leaves apply the deletion, and each leaf that is rewritten or relogged applies
//! it first. So a commit waits for a few leaves at most, however long the range is. A leaf is read
//! from the storage to apply a deletion only if the deletion is of an earlier incarnation: the
//! image of the leaf may then be newer than the deletion. Checkpoints list the deletions that
//! leaves may lack. The log also has these deletions, after its tail, so that a rebuild finds them.
//! A leaf that has not applied a deletion must never be written or relogged with a sequence number
//! above that of the deletion.

use super::Writer;
use crate::batch::{Operation, push_operation};
use crate::error::Error;
use crate::limits::Limits;
use crate::node::{KeyRange, NodeId, Seq};
use crate::planted::{Bug, is_planted};
use crate::tree::Path;
use crate::tree::deletions::{Bounds, Deletion, take_in};
use std::ops::Bound;

/// A range deletion that concerns at most this number of leaves is applied to them immediately.
const LEAVES_AT_ONCE: usize = 4;
/// Number of leaves to which waiting range deletions are applied after each group of batches.
pub(super) const LEAVES_IN_TURN: usize = 16;
/// Maximum number of deletions in the list: a thread that adds further deletions has to wait.
const WAITING_MAX: usize = 64;
/// Divisor of the length of the log: the quotient limits the total bytes of the waiting deletions,
/// because the log has to hold all of them.
const WAITING_SHARE: usize = 16;

/// A range deletion that some leaves might not have applied yet. Even after every leaf has applied
/// it, it stays in the list while some leaf needs the log from the deletion's log position or from
/// an earlier position. The reason is a crash: the next opening can find such a leaf in its state
/// before the deletion, and must then apply the deletion again.
#[derive(Debug)]
struct Waiting {
    deletion: Deletion,
    /// Key before which every leaf has applied the deletion; `None` once every leaf has applied it.
    next: Option<Box<[u8]>>,
    /// Log position of the deletion.
    logged_at: u64,
    /// True if the deletion was made in an earlier incarnation. An image can then look newer than
    /// the deletion although it lacks the deletion.
    is_old: bool,
}

/// All waiting deletions, in the order of their batches.
#[derive(Debug, Default)]
pub(super) struct WaitingDeletions(Vec<Waiting>);

impl WaitingDeletions {
    /// Creates the list from the deletions of a checkpoint. All of these deletions need the log
    /// from `logged_at` on.
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

    /// Returns true if the list has `deletion`, or a deletion of the same batch that covers it.
    pub(super) fn has(&self, deletion: &Deletion) -> bool {
        let is_it = |w: &Waiting| w.deletion.seq == deletion.seq && w.deletion.covers(deletion);
        self.0.iter().any(is_it)
    }

    /// Returns true if no leaf lacks any deletion of the list.
    fn is_done(&self) -> bool {
        self.0.iter().all(|waiting| waiting.next.is_none())
    }

    fn bytes(&self) -> usize {
        let bytes =
            |w: &Waiting| w.deletion.start.len() + w.deletion.end.as_ref().map_or(0, |e| e.len());
        self.0.iter().map(bytes).sum()
    }

    /// Returns the lowest log position of the range deletions that some leaves have not applied
    /// yet; `None` if there is none.
    fn logged_from(&self) -> Option<u64> {
        let lacked = self.0.iter().filter(|waiting| waiting.next.is_some());
        lacked.map(|waiting| waiting.logged_at).min()
    }

    /// Returns the deletions that a checkpoint lists.
    pub(super) fn all(&self) -> impl Iterator<Item = &Deletion> {
        self.0.iter().map(|waiting| &waiting.deletion)
    }
}

impl Writer {
    /// Deletes a range. If the range concerns only a few leaves, the deletion is applied to them
    /// immediately; otherwise the leaves apply it later.
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

    /// Makes a deletion effective for readers immediately; the leaves apply the deletion later. The
    /// deletion is in the log at `position`.
    fn let_wait(&mut self, deletion: Deletion, position: u64) {
        let is_old = !self.log.is_taken_up();
        self.deletions.add(deletion, position, is_old);
        self.show_deletions();
    }

    /// Immediately adds the deletion to the delta of every leaf that it concerns.
    pub(super) fn delete_at_once(
        &mut self,
        deletion: &Deletion,
        position: u64,
    ) -> Result<(), Error> {
        let oldest = self.readers.oldest();
        let end = deletion.end.as_deref();
        let mut at = deletion.start.clone();
        while end.is_none_or(|end| *at < *end) {
            // The range is limited to the keys of each leaf, so that it can be relogged together
            // with that leaf alone.
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

    /// Shows readers the deletions that leaves lack.
    pub(super) fn show_deletions(&self) {
        let lacked = self
            .deletions
            .0
            .iter()
            .filter(|waiting| waiting.next.is_some());
        let lacked = lacked.map(|waiting| waiting.deletion.clone());
        self.tree.deletions.set(lacked.collect());
    }

    /// Returns true if the list has room for `count` more deletions. An empty list always has room.
    pub(crate) fn may_delete(&self, count: usize) -> bool {
        let waiting = &self.deletions;
        let bytes_max =
            self.log.ring_blocks() as usize * crate::storage::BLOCK_BYTES / WAITING_SHARE;
        waiting.0.is_empty()
            || (waiting.0.len() + count <= WAITING_MAX && waiting.bytes() < bytes_max)
    }

    /// Takes one step towards making room in the list for more deletions.
    pub(crate) fn advance_deletions(&mut self) -> Result<(), Error> {
        if self.deletions.is_done() {
            // Every leaf has applied the deletions, but some leaves have the result only in the
            // log. Once these leaves are written back, no deletion is needed any more.
            self.consolidate_oldest()?;
            self.needed_from();
        }
        // Maintenance makes further leaves apply the deletions.
        self.maintain(1, 0)
    }

    /// Applies waiting deletions to at most `leaves` leaves. Each of these leaves gets all
    /// deletions that it lacks. Returns false if no leaf lacks any deletion.
    pub(super) fn take_in_some(&mut self, leaves: usize) -> Result<bool, Error> {
        if self.deletions.is_done() {
            return Ok(false);
        }
        let result = (0..leaves).try_for_each(|_| self.take_in_next());
        self.show_deletions();
        result.map(|()| true)
    }

    /// Finds the first leaf that lacks the oldest deletion, and makes this leaf apply all deletions
    /// that it lacks.
    fn take_in_next(&mut self) -> Result<(), Error> {
        let next = self
            .deletions
            .0
            .iter()
            .find_map(|waiting| waiting.next.clone());
        let Some(key) = next else { return Ok(()) };
        let (path, id) = self.tree.path(&key)?;
        let range = super::consolidate::range_of(&path, &[id]);
        self.take_in(id, &range)?;
        self.statistics.taken_in += 1;
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

    /// Makes the leaf at the end of a path apply all deletions that it lacks.
    pub(super) fn take_in_at(&mut self, path: &Path, id: NodeId) -> Result<(), Error> {
        if self.deletions.is_done() || is_planted(Bug::WritesWithoutDeletions) {
            return Ok(());
        }
        self.take_in(id, &super::consolidate::range_of(path, &[id]))
    }

    /// Makes a leaf apply all deletions that it lacks; finds its path first.
    pub(super) fn take_in_of(&mut self, id: NodeId) -> Result<(), Error> {
        if self.deletions.is_done() {
            return Ok(());
        }
        let path = self.path_of(id)?;
        self.take_in_at(&path, id)
    }

    /// Makes a leaf with the key range `range` apply all deletions that it lacks.
    fn take_in(&mut self, id: NodeId, range: &KeyRange) -> Result<(), Error> {
        let oldest = self.readers.oldest();
        for number in 0..self.deletions.0.len() {
            let waiting = &self.deletions.0[number];
            let (deletion, logged_at) = (waiting.deletion.clone(), waiting.logged_at);
            let Some((start, end)) = shared(&deletion, range).filter(|_| waiting.next.is_some())
            else {
                continue;
            };
            let (is_old, consolidated_at) = (
                waiting.is_old,
                self.tree.slots.get(id).node.read().consolidated_at,
            );
            // A leaf that was written back at or after the batch of the deletion has applied the
            // deletion, and all later changes of the leaf are newer than the deletion. This is not
            // certain for a deletion of an earlier incarnation: the replay may have added older
            // changes to the leaf.
            if consolidated_at >= deletion.seq && !is_old {
                continue;
            }
            let lsn = match is_old && consolidated_at < deletion.seq {
                true => self.tree.leaf_image(id)?.map_or(0, |image| image.lsn()),
                // `consolidated_at` is used in two cases. First, the leaf was written back in this
                // incarnation, and that write-back has set the value. Second, the deletion is of
                // this incarnation, and the image of the leaf is older than the deletion.
                false => consolidated_at,
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

    /// Relogs, at the head of the log, the deletions that some leaves lack and whose log position
    /// is before `target`. Returns false if there is no such deletion. One call relogs at most one
    /// frame of deletions. The deletions keep the sequence numbers of their batches. Only a rebuild
    /// needs them in the log: an opening finds them in the checkpoint, but a rebuild has no
    /// checkpoint.
    pub(super) fn relog_deletions(&mut self, target: u64) -> Result<bool, Error> {
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

    /// Returns the lowest log position of the deletions that some leaf has not applied; `None` if
    /// there are none. Leaves need the log from `leaves_from` on. Removes from the list each
    /// deletion that all leaves have applied, if its log position is before `leaves_from` or no
    /// leaf needs the log.
    pub(super) fn deletions_needed_from(&mut self, leaves_from: Option<u64>) -> Option<u64> {
        let is_logged = |w: &Waiting| leaves_from.is_some_and(|from| from <= w.logged_at);
        self.deletions
            .0
            .retain(|w| w.next.is_some() || is_logged(w));
        self.deletions.logged_from()
    }
}

/// Returns the part of a deletion's range that is in `range`, the key range of a leaf. The start of
/// that part is a key of the leaf's range.
fn shared<'a>(deletion: &'a Deletion, range: &'a KeyRange) -> Option<Bounds<'a>> {
    let start = deletion.start.as_ref().max(range.from.as_ref());
    let (end, edge) = (deletion.end.as_deref(), range.to.as_deref());
    let is_empty = |end: Option<&[u8]>| end.is_some_and(|end| end <= start);
    match is_empty(end) || is_empty(edge) {
        true => None,
        false => Some((Bound::Included(start), upper_of(end, edge))),
    }
}

/// Returns the lesser of two ends; `None` means the end of all keys.
fn upper_of<'a>(end: Option<&'a [u8]>, edge: Option<&'a [u8]>) -> Bound<&'a [u8]> {
    match (end, edge) {
        (Some(end), Some(edge)) => Bound::Excluded(end.min(edge)),
        (Some(end), None) | (None, Some(end)) => Bound::Excluded(end),
        (None, None) => Bound::Unbounded,
    }
}
