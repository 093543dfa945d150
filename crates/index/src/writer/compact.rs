//! Compaction: makes the storage as short as possible, in steps between which other threads can
//! write. It writes changes into nodes and patches into their leaves, and empties segments that are
//! not full or are far from the start of the storage. The result of each step is kept, so a
//! compaction can end after any step.

use super::Writer;
use super::maintenance::LEAVES_IN_STEP;
use crate::error::Error;

/// Progress of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Compacting {
    /// The compaction has begun.
    #[default]
    Begun,
    /// Pending range deletions are being applied to the leaves that lack them. The number is the
    /// maximum number of leaves to which this stage still applies deletions.
    Deletions(u32),
    /// Changes and patches are being written into leaves. The number is the maximum number of
    /// leaves that this stage still writes. Without a limit, new changes of other threads could
    /// prolong the stage endlessly.
    Leaves(u32),
    /// The part of the log before this position is being freed. From this position on, the log is
    /// in the short ring at the front of the storage.
    Log(u64),
    /// Stage in which segments that are not dense are emptied. The number is the number of segments
    /// that the index had begun to fill before this stage. Segments begun later are not emptied: if
    /// images do not fill segments well, moving the images once more would not make segments
    /// denser.
    Segments(u64),
    /// Content at the end of the storage is being moved to free segments before it. The number is
    /// the maximum number of segments that this stage still empties. The stage needs a limit,
    /// because other threads can write between its steps.
    End(u32),
    Done,
}

impl Writer {
    /// Continues a compaction by one step. Returns false if the compaction is complete.
    pub(crate) fn compact_some(&mut self, at: &mut Compacting) -> Result<bool, Error> {
        *at = match *at {
            Compacting::Begun => Compacting::Deletions(self.nodes().saturating_mul(2)),
            Compacting::Deletions(left) => match self.take_in_more()? && left > 0 {
                true => Compacting::Deletions(left.saturating_sub(LEAVES_IN_STEP)),
                false => Compacting::Leaves(self.nodes().saturating_mul(2)),
            },
            Compacting::Leaves(left) => {
                match self.consolidate_more(left, Writer::write_one_anew)? {
                    Some(left) => Compacting::Leaves(left),
                    None => Compacting::Log(self.shorten_log()?),
                }
            }
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

    /// Writes back one leaf that has changes, or, if there is none, rewrites one leaf that has
    /// patches. Returns false if no leaf has changes or patches.
    fn write_one_anew(&mut self) -> Result<bool, Error> {
        if self.consolidate_oldest()? {
            return Ok(true);
        }
        match self.nodes.first_patched() {
            Some(id) => self.consolidate_leaf(id).map(|()| true),
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
            // A segment with damaged content cannot be emptied, so it is excluded from further
            // attempts.
            self.segments.leave(victim);
        }
        self.checkpoint_now()?;
        if victim.is_some() {
            return Ok(Compacting::Segments(begun));
        }
        // Only segments that are completely written can be moved. The segments that streams are
        // still filling can be anywhere in the storage, so the streams close them first.
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
        // The last checkpoint was written while the previous checkpoint still occupied its
        // segments. One of these segments can be the first free segment now. A further checkpoint
        // is written there, so that more of the end of the storage becomes free.
        self.checkpoint_now()?;
        self.segments.trim(&*self.storage())?;
        Ok(Compacting::Done)
    }
}
