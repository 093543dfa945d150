//! Construction of a drive from its configuration: the flash array, the translation layer and the
//! other parts.

use crate::config::{Capacity, DriveConfig, FtlConfig};
use crate::ftl::Ftl;
use crate::geometry::{FlashError, Geometry};
use crate::ideal::Ideal;
use crate::log_block::{self, Bast, BlockMapped, Fast};
use crate::page::{self, PageMapped};

impl DriveConfig {
    /// Returns the configuration of a drive with `logical_pages` pages and the given translation
    /// layer. The shape of the flash is that of `shape`, except for the number of blocks. This
    /// number is the larger of two: the blocks that the spare share `over_provisioning` requires,
    /// and the blocks that the layer requires.
    ///
    /// # Errors
    /// A value is out of range.
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
            // A number of blocks beyond 32 bits becomes `u32::MAX`. `validate` refuses this value,
            // because its limit is far lower.
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

    /// Creates the translation layer. If a parameter is invalid, returns an error that names the
    /// parameter.
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
