//! What a drive is made of, and how it is made.

use serde::{Deserialize, Serialize};

use crate::geometry::{FlashError, Geometry};
use crate::ideal::Ideal;
use crate::log_block::{self, Bast, BlockMapped, Fast};
use crate::page::{self, Cleaning, PageMapped, Streams};
use crate::{Costs, Ftl};

/// How wear is evened out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WearLevelling {
    /// Dynamic: of the free blocks, the one erased least is programmed next.
    pub least_worn_first: bool,
    /// Static, page-mapped only: a block that was erased this much less often than the most worn
    /// one is emptied, so that its cold content wears another. 0 switches it off.
    pub spread_erases: u32,
}

/// A page-mapped layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageConfig {
    /// Which block is cleaned.
    pub cleaning: Cleaning,
    /// How pages are put into write streams.
    pub streams: Streams,
    /// Whether cleaning writes into blocks of its own or into the host's.
    pub separate_copies: bool,
    /// Entries of the table in memory (DFTL). 0: the whole table.
    pub cached_map_entries: u32,
    /// Whether the table in memory is lost with the power; see [`crate::Drive::cut_power`].
    pub volatile_map: bool,
    /// Free blocks of each die that cleaning in idle time aims at, beyond the reserve.
    pub background_free_blocks: u32,
}

impl Default for PageConfig {
    fn default() -> Self {
        PageConfig {
            cleaning: Cleaning::Greedy,
            streams: Streams::One,
            separate_copies: true,
            cached_map_entries: 0,
            volatile_map: false,
            background_free_blocks: 8,
        }
    }
}

/// A flash translation layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FtlConfig {
    /// None: a read is a read and a write is a program, and nothing is ever erased.
    None,
    /// Page-mapped.
    Page(PageConfig),
    /// Block-mapped.
    Block,
    /// Block-mapped with a log block for each of a few data blocks.
    Bast {
        /// Log blocks.
        log_blocks: u32,
    },
    /// Block-mapped with log blocks that all data blocks share.
    Fast {
        /// Log blocks for random writes; there is one more for a sequential stream.
        log_blocks: u32,
    },
}

/// A write buffer inside the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferConfig {
    /// None.
    #[default]
    None,
    /// Volatile memory of this many pages: it costs nothing, absorbs rewrites, and is lost with
    /// the power.
    Memory(u32),
    /// A log of this many pages in flash programmed with one bit a cell: durable, folded into the
    /// main flash when it is full or the drive is idle.
    Slc(u32),
}

/// How much of the flash the host can use.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// All but a spare share, of the logical pages: physical = logical x (1 + this). Reserve, table
    /// and log blocks come out of the spare.
    OverProvisioning(f64),
    /// This many pages; what is left is spare.
    LogicalPages(u32),
}

impl Capacity {
    fn logical_pages(self, geometry: &Geometry) -> Result<u32, FlashError> {
        match self {
            Capacity::OverProvisioning(share) => geometry.logical_pages(share),
            Capacity::LogicalPages(pages) if u64::from(pages) > geometry.total_pages() => {
                Err(FlashError::OutOfRange {
                    parameter: "logical_pages",
                    value: u64::from(pages),
                    most: geometry.total_pages(),
                })
            }
            Capacity::LogicalPages(pages) => Ok(pages),
        }
    }
}

/// A drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveConfig {
    /// The flash.
    pub geometry: Geometry,
    /// How much of it the host can use.
    pub capacity: Capacity,
    /// The translation layer.
    pub ftl: FtlConfig,
    /// Wear levelling.
    pub wear: WearLevelling,
    /// The write buffer.
    pub buffer: BufferConfig,
    /// Pages read ahead of a sequential reader. 0 switches it off.
    pub prefetch_pages: u32,
    /// What operations cost.
    pub costs: Costs,
    /// The seed of the cleaning policies that choose at random.
    pub seed: u64,
}

impl DriveConfig {
    /// A drive with this flash and layer, without wear levelling, buffer and prefetch.
    pub fn new(geometry: Geometry, capacity: Capacity, ftl: FtlConfig) -> Self {
        DriveConfig {
            geometry,
            capacity,
            ftl,
            wear: WearLevelling::default(),
            buffer: BufferConfig::None,
            prefetch_pages: 0,
            costs: Costs::default(),
            seed: 1,
        }
    }

