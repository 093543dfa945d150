//! Segmented LRU: each use promotes a page by one segment, and a segment that overflows demotes its
//! oldest page by one segment. So pages used once never displace pages that were used often.
//!
//! Source: Karedla, Love and Wherry 1994, with any number of segments. A new page enters the lowest
//! segment that has room, or the lowest segment if none has.

use super::PageId;
use super::dirty::Dirty;
use super::order::Order;
use crate::lists::{Links, List, grow};

const ABSENT: u8 = u8::MAX;

/// Segmented LRU.
#[derive(Debug)]
pub(super) struct Segmented {
    capacity: usize,
    /// True if every segment is rounded down, as in the simulator of the published tables: then the
    /// lowest segment also holds what remains of the capacity.
    rounds_down: bool,
    /// Relative sizes of the segments, lowest first.
    shares: Vec<usize>,
    limits: Vec<usize>,
    segments: Vec<List>,
    links: Links,
    segment_of: Vec<u8>,
    len: usize,
}

impl Segmented {
    /// Creates segments with sizes in the proportion of `shares`, the lowest segment first.
    /// `rounds_down` is only for comparisons with published tables: every segment is rounded down,
    /// and their sum can be below `capacity`.
    pub(super) fn new(shares: &[usize], capacity: usize, rounds_down: bool) -> Segmented {
        let mut order = Segmented {
            capacity,
            rounds_down,
            shares: shares.to_vec(),
            limits: Vec::new(),
            segments: vec![List::default(); shares.len()],
            links: Links::default(),
            segment_of: Vec::new(),
            len: 0,
        };
        order.resize(capacity);
        order
    }

    fn put(&mut self, page: PageId, segment: usize) {
        self.segments[segment].push_front(&mut self.links, page);
        self.segment_of[page as usize] = segment as u8;
    }

    /// Returns the page that is evicted next.
    pub(super) fn victim(&self) -> Option<PageId> {
        self.segments.iter().find_map(List::back)
    }

    /// Demotes a page of `segment` if the segment exceeds its limit, and repeats this for each
    /// lower segment that thereby exceeds its limit. The lowest segment evicts a page instead. A
    /// segment to which no page is demoted can stay above its limit. For example, the lowest
    /// segment can exceed its limit if rounding makes the sum of the limits smaller than the
    /// capacity.
    fn settle(&mut self, segment: usize, out: &mut Vec<PageId>) {
        let mut at = segment;
        while self.segments[at].len() > self.limits[at] {
            if at == 0 {
                self.leave(out);
            } else if let Some(page) = self.segments[at].pop_back(&mut self.links) {
                self.put(page, at - 1);
                at -= 1;
            }
        }
    }

    fn leave(&mut self, out: &mut Vec<PageId>) {
        if let Some(page) = self.victim() {
            self.remove(page);
            out.push(page);
        }
    }
}

impl Order for Segmented {
    fn reserve(&mut self, ids: usize) {
        self.links.reserve(ids);
        grow(&mut self.segment_of, ids, ABSENT);
    }

    fn len(&self) -> usize {
        self.len
    }

    fn holds(&self, page: PageId) -> bool {
        self.segment_of[page as usize] != ABSENT
    }

    fn remembers(&self, page: PageId) -> bool {
        self.holds(page)
    }

    fn hit(&mut self, page: PageId, _dirty: &Dirty, out: &mut Vec<PageId>) {
        let from = usize::from(self.segment_of[page as usize]);
        let to = (from + 1).min(self.segments.len() - 1);
        self.segments[from].remove(&mut self.links, page);
        self.put(page, to);
        if to != from {
            self.settle(to, out);
        }
    }

    fn insert(&mut self, page: PageId, _dirty: &Dirty, out: &mut Vec<PageId>) {
        if self.len >= self.capacity {
            self.leave(out);
        }
        let room = |at: &usize| self.segments[*at].len() < self.limits[*at];
        let segment = (0..self.segments.len()).find(room).unwrap_or(0);
        self.put(page, segment);
        self.len += 1;
    }

    fn evict(&mut self, _dirty: &Dirty, out: &mut Vec<PageId>) {
        self.leave(out);
    }

    fn insert_cold(&mut self, page: PageId) {
        self.segments[0].push_back(&mut self.links, page);
        self.segment_of[page as usize] = 0;
        self.len += 1;
    }

    fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        let whole: usize = self.shares.iter().sum();
        self.limits.clear();
        // The limits are the differences of rounded sums, so that their sum is the capacity. Every
        // segment has room for at least one page, so a use never demotes the used page.
        let (mut sum, mut below) = (0, 0);
        for share in &self.shares {
            sum += share;
            let end = match self.rounds_down {
                true => below + capacity * share / whole,
                false => capacity * sum / whole,
            };
            self.limits.push((end - below).max(1));
            below = end;
        }
    }

    fn remove(&mut self, page: PageId) {
        if self.holds(page) {
            let segment = usize::from(self.segment_of[page as usize]);
            self.segments[segment].remove(&mut self.links, page);
            self.segment_of[page as usize] = ABSENT;
            self.len -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_segments_of_any_capacity_have_all_of_it() {
        // A quarter of 50 is 12.5. So two segments have 12 pages and two have 13.
        assert_eq!(Segmented::new(&[1; 4], 50, false).limits, [12, 13, 12, 13]);
        assert_eq!(Segmented::new(&[1; 4], 48, false).limits, [12; 4]);
        for capacity in 4..200 {
            let sum: usize = Segmented::new(&[1; 4], capacity, false).limits.iter().sum();
            assert_eq!(sum, capacity);
        }
        // Every segment has a page, even if the capacity has none for it.
        assert_eq!(Segmented::new(&[1; 4], 1, false).limits, [1; 4]);
        // The simulator of the published tables rounds down.
        assert_eq!(Segmented::new(&[1; 4], 50, true).limits, [12; 4]);
    }
}
