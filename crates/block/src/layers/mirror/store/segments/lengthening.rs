//! How much longer the log of a logged side becomes with a commit.
//!
//! The log must not take the free segments that cleaning needs.

use super::Segments;
use super::usage::State;
use crate::layers::mirror::superblock::segmented::SEGMENTS_RESERVED;

impl Segments {
    /// Returns the number of free segments that the log leaves to others. It leaves as many as it
    /// has not filled yet, so that cleaning has room for long batches: each batch costs a commit.
    fn spared_by_log(&self) -> usize {
        SEGMENTS_RESERVED as usize + self.pace.unspent_segments()
    }

    /// Returns the length that the log wants to have, as the position of its end. `log_floor` is
    /// the position before which the log needs nothing.
    fn wanted_end(&self, log_floor: u64) -> u64 {
        let floor = log_floor.max(self.dropping_to.get());
        floor.saturating_add(self.log_bytes)
    }

    /// Returns true when a commit would lengthen the log.
    pub(in super::super) fn log_is_short(&self, log_floor: u64) -> bool {
        self.lengthening_bytes(log_floor) > 0
    }

    /// Returns the number of bytes by which a commit would lengthen the log now, or one segment
    /// less where it wants a part of one. Each segment that the log takes leaves one to others.
    pub(in super::super) fn lengthening_bytes(&self, log_floor: u64) -> u64 {
        let free = self.usage.borrow().free_count();
        let taken = free.saturating_sub(self.spared_by_log()).div_ceil(2) as u64;
        let usable_bytes = self.chain.usable_bytes();
        let wanted = self.wanted_end(log_floor).saturating_sub(self.chain.end());
        taken.min(wanted / usable_bytes) * usable_bytes
    }

    /// Takes the free segments by which the log is to be lengthened.
    pub(super) fn take_for_log(&self, log_floor: u64) -> Vec<u32> {
        let wanted = self.wanted_end(log_floor);
        let mut end = self.chain.end();
        let mut usage = self.usage.borrow_mut();
        let (mut more, spared) = (Vec::new(), self.spared_by_log());
        while end < wanted
            && let Some(segment) = usage.take(State::Log, spared + more.len())
        {
            more.push(segment);
            end += self.chain.usable_bytes();
        }
        more
    }
}
