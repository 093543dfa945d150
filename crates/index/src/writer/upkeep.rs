//! When to keep house: a little after every group of batches, in proportion to what the group has
//! added.
//!
//! Nothing here changes what readers see. Changes beyond the budget are written back; the log's
//! tail is moved before the log is full; segments are cleaned before they run out. Each of these is
//! also forced when it comes too late, which then is what the writer waits for.

use super::Writer;
use super::checkpoint::Detail;
use super::deletions::LEAVES_IN_TURN;
use crate::error::Error;

/// Leaves that are written before others may write.
pub(super) const LEAVES_IN_STEP: u32 = 256;

/// How far the writing back of all changes is. Others may bring new ones between two steps: as many
/// leaves are written as there were, those that have had changes longest first, so that all changes
/// from before its beginning are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WritingBack {
    #[default]
    Begun,
    /// So many leaves may still take in deletions of ranges.
    Deletions(u32),
    /// So many leaves may still be written.
    Leaves(u32),
    Done,
}

impl Writer {
    /// Keeps house after a group that took `blocks` blocks of the log for changes of so many bytes.
    pub(crate) fn keep_house(&mut self, blocks: u64, changes_bytes: u64) -> Result<(), Error> {
        self.dirty.pay_off(changes_bytes);
        self.fold_overgrown()?;
        self.fold_beyond_budget()?;
        self.take_in_some(LEAVES_IN_TURN)?;
        self.clean_some()?;
        self.move_tail(blocks)?;
        self.give_memory_back();
        self.tree.memory.give_up_kept(&self.tree.slots);
        Ok(())
    }

    /// Writes leaves back until changes take no more memory than they may.
    pub(super) fn fold_beyond_budget(&mut self) -> Result<(), Error> {
        let bytes_max = self.dirty.bytes_max(self.buffer_bytes());
        while self.tree.memory.delta_bytes() > bytes_max && self.fold_oldest()? {
            self.clean_some()?;
        }
        Ok(())
    }

    fn fold_overgrown(&mut self) -> Result<(), Error> {
        while let Some(id) = self.dirty.last_overgrown() {
            let has_delta = self.tree.slots.get(id).node.read().delta.is_some();
            // It may have been written back since, and its number may be another node's.
            if has_delta {
                self.fold_leaf(id)?;
            }
            self.dirty.pop_overgrown();
            self.clean_some()?;
        }
        Ok(())
    }

    /// Cleans as much as keeps up with what is being written, and gets back what has become empty:
    /// it can be written once no checkpoint names it. Without that the storage would grow instead.
    /// Nodes that were written need not stay in memory.
    pub(super) fn clean_some(&mut self) -> Result<(), Error> {
        self.give_memory_back();
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

    /// True if a checkpoint would give back much more than it takes.
    fn is_worth_a_checkpoint(&self) -> bool {
        let emptied = self.segments.emptied_count() * self.tree.geometry.segment_bytes as usize;
        emptied > (self.checkpoint_bytes() * 6).max(self.tree.geometry.segment_bytes as usize * 2)
    }

    /// Goes on with writing all changes back into nodes by a step. False if that is done, and
    /// counts.
    pub(crate) fn write_back_some(&mut self, at: &mut WritingBack) -> Result<bool, Error> {
        *at = match *at {
            WritingBack::Begun => WritingBack::Deletions(self.nodes().saturating_mul(2)),
            WritingBack::Deletions(left) => match self.take_in_more()? && left > 0 {
                true => WritingBack::Deletions(left.saturating_sub(LEAVES_IN_STEP)),
                false => WritingBack::Leaves(self.nodes()),
            },
            WritingBack::Leaves(left) => match self.fold_more(left, Writer::fold_oldest)? {
                Some(left) => WritingBack::Leaves(left),
                None => {
                    self.checkpoint_now()?;
                    WritingBack::Done
                }
            },
            WritingBack::Done => WritingBack::Done,
        };
        Ok(*at != WritingBack::Done)
    }

    /// Makes leaves take in deletions that they lack, as many as a step may. False if none lacks
    /// any.
    pub(super) fn take_in_more(&mut self) -> Result<bool, Error> {
        for _ in 0..LEAVES_IN_STEP as usize / LEAVES_IN_TURN {
            if !self.take_in_some(LEAVES_IN_TURN)? {
                return Ok(false);
            }
            self.fold_beyond_budget()?;
            self.keep_up()?;
        }
        Ok(true)
    }

    /// Writes leaves, `left` at most, each by `write`, until as many were written as a step may,
    /// those among them that cleaning has written. Returns how many are left; none if that is all,
    /// or `write` finds none.
    pub(super) fn fold_more(
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

    /// Cleans, and goes on with the checkpoint that is on its way, as fast as leaves are written.
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

    /// Others wait for a step at most; and it ends though they bring changes faster than it writes
    /// them, with all that was there before it.
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
            let upkeep = db.figures().upkeep;
            upkeep.folds + upkeep.patches
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
        // The last piece that is cleaned may have some leaves more than a step.
        let most_may_be = u64::from(LEAVES_IN_STEP) * 5 / 4;
        assert!(most <= most_may_be, "{most} leaves in a step");
        let needed_from = shared.with_writer(|writer| Ok(writer.needed_from()));
        let needed_from = needed_from.expect("a writer");
        assert!(needed_from >= began_at, "{needed_from}, {began_at}");
    }
}
