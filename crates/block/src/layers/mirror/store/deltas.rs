//! Values of the entries of pages that have changed since the page was written to the device. With
//! them, an entry can change while its page is not in memory, and a page in memory can be dropped
//! at any time.
//!
//! An entry must never be dropped before the page with its value is on the device. While a page is
//! written, its entries are kept apart, so that a failed write loses none of them.

use std::collections::BTreeMap;
use std::ops::Range;

/// The changed entries of pages of one kind; see the module documentation.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    changed: BTreeMap<u64, Vec<Entry>>,
    /// Entries of pages that are being written.
    writing: BTreeMap<u64, Vec<Entry>>,
}

/// A changed entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    value: u32,
    index: u16,
    /// Whether the owner of the page knows the value that the page on the device has there, and
    /// has done what a change of it requires.
    is_settled: bool,
}

impl Deltas {
    /// Returns the value of an entry that has changed; `None` if it is as in the page.
    pub(super) fn get(&self, page: u64, index: u16) -> Option<u32> {
        let of = |pages: &BTreeMap<u64, Vec<Entry>>| {
            let entries = pages.get(&page)?;
            let at = entries.binary_search_by_key(&index, |entry| entry.index);
            at.ok().map(|at| entries[at].value)
        };
        of(&self.changed).or_else(|| of(&self.writing))
    }

    /// Sets the value of an entry. If it is the first change since the page was written,
    /// `is_settled` says whether the owner of the page has done what a change of the value in the
    /// page requires; else [`settle`](Self::settle) names the entry once the page was read.
    pub(super) fn set(&mut self, page: u64, index: u16, value: u32, is_settled: bool) {
        // A page that is being written was in memory with all of its entries.
        let is_settled = is_settled || self.get(page, index).is_some();
        let entries = self.changed.entry(page).or_default();
        match entries.binary_search_by_key(&index, |entry| entry.index) {
            Ok(at) => entries[at].value = value,
            Err(at) => entries.insert(
                at,
                Entry {
                    value,
                    index,
                    is_settled,
                },
            ),
        }
    }

    /// Settles the change of an entry. Returns true if it was not settled.
    pub(super) fn settle_entry(&mut self, page: u64, index: u16) -> bool {
        let Some(entries) = self.changed.get_mut(&page) else {
            return false;
        };
        match entries.binary_search_by_key(&index, |entry| entry.index) {
            Ok(at) => !std::mem::replace(&mut entries[at].is_settled, true),
            Err(_) => false,
        }
    }

    /// Settles the changes of a page. Calls `superseded` with the index of each entry that was not
    /// settled.
    pub(super) fn settle(&mut self, page: u64, mut superseded: impl FnMut(u16)) {
        for entry in self.changed.get_mut(&page).into_iter().flatten() {
            if !std::mem::replace(&mut entry.is_settled, true) {
                superseded(entry.index);
            }
        }
    }

    /// Sets the entries of a page, which were read from the device, to their changed values.
    /// Returns true if one of them has changed.
    pub(super) fn apply(&self, page: u64, entries: &mut [u32]) -> bool {
        let writing = self.writing.get(&page).into_iter().flatten();
        let changed = self.changed.get(&page).into_iter().flatten();
        let mut has_changed = false;
        for entry in writing.chain(changed) {
            entries[usize::from(entry.index)] = entry.value;
            has_changed = true;
        }
        has_changed
    }

    /// Returns the first page in a range of which an entry has changed, or the end of the range.
    pub(super) fn first_in(&self, pages: Range<u64>) -> u64 {
        let first = |of: &BTreeMap<u64, Vec<Entry>>| of.range(pages.clone()).next().map(|of| *of.0);
        let found = [first(&self.changed), first(&self.writing)];
        found.into_iter().flatten().min().unwrap_or(pages.end)
    }

    /// Returns the indices of the entries of a page that have changed, in ascending order.
    pub(super) fn indices(&self, page: u64) -> Vec<u16> {
        let entries = self.changed.get(&page).into_iter().flatten();
        entries.map(|entry| entry.index).collect()
    }

