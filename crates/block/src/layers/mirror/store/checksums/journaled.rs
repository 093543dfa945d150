//! Checksums of a logged side: changed entries go into the journal of the side, and a page is
//! written only now and then. An entry changes without its page: what has changed since a page was
//! written is kept apart from the pages in memory.
//!
//! A page must never be used without what has changed since.

use std::ops::Range;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::entries::encode;
use super::{Checksums, Expected, PAGE_BLOCKS, Purpose, RefCell};
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::store::changes::Changes;
use crate::layers::mirror::store::deltas::Deltas;
use crate::layers::mirror::store::pages::{Area, WrittenIn};
use crate::layers::mirror::store::segments::{ChecksumChanges, ReplayedChecksums};

/// Maximum number of requests in flight that read pages which are written next.
const READS_IN_FLIGHT_MAX: usize = 8;

/// State of the checksums of a logged side; see the module documentation.
#[derive(Default)]
pub(super) struct Journaled {
    pub(super) changes: Changes,
    deltas: Deltas,
}

/// Pages of the checksums that a commit writes. They are in memory. If they are dropped, the next
/// commit writes them.
pub(in crate::layers::mirror::store) struct ChecksumPages<'c> {
    of: &'c Checksums,
    pages: Vec<u64>,
    /// Pages among them that were damaged.
    lost: Vec<u64>,
}

impl Drop for ChecksumPages<'_> {
    fn drop(&mut self) {
        if let Some(journaled) = &self.of.journaled {
            let changes = &mut journaled.borrow_mut().changes;
            self.pages.iter().for_each(|page| changes.mark(*page));
        }
    }
}

/// What became of pages that were to be brought into memory.
#[derive(Default)]
struct Brought {
    /// Pages that were damaged: the checksums of their blocks are lost.
    lost: Vec<u64>,
    /// Pages that cannot be read now, and are not in memory.
    unreadable: Vec<u64>,
}

impl Checksums {
    /// Makes changed entries go into the journal. `replayed` is what an opening found in it, and
    /// `written` says which pages were ever written.
    pub(in crate::layers::mirror::store) fn with_journal(
        self,
        replayed: ReplayedChecksums,
        written: WrittenIn,
    ) -> Checksums {
        let mut journaled = Journaled::default();
        for (page, (run, entries)) in replayed {
            journaled.changes.owe(page, run);
            for (index, entry) in entries {
                if !is_planted(Bug::SkipsChecksums) {
                    journaled.deltas.set(page, index, entry, true);
                }
            }
        }
        Checksums {
            journaled: Some(RefCell::new(journaled)),
            write_back: self.write_back.with_written(written),
            ..self
        }
    }

    /// Changes entries of a page of a logged side, from the index `start` on.
    pub(super) fn change(&self, page: u64, start: u64, values: &[Expected]) {
        let Some(journaled) = &self.journaled else {
            return;
        };
        let mut journaled = journaled.borrow_mut();
        let end = start + values.len() as u64;
        for (index, value) in (start as u16..).zip(values) {
            journaled.deltas.set(page, index, value.entry(), true);
        }
        if !is_planted(Bug::JournalsNoChecksums) {
            journaled.changes.note(page, start as u16..end as u16);
        }
        drop(journaled);
        if let Some(cached) = self.cache.borrow_mut().pages.get_mut(&page) {
            let inside = &mut cached.entries[start as usize..end as usize];
            for (entry, value) in inside.iter_mut().zip(values) {
                *entry = value.entry();
            }
        }
    }

    /// Makes a page in memory due to be written as a whole. It stays in memory until then.
    pub(super) fn make_due(&self, page: u64) {
        self.write_back.mark(page);
        if let Some(journaled) = &self.journaled {
            journaled.borrow_mut().changes.mark(page);
        }
    }

    /// Applies what has changed since a page of a logged side was written to its entries, which
    /// were just read.
    pub(super) fn apply_changes(&self, page: u64, entries: &mut [u32]) {
        if let Some(journaled) = &self.journaled {
            journaled.borrow().deltas.apply(page, entries);
        }
    }

