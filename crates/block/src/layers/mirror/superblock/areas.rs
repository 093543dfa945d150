//! How much the pages of a side describe, whichever area they lie in. The numbers are those of
//! `docs/format/mirror-side.md`: with them the areas are laid out, read and written.

use crate::request::BLOCK_BYTES;

/// A page of an area.
pub(in crate::layers::mirror) const PAGE_BYTES: u64 = BLOCK_BYTES;
/// What a device writes as a whole or not at all.
pub(in crate::layers::mirror) const SECTOR_BYTES: usize = 512;
/// Sectors of a page, each of which is sealed by itself.
pub(in crate::layers::mirror) const SECTORS: usize = PAGE_BYTES as usize / SECTOR_BYTES;
/// The entries of a sector end here. No entry lies in two sectors: their lengths divide this.
pub(in crate::layers::mirror) const SECTOR_ENTRIES_BYTES: usize = 504;
/// The entries of a page, without what lies between those of one sector and the next.
pub(in crate::layers::mirror) const ENTRIES_BYTES: usize = SECTORS * SECTOR_ENTRIES_BYTES;

/// A region of the volume in bytes: what an entry of the map describes.
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

/// Bits of a page that says which other pages were ever written.
pub(in crate::layers::mirror) const PAGE_BITS: u64 = ENTRIES_BYTES as u64 * 8;

/// Bytes of both copies of these bits together, for this number of pages in the map and the
/// checksums.
pub(in crate::layers::mirror) fn written_bytes(pages: u64) -> u64 {
    2 * pages.div_ceil(PAGE_BITS) * PAGE_BYTES
}
