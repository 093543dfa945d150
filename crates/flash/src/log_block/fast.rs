//! FAST, a block-mapped layer in which all data blocks share the log blocks (Lee, Park, Chung, Lee,
//! Park and Song, A log buffer-based flash translation layer using fully-associative sector
//! translation, ACM TECS 2007).
//!
//! Randomly written pages are appended to the newest of `log_blocks` log blocks, whichever data
//! block they belong to. When all log blocks are full, the oldest one is reclaimed: each data block
//! with a current page in this log block is fully merged, with its current pages from all log
//! blocks. A page at offset 0 opens the sequential log block. The sequential log block takes the
//! following pages of the same data block, and ends with a switch or a partial merge.
//!
//! Interpretation of the paper: a page that does not continue the sequential log block is appended
//! to the log blocks for random writes. The sequential log block is merged when another stream
//! needs it; the merge is a full one if a page of the block is outdated by then. `log_blocks` does
//! not include the sequential log block.

use std::collections::VecDeque;

use super::{DataBlocks, Needs};
use crate::config::DriveConfig;
use crate::counters::{Counters, Wear};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, NONE, check_range};
use crate::nand::Inconsistent;
use crate::operation::{Purpose, Recorder};

/// The FAST layer; see the module documentation.
#[derive(Debug)]
pub(crate) struct Fast {
    data: DataBlocks,
    /// The log blocks for random writes, oldest first. Their number never exceeds `log_blocks`.
    logs: VecDeque<u32>,
    log_blocks: usize,
    /// The logical block of the sequential stream, and the sequential log block. Both are `NONE` if
    /// there is no stream.
    stream: (u32, u32),
}

const NO_STREAM: (u32, u32) = (NONE, NONE);

impl Fast {
    /// Number of blocks needed in addition to data and log blocks: the sequential log block, and
    /// the new block of a merge.
    pub const EXTRA_BLOCKS: u32 = 2;

    /// Creates an empty translation layer. Errors: `log_blocks` is 0 or too large, or the drive has
    /// too few blocks.
    pub fn new(
        config: &DriveConfig,
        log_blocks: u32,
        logical_pages: u32,
    ) -> Result<Self, FlashError> {
        check_range("log_blocks", log_blocks, 1 << 24)?;
        let needs = Needs {
            ftl: "FAST",
            knob: "log_blocks",
            extra_blocks: log_blocks + Self::EXTRA_BLOCKS,
        };
        Ok(Fast {
            data: DataBlocks::new(config, logical_pages, &needs)?,
            logs: VecDeque::with_capacity(log_blocks as usize),
            log_blocks: log_blocks as usize,
            stream: NO_STREAM,
        })
    }

    fn write_page(&mut self, lpn: u32) {
        if self.data.write_in_order(lpn) {
            return;
        }
        let (lbn, offset) = self.data.place_of(lpn);
        if offset == 0 {
            self.end_stream();
            self.stream = (lbn, self.data.take_block());
        }
        let (stream_lbn, block) = self.stream;
        if stream_lbn == lbn && self.data.nand.block(block).programmed == offset {
            self.data.program(block, lpn);
            if self.data.nand.is_full(block) {
                self.end_stream();
            }
        } else {
            self.append(lpn);
        }
    }

    /// Ends the sequential write stream: merges the sequential log block, if there is one, into its
    /// data block.
    fn end_stream(&mut self) {
        let (lbn, block) = std::mem::replace(&mut self.stream, NO_STREAM);
        if block == NONE {
            return;
        }
        if self.data.is_all_valid(block) {
            self.data.adopt(lbn, block);
        } else {
            self.data.full_merge(lbn);
            self.data.erase(block);
        }
    }

    /// Appends a page to the log blocks for random writes.
    fn append(&mut self, lpn: u32) {
        let newest = self.logs.back().copied();
        let block = match newest.filter(|block| !self.data.nand.is_full(*block)) {
            Some(block) => block,
            None => {
                if self.logs.len() == self.log_blocks {
                    self.data.nand.counters.cleanings_blocking += 1;
                    self.reclaim();
                }
                let block = self.data.take_block();
                self.logs.push_back(block);
                block
            }
        };
        self.data.program(block, lpn);
    }

    /// Reclaims the oldest log block. Each data block with a current page in this log block is
    /// fully merged. Then the log block is erased.
    fn reclaim(&mut self) {
        let Some(victim) = self.logs.pop_front() else {
            return;
        };
        for offset in 0..self.data.nand.block(victim).programmed {
            let page = self.data.nand.page_at(victim, offset);
            if self.data.nand.is_valid(page) {
                let (lbn, _) = self.data.place_of(self.data.nand.owner_of(page));
                self.merge(lbn);
            }
        }
        self.data.erase(victim);
    }

    /// Fully merges a data block. If the sequential log block belongs to the same data block, the
    /// sequential log block has no valid page after the merge, and is erased.
    fn merge(&mut self, lbn: u32) {
        self.data.full_merge(lbn);
        if self.stream.0 == lbn {
            self.data.erase(self.stream.1);
            self.stream = NO_STREAM;
        }
    }
}

impl Ftl for Fast {
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
        let newest = self.logs.back();
        let newest_is_full = newest.is_some_and(|block| self.data.nand.is_full(*block));
        self.logs.len() == self.log_blocks && newest_is_full
    }

    fn clean_in_background(&mut self) -> bool {
        let wanted = self.wants_cleaning();
        if wanted {
            self.data.nand.counters.cleanings_background += 1;
            self.reclaim();
        }
        wanted
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
        let stream = u32::from(self.stream.1 != NONE);
        self.data.verify(self.logs.len() as u32 + stream)
    }
}
