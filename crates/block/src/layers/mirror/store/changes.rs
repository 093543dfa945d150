//! Changes of the pages of a logged side since its last commit: which entries have changed, and
//! which pages are to be written.
//!
//! A page has 1008 entries, and a random write changes one entry of one page. So changed entries go
//! into a journal, and a page is written only now and then: evenly, in the order of the pages, so
//! that the journal keeps its length. A page is *owed* while entries of it are in the journal and
//! not in a written version of the page.
//!
//! A commit must contain every entry that has changed before it: in a page that was written since
//! the previous commit, or in the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::layers::mirror::planted::{Bug, is_planted};

/// Maximum number of changed entries of a page that go into the journal. With more, writing the
/// page takes less space.
pub(in crate::layers::mirror::store) const ENTRIES_MAX: u16 = 252;
/// Number of attempts to read a page after which it is lost. A device may fail to read something
/// for a while.
const READS_MAX: u32 = 16;
/// Bytes that a page and each of its entries take in the journal.
const PAGE_BYTES: usize = 10;
const ENTRY_BYTES: usize = 6;

/// What has changed since a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::layers::mirror::store) struct Since {
    /// Pages that were written. What the journal says about them from before is void.
    pub(in crate::layers::mirror::store) written: BTreeSet<u64>,
    /// Entries that have changed, by page; after the page was written, if it was.
    pub(in crate::layers::mirror::store) entries: BTreeMap<u64, Vec<u16>>,
}

impl Since {
    /// Returns the entries that have changed, each with its index and its value. `value` returns
    /// the value of an entry; `None` if its page was written with it.
    ///
    /// # Panics
    /// When the value of an entry is in no page that was written since the previous commit.
    pub(in crate::layers::mirror::store) fn values_with(
        self,
        value: impl Fn(u64, u16) -> Option<u32>,
    ) -> BTreeMap<u64, Vec<(u16, u32)>> {
        let mut values = BTreeMap::new();
        for (page, indices) in self.entries {
            let entry = |index: u16| match value(page, index) {
                Some(value) => Some((index, value)),
                None => {
                    let is_written = self.written.contains(&page);
                    assert!(is_written, "page {page} has what the journal leaves out");
                    None
                }
            };
            let entries: Vec<_> = indices.into_iter().filter_map(entry).collect();
            if !entries.is_empty() {
                values.insert(page, entries);
            }
        }
        values
    }
}

/// The changes of the pages of one kind; see the module documentation.
#[derive(Debug, Default)]
pub(in crate::layers::mirror::store) struct Changes {
    since: Since,
    /// What the commit under way contains; restored if the commit fails.
    taken: Option<Since>,
    /// Pages that the next commit must write.
    due: BTreeSet<u64>,
    /// The owed pages, each with the number of the oldest run of the journal that has entries of
    /// it, and the number of owed pages by run.
    owed: BTreeMap<u64, u64>,
    owed_by_run: BTreeMap<u64, usize>,
    /// The owed page from which on pages are written next.
    next: u64,
    /// Pages that cannot be read, each with the number of attempts.
    unreadable: BTreeMap<u64, u32>,
}

impl Changes {
    /// Records that entries of a page have changed.
    pub(in crate::layers::mirror::store) fn note(&mut self, page: u64, entries: Range<u16>) {
        if self.due.contains(&page) {
            return;
        }
        let changed = self.since.entries.entry(page).or_default();
        changed.extend(entries);
        if changed.len() > usize::from(ENTRIES_MAX) {
            changed.sort_unstable();
            changed.dedup();
        }
        if changed.len() > usize::from(ENTRIES_MAX) {
            self.mark(page);
        }
    }

    /// Makes the next commit write a page. A commit under way that has taken its pages already
    /// still needs the entries that have changed, so they are kept until the page is taken.
    pub(in crate::layers::mirror::store) fn mark(&mut self, page: u64) {
        self.due.insert(page);
    }

    /// Records that run `run` of the journal, which was read when the side was opened, has entries
    /// of a page. Runs are given in ascending order.
    pub(in crate::layers::mirror::store) fn owe(&mut self, page: u64, run: u64) {
        if let std::collections::btree_map::Entry::Vacant(vacant) = self.owed.entry(page) {
            vacant.insert(run);
            *self.owed_by_run.entry(run).or_default() += 1;
        }
    }

    fn settle(&mut self, page: u64) {
        let Some(run) = self.owed.remove(&page) else {
            return;
        };
        let pages = self.owed_by_run.get_mut(&run).expect("owed pages count");
        *pages -= 1;
        if *pages == 0 {
            self.owed_by_run.remove(&run);
        }
    }

