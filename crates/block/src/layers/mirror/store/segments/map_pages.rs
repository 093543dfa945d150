//! Pages of the map on the device: reading those that are needed and not in memory, counting what
//! an earlier program has written, writing those that have changed to the segments, and checking
//! all of them.
//!
//! An opening reads few pages: a map can be as large as that takes a disk many seconds. The others
//! are counted while the side is in use. Until then no segment may become free, apart from those
//! that are free in the record.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bimetal_rt::Payload;
use bimetal_rt::turn::give_way;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::places::is_entry;
use super::streams::Chunk;
use super::tables::PageEntry;
use super::{Place, Segments, Stream, pages};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::store::entry::u32_at;
use crate::layers::mirror::superblock::areas::{ENTRIES_BYTES, PAGE_BLOCKS};
use crate::request::{Flags, Origin, Request};

/// Number of the first page of the map. The checksums of a page include its number, so that no page
/// of the checksums can be mistaken for one of the map.
pub(super) const FIRST_PAGE: u64 = 1 << 61;
/// Maximum number of pages that one request reads or writes.
const RUN_PAGES_MAX: usize = 256;
/// Maximum number of blocks that a disk passes over between two pages in one request.
const READ_GAP_BLOCKS_MAX: u32 = 16;
/// Maximum number of requests in flight.
const IN_FLIGHT_MAX: usize = 8;
/// Maximum number of requests in flight that count pages beside the requests of clients.
const IN_FLIGHT_BESIDE_OTHERS: usize = 2;

/// Guard that keeps pages of the map in memory.
pub(super) struct Known<'s> {
    of: &'s Segments,
    pages: Range<u64>,
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.of.places.borrow_mut().release(self.pages.clone());
    }
}

/// Pages of the map that a commit writes. They are in memory. If they are dropped, the next commit
/// writes them.
pub(in super::super) struct MapPages<'s> {
    of: &'s Segments,
    pages: Vec<u64>,
}

impl Drop for MapPages<'_> {
    fn drop(&mut self) {
        let mut places = self.of.places.borrow_mut();
        places.mark(self.pages.iter().copied());
        places.release(self.pages.iter().copied());
    }
}

/// A page of the map, after the block of the segments that holds it.
type Placed = (u32, u64);

impl Segments {
    fn area(&self) -> pages::Area {
        pages::Area {
            offset: 0,
            len: self.places.borrow().pages() * BLOCK_BYTES,
            side: self.side,
            numbered_from: FIRST_PAGE,
        }
    }

    /// Takes over the page table and what the journal says about the map, which were read before.
    /// Then reads the pages of the map that stay in memory; the others are uncounted.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks; `Corrupt` when the journal names
    /// blocks that belong to something else.
    pub(super) async fn load_map(&self) -> Result<(), IoError> {
        let entries: Vec<(u64, PageEntry)> = self.tables.borrow().all().collect();
        for (page, entry) in entries {
            give_way().await;
            match entry.block() {
                Some(block) if self.usage.borrow_mut().try_add_live(&[block]) => {
                    self.places.borrow_mut().note_uncounted(page);
                }
                None if entry != PageEntry::LOST => {}
                _ => self.lose_page(page),
            }
            let changed = self.places.borrow().changed_places(page);
            if !self.usage.borrow_mut().try_add_live(&changed) {
                return Err(IoError::Corrupt);
            }
        }
        let kept = 0..self.places.borrow().kept();
        self.count_pages(kept, IN_FLIGHT_MAX, &|_, _| ()).await?;
        self.note_counted();
        Ok(())
    }

    /// Counts all places of the map as live that an earlier program has written, as far as that was
    /// not done yet. Calls `told` with the number of bytes of the pages that were read, and that of
    /// the pages that are to be read.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks. The pages that were read are
    /// counted.
    pub(in super::super) async fn count_map(&self, told: &dyn Fn(u64, u64)) -> Result<(), IoError> {
        self.count_all(IN_FLIGHT_MAX, told).await
    }

    /// Counts as [`count_map`](Self::count_map) does, but leaves the device to other requests most
    /// of the time.
    ///
    /// # Errors
    /// As for [`count_map`](Self::count_map).
    pub(in super::super) async fn count_map_beside_others(&self) -> Result<(), IoError> {
        self.count_all(IN_FLIGHT_BESIDE_OTHERS, &|_, _| ()).await
    }