    /// A drive for at least `logical_pages` on one die, with `spare_blocks` blocks more than they
    /// fill: log blocks, over-provisioning and reserve come out of these. This is how a trace run
    /// sizes a drive to its footprint. Errors: out of range.
    pub fn holding(
        logical_pages: u32,
        spare_blocks: u32,
        pages_per_block: u32,
        page_bytes: u32,
        ftl: FtlConfig,
    ) -> Result<Self, FlashError> {
        crate::geometry::check_range("pages_per_block", pages_per_block, 1 << 16)?;
        let data_blocks = logical_pages.div_ceil(pages_per_block).max(1);
        let blocks = data_blocks.saturating_add(spare_blocks);
        let geometry = Geometry::one_die(blocks, pages_per_block, page_bytes);
        geometry.validate()?;
        let capacity = Capacity::LogicalPages(logical_pages);
        Ok(DriveConfig::new(geometry, capacity, ftl))
    }

    /// A drive for `logical_pages` on the dies of `shape`, whose own number of blocks does not
    /// count: as many as the spare share asks for, or as the layer needs if that is more. Errors:
    /// out of range.
    pub fn for_capacity(
        shape: Geometry,
        logical_pages: u32,
        over_provisioning: f64,
        ftl: FtlConfig,
    ) -> Result<Self, FlashError> {
        let shape = Geometry { blocks: 1, ..shape };
        shape.validate()?;
        if !(0.0..=100.0).contains(&over_provisioning) {
            return Err(FlashError::OverProvisioning {
                value: over_provisioning,
            });
        }
        if logical_pages == 0 {
            return Err(FlashError::NoLogicalPages);
        }
        let dies = u64::from(shape.total_dies());
        let pages = (f64::from(logical_pages) * (1.0 + over_provisioning)).ceil() as u64;
        let asked = pages
            .div_ceil(u64::from(shape.pages_per_block))
            .div_ceil(dies);
        let needed = Self::die_blocks_needed(&shape, logical_pages, ftl);
        let blocks = asked.max(needed).div_ceil(u64::from(shape.planes));
        let geometry = Geometry {
            // Too many are refused by the geometry, whose limit is far below.
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
            ..shape
        };
        geometry.validate()?;
        let capacity = Capacity::LogicalPages(logical_pages);
        Ok(DriveConfig::new(geometry, capacity, ftl))
    }

    fn die_blocks_needed(shape: &Geometry, logical_pages: u32, ftl: FtlConfig) -> u64 {
        let extra = match ftl {
            FtlConfig::None => return 1,
            FtlConfig::Page(page) => {
                return page::die_blocks_needed(shape, &page, logical_pages);
            }
            FtlConfig::Block => BlockMapped::EXTRA_BLOCKS,
            FtlConfig::Bast { log_blocks } => log_blocks.saturating_add(Bast::EXTRA_BLOCKS),
            FtlConfig::Fast { log_blocks } => log_blocks.saturating_add(Fast::EXTRA_BLOCKS),
        };
        log_block::blocks_needed(logical_pages, shape.pages_per_block, extra)
            .div_ceil(u64::from(shape.total_dies()))
    }

    /// The translation layer. Errors: whatever no drive can have, with the parameter's name.
    pub fn build_ftl(&self) -> Result<Box<dyn Ftl>, FlashError> {
        self.geometry.validate()?;
        let logical_pages = self.capacity.logical_pages(&self.geometry)?;
        if logical_pages == 0 {
            return Err(FlashError::NoLogicalPages);
        }
        if self.wear.spread_erases > 0 && !matches!(self.ftl, FtlConfig::Page(_)) {
            return Err(FlashError::Conflict {
                first: "spread_erases",
                second: "a layer that is not page-mapped",
                advice: "set it to 0, or use least_worn_first",
            });
        }
        Ok(match self.ftl {
            FtlConfig::None => Box::new(Ideal::new(self.geometry, logical_pages)),
            FtlConfig::Page(page) => Box::new(PageMapped::new(self, &page, logical_pages)?),
            FtlConfig::Block => Box::new(BlockMapped::new(self, logical_pages)?),
            FtlConfig::Bast { log_blocks } => Box::new(Bast::new(self, log_blocks, logical_pages)?),
            FtlConfig::Fast { log_blocks } => Box::new(Fast::new(self, log_blocks, logical_pages)?),
        })
    }
}
