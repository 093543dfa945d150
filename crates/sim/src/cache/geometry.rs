//! Positions of the pages of a trace on a device that is just large enough for them.
//!
//! The device has only the erase blocks that the trace touches, numbered in ascending order of
//! address. So neighbours stay neighbours, and the device is full, which is the hard case for an
//! FTL.

use bimetal_policy::replacement::PageAddress;

/// Positions of the pages of a trace.
#[derive(Clone, Debug)]
pub struct Geometry {
    pages_per_block: u32,
    blocks: u32,
    lpns: Vec<u32>,
    /// Page of the trace at each device page, or [`NOWHERE`].
    pages: Vec<u32>,
}

/// Value for a device page without a page of the trace.
const NOWHERE: u32 = u32::MAX;

impl Geometry {
    /// Assigns positions to pages at these addresses, which are in pages. Returns `None` if the
    /// device would have 2^32 pages or more.
    pub fn new(addresses: &[u64], pages_per_block: u32) -> Option<Geometry> {
        let per_block = u64::from(pages_per_block.max(1));
        let mut touched: Vec<u64> = addresses.iter().map(|page| page / per_block).collect();
        // Neighbours mostly follow each other, so this leaves far fewer blocks to sort.
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

    /// Returns the device page of a page of the trace.
    pub fn lpn(&self, page: u32) -> u32 {
        self.lpns[page as usize]
    }

    /// Returns the page of the trace at a device page, if there is one.
    pub fn page_at(&self, lpn: u32) -> Option<u32> {
        let page = self.pages[lpn as usize];
        (page != NOWHERE).then_some(page)
    }

    /// Returns the erase block and the offset of a page of the trace.
    pub fn place(&self, page: u32) -> PageAddress {
        let lpn = self.lpn(page);
        PageAddress {
            block: lpn / self.pages_per_block,
            offset: lpn % self.pages_per_block,
        }
    }
}
