//! When to keep house: a little after every group of batches, in proportion to what the group has added.
//!
//! Nothing here changes what readers see. Changes beyond the budget are written back; the log's tail is
//! moved before the log is full; segments are cleaned before they run out. Each of these is also forced
//! when it comes too late, which then is what the writer waits for.

use super::Writer;
use super::checkpoint::Detail;
use super::deletions::LEAVES_IN_TURN;
use crate::error::Error;

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

    /// Cleans as much as keeps up with what is being written, and gets back what has become empty: it can
    /// be written once no checkpoint names it. Without that the storage would grow instead. Nodes that were written
    /// need not stay in memory.
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

    /// Writes all changes back into nodes, and makes that count.
    pub(crate) fn write_back(&mut self) -> Result<(), Error> {
        while self.take_in_some(LEAVES_IN_TURN)? {
            self.fold_beyond_budget()?;
            self.clean_some()?;
            if self.is_checkpointing() {
                self.continue_checkpoint()?;
            }
        }
        while self.fold_oldest()? {
            self.clean_some()?;
            if self.is_checkpointing() {
                self.continue_checkpoint()?;
            }
        }
        self.checkpoint_now()
    }
}
