//! Format of a log entry on the device: a header that describes changes, followed by their data.
//! `docs/format/mirror-side.md` specifies the bytes.
//!
//! The decoder never trusts a header before its checksum is verified, and never allocates memory
//! for a count in a header before the count is checked against the limits of the format.

use crate::BLOCK_BYTES;
use crate::layers::mirror::digest::BlockDigest;
use crate::layers::mirror::superblock::Uuid;

pub(super) const HEADER_BYTES: u64 = BLOCK_BYTES;
/// Maximum number of records in an entry.
pub(super) const RECORDS_MAX: usize = 64;
/// Maximum number of data blocks in an entry.
pub(super) const DATA_BLOCKS_MAX: u64 = 512;

const MAGIC: [u8; 8] = *b"BMLOG\0\0\x01";
const CHECKED_FROM: usize = 12;
const RECORDS_AT: usize = 96;
const RECORD_BYTES: usize = 24;
const _: () = assert!(
    RECORDS_AT + RECORDS_MAX * RECORD_BYTES + DATA_BLOCKS_MAX as usize * 4 <= HEADER_BYTES as usize
);

/// What happens to the storage space of a range that now reads as zeroes: the space at its home
/// location is freed or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Space {
    /// The device may use the space for other content.
    Freed,
    /// The space stays allocated to the range, so that a later write of it needs no new space.
    Kept,
}

/// Effect of a record on its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The blocks of the range are in the data of the entry.
    Write,
    /// The range reads as zeroes from now on.
    Zeroes(Space),
    /// No side has the content, so the range cannot be read from now on.
    Lost,
}

impl Kind {
    /// Returns the kind to write to the log of a side with the digest algorithm `digest`. On a side
    /// with CRC32C, zeroes that keep their space are written as zeroes that free it. Older programs
    /// can open such a side, but do not know zeroes that keep their space.
    pub(super) fn for_side_with(self, digest: BlockDigest) -> Kind {
        match (self, digest) {
            (Kind::Zeroes(_), BlockDigest::Crc32c) => Kind::Zeroes(Space::Freed),
            (kind, _) => kind,
        }
    }
}

/// Description of a change, or of a part of a change, in a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Offset in the volume, in bytes.
    pub(super) offset: u64,
    /// Sequence number of the change.
    pub(super) number: u64,
    /// Length in blocks.
    pub(super) blocks: u32,
    /// Effect of the change on its range.
    pub(super) kind: Kind,
}

impl Record {
    /// Returns the length of the range in bytes.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Returns the number of data blocks that the record has in the entry.
    pub(super) fn data_blocks(&self) -> u64 {
        match self.kind {
            Kind::Write => u64::from(self.blocks),
            Kind::Zeroes(_) | Kind::Lost => 0,
        }
    }
}

/// The header of a log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// UUID of the side to which the log belongs.
    pub(super) side: Uuid,
    /// Incarnation of the log in which the entry was written.
    pub(super) run: u64,
    /// Position of the entry in bytes, counted from the creation of the log.
    pub(super) position: u64,
    /// Position behind which the entry follows: its own position, or that of the first entry that
    /// it overtakes. The entry and those behind it then hold what is in between.
    pub(super) follows: u64,
    /// Position before which the log was durable when the entry was written.
    pub(super) flushed: u64,
    /// Sequence number below which the side holds every change once this entry and all earlier
    /// entries are in its log.
    pub(super) complete_below: u64,
    /// Number of the epoch in which the entry was written.
    pub(super) epoch: u64,
    /// Time at which the entry was written, in seconds since 1970.
    pub(super) written_s: u64,
    /// Sequence number below which every change was durable on every member of the epoch.
    pub(super) shared_below: u64,
    /// The changes, in order.
    pub(super) records: Vec<Record>,
    /// The digest of each data block, in order.
    pub(super) digests: Vec<u32>,
}

impl Header {
    /// Returns the position after the entry.
    pub(super) fn end(&self) -> u64 {
        self.position + HEADER_BYTES + self.digests.len() as u64 * BLOCK_BYTES
    }

    /// Encodes the header into a block.
    ///
    /// # Panics
    /// When the header has more records or digests than the format allows.
    pub(super) fn encode(&self, block: &mut [u8]) {
        assert!(self.records.len() <= RECORDS_MAX && self.digests.len() as u64 <= DATA_BLOCKS_MAX);
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        put_u32(block, 12, self.digests.len() as u32);
        block[16..32].copy_from_slice(&self.side);
        let words = [
            self.run,
            self.position,
            self.flushed,
            self.complete_below,
            self.epoch,
        ];
        for (index, word) in words.into_iter().enumerate() {
            put_u64(block, 32 + index * 8, word);
        }
        put_u32(block, 72, self.records.len() as u32);
        put_u32(block, 76, (self.position - self.follows) as u32);
        put_u64(block, 80, self.written_s);
        put_u64(block, 88, self.shared_below);
        let mut at = RECORDS_AT;
        for record in &self.records {
            put_u64(block, at, record.offset);
            put_u64(block, at + 8, record.number);
            put_u32(block, at + 16, record.blocks);
            let kind = match record.kind {
                Kind::Write => 1,
                Kind::Zeroes(Space::Freed) => 2,
                Kind::Zeroes(Space::Kept) => 4,
                Kind::Lost => 3,
            };
            put_u32(block, at + 20, kind);
            at += RECORD_BYTES;
        }
        for crc in &self.digests {
            put_u32(block, at, *crc);
            at += 4;
        }
        let checksum = crc32c::crc32c(&block[CHECKED_FROM..]);
        put_u32(block, 8, checksum);
    }

