//! An append-only log over the blocks of one die: its open, full and free blocks, and their
//! cleaning.
//!
//! A space stores pages and never interprets them. Each write stream (class) has an open block for
//! the host's pages and, if cleaning uses separate blocks, an open block for pages that cleaning
//! moves. The class with the most invalid pages is cleaned first, so the classes share the spare
//! flash equally. Within a class, the cleaning policy selects one of the full blocks.
//!
//! Why cleaning always ends: between commands, at least `reserve` blocks are free, one for each
//! class. In m cleanings the classes open at most (moved pages) / (pages of a block) + classes new
//! blocks, and every cleaning frees one block, so the free list never becomes empty.
//! `blocks_needed` ensures that full blocks contain at least one invalid page whenever cleaning
//! starts.

use super::classes::Classes;
use super::victims::Victims;
use crate::config::{Cleaning, WearLevelling};
use crate::free_blocks::FreeBlocks;
use crate::geometry::NONE;
use crate::nand::{BlockState, Inconsistent, Nand, require};
use crate::operation::Purpose;

/// The flash array and the map, which all spaces of a drive share.
#[derive(Debug)]
pub(super) struct Core {
    pub nand: Nand,
    /// Physical page of every logical page, followed by the physical page of every table page.
    pub map: Vec<u32>,
    /// Number of host writes so far. It is the clock by which the age of blocks is measured.
    pub clock: u64,
}

/// Observer that is notified of the pages that cleaning moves.
pub(super) trait MoveWatcher {
    /// Called after `lpn` has been moved away from the physical page `from`. The map already
    /// contains the new page.
    fn moved(&mut self, core: &mut Core, lpn: u32, from: u32);

    /// Called immediately before `block` is erased.
    fn before_erase(&mut self, core: &mut Core, block: u32);
}

/// An observer that ignores all moves.
pub(super) struct Unwatched;

impl MoveWatcher for Unwatched {
    fn moved(&mut self, _: &mut Core, _: u32, _: u32) {}

    fn before_erase(&mut self, _: &mut Core, _: u32) {}
}

/// State of a write stream.
#[derive(Debug)]
struct Pool {
    /// The block to which the host's pages are appended; `NONE` if the next page opens a new block.
    host_block: u32,
    /// The block to which cleaning moves pages; `NONE` if the next page opens a new block.
    copy_block: u32,
    /// Number of full blocks of the class. The next field is the number of valid pages in these
    /// blocks.
    closed: u32,
    closed_valid: u64,
    victims: Victims,
}

/// Block range and options of a space.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpaceConfig {
    pub first_block: u32,
    pub blocks: u32,
    pub classes: u8,
    pub cleaning: Cleaning,
    pub separate_copies: bool,
    pub wear: WearLevelling,
    pub seed: u64,
}

/// Number of blocks that static wear levelling examines after each cleaning.
const SWEEP_BLOCKS: u32 = 8;

/// An append-only log over a range of blocks; see the module documentation.
#[derive(Debug)]
pub(super) struct Space {
    first_block: u32,
    blocks: u32,
    pages_per_block: u32,
    pools: Vec<Pool>,
    free: FreeBlocks,
    reserve: u32,
    separate_copies: bool,
    spread_erases: u32,
    sweep_at: u32,
    most_erases: u32,
}

impl Space {
    /// Returns the number of blocks that `pages` logical pages in `classes` write streams need; see
    /// the module documentation.
    pub fn blocks_needed(pages: u32, classes: u8, pages_per_block: u32) -> u64 {
        u64::from(pages / pages_per_block) + 3 * u64::from(classes)
    }

    pub fn new(config: &SpaceConfig, nand: &Nand) -> Self {
        let pool = |class: u8| Pool {
            host_block: NONE,
            copy_block: NONE,
            closed: 0,
            closed_valid: 0,
            victims: Victims::new(
                config.cleaning,
                config.blocks,
                nand.pages_per_block(),
                config.seed + u64::from(class),
            ),
        };
        let range = config.first_block..config.first_block + config.blocks;
        Space {
            first_block: config.first_block,
            blocks: config.blocks,
            pages_per_block: nand.pages_per_block(),
            pools: (0..config.classes).map(pool).collect(),
            free: FreeBlocks::new(range, config.wear.least_worn_first, nand),
            reserve: u32::from(config.classes),
            separate_copies: config.separate_copies,
            spread_erases: config.wear.spread_erases,
            sweep_at: 0,
            most_erases: 0,
        }
    }

