//! A list of small numbers in the order of their last use, in two dense arrays.
//!
//! The cached table evicts its least recently used entry, and BAST merges its least recently used
//! log block. Both use this list.

use crate::geometry::NONE;

/// List of numbers below a bound, with the most recently used number first. All operations take
/// O(1) time and allocate no memory.
#[derive(Debug)]
pub(crate) struct Recency {
    /// Links of each number: the next older number and the next newer number. The last entry is the
    /// anchor of the ring.
    links: Vec<(u32, u32)>,
    anchor: u32,
}

impl Recency {
    /// Creates an empty list of numbers below `bound`.
    pub fn new(bound: u32) -> Self {
        let mut links = vec![(NONE, NONE); bound as usize + 1];
        links[bound as usize] = (bound, bound);
        Recency {
            links,
            anchor: bound,
        }
    }

    fn holds(&self, number: u32) -> bool {
        self.links[number as usize].0 != NONE
    }

    /// Moves `number` to the front of the list, or adds it at the front if it is not in the list.
    pub fn touch(&mut self, number: u32) {
        self.remove(number);
        let newest = self.links[self.anchor as usize].0;
        self.links[number as usize] = (newest, self.anchor);
        self.links[newest as usize].1 = number;
        self.links[self.anchor as usize].0 = number;
    }

    /// Removes `number` if it is in the list.
    pub fn remove(&mut self, number: u32) {
        if !self.holds(number) {
            return;
        }
        let (older, newer) = self.links[number as usize];
        self.links[older as usize].1 = newer;
        self.links[newer as usize].0 = older;
        self.links[number as usize] = (NONE, NONE);
    }

    /// Returns the least recently used number; `None` if the list is empty.
    pub fn oldest(&self) -> Option<u32> {
        let oldest = self.links[self.anchor as usize].1;
        (oldest != self.anchor).then_some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::Recency;

    #[test]
    fn the_least_recently_used_leaves_first() {
        let mut list = Recency::new(4);
        assert_eq!(list.oldest(), None);
        for number in [0, 1, 2, 3, 0] {
            list.touch(number);
        }
        list.remove(2);
        let mut left = Vec::new();
        while let Some(oldest) = list.oldest() {
            left.push(oldest);
            list.remove(oldest);
        }
        assert_eq!(left, [1, 3, 0]);
    }
}
