//! The shape of a flash array, and the errors for invalid shapes and invalid accesses.
//!
//! Every invalid input is refused by this module or by the constructors, with an error that names
//! the parameter and says what to change. A shape that has been accepted never causes a panic
//! later, however unusual it is.

use serde::{Deserialize, Serialize};

/// Value of an address that means no page, no block, or a page that was never written.
pub const NONE: u32 = u32::MAX;

/// Maximum number of pages of an array, including logical pages and the padding to a power of two:
/// 2^30. The dense tables need about 9 bytes per page, so their maximum is 10 GB.
pub const PAGES_MAX: u64 = 1 << 30;

/// Maximum size of a page in bytes.
pub const PAGE_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of pages in an erase block.
pub const PAGES_PER_BLOCK_MAX: u32 = 1 << 16;

/// The shape of a flash array. Each field is the number of units within one unit of the next larger
/// kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Number of channels, the buses between controller and flash.
    pub channels: u32,
    /// Number of chips on one channel.
    pub ways: u32,
    /// Number of dies in one chip.
    pub dies: u32,
    /// Number of planes in one die. In this model, a plane only adds blocks to its die.
    pub planes: u32,
    /// Number of erase blocks in one plane.
    pub blocks: u32,
    /// Number of pages in one erase block. The pages of a block are programmed in order.
    pub pages_per_block: u32,
    /// Number of user bytes in one page.
    pub page_bytes: u32,
}

impl Geometry {
    /// Returns the shape of an array with one die of `blocks` blocks, which the analytic models
    /// assume.
    pub fn one_die(blocks: u32, pages_per_block: u32, page_bytes: u32) -> Self {
        Geometry {
            channels: 1,
            ways: 1,
            dies: 1,
            planes: 1,
            blocks,
            pages_per_block,
            page_bytes,
        }
    }

    /// Checks the shape. Returns an error if a field is out of its range, or if there are more
    /// pages than the tables can hold.
    pub fn validate(&self) -> Result<(), FlashError> {
        let counts = [
            ("channels", self.channels, 1024),
            ("ways", self.ways, 1024),
            ("dies", self.dies, 1024),
            ("planes", self.planes, 64),
            ("blocks", self.blocks, 1 << 30),
            ("pages_per_block", self.pages_per_block, PAGES_PER_BLOCK_MAX),
            ("page_bytes", self.page_bytes, PAGE_BYTES_MAX),
        ];
        for (parameter, value, most) in counts {
            if value == 0 || value > most {
                return Err(FlashError::OutOfRange {
                    parameter,
                    value: u64::from(value),
                    most: u64::from(most),
                });
            }
        }
        let stride = u128::from(self.pages_per_block.next_power_of_two());
        let pages = self.total_blocks_wide() * stride;
        if pages > u128::from(PAGES_MAX) {
            return Err(FlashError::TooManyPages { pages });
        }
        Ok(())
    }

    fn total_blocks_wide(&self) -> u128 {
        [self.channels, self.ways, self.dies, self.planes]
            .iter()
            .fold(u128::from(self.blocks), |n, x| n * u128::from(*x))
    }

    /// Returns the number of dies in the whole array. The geometry must be valid.
    pub fn total_dies(&self) -> u32 {
        self.channels * self.ways * self.dies
    }

    /// Returns the number of erase blocks in one die, over all its planes. The geometry must be
    /// valid.
    pub fn die_blocks(&self) -> u32 {
        self.planes * self.blocks
    }

    /// Returns the number of erase blocks in the whole array. The geometry must be valid.
    pub fn total_blocks(&self) -> u32 {
        self.total_dies() * self.die_blocks()
    }

    /// Returns the number of pages in the whole array. The geometry must be valid.
    pub fn total_pages(&self) -> u64 {
        u64::from(self.total_blocks()) * u64::from(self.pages_per_block)
    }

