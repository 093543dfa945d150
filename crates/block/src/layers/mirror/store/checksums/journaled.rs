//! Checksums of a logged side: changed entries go into the journal of the side, and a page is
//! written only now and then.
//!
//! What the journal says about a page that is not in memory is kept until the page is read. A page
//! must never be used without it.

use std::collections::BTreeMap;
use std::ops::Range;

use super::entries::{Entries, encode};
use super::{Checksums, Purpose, RefCell};
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::store::changes::Changes;
use crate::layers::mirror::store::pages::WrittenIn;
use crate::layers::mirror::store::segments::{ChecksumChanges, ReplayedChecksums};

/// State of the checksums of a logged side; see the module documentation.
pub(super) struct Journaled {
    pub(super) changes: Changes,
    /// Entries of pages that were not read since the opening, as the journal says.
    replayed: BTreeMap<u64, Vec<(u16, u32)>>,
}

impl Checksums {
    /// Makes changed entries go into the journal. `replayed` is what an opening found in it, and
    /// `written` says which pages were ever written.
    pub(in crate::layers::mirror::store) fn with_journal(
        self,
        replayed: ReplayedChecksums,
        written: WrittenIn,
    ) -> Checksums {
        let mut changes = Changes::default();
        for (page, (run, _)) in &replayed {
            changes.owe(*page, *run);
        }
        let replayed = replayed.into_iter();
        let replayed = replayed.map(|(page, (_, entries))| (page, entries));
        let journaled = Journaled {
            changes,
            replayed: replayed.collect(),
        };
        Checksums {
            journaled: Some(RefCell::new(journaled)),
            write_back: self.write_back.with_written(written),
            ..self
        }
    }

    /// Records that entries of a page have changed, from the index `start` on.
    pub(super) fn note_changed(&self, page: u64, start: u64, entries: usize) {
        if let Some(journaled) = &self.journaled
            && !is_planted(Bug::JournalsNoChecksums)
        {
            let range = start as u16..start as u16 + entries as u16;
            journaled.borrow_mut().changes.note(page, range);
        }
    }

    /// Makes a page in memory due to be written as a whole.
    pub(super) fn make_due(&self, page: u64) {
        self.write_back.mark(page);
        if let Some(journaled) = &self.journaled {
            journaled.borrow_mut().changes.mark(page);
        }
    }

    /// Applies what the journal says about a page to its entries, which were just read. Returns
    /// true when it says something; the page must then be put into memory.
    pub(super) fn apply_replayed(&self, page: u64, entries: &mut Entries) -> bool {
        let journaled = self.journaled.as_ref();
        let replayed = journaled.and_then(|of| of.borrow_mut().replayed.remove(&page));
        let Some(replayed) = replayed.filter(|_| !is_planted(Bug::SkipsChecksums)) else {
            return false;
        };
        for (index, entry) in replayed {
            entries[usize::from(index)] = entry;
        }
        self.write_back.mark(page);
        true
    }

    /// Returns the first page in a range about which the journal says something that was not
    /// applied yet, or the end of the range.
    pub(super) fn first_replayed(&self, pages: Range<u64>) -> u64 {
        let end = pages.end;
        let first = |of: &RefCell<Journaled>| {
            let of = of.borrow();
            of.replayed.range(pages).next().map(|(page, _)| *page)
        };
        self.journaled.as_ref().and_then(first).unwrap_or(end)
    }

    /// Returns the number of pages of which the journal has entries, and the number of bytes that
    /// the changes since the last commit take in it.
    pub(in crate::layers::mirror::store) fn owed(&self) -> (usize, u64) {
        let Some(journaled) = &self.journaled else {
            return (0, 0);
        };
        let changes = &journaled.borrow().changes;
        (changes.owed_pages(), changes.journal_bytes())
    }

    /// Writes the pages that must be written, and up to `more` of those of which the journal has
    /// entries, without a flush. The future must run to completion. Returns the pages that were
    /// found damaged; the checksums of their blocks are lost.
    ///
    /// # Errors
    /// The first error of the device. The next call writes the pages that were not written.
    pub(in crate::layers::mirror::store) async fn write_some(
        &self,
        more: usize,
    ) -> Result<Vec<u64>, IoError> {
        let Some(journaled) = &self.journaled else {
            return Ok(Vec::new());
        };
        // Unchanged pages in memory are few beside the changed ones that the journal keeps there.
        let needed = self.write_back.needed_pages();
        let more = more.max(needed.saturating_sub(self.cached_pages_max / 4 * 3));
        let pages = journaled.borrow_mut().changes.take_pages(more);
        let result = self.write_pages(&pages).await;
        let changes = &mut journaled.borrow_mut().changes;
        match &result {
            Ok(_) => changes.note_written(pages),
            Err(_) => pages.iter().for_each(|page| changes.mark(*page)),
        }
        let mut cache = self.cache.borrow_mut();
        cache.rejoin(&self.write_back);
        cache.trim(self.cached_pages_max, &self.write_back);
        result
    }

    async fn write_pages(&self, pages: &[u64]) -> Result<Vec<u64>, IoError> {
        let mut lost = Vec::new();
        for page in pages {
            if !self.cache.borrow().pages.contains_key(page) {
                lost.extend(self.bring_in_to_write(*page).await?);
            }
        }
        let chosen = |page| pages.binary_search(&page).is_ok();
        let fill = |page, bytes: &mut [u8]| {
            let cache = self.cache.borrow();
            let cached = cache.pages.get(&page);
            let cached = cached.expect("a page stays in memory until it has been written");
            encode(&cached.entries, bytes);
        };
        self.write_back.run_on(chosen, fill).await?;
        Ok(lost)
    }

    /// Brings a page into memory that is to be written. Returns its number if it was damaged.
    async fn bring_in_to_write(&self, page: u64) -> Result<Option<u64>, IoError> {
        let first = Checksums::blocks_of(page).start;
        let one = first..first + 1;
        let none = |_, _: &mut [u32]| ();
        match self.visit_each(one, page + 1, Purpose::Change, none).await {
            Err(IoError::Corrupt) => {
                self.reset_page(page).await;
                Ok(Some(page))
            }
            other => other.map(|()| None),
        }
    }

    /// Returns what the journal must say about the checksums with the next commit.
    pub(in crate::layers::mirror::store) fn take_changes(&self) -> ChecksumChanges {
        let Some(journaled) = &self.journaled else {
            return ChecksumChanges::default();
        };
        let since = journaled.borrow_mut().changes.take();
        let cache = self.cache.borrow();
        let entries = since.entries.into_iter().map(|(page, indices)| {
            let cached = cache.pages.get(&page);
            let entries = &cached.expect("a changed page stays in memory").entries;
            let entry = |index: u16| (index, entries[usize::from(index)]);
            (page, indices.into_iter().map(entry).collect())
        });
        ChecksumChanges {
            written: since.written.into_iter().collect(),
            entries: entries.collect(),
        }
    }

    /// Records that a commit has succeeded, whose first run of the journal is `run`.
    pub(in crate::layers::mirror::store) fn committed(&self, run: u64) {
        if let Some(journaled) = &self.journaled {
            journaled.borrow_mut().changes.committed(run);
        }
    }

    /// Returns the number of the oldest run of the journal that the checksums need.
    pub(in crate::layers::mirror::store) fn oldest_run(&self) -> Option<u64> {
        self.journaled.as_ref()?.borrow().changes.oldest_run()
    }
}