    /// Cleans blocks until the class can append one page of the host without using the reserve.
    #[inline]
    pub fn make_room<W: MoveWatcher>(
        &mut self,
        core: &mut Core,
        classes: &Classes,
        watcher: &mut W,
        class: u8,
    ) {
        if self.pools[usize::from(class)].host_block == NONE {
            while !self.has_room(class) {
                let cleaned = self.clean(core, classes, watcher);
                assert!(cleaned, "a full space holds invalid pages");
                core.nand.counters.cleanings_blocking += 1;
            }
        }
    }

    /// Returns whether the class can append a page without using the reserve. If the class has an
    /// open block for the host's pages, the page needs no free block. Cleaning can also have opened
    /// this block, because cleaning sometimes writes to the host's open blocks.
    fn has_room(&self, class: u8) -> bool {
        let takes = u32::from(self.pools[usize::from(class)].host_block == NONE);
        self.free.len() >= self.reserve + takes
    }

    /// Returns whether cleaning in idle time is useful: fewer than `wanted` blocks are free in
    /// addition to the reserve, and there are invalid pages in full blocks.
    pub fn wants_cleaning(&self, wanted: u32) -> bool {
        self.free.len() < self.reserve.saturating_add(wanted) && self.class_to_clean().is_some()
    }

    /// Cleans a block in idle time, whether or not the reserve is complete, and then further blocks
    /// until it is complete. Returns false if no block can be freed, or if `wanted` blocks are
    /// already free in addition to the reserve.
    pub fn clean_in_background<W: MoveWatcher>(
        &mut self,
        core: &mut Core,
        classes: &Classes,
        watcher: &mut W,
        wanted: u32,
    ) -> bool {
        if !self.wants_cleaning(wanted) {
            return false;
        }
        let mut cleaned = false;
        while !cleaned || self.free.len() < self.reserve {
            if !self.clean(core, classes, watcher) {
                break;
            }
            core.nand.counters.cleanings_background += 1;
            cleaned = true;
        }
        cleaned
    }

    /// Appends a page to the open block of its class. The page comes from the host, from the table,
    /// or from cleaning. There must be space for the page.
    #[inline]
    pub fn append(&mut self, core: &mut Core, lpn: u32, class: u8, purpose: Purpose) {
        let copies = purpose == Purpose::Copy && self.separate_copies;
        let pool = &mut self.pools[usize::from(class)];
        let open = if copies {
            &mut pool.copy_block
        } else {
            &mut pool.host_block
        };
        if *open == NONE {
            *open = self.free.take();
            let entry = core.nand.block_mut(*open);
            entry.state = BlockState::Open;
            entry.class = class;
        }
        let block = *open;
        core.map[lpn as usize] = core.nand.program(block, lpn, purpose);
        if core.nand.is_full(block) {
            *open = NONE;
            let valid = core.nand.block(block).valid;
            core.nand.block_mut(block).state = BlockState::Closed;
            pool.closed += 1;
            pool.closed_valid += u64::from(valid);
            pool.victims
                .insert(block - self.first_block, valid, core.clock);
        }
    }

    /// Marks a physical page as invalid, because its content is no longer needed.
    #[inline]
    pub fn invalidate(&mut self, nand: &mut Nand, page: u32) {
        let block = nand.invalidate(page);
        let entry = nand.block(block);
        if entry.state == BlockState::Closed {
            let pool = &mut self.pools[usize::from(entry.class)];
            pool.closed_valid -= 1;
            pool.victims
                .invalidated(block - self.first_block, entry.valid);
        }
    }

    /// Cleans one block, and a second one if static wear levelling requires it. Returns false if no
    /// page can be freed.
    pub fn clean<W: MoveWatcher>(
        &mut self,
        core: &mut Core,
        classes: &Classes,
        watcher: &mut W,
    ) -> bool {
        let Some(class) = self.class_to_clean() else {
            return false;
        };
        let pool = &mut self.pools[class];
        let Some(victim) = pool.victims.take(&core.nand, self.first_block, core.clock) else {
            return false;
        };
        self.empty_block(core, classes, watcher, self.first_block + victim);
        if let Some(block) = self.overdue(&core.nand) {
            let class = usize::from(core.nand.block(block).class);
            self.pools[class].victims.remove(block - self.first_block);
            core.nand.counters.wear_moves += 1;
            self.empty_block(core, classes, watcher, block);
        }
        true
    }

