//! The digest of a block: 32 bits computed from the content of the block, kept in the checksum area
//! of a side and in the headers of its log.
//!
//! The digest must depend on the whole content, whatever the user writes. CRC32C does not: the
//! CRC32C of content that ends with its own CRC32C is a constant, and so is the CRC32C of a block
//! composed of such pieces. Directory blocks of ext4 have this form, and so do the pages of a side
//! that is itself stored in a volume. With CRC32C, a lost, misplaced or torn write of such a block
//! would not be detected.

use bimetal_rt::Payload;
use twox_hash::XxHash3_64;

use crate::BLOCK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Algorithm that computes the digests of the blocks of a side; chosen when the side is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockDigest {
    /// CRC32C, used by sides that were formatted before XXH3 was available.
    Crc32c,
    /// The low half of XXH3-64 with seed 0.
    Xxh3,
}

impl BlockDigest {
    /// Returns the name of the algorithm, as `check` shows it.
    pub fn name(self) -> &'static str {
        match self {
            BlockDigest::Crc32c => "crc32c",
            BlockDigest::Xxh3 => "xxh3",
        }
    }

    /// Returns the digest of a block.
    pub(super) fn of(self, block: &[u8]) -> u32 {
        match self {
            BlockDigest::Crc32c => crc32c::crc32c(block),
            BlockDigest::Xxh3 => XxHash3_64::oneshot(block) as u32,
        }
    }

    /// Returns the digests of the blocks of a payload, in order.
    ///
    /// # Panics
    /// When the payload is not a whole number of blocks.
    pub(super) fn of_each(self, payload: &Payload) -> Vec<u32> {
        let mut digests = Vec::with_capacity(payload.len() / BLOCK);
        // Buffer in which a block that spans several slices is assembled.
        let (mut gathered, mut len) = ([0; BLOCK], 0);
        for slice in payload.slices() {
            let mut rest: &[u8] = slice;
            if len > 0 {
                let (part, after) = rest.split_at(rest.len().min(BLOCK - len));
                gathered[len..len + part.len()].copy_from_slice(part);
                (len, rest) = (len + part.len(), after);
                if len == BLOCK {
                    digests.push(self.of(&gathered));
                    len = 0;
                }
            }
            let blocks = rest.chunks_exact(BLOCK);
            let part = blocks.remainder();
            digests.extend(blocks.map(|block| self.of(block)));
            if !part.is_empty() {
                gathered[..part.len()].copy_from_slice(part);
                len = part.len();
            }
        }
        assert_eq!(len, 0, "a payload is whole blocks");
        digests
    }
}

#[cfg(test)]
mod tests {
    use bimetal_rt::{BufPool, Payload};

    use super::*;

    /// The expected values come from another implementation, python-xxhash 3: `xxh3_64(b"")` is
    /// 0x2d06800538d394c2, and `xxh3_64(bytes(range(256)) * 16)` is 0xeb4b7c3707879151.
    #[test]
    fn xxh3_is_that_of_others() {
        assert_eq!(BlockDigest::Xxh3.of(&[]), 0x38D3_94C2);
        let block: Vec<u8> = (0..BLOCK).map(|i| i as u8).collect();
        assert_eq!(BlockDigest::Xxh3.of(&block), 0x0787_9151);
    }

    /// Returns a block made of pieces of `piece` bytes, each of which ends with its own CRC32C.
    fn with_own_crc(tag: u8, piece: usize) -> Vec<u8> {
        let mut block = Vec::new();
        while block.len() < BLOCK {
            let mut body = vec![tag; piece - 4];
            body[0] = block.len().div_ceil(piece) as u8;
            block.extend_from_slice(&body);
            block.extend_from_slice(&crc32c::crc32c(&body).to_le_bytes());
        }
        block
    }

    #[test]
    fn a_checksum_within_the_content_does_not_blind_it() {
        for piece in [512, 1024, 4096] {
            let (one, other) = (with_own_crc(1, piece), with_own_crc(2, piece));
            let crc = BlockDigest::Crc32c;
            assert_eq!(crc.of(&one), crc.of(&other), "why there is another digest");
            assert_ne!(BlockDigest::Xxh3.of(&one), BlockDigest::Xxh3.of(&other));
        }
    }

    /// The digests do not depend on the boundaries of the slices of a payload.
    #[test]
    fn cuts_make_no_difference() {
        let pool = BufPool::unregistered();
        let bytes: Vec<u8> = (0..3 * BLOCK).map(|i| (i * 31 + i / 251) as u8).collect();
        let ends: [&[usize]; 5] = [
            &[],
            &[1],
            &[4095, 4097],
            &[5000, 5001, 8192],
            &[100, 12_000],
        ];
        for kind in [BlockDigest::Crc32c, BlockDigest::Xxh3] {
            let expected: Vec<u32> = bytes.chunks(BLOCK).map(|block| kind.of(block)).collect();
            for ends in ends {
                let (mut payload, mut from) = (Payload::empty(), 0);
                for &end in ends.iter().chain([&bytes.len()]) {
                    payload.push(pool.copy_of(&bytes[from..end]));
                    from = end;
                }
                assert_eq!(kind.of_each(&payload), expected, "cut at {ends:?}");
            }
        }
    }
}
