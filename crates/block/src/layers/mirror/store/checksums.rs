//! The expected checksum of each block at its home location. The checksums are stored in the
//! checksum area, in pages of 4 KiB that describe 1008 blocks each, and are read through a cache of
//! bounded size. `docs/format/mirror-side.md` specifies the bytes.
//!
//! The checksum of a block is needed at every read and changes at every write. The area takes one
//! 1008th of the side, which is too much to keep in memory, and its pages are too small to be read
//! from the device each time.
//!
//! This module must never trust a damaged page, never evict a changed page before it is on the
//! device, and never flush. Only the code that drops log entries, from which the pages could be
//! rebuilt, decides when pages must be durable.

mod cache;
mod entries;
#[cfg(test)]
pub(super) mod fixture;
mod journaled;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Rt;
use bimetal_rt::sync::WaitQueue;
use bimetal_rt::turn::{count_entries, give_way};

use self::journaled::Journaled;
use super::areas::CheckedAreas;
use super::pages::{Area, PageError, WriteBack, WrittenIn};
use crate::device::{Device, Statistic, StatisticVisitor};
use crate::error::IoError;
use crate::layers::mirror::superblock::areas::{PAGE_BLOCKS, PAGE_BYTES};
use cache::Cache;
pub(super) use entries::Expected;
use entries::{Entries, decode, encode, first_entries, kind_of, unknown_entries};
pub(super) use entries::{expected_of, verify};

/// Registration of pages that are being read. Dropping this guard wakes the requests that wait for
/// one of the pages, whether the read succeeded or not; these requests then check again.
struct Loading<'a> {
    of: &'a Checksums,
    run: Range<u64>,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        for page in self.run.clone() {
            self.of.loading.borrow_mut().remove(&page);
            self.of.loaded.wake_at(page);
        }
    }
}

/// Purpose for which the entries of a page are requested.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The entries are only compared with data. If their page was never written, its entries are
    /// known, so the page is not put into memory.
    Verify,
    /// The entries are changed, so their page must be in memory.
    Change,
}

/// The checksum area of a side in use.
pub(super) struct Checksums {
    device: Rc<dyn Device>,
    area: Area,
    blocks: Cell<u64>,
    /// Number of blocks at the start of the data area that may have old content. If the checksum
    /// page of such a block was never written, the content of the block is unknown. For any later
    /// block, an unwritten checksum page means that the block was never written.
    unknown_blocks: u64,
    cached_pages_max: usize,
    cache: RefCell<Cache>,
    loading: RefCell<BTreeSet<u64>>,
    /// Requests that wait until a page was read, by the number of the page.
    loaded: WaitQueue,
    write_back: WriteBack,
    /// What goes into the journal of a logged side; `None` on a side with a home.
    journaled: Option<RefCell<Journaled>>,
    damaged: RefCell<BTreeMap<u64, PageError>>,
    damaged_pages: Cell<u64>,
    loads: Cell<u64>,
}

impl Checksums {
    /// Creates the checksum area of a side with `blocks` blocks of data. At most `cached_pages_max`
    /// unchanged pages are kept in memory. Reads nothing.
    ///
    /// # Panics
    /// When the area is too short for this number of blocks.
    pub(super) fn new(
        rt: &Rt,
        device: &Rc<dyn Device>,
        area: Area,
        blocks: u64,
        cached_pages_max: usize,
    ) -> Checksums {
        assert!(
            blocks.div_ceil(PAGE_BLOCKS) <= area.pages(),
            "the area has room for {blocks} blocks"
        );
        Checksums {
            device: Rc::clone(device),
            area,
            blocks: blocks.into(),
            unknown_blocks: 0,
            cached_pages_max,
            cache: RefCell::default(),
            loading: RefCell::default(),
            loaded: WaitQueue::new(),
            write_back: WriteBack::new(rt, device, area),
            journaled: None,
            damaged: RefCell::default(),
            damaged_pages: Cell::new(0),
            loads: Cell::new(0),
        }
    }

    /// Preloads the checksums of blocks into memory, as far as there is room. `changed` means that
    /// the blocks will be changed. The pages that were never written are then put into memory too,
    /// so that changed pages can be written together with the pages between them.
    ///
    /// # Errors
    /// As for [`expected`](Self::expected).
    pub(super) async fn bring_in(&self, blocks: Range<u64>, changed: bool) -> Result<(), IoError> {
        let purpose = match changed {
            true => Purpose::Change,
            false => Purpose::Verify,
        };
        let room = (self.cached_pages_max / 4).max(1) as u64 * PAGE_BLOCKS;
        let end = blocks.end.min(blocks.start + room).min(self.blocks.get());
        let load_end = Checksums::page_of(end.saturating_sub(1)) + 1;
        self.visit(blocks.start..end, load_end, purpose, |_, _| {})
            .await
    }

