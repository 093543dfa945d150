//! Schedule of maintenance: each group of batches is followed by a small amount of maintenance, in
//! proportion to the work that the group added.
//!
//! Maintenance never changes the content that readers see. It writes back changes beyond the memory
//! budget, moves the tail of the log before the log is full, and cleans segments before free
//! segments run out. If one of these tasks is late, the writer does the task immediately and waits
//! for its completion.

use super::Writer;
use super::checkpoint::Detail;
use super::deletions::LEAVES_IN_TURN;
use crate::error::Error;

/// Number of leaves written in one step. Other threads can write between two steps.
pub(super) const LEAVES_IN_STEP: u32 = 256;

/// Progress of writing back all changes. Other threads can add changes between two steps. So the
/// number of leaves written is limited to the number of nodes that existed at the beginning. Leaves
/// are written in the order in which they became dirty, so all changes from before the beginning
/// are included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WritingBack {
    #[default]
    Begun,
    /// Leaves are applying range deletions. The number is the maximum number of further leaves to
    /// which this stage applies them.
    Deletions(u32),
    /// Leaves are being written back. The number is the maximum number of leaves that this stage
    /// still writes back.
    Leaves(u32),
    Done,
}

impl Writer {
    /// Does the maintenance after a group of batches that took `blocks` blocks of the log, and
    /// whose changes have `changes_bytes` bytes.
    pub(crate) fn maintain(&mut self, blocks: u64, changes_bytes: u64) -> Result<(), Error> {
        self.dirty.pay_off(changes_bytes);
        self.consolidate_overgrown()?;
        self.consolidate_beyond_budget()?;
        self.take_in_some(LEAVES_IN_TURN)?;
        self.clean_some()?;
        self.move_tail(blocks)?;
        self.release_memory();
        self.tree.memory.give_up_kept(&self.tree.slots);
        Ok(())
    }

    /// Writes leaves back until changes are within their memory budget.
    pub(super) fn consolidate_beyond_budget(&mut self) -> Result<(), Error> {
        let bytes_max = self.dirty.bytes_max(self.buffer_bytes());
        while self.tree.memory.delta_bytes() > bytes_max && self.consolidate_oldest()? {
            self.clean_some()?;
        }
        Ok(())
    }

    fn consolidate_overgrown(&mut self) -> Result<(), Error> {
        while let Some(id) = self.dirty.last_overgrown() {
            let has_delta = self.tree.slots.get(id).node.read().delta.is_some();
            // If there is no delta, the leaf was written back after it was listed here, and its id
            // may belong to another node now. It is then only removed from the list.
            if has_delta {
                self.consolidate_leaf(id)?;
            }
            self.dirty.pop_overgrown();
            self.clean_some()?;
        }
        Ok(())
    }

    /// Cleans a piece of a segment if segments need cleaning. If free segments are scarce, takes or
    /// continues a checkpoint, because a segment without live content can be rewritten only once no
    /// checkpoint names it. Must be called as often as segments are filled; otherwise the storage
    /// would grow. Also evicts written nodes from memory.
    pub(super) fn clean_some(&mut self) -> Result<(), Error> {
        self.release_memory();
        if self.options.paper.is_some() {
            self.clean_clusters()?;
        } else if self.needs_cleaning()? && !self.clean_piece()? {
            return Ok(());
        }
        let is_short = self.segments.free_count() < self.spare_segments();
        if is_short && self.is_checkpointing() {
            self.continue_checkpoint()
        } else if is_short && self.is_worth_a_checkpoint() {
            self.take_checkpoint(Detail::Places)
        } else {
            Ok(())
        }
    }

    /// Returns true if a checkpoint would free much more space than it takes.
    fn is_worth_a_checkpoint(&self) -> bool {
        let emptied = self.segments.emptied_count() * self.tree.geometry.segment_bytes as usize;
        emptied > (self.checkpoint_bytes() * 6).max(self.tree.geometry.segment_bytes as usize * 2)
    }

    /// Continues writing all changes back into nodes, by one step. Returns false once all changes
    /// are written back and a checkpoint that includes them is in effect.
    pub(crate) fn write_back_some(&mut self, at: &mut WritingBack) -> Result<bool, Error> {
        *at = match *at {
            WritingBack::Begun => WritingBack::Deletions(self.nodes().saturating_mul(2)),
            WritingBack::Deletions(left) => match self.take_in_more()? && left > 0 {
                true => WritingBack::Deletions(left.saturating_sub(LEAVES_IN_STEP)),
                false => WritingBack::Leaves(self.nodes()),
            },
            WritingBack::Leaves(left) => {
                match self.consolidate_more(left, Writer::consolidate_oldest)? {
                    Some(left) => WritingBack::Leaves(left),
                    None => {
                        self.checkpoint_now()?;
                        WritingBack::Done
                    }
                }
            }
            WritingBack::Done => WritingBack::Done,
        };
        Ok(*at != WritingBack::Done)
    }

