//! Descriptions of blocks: what the blocks of a segment hold, and how old it is. They are next to
//! the blocks, so the map of a side can be made again from its segments, and cleaning knows what is
//! in a segment without a search in the whole map.
//!
//! There are two kinds. Each *chunk* that is appended outside of the log begins with descriptions
//! of its blocks; the header of an entry is that of the log. The last blocks of a full segment are
//! its *summary*, which describes all blocks before them. `docs/format/logged-side.md` specifies
//! the bytes.
//!
//! A description must never be believed without the content: a reader compares the digest, because
//! a summary may be one of an earlier generation of the segment.

use super::sealed::{is_sealed, seal};
use crate::BLOCK_BYTES;
use crate::layers::mirror::store::entry::{put_u32, put_u64, u32_at, u64_at};
use crate::layers::mirror::superblock::Uuid;
use crate::layers::mirror::superblock::areas::DESCRIBED_MAX;

const MAGIC: [u8; 8] = *b"BMDESC\0\x01";
const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 28;
const BYTES: usize = BLOCK_BYTES as usize;
/// Number of a block that is not described.
const UNDESCRIBED: u64 = u64::MAX;

/// Age of the content of a block: of two contents of one block, the one with the higher epoch, and
/// then with the higher number, is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Birth {
    /// Number of the epoch.
    pub(in super::super) epoch: u64,
    /// Sequence number of the change, or the highest one that the content has.
    pub(in super::super) number: u64,
}

/// What a block of a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described {
    /// Number of the block in the virtual range, or of a page.
    pub(super) block: u64,
    pub(super) birth: Birth,
    /// Digest of the content.
    pub(super) digest: u32,
}

impl Described {
    /// Entry of a block that holds a header, or nothing.
    pub(super) const NOTHING: Described = Described {
        block: UNDESCRIBED,
        birth: Birth {
            epoch: 0,
            number: 0,
        },
        digest: 0,
    };

    /// Returns true when the block holds something that is described.
    pub(super) fn is_something(&self) -> bool {
        self.block != UNDESCRIBED
    }
}

/// Where the descriptions of a block are, and what belongs to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Generation of the segment: which use of it this is.
    pub(super) generation: u64,
    /// Index in the segment of the first described block.
    pub(super) first: u32,
    /// Number of blocks from this one to the next block with descriptions in the segment; 0 in a
    /// summary.
    pub(super) next: u32,
}

/// Returns a block with descriptions of at most [`DESCRIBED_MAX`] blocks.
pub(super) fn encode(side: &Uuid, head: &Head, described: &[Described]) -> Vec<u8> {
    assert!(described.len() as u64 <= DESCRIBED_MAX, "they fit a block");
    let mut block = vec![0; BYTES];
    put_u32(&mut block, 12, described.len() as u32);
    put_u64(&mut block, 16, head.generation);
    put_u32(&mut block, 24, head.first);
    put_u32(&mut block, 28, head.next);
    let entries = block[HEAD_BYTES..].chunks_exact_mut(ENTRY_BYTES);
    for (entry, described) in entries.zip(described) {
        put_u64(entry, 0, described.block);
        put_u64(entry, 8, described.birth.epoch);
        put_u64(entry, 16, described.birth.number);
        put_u32(entry, 24, described.digest);
    }
    seal(side, &MAGIC, &mut block);
    block
}

/// Decodes a block with descriptions; `None` when it is not a valid one of this side.
pub(super) fn decode(side: &Uuid, block: &[u8]) -> Option<(Head, Vec<Described>)> {
    let count = is_sealed(side, &MAGIC, block).then(|| u32_at(block, 12))?;
    if u64::from(count) > DESCRIBED_MAX {
        return None;
    }
    let head = Head {
        generation: u64_at(block, 16),
        first: u32_at(block, 24),
        next: u32_at(block, 28),
    };
    let entries = block[HEAD_BYTES..].chunks_exact(ENTRY_BYTES);
    let described = entries.take(count as usize).map(|entry| Described {
        block: u64_at(entry, 0),
        birth: Birth {
            epoch: u64_at(entry, 8),
            number: u64_at(entry, 16),
        },
        digest: u32_at(entry, 24),
    });
    Some((head, described.collect()))
}

/// Returns the number of blocks with descriptions that a chunk of `blocks` blocks begins with.
pub(super) fn heads_of(blocks: u64) -> u64 {
    blocks.div_ceil(DESCRIBED_MAX)
}