    /// Sets the written bits of the pages, for a side on which formatting did not write all pages.
    /// The first `unknown_blocks` blocks of the data area are unknown as long as their page was
    /// never written.
    pub(super) fn with_written(self, written: WrittenIn, unknown_blocks: u64) -> Checksums {
        Checksums {
            unknown_blocks,
            write_back: self.write_back.with_written(written),
            ..self
        }
    }

    /// Extends the data area to at least `blocks` blocks.
    ///
    /// # Panics
    /// When the checksum area is too short for this number of blocks.
    pub(super) fn reach(&self, blocks: u64) {
        assert!(
            blocks.div_ceil(PAGE_BLOCKS) <= self.area.pages(),
            "the area has room for {blocks} blocks"
        );
        self.blocks.set(self.blocks.get().max(blocks));
    }

    /// Returns the number of the page that describes a block.
    pub(super) fn page_of(block: u64) -> u64 {
        block / PAGE_BLOCKS
    }

    /// Returns the blocks that a page describes.
    pub(super) fn blocks_of(page: u64) -> Range<u64> {
        page * PAGE_BLOCKS..(page + 1) * PAGE_BLOCKS
    }

    /// Returns the checksum entry of each block in a range.
    ///
    /// # Errors
    /// `Corrupt` when a page is [damaged](Self::damaged); otherwise errors of the device.
    ///
    /// # Panics
    /// When the range exceeds the data area.
    pub(super) async fn expected(&self, blocks: Range<u64>) -> Result<Vec<Expected>, IoError> {
        let mut expected = Vec::with_capacity((blocks.end - blocks.start) as usize);
        let load_end = blocks.end.div_ceil(PAGE_BLOCKS);
        self.visit(blocks, load_end, Purpose::Verify, |_, entries| {
            expected.extend(entries.iter().map(|entry| Expected::of_entry(*entry)));
        })
        .await?;
        Ok(expected)
    }

    /// Returns the kinds of the checksum entries of the blocks in a range, as runs of one kind with
    /// their lengths in blocks. All digests count as one kind.
    ///
    /// The answer ends at the end of the page that describes the first block, and the call preloads
    /// further pages of the range into memory while there is room. But if the first page was never
    /// written, the answer can extend over the pages after it that were never written.
    ///
    /// # Errors
    /// As for [`expected`](Self::expected).
    ///
    /// # Panics
    /// When the range is empty or exceeds the data area.
    pub(super) async fn kinds_in_page(
        &self,
        blocks: Range<u64>,
    ) -> Result<Vec<(Expected, u64)>, IoError> {
        assert!(!blocks.is_empty(), "a block is asked about");
        if let Some(run) = self.untouched(&blocks) {
            return Ok(vec![run]);
        }
        let page = Checksums::page_of(blocks.start);
        let ahead = (self.cached_pages_max / 2).max(1) as u64;
        let load_end = blocks.end.div_ceil(PAGE_BLOCKS).min(page + ahead);
        let in_page = blocks.start..blocks.end.min(Checksums::blocks_of(page).end);
        let mut kinds = Vec::new();
        self.visit(in_page, load_end, Purpose::Verify, |_, entries| {
            let runs = entries.chunk_by(|a, b| kind_of(*a) == kind_of(*b));
            kinds.extend(runs.map(|run| (kind_of(run[0]), run.len() as u64)));
        })
        .await?;
        Ok(kinds)
    }

    /// Looks at the blocks at the start of a range whose checksum pages were never written and are
    /// not in memory. Returns the checksum entry that these blocks have in common, and their
    /// number. Returns `None` if the page of the first block was written or is in memory.
    pub(super) fn untouched(&self, blocks: &Range<u64>) -> Option<(Expected, u64)> {
        let pages = Checksums::page_of(blocks.start)..blocks.end.div_ceil(PAGE_BLOCKS);
        let end_page = self.write_back.written().first_written(pages.clone());
        let cache = self.cache.borrow();
        let cached = cache.pages.range(pages.start..end_page).next();
        let end_page = cached.map_or(end_page, |(page, _)| *page);
        let end_page = self.first_changed(pages.start..end_page);
        if end_page == pages.start {
            return None;
        }
        let end = blocks.end.min(end_page * PAGE_BLOCKS);
        Some(match blocks.start < self.unknown_blocks {
            true => (
                Expected::Unknown,
                end.min(self.unknown_blocks) - blocks.start,
            ),
            false => (Expected::NeverWritten, end - blocks.start),
        })
    }

