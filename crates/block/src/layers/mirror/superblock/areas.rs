//! Sizes of the pages of a side, and how much each page describes. The numbers are those of
//! `docs/format/mirror-side.md`: they determine the layout of the areas and how pages are read and
//! written.

use crate::request::BLOCK_BYTES;

/// Length of a page of an area.
pub(in crate::layers::mirror) const PAGE_BYTES: u64 = BLOCK_BYTES;
/// Length of a sector. A device writes a sector as a whole or leaves it unchanged.
pub(in crate::layers::mirror) const SECTOR_BYTES: usize = 512;
/// Sectors of a page, each with its own checksum.
pub(in crate::layers::mirror) const SECTORS: usize = PAGE_BYTES as usize / SECTOR_BYTES;
/// Length of the entries of a sector. No entry lies in two sectors: the lengths of entries divide
/// this.
pub(in crate::layers::mirror) const SECTOR_ENTRIES_BYTES: usize = 504;
/// Length of the entries of a page, without the bytes behind those of each sector.
pub(in crate::layers::mirror) const ENTRIES_BYTES: usize = SECTORS * SECTOR_ENTRIES_BYTES;

/// Length of a region of the volume, which one entry of the map describes.
pub(in crate::layers::mirror) const REGION_BYTES: u64 = 1 << 20;
/// Bytes of an entry of the map.
pub(in crate::layers::mirror) const REGION_ENTRY_BYTES: usize = 8;
/// Regions that a page of the map describes.
pub(in crate::layers::mirror) const PAGE_REGIONS: u64 = (ENTRIES_BYTES / REGION_ENTRY_BYTES) as u64;
/// Bytes of the volume that a page of the map describes.
pub(in crate::layers::mirror) const MAP_PAGE_COVERS_BYTES: u64 = PAGE_REGIONS * REGION_BYTES;

/// Bytes of an entry of the checksums.
pub(in crate::layers::mirror) const CHECKSUM_ENTRY_BYTES: usize = 4;
/// Blocks that a page of the checksums describes.
pub(in crate::layers::mirror) const PAGE_BLOCKS: u64 =
    (ENTRIES_BYTES / CHECKSUM_ENTRY_BYTES) as u64;
/// Bytes of the data that a page of the checksums describes.
pub(in crate::layers::mirror) const CHECKSUM_PAGE_COVERS_BYTES: u64 = PAGE_BLOCKS * BLOCK_BYTES;

/// Bits in a page of the bits that say which pages were ever written.
pub(in crate::layers::mirror) const PAGE_BITS: u64 = ENTRIES_BYTES as u64 * 8;

/// Returns the length of both copies of these bits together, for this number of pages in the map
/// and the checksums.
pub(in crate::layers::mirror) fn written_bytes(pages: u64) -> u64 {
    2 * pages.div_ceil(PAGE_BITS) * PAGE_BYTES
}
