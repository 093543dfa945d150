//! Waiting writes of a side, in groups that are given to the side one after the other.
//!
//! Without a log, all waiting writes are in one group, in which a newer write replaces an older
//! one. The content of a side with a log passes through consistent points of the volume's history,
//! but not while the side is being given a group. So the first group, which is being given to the
//! side, accepts no more writes. A new write joins the last group, and replaces waiting parts
//! there.
//!
//! Until all of a group is in the log, no part of it can be destaged. So a group must never become
//! longer than the log has room for: a group that has reached its bound accepts no more writes.

use std::collections::VecDeque;
use std::ops::Range;

use super::Waiting;
use crate::BLOCK_BYTES;
use crate::extent_map::ExtentMap;

/// Groups of waiting writes; see the module documentation.
pub(super) struct Groups {
    /// Groups of waiting writes, in the order in which they are given to the side. There is always
    /// at least one group. Only the first group can be empty, and only when no write waits.
    groups: VecDeque<ExtentMap<Waiting>>,
    /// Whether the first group holds parts that wait again because the side could not store them.
    first_failed: bool,
    /// True if the side was given no part of the last group yet.
    last_is_whole: bool,
    /// Whether the side has a log.
    logged: bool,
}

impl Groups {
    /// Creates one empty group, for a side with a log (`logged`) or without.
    pub(super) fn new(logged: bool) -> Groups {
        Groups {
            groups: VecDeque::from([ExtentMap::new()]),
            first_failed: false,
            last_is_whole: false,
            logged,
        }
    }

    /// Returns the group that is being given to the side.
    pub(super) fn first(&self) -> &ExtentMap<Waiting> {
        &self.groups[0]
    }

    /// Returns, for modification, the only group of a side without a log.
    pub(super) fn first_mut(&mut self) -> &mut ExtentMap<Waiting> {
        &mut self.groups[0]
    }

    /// Returns the group that new writes join. A group that waits for its turn accepts no more
    /// writes once its parts, each with a log header, reach `bytes_max`.
    pub(super) fn gathering(&mut self, bytes_max: u64) -> &mut ExtentMap<Waiting> {
        let last = &self.groups[self.groups.len() - 1];
        let bytes = last.bytes() + last.len() as u64 * BLOCK_BYTES;
        let takes = self.last_is_whole && bytes < bytes_max;
        if self.logged && !last.is_empty() && !takes {
            self.groups.push_back(ExtentMap::new());
            self.last_is_whole = true;
        }
        self.first_failed &= !self.first().is_empty();
        self.groups.back_mut().expect("there is at least one")
    }

    /// Removes a waiting part of the write `seq` from its group, and returns it.
    ///
    /// # Panics
    /// When `part` is not the whole range of a waiting part of this write.
    pub(super) fn take(&mut self, part: &Range<u64>, seq: u64) -> Waiting {
        let holds = |group: &ExtentMap<Waiting>| {
            let mut there = group.overlapping(part);
            there.any(|(_, waiting)| waiting.ticket.seq == seq)
        };
        let group = self.groups.iter_mut().find(|group| holds(group));
        let mut taken = group
            .expect("a waiting part was chosen")
            .remove(part.clone());
        let (range, waiting) = taken.pop().expect("it was looked at");
        assert!(taken.is_empty() && range == *part, "a part is taken whole");
        self.forget_empty();
        waiting
    }

    /// Makes a part wait again on a side with a log, in front of all other waiting parts. No newer
    /// write is allowed to replace this part. Otherwise the log might need more room than it has,
    /// because it can destage none of the content until it holds all of it.
    pub(super) fn put_back(&mut self, part: Range<u64>, waiting: Waiting) {
        let joins = self.first_failed && self.first().is_clear(&part);
        if !self.first().is_empty() && !joins {
            self.groups.push_front(ExtentMap::new());
        }
        self.first_failed = true;
        self.groups[0].insert(part, waiting);
    }

    /// Removes and returns all waiting parts.
    pub(super) fn take_all(&mut self) -> Vec<(Range<u64>, Waiting)> {
        let all = std::mem::replace(self, Groups::new(self.logged));
        let groups = all.groups.into_iter();
        groups
            .flat_map(|mut group| group.remove(0..u64::MAX))
            .collect()
    }

    /// Removes all waiting parts of a write, and returns their ranges.
    pub(super) fn take_parts(&mut self, seq: u64, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut taken = Vec::new();
        for group in &mut self.groups {
            let parts = group.overlapping(range);
            let parts = parts.filter(|(_, waiting)| waiting.ticket.seq == seq);
            let parts: Vec<Range<u64>> = parts.map(|(part, _)| part).collect();
            for part in &parts {
                group.remove(part.clone());
            }
            taken.extend(parts);
        }
        self.forget_empty();
        taken
    }

    fn forget_empty(&mut self) {
        self.first_failed &= !self.first().is_empty();
        self.groups.retain(|group| !group.is_empty());
        if self.groups.is_empty() {
            self.groups.push_back(ExtentMap::new());
        }
        self.last_is_whole &= self.groups.len() > 1;
    }

    /// Returns the first part of a write, in any group, that satisfies `is_free` and overlaps no
    /// part of an earlier group.
    pub(super) fn first_that(
        &self,
        seq: u64,
        range: &Range<u64>,
        is_free: impl Fn(&Range<u64>) -> bool,
    ) -> Option<Range<u64>> {
        let in_group = |(at, group): (usize, &ExtentMap<Waiting>)| {
            let mut parts = group.overlapping(range);
            let found = parts.find(|(part, waiting)| {
                let before = || {
                    self.groups
                        .iter()
                        .take(at)
                        .all(|group| group.is_clear(part))
                };
                waiting.ticket.seq == seq && is_free(part) && before()
            });
            found.map(|(part, _)| part)
        };
        self.groups.iter().enumerate().find_map(in_group)
    }

    /// Returns the waiting parts that overlap a range, in the order of the groups.
    pub(super) fn overlapping(
        &self,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, &Waiting)> {
        let groups = self.groups.iter();
        groups.flat_map(move |group| group.overlapping(range))
    }

    /// Returns true when no write waits in a range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.groups.iter().all(|group| group.is_clear(range))
    }

    /// Returns the first position after the start of a range at which a waiting part of any group
    /// begins or ends; the end of the range if there is no such position.
    pub(super) fn first_boundary(&self, range: &Range<u64>) -> u64 {
        let boundaries = self.groups.iter().map(|group| group.first_boundary(range));
        boundaries.fold(range.end, u64::min)
    }

    /// Returns the number of waiting bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.groups.iter().map(ExtentMap::bytes).sum()
    }

    /// Returns the number of waiting parts.
    pub(super) fn parts(&self) -> usize {
        self.groups.iter().map(ExtentMap::len).sum()
    }
}