    /// Returns the channel of a die. Dies with successive numbers are on different channels.
    pub fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Returns the number of logical pages for a spare share of `over_provisioning`, relative to
    /// the logical pages: the largest n with n x (1 + over_provisioning) <= physical pages. The
    /// geometry must be valid. Errors: a share out of range.
    pub fn logical_pages(&self, over_provisioning: f64) -> Result<u32, FlashError> {
        if !(0.0..=100.0).contains(&over_provisioning) {
            return Err(FlashError::OverProvisioning {
                value: over_provisioning,
            });
        }
        // The number is at most 2^30, so the cast is exact.
        Ok((self.total_pages() as f64 / (1.0 + over_provisioning)) as u32)
    }
}

/// Reason why a drive cannot be created, or why an access is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FlashError {
    /// A parameter outside its range.
    #[error("{parameter} = {value}: must be from 1 to {most}")]
    OutOfRange {
        /// The parameter.
        parameter: &'static str,
        /// Value of the parameter.
        value: u64,
        /// The largest value allowed.
        most: u64,
    },
    /// The array has more pages than the tables can hold.
    #[error(
        "the geometry has {pages} pages (blocks padded to a power of two), at most {PAGES_MAX} \
         are modelled: lower blocks, or model larger pages with page_bytes"
    )]
    TooManyPages {
        /// Number of pages of the refused geometry.
        pages: u128,
    },
    /// A spare share outside its range.
    #[error("over_provisioning = {value}: must be a number from 0 to 100 (0.07 means 7 %)")]
    OverProvisioning {
        /// The refused spare share.
        value: f64,
    },
    /// The translation layer needs more blocks than the array has.
    #[error(
        "{ftl} needs {needed_blocks} blocks for {logical_pages} logical pages, the array (or one \
         die of it) has {blocks}: raise blocks or over_provisioning, or lower {knob}"
    )]
    TooFewBlocks {
        /// Name of the translation layer.
        ftl: &'static str,
        /// Number of blocks that the layer needs.
        needed_blocks: u64,
        /// Number of logical pages that the layer must store.
        logical_pages: u64,
        /// Number of blocks in the array, or in one die.
        blocks: u64,
        /// Name of the parameter that, in addition to the capacity, determines the required number
        /// of blocks.
        knob: &'static str,
    },
    /// The drive would have no logical page.
    #[error("no logical page is left: raise blocks or pages_per_block, or lower over_provisioning")]
    NoLogicalPages,
    /// Two options that exclude each other.
    #[error("{first} cannot be combined with {second}: {advice}")]
    Conflict {
        /// The first of the two options.
        first: &'static str,
        /// The second of the two options.
        second: &'static str,
        /// Advice on how to resolve the conflict.
        advice: &'static str,
    },
    /// A page beyond the end of the drive.
    #[error("logical page {lpn} is beyond the drive of {logical_pages} pages")]
    BeyondEnd {
        /// The requested page.
        lpn: u32,
        /// Number of pages of the drive.
        logical_pages: u32,
    },
    /// A write stream that the drive does not have.
    #[error("write class {class} is not configured: the drive has {classes}, numbered from 0")]
    UnknownClass {
        /// The requested write stream.
        class: u8,
        /// Number of write streams of the drive.
        classes: u8,
    },
}

/// Returns an error for a page beyond the end of the drive.
pub(crate) fn check_page(lpn: u32, logical_pages: u32) -> Result<(), FlashError> {
    if lpn < logical_pages {
        Ok(())
    } else {
        Err(FlashError::BeyondEnd { lpn, logical_pages })
    }
}

/// Returns an error for the value 0 and for values greater than `most`.
pub(crate) fn check_range(
    parameter: &'static str,
    value: u32,
    most: u32,
) -> Result<(), FlashError> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(FlashError::OutOfRange {
        parameter,
        value: u64::from(value),
        most: u64::from(most),
    })
}