    /// Removes and returns the pages to write now, in ascending order: those that must be written,
    /// and up to `more` of the owed pages. The caller must write their present content, and then
    /// call [`note_written`](Self::note_written), or [`mark`](Self::mark) if it could not.
    pub(in crate::layers::mirror::store) fn take_pages(&mut self, more: usize) -> Vec<u64> {
        let mut pages = std::mem::take(&mut self.due);
        let behind = self.owed.range(self.next..);
        let turn = behind.chain(self.owed.range(..self.next));
        let owed: Vec<u64> = turn.take(more).map(|(page, _)| *page).collect();
        if let Some(last) = owed.last() {
            self.next = last + 1;
        }
        pages.extend(owed);
        for page in &pages {
            self.since.entries.remove(page);
            self.settle(*page);
        }
        pages.into_iter().collect()
    }

    /// Records that a page that was taken was not written, although the commit goes on. `entries`
    /// are all of its entries that have changed since it was written; the journal must have them.
    pub(in crate::layers::mirror::store) fn put_back(&mut self, page: u64, entries: Vec<u16>) {
        self.due.insert(page);
        if !entries.is_empty() {
            self.since.entries.insert(page, entries);
        }
    }

    /// Records that a page could not be read. Returns true after [`READS_MAX`] attempts: the page
    /// is lost then.
    pub(in crate::layers::mirror::store) fn is_unreadable_again(&mut self, page: u64) -> bool {
        let attempts = self.unreadable.entry(page).or_default();
        *attempts += 1;
        let is_lost = *attempts >= READS_MAX;
        if is_lost {
            self.unreadable.remove(&page);
        }
        is_lost
    }

    /// Records that a page was read.
    pub(in crate::layers::mirror::store) fn note_readable(&mut self, page: u64) {
        self.unreadable.remove(&page);
    }

    /// Records that the pages were written.
    pub(in crate::layers::mirror::store) fn note_written(
        &mut self,
        pages: impl IntoIterator<Item = u64>,
    ) {
        self.since.written.extend(pages);
    }

    /// Returns what the journal must say with the next commit, each list of entries sorted. If the
    /// commit fails, the next call returns it again.
    pub(in crate::layers::mirror::store) fn take(&mut self) -> Since {
        self.restore();
        let mut since = std::mem::take(&mut self.since);
        for entries in since.entries.values_mut() {
            entries.sort_unstable();
            entries.dedup();
        }
        self.taken = Some(since.clone());
        since
    }

    /// Takes back what a failed commit has taken.
    fn restore(&mut self) {
        let Some(taken) = self.taken.take() else {
            return;
        };
        for (page, entries) in taken.entries {
            // The page may have been written meanwhile; its entries are then in it, and are only
            // repeated.
            entries.iter().for_each(|at| self.note(page, *at..*at + 1));
        }
        self.since.written.extend(taken.written);
    }

    /// Records that the commit has succeeded, and that `run` is the first run of the journal with
    /// what [`take`](Self::take) returned.
    pub(in crate::layers::mirror::store) fn committed(&mut self, run: u64) {
        let taken = self.taken.take().unwrap_or_default();
        for page in taken.entries.into_keys() {
            self.owe(page, run);
        }
        if is_planted(Bug::ForgetsDuringCommit) {
            self.since = Since::default();
        }
    }

    /// Returns the number of the oldest run of the journal that is still needed.
    pub(in crate::layers::mirror::store) fn oldest_run(&self) -> Option<u64> {
        self.owed_by_run.keys().next().copied()
    }

    /// Returns the number of owed pages.
    pub(in crate::layers::mirror::store) fn owed_pages(&self) -> usize {
        self.owed.len()
    }

    /// Returns the number of pages that have changed since the last commit.
    pub(in crate::layers::mirror::store) fn changed_pages(&self) -> usize {
        self.since.entries.len() + self.due.len()
    }

