//! The translation table on flash: a table that is partly cached in memory (DFTL), and a table in
//! volatile memory that is saved to flash.
//!
//! Table pages are in separate blocks on every die. At most half of these blocks is in use, so that
//! a table write during the cleaning of data never needs space from the data blocks.
//!
//! - [`CachedMap`]: the table is on flash, and some of its entries are in memory (Gupta, Kim and
//!   Urgaonkar, DFTL, ASPLOS 2009). A miss reads a table page. The eviction of a changed entry
//!   reads and programs a table page. Cleaning changes cached entries in memory, and batches the
//!   changes of other entries: one read and one program for each table page and cleaned block.
//!   Replacement is plain LRU (the paper uses segmented LRU), and an eviction writes back one
//!   entry, as in the paper.
//! - [`SavedMap`]: the whole table is in volatile memory. Changed entries are appended to a ring of
//!   table pages: at a flush, after `CHANGES_MAX` changes, and before an erase would destroy a page
//!   to which the saved table refers. After a power cut the saved table is used.

use super::classes::Classes;
use super::space::{Core, MoveWatcher, Space, Unwatched};
use crate::geometry::NONE;
use crate::operation::Purpose;

/// Size of a table entry in bytes (as in DFTL).
const ENTRY_BYTES: u32 = 4;

/// Number of changes after which a volatile table is saved even without a flush.
const CHANGES_MAX: usize = 65_536;

/// Returns the number of entries in a table page of `page_bytes` bytes.
pub(super) fn entries_per_page(page_bytes: u32) -> u32 {
    (page_bytes / ENTRY_BYTES).max(1)
}

/// The table pages on flash. Their numbers follow those of the logical pages.
#[derive(Debug)]
pub(super) struct TablePages {
    /// The spaces for table pages, one on every die.
    pub spaces: Vec<Space>,
    pub first: u32,
    pub entries: u32,
}

impl TablePages {
    fn page_of(&self, lpn: u32) -> u32 {
        lpn / self.entries
    }

    fn read(&mut self, core: &mut Core, table_page: u32) {
        let page = core.map[(self.first + table_page) as usize];
        if page != NONE {
            core.nand.read(page, Purpose::Map);
        }
    }

    fn program(&mut self, core: &mut Core, table_page: u32) {
        let lpn = self.first + table_page;
        let dies = self.spaces.len() as u32;
        let space = &mut self.spaces[(table_page % dies) as usize];
        space.make_room(core, &Classes::Given, &mut Unwatched, 0);
        let old = core.map[lpn as usize];
        if old != NONE {
            space.invalidate(&mut core.nand, old);
        }
        space.append(core, lpn, 0, Purpose::Map);
    }
}

/// Storage of the translation table.
#[derive(Debug)]
pub(super) enum MapStore {
    /// The table is in memory and not lost in a power cut: the memory is durable, or the table is
    /// reconstructed from the spare areas of the pages.
    InMemory,
    Cached(CachedMap),
    Saved(SavedMap),
}

impl MapStore {
    /// Looks up the entry of `lpn` and counts the cost. `changes` tells whether the caller will
    /// change the entry.
    #[inline]
    pub fn look_up(&mut self, core: &mut Core, lpn: u32, changes: bool) {
        match self {
            MapStore::InMemory => {}
            MapStore::Cached(cached) => cached.look_up(core, lpn, changes),
            MapStore::Saved(saved) => {
                if changes {
                    if saved.changes.len() >= CHANGES_MAX {
                        saved.save(core);
                    }
                    saved.change(core, lpn, CHANGED_BY_HOST);
                }
            }
        }
    }

    pub fn table_spaces(&mut self) -> &mut [Space] {
        match self {
            MapStore::InMemory => &mut [],
            MapStore::Cached(cached) => &mut cached.table.spaces,
            MapStore::Saved(saved) => &mut saved.table.spaces,
        }
    }

    pub fn spaces(&self) -> &[Space] {
        match self {
            MapStore::InMemory => &[],
            MapStore::Cached(cached) => &cached.table.spaces,
            MapStore::Saved(saved) => &saved.table.spaces,
        }
    }
}

impl MoveWatcher for MapStore {
    #[inline]
    fn moved(&mut self, core: &mut Core, lpn: u32, _from: u32) {
        match self {
            MapStore::InMemory => {}
            MapStore::Cached(cached) => cached.moved(core, lpn),
            MapStore::Saved(saved) => saved.change(core, lpn, CHANGED_BY_MOVE),
        }
    }

    fn before_erase(&mut self, core: &mut Core, block: u32) {
        match self {
            MapStore::InMemory => {}
            MapStore::Cached(cached) => cached.cleanings += 1,
            MapStore::Saved(saved) => {
                if saved.pinned[block as usize] > 0 {
                    saved.save(core);
                }
            }
        }
    }
}

/// A translation table on flash. Some of its entries are cached in memory. See the module
/// documentation.
#[derive(Debug)]
pub(super) struct CachedMap {
    table: TablePages,
    capacity: u32,
    len: u32,
    recency: crate::recency::Recency,
    cached: Vec<bool>,
    changed: Vec<bool>,
    /// For each table page, the number of the cleaning that has last written the page.
    written_in: Vec<u64>,
    cleanings: u64,
}

