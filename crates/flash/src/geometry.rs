//! The shape of a flash array, and the errors that refuse a shape or an access.
//!
//! Every wrong input is refused here or by the constructors, with an error that names the parameter
//! and says what to change. An accepted shape never causes a panic later, however unusual it is.

use serde::{Deserialize, Serialize};

/// The one value that is no address: no page, no block, or never written.
pub const NONE: u32 = u32::MAX;

/// Maximum number of pages of an array, including logical pages and padding to a power of two:
/// 2^30. Dense tables of about 9 bytes per page then take 10 GB of memory.
pub const PAGES_MAX: u64 = 1 << 30;

/// Largest page in bytes.
pub const PAGE_BYTES_MAX: u32 = 1 << 20;

/// Most pages of an erase block.
pub const PAGES_PER_BLOCK_MAX: u32 = 1 << 16;

/// The shape of a flash array. Each field counts units within one unit of the next larger kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Buses between controller and flash.
    pub channels: u32,
    /// Chips on one channel.
    pub ways: u32,
    /// Dies in one chip; a die does one read, program or erase at a time.
    pub dies: u32,
    /// Planes in one die. They add blocks; operations on several planes at once are not modelled.
    pub planes: u32,
    /// Erase blocks in one plane.
    pub blocks: u32,
    /// Pages in one erase block, programmed in order.
    pub pages_per_block: u32,
    /// User bytes of one page.
    pub page_bytes: u32,
}

impl Geometry {
    /// One die with `blocks` blocks: the shape of the analytic models.
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

    /// Refuses shapes that no array has or that do not fit the tables.
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

    /// Dies of the whole array. Only for a geometry that validates.
    pub fn total_dies(&self) -> u32 {
        self.channels * self.ways * self.dies
    }

    /// Erase blocks of one die, over its planes. Only for a geometry that validates.
    pub fn die_blocks(&self) -> u32 {
        self.planes * self.blocks
    }

    /// Erase blocks of the whole array. Only for a geometry that validates.
    pub fn total_blocks(&self) -> u32 {
        self.total_dies() * self.die_blocks()
    }

    /// Pages of the whole array. Only for a geometry that validates.
    pub fn total_pages(&self) -> u64 {
        u64::from(self.total_blocks()) * u64::from(self.pages_per_block)
    }

    /// The channel of a die: neighbouring dies are on different channels.
    pub fn channel_of(&self, die: u32) -> u32 {
        die % self.channels
    }

    /// Logical pages left when `over_provisioning` of their number is spare: the largest n with
    /// n x (1 + over_provisioning) <= physical pages. Only for a geometry that validates.
    pub fn logical_pages(&self, over_provisioning: f64) -> Result<u32, FlashError> {
        if !(0.0..=100.0).contains(&over_provisioning) {
            return Err(FlashError::OverProvisioning {
                value: over_provisioning,
            });
        }
        // At most 2^30, so the cast is exact.
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
        /// Its value.
        value: u64,
        /// The largest value allowed.
        most: u64,
    },
    /// The array does not fit the tables.
    #[error(
        "the geometry has {pages} pages (blocks padded to a power of two), at most {PAGES_MAX} \
         are modelled: lower blocks, or model larger pages with page_bytes"
    )]
    TooManyPages {
        /// Pages asked for.
        pages: u128,
    },
    /// The spare share is no valid share.
    #[error("over_provisioning = {value}: must be a number from 0 to 100 (0.07 means 7 %)")]
    OverProvisioning {
        /// Its value.
        value: f64,
    },
    /// The translation layer needs more flash than the array has.
    #[error(
        "{ftl} needs {needed_blocks} blocks for {logical_pages} logical pages, the array (or one \
         die of it) has {blocks}: raise blocks or over_provisioning, or lower {knob}"
    )]
    TooFewBlocks {
        /// The translation layer.
        ftl: &'static str,
        /// Blocks it needs.
        needed_blocks: u64,
        /// Logical pages it has to hold.
        logical_pages: u64,
        /// Blocks there are.
        blocks: u64,
        /// The parameter, besides the capacity, that takes blocks.
        knob: &'static str,
    },
    /// Nothing would be left for the user.
    #[error("no logical page is left: raise blocks or pages_per_block, or lower over_provisioning")]
    NoLogicalPages,
    /// Two options that exclude each other.
    #[error("{first} cannot be combined with {second}: {advice}")]
    Conflict {
        /// One option.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A page beyond the end of the drive.
    #[error("logical page {lpn} is beyond the drive of {logical_pages} pages")]
    BeyondEnd {
        /// The page asked for.
        lpn: u32,
        /// Pages of the drive.
        logical_pages: u32,
    },
    /// A write stream the drive was not configured with.
    #[error("write class {class} is not configured: the drive has {classes}, numbered from 0")]
    UnknownClass {
        /// The class asked for.
        class: u8,
        /// Classes there are.
        classes: u8,
    },
}

/// Refuses pages beyond the end.
pub(crate) fn check_page(lpn: u32, logical_pages: u32) -> Result<(), FlashError> {
    if lpn < logical_pages {
        Ok(())
    } else {
        Err(FlashError::BeyondEnd { lpn, logical_pages })
    }
}

/// Refuses 0 and what is above `most`.
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
