//! The configuration of a drive.

use serde::{Deserialize, Serialize};

use crate::counters::Costs;
use crate::geometry::{FlashError, Geometry, check_range};

/// Maximum number of write streams.
pub const CLASSES_MAX: u8 = 16;

/// Assignment of pages to write streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// One stream for everything.
    #[default]
    One,
    /// This many streams; every write names its stream.
    Given(u8),
    /// Two streams, hot and cold, distinguished by counting writes.
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

/// A policy for the choice of the block to clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleaning {
    /// The block with the fewest valid pages.
    Greedy,
    /// The block filled longest ago.
    Fifo,
    /// The block with the best age x free / (2 x valid).
    CostBenefit,
    /// The block with the fewest valid pages among this many drawn at random.
    Choices(u32),
}

/// Wear-levelling options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WearLevelling {
    /// Dynamic: the free block with the fewest erases is programmed next.
    pub least_worn_first: bool,
    /// Static, page-mapped only: a block with this many fewer erases than the most worn block is
    /// emptied, so that its cold content moves to a more worn block. 0 switches it off.
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
    /// Whether cleaning writes into blocks of its own or into the host's.
    pub separate_copies: bool,
    /// Entries of the table in memory (DFTL). 0: the whole table.
    pub cached_map_entries: u32,
    /// Whether the table in memory is lost on a power cut; see [`crate::Drive::cut_power`].
    pub volatile_map: bool,
    /// Target number of free blocks on each die for idle cleaning, beyond the reserve.
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
    /// No layer: a read is one read and a write is one program, and no block is ever erased.
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
    /// No buffer.
    #[default]
    None,
    /// Volatile memory of this many pages: it costs no time, absorbs rewrites, and is lost on a
    /// power cut.
    Memory(u32),
    /// A log of this many pages in flash programmed with one bit per cell. It is durable, and is
    /// moved to the main flash when it is full or the drive is idle.
    Slc(u32),
}

/// Usable capacity of the flash.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Capacity {
    /// Spare share relative to the logical pages: physical = logical x (1 + this). Reserve, table
    /// and log blocks come out of the spare.
    OverProvisioning(f64),
    /// This many logical pages; the rest is spare.
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
    /// Number of pages read ahead of a sequential reader. 0 switches it off.
    pub prefetch_pages: u32,
    /// Time of each operation.
    pub costs: Costs,
    /// The seed of the cleaning policies that choose at random.
    pub seed: u64,
}

impl DriveConfig {
    /// Creates a configuration with this flash and layer, without wear levelling, buffer and
    /// prefetch.
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

    /// Creates a configuration for at least `logical_pages` on one die, with `spare_blocks`
    /// additional blocks for log blocks, over-provisioning and reserve. A trace run sizes a drive
    /// to its footprint this way. Errors: a value out of range.
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