impl CachedMap {
    pub fn new(table: TablePages, table_pages: u32, capacity: u32) -> Self {
        let logical = table.first;
        CachedMap {
            capacity,
            len: 0,
            recency: crate::recency::Recency::new(logical),
            cached: vec![false; logical as usize],
            changed: vec![false; logical as usize],
            written_in: vec![0; table_pages as usize],
            cleanings: 1,
            table,
        }
    }

    fn look_up(&mut self, core: &mut Core, lpn: u32, changes: bool) {
        if self.cached[lpn as usize] {
            core.nand.counters.map_hits += 1;
        } else {
            core.nand.counters.map_misses += 1;
            if self.len == self.capacity {
                self.evict(core);
            }
            self.len += 1;
            self.cached[lpn as usize] = true;
            let table_page = self.table.page_of(lpn);
            self.table.read(core, table_page);
        }
        self.recency.touch(lpn);
        self.changed[lpn as usize] |= changes;
    }

    fn evict(&mut self, core: &mut Core) {
        let Some(oldest) = self.recency.oldest() else {
            return;
        };
        self.recency.remove(oldest);
        self.cached[oldest as usize] = false;
        self.len -= 1;
        if std::mem::take(&mut self.changed[oldest as usize]) {
            let table_page = self.table.page_of(oldest);
            self.table.read(core, table_page);
            self.table.program(core, table_page);
        }
    }

    fn moved(&mut self, core: &mut Core, lpn: u32) {
        if self.cached[lpn as usize] {
            self.changed[lpn as usize] = true;
            return;
        }
        let table_page = self.table.page_of(lpn);
        let written_in = &mut self.written_in[table_page as usize];
        if *written_in != self.cleanings {
            *written_in = self.cleanings;
            self.table.read(core, table_page);
            self.table.program(core, table_page);
        }
    }

    /// Empties the cache after a power cut. Changed entries are reconstructed from the spare areas
    /// of the pages; the reads for this are not counted.
    pub fn forget(&mut self) {
        while let Some(oldest) = self.recency.oldest() {
            self.recency.remove(oldest);
            self.cached[oldest as usize] = false;
            self.changed[oldest as usize] = false;
        }
        self.len = 0;
    }
}

const CHANGED_BY_MOVE: u8 = 1;
const CHANGED_BY_HOST: u8 = 2;

/// A table in volatile memory that is saved to flash periodically; see the module documentation.
#[derive(Debug)]
pub(super) struct SavedMap {
    table: TablePages,
    table_pages: u32,
    /// The table at the last save. A power cut reverts to it.
    saved: Vec<u32>,
    /// `changes` lists each entry that differs from the saved table; no entry is listed twice.
    /// `change` has a value for every entry of the table: why the entry differs, or 0 if it does
    /// not differ.
    changes: Vec<u32>,
    change: Vec<u8>,
    /// For each block, the number of its pages to which the saved table refers but the current
    /// table does not.
    pinned: Vec<u32>,
    ring_at: u32,
}

impl SavedMap {
    pub fn new(table: TablePages, table_pages: u32, blocks: u32) -> Self {
        let logical = table.first as usize;
        SavedMap {
            table_pages,
            saved: vec![NONE; logical],
            changes: Vec::with_capacity(logical),
            change: vec![0; logical],
            pinned: vec![0; blocks as usize],
            ring_at: 0,
            table,
        }
    }

    fn change(&mut self, core: &mut Core, lpn: u32, why: u8) {
        let change = &mut self.change[lpn as usize];
        if *change == 0 {
            self.changes.push(lpn);
            let saved = self.saved[lpn as usize];
            if saved != NONE {
                self.pinned[core.nand.block_of(saved) as usize] += 1;
            }
        }
        *change |= why;
    }

    /// Appends changed entries to the ring of table pages.
    pub fn save(&mut self, core: &mut Core) {
        let pages = self.changes.len().div_ceil(self.table.entries as usize);
        while let Some(lpn) = self.changes.pop() {
            self.change[lpn as usize] = 0;
            let saved = &mut self.saved[lpn as usize];
            if *saved != NONE {
                self.pinned[core.nand.block_of(*saved) as usize] -= 1;
            }
            *saved = core.map[lpn as usize];
        }
        for _ in 0..pages {
            let at = self.ring_at;
            self.ring_at = (at + 1) % self.table_pages;
            self.table.program(core, at);
        }
    }

    /// Reverts the map to the saved table. The caller must then restore the validity of pages.
    pub fn revert(&mut self, core: &mut Core) {
        while let Some(lpn) = self.changes.pop() {
            let change = std::mem::take(&mut self.change[lpn as usize]);
            core.nand.counters.lost_pages += u64::from(change & CHANGED_BY_HOST != 0);
            let saved = self.saved[lpn as usize];
            if saved != NONE {
                self.pinned[core.nand.block_of(saved) as usize] -= 1;
            }
            core.map[lpn as usize] = saved;
        }
    }
}
