//! Blocks of the segments that carry a checksum of their own: those of the journal, and
//! descriptions. The checksum includes the side, so a block of another side is never taken for one
//! of this side.

use crate::BLOCK_BYTES;
use crate::layers::mirror::store::entry::{put_u32, u32_at};
use crate::layers::mirror::superblock::Uuid;

/// Offset of the checksum, and of the first byte that it covers.
const CHECKSUM_AT: usize = 8;
const CHECKED_FROM: usize = 12;

/// Completes a block: sets its magic and its checksum.
///
/// # Panics
/// When `block` is not one block long.
pub(super) fn seal(side: &Uuid, magic: &[u8; 8], block: &mut [u8]) {
    assert_eq!(block.len() as u64, BLOCK_BYTES, "a block is sealed");
    block[..CHECKSUM_AT].copy_from_slice(magic);
    let checksum = checksum(side, block);
    put_u32(block, CHECKSUM_AT, checksum);
}

/// Returns true when a block has this magic, and was sealed by this side.
pub(super) fn is_sealed(side: &Uuid, magic: &[u8; 8], block: &[u8]) -> bool {
    block.len() as u64 == BLOCK_BYTES
        && block[..CHECKSUM_AT] == magic[..]
        && u32_at(block, CHECKSUM_AT) == checksum(side, block)
}

fn checksum(side: &Uuid, block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(side), &block[CHECKED_FROM..])
}