    /// Records that a page is being written as it is now. The owner has settled its changes.
    pub(super) fn begin_write(&mut self, page: u64) {
        let Some(entries) = self.changed.remove(&page) else {
            return;
        };
        let settled = entries.iter().all(|entry| entry.is_settled);
        assert!(settled, "page {page} is written with all that has changed");
        // The write before it may have failed in a way that its entries are still here.
        let older = self.writing.insert(page, entries);
        older
            .into_iter()
            .for_each(|older| self.put_below(page, older));
    }

    /// Records that the write of a page has ended. If it failed, its entries count as changed.
    pub(super) fn end_write(&mut self, page: u64, is_written: bool) {
        let Some(entries) = self.writing.remove(&page) else {
            return;
        };
        if is_written {
            return;
        }
        let newer = self.changed.insert(page, entries);
        for entry in newer.into_iter().flatten() {
            self.set(page, entry.index, entry.value, true);
        }
    }

    /// Adds older entries of a page that is being written.
    fn put_below(&mut self, page: u64, older: Vec<Entry>) {
        let entries = self.writing.entry(page).or_default();
        for entry in older {
            if let Err(at) = entries.binary_search_by_key(&entry.index, |entry| entry.index) {
                entries.insert(at, entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_known_until_the_page_with_it_is_written() {
        let mut deltas = Deltas::default();
        assert_eq!((deltas.get(3, 9), deltas.get(3, 2)), (None, None));
        deltas.set(3, 9, 90, true);
        deltas.set(3, 2, 20, true);
        assert_eq!(deltas.get(3, 9), Some(90));
        deltas.set(3, 9, 91, true);
        deltas.begin_write(3);
        assert_eq!(deltas.get(3, 9), Some(91), "the write can fail");
        deltas.set(3, 9, 92, false);
        assert!(!deltas.settle_entry(3, 9), "the page was in memory");
        deltas.end_write(3, true);
        assert_eq!((deltas.get(3, 9), deltas.get(3, 2)), (Some(92), None));
        assert_eq!(deltas.first_in(0..9), 3);
        deltas.begin_write(3);
        deltas.end_write(3, true);
        assert_eq!(deltas.first_in(0..9), 9);
    }

    #[test]
    fn a_failed_write_loses_no_entry_and_hides_no_newer_one() {
        let mut deltas = Deltas::default();
        deltas.set(1, 0, 10, true);
        deltas.set(1, 1, 11, true);
        deltas.begin_write(1);
        deltas.set(1, 1, 21, true);
        deltas.end_write(1, false);
        let mut entries = [0; 3];
        assert!(deltas.apply(1, &mut entries));
        assert_eq!(entries, [10, 21, 0]);
        // A page that is written again while an earlier write of it has not been judged.
        deltas.begin_write(1);
        deltas.set(1, 2, 32, true);
        deltas.begin_write(1);
        deltas.end_write(1, false);
        let mut entries = [0; 3];
        deltas.apply(1, &mut entries);
        assert_eq!(entries, [10, 21, 32]);
    }

    #[test]
    fn what_a_change_of_a_page_on_the_device_requires_is_asked_for_once() {
        let mut deltas = Deltas::default();
        deltas.set(1, 5, 50, false);
        deltas.set(1, 6, 60, true);
        deltas.set(1, 5, 51, false);
        deltas.set(1, 7, 70, false);
        assert_eq!(deltas.get(1, 7), Some(70));
        deltas.set(1, 7, 71, true);
        assert!(
            deltas.settle_entry(1, 7),
            "its first change was not settled"
        );
        assert!(!deltas.settle_entry(1, 7) && !deltas.settle_entry(1, 8));
        let mut superseded = Vec::new();
        deltas.settle(1, |index| superseded.push(index));
        deltas.settle(1, |index| superseded.push(index));
        assert_eq!(superseded, [5]);
    }
}
