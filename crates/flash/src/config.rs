//! The configuration of a drive.

use serde::{Deserialize, Serialize};

use crate::counters::Costs;
use crate::geometry::{FlashError, Geometry, check_range};

/// Maximum number of write streams of a drive.
pub const CLASSES_MAX: u8 = 16;

/// Assignment of pages to write streams. A write stream (class) is a group of pages that the drive
/// stores in separate blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// A single stream for all pages.
    #[default]
    One,
    /// The given number of streams. Every write names its stream.
    Given(u8),
    /// Two streams, for hot and for cold pages. The drive counts writes to tell them apart.
    Measured,
}

impl Streams {
    /// Returns the number of streams.
    pub fn count(self) -> u8 {
        match self {
            Streams::One => 1,
            Streams::Given(classes) => classes,
            Streams::Measured => 2,
        }
    }

    pub(crate) fn validate(self) -> Result<(), FlashError> {
        check_range("streams", u32::from(self.count()), u32::from(CLASSES_MAX))
    }
}

/// Policy that selects the block to clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleaning {
    /// Selects the block with the fewest valid pages.
    Greedy,
    /// Selects the block that was filled longest ago.
    Fifo,
    /// Selects the block with the maximum of age x free / (2 x valid), where `free` and `valid` are
    /// shares of the pages of the block.
    CostBenefit,
    /// Draws the given number of blocks at random, and selects the block with the fewest valid
    /// pages among them.
    Choices(u32),
}

/// Wear-levelling options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WearLevelling {
    /// Dynamic wear levelling: the free block with the fewest erases is programmed next.
    pub least_worn_first: bool,
    /// Limit of static wear levelling, for page-mapped layers only. A block is emptied if its
    /// number of erases is lower than that of the most worn block by more than this limit; its cold
    /// content moves to a more worn block. 0 disables static wear levelling.
    pub spread_erases: u32,
}

/// Options of a page-mapped layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageConfig {
    /// Policy that selects the block to clean.
    pub cleaning: Cleaning,
    /// Assignment of pages to write streams.
    pub streams: Streams,
    /// Whether cleaning moves pages into open blocks of its own, instead of into the open blocks of
    /// the host's writes.
    pub separate_copies: bool,
    /// Number of entries of the translation table that are in memory (DFTL). If it is 0, the whole
    /// table is in memory.
    pub cached_map_entries: u32,
    /// Whether the table in memory is lost in a power cut; see [`crate::Drive::cut_power`].
    pub volatile_map: bool,
    /// Number of free blocks on each die, in addition to the reserve, that cleaning in idle time
    /// tries to reach.
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

/// Kind of a flash translation layer, with its options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FtlConfig {
    /// No translation layer. A read costs one read, a write costs one program, and no block is ever
    /// erased.
    None,
    /// Page-mapped.
    Page(PageConfig),
    /// Block-mapped.
    Block,
    /// A block-mapped layer in which each log block belongs to one data block.
    Bast {
        /// Number of log blocks.
        log_blocks: u32,
    },
    /// Block-mapped with log blocks that all data blocks share.
    Fast {
        /// Number of log blocks for random writes. There is one additional log block for a
        /// sequential stream.
        log_blocks: u32,
    },
}

/// Kind of the write buffer inside a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferConfig {
    /// No buffer.
    #[default]
    None,
    /// Volatile memory for this number of pages. It costs no time, absorbs rewrites of a page, and
    /// is lost in a power cut.
    Memory(u32),
    /// A durable log of this number of pages, in flash that is programmed with one bit per cell.
    /// Its pages are moved to the main flash when the log is full or the drive is idle.
    Slc(u32),
}

/// Number of logical pages that a drive offers. The rest of its flash is spare.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// Spare share relative to the logical pages: physical = logical x (1 + share). The reserve,
    /// the table and the log blocks are part of the spare flash.
    OverProvisioning(f64),
    /// Number of logical pages. The remaining flash is spare.
    LogicalPages(u32),
}

impl Capacity {
    pub(crate) fn logical_pages(self, geometry: &Geometry) -> Result<u32, FlashError> {
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

/// Configuration of a drive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveConfig {
    /// Shape of the flash.
    pub geometry: Geometry,
    /// Usable capacity.
    pub capacity: Capacity,
    /// The translation layer.
    pub ftl: FtlConfig,
    /// Wear levelling.
    pub wear: WearLevelling,
    /// The write buffer.
    pub buffer: BufferConfig,
    /// Number of pages that are read ahead of a sequential reader. 0 disables the read-ahead.
    pub prefetch_pages: u32,
    /// Time of each operation.
    pub costs: Costs,
    /// Seed of the cleaning policy that draws blocks at random.
    pub seed: u64,
}

impl DriveConfig {
    /// Creates a configuration with the given flash and translation layer, and without wear
    /// levelling, write buffer and read-ahead.
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

    /// Creates a configuration with at least `logical_pages` pages on one die. `spare_blocks` is
    /// the number of additional blocks for log blocks, over-provisioning and the reserve. Trace
    /// runs use this function to fit a drive to the footprint of a trace. Errors: a value out of
    /// range.
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
}
