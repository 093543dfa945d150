//! The segments of the log of a logged side, in the order in which the log fills them.
//!
//! The log of such a side has positions that only grow, like any log. A position is in the segment
//! whose number in this order is the position divided by the length of a segment. Segments at the
//! start are released when their entries were dropped, and other segments are appended.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::pace::Pace;

/// The segments of a log; see the module documentation.
pub(in super::super) struct Chain {
    area_offset: u64,
    segment_bytes: u64,
    segments: RefCell<Listed>,
    pace: Rc<Pace>,
}

/// Numbers of consecutive segments of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    /// Place of the first segment in the order of the log.
    pub(super) first: u64,
    /// Numbers of the segments on the device.
    pub(super) segments: VecDeque<u32>,
}

impl Chain {
    pub(super) fn new(
        area_offset: u64,
        segment_bytes: u64,
        listed: Listed,
        pace: Rc<Pace>,
    ) -> Chain {
        Chain {
            area_offset,
            segment_bytes,
            segments: RefCell::new(listed),
            pace,
        }
    }

    /// Returns the offset on the device of a position in the log.
    ///
    /// # Panics
    /// When the position is before the first or behind the last segment.
    pub(in super::super) fn at(&self, position: u64) -> u64 {
        let listed = self.segments.borrow();
        let number = position / self.segment_bytes;
        let index = number
            .checked_sub(listed.first)
            .expect("it is not released");
        let segment = listed.segments[index as usize];
        self.area_offset + u64::from(segment) * self.segment_bytes + position % self.segment_bytes
    }

    /// Returns the number of bytes from a position to the end of its segment.
    pub(in super::super) fn bytes_left_at(&self, position: u64) -> u64 {
        self.segment_bytes - position % self.segment_bytes
    }

    /// Returns the position at which the first segment begins.
    pub(in super::super) fn start(&self) -> u64 {
        self.segments.borrow().first * self.segment_bytes
    }

    /// Returns the position behind the last segment.
    pub(in super::super) fn end(&self) -> u64 {
        let listed = self.segments.borrow();
        (listed.first + listed.segments.len() as u64) * self.segment_bytes
    }

    /// Returns the number of bytes that the log may append at `head` now.
    pub(in super::super) fn granted_bytes(&self, head: u64) -> u64 {
        self.pace.set_unspent(self.end().saturating_sub(head));
        self.pace.granted_bytes()
    }

    /// Wakes the cleaner, because the log waits for it or for more segments.
    pub(in super::super) fn wake_cleaner(&self) {
        self.pace.request();
    }

    /// Records that an entry of `bytes` bytes was appended, which ends at `head`.
    pub(in super::super) fn note_appended(&self, head: u64, bytes: u64) {
        self.pace.set_unspent(self.end().saturating_sub(head));
        self.pace.note_appended(bytes);
    }

    /// Returns the segments.
    pub(super) fn listed(&self) -> Listed {
        self.segments.borrow().clone()
    }

    /// Removes the segments that end at or before a position, and returns their numbers.
    pub(super) fn release_before(&self, position: u64) -> Vec<u32> {
        let mut listed = self.segments.borrow_mut();
        let mut released = Vec::new();
        while (listed.first + 1) * self.segment_bytes <= position
            && let Some(segment) = listed.segments.pop_front()
        {
            listed.first += 1;
            released.push(segment);
        }
        released
    }

    /// Appends segments.
    pub(super) fn append(&self, segments: &[u32]) {
        self.segments.borrow_mut().segments.extend(segments);
    }
}
