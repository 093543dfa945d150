//! The page table of a logged side: where the last written version of each page of the map is, and
//! what distinguishes it from other versions. The table is kept in pages of its own, of which a
//! commit writes only those that have changed: the table of a large side has many megabytes, and a
//! commit must not take long.
//!
//! Each page of the table has two copies, because one describes 504 pages of the map. The segment
//! record says where they are.
//!
//! The pages of the segment table, whose content [`Usage`](super::usage::Usage) has, are written,
//! read and checked in the same way: they follow the pages of the page table.

use std::collections::BTreeSet;

use bimetal_rt::Payload;
use bimetal_rt::turn::give_way;

use super::record::TableEntry;
use super::{Segments, Stream, pages};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::store::entry::{put_u32, u32_at};
use crate::layers::mirror::superblock::areas::ENTRIES_BYTES;
use crate::layers::mirror::superblock::segmented::{TABLE_PAGE_ENTRIES, table_pages};
use crate::request::{Flags, Origin, Request};

/// Number of the first page of the table. It is far behind the last page of the map.
pub(super) const FIRST_TABLE: u64 = (1 << 61) + (1 << 40);
/// Length of an entry of the table in bytes.
const ENTRY_BYTES: usize = 8;
/// Place of a page of the map that was damaged, and was not written again since.
const LOST_PAGE: u32 = u32::MAX;
/// Maximum number of pages of the table that one request writes.
const RUN_PAGES_MAX: usize = 128;

/// Where a page of the map is, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PageEntry {
    /// Number of the block of the segments that holds the page, plus 1; 0 when the page was never
    /// written, and [`LOST_PAGE`] when it is lost.
    place: u32,
    /// CRC32C of the page without the checksums of its sectors.
    pub(super) digest: u32,
}

impl PageEntry {
    /// Entry of a page that is lost.
    pub(super) const LOST: PageEntry = PageEntry {
        place: LOST_PAGE,
        digest: 0,
    };

    /// Returns the entry of a page that was written to a block of the segments.
    pub(super) fn at(block: u32, digest: u32) -> PageEntry {
        PageEntry {
            place: block + 1,
            digest,
        }
    }

    /// Returns the block of the segments that holds the page; `None` when no block does.
    pub(super) fn block(&self) -> Option<u32> {
        match self.place {
            0 | LOST_PAGE => None,
            place => Some(place - 1),
        }
    }
}

/// The page table in memory; see the module documentation.
pub(super) struct Tables {
    entries: Vec<PageEntry>,
    /// Where the pages of both tables are.
    written: Vec<TableEntry>,
    /// Pages of both tables that the next commit must write.
    changed: BTreeSet<u64>,
}

impl Tables {
    /// Creates the table of a map with `pages` pages, of which none was read yet. `written` are the
    /// places of the pages of both tables.
    pub(super) fn new(pages: u64, written: Vec<TableEntry>) -> Tables {
        Tables {
            entries: vec![PageEntry::default(); pages as usize],
            written,
            changed: BTreeSet::new(),
        }
    }

    /// Returns the entry of a page of the map.
    pub(super) fn get(&self, page: u64) -> PageEntry {
        self.entries[page as usize]
    }

    /// Sets the entry of a page of the map, and returns the previous one.
    pub(super) fn set(&mut self, page: u64, entry: PageEntry) -> PageEntry {
        self.changed.insert(page / TABLE_PAGE_ENTRIES);
        std::mem::replace(&mut self.entries[page as usize], entry)
    }

