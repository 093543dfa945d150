//! The flash array: which pages are programmed, which of them are valid, and which logical page
//! each of them holds.
//!
//! Only this module changes the state of the flash. Operations are therefore counted and recorded
//! here, and the rules of NAND are asserted here in every build: a block is programmed from its
//! first page to its last, and only an erase makes a page programmable again. The array does not
//! know how pages are mapped; a translation layer must never change the state of a page except
//! through this module.
//!
//! The number of a physical page is block x stride + page. The stride is the number of pages of a
//! block rounded up to a power of two, so that a shift and a mask of the number give the block and
//! the page.

use crate::counters::{Counters, Wear};
use crate::geometry::{FlashError, Geometry, NONE};
use crate::operation::{Action, Operation, Purpose, Recorder};

/// Use of a block by its translation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Erased and on a list of free blocks.
    Free,
    /// Being programmed, or in use by a layer with log blocks.
    Open,
    /// Full, and waiting to be cleaned.
    Closed,
}

/// One erase block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// Number of valid pages: programmed pages that hold the newest version of a logical page.
    pub valid: u32,
    /// Number of pages programmed since the last erase. This is also the offset of the next page to
    /// program.
    pub programmed: u32,
    /// Number of erases of the block so far.
    pub erases: u32,
    /// State of the block.
    pub state: BlockState,
    /// Write stream of the pages in the block, for layers that have write streams.
    pub class: u8,
}

/// The flash array; see the module documentation.
#[derive(Debug)]
pub(crate) struct Nand {
    pages_per_block: u32,
    shift: u32,
    words_per_block: u32,
    die_blocks: u32,
    blocks: Vec<Block>,
    owners: Vec<u32>,
    valid: Vec<u64>,
    pub counters: Counters,
    pub recorder: Recorder,
}

impl Nand {
    /// Creates an array whose blocks are all erased. Errors: a geometry out of range.
    pub fn new(geometry: &Geometry) -> Result<Self, FlashError> {
        geometry.validate()?;
        let shift = geometry
            .pages_per_block
            .next_power_of_two()
            .trailing_zeros();
        let words_per_block = (1u32 << shift).div_ceil(64);
        let blocks = geometry.total_blocks() as usize;
        let erased = Block {
            valid: 0,
            programmed: 0,
            erases: 0,
            state: BlockState::Free,
            class: 0,
        };
        Ok(Nand {
            pages_per_block: geometry.pages_per_block,
            shift,
            words_per_block,
            die_blocks: geometry.die_blocks(),
            blocks: vec![erased; blocks],
            owners: vec![NONE; blocks << shift],
            valid: vec![0; blocks * words_per_block as usize],
            counters: Counters::default(),
            recorder: Recorder::default(),
        })
    }

    pub fn pages_per_block(&self) -> u32 {
        self.pages_per_block
    }

    #[inline]
    pub fn block_of(&self, page: u32) -> u32 {
        page >> self.shift
    }

    #[inline]
    pub fn offset_of(&self, page: u32) -> u32 {
        page & ((1 << self.shift) - 1)
    }

