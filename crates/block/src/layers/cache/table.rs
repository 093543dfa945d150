//! Table of the cache's pages: maps page numbers to dense ids, and holds the state of each page.
//!
//! Policies need dense ids, while devices have page numbers. An id is reused once the policy has
//! forgotten it and its page has no content in memory or in transfer, so the table is as large as
//! the set of pages that the policy holds or remembers. The table must never reuse an id while any
//! code still uses the id for the old page.

use bimetal_policy::replacement::{PageAddress, PageId, Replacement};
use bimetal_rt::Buf;
use bimetal_rt::collections::Map;

/// Maximum number of ids examined in the search for a free id before the table grows.
const LOOK_AT_MAX: usize = 64;

/// State of a page.
#[derive(Default)]
pub(super) struct Slot {
    /// Page number on the device.
    pub(super) page: u64,
    /// Content that the policy holds; `None` while the page is being read or is not held.
    pub(super) content: Option<Buf>,
    /// Newest version that is being destaged and is not on the device yet.
    pub(super) leaving: Option<Buf>,
    /// Number of changes of the content.
    pub(super) version: u32,
    /// Version that is being destaged.
    pub(super) leaving_version: u32,
    /// Time at which the page became dirty, in ns.
    pub(super) dirty_since_ns: Option<u64>,
    /// Number of the fill that is reading the page from the device; `None` if no fill is running or
    /// a write has made its result invalid.
    pub(super) filling: Option<u64>,
    /// True if the attempt to write the version that is being destaged failed.
    pub(super) failed: bool,
    /// Flush epoch in which the page was last written to the device; 0 once that write is durable.
    pub(super) unflushed_in: u64,
}

impl Slot {
    /// Returns the newest content, if it is in memory.
    pub(super) fn newest(&self) -> Option<&Buf> {
        self.content.as_ref().or(self.leaving.as_ref())
    }

    /// Returns true if the page has no content in memory and is not being read.
    fn is_free(&self) -> bool {
        self.content.is_none() && self.leaving.is_none() && self.filling.is_none()
    }
}

/// An erase block: its number, and the number of its pages that have ids. Numbers of removed blocks
/// are used again, so the numbers stay small and can be used as an index.
struct Block {
    number: u32,
    ids: u32,
}

/// The table of pages; see the module.
pub(super) struct Table {
    slots: Vec<Slot>,
    ids: Map<u64, PageId>,
    blocks: Map<u64, Block>,
    free_blocks: Vec<u32>,
    pages_per_block: u64,
    /// Position at which the search for a free id continues.
    hand: usize,
}

impl Table {
    /// Creates an empty table for a device with `pages_per_block` pages in an erase block.
    pub(super) fn new(pages_per_block: u32) -> Table {
        Table {
            slots: Vec::new(),
            ids: Map::default(),
            blocks: Map::default(),
            free_blocks: Vec::new(),
            pages_per_block: u64::from(pages_per_block),
            hand: 0,
        }
    }

    /// Returns the id of a page, if it has one.
    pub(super) fn find(&self, page: u64) -> Option<PageId> {
        self.ids.get(&page).copied()
    }

    /// Returns the id of a page. If the id is new, reports it to the policy.
    pub(super) fn intern(&mut self, page: u64, policy: &mut dyn Replacement) -> PageId {
        if let Some(id) = self.find(page) {
            return id;
        }
        let id = self.free_id(policy);
        let block = self.take_block(page / self.pages_per_block);
        let offset = (page % self.pages_per_block) as u32;
        self.ids.insert(page, id);
        self.slots[id as usize] = Slot {
            page,
            version: self.slots[id as usize].version.wrapping_add(1),
            ..Slot::default()
        };
        policy.introduce(id, PageAddress { block, offset });
        id
    }

    fn free_id(&mut self, policy: &dyn Replacement) -> PageId {
        for _ in 0..self.slots.len().min(LOOK_AT_MAX) {
            self.hand = (self.hand + 1) % self.slots.len();
            let id = self.hand as PageId;
            if self.slots[self.hand].is_free() && !policy.remembers(id) {
                self.forget(id);
                return id;
            }
        }
        self.slots.push(Slot::default());
        let id = self.slots.len() - 1;
        PageId::try_from(id).expect("memory holds fewer pages than there are ids")
    }

    fn forget(&mut self, id: PageId) {
        let page = self.slots[id as usize].page;
        if self.ids.get(&page) == Some(&id) {
            self.ids.remove(&page);
            self.give_block(page / self.pages_per_block);
        }
    }

    fn take_block(&mut self, block: u64) -> u32 {
        let next = self.blocks.len() as u32 + self.free_blocks.len() as u32;
        let free = &mut self.free_blocks;
        let entry = self.blocks.entry(block).or_insert_with(|| Block {
            number: free.pop().unwrap_or(next),
            ids: 0,
        });
        entry.ids += 1;
        entry.number
    }

    fn give_block(&mut self, block: u64) {
        let entry = self.blocks.get_mut(&block).expect("its pages have ids");
        entry.ids -= 1;
        if entry.ids == 0 {
            self.free_blocks.push(entry.number);
            self.blocks.remove(&block);
        }
    }
}

impl std::ops::Index<PageId> for Table {
    type Output = Slot;
    fn index(&self, id: PageId) -> &Slot {
        &self.slots[id as usize]
    }
}

impl std::ops::IndexMut<PageId> for Table {
    fn index_mut(&mut self, id: PageId) -> &mut Slot {
        &mut self.slots[id as usize]
    }
}