    async fn count_all(
        &self,
        in_flight_max: usize,
        told: &dyn Fn(u64, u64),
    ) -> Result<(), IoError> {
        let pages = 0..self.places.borrow().pages();
        let counted = self.count_pages(pages, in_flight_max, told).await;
        self.note_counted();
        counted
    }

    /// Returns true when all places of the map count as live.
    pub(super) fn is_counted(&self) -> bool {
        self.is_counted.get()
    }

    fn note_counted(&self) {
        if !self.is_counted.get() && self.places.borrow().uncounted() == 0 {
            self.is_counted.set(true);
            self.tell_pace();
            // The cleaner can begin.
            self.pace.request();
        }
    }

    /// Reads the uncounted pages in a range. One that stays unreadable is lost.
    async fn count_pages(
        &self,
        pages: Range<u64>,
        in_flight_max: usize,
        told: &dyn Fn(u64, u64),
    ) -> Result<(), IoError> {
        let mut all_pages = 0;
        loop {
            let uncounted: Vec<u64> = {
                let places = self.places.borrow();
                places.uncounted_in(pages.clone()).collect()
            };
            if uncounted.is_empty() {
                return Ok(());
            }
            // Pages that could not be read are read again.
            all_pages = all_pages.max(uncounted.len());
            let left = Cell::new(uncounted.len());
            let take = |page, at, read| {
                self.take_page(page, at, read);
                self.places.borrow_mut().trim();
                left.set(left.get() - 1);
                let done = (all_pages - left.get()) as u64;
                told(done * BLOCK_BYTES, all_pages as u64 * BLOCK_BYTES);
            };
            let placed = self.placed(uncounted);
            self.read_each(placed, in_flight_max, take).await?;
        }
    }

    /// Returns pages that are on the device with their blocks.
    fn placed(&self, pages: impl IntoIterator<Item = u64>) -> Vec<Placed> {
        let tables = self.tables.borrow();
        let placed = pages.into_iter().map(|page| {
            let block = tables.get(page).block();
            (block.expect("the page is on the device"), page)
        });
        placed.collect()
    }