    /// Returns the class with the most invalid pages in full blocks; `None` if no full block has
    /// invalid pages.
    fn class_to_clean(&self) -> Option<usize> {
        let invalid = |pool: &Pool| {
            u64::from(pool.closed) * u64::from(self.pages_per_block) - pool.closed_valid
        };
        let counts = self.pools.iter().map(invalid).enumerate();
        let most = counts.max_by_key(|(_, invalid)| *invalid)?;
        (most.1 > 0).then_some(most.0)
    }

    /// Moves the valid pages out of a full block, and erases the block. The caller must have
    /// removed the block from the victims.
    fn empty_block<W: MoveWatcher>(
        &mut self,
        core: &mut Core,
        classes: &Classes,
        watcher: &mut W,
        block: u32,
    ) {
        let entry = *core.nand.block(block);
        let pool = &mut self.pools[usize::from(entry.class)];
        pool.closed -= 1;
        pool.closed_valid -= u64::from(entry.valid);
        core.nand.block_mut(block).state = BlockState::Open;
        for word in 0..core.nand.words_per_block() {
            let mut bits = core.nand.valid_word(block, word);
            while bits != 0 {
                let from = core.nand.page_at(block, word * 64 + bits.trailing_zeros());
                bits &= bits - 1;
                core.nand.read(from, Purpose::Copy);
                let lpn = core.nand.owner_of(from);
                let class = classes.of_copy(lpn, entry.class);
                self.append(core, lpn, class, Purpose::Copy);
                watcher.moved(core, lpn, from);
            }
        }
        core.nand.invalidate_all(block);
        watcher.before_erase(core, block);
        core.nand.erase(block);
        self.most_erases = self.most_erases.max(core.nand.block(block).erases);
        self.free.push(block, &core.nand);
    }

    /// Returns a full block that static wear levelling must empty. The number of erases of such a
    /// block is lower than that of the most worn block by more than `spread_erases`, which shows
    /// that its content is cold.
    fn overdue(&mut self, nand: &Nand) -> Option<u32> {
        if self.spread_erases == 0 {
            return None;
        }
        for _ in 0..SWEEP_BLOCKS.min(self.blocks) {
            let block = self.first_block + self.sweep_at;
            self.sweep_at = (self.sweep_at + 1) % self.blocks;
            let entry = nand.block(block);
            let behind = self.most_erases - entry.erases.min(self.most_erases);
            if entry.state == BlockState::Closed && behind > self.spread_erases {
                return Some(block);
            }
        }
        None
    }

    /// Recomputes the number of valid pages in full blocks. The numbers are taken from the array,
    /// in which the validity of all pages must already be restored.
    pub fn recount(&mut self, core: &Core) {
        for pool in &mut self.pools {
            pool.closed_valid = 0;
        }
        for index in 0..self.blocks {
            let entry = core.nand.block(self.first_block + index);
            if entry.state == BlockState::Closed {
                let pool = &mut self.pools[usize::from(entry.class)];
                pool.closed_valid += u64::from(entry.valid);
                pool.victims.invalidated(index, entry.valid);
            }
        }
    }

    /// Checks the counters of the space against the flash array.
    pub fn verify(&self, nand: &Nand) -> Result<(), Inconsistent> {
        let range = self.first_block..self.first_block + self.blocks;
        let count = |state: BlockState| {
            let blocks = range.clone().filter(|b| nand.block(*b).state == state);
            blocks.count() as u32
        };
        let open = self
            .pools
            .iter()
            .flat_map(|pool| [pool.host_block, pool.copy_block])
            .filter(|block| *block != NONE)
            .count() as u32;
        let closed: u32 = self.pools.iter().map(|pool| pool.closed).sum();
        let (is_free, is_closed) = (count(BlockState::Free), count(BlockState::Closed));
        require(self.free.len() == is_free && closed == is_closed, || {
            format!("{is_free} blocks are free and {is_closed} full, lists say otherwise")
        })?;
        require(open + closed + is_free == self.blocks, || {
            format!("{open} + {closed} + {is_free} blocks of {}", self.blocks)
        })?;
        let listed: u64 = self.pools.iter().map(|pool| pool.closed_valid).sum();
        let closed_blocks = range.filter(|b| nand.block(*b).state == BlockState::Closed);
        let valid: u64 = closed_blocks.map(|b| u64::from(nand.block(b).valid)).sum();
        require(listed == valid, || {
            format!("{valid} valid pages in full blocks, {listed} counted")
        })
    }
}
