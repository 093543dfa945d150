//! What waits for a side, in groups that follow each other.
//!
//! Without a log all that waits is one group, in which a newer write replaces an older one. A side
//! with a log passes through moments of the volume's history, and while it is being given a group
//! it is at none: so the first group, which it is being given, is not added to. What comes joins
//! the last one, and replaces what waits there.
//!
//! Until a group is in the log as a whole, nothing of it can go home. So a group must never become
//! longer than the log has room for: one that has reached its bound is not added to any more.

use std::collections::VecDeque;
use std::ops::Range;

use super::Waiting;
use crate::BLOCK_BYTES;
use crate::extent_map::ExtentMap;

/// See the module.
pub(super) struct Groups {
    /// In the order in which the side is given them. There is at least one, and only the first may
    /// be empty, when nothing waits at all.
    groups: VecDeque<ExtentMap<Waiting>>,
    /// The first group is what the side could not store, and waits again.
    first_failed: bool,
    /// The side has been given nothing of the last group.
    last_is_whole: bool,
    /// The side has a log.
    logged: bool,
}

impl Groups {
    /// Nothing, for a side with a log or without.
    pub(super) fn new(logged: bool) -> Groups {
        Groups {
            groups: VecDeque::from([ExtentMap::new()]),
            first_failed: false,
            last_is_whole: false,
            logged,
        }
    }

    /// The group that is being given to the side.
    pub(super) fn first(&self) -> &ExtentMap<Waiting> {
        &self.groups[0]
    }

    /// The same, for a side without a log: it has no other.
    pub(super) fn first_mut(&mut self) -> &mut ExtentMap<Waiting> {
        &mut self.groups[0]
    }

    /// The group that new writes join. One that waits for its turn is left as it is once its parts,
    /// with a header of the log for each, are `bytes_max`.
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

    /// Takes a part that waits out of its group.
    ///
    /// # Panics
    /// When it does not wait as a whole.
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

    /// A part of a side with a log waits again, before all that has not been given: nothing newer
    /// takes its place, or more might have to be in the log as a whole than it has room for.
    pub(super) fn put_back(&mut self, part: Range<u64>, waiting: Waiting) {
        let joins = self.first_failed && self.first().is_clear(&part);
        if !self.first().is_empty() && !joins {
            self.groups.push_front(ExtentMap::new());
        }
        self.first_failed = true;
        self.groups[0].insert(part, waiting);
    }

    /// Takes everything.
    pub(super) fn take_all(&mut self) -> Vec<(Range<u64>, Waiting)> {
        let all = std::mem::replace(self, Groups::new(self.logged));
        let groups = all.groups.into_iter();
        groups
            .flat_map(|mut group| group.remove(0..u64::MAX))
            .collect()
    }

    /// Takes all that waits of a write, and says which parts that was.
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

    /// The first part of a write in any group that nothing of the groups before it overlaps, and
    /// that is free.
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

    /// What waits in a range, in the order of the groups.
    pub(super) fn overlapping(
        &self,
        range: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, &Waiting)> {
        let groups = self.groups.iter();
        groups.flat_map(move |group| group.overlapping(range))
    }

    /// True when nothing waits in a range.
    pub(super) fn is_clear(&self, range: &Range<u64>) -> bool {
        self.groups.iter().all(|group| group.is_clear(range))
    }

    /// The first position behind the start of a range up to which all of it waits in a group, or
    /// nothing of it.
    pub(super) fn first_boundary(&self, range: &Range<u64>) -> u64 {
        let boundaries = self.groups.iter().map(|group| group.first_boundary(range));
        boundaries.fold(range.end, u64::min)
    }

    /// Bytes that wait.
    pub(super) fn bytes(&self) -> u64 {
        self.groups.iter().map(ExtentMap::bytes).sum()
    }

    /// Parts that wait.
    pub(super) fn parts(&self) -> usize {
        self.groups.iter().map(ExtentMap::len).sum()
    }
}