    /// Reads pages, in the order of their blocks, and passes each to `take` with its block; what
    /// was read is `None` for a page that cannot be read.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    async fn read_each(
        &self,
        mut placed: Vec<Placed>,
        in_flight_max: usize,
        take: impl Fn(u64, u32, Option<Payload>),
    ) -> Result<(), IoError> {
        placed.sort_unstable();
        let mut runs = self.runs_of(&placed).into_iter();
        let mut reads = FuturesUnordered::new();
        let mut result = Ok(());
        loop {
            while reads.len() < in_flight_max
                && result.is_ok()
                && let Some(run) = runs.next()
            {
                let at: Vec<(Place, u64)> = run.iter().map(|of| (Place::At(of.0), 1)).collect();
                let pins = self.pin(&at);
                reads.push(async move { (run, self.read_pages(run).await, pins) });
            }
            let Some((run, read, _pins)) = reads.next().await else {
                return result;
            };
            match read {
                Ok(read) => {
                    for ((at, page), read) in run.iter().zip(read) {
                        give_way().await;
                        take(*page, *at, read);
                    }
                }
                Err(error) => result = result.and(Err(error)),
            }
        }
    }

    /// Divides pages, given in the order of their blocks, into runs that are read together.
    fn runs_of<'p>(&self, placed: &'p [Placed]) -> Vec<&'p [Placed]> {
        let gap = match self.device.geometry().rotational {
            true => READ_GAP_BLOCKS_MAX,
            false => 0,
        };
        let blocks_max = self.run_pages_max() as u32;
        let mut runs = Vec::new();
        let mut left = placed;
        while let Some((first, _)) = left.first() {
            let mut end = 1;
            while end < left.len()
                && left[end].0 - left[end - 1].0 <= gap + 1
                && left[end].0 - first < blocks_max
            {
                end += 1;
            }
            let (run, rest) = left.split_at(end);
            runs.push(run);
            left = rest;
        }
        runs
    }

    fn run_pages_max(&self) -> usize {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max) / BLOCK_BYTES;
        RUN_PAGES_MAX.min(transfer as usize).max(1)
    }

    /// Reads pages with one request, in the order of their blocks; `None` for one that cannot be
    /// read.
    async fn read_pages(&self, run: &[Placed]) -> Result<Vec<Option<Payload>>, IoError> {
        let (first, last) = (run[0].0, run[run.len() - 1].0);
        let bytes = u64::from(last - first + 1) * BLOCK_BYTES;
        match self
            .device
            .submit(Request::read(self.offset_at(first), bytes))
            .await
        {
            Ok(reply) => {
                let data = reply.into_data();
                let page = |(at, _): &Placed| {
                    let start = (at - first) as usize * BLOCK_BYTES as usize;
                    Some(data.slice(start..start + BLOCK_BYTES as usize))
                };
                Ok(run.iter().map(page).collect())
            }
            Err(error) if error.is_of_a_block() && run.len() > 1 => {
                let mut read = Vec::with_capacity(run.len());
                for page in run {
                    read.extend(Box::pin(self.read_pages(std::slice::from_ref(page))).await?);
                }
                Ok(read)
            }
            Err(error) if error.is_of_a_block() => Ok(vec![None]),
            Err(error) => Err(error),
        }
    }

    /// Returns the entries of a page that was read, as the format page draws them; `None` if it is
    /// damaged. `read` is `None` when it cannot be read.
    fn entries_of(&self, page: u64, read: Option<Payload>) -> Option<Vec<u8>> {
        let digest = self.tables.borrow().get(page).digest;
        let intact = read.filter(|read| pages::digests(read) == [digest])?;
        let entries = self.area().entries(page, &intact.to_vec()).ok()?;
        let blocks = self.layout.area.1 / BLOCK_BYTES;
        let mut values = entries.chunks_exact(4).map(|entry| u32_at(entry, 0));
        let are_possible = values.all(|entry| is_entry(entry, blocks));
        are_possible.then_some(entries)
    }

    /// Makes the places of a page lost, apart from those that have changed since the page was
    /// written. The segments with the blocks of the page may be filled anew, so the page stays
    /// lost, even if it can be read again later.
    fn lose_page(&self, page: u64) {
        let mut places = self.places.borrow_mut();
        places.lose(page);
        places.mark([page]);
        if self.tables.borrow().get(page) != PageEntry::LOST {
            self.count(|counts| counts.map_pages_damaged += 1);
            self.tables.borrow_mut().set(page, PageEntry::LOST);
        }
    }

    /// Reads the pages of the map that describe a range of blocks, where only they say where a
    /// block is. The places of these blocks are known while the guard lives.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when a page is damaged.
    pub(super) async fn know(&self, blocks: Range<u64>) -> Result<Known<'_>, IoError> {
        let pages = blocks.start / PAGE_BLOCKS..blocks.end.div_ceil(PAGE_BLOCKS);
        let known = self.hold(pages.clone());
        let unknown: Vec<u64> = {
            let places = self.places.borrow();
            let is_unknown = |page: &u64| {
                let first = page * PAGE_BLOCKS;
                let mut inside = blocks.start.max(first)..blocks.end.min(first + PAGE_BLOCKS);
                !places.is_known(*page) && inside.any(|block| places.get(block).is_none())
            };
            pages.filter(is_unknown).collect()
        };
        self.need(&unknown).await?;
        Ok(known)
    }

    /// Reads a page of the map, unless it is in memory. It stays there while the guard lives.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when the page is damaged.
    pub(super) async fn know_page(&self, page: u64) -> Result<Known<'_>, IoError> {
        let known = self.hold(page..page + 1);
        self.need(&[page]).await?;
        Ok(known)
    }

    /// Reads pages as [`bring_in`](Self::bring_in) does, all of which are needed.
    async fn need(&self, pages: &[u64]) -> Result<(), IoError> {
        if pages.is_empty() {
            return Ok(());
        }
        match self.bring_in(pages).await?.is_empty() {
            true => Ok(()),
            false => Err(IoError::Corrupt),
        }
    }

    fn hold(&self, pages: Range<u64>) -> Known<'_> {
        self.places.borrow_mut().hold(pages.clone());
        Known { of: self, pages }
    }

    /// Reads pages of the map into memory that are held and not there. Returns those that cannot be
    /// read now, in ascending order. A page that could not be read many times is lost.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn bring_in(&self, pages: &[u64]) -> Result<Vec<u64>, IoError> {
        let placed = {
            let places = self.places.borrow();
            let absent = pages.iter().filter(|page| !places.is_known(**page));
            self.placed(absent.copied())
        };
        let take = |page, at, read| {
            self.count(|counts| counts.map_pages_read += 1);
            self.take_page(page, at, read);
        };
        self.read_each(placed, IN_FLIGHT_MAX, take).await?;
        let places = self.places.borrow();
        let left = pages.iter().filter(|page| !places.is_known(**page));
        Ok(left.copied().collect())
    }

    /// Puts a page into memory that was read from its block `at`, and counts its places if it was
    /// uncounted. A page that could not be read many times is lost.
    fn take_page(&self, page: u64, at: u32, read: Option<Payload>) {
        let is_newest = self.tables.borrow().get(page).block() == Some(at);
        if self.places.borrow().is_known(page) || !is_newest {
            return;
        }
        let Some(entries) = self.entries_of(page, read) else {
            // A device may fail to read something for a while.
            if self.places.borrow_mut().is_unreadable_again(page) {
                self.lose_read_page(page, at);
            }
            return;
        };
        let loaded = self.places.borrow_mut().load(page, &entries);
        let mut usage = self.usage.borrow_mut();
        loaded
            .superseded
            .iter()
            .for_each(|at| usage.remove_live(*at));
        let is_possible = usage.try_add_live(&loaded.uncounted);
        drop(usage);
        if !is_possible {
            self.lose_read_page(page, at);
        } else if loaded.has_new_lost {
            self.newly_lost.borrow_mut().push(page);
        }
    }

    /// Makes a page lost that was read from its block `at`. What the page says counts as live until
    /// the segments with it are cleaned, if it was counted.
    fn lose_read_page(&self, page: u64, at: u32) {
        self.usage.borrow_mut().remove_live(at);
        self.lose_page(page);
        self.newly_lost.borrow_mut().push(page);
    }

    /// Takes the pages of the map that must be written, and up to `more` of those of which the
    /// journal has entries, and reads those that are not in memory. A page that cannot be read now
    /// is left out, and the journal must have all that has changed in it.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn take_map_pages(
        &self,
        more: usize,
    ) -> Result<MapPages<'_>, IoError> {
        let pages = {
            let mut places = self.places.borrow_mut();
            let pages = places.take_pages(more);
            places.hold(pages.iter().copied());
            pages
        };
        let mut taken = MapPages { of: self, pages };
        for unreadable in self.bring_in(&taken.pages).await? {
            let mut places = self.places.borrow_mut();
            places.put_back(unreadable);
            places.release([unreadable]);
            taken.pages.retain(|page| *page != unreadable);
        }
        Ok(taken)
    }

    /// Writes pages of the map that were taken, without a flush and without a commit.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free. Pages that were not written are
    /// written by the next commit.
    pub(in super::super) async fn write_map(&self, mut taken: MapPages<'_>) -> Result<(), IoError> {
        let pages = std::mem::take(&mut taken.pages);
        let mut left = pages.as_slice();
        let mut result = Ok(());
        let mut writes = FuturesUnordered::new();
        loop {
            while !left.is_empty() && writes.len() < IN_FLIGHT_MAX && result.is_ok() {
                let wanted = &left[..left.len().min(self.run_pages_max())];
                match self.take_to_write(wanted) {
                    Ok(chunk) => {
                        let (run, rest) = left.split_at(chunk.0.blocks as usize);
                        left = rest;
                        writes.push(self.write_run(run, chunk));
                    }
                    Err(error) => result = Err(error),
                }
            }
            match writes.next().await {
                Some(written) => result = result.and(written),
                None => break,
            }
        }
        let mut places = self.places.borrow_mut();
        places.mark(left.iter().copied());
        places.release(pages.iter().copied());
        result
    }

    /// Takes blocks for the first of some pages, as many as fit. Returns them with the digests of
    /// the pages.
    fn take_to_write(&self, pages: &[u64]) -> Result<(Chunk<'_>, Vec<u32>), IoError> {
        let mut bytes = self.rt.pool().alloc_now(pages.len() * BLOCK_BYTES as usize);
        let area = self.area();
        let each = bytes.chunks_exact_mut(BLOCK_BYTES as usize);
        for (page, bytes) in pages.iter().zip(each) {
            let mut entries = [0; ENTRIES_BYTES];
            self.places.borrow().encode(*page, &mut entries);
            area.seal(*page, &entries, bytes);
        }
        let data = Payload::from(bytes.freeze());
        let birth = self.birth_of_pages();
        let numbers = pages.iter().map(|page| (FIRST_PAGE + page, birth));
        let numbers: Vec<_> = numbers.collect();
        let chunk = self.take_chunk(Stream::Pages, &numbers, &data)?;
        let mut places = self.places.borrow_mut();
        let written = &pages[..chunk.blocks as usize];
        written.iter().for_each(|page| places.begin_write(*page));
        Ok((chunk, pages::digests(&data)))
    }

    /// Writes pages to the blocks that were taken for them. If that fails, they are written again
    /// by the next call.
    async fn write_run(
        &self,
        run: &[u64],
        (chunk, digests): (Chunk<'_>, Vec<u32>),
    ) -> Result<(), IoError> {
        let result = self.write_chunk(&chunk, Flags::NONE, Origin::NONE).await;
        let mut places = self.places.borrow_mut();
        run.iter()
            .for_each(|page| places.end_write(*page, result.is_ok()));
        drop(places);
        result?;
        self.count(|counts| counts.map_pages_written += run.len() as u64);
        for (index, (page, digest)) in (0..).zip(run.iter().zip(digests)) {
            let place = chunk.at + index;
            let entry = PageEntry::at(place, digest);
            let before = self.tables.borrow_mut().set(*page, entry);
            let mut usage = self.usage.borrow_mut();
            usage.add_live(place);
            if let Some(block) = before.block() {
                usage.remove_live(block);
            }
        }
        Ok(())
    }

    /// Compares the live blocks with what refers to them: the places of all blocks, the page table,
    /// its own pages, and the journal.
    #[cfg(test)]
    pub(in super::super) async fn assert_live_blocks_are_exact(&self) {
        let pages = self.places.borrow().pages();
        let mut known = Vec::new();
        for page in 0..pages {
            known.push(self.know_page(page).await.expect("it can be read"));
        }
        let mut referred: Vec<u32> = {
            let places = self.places.borrow();
            let stored = (0..pages).flat_map(|page| places.stored_in_page(page));
            stored.map(|(_, at)| at).collect()
        };
        referred.extend(self.tables.borrow().blocks());
        referred.extend(self.journal.borrow().blocks());
        referred.sort_unstable();
        let usage = self.usage.borrow();
        let live = (0..usage.count() as u32).flat_map(|segment| usage.live_blocks(segment));
        assert_eq!(live.collect::<Vec<_>>(), referred);
    }

    /// Returns the offset on the device of the last written version of a page of the map.
    #[cfg(test)]
    pub(in super::super) fn offset_of_page(&self, page: u64) -> Option<u64> {
        let block = self.tables.borrow().get(page).block()?;
        Some(self.offset_at(block))
    }

    /// Makes [`Places::peek`](super::places::Places::peek) know all places, for tests.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn watch_map(&self) -> Result<(), IoError> {
        let on_device = {
            let places = self.places.borrow();
            let all = 0..places.pages();
            let on_device = places.uncounted_in(all);
            self.placed(on_device)
        };
        let shadows = RefCell::new(Vec::new());
        let take = |page, _, read| {
            let entries = self.entries_of(page, read);
            shadows.borrow_mut().extend(entries.map(|of| (page, of)));
        };
        self.read_each(on_device, IN_FLIGHT_MAX, take).await?;
        self.places.borrow_mut().watch(shadows.into_inner());
        Ok(())
    }

    /// Returns true when pages of the map are damaged and were not written again.
    pub(in super::super) fn has_lost_pages(&self) -> bool {
        self.tables.borrow().lost().next().is_some()
    }

    /// Reads all pages of the map and of the page table. A wrong page is written again from memory
    /// by the next commit; if it is not in memory, the places that only it has are lost. Returns
    /// the number of bytes read, and the number of wrong pages.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn check_map(&self) -> Result<(u64, u64), IoError> {
        let (mut read_bytes, mut wrong) = self.check_tables().await?;
        let pages = self.places.borrow().pages();
        for page in 0..pages {
            give_way().await;
            let Some(block) = self.tables.borrow().get(page).block() else {
                continue;
            };
            let _pin = self.pin(&[(Place::At(block), 1)]);
            let read = self.read_pages(&[(block, page)]).await?.pop().flatten();
            read_bytes += BLOCK_BYTES;
            if self.tables.borrow().get(page).block() != Some(block)
                || self.entries_of(page, read).is_some()
            {
                continue;
            }
            wrong += 1;
            if self.places.borrow().is_known(page) {
                self.places.borrow_mut().rescue(page);
            } else {
                self.lose_read_page(page, block);
            }
        }
        Ok((read_bytes, wrong))
    }
}
