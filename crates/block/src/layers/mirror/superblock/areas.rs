//! Sizes of the pages of a side, and the number of bytes or blocks that each page describes. The
//! values are specified in `docs/format/mirror-side.md`; they determine the layout of the areas and
//! how pages are read and written.

use crate::request::BLOCK_BYTES;

/// Length in bytes of a page of an area.
pub(in crate::layers::mirror) const PAGE_BYTES: u64 = BLOCK_BYTES;
/// Length in bytes of a sector, which a device writes completely or leaves unchanged.
pub(in crate::layers::mirror) const SECTOR_BYTES: usize = 512;
/// Number of sectors in a page, each with its own checksum.
pub(in crate::layers::mirror) const SECTORS: usize = PAGE_BYTES as usize / SECTOR_BYTES;
/// Number of bytes of a sector that hold entries. The length of every kind of entry divides it, so
/// that no entry crosses the end of a sector.
pub(in crate::layers::mirror) const SECTOR_ENTRIES_BYTES: usize = 504;
/// Number of bytes of a page that hold entries, without the checksum bytes at the end of each
/// sector.
pub(in crate::layers::mirror) const ENTRIES_BYTES: usize = SECTORS * SECTOR_ENTRIES_BYTES;

/// Length in bytes of a region of the volume, which one entry of the dirty-region bitmap describes.
pub(in crate::layers::mirror) const REGION_BYTES: u64 = 1 << 20;
/// Length in bytes of an entry of the dirty-region bitmap.
pub(in crate::layers::mirror) const REGION_ENTRY_BYTES: usize = 8;
/// Number of regions that a page of the dirty-region bitmap describes.
pub(in crate::layers::mirror) const PAGE_REGIONS: u64 = (ENTRIES_BYTES / REGION_ENTRY_BYTES) as u64;
/// Number of bytes of the volume that a page of the dirty-region bitmap describes.
pub(in crate::layers::mirror) const MAP_PAGE_COVERS_BYTES: u64 = PAGE_REGIONS * REGION_BYTES;

/// Length in bytes of an entry of the checksum area.
pub(in crate::layers::mirror) const CHECKSUM_ENTRY_BYTES: usize = 4;
/// Number of blocks that a page of the checksum area describes.
pub(in crate::layers::mirror) const PAGE_BLOCKS: u64 =
    (ENTRIES_BYTES / CHECKSUM_ENTRY_BYTES) as u64;
/// Number of bytes of data that a page of the checksum area describes.
pub(in crate::layers::mirror) const CHECKSUM_PAGE_COVERS_BYTES: u64 = PAGE_BLOCKS * BLOCK_BYTES;

/// Number of blocks of a segment that one block with descriptions describes at most.
pub(in crate::layers::mirror) const DESCRIBED_MAX: u64 = 144;

/// Number of bits in a page of the area that records which pages were ever written.
pub(in crate::layers::mirror) const PAGE_BITS: u64 = ENTRIES_BYTES as u64 * 8;

/// Returns the total length in bytes of both copies of the bits that record which pages were ever
/// written, where `pages` is the number of pages of the dirty-region bitmap and the checksums
/// together.
pub(in crate::layers::mirror) fn written_bytes(pages: u64) -> u64 {
    2 * pages.div_ceil(PAGE_BITS) * PAGE_BYTES
}

/// Returns the length in bytes of the bitmap pages that describe `covered_bytes` of the volume.
pub(in crate::layers::mirror) fn map_bytes(covered_bytes: u64) -> u64 {
    covered_bytes.div_ceil(MAP_PAGE_COVERS_BYTES) * BLOCK_BYTES
}