    /// Returns the entries that a page has before it is first written.
    fn first_entries(&self, page: u64) -> Entries {
        first_entries(page, self.unknown_blocks)
    }

    /// Changes the checksum entries of the blocks from `first_block` on. The changes reach the
    /// device with the next [`write_back`](Self::write_back).
    ///
    /// # Errors
    /// As for [`expected`](Self::expected). Some of the entries can have changed before the error;
    /// repeating the call is safe.
    ///
    /// # Panics
    /// When the range exceeds the data area.
    pub(super) async fn update(
        &self,
        first_block: u64,
        values: &[Expected],
    ) -> Result<(), IoError> {
        if self.journaled.is_some() {
            self.update_without_pages(first_block, values).await;
            return Ok(());
        }
        let mut values = values.iter();
        let blocks = first_block..first_block + values.len() as u64;
        let load_end = blocks.end.div_ceil(PAGE_BLOCKS);
        self.visit(blocks, load_end, Purpose::Change, |page, entries| {
            for (entry, value) in entries.iter_mut().zip(values.by_ref()) {
                *entry = value.entry();
            }
            self.write_back.mark(page);
        })
        .await
    }

    async fn update_without_pages(&self, first_block: u64, values: &[Expected]) {
        let blocks = first_block..first_block + values.len() as u64;
        assert!(
            blocks.end <= self.blocks.get(),
            "the blocks {blocks:?} lie in the data"
        );
        let mut next = blocks.start;
        while next < blocks.end {
            give_way().await;
            let page = Checksums::page_of(next);
            let end = blocks.end.min(Checksums::blocks_of(page).end);
            let inside = (next - blocks.start) as usize..(end - blocks.start) as usize;
            count_entries(inside.len());
            self.change(page, next % PAGE_BLOCKS, &values[inside]);
            next = end;
        }
    }

    /// Makes pages due to be written again, although their entries have not changed.
    ///
    /// # Errors
    /// As for [`expected`](Self::expected).
    pub(super) async fn write_again(&self, pages: Vec<u64>) -> Result<(), IoError> {
        for page in pages {
            let first = Checksums::blocks_of(page).start;
            if first >= self.blocks.get() {
                continue;
            }
            let one = first..first + 1;
            let mark = |page, _: &mut [u32]| self.make_due(page);
            self.visit(one, page + 1, Purpose::Change, mark).await?;
        }
        Ok(())
    }

    /// Writes all pages that were changed before the call, without a flush. The future must run to
    /// completion.
    ///
    /// # Errors
    /// The first error of the device. Pages that were not written are written by the next call.
    pub(super) async fn write_back(&self) -> Result<(), IoError> {
        self.write_back
            .bridge(|page| self.cache.borrow().pages.contains_key(&page));
        let fill = |page, bytes: &mut [u8]| {
            let cache = self.cache.borrow();
            let cached = cache.pages.get(&page);
            let cached = cached.expect("a page stays in memory until it has been written");
            encode(&cached.entries, bytes);
        };
        let result = self.write_back.run(fill).await;
        let mut cache = self.cache.borrow_mut();
        cache.rejoin(&self.write_back);
        cache.trim(self.cached_pages_max, &self.write_back);
        result
    }

    /// Reads back the pages that were written since the last call. Returns true when all of them
    /// have the written content on the device. A page with other content will be written again.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Panics
    /// When a page was evicted from memory before it was verified.
    pub(super) async fn verify(&self) -> Result<bool, IoError> {
        let lost = self.write_back.verify().await?;
        let mut cache = self.cache.borrow_mut();
        for page in &lost {
            assert!(
                cache.pages.contains_key(page),
                "page {page} stays in memory until it is verified"
            );
            self.make_due(*page);
        }
        cache.rejoin(&self.write_back);
        cache.trim(self.cached_pages_max, &self.write_back);
        Ok(lost.is_empty())
    }

    /// Returns the pages that were found damaged, each with the kind of damage. A page is no longer
    /// included once it was found intact or was reset.
    pub(super) fn damaged(&self) -> Vec<(u64, PageError)> {
        let damaged = self.damaged.borrow();
        damaged.iter().map(|(page, why)| (*page, *why)).collect()
    }

    /// Returns the first run of written pages in a range. The run has at most the number of pages
    /// that one request can read.
    fn written_run(&self, pages: Range<u64>) -> Range<u64> {
        let written = self.write_back.written();
        let start = written.first_written(pages.clone());
        let end_max = pages.end.min(start + Area::run_pages_max(&*self.device));
        let end = (start..end_max).find(|page| !written.is_written(*page));
        start..end.unwrap_or(end_max)
    }