    /// Returns the number of bytes that the changed entries take in the journal.
    pub(in crate::layers::mirror::store) fn journal_bytes(&self) -> u64 {
        let entries = self.since.entries.values();
        let bytes = entries.map(|entries| PAGE_BYTES + ENTRY_BYTES * entries.len());
        (bytes.sum::<usize>() + PAGE_BYTES * self.since.written.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(changes: &mut Changes, run: u64) -> Since {
        let since = changes.take();
        changes.committed(run);
        since
    }

    fn entries(since: &Since) -> Vec<(u64, Vec<u16>)> {
        let entries = since.entries.iter();
        entries.map(|(page, at)| (*page, at.clone())).collect()
    }

    #[test]
    fn changed_entries_are_in_one_commit_and_their_pages_are_owed() {
        let mut changes = Changes::default();
        changes.note(7, 5..7);
        changes.note(7, 2..3);
        changes.note(7, 6..7);
        changes.note(9, 0..1);
        assert_eq!(
            entries(&commit(&mut changes, 1)),
            [(7, vec![2, 5, 6]), (9, vec![0])]
        );
        assert_eq!(commit(&mut changes, 2), Since::default());
        assert_eq!((changes.oldest_run(), changes.owed_pages()), (Some(1), 2));
    }

    #[test]
    fn a_page_with_many_changes_is_written_and_not_journaled() {
        let mut changes = Changes::default();
        changes.note(3, 0..252);
        assert_eq!(changes.take_pages(0), []);
        changes.note(3, 251..253);
        assert_eq!(changes.take_pages(0), [3]);
        changes.note_written([3]);
        // What changes while the page is written follows it in the journal.
        changes.note(3, 9..10);
        let since = commit(&mut changes, 4);
        assert_eq!(since.written, BTreeSet::from([3]));
        assert_eq!(entries(&since), [(3, vec![9])]);
        assert_eq!(changes.oldest_run(), Some(4));
    }

    /// The map or the checksums can change while a commit writes. If a page becomes due then, the
    /// commit does not write it any more, so its journal must have what changed before the commit.
    #[test]
    fn a_page_that_becomes_due_during_a_commit_is_in_its_journal() {
        for is_marked in [true, false] {
            let mut changes = Changes::default();
            changes.note(3, 7..8);
            assert_eq!(changes.take_pages(0), []);
            match is_marked {
                true => changes.mark(3),
                false => changes.note(3, 100..400),
            }
            let since = commit(&mut changes, 1);
            assert!(since.entries[&3].contains(&7), "{since:?}");
            assert_eq!(changes.oldest_run(), Some(1));
            assert_eq!(changes.take_pages(0), [3]);
            assert_eq!(changes.oldest_run(), None);
        }
    }

    /// A page that is due collects no entries for the journal, so one that cannot be read and
    /// written brings all of them.
    #[test]
    fn a_page_that_cannot_be_read_is_in_the_journal_with_all_that_has_changed() {
        let mut changes = Changes::default();
        changes.note(3, 0..253);
        changes.note(3, 700..701);
        assert_eq!(changes.take_pages(0), [3]);
        let all: Vec<u16> = (0..253).chain([700]).collect();
        changes.put_back(3, all.clone());
        assert_eq!(entries(&commit(&mut changes, 4)), [(3, all)]);
        assert_eq!(changes.oldest_run(), Some(4));
        assert_eq!(changes.take_pages(0), [3], "the next commit tries again");
        let lost_after = (1..).find(|_| changes.is_unreadable_again(3));
        assert_eq!(lost_after, Some(READS_MAX));
        assert!(!changes.is_unreadable_again(3));
        changes.note_readable(3);
        assert_eq!((1..).find(|_| changes.is_unreadable_again(3)), lost_after);
    }

    #[test]
    fn a_failed_commit_is_repeated() {
        let mut changes = Changes::default();
        changes.note(1, 1..2);
        changes.mark(2);
        assert_eq!(changes.take_pages(0), [2]);
        changes.note_written([2]);
        let first = changes.take();
        changes.note(1, 0..1);
        let second = commit(&mut changes, 5);
        assert_eq!(second.written, first.written);
        assert_eq!(entries(&second), [(1, vec![0, 1])]);
        // A page that could not be written must be written by the next commit.
        changes.mark(2);
        assert_eq!(changes.take_pages(0), [2]);
    }

    #[test]
    fn owed_pages_are_written_in_turn_and_release_their_runs() {
        let mut changes = Changes::default();
        for run in 1..=4 {
            changes.note(run * 10, 0..1);
            changes.note(99, 0..1);
            commit(&mut changes, run);
        }
        assert_eq!(changes.oldest_run(), Some(1));
        assert_eq!(changes.take_pages(2), [10, 20]);
        assert_eq!(changes.oldest_run(), Some(1), "page 99 is in run 1");
        assert_eq!(changes.take_pages(3), [30, 40, 99]);
        assert_eq!(changes.oldest_run(), None);
        changes.note(5, 0..1);
        changes.note(60, 0..1);
        commit(&mut changes, 6);
        assert_eq!(
            changes.take_pages(1),
            [5],
            "the turn begins again behind the last page"
        );
    }
}
