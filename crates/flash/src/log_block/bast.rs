//! BAST, a block-mapped layer in which each log block belongs to one data block (Kim, Kim, Noh, Min
//! and Cho, A space-efficient flash translation layer for CompactFlash systems, IEEE Trans.
//! Consumer Electronics 2002).
//!
//! A page that cannot be written to its data block directly is appended to the log block of the
//! data block. When no log block is free, the least recently used log block is merged. A log block
//! that was filled in order, starting with offset 0, becomes the data block as soon as it is full,
//! which costs one erase (a switch).

use super::{DataBlocks, Needs};
use crate::config::DriveConfig;
use crate::counters::{Counters, Wear};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, NONE, check_range};
use crate::nand::Inconsistent;
use crate::operation::{Purpose, Recorder};
use crate::recency::Recency;

/// A log block in use.
#[derive(Debug, Clone, Copy)]
struct LogBlock {
    block: u32,
    lbn: u32,
    /// True while every page in the log block is at its own offset: page n of the log block holds
    /// the page with offset n in the data block.
    in_order: bool,
}

/// The BAST layer; see the module documentation.
#[derive(Debug)]
pub(crate) struct Bast {
    data: DataBlocks,
    logs: Vec<LogBlock>,
    /// Free slots of `logs`.
    idle: Vec<u32>,
    used: Recency,
    /// Slot of each logical block in `logs`; `NONE` for a logical block without a log block.
    log_of: Vec<u32>,
}

impl Bast {
    /// Number of blocks needed in addition to data and log blocks: the new block of a merge.
    pub const EXTRA_BLOCKS: u32 = 1;

    /// Creates an empty layer. Errors: no log block, or too few blocks.
    pub fn new(
        config: &DriveConfig,
        log_blocks: u32,
        logical_pages: u32,
    ) -> Result<Self, FlashError> {
        check_range("log_blocks", log_blocks, 1 << 24)?;
        let needs = Needs {
            ftl: "BAST",
            knob: "log_blocks",
            extra_blocks: log_blocks + Self::EXTRA_BLOCKS,
        };
        let data = DataBlocks::new(config, logical_pages, &needs)?;
        let unused = LogBlock {
            block: NONE,
            lbn: NONE,
            in_order: true,
        };
        Ok(Bast {
            logs: vec![unused; log_blocks as usize],
            idle: (0..log_blocks).rev().collect(),
            used: Recency::new(log_blocks),
            log_of: vec![NONE; data.data_of.len()],
            data,
        })
    }

    fn write_page(&mut self, lpn: u32) {
        if self.data.write_in_order(lpn) {
            return;
        }
        let (lbn, offset) = self.data.place_of(lpn);
        let mut slot = self.log_of[lbn as usize];
        if slot != NONE && self.data.nand.is_full(self.logs[slot as usize].block) {
            self.merge(slot);
            slot = NONE;
        }
        if slot == NONE {
            slot = self.open_log(lbn);
        }
        self.used.touch(slot);
        let log = &mut self.logs[slot as usize];
        let block = log.block;
        log.in_order &= self.data.nand.block(block).programmed == offset;
        self.data.program(block, lpn);
        if self.data.nand.is_full(block) && self.is_switchable(slot) {
            self.merge(slot);
        }
    }

    /// Assigns a log block to the logical block `lbn` and returns its slot. If no log block is
    /// free, the least recently used one is merged first.
    fn open_log(&mut self, lbn: u32) -> u32 {
        if self.idle.is_empty()
            && let Some(oldest) = self.used.oldest()
        {
            self.data.nand.counters.cleanings_blocking += 1;
            self.merge(oldest);
        }
        let slot = self.idle.pop().expect("a merge gives its slot back");
        self.logs[slot as usize] = LogBlock {
            block: self.data.take_block(),
            lbn,
            in_order: true,
        };
        self.log_of[lbn as usize] = slot;
        slot
    }

    /// Returns whether the log block in `slot` can become the data block without a full merge.
    fn is_switchable(&self, slot: u32) -> bool {
        let log = self.logs[slot as usize];
        log.in_order && self.data.is_all_valid(log.block)
    }

    /// Merges the log block in `slot` into its data block, and frees the slot.
    fn merge(&mut self, slot: u32) {
        let log = self.logs[slot as usize];
        if self.is_switchable(slot) {
            self.data.adopt(log.lbn, log.block);
        } else {
            self.data.full_merge(log.lbn);
            self.data.erase(log.block);
        }
        self.used.remove(slot);
        self.log_of[log.lbn as usize] = NONE;
        self.idle.push(slot);
    }
}

impl Ftl for Bast {
    fn logical_pages(&self) -> u32 {
        self.data.logical_pages()
    }

    fn fetch(&mut self, lpn: u32, purpose: Purpose) -> Result<bool, FlashError> {
        self.data.fetch(lpn, purpose)
    }

    fn store(&mut self, lpns: &[u32], _class: u8) -> Result<(), FlashError> {
        self.data.check(lpns)?;
        for lpn in lpns {
            self.write_page(*lpn);
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
        self.idle.is_empty()
    }

    fn clean_in_background(&mut self) -> bool {
        let oldest = self.used.oldest().filter(|_| self.wants_cleaning());
        if let Some(oldest) = oldest {
            self.data.nand.counters.cleanings_background += 1;
            self.merge(oldest);
        }
        oldest.is_some()
    }

    /// A power cut loses nothing: the map of the log blocks is reconstructed from the spare areas
    /// of the pages.
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
        self.data.verify((self.logs.len() - self.idle.len()) as u32)
    }
}