    /// Returns the first page in a range of which entries have changed since it was written, or the
    /// end of the range.
    pub(super) fn first_changed(&self, pages: Range<u64>) -> u64 {
        match &self.journaled {
            Some(journaled) => journaled.borrow().deltas.first_in(pages),
            None => pages.end,
        }
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

    /// Takes the pages that must be written, and up to `more` of those of which the journal has
    /// entries, and reads those that are not in memory. A page that cannot be read now is left out,
    /// and the journal must have all that has changed in it.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in crate::layers::mirror::store) async fn take_pages(
        &self,
        more: usize,
    ) -> Result<ChecksumPages<'_>, IoError> {
        let mut taken = ChecksumPages {
            of: self,
            pages: Vec::new(),
            lost: Vec::new(),
        };
        let Some(journaled) = &self.journaled else {
            return Ok(taken);
        };
        taken.pages = journaled.borrow_mut().changes.take_pages(more);
        let brought = self.bring_in_to_write(&taken.pages).await?;
        let mut of = journaled.borrow_mut();
        for page in &brought.unreadable {
            let entries = of.deltas.indices(*page);
            of.changes.put_back(*page, entries);
        }
        taken
            .pages
            .retain(|page| !brought.unreadable.contains(page));
        taken.lost = brought.lost;
        Ok(taken)
    }

    /// Writes pages that were taken, without a flush. The future must run to completion. Returns
    /// the pages that were found damaged; the checksums of their blocks are lost.
    ///
    /// # Errors
    /// The first error of the device. The next commit writes the pages that were not written.
    pub(in crate::layers::mirror::store) async fn write_taken(
        &self,
        mut taken: ChecksumPages<'_>,
    ) -> Result<Vec<u64>, IoError> {
        let pages = std::mem::take(&mut taken.pages);
        let result = self.write_pages(&pages).await;
        if let Some(journaled) = &self.journaled {
            let mut of = journaled.borrow_mut();
            for page in &pages {
                of.deltas.end_write(*page, result.is_ok());
            }
            match &result {
                Ok(()) => of.changes.note_written(pages),
                Err(_) => pages.iter().for_each(|page| of.changes.mark(*page)),
            }
        }
        let mut cache = self.cache.borrow_mut();
        cache.rejoin(&self.write_back);
        cache.trim(self.cached_pages_max, &self.write_back);
        result.map(|()| std::mem::take(&mut taken.lost))
    }

    async fn write_pages(&self, pages: &[u64]) -> Result<(), IoError> {
        let chosen = |page| pages.binary_search(&page).is_ok();
        let fill = |page, bytes: &mut [u8]| {
            let cache = self.cache.borrow();
            let cached = cache.pages.get(&page);
            let cached = cached.expect("a page stays in memory until it has been written");
            encode(&cached.entries, bytes);
            if let Some(journaled) = &self.journaled {
                journaled.borrow_mut().deltas.begin_write(page);
            }
        };
        self.write_back.run_on(chosen, fill).await
    }

    /// Brings pages into memory that are to be written, and makes them stay there.
    async fn bring_in_to_write(&self, pages: &[u64]) -> Result<Brought, IoError> {
        let together = |a: &u64, b: &u64| a + 1 == *b;
        let run_pages_max = Area::run_pages_max(&*self.device) as usize;
        let runs = pages.chunk_by(together);
        let mut runs = runs.flat_map(|run| run.chunks(run_pages_max));
        let mut reads = FuturesUnordered::new();
        let (mut all, mut result) = (Brought::default(), Ok(()));
        loop {
            while reads.len() < READS_IN_FLIGHT_MAX
                && result.is_ok()
                && let Some(run) = runs.next()
            {
                reads.push(self.bring_in_run(run));
            }
            match reads.next().await {
                None => return result.map(|()| all),
                Some(Ok(brought)) => {
                    all.lost.extend(brought.lost);
                    all.unreadable.extend(brought.unreadable);
                }
                Some(Err(error)) => result = Err(error),
            }
        }
    }

    async fn bring_in_run(&self, run: &[u64]) -> Result<Brought, IoError> {
        let mut brought = Brought::default();
        let end = run.last().map_or(0, |last| last + 1);
        for page in run {
            let first = page * PAGE_BLOCKS;
            let mark = |page, _: &mut [u32]| self.write_back.mark(page);
            let bring_in = |end| self.visit_each(first..first + 1, end, Purpose::Change, mark);
            let mut result = bring_in(end).await;
            if result.is_err_and(IoError::is_of_a_block) && end > page + 1 {
                // Another page of the run may be the one that cannot be read.
                result = bring_in(page + 1).await;
            }
            match result {
                Err(error) if error.is_of_a_block() => {
                    self.note_not_read(*page, error, &mut brought).await;
                }
                other => other?,
            }
        }
        Ok(brought)
    }

    /// Records that a page that is to be written cannot be read, or is damaged. Its checksums are
    /// lost if it is damaged, or was not readable many times.
    async fn note_not_read(&self, page: u64, error: IoError, brought: &mut Brought) {
        let again = |of: &RefCell<Journaled>| of.borrow_mut().changes.is_unreadable_again(page);
        if error == IoError::Corrupt || self.journaled.as_ref().is_some_and(again) {
            self.reset_page(page).await;
            brought.lost.push(page);
        } else {
            brought.unreadable.push(page);
        }
    }

    /// Returns what the journal must say about the checksums with the next commit.
    pub(in crate::layers::mirror::store) fn take_changes(&self) -> ChecksumChanges {
        let Some(journaled) = &self.journaled else {
            return ChecksumChanges::default();
        };
        let mut journaled = journaled.borrow_mut();
        let since = journaled.changes.take();
        let written = since.written.iter().copied().collect();
        let value = |page, index| journaled.deltas.get(page, index);
        ChecksumChanges {
            written,
            entries: since.values_with(value),
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