    /// Reads written pages from the device, from `page` on, as many as one request can read. A
    /// corrupt page that is in memory is scheduled to be written again. A corrupt page that is not
    /// in memory is reset, because its checksums are lost. Returns the result of the check, and the
    /// pages whose checksums are lost.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn check_from(&self, page: u64) -> Result<(CheckedAreas, Vec<u64>), IoError> {
        let pages_end = self.blocks.get().div_ceil(PAGE_BLOCKS);
        let run = self.written_run(page.min(pages_end)..pages_end);
        let mut checked = CheckedAreas {
            read_bytes: (run.end - run.start) * PAGE_BYTES,
            next: Some(run.end).filter(|next| *next < pages_end),
            ..CheckedAreas::default()
        };
        if run.is_empty() {
            return Ok((checked, Vec::new()));
        }
        let mut lost = Vec::new();
        let payload = self.area.read(&*self.device, run.clone()).await?;
        for (index, page) in run.enumerate() {
            let at = index * PAGE_BYTES as usize;
            let bytes = payload.slice(at..at + PAGE_BYTES as usize).to_vec();
            if self.is_as_it_should_be(page, &bytes) {
                continue;
            }
            // The page may have been written during the first read, so it is read again.
            let again = self.area.read(&*self.device, page..page + 1).await?;
            if self.is_as_it_should_be(page, &again.to_vec()) {
                continue;
            }
            checked.wrong_pages += 1;
            if self.cache.borrow().pages.contains_key(&page) {
                self.make_due(page);
            } else {
                self.reset_page(page).await;
                lost.push(page);
            }
        }
        Ok((checked, lost))
    }

    /// Returns true when a page that was read is valid and agrees with the copy in memory, or
    /// cannot be judged because a write of the page is due.
    fn is_as_it_should_be(&self, page: u64, bytes: &[u8]) -> bool {
        if self.write_back.is_due(page) {
            return true;
        }
        let Ok(mut found) = self.area.entries(page, bytes).map(|bytes| decode(&bytes)) else {
            return false;
        };
        self.apply_changes(page, &mut found);
        let cache = self.cache.borrow();
        let cached = cache.pages.get(&page);
        cached.is_none_or(|cached| cached.entries == found)
    }

    /// Resets a [damaged](Self::damaged) page, so that the checksums of all its blocks become
    /// unknown. If several tasks may find the same damage, each must check `damaged` first;
    /// otherwise a second reset would discard entries set after the first one.
    ///
    /// # Panics
    /// When the area has no such page.
    pub(super) async fn reset_page(&self, page: u64) {
        assert!(page < self.area.pages(), "page {page} lies in the area");
        let is_over = || !self.loading.borrow().contains(&page);
        self.loaded.at(page, is_over).await;
        self.make_due(page);
        self.damaged.borrow_mut().remove(&page);
        let mut entries = unknown_entries();
        self.apply_changes(page, &mut entries);
        let mut cache = self.cache.borrow_mut();
        cache.put(page, entries);
        cache.trim(self.cached_pages_max, &self.write_back);
    }

    /// Returns the number of pages that must stay in memory, because they may not be on the device.
    #[cfg(test)]
    pub(super) fn needed_pages(&self) -> usize {
        self.write_back.needed_pages()
    }

    /// Returns the number of pages with changes that are neither in a page nor in the journal on
    /// the device.
    pub(super) fn unwritten_pages(&self) -> usize {
        match &self.journaled {
            Some(journaled) => journaled.borrow().changes.changed_pages(),
            None => self.write_back.due_pages(),
        }
    }

    /// Reports the statistics of the checksum area under the name `part`.
    pub(super) fn statistics(&self, part: &str, out: &mut dyn StatisticVisitor) {
        let cached_pages = self.cache.borrow().pages.len() as f64;
        let unwritten_pages = self.unwritten_pages() as f64;
        let damaged_pages = self.damaged_pages.get();
        let mut show = |name, value| out.statistic(part, name, value);
        show("checksum_cached_pages", Statistic::Gauge(cached_pages));
        show(
            "checksum_unwritten_pages",
            Statistic::Gauge(unwritten_pages),
        );
        show("checksum_loads", Statistic::Counter(self.loads.get()));
        let write_backs = self.write_back.writes();
        show("checksum_write_backs", Statistic::Counter(write_backs));
        show("checksum_damaged_pages", Statistic::Counter(damaged_pages));
    }

    /// Passes the entries of the blocks to `each`, page by page in ascending order. If a page is
    /// not in memory, it is read together with the following pages that are before the page
    /// `load_end`.
    async fn visit(
        &self,
        blocks: Range<u64>,
        load_end: u64,
        purpose: Purpose,
        each: impl FnMut(u64, &mut [u32]),
    ) -> Result<(), IoError> {
        assert!(
            blocks.start <= blocks.end && blocks.end <= self.blocks.get(),
            "the blocks {blocks:?} lie in the data"
        );
        let result = self.visit_each(blocks, load_end, purpose, each).await;
        self.trim();
        result
    }

    async fn visit_each(
        &self,
        blocks: Range<u64>,
        load_end: u64,
        purpose: Purpose,
        mut each: impl FnMut(u64, &mut [u32]),
    ) -> Result<(), IoError> {
        let mut next = blocks.start;
        while next < blocks.end {
            give_way().await;
            let page = Checksums::page_of(next);
            let first = page * PAGE_BLOCKS;
            let end = blocks.end.min(first + PAGE_BLOCKS);
            let inside = (next - first) as usize..(end - first) as usize;
            if let Some(cached) = self.cache.borrow_mut().pages.get_mut(&page) {
                cached.used = true;
                count_entries(inside.len());
                each(page, &mut cached.entries[inside]);
                next = end;
                continue;
            }
            if !self.write_back.written().is_written(page) {
                let mut entries = self.first_entries(page);
                self.apply_changes(page, &mut entries);
                if purpose == Purpose::Change {
                    self.cache.borrow_mut().put(page, entries);
                } else {
                    count_entries(inside.len());
                    each(page, &mut entries[inside]);
                    next = end;
                }
                continue;
            }
            // The pages that an earlier load read into memory have been visited, so it is safe to
            // evict them now.
            self.trim();
            self.load(page..load_end).await?;
        }
        Ok(())
    }

    fn trim(&self) {
        let mut cache = self.cache.borrow_mut();
        cache.trim(self.cached_pages_max, &self.write_back);
    }

    /// Reads the first of `pages` into memory, together with the directly following pages that are
    /// missing; or waits while another task reads the first page. The caller must check again
    /// afterwards.
    ///
    /// # Errors
    /// `Corrupt` when one of the pages is damaged; the valid pages are in memory then.
    async fn load(&self, pages: Range<u64>) -> Result<(), IoError> {
        let first = pages.start;
        let is_loading = || self.loading.borrow().contains(&first);
        if is_loading() {
            self.loaded.at(first, || !is_loading()).await;
            return Ok(());
        }
        let run = self.missing(pages);
        self.loading.borrow_mut().extend(run.clone());
        let loading = Loading {
            of: self,
            run: run.clone(),
        };
        self.loads.set(self.loads.get() + 1);
        let payload = self.area.read(&*self.device, run.clone()).await?;
        let mut result = Ok(());
        for (index, page) in run.enumerate() {
            let at = index * PAGE_BYTES as usize;
            let bytes = payload.slice(at..at + PAGE_BYTES as usize).to_vec();
            if self.take(page, &bytes).is_err() {
                result = Err(IoError::Corrupt);
            }
        }
        drop(loading);
        result
    }

    /// Returns the part of `pages` before the first page that is in memory, is being read, or was
    /// never written.
    fn missing(&self, pages: Range<u64>) -> Range<u64> {
        let (cache, loading) = (self.cache.borrow(), self.loading.borrow());
        let end = pages
            .end
            .min(pages.start + Area::run_pages_max(&*self.device));
        let written = self.write_back.written();
        let is_there = |page: &u64| {
            let in_memory = cache.pages.contains_key(page) || loading.contains(page);
            in_memory || !written.is_written(*page)
        };
        let end = (pages.start..end).find(is_there).unwrap_or(end);
        pages.start..end
    }

    /// Decodes a page that was read from the device and puts it into the cache. If the page is
    /// damaged, records this and the reason instead.
    fn take(&self, page: u64, bytes: &[u8]) -> Result<(), PageError> {
        let entries = self.area.entries(page, bytes).map(|bytes| decode(&bytes));
        let mut damaged = self.damaged.borrow_mut();
        match entries {
            Ok(mut entries) => {
                damaged.remove(&page);
                self.apply_changes(page, &mut entries);
                self.cache.borrow_mut().put(page, entries);
                Ok(())
            }
            Err(why) => {
                if damaged.insert(page, why).is_none() {
                    self.damaged_pages.set(self.damaged_pages.get() + 1);
                }
                Err(why)
            }
        }
    }
}
