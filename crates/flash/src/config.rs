//! What a drive is made of, as whoever makes it says.

use serde::{Deserialize, Serialize};

use crate::counters::Costs;
use crate::geometry::{FlashError, Geometry, check_range};

/// Most write streams.
pub const CLASSES_MAX: u8 = 16;

/// How pages are put into write streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// One stream for everything.
    #[default]
    One,
    /// As many as this, named by every write.
    Given(u8),
    /// Two, hot and cold, told apart by counting writes.
    Measured,
}

impl Streams {
    /// The number of streams.
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
}
