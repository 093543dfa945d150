//! Detection of requests whose ranges overlap.

use std::collections::BTreeMap;

use crate::brp::command::Request;

/// Set of the ranges of requests. For each range the set records whether the request is a change.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    /// Map of the ranges. The key consists of the first byte of a range and the tag of its request.
    /// The value consists of the exclusive end of the range, and a flag that is true if the request
    /// is a change.
    ranges: BTreeMap<(u64, u32), (u64, bool)>,
    /// Upper bound of the lengths of the ranges. A range that starts more than this number of bytes
    /// before a request cannot overlap the request.
    longest_bytes: u64,
    /// Number of changes in the set. If it is 0, a request conflicts with the set only if the
    /// request is itself a change.
    changes: usize,
}

impl Overlap {
    /// Returns true when `request` overlaps a request in the set and at least one of the two is a
    /// change.
    pub(super) fn conflicts(&self, request: &Request) -> bool {
        let (start, end) = (request.offset_bytes, request.end_bytes());
        if start == end || (self.changes == 0 && !request.op.changes()) {
            return false;
        }
        let earliest = start.saturating_sub(self.longest_bytes);
        let near = self.ranges.range((earliest, 0)..(end, 0));
        near.into_iter()
            .any(|(_, &(other_end, change))| other_end > start && (change || request.op.changes()))
    }

    pub(super) fn insert(&mut self, request: &Request) {
        let (start, end) = (request.offset_bytes, request.end_bytes());
        if start < end {
            self.longest_bytes = self.longest_bytes.max(end - start);
            let range = (end, request.op.changes());
            let before = self.ranges.insert((start, request.tag), range);
            debug_assert!(before.is_none(), "a tag names one request");
            self.changes += usize::from(request.op.changes());
        }
    }

    pub(super) fn remove(&mut self, request: &Request) {
        let removed = self.ranges.remove(&(request.offset_bytes, request.tag));
        self.changes -= usize::from(removed.is_some_and(|(_, change)| change));
        if self.ranges.is_empty() {
            self.longest_bytes = 0;
        }
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
        self.longest_bytes = 0;
        self.changes = 0;
    }
}
