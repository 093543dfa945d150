//! Requests in ascending order of sector, in a sorted array where the kernel has a red-black tree.
//!
//! The number of requests is bounded by the number of the caller's tags, a few hundred. For this
//! number an array with binary search is smaller and faster than a tree, and it allocates nothing
//! once it has grown. Requests at the same sector are in order of their tags.

use super::Tag;
use crate::lists::take_at;

/// Requests with the sectors that they are sorted by.
#[derive(Clone, Debug, Default)]
pub(super) struct Sorted {
    entries: Vec<(u64, Tag)>,
}

impl Sorted {
    /// Creates an empty array with room for `requests` requests.
    pub(super) fn with_capacity(requests: usize) -> Sorted {
        Sorted {
            entries: Vec::with_capacity(requests),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Inserts `tag`, which is not in the array, at `sector`.
    pub(super) fn insert(&mut self, sector: u64, tag: Tag) {
        let at = self.lower_bound((sector, tag));
        self.entries.insert(at, (sector, tag));
    }

    /// Removes the request `tag` at `sector`; returns false if it is not in the array.
    pub(super) fn remove(&mut self, sector: u64, tag: Tag) -> bool {
        let found = self.entries.binary_search(&(sector, tag));
        found.map(|at| take_at(&mut self.entries, at)).is_ok()
    }

    /// Returns the first request.
    pub(super) fn first(&self) -> Option<Tag> {
        self.entries.first().map(|entry| entry.1)
    }

    /// Returns the request after the position of (`sector`, `tag`). The request `tag` itself need
    /// not be in the array.
    pub(super) fn after(&self, sector: u64, tag: Tag) -> Option<Tag> {
        let at = self
            .entries
            .partition_point(|entry| *entry <= (sector, tag));
        self.entries.get(at).map(|entry| entry.1)
    }

    /// Returns the request before the position of (`sector`, `tag`). The request `tag` itself need
    /// not be in the array.
    pub(super) fn before(&self, sector: u64, tag: Tag) -> Option<Tag> {
        let at = self.lower_bound((sector, tag)).checked_sub(1)?;
        Some(self.entries[at].1)
    }

    /// Returns the first request that starts at `sector` or above.
    pub(super) fn from(&self, sector: u64) -> Option<Tag> {
        let entry = self.entries.get(self.lower_bound((sector, 0)))?;
        Some(entry.1)
    }

    /// Returns the first request at exactly `sector`.
    pub(super) fn at(&self, sector: u64) -> Option<Tag> {
        let entry = self.entries.get(self.lower_bound((sector, 0)))?;
        (entry.0 == sector).then_some(entry.1)
    }

    fn lower_bound(&self, key: (u64, Tag)) -> usize {
        self.entries.partition_point(|entry| *entry < key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_found_whether_or_not_the_request_is_here() {
        let mut sorted = Sorted::with_capacity(4);
        for (sector, tag) in [(30, 1), (10, 2), (20, 3), (20, 0)] {
            sorted.insert(sector, tag);
        }
        assert_eq!(sorted.len(), 4);
        assert_eq!(sorted.first(), Some(2));
        assert_eq!(sorted.at(20), Some(0));
        assert_eq!(sorted.at(21), None);
        assert_eq!(sorted.after(20, 3), Some(1));
        assert_eq!(sorted.before(20, 0), Some(2));
        assert!(sorted.remove(20, 3));
        assert!(!sorted.remove(20, 3));
        assert_eq!(sorted.after(20, 3), Some(1));
        assert_eq!(sorted.before(10, 2), None);
        assert_eq!(sorted.after(30, 1), None);
    }
}
