//! Making the storage as short as it can be, in steps between which others write: changes go into nodes,
//! patches into their leaves, and segments that are not full, or far from the start, are emptied. Each step
//! ends with what it has done being safe, so that a compaction can end after any.

use super::Writer;
use crate::error::Error;

/// Leaves written in a step.
const LEAVES: usize = 256;

/// How far a compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Compacting {
    /// Changes and patches are written into leaves, as many leaves as there were at the beginning at most:
    /// others may bring new changes all the time.
    #[default]
    Begun,
    Leaves(u32),
    /// Segments are emptied, so many at most: where images do not fill segments well, nothing is ever dense
    /// enough.
    Segments(u32),
    Done,
}

impl Writer {
    /// Goes on with a compaction by a step. False if there is nothing left to do.
    pub(crate) fn compact_some(&mut self, at: &mut Compacting) -> Result<bool, Error> {
        *at = match *at {
            Compacting::Begun => Compacting::Leaves(self.nodes().saturating_mul(2)),
            Compacting::Leaves(left) => match self.write_leaves_back()? && left > 0 {
                true => Compacting::Leaves(left.saturating_sub(LEAVES as u32)),
                false => self.end_leaves()?,
            },
            Compacting::Segments(left) => self.empty_segment(left)?,
            Compacting::Done => Compacting::Done,
        };
        Ok(*at != Compacting::Done)
    }

    /// Writes some leaves anew that have changes or patches. False if there is none.
    fn write_leaves_back(&mut self) -> Result<bool, Error> {
        for _ in 0..LEAVES {
            let is_done = if self.fold_oldest()? {
                false
            } else if let Some(id) = self.patched.first().copied() {
                self.fold_leaf(id)?;
                false
            } else {
                true
            };
            if is_done {
                return Ok(false);
            }
            self.clean_some()?;
            if self.is_checkpointing() {
                self.continue_checkpoint()?;
            }
        }
        Ok(true)
    }

    fn end_leaves(&mut self) -> Result<Compacting, Error> {
        self.checkpoint_now()?;
        self.write_log(true)?;
        self.segments.close_streams(&*self.storage())?;
        Ok(Compacting::Segments(self.segments.count() as u32))
    }

    fn empty_segment(&mut self, left: u32) -> Result<Compacting, Error> {
        let victim = self.segments.worth_moving().filter(|_| left > 0);
        if let Some(victim) = victim {
            self.clean_whole(victim)?;
        }
        self.checkpoint_now()?;
        Ok(match victim {
            Some(_) => Compacting::Segments(left - 1),
            None => Compacting::Done,
        })
    }
}
