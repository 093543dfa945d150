//! Making the storage as short as it can be, in steps between which others write: changes go into
//! nodes, patches into their leaves, and segments that are not full, or far from the start, are
//! emptied. Each step ends with what it has done being safe, so that a compaction can end after
//! any.

use super::Writer;
use super::upkeep::LEAVES_IN_STEP;
use crate::error::Error;

/// How far a compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Compacting {
    /// Changes and patches are written into leaves, as many leaves as there were at the beginning
    /// at most: others may bring new changes all the time.
    #[default]
    Begun,
    /// Leaves take in deletions of ranges, as many leaves at most.
    Deletions(u32),
    Leaves(u32),
    /// The log is freed before this position, from which on it is short.
    Log(u64),
    /// Segments are emptied that are not dense, and of which not so many had been begun: where
    /// images do not fill segments well, those that are filled now are no denser.
    Segments(u64),
    /// What is at the end of the storage goes to free segments before it, so many times at most:
    /// others may write.
    End(u32),
    Done,
}

impl Writer {
    /// Goes on with a compaction by a step. False if there is nothing left to do.
    pub(crate) fn compact_some(&mut self, at: &mut Compacting) -> Result<bool, Error> {
        *at = match *at {
            Compacting::Begun => Compacting::Deletions(self.nodes().saturating_mul(2)),
            Compacting::Deletions(left) => match self.take_in_more()? && left > 0 {
                true => Compacting::Deletions(left.saturating_sub(LEAVES_IN_STEP)),
                false => Compacting::Leaves(self.nodes().saturating_mul(2)),
            },
            Compacting::Leaves(left) => match self.fold_more(left, Writer::write_one_anew)? {
                Some(left) => Compacting::Leaves(left),
                None => Compacting::Log(self.shorten_log()?),
            },
            Compacting::Log(target) => match self.free_some_log(target)? {
                true => Compacting::Log(target),
                false => self.end_log()?,
            },
            Compacting::Segments(begun) => self.empty_segment(begun)?,
            Compacting::End(left) => self.empty_end(left)?,
            Compacting::Done => Compacting::Done,
        };
        Ok(*at != Compacting::Done)
    }

    /// Writes a leaf anew that has changes or patches. False if there is none.
    fn write_one_anew(&mut self) -> Result<bool, Error> {
        if self.fold_oldest()? {
            return Ok(true);
        }
        match self.nodes.first_patched() {
            Some(id) => self.fold_leaf(id).map(|()| true),
            None => Ok(false),
        }
    }

    fn end_log(&mut self) -> Result<Compacting, Error> {
        self.checkpoint_now()?;
        self.write_log(true)?;
        self.segments.close_streams(&*self.storage())?;
        Ok(Compacting::Segments(self.segments.begun()))
    }

    fn empty_segment(&mut self, begun: u64) -> Result<Compacting, Error> {
        let victim = self.segments.worth_moving(begun);
        if let Some(victim) = victim {
            self.clean_whole(victim)?;
            // What cannot be moved, because it is damaged, is not tried again.
            self.segments.leave(victim);
        }
        self.checkpoint_now()?;
        if victim.is_some() {
            return Ok(Compacting::Segments(begun));
        }
        // What streams are filling may be anywhere.
        self.write_log(true)?;
        self.segments.close_streams(&*self.storage())?;
        Ok(Compacting::End(self.segments.count() as u32))
    }

    fn empty_end(&mut self, left: u32) -> Result<Compacting, Error> {
        let victim = self.segments.last_to_move().filter(|_| left > 0);
        if let Some(victim) = victim {
            self.clean_whole(victim)?;
        }
        self.checkpoint_now()?;
        if victim.is_some() && self.segments.last_to_move() != victim {
            return Ok(Compacting::End(left - 1));
        }
        // The checkpoint before may have been in the way of the first free segment.
        self.checkpoint_now()?;
        self.segments.trim(&*self.storage())?;
        Ok(Compacting::Done)
    }
}
