//! Waiting writes of a side, in groups that follow each other.
//!
//! Without a log, all waiting writes are in one group, in which a newer write replaces an older
//! one. A side with a log passes through moments of the volume's history, and is at none of them
//! while it is being given a group. So the first group, which the side is being given, accepts no
//! more writes. A new write joins the last group, and replaces waiting parts there.
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
    /// Groups in the order in which the side is given them. There is at least one, and only the
    /// first may be empty, when no write waits.
    groups: VecDeque<ExtentMap<Waiting>>,
    /// The first group holds parts that the side could not store, and that wait again.
    first_failed: bool,
    /// The side has been given nothing of the last group.
    last_is_whole: bool,
    /// The side has a log.
    logged: bool,
}

impl Groups {
    /// Creates empty groups for a side with a log or without.
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

    /// Returns the only group of a side without a log.
    pub(super) fn first_mut(&mut self) -> &mut ExtentMap<Waiting> {
        &mut self.groups[0]
    }

    /// Returns the group that new writes join. A group that waits for its turn accepts no more
    /// writes once its parts, with a log header for each, reach `bytes_max`.
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

    /// Takes a waiting part out of its group.
    ///
    /// # Panics
    /// When the part does not wait as a whole.
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

    /// Makes a part of a side with a log wait again, before all parts that the side has not been
    /// given. No newer write replaces it, or more might have to be in the log as a whole than the
    /// log has room for.
    pub(super) fn put_back(&mut self, part: Range<u64>, waiting: Waiting) {
        let joins = self.first_failed && self.first().is_clear(&part);
        if !self.first().is_empty() && !joins {
            self.groups.push_front(ExtentMap::new());
        }
        self.first_failed = true;
        self.groups[0].insert(part, waiting);
    }

    /// Takes all waiting parts.
    pub(super) fn take_all(&mut self) -> Vec<(Range<u64>, Waiting)> {
        let all = std::mem::replace(self, Groups::new(self.logged));
        let groups = all.groups.into_iter();
        groups
            .flat_map(|mut group| group.remove(0..u64::MAX))
            .collect()
    }

    /// Takes all waiting parts of a write, and returns their ranges.
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

    /// Returns the first free part of a write in any group that no part of the groups before it
    /// overlaps.
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

    /// Returns the waiting parts in a range, in the order of the groups.
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

    /// Returns the first position behind the start of a range up to which, in each group, either
    /// all of the range waits or none of it.
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