/// Returns the blocks with descriptions that begin a chunk. The chunk begins at the index `first`
/// of its segment, and has the described blocks behind them.
pub(super) fn chunk_heads(
    side: &Uuid,
    (generation, first): (u64, u32),
    described: &[Described],
) -> Vec<u8> {
    let heads = heads_of(described.len() as u64) as u32;
    let parts = described.chunks(DESCRIBED_MAX as usize);
    let mut at = first + heads;
    let mut bytes = Vec::with_capacity(heads as usize * BYTES);
    for (index, part) in (1..).zip(parts) {
        let next = match index == heads {
            true => 1 + described.len() as u32,
            false => 1,
        };
        let head = Head {
            generation,
            first: at,
            next,
        };
        bytes.extend(encode(side, &head, part));
        at += part.len() as u32;
    }
    bytes
}

/// Returns the summary of a segment. `described` has an entry for each block before it.
pub(super) fn summary(side: &Uuid, generation: u64, described: &[Described]) -> Vec<u8> {
    let parts = (0u32..).zip(described.chunks(DESCRIBED_MAX as usize));
    let of_part = |(index, part): (u32, &[Described])| {
        let head = Head {
            generation,
            first: index * DESCRIBED_MAX as u32,
            next: 0,
        };
        encode(side, &head, part)
    };
    parts.flat_map(of_part).collect()
}

/// Returns what the summary of a segment says about its `blocks` blocks, with its
/// generation; `None` when it is damaged, or was never written as a whole.
pub(super) fn read_summary(
    side: &Uuid,
    bytes: &[u8],
    blocks: u64,
) -> Option<(u64, Vec<Described>)> {
    let mut described = Vec::with_capacity(blocks as usize);
    let mut generation = None;
    for block in bytes.chunks_exact(BYTES) {
        let (head, part) = decode(side, block)?;
        let follows = head.first as usize == described.len() && head.next == 0;
        if !follows || *generation.get_or_insert(head.generation) != head.generation {
            return None;
        }
        described.extend(part);
    }
    (described.len() as u64 == blocks).then_some((generation?, described))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: Uuid = *b"0123456789abcdef";

    fn described(block: u64) -> Described {
        Described {
            block,
            birth: Birth {
                epoch: 3,
                number: 0x1_0000 + block,
            },
            digest: 0x1122_3344,
        }
    }

    /// Returns the bytes of a block with one description, put together by hand from the format
    /// page.
    fn golden() -> Vec<u8> {
        let mut block = vec![0; 4096];
        block[..8].copy_from_slice(b"BMDESC\0\x01");
        block[12] = 1;
        block[16] = 9;
        block[24] = 6;
        block[28] = 2;
        block[64] = 7;
        block[72] = 3;
        block[80] = 7;
        block[82] = 1;
        block[88..92].copy_from_slice(&[0x44, 0x33, 0x22, 0x11]);
        with_checksum(block)
    }

    fn with_checksum(mut block: Vec<u8>) -> Vec<u8> {
        let mut checked = SIDE.to_vec();
        checked.extend_from_slice(&block[12..]);
        block[8..12].copy_from_slice(&crc32c::crc32c(&checked).to_le_bytes());
        block
    }

    #[test]
    fn descriptions_are_as_the_format_page_draws_them() {
        assert_eq!(chunk_heads(&SIDE, (9, 5), &[described(7)]), golden());
        let head = Head {
            generation: 9,
            first: 6,
            next: 2,
        };
        assert_eq!(decode(&SIDE, &golden()), Some((head, vec![described(7)])));
        assert_eq!(decode(&[0; 16], &golden()), None);
    }

    #[test]
    fn no_byte_can_change_unnoticed() {
        for byte in 0..4096 {
            let mut bad = golden();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(decode(&SIDE, &bad), None, "byte {byte}");
        }
    }

    #[test]
    fn more_descriptions_than_fit_are_refused() {
        let mut bad = golden();
        bad[12] = 145;
        assert_eq!(decode(&SIDE, &with_checksum(bad)), None);
    }

    #[test]
    fn a_long_chunk_has_several_heads_that_lead_to_the_next_chunk() {
        let all: Vec<Described> = (0..150).map(described).collect();
        let bytes = chunk_heads(&SIDE, (1, 10), &all);
        let heads: Vec<_> = bytes.chunks(4096).map(|b| decode(&SIDE, b)).collect();
        let [Some((one, first)), Some((two, second))] = &heads[..] else {
            panic!("two heads");
        };
        assert_eq!((one.first, one.next, first.len()), (12, 1, 144));
        assert_eq!((two.first, two.next, second.len()), (156, 151, 6));
    }

    #[test]
    fn a_summary_of_two_uses_is_none() {
        let all: Vec<Described> = (0..200).map(described).collect();
        let mut bytes = summary(&SIDE, 4, &all);
        assert_eq!(read_summary(&SIDE, &bytes, 200), Some((4, all.clone())));
        assert_eq!(read_summary(&SIDE, &bytes, 201), None);
        let older = summary(&SIDE, 3, &all);
        bytes[4096..].copy_from_slice(&older[4096..]);
        assert_eq!(read_summary(&SIDE, &bytes, 200), None);
    }
}