    /// Decodes a header; `None` when the block is not a valid header.
    pub(super) fn decode(block: &[u8]) -> Option<Header> {
        if block.len() as u64 != HEADER_BYTES || block[..8] != MAGIC {
            return None;
        }
        if u32_at(block, 8) != crc32c::crc32c(&block[CHECKED_FROM..]) {
            return None;
        }
        let (data, count) = (u32_at(block, 12) as usize, u32_at(block, 72) as usize);
        if data as u64 > DATA_BLOCKS_MAX || count > RECORDS_MAX {
            return None;
        }
        let records = (0..count).map(|index| record_at(block, RECORDS_AT + index * RECORD_BYTES));
        let records: Vec<Record> = records.collect::<Option<_>>()?;
        let described: u64 = records.iter().map(Record::data_blocks).sum();
        if described != data as u64 {
            return None;
        }
        let digests_at = RECORDS_AT + count * RECORD_BYTES;
        Some(Header {
            side: block[16..32].try_into().ok()?,
            run: u64_at(block, 32),
            position: u64_at(block, 40),
            follows: u64_at(block, 40).checked_sub(u64::from(u32_at(block, 76)))?,
            flushed: u64_at(block, 48),
            complete_below: u64_at(block, 56),
            epoch: u64_at(block, 64),
            written_s: u64_at(block, 80),
            shared_below: u64_at(block, 88),
            records,
            digests: (0..data)
                .map(|i| u32_at(block, digests_at + i * 4))
                .collect(),
        })
    }
}

/// Decodes a record; `None` when its values are impossible.
fn record_at(block: &[u8], at: usize) -> Option<Record> {
    let record = Record {
        offset: u64_at(block, at),
        number: u64_at(block, at + 8),
        blocks: u32_at(block, at + 16),
        kind: match u32_at(block, at + 20) {
            1 => Kind::Write,
            2 => Kind::Zeroes(Space::Freed),
            3 => Kind::Lost,
            4 => Kind::Zeroes(Space::Kept),
            _ => return None,
        },
    };
    let fits = record.offset.checked_add(record.bytes()).is_some();
    let sound = record.blocks > 0 && record.offset.is_multiple_of(BLOCK_BYTES);
    (fits && sound).then_some(record)
}

pub(super) fn put_u32(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap_or_default())
}

pub(super) fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            side: *b"0123456789abcdef",
            run: 3,
            position: 0x1_0000,
            follows: 0xe000,
            flushed: 0x8000,
            complete_below: 42,
            epoch: 5,
            written_s: 1_700_000_000,
            shared_below: 39,
            records: vec![
                Record {
                    offset: 0x2000,
                    number: 41,
                    blocks: 2,
                    kind: Kind::Write,
                },
                Record {
                    offset: 0x10_0000,
                    number: 40,
                    blocks: 256,
                    kind: Kind::Zeroes(Space::Freed),
                },
            ],
            digests: vec![0x1111_2222, 0x3333_4444],
        }
    }

    /// Returns the expected bytes of the sample header, assembled by hand from the format
    /// specification.
    fn golden() -> Vec<u8> {
        let mut block = vec![0u8; 4096];
        block[..8].copy_from_slice(b"BMLOG\0\0\x01");
        block[12] = 2;
        block[16..32].copy_from_slice(b"0123456789abcdef");
        block[32] = 3;
        block[42] = 1;
        block[49] = 0x80;
        block[56] = 42;
        block[64] = 5;
        block[72] = 2;
        block[77] = 0x20;
        block[80..88].copy_from_slice(&1_700_000_000u64.to_le_bytes());
        block[88] = 39;
        block[97] = 0x20;
        block[104] = 41;
        block[112] = 2;
        block[116] = 1;
        block[122] = 0x10;
        block[128] = 40;
        block[137] = 1;
        block[140] = 2;
        block[144..148].copy_from_slice(&[0x22, 0x22, 0x11, 0x11]);
        block[148..152].copy_from_slice(&[0x44, 0x44, 0x33, 0x33]);
        let checksum = crc32c::crc32c(&block[12..]);
        block[8..12].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    #[test]
    fn a_header_is_as_the_format_page_draws_it() {
        let mut block = vec![0xEE; 4096];
        header().encode(&mut block);
        assert_eq!(block, golden());
        assert_eq!(Header::decode(&golden()), Some(header()));
        assert_eq!(header().end(), 0x1_0000 + 3 * 4096);
    }

    #[test]
    fn no_bit_can_change_unnoticed() {
        let good = golden();
        for bit in 0..4096 * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), None, "bit {bit}");
        }
    }

    /// Headers with a valid checksum but impossible values are refused.
    #[test]
    fn impossible_headers_are_refused() {
        let cases: [(usize, &[u8]); 7] = [
            (12, &[3]),                                      // more data than the records have
            (72, &[65]),                                     // too many records
            (76, &[0, 0, 2]),                                // behind no position
            (112, &[0]),                                     // a record of nothing
            (116, &[9]),                                     // an unknown kind
            (96, &[1]),                                      // not a multiple of 4096
            (120, &[0, 0xF0, 255, 255, 255, 255, 255, 255]), // beyond the end of numbers
        ];
        for (at, bytes) in cases {
            let mut block = golden();
            block[at..at + bytes.len()].copy_from_slice(bytes);
            let checksum = crc32c::crc32c(&block[12..]);
            block[8..12].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(Header::decode(&block), None, "byte {at}");
        }
        assert_eq!(Header::decode(&[0; 4096]), None);
        assert_eq!(Header::decode(&[]), None);
    }
}
