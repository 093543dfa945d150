//! Builds the answer to [`Op::Extents`](crate::Op::Extents).
//!
//! The answer must never hold more extents than were requested. A block that holds any data must
//! never be reported as a hole.

use bimetal_rt::turn::count_steps;

use crate::request::{BLOCK_BYTES, EXTENTS_MAX, Extent, Reply};

/// The answer to an extents request, while it is built. Adjacent extents of one kind are joined. An
/// extent that would exceed the requested maximum is left out, together with all later extents.
#[derive(Debug)]
pub struct ExtentList {
    extents: Vec<Extent>,
    extents_max: usize,
    covered_bytes: u64,
    is_full: bool,
}

impl ExtentList {
    /// Creates an empty answer. It takes at most `extents_max` extents; this maximum is clamped to
    /// the range from 1 to [`EXTENTS_MAX`].
    pub fn new(extents_max: u32) -> ExtentList {
        ExtentList {
            extents: Vec::new(),
            extents_max: extents_max.clamp(1, EXTENTS_MAX) as usize,
            covered_bytes: 0,
            is_full: false,
        }
    }

    /// Appends the next extent. The extent is left out if the answer [is full](Self::is_full), or
    /// if it would exceed the maximum number of extents.
    pub fn push(&mut self, extent: Extent) {
        count_steps(1);
        if self.is_full || extent.len == 0 {
            return;
        }
        let has_room = self.extents.len() < self.extents_max;
        match self.extents.last_mut() {
            Some(last) if last.data == extent.data => last.len += extent.len,
            _ if !has_room => {
                self.is_full = true;
                return;
            }
            _ => self.extents.push(extent),
        }
        self.covered_bytes += extent.len;
    }

    /// Appends data or a hole that ends `end_bytes` after the start of the range, which has
    /// `range_bytes` bytes. If it ends inside a block of [`BLOCK_BYTES`], the end is moved so that
    /// the whole block is reported as data.
    pub fn push_until(&mut self, end_bytes: u64, range_bytes: u64, data: bool) {
        let end_bytes = match data {
            _ if end_bytes >= range_bytes => range_bytes,
            true => end_bytes.next_multiple_of(BLOCK_BYTES).min(range_bytes),
            false => end_bytes - end_bytes % BLOCK_BYTES,
        };
        let len = end_bytes.saturating_sub(self.covered_bytes);
        self.push(Extent { len, data });
    }

    /// Ensures that the answer is not empty: if no byte of the range is covered, reports the first
    /// block of the range as data. The range has `range_bytes` bytes.
    pub fn or_one_block(mut self, range_bytes: u64) -> ExtentList {
        if self.covered_bytes == 0 {
            let len = range_bytes.min(BLOCK_BYTES);
            self.push(Extent { len, data: true });
        }
        self
    }

    /// Returns true if an extent was left out for lack of room. The answer ends before that extent.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the number of bytes that the answer covers, counted from the start of the range.
    pub fn covered_bytes(&self) -> u64 {
        self.covered_bytes
    }

    /// Returns the maximum number of extents to request from a device for the next part of the
    /// range. If this answer already has extents, the number is one more than the number of extents
    /// that it can still hold, because the first new extent might be joined with the last extent of
    /// this answer.
    pub fn asks_for(&self) -> u32 {
        let joins = usize::from(!self.extents.is_empty());
        (self.extents_max - self.extents.len() + joins) as u32
    }

    /// Returns the extents, in order.
    pub fn into_extents(self) -> Vec<Extent> {
        self.extents
    }

    /// Converts the answer to a reply.
    pub fn into_reply(self) -> Reply {
        Reply::Extents(self.extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(extents_max: u32, runs: &[(u64, bool)]) -> ExtentList {
        let mut list = ExtentList::new(extents_max);
        for &(len, data) in runs {
            list.push(Extent { len, data });
        }
        list
    }

    #[test]
    fn neighbours_are_joined_up_to_the_most_extents() {
        let list = list(
            2,
            &[(1, true), (2, true), (0, false), (4, false), (8, false)],
        );
        assert!(!list.is_full(), "the last one could still grow");
        assert_eq!((list.covered_bytes(), list.asks_for()), (15, 1));
        let [data, hole] = [(3, true), (12, false)].map(|(len, data)| Extent { len, data });
        assert_eq!(list.into_extents(), [data, hole]);
    }

    #[test]
    fn what_does_not_fit_ends_the_answer_for_good() {
        let list = list(1, &[(1, true), (2, false), (4, true)]);
        assert!(list.is_full());
        assert_eq!(list.covered_bytes(), 1, "nothing is added behind a gap");
        assert_eq!(list.into_extents(), [Extent { len: 1, data: true }]);
    }

    #[test]
    fn a_block_that_holds_both_counts_as_data() {
        let mut list = ExtentList::new(EXTENTS_MAX);
        // Adds a hole up to the middle of block 1, then data up to the middle of block 2, then a
        // hole up to the end.
        list.push_until(6144, 5 * BLOCK_BYTES, false);
        list.push_until(9216, 5 * BLOCK_BYTES, true);
        list.push_until(5 * BLOCK_BYTES, 5 * BLOCK_BYTES, false);
        let blocks = [(1, false), (2, true), (2, false)];
        let expected = blocks.map(|(blocks, data)| Extent {
            len: blocks * BLOCK_BYTES,
            data,
        });
        assert_eq!(list.into_extents(), expected);
    }

    #[test]
    fn an_answer_covers_at_least_a_block() {
        let mut list = ExtentList::new(1);
        list.push_until(512, 3 * BLOCK_BYTES, false);
        let list = list.or_one_block(3 * BLOCK_BYTES);
        assert_eq!((list.covered_bytes(), list.is_full()), (BLOCK_BYTES, false));
    }
}
