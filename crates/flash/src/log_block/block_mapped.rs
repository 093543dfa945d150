//! A block-mapped layer without log blocks. A write to the next page of its block, in order, is
//! programmed directly. For any other write, the whole block is rewritten.
//!
//! Writing k pages of one block together costs n - k reads, n programs and one erase, where n is
//! the number of pages of the block.

use super::{DataBlocks, Needs};
use crate::config::DriveConfig;
use crate::counters::{Counters, Wear};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, NONE};
use crate::nand::Inconsistent;
use crate::operation::{Purpose, Recorder};

/// The block-mapped layer; see the module documentation.
#[derive(Debug)]
pub(crate) struct BlockMapped {
    data: DataBlocks,
    /// For each offset in a block: whether the current call writes the page at that offset. All
    /// elements are false between calls.
    wanted: Vec<bool>,
}

impl BlockMapped {
    /// Number of blocks needed in addition to data blocks: the new block of a rewrite.
    pub const EXTRA_BLOCKS: u32 = 1;

    /// Creates an empty layer. Errors: too few blocks.
    pub fn new(config: &DriveConfig, logical_pages: u32) -> Result<Self, FlashError> {
        let needs = Needs {
            ftl: "the block-mapped layer",
            knob: "nothing else",
            extra_blocks: Self::EXTRA_BLOCKS,
        };
        let data = DataBlocks::new(config, logical_pages, &needs)?;
        let wanted = vec![false; data.pages_per_block as usize];
        Ok(BlockMapped { data, wanted })
    }

    /// Writes pages of one logical block together. If `lpns` contains a page twice, the page is
    /// written once.
    fn write_together(&mut self, lpns: &[u32]) {
        let in_order = lpns
            .iter()
            .take_while(|lpn| self.data.write_in_order(**lpn))
            .count();
        let rest = &lpns[in_order..];
        let Some(first) = rest.first() else { return };
        let (lbn, _) = self.data.place_of(*first);
        let mut used = self.data.used_offsets(lbn);
        for lpn in rest {
            let (_, offset) = self.data.place_of(*lpn);
            self.wanted[offset as usize] = true;
            used = used.max(offset + 1);
        }
        self.rewrite(lbn, used);
    }

    /// Rewrites the first `used` offsets of a logical block. Offsets with a flag in `wanted` are
    /// written with the host's pages, and the other pages are copied.
    fn rewrite(&mut self, lbn: u32, used: u32) {
        let data = &mut self.data;
        let block = data.take_block();
        for offset in 0..used {
            let lpn = lbn * data.pages_per_block + offset;
            if std::mem::take(&mut self.wanted[offset as usize]) {
                data.program(block, lpn);
            } else {
                data.copy_offsets(block, lbn, offset + 1);
            }
        }
        let old = std::mem::replace(&mut data.data_of[lbn as usize], block);
        if old != NONE {
            data.erase(old);
        }
    }
}

impl Ftl for BlockMapped {
    fn logical_pages(&self) -> u32 {
        self.data.logical_pages()
    }

    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError> {
        self.data.fetch(lpn, purpose)
    }

    fn store(&mut self, lpns: &[u32], _class: u8) -> Result<(), FlashError> {
        self.data.check(lpns)?;
        let pages_per_block = self.data.pages_per_block;
        for together in lpns.chunk_by(|a, b| a / pages_per_block == b / pages_per_block) {
            self.write_together(together);
        }
        Ok(())
    }

    fn trim(&mut self, lpn: u32) -> Result<(), FlashError> {
        self.data.trim(lpn)
    }

    fn save_map(&mut self) {}

    fn locate(&self, lpn: u32) -> Option<u32> {
        self.data.locate(lpn)
    }

    fn wants_cleaning(&self) -> bool {
        false
    }

    fn clean_in_background(&mut self) -> bool {
        false
    }

    fn cut_power(&mut self) {}

    fn counters(&self) -> Counters {
        self.data.nand.counters
    }

    fn wear(&self) -> Wear {
        self.data.nand.wear()
    }

    fn recorder(&mut self) -> &mut Recorder {
        &mut self.data.nand.recorder
    }

    fn verify(&self) -> Result<(), Inconsistent> {
        self.data.verify(0)
    }
}
