//! Layers with block-mapped data: each page has a fixed offset in its data block. A page that
//! cannot be written at its offset is written to a log block, where it stays until a merge.
//!
//! [`DataBlocks`] is the part that these layers share: the location of the newest version of each
//! page, and the three kinds of merge. A *switch* makes a log block the data block. A *partial*
//! merge first adds the missing pages to the log block. A *full* merge copies all newest versions
//! to a new block (Kim and others, BAST, IEEE Trans. Consumer Electronics 2002; Lee and others,
//! FAST, ACM TECS 2007).
//!
//! A data block that is not full takes its next page directly, as long as pages are written in
//! order. A merge stops after the last page that has content, and pads the gaps before that page.

mod bast;
mod block_mapped;
mod fast;

pub(crate) use bast::Bast;
pub(crate) use block_mapped::BlockMapped;
pub(crate) use fast::Fast;

use crate::config::DriveConfig;
use crate::free_blocks::FreeBlocks;
use crate::geometry::{FlashError, NONE, check_page};
use crate::nand::{BlockState, Inconsistent, Nand, require};
use crate::operation::Purpose;

/// Returns the number of blocks needed: those for block-mapped data, and `extra_blocks` more.
pub(crate) fn blocks_needed(logical_pages: u32, pages_per_block: u32, extra_blocks: u32) -> u64 {
    u64::from(logical_pages.div_ceil(pages_per_block)) + u64::from(extra_blocks)
}

/// Name and block requirement of a layer.
struct Needs {
    ftl: &'static str,
    knob: &'static str,
    /// Maximum number of blocks that the translation layer uses at one time in addition to the data
    /// blocks.
    extra_blocks: u32,
}

/// The data blocks and the location of the newest version of every page; see the module
/// documentation.
#[derive(Debug)]
struct DataBlocks {
    nand: Nand,
    /// Physical page with the newest version of every logical page.
    map: Vec<u32>,
    /// Data block of every logical block.
    data_of: Vec<u32>,
    free: FreeBlocks,
    pages_per_block: u32,
}

impl DataBlocks {
    fn new(config: &DriveConfig, logical_pages: u32, needs: &Needs) -> Result<Self, FlashError> {
        let geometry = &config.geometry;
        let data_blocks = logical_pages.div_ceil(geometry.pages_per_block);
        let needed_blocks =
            blocks_needed(logical_pages, geometry.pages_per_block, needs.extra_blocks);
        let blocks = geometry.total_blocks();
        if needed_blocks > u64::from(blocks) {
            return Err(FlashError::TooFewBlocks {
                ftl: needs.ftl,
                needed_blocks,
                logical_pages: u64::from(logical_pages),
                blocks: u64::from(blocks),
                knob: needs.knob,
            });
        }
        let nand = Nand::new(geometry)?;
        let (dies, die_blocks) = (geometry.total_dies(), geometry.die_blocks());
        // Successive blocks are on different dies, so that the merges of a stream can run in
        // parallel.
        let order = (0..die_blocks).flat_map(|n| (0..dies).map(move |die| die * die_blocks + n));
        Ok(DataBlocks {
            free: FreeBlocks::new(order, config.wear.least_worn_first, &nand),
            map: vec![NONE; logical_pages as usize],
            data_of: vec![NONE; data_blocks as usize],
            pages_per_block: geometry.pages_per_block,
            nand,
        })
    }

    fn logical_pages(&self) -> u32 {
        self.map.len() as u32
    }

    fn check(&self, lpns: &[u32]) -> Result<(), FlashError> {
        lpns.iter()
            .try_for_each(|lpn| check_page(*lpn, self.logical_pages()))
    }

    /// Returns the logical block of a page, and the page's offset in that block.
    #[inline]
    fn place_of(&self, lpn: u32) -> (u32, u32) {
        (lpn / self.pages_per_block, lpn % self.pages_per_block)
    }

    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError> {
        check_page(lpn, self.logical_pages())?;
        let page = self.map[lpn as usize];
        if page != NONE {
            self.nand.read(page, purpose);
        }
        Ok(page != NONE)
    }

    fn locate(&self, lpn: u32) -> Option<u32> {
        let page = self.map.get(lpn as usize).copied();
        page.filter(|page| *page != NONE)
    }

    fn trim(&mut self, lpn: u32) -> Result<(), FlashError> {
        check_page(lpn, self.logical_pages())?;
        self.forget(lpn);
        Ok(())
    }

    fn forget(&mut self, lpn: u32) {
        let page = std::mem::replace(&mut self.map[lpn as usize], NONE);
        if page != NONE {
            self.nand.invalidate(page);
        }
    }