    /// Returns the entries of all pages of the map, each with the number of the page.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, PageEntry)> {
        (0..).zip(self.entries.iter().copied())
    }

    /// Returns the blocks of the segments that hold pages of the map or of the table.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u32> {
        let of_map = self.entries.iter().filter_map(PageEntry::block);
        of_map.chain(self.written.iter().flat_map(TableEntry::blocks))
    }

    /// Returns the pages of the map that are lost.
    pub(super) fn lost(&self) -> impl Iterator<Item = u64> {
        let lost = self.all().filter(|(_, entry)| *entry == PageEntry::LOST);
        lost.map(|(page, _)| page)
    }

    /// Returns where the pages of both tables are.
    pub(super) fn written(&self) -> Vec<TableEntry> {
        self.written.clone()
    }

    /// Makes the next commit write the pages of the table of which a copy is in a block that
    /// `is_inside` selects.
    pub(super) fn mark_in(&mut self, is_inside: impl Fn(u32) -> bool) {
        let is_in = |table: &TableEntry| table.blocks().any(&is_inside);
        let tables = (0..).zip(&self.written);
        let inside = tables.filter(|(_, table)| is_in(table));
        self.changed.extend(inside.map(|(number, _)| number));
    }

    /// Makes the next commit write the page of the table that is described with this number, if a
    /// copy of it is in the block `at`. Returns whether it is.
    pub(super) fn mark_at(&mut self, number: u64, at: u32) -> bool {
        let number = number.checked_sub(FIRST_TABLE);
        let table = number.and_then(|number| self.written.get(number as usize));
        let is_there = table.is_some_and(|table| table.blocks().any(|block| block == at));
        self.changed.extend(number.filter(|_| is_there));
        is_there
    }

    /// Returns the number of pages of the page table.
    fn of_map(&self) -> u64 {
        table_pages(self.entries.len() as u64)
    }

    fn entries_of(&self, table: u64) -> &[PageEntry] {
        let start = (table * TABLE_PAGE_ENTRIES) as usize;
        let end = self.entries.len().min(start + TABLE_PAGE_ENTRIES as usize);
        &self.entries[start..end]
    }

    /// Fills in the entries of a page of the table, as the format page draws them.
    fn encode(&self, table: u64, bytes: &mut [u8; ENTRIES_BYTES]) {
        bytes.fill(0);
        let entries = self.entries_of(table).iter();
        for (bytes, entry) in bytes.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
            put_u32(bytes, 0, entry.place);
            put_u32(bytes, 4, entry.digest);
        }
    }

    /// Takes over the entries of a page of the table that was read. Returns false when one of them
    /// is impossible on a side with `blocks` blocks.
    fn load(&mut self, table: u64, read: &[u8], blocks: u64) -> bool {
        let start = (table * TABLE_PAGE_ENTRIES) as usize;
        let entries = self.entries.iter_mut().skip(start);
        let entry = |bytes: &[u8]| PageEntry {
            place: u32_at(bytes, 0),
            digest: u32_at(bytes, 4),
        };
        let mut is_sound = true;
        for (into, bytes) in entries.zip(read.chunks_exact(ENTRY_BYTES)) {
            *into = entry(bytes);
            is_sound &= into.block().is_none_or(|block| u64::from(block) < blocks);
        }
        is_sound
    }

    fn lose(&mut self, table: u64) {
        let start = table * TABLE_PAGE_ENTRIES;
        let end = start + self.entries_of(table).len() as u64;
        (start..end).for_each(|page| {
            self.set(page, PageEntry::LOST);
        });
    }
}

impl Segments {
    fn table_area(&self) -> pages::Area {
        pages::Area {
            offset: 0,
            len: self.tables.borrow().written.len() as u64 * BLOCK_BYTES,
            side: self.side,
            numbered_from: FIRST_TABLE,
        }
    }

    /// Reads both tables. If both copies of a page of the page table are damaged, the pages of the
    /// map that it describes are lost.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks; `Corrupt` when two pages are said to
    /// be in one block.
    pub(super) async fn load_tables(&self) -> Result<(), IoError> {
        let written = self.tables.borrow().written();
        for (table, entry) in (0..).zip(written) {
            give_way().await;
            let blocks: Vec<u32> = entry.blocks().collect();
            if !self.usage.borrow_mut().try_add_live(&blocks) {
                return Err(IoError::Corrupt);
            }
            let mut is_known = !entry.was_written();
            for block in entry.blocks() {
                if is_known {
                    break;
                }
                is_known = self.load_table(table, block, entry.digest).await?;
                if !is_known {
                    self.tables.borrow_mut().changed.insert(table);
                }
            }
            if !is_known {
                if table < self.tables.borrow().of_map() {
                    self.tables.borrow_mut().lose(table);
                }
                self.count(|counts| counts.table_pages_damaged += 1);
            }
        }
        Ok(())
    }

    /// Reads a copy of a page of the table. Returns true when it is intact.
    async fn load_table(&self, table: u64, block: u32, digest: u32) -> Result<bool, IoError> {
        let Some(read) = self.read_table(block, digest).await? else {
            return Ok(false);
        };
        let Ok(entries) = self.table_area().entries(table, &read) else {
            return Ok(false);
        };
        let mut tables = self.tables.borrow_mut();
        Ok(match table.checked_sub(tables.of_map()) {
            None => tables.load(table, &entries, self.layout.area.1 / BLOCK_BYTES),
            Some(of_segments) => {
                let first = (of_segments * TABLE_PAGE_ENTRIES) as u32;
                self.usage.borrow_mut().load_table(first, &entries)
            }
        })
    }

