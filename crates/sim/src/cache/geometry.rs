//! Mapping of the pages of a trace to a device that is just large enough for these pages.
//!
//! The device contains only the erase blocks that the trace touches, in ascending order of address.
//! So neighbouring pages stay neighbours, and the device is full, which is the hard case for a
//! flash translation layer.

use bimetal_policy::replacement::PageAddress;

/// Mapping between the pages of a trace and the pages of a device.
#[derive(Clone, Debug)]
pub struct Geometry {
    pages_per_block: u32,
    blocks: u32,
    lpns: Vec<u32>,
    /// For each device page, the number of the trace page that is mapped to it, or [`NOWHERE`].
    pages: Vec<u32>,
}

/// Value for a device page to which no page of the trace is mapped.
const NOWHERE: u32 = u32::MAX;

impl Geometry {
    /// Maps the pages of a trace to a device. Element `n` of `addresses` is the address of trace
    /// page `n`, counted in pages. Returns `None` if the device would have 2^32 pages or more.
    pub fn new(addresses: &[u64], pages_per_block: u32) -> Option<Geometry> {
        let per_block = u64::from(pages_per_block.max(1));
        let mut touched: Vec<u64> = addresses.iter().map(|page| page / per_block).collect();
        // Successive pages are mostly in the same block, so removing duplicates first leaves far
        // fewer blocks to sort.
        touched.dedup();
        touched.sort_unstable();
        touched.dedup();
        let blocks = u32::try_from(touched.len()).ok()?;
        blocks.checked_mul(pages_per_block.max(1))?;
        let mut last = (u64::MAX, 0);
        let lpn = |address: &u64| {
            let block = address / per_block;
            if last.0 != block {
                last = (
                    block,
                    touched.partition_point(|known| *known < block) as u32,
                );
            }
            last.1 * pages_per_block.max(1) + (address % per_block) as u32
        };
        let lpns: Vec<u32> = addresses.iter().map(lpn).collect();
        let mut pages = vec![NOWHERE; blocks as usize * pages_per_block.max(1) as usize];
        for (page, lpn) in lpns.iter().enumerate() {
            pages[*lpn as usize] = page as u32;
        }
        Some(Geometry {
            pages_per_block: pages_per_block.max(1),
            blocks,
            lpns,
            pages,
        })
    }

    /// Returns the number of erase blocks of the device.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the number of pages of an erase block.
    pub fn pages_per_block(&self) -> u32 {
        self.pages_per_block
    }

    /// Returns the device page to which a page of the trace is mapped.
    pub fn lpn(&self, page: u32) -> u32 {
        self.lpns[page as usize]
    }

    /// Returns the page of the trace that is mapped to a device page, if there is one.
    pub fn page_at(&self, lpn: u32) -> Option<u32> {
        let page = self.pages[lpn as usize];
        (page != NOWHERE).then_some(page)
    }

    /// Returns the erase block of a page of the trace, and the offset of the page in the block.
    pub fn place(&self, page: u32) -> PageAddress {
        let lpn = self.lpn(page);
        PageAddress {
            block: lpn / self.pages_per_block,
            offset: lpn % self.pages_per_block,
        }
    }
}