    /// Programs the next page of `block` with a new version of `lpn` from the host.
    fn program(&mut self, block: u32, lpn: u32) {
        self.forget(lpn);
        self.map[lpn as usize] = self.nand.program(block, lpn, Purpose::Host);
    }

    /// Copies the newest version of `lpn` to the next page of `block`. The logical page must have a
    /// version.
    fn copy(&mut self, block: u32, lpn: u32) {
        let from = self.map[lpn as usize];
        self.nand.read(from, Purpose::Copy);
        self.nand.invalidate(from);
        self.map[lpn as usize] = self.nand.program(block, lpn, Purpose::Copy);
    }

    fn take_block(&mut self) -> u32 {
        let block = self.free.take();
        self.nand.block_mut(block).state = BlockState::Open;
        block
    }

    fn erase(&mut self, block: u32) {
        self.nand.erase(block);
        self.free.push(block, &self.nand);
    }

    /// Writes a page directly to its data block, if the page is the next one in that block. Returns
    /// false otherwise.
    fn write_in_order(&mut self, lpn: u32) -> bool {
        let (lbn, offset) = self.place_of(lpn);
        let mut block = self.data_of[lbn as usize];
        if block == NONE && offset == 0 {
            block = self.take_block();
            self.data_of[lbn as usize] = block;
        }
        let fits = block != NONE && self.nand.block(block).programmed == offset;
        if fits {
            self.program(block, lpn);
        }
        fits
    }

    /// Returns the number of offsets of a logical block that a merge must write: the offsets up to
    /// the last page with content.
    fn used_offsets(&self, lbn: u32) -> u32 {
        let first = lbn as usize * self.pages_per_block as usize;
        let end = self.map.len().min(first + self.pages_per_block as usize);
        let last = self.map[first..end].iter().rposition(|page| *page != NONE);
        last.map_or(0, |last| last as u32 + 1)
    }

    /// Copies the newest versions of a logical block's pages to a new data block, and erases the
    /// old data block.
    fn full_merge(&mut self, lbn: u32) {
        self.nand.counters.merges_full += 1;
        let used = self.used_offsets(lbn);
        let old = std::mem::replace(&mut self.data_of[lbn as usize], NONE);
        if used > 0 {
            let block = self.take_block();
            self.copy_offsets(block, lbn, used);
            self.data_of[lbn as usize] = block;
        }
        if old != NONE {
            self.erase(old);
        }
    }

    /// Programs `block`, from its next page up to the offset `used`, with copies of the newest
    /// versions. Offsets without a version are padded.
    fn copy_offsets(&mut self, block: u32, lbn: u32, used: u32) {
        for offset in self.nand.block(block).programmed..used {
            let lpn = lbn * self.pages_per_block + offset;
            if self.map[lpn as usize] == NONE {
                self.nand.pad(block);
            } else {
                self.copy(block, lpn);
            }
        }
    }

    /// Makes the log block `block` the data block of `lbn`. If `block` has all pages, this is a
    /// switch merge, which copies nothing. Otherwise it is a partial merge, which copies the
    /// missing pages. `block` must hold the newest versions of the first offsets of `lbn`, in
    /// order.
    fn adopt(&mut self, lbn: u32, block: u32) {
        let used = self.used_offsets(lbn);
        if used > self.nand.block(block).programmed {
            self.nand.counters.merges_partial += 1;
            self.copy_offsets(block, lbn, used);
        } else {
            self.nand.counters.merges_switch += 1;
        }
        let old = std::mem::replace(&mut self.data_of[lbn as usize], block);
        if old != NONE {
            self.erase(old);
        }
    }

    /// Returns whether all programmed pages of a block are valid.
    fn is_all_valid(&self, block: u32) -> bool {
        let entry = self.nand.block(block);
        entry.valid == entry.programmed
    }

    /// Checks the data blocks against the flash array. `logs` is the number of log blocks that the
    /// layer uses.
    fn verify(&self, logs: u32) -> Result<(), Inconsistent> {
        self.nand.verify(&self.map)?;
        let data = self.data_of.iter().filter(|block| **block != NONE);
        let data_blocks = data.clone().count();
        for (lbn, block) in (0u32..).zip(&self.data_of).filter(|(_, b)| **b != NONE) {
            for offset in 0..self.pages_per_block {
                let page = self.nand.page_at(*block, offset);
                let home = lbn * self.pages_per_block + offset;
                require(
                    !self.nand.is_valid(page) || self.nand.owner_of(page) == home,
                    || format!("block {block} holds a page that is not at its offset"),
                )?;
            }
        }
        let used = data_blocks + logs as usize + self.free.len() as usize;
        let blocks = self.nand.blocks();
        require(used == blocks, || {
            format!("{used} blocks are in use or free, there are {blocks}")
        })
    }
}