    fn encode_table(&self, table: u64, bytes: &mut [u8; ENTRIES_BYTES]) {
        let tables = self.tables.borrow();
        match table.checked_sub(tables.of_map()) {
            None => tables.encode(table, bytes),
            Some(of_segments) => {
                let first = (of_segments * TABLE_PAGE_ENTRIES) as u32;
                self.usage.borrow().encode_table(first, bytes);
            }
        }
    }

    async fn read_table(&self, block: u32, digest: u32) -> Result<Option<Vec<u8>>, IoError> {
        let read = Request::read(self.offset_at(block), BLOCK_BYTES);
        match self.device.submit(read).await {
            Ok(reply) => {
                let data = reply.into_data();
                Ok((pages::digests(&data) == [digest]).then(|| data.to_vec()))
            }
            Err(error) if error.is_of_a_block() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the pages of both tables that have changed, each twice, without a flush and without a
    /// commit.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free. Pages that were not written are
    /// written by the next call.
    pub(in super::super) async fn write_tables(&self) -> Result<(), IoError> {
        let changed = {
            let mut tables = self.tables.borrow_mut();
            let of_map = tables.of_map();
            let of_segments = self.usage.borrow_mut().take_changed();
            let of_segments = of_segments.into_iter().map(|page| of_map + page);
            tables.changed.extend(of_segments);
            std::mem::take(&mut tables.changed)
        };
        let changed: Vec<u64> = changed.into_iter().collect();
        let mut left = changed.as_slice();
        let mut result = Ok(());
        while !left.is_empty() && result.is_ok() {
            let (now, rest) = left.split_at(left.len().min(RUN_PAGES_MAX));
            result = self.write_table_run(now).await;
            if result.is_ok() {
                left = rest;
            }
        }
        self.tables.borrow_mut().changed.extend(left);
        result
    }

    async fn write_table_run(&self, run: &[u64]) -> Result<(), IoError> {
        let area = self.table_area();
        let mut bytes = vec![0; run.len() * BLOCK_BYTES as usize];
        for (table, bytes) in run.iter().zip(bytes.chunks_exact_mut(BLOCK_BYTES as usize)) {
            let mut entries = [0; ENTRIES_BYTES];
            self.encode_table(*table, &mut entries);
            area.seal(*table, &entries, bytes);
        }
        let data = Payload::from(self.rt.pool().copy_of(&bytes));
        let digests = pages::digests(&data);
        let mut places = vec![Vec::with_capacity(2); run.len()];
        for _ in 0..2 {
            let blocks = self.write_pages_to_segments(run, &data).await?;
            for (places, block) in places.iter_mut().zip(blocks) {
                places.push(block);
            }
        }
        for ((table, digest), places) in run.iter().zip(digests).zip(places) {
            let entry = TableEntry::at([places[0], places[1]], digest);
            let before = {
                let mut tables = self.tables.borrow_mut();
                std::mem::replace(&mut tables.written[*table as usize], entry)
            };
            let mut usage = self.usage.borrow_mut();
            entry.blocks().for_each(|block| usage.add_live(block));
            before.blocks().for_each(|block| usage.remove_live(block));
        }
        Ok(())
    }

    /// Appends pages of the tables to the segments. Returns the block of each.
    async fn write_pages_to_segments(
        &self,
        run: &[u64],
        data: &Payload,
    ) -> Result<Vec<u32>, IoError> {
        let birth = self.birth_of_pages();
        let numbers = run.iter().map(|table| (FIRST_TABLE + table, birth));
        let numbers: Vec<_> = numbers.collect();
        let mut blocks = Vec::with_capacity(run.len());
        while blocks.len() < run.len() {
            let done = blocks.len();
            let left = data.slice(done * BLOCK_BYTES as usize..data.len());
            let chunk = self.take_chunk(Stream::Pages, &numbers[done..], &left)?;
            self.write_chunk(&chunk, Flags::NONE, Origin::NONE).await?;
            blocks.extend(chunk.at..chunk.at + chunk.blocks);
        }
        Ok(blocks)
    }

    /// Reads both copies of all pages of both tables. A wrong page is written again by the next
    /// commit. Returns the number of bytes read, and the number of wrong copies.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn check_tables(&self) -> Result<(u64, u64), IoError> {
        let (mut read_bytes, mut wrong) = (0, 0);
        let tables = self.tables.borrow().written.len() as u64;
        for table in 0..tables {
            give_way().await;
            let entry = self.tables.borrow().written[table as usize];
            for block in entry.blocks() {
                let _pin = self.pin(&[(super::Place::At(block), 1)]);
                read_bytes += BLOCK_BYTES;
                if self.read_table(block, entry.digest).await?.is_none() {
                    wrong += 1;
                    self.tables.borrow_mut().changed.insert(table);
                }
            }
        }
        Ok((read_bytes, wrong))
    }
}
