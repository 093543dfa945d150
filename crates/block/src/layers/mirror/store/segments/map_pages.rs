//! Pages of the map on the device: reading all of them when a side is opened, writing those that
//! have changed to the segments, and checking all of them.

use bimetal_rt::Payload;
use bimetal_rt::turn::give_way;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::streams::Chunk;
use super::tables::PageEntry;
use super::{Place, Segments, Stream, pages};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::superblock::areas::ENTRIES_BYTES;
use crate::request::{Flags, Origin, Request};

/// Number of the first page of the map. The checksums of a page include its number, so that no page
/// of the checksums can be mistaken for one of the map.
pub(super) const FIRST_PAGE: u64 = 1 << 61;
/// Maximum number of pages that one request reads or writes.
const RUN_PAGES_MAX: usize = 256;
/// Maximum number of requests in flight.
const IN_FLIGHT_MAX: usize = 8;

impl Segments {
    fn area(&self) -> pages::Area {
        pages::Area {
            offset: 0,
            len: self.places.borrow().pages() * BLOCK_BYTES,
            side: self.side,
            numbered_from: FIRST_PAGE,
        }
    }

    /// Reads all pages of the map that the page table names, and counts the live blocks.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn load_map(&self) -> Result<(), IoError> {
        let mut listed: Vec<(u32, u64)> = {
            let tables = self.tables.borrow();
            let mut places = self.places.borrow_mut();
            for page in tables.lost() {
                places.load(page, None);
                places.mark([page]);
            }
            let written = tables.all();
            written
                .filter_map(|(page, entry)| Some((entry.block()?, page)))
                .collect()
        };
        listed.sort_unstable();
        let together = |a: &(u32, u64), b: &(u32, u64)| a.0 + 1 == b.0;
        let runs = listed.chunk_by(together);
        let mut runs = runs.flat_map(|run| run.chunks(self.run_pages_max()));
        let mut reads = FuturesUnordered::new();
        loop {
            while reads.len() < IN_FLIGHT_MAX
                && let Some(run) = runs.next()
            {
                reads.push(self.load_run(run));
            }
            match reads.next().await {
                Some(read) => read?,
                None => return Ok(()),
            }
        }
    }

    fn run_pages_max(&self) -> usize {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max) / BLOCK_BYTES;
        RUN_PAGES_MAX.min(transfer as usize).max(1)
    }

    async fn load_run(&self, run: &[(u32, u64)]) -> Result<(), IoError> {
        let bytes = run.len() as u64 * BLOCK_BYTES;
        let read = Request::read(self.offset_at(run[0].0), bytes);
        let data = match self.device.submit(read).await {
            Ok(reply) => Some(reply.into_data()),
            Err(error) if error.is_of_a_block() && run.len() > 1 => {
                for page in run {
                    Box::pin(self.load_run(std::slice::from_ref(page))).await?;
                }
                return Ok(());
            }
            Err(error) if error.is_of_a_block() => None,
            Err(error) => return Err(error),
        };
        for (index, (at, page)) in run.iter().enumerate() {
            give_way().await;
            let start = index * BLOCK_BYTES as usize;
            let end = start + BLOCK_BYTES as usize;
            self.load_page(*page, *at, data.as_ref().map(|data| data.slice(start..end)));
        }
        Ok(())
    }

    /// Puts a page into the map. `read` is what was read; `None` when it cannot be read.
    fn load_page(&self, page: u64, at: u32, read: Option<Payload>) {
        let digest = self.tables.borrow().get(page).digest;
        let intact = read.filter(|read| pages::digests(read) == [digest]);
        let entries = intact.and_then(|read| self.area().entries(page, &read.to_vec()).ok());
        let mut places = self.places.borrow_mut();
        places.load(page, entries.as_deref());
        let blocks = self.layout.area.1 / BLOCK_BYTES;
        let is_outside = |(_, at): (u64, u32)| u64::from(at) >= blocks;
        if entries.is_none() || places.stored_in_page(page).any(is_outside) {
            // The segments with the blocks of this page may be filled anew. So the page stays lost,
            // even if it can be read again later.
            places.load(page, None);
            places.mark([page]);
            self.count(|counts| counts.map_pages_damaged += 1);
            self.tables.borrow_mut().set(page, PageEntry::LOST);
            return;
        }
        let mut usage = self.usage.borrow_mut();
        usage.add_live(at);
        for (_, at) in places.stored_in_page(page) {
            usage.add_live(at);
        }
    }

    /// Writes the pages of the map that must be written, and up to `more` of those of which the
    /// journal has entries, without a flush and without a commit.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free. Pages that were not written are
    /// written by the next call.
    pub(in super::super) async fn write_map(&self, more: usize) -> Result<(), IoError> {
        let changed = self.places.borrow_mut().changes.take_pages(more);
        let mut result = Ok(());
        let mut left = changed.as_slice();
        let mut writes = FuturesUnordered::new();
        loop {
            while !left.is_empty() && writes.len() < IN_FLIGHT_MAX && result.is_ok() {
                let wanted = &left[..left.len().min(self.run_pages_max())];
                match self.take_pages(wanted) {
                    Ok(taken) => {
                        let (run, rest) = left.split_at(taken.0.blocks as usize);
                        left = rest;
                        writes.push(self.write_run(run, taken));
                    }
                    Err(error) => result = Err(error),
                }
            }
            match writes.next().await {
                Some(written) => result = result.and(written),
                None => break,
            }
        }
        self.places.borrow_mut().mark(left.iter().copied());
        result
    }

    /// Takes blocks for the first of some pages, as many as fit. Returns them with the digests of
    /// the pages.
    fn take_pages(&self, pages: &[u64]) -> Result<(Chunk<'_>, Vec<u32>), IoError> {
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
        Ok((chunk, pages::digests(&data)))
    }

    /// Writes pages to the blocks that were taken for them. If that fails, they are written again
    /// by the next call.
    async fn write_run(
        &self,
        run: &[u64],
        (chunk, digests): (Chunk<'_>, Vec<u32>),
    ) -> Result<(), IoError> {
        if let Err(error) = self.write_chunk(&chunk, Flags::NONE, Origin::NONE).await {
            self.places.borrow_mut().mark(run.iter().copied());
            return Err(error);
        }
        self.count(|counts| counts.map_pages_written += run.len() as u64);
        let written = run.iter().copied();
        self.places.borrow_mut().changes.note_written(written);
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

    /// Returns true when pages of the map are damaged and were not written again.
    pub(in super::super) fn has_lost_pages(&self) -> bool {
        self.tables.borrow().lost().next().is_some()
    }

    /// Reads all pages of the map and of the page table. A wrong page is written again from memory
    /// by the next commit. Returns the number of bytes read, and the number of wrong pages.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn check_map(&self) -> Result<(u64, u64), IoError> {
        let (mut read_bytes, mut wrong) = self.check_tables().await?;
        let pages = self.places.borrow().pages();
        for page in 0..pages {
            give_way().await;
            let entry = self.tables.borrow().get(page);
            let Some(block) = entry.block() else {
                continue;
            };
            let _pin = self.pin(&[(Place::At(block), 1)]);
            let read = Request::read(self.offset_at(block), BLOCK_BYTES);
            let intact = match self.device.submit(read).await {
                Ok(reply) => pages::digests(&reply.into_data()) == [entry.digest],
                Err(error) if error.is_of_a_block() => false,
                Err(error) => return Err(error),
            };
            read_bytes += BLOCK_BYTES;
            if !intact {
                wrong += 1;
                self.places.borrow_mut().mark([page]);
            }
        }
        Ok((read_bytes, wrong))
    }
}