    /// Applies pending range deletions to leaves that lack them, to about `LEAVES_IN_STEP` leaves
    /// in a call. Returns false if no leaf lacks a range deletion.
    pub(super) fn take_in_more(&mut self) -> Result<bool, Error> {
        for _ in 0..LEAVES_IN_STEP as usize / LEAVES_IN_TURN {
            if !self.take_in_some(LEAVES_IN_TURN)? {
                return Ok(false);
            }
            self.consolidate_beyond_budget()?;
            self.keep_up()?;
        }
        Ok(true)
    }

    /// Performs one step of writing leaves. Calls `write` once for each leaf, at most `left` times,
    /// until [`LEAVES_IN_STEP`] leaves have been written. A leaf that is written by cleaning counts
    /// towards the step, but not towards `left`. Returns the rest of `left`, or `None` if `left` is
    /// used up or `write` finds no leaf.
    pub(super) fn consolidate_more(
        &mut self,
        mut left: u32,
        write: impl Fn(&mut Writer) -> Result<bool, Error>,
    ) -> Result<Option<u32>, Error> {
        let end = self.leaves_freed() + u64::from(LEAVES_IN_STEP);
        while self.leaves_freed() < end {
            if left == 0 || !write(self)? {
                return Ok(None);
            }
            left -= 1;
            self.keep_up()?;
        }
        Ok(Some(left))
    }

    /// Does a piece of cleaning and continues the checkpoint in progress, so that both keep pace
    /// with the writing of leaves.
    fn keep_up(&mut self) -> Result<(), Error> {
        self.clean_some()?;
        match self.is_checkpointing() {
            true => self.continue_checkpoint(),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryStorage;
    use crate::{Batch, Db, Durability, Options};

    const RECORDS: u64 = 20_000;

    fn change_some(db: &Db, first: u64) {
        let mut batch = Batch::new();
        for number in first..first + 1000 {
            batch.put(&(number * 7919 % RECORDS).to_be_bytes(), &[7; 100]);
        }
        db.write(&batch, Durability::Relaxed).expect("a write");
    }

    /// All changes are written back in steps. Other threads can write between two steps, so a
    /// thread waits for at most one step. The write-back includes all changes that existed when it
    /// began, and it ends even if other threads add changes faster than it proceeds.
    #[test]
    fn changes_are_written_back_in_steps_that_come_to_an_end() {
        let options = Options {
            memory_bytes: 64 << 20,
            buffer_bytes: 16 << 20,
            log_bytes: 64 << 20,
            segment_bytes: 64 << 10,
            node_bytes: 512,
            ..Options::default()
        };
        let db = Db::create(MemoryStorage::new(), 1, &options).expect("an index");
        let shared = std::sync::Arc::clone(&db.snapshot().shared);
        let written = || {
            let maintenance = db.statistics().maintenance;
            maintenance.consolidations + maintenance.patches
        };
        (0..RECORDS / 1000).for_each(|number| change_some(&db, number * 1000));
        let mut at = WritingBack::default();
        while shared
            .with_writer(|writer| writer.write_back_some(&mut at))
            .expect("a step")
        {}
        (0..RECORDS / 1000).for_each(|number| change_some(&db, number * 1000));
        let began_at = shared.look_at_writer(|writer| writer.log.head());
        let mut at = WritingBack::default();
        let (mut steps, mut most) = (0, 0);
        let mut is_going_on = true;
        while is_going_on {
            let before = written();
            let step = shared.with_writer(|writer| writer.write_back_some(&mut at));
            is_going_on = step.expect("a step");
            most = most.max(written() - before);
            steps += 1;
            if is_going_on {
                change_some(&db, steps * 1000);
            }
        }
        assert!(steps > 10, "{steps} steps");
        // Cleaning a piece of a segment at the end of a step can write some additional leaves.
        let most_may_be = u64::from(LEAVES_IN_STEP) * 5 / 4;
        assert!(most <= most_may_be, "{most} leaves in a step");
        let needed_from = shared.with_writer(|writer| Ok(writer.needed_from()));
        let needed_from = needed_from.expect("a writer");
        assert!(needed_from >= began_at, "{needed_from}, {began_at}");
    }
}