    #[inline]
    pub fn page_at(&self, block: u32, offset: u32) -> u32 {
        (block << self.shift) + offset
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    pub fn block(&self, block: u32) -> &Block {
        &self.blocks[block as usize]
    }

    #[inline]
    pub fn block_mut(&mut self, block: u32) -> &mut Block {
        &mut self.blocks[block as usize]
    }

    /// Returns whether every page of the block has been programmed.
    pub fn is_full(&self, block: u32) -> bool {
        self.block(block).programmed == self.pages_per_block
    }

    #[inline]
    fn die_of(&self, page: u32) -> u32 {
        self.block_of(page) / self.die_blocks
    }

    #[inline]
    fn bit_of(&self, page: u32) -> (usize, u64) {
        let offset = self.offset_of(page);
        let word = self.block_of(page) * self.words_per_block + (offset >> 6);
        (word as usize, 1 << (offset & 63))
    }

    pub fn is_valid(&self, page: u32) -> bool {
        let (word, bit) = self.bit_of(page);
        self.valid[word] & bit != 0
    }

    pub fn owner_of(&self, page: u32) -> u32 {
        self.owners[page as usize]
    }

    fn record(&mut self, action: Action, purpose: Purpose, page: u32, lpn: u32) {
        let die = self.die_of(page);
        self.recorder.push(|| Operation {
            action,
            purpose,
            page,
            die,
            lpn,
        });
    }

    /// Reads a page.
    #[inline]
    pub fn read(&mut self, page: u32, purpose: Purpose) {
        let lpn = self.owners[page as usize];
        match purpose {
            Purpose::Host => self.counters.reads_host += 1,
            Purpose::Map => self.counters.reads_map += 1,
            Purpose::Prefetch => self.counters.reads_prefetch += 1,
            Purpose::Copy | Purpose::Padding | Purpose::Buffer => self.counters.reads_copy += 1,
        }
        self.record(Action::Read, purpose, page, lpn);
    }

    /// Programs the next page of `block` with the logical page `lpn`, and marks it as valid.
    /// Returns the physical page.
    ///
    /// # Panics
    /// When the block is full. The caller must check this before.
    #[inline]
    pub fn program(&mut self, block: u32, lpn: u32, purpose: Purpose) -> u32 {
        let page = self.take_page(block);
        self.blocks[block as usize].valid += 1;
        self.owners[page as usize] = lpn;
        let (word, bit) = self.bit_of(page);
        self.valid[word] |= bit;
        match purpose {
            Purpose::Host => self.counters.programs_host += 1,
            Purpose::Map => self.counters.programs_map += 1,
            _ => self.counters.programs_copy += 1,
        }
        self.record(Action::Program, purpose, page, lpn);
        page
    }

    /// Programs the next page of `block` without content, as padding.
    pub fn pad(&mut self, block: u32) {
        let page = self.take_page(block);
        self.owners[page as usize] = NONE;
        self.counters.programs_padding += 1;
        self.record(Action::Program, Purpose::Padding, page, NONE);
    }

    #[inline]
    fn take_page(&mut self, block: u32) -> u32 {
        let offset = self.blocks[block as usize].programmed;
        assert!(
            offset < self.pages_per_block,
            "a full block is erased before it is programmed"
        );
        self.blocks[block as usize].programmed = offset + 1;
        self.counters.programs += 1;
        self.page_at(block, offset)
    }

    /// Marks a physical page as invalid, because a newer version exists or the content is no longer
    /// needed. Returns the block of the page.
    #[inline]
    pub fn invalidate(&mut self, page: u32) -> u32 {
        let (word, bit) = self.bit_of(page);
        debug_assert!(self.valid[word] & bit != 0, "a page is invalidated once");
        self.valid[word] &= !bit;
        let block = self.block_of(page);
        self.blocks[block as usize].valid -= 1;
        block
    }

    /// Erases a block that has no valid pages. The block is then free.
    ///
    /// # Panics
    /// When a page of the block is valid.
    pub fn erase(&mut self, block: u32) {
        let entry = &mut self.blocks[block as usize];
        assert!(entry.valid == 0, "an erase never destroys a valid page");
        entry.programmed = 0;
        entry.erases += 1;
        entry.state = BlockState::Free;
        self.counters.erases += 1;
        let page = self.page_at(block, 0);
        self.record(Action::Erase, Purpose::Copy, page, NONE);
    }

    /// Returns a bit mask of the valid pages in a group of 64 pages of a block. `word` is the
    /// number of the group.
    #[inline]
    pub fn valid_word(&self, block: u32, word: u32) -> u64 {
        self.valid[(block * self.words_per_block + word) as usize]
    }

    pub fn words_per_block(&self) -> u32 {
        self.words_per_block
    }

    /// Marks all pages of a block as invalid. Its valid pages must have been moved.
    pub fn invalidate_all(&mut self, block: u32) {
        let first = (block * self.words_per_block) as usize;
        self.valid[first..first + self.words_per_block as usize].fill(0);
        self.blocks[block as usize].valid = 0;
    }

    /// Marks every page of the array as invalid. The validity of pages is then restored from a
    /// table.
    pub fn invalidate_everything(&mut self) {
        self.valid.fill(0);
        for block in &mut self.blocks {
            block.valid = 0;
        }
    }

    /// Marks a programmed page as valid again, because the table that was restored after a power
    /// cut refers to it.
    pub fn revalidate(&mut self, page: u32, lpn: u32) {
        assert!(
            self.owners[page as usize] == lpn,
            "a saved table names pages that still hold its content"
        );
        let (word, bit) = self.bit_of(page);
        self.valid[word] |= bit;
        let block = self.block_of(page);
        self.blocks[block as usize].valid += 1;
    }

    pub fn wear(&self) -> Wear {
        let erases = self.blocks.iter().map(|block| block.erases);
        let sum: u64 = erases.clone().map(u64::from).sum();
        Wear {
            min_erases: erases.clone().min().unwrap_or(0),
            max_erases: erases.max().unwrap_or(0),
            mean_erases: sum as f64 / self.blocks.len() as f64,
        }
    }

    /// Checks that the array agrees with `map` and with the counters; see [`crate::Ftl::verify`].
    pub fn verify(&self, map: &[u32]) -> Result<(), Inconsistent> {
        for (lpn, page) in map.iter().enumerate().filter(|(_, page)| **page != NONE) {
            let block = self.block(self.block_of(*page));
            require(
                self.is_valid(*page) && self.owners[*page as usize] as usize == lpn,
                || format!("page {lpn} is mapped to a page that is not its"),
            )?;
            require(
                self.offset_of(*page) < block.programmed && block.state != BlockState::Free,
                || format!("page {lpn} is mapped to an erased page"),
            )?;
        }
        let mapped = map.iter().filter(|page| **page != NONE).count() as u64;
        let valid: u64 = self.blocks.iter().map(|block| u64::from(block.valid)).sum();
        require(mapped == valid, || {
            format!("{mapped} pages are mapped, {valid} are valid")
        })?;
        self.verify_blocks()?;
        self.verify_counters()
    }

    fn verify_blocks(&self) -> Result<(), Inconsistent> {
        for (index, block) in self.blocks.iter().enumerate() {
            let words = 0..self.words_per_block;
            let bits: u32 = words
                .map(|word| self.valid_word(index as u32, word).count_ones())
                .sum();
            require(bits == block.valid && bits <= block.programmed, || {
                format!("block {index} counts {} valid pages of {bits}", block.valid)
            })?;
            let erased = block.state != BlockState::Free || block.programmed == 0;
            require(erased, || format!("free block {index} is programmed"))?;
        }
        Ok(())
    }

    fn verify_counters(&self) -> Result<(), Inconsistent> {
        let c = &self.counters;
        let parts = c.programs_host + c.programs_copy + c.programs_padding + c.programs_map;
        require(c.programs == parts, || {
            format!("{} programs, of all kinds {parts}", c.programs)
        })?;
        let worn: u64 = self.blocks.iter().map(|b| u64::from(b.erases)).sum();
        require(c.erases == worn, || {
            format!("{} erases counted, {worn} in the blocks", c.erases)
        })
    }
}

/// Description of an inconsistent state, which is a defect of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the drive's state is inconsistent: {0}")]
pub struct Inconsistent(pub String);

pub(crate) fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), Inconsistent> {
    if holds {
        Ok(())
    } else {
        Err(Inconsistent(what()))
    }
}
