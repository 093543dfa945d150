//! Layout of the storage, and the two superblocks that describe it.
//!
//! docs/format/index.md shows the layout byte by byte. A new superblock overwrites the older one of
//! the two, so that a power cut leaves the other intact. This module must never accept a superblock
//! with a wrong checksum or impossible fields.

use crate::error::{At, Error};
pub(crate) use crate::geometry::{Geometry, LOG_OFFSET};
use crate::rings::{RING_BYTES, RINGS_MAX, Ring, Rings};
use crate::storage::{Aligned, BLOCK_BYTES, Storage};
use std::cmp::Reverse;

const MAGIC: [u8; 8] = *b"bimetidx";
/// Version of the format that this program writes.
pub(crate) const VERSION: u32 = 6;
/// Oldest version that this program reads. An index of a version before [`VERSION`] is converted to
/// [`VERSION`] when it is opened for writing.
const OLDEST_VERSION: u32 = 2;
/// First version whose log is in rings. In earlier versions the log had its maximum length from the
/// beginning.
const RINGS_VERSION: u32 = 5;
/// Maximum number of segments of a checkpoint.
pub(crate) const CHECKPOINT_SEGMENTS_MAX: usize = 900;
/// Exclusive bound of positions, generations and sequence numbers, so that incrementing them never
/// overflows.
pub(crate) const COUNTS_MAX: u64 = 1 << 62;
const RINGS_AT: usize = 104;
const FRONT_AT: usize = RINGS_AT + RINGS_MAX * RING_BYTES;
const LIST_AT: usize = 256;
const _: () = assert!(FRONT_AT + 4 <= LIST_AT);
const CRC_AT: usize = BLOCK_BYTES - 4;

/// Content of a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub geometry: Geometry,
    /// Number of this superblock. If both superblocks are intact, the one with the higher number is
    /// valid.
    pub generation: u64,
    /// Number of this incarnation of the log: each opening for writing begins a new incarnation. A
    /// frame whose incarnation is older than that of the previous frame is a leftover.
    pub opening: u32,
    /// Position, in blocks, at which reading the log begins. The position only grows.
    pub log_tail: u64,
    /// Sequence number of the last batch before the tail.
    pub seq_at_tail: u64,
    /// Minimum incarnation of a frame at the tail. A frame of an earlier incarnation is a leftover
    /// of an earlier use of the ring. A later frame is compared with the incarnation of its
    /// previous frame instead. The frame at the tail has no previous frame, because reading begins
    /// at the tail.
    pub opening_at_tail: u32,
    /// Segments of the checkpoint, whose length and checksum are in the next two fields. Without
    /// segments the tree is empty.
    pub checkpoint: Vec<u32>,
    pub checkpoint_bytes: u64,
    pub checkpoint_crc: u32,
    /// Position, in blocks, up to which the log is durable.
    pub log_durable: u64,
    /// Rings that hold the needed part of the log; the last one is being written.
    pub rings: Rings,
}

/// Number of unused bytes in the middle of a superblock.
const RESERVED_BYTES: usize = 8;

/// Parser that takes little-endian numbers from a block, in order.
struct Fields<'a>(&'a [u8], usize);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[self.1..self.1 + N]);
        self.1 += N;
        field
    }

    fn skipping(&mut self, bytes: usize) -> &mut Self {
        self.1 += bytes;
        self
    }

    fn number32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn number64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn put(block: &mut [u8], at: &mut usize, bytes: &[u8]) {
    block[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}

impl Superblock {
    fn encode(&self) -> Aligned {
        let mut block = Aligned::zeroed(BLOCK_BYTES);
        let mut at = 0;
        put(&mut block, &mut at, &MAGIC);
        put(&mut block, &mut at, &VERSION.to_le_bytes());
        put(
            &mut block,
            &mut at,
            &self.geometry.segment_bytes.to_le_bytes(),
        );
        put(&mut block, &mut at, &self.geometry.id.to_le_bytes());
        put(&mut block, &mut at, &self.geometry.log_blocks.to_le_bytes());
        put(&mut block, &mut at, &self.generation.to_le_bytes());
        put(&mut block, &mut at, &self.log_tail.to_le_bytes());
        put(&mut block, &mut at, &self.seq_at_tail.to_le_bytes());
        at += RESERVED_BYTES;
        put(&mut block, &mut at, &self.checkpoint_bytes.to_le_bytes());
        put(&mut block, &mut at, &self.checkpoint_crc.to_le_bytes());
        put(&mut block, &mut at, &self.opening.to_le_bytes());
        let count = self.checkpoint.len() as u32;
        put(&mut block, &mut at, &count.to_le_bytes());
        put(&mut block, &mut at, &self.opening_at_tail.to_le_bytes());
        put(&mut block, &mut at, &self.log_durable.to_le_bytes());
        let rings = self.rings.all();
        put(&mut block, &mut at, &(rings.len() as u32).to_le_bytes());
        at = RINGS_AT;
        for ring in rings {
            put(&mut block, &mut at, &ring.encode());
        }
        at = FRONT_AT;
        let front_blocks = self.geometry.front_blocks as u32;
        put(&mut block, &mut at, &front_blocks.to_le_bytes());
        at = LIST_AT;
        for segment in &self.checkpoint {
            put(&mut block, &mut at, &segment.to_le_bytes());
        }
        let crc = crc32c::crc32c(&block[..CRC_AT]);
        block[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        block
    }

    /// Decodes one superblock. Returns `Ok(None)` if it is not intact.
    fn decode(block: &[u8]) -> Result<Option<Superblock>, Error> {
        let mut crc = Fields(block, CRC_AT);
        if block[..8] != MAGIC || crc.number32() != crc32c::crc32c(&block[..CRC_AT]) {
            return Ok(None);
        }
        let mut fields = Fields(block, 8);
        let version = fields.number32();
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(Error::Version {
                found: version,
                known: VERSION,
            });
        }
        let segment_bytes = fields.number32();
        let (id, log_blocks) = (fields.number64(), fields.number64());
        let geometry = Geometry {
            segment_bytes,
            id,
            log_blocks,
            front_blocks: match version < RINGS_VERSION {
                true => log_blocks,
                false => Fields(block, FRONT_AT).number32().into(),
            },
        };
        let rings = match version < RINGS_VERSION {
            true => Some(Rings::of_one(Ring::front(&geometry, 0))),
            false => decode_rings(block, &geometry),
        };
        let Some(rings) = rings else {
            return Ok(None);
        };
        let mut superblock = Superblock {
            geometry,
            generation: fields.number64(),
            log_tail: fields.number64(),
            seq_at_tail: fields.number64(),
            checkpoint_bytes: fields.skipping(RESERVED_BYTES).number64(),
            checkpoint_crc: fields.number32(),
            opening: fields.number32(),
            opening_at_tail: 0,
            checkpoint: Vec::new(),
            log_durable: 0,
            rings,
        };
        let count = fields.number32() as usize;
        superblock.opening_at_tail = fields.number32();
        superblock.log_durable = fields.number64();
        let capacity = count as u64 * u64::from(segment_bytes);
        let counts = [
            superblock.generation,
            superblock.log_tail,
            superblock.seq_at_tail,
        ];
        let fits = counts.iter().all(|count| *count < COUNTS_MAX)
            && superblock.opening < u32::MAX
            && superblock.opening_at_tail <= superblock.opening
            && geometry.is_possible()
            && superblock.has_its_log()
            && count <= CHECKPOINT_SEGMENTS_MAX
            && superblock.checkpoint_bytes <= capacity;
        if !fits {
            return Ok(None);
        }
        let mut list = Fields(block, LIST_AT);
        superblock.checkpoint = (0..count).map(|_| list.number32()).collect();
        Ok(Some(superblock))
    }

    /// Returns true if the first ring begins at or before the tail, every other ring begins at or
    /// after the tail, and the log has reached the last ring. The second ring is allowed to begin
    /// exactly at the tail, where the first ring ends. This happens if no part of the log was
    /// needed when the log moved to the next ring.
    fn has_its_log(&self) -> bool {
        let rings = self.rings.all();
        let first_needed = rings[0].from <= self.log_tail;
        let others_needed = rings[1..].iter().all(|ring| self.log_tail <= ring.from);
        let is_reached = self.rings.current().from <= self.log_durable.max(self.log_tail);
        first_needed && others_needed && is_reached
    }

    /// Writes the superblock durably, over the older of the two superblocks on the storage.
    pub(crate) fn write(&self, storage: &dyn Storage) -> Result<(), Error> {
        let offset = (self.generation % 2) * BLOCK_BYTES as u64;
        let block = self.encode();
        let written = storage.write_durable(offset, &block);
        written.at("writing a superblock", offset)
    }

    /// Reads both superblocks, and returns the newer of those that are intact.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Superblock, Error> {
        if storage.len_bytes() < LOG_OFFSET {
            return Err(Error::NotAnIndex {
                reason: format!("it has only {} bytes", storage.len_bytes()),
            });
        }
        let mut blocks = Aligned::zeroed(2 * BLOCK_BYTES);
        storage
            .read(0, &mut blocks)
            .at("reading the superblocks", 0)?;
        let newest = Superblock::all_of(&blocks)?.into_iter().next();
        newest.ok_or_else(|| not_an_index(&blocks))
    }

    /// Returns the intact superblocks, the newer one first.
    ///
    /// # Errors
    ///
    /// [`Error::Version`] if a superblock has another version of the format.
    pub(crate) fn all_of(blocks: &[u8]) -> Result<Vec<Superblock>, Error> {
        let mut all = Vec::new();
        for block in blocks.chunks_exact(BLOCK_BYTES).take(2) {
            all.extend(Superblock::decode(block)?);
        }
        all.sort_by_key(|superblock| Reverse(superblock.generation));
        Ok(all)
    }
}

/// Decodes the rings of a superblock; returns `None` if the log cannot occupy these rings.
fn decode_rings(block: &[u8], geometry: &Geometry) -> Option<Rings> {
    let count = Fields(block, RINGS_AT - 8).number32() as usize;
    let mut fields = Fields(block, RINGS_AT);
    let mut rings = Vec::new();
    for _ in 0..count.min(RINGS_MAX + 1) {
        rings.push(Ring::decode(&fields.take(), geometry)?);
    }
    Rings::of(rings)
}

fn not_an_index(blocks: &[u8]) -> Error {
    let (first, second) = blocks.split_at(BLOCK_BYTES);
    if first[..8] == MAGIC || second[..8] == MAGIC {
        return Error::Damaged {
            what: "both superblocks".to_owned(),
            offset: 0,
        };
    }
    let reason = if blocks.iter().all(|byte| *byte == 0) {
        "it begins with zeroes"
    } else {
        "it begins with other content"
    };
    Error::NotAnIndex {
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rings::RingLocation;
    use crate::storage::memory::MemoryStorage;

    fn example() -> Superblock {
        Superblock {
            geometry: Geometry::new(0x1122_3344_5566_7788, 512, 1 << 20),
            generation: 6,
            opening: 3,
            opening_at_tail: 2,
            log_tail: 1000,
            seq_at_tail: 77,
            checkpoint: vec![4, 9],
            checkpoint_bytes: 1_500_000,
            checkpoint_crc: 0xABCD,
            log_durable: 1_234,
            rings: Rings::of(vec![
                Ring::front(&Geometry::new(0, 512, 1 << 20), 900),
                Ring {
                    from: 1_100,
                    place: RingLocation::Segments(5),
                    blocks: 256,
                },
            ])
            .unwrap(),
        }
    }

    #[test]
    fn the_newer_of_two_superblocks_counts_and_the_other_is_there_when_it_is_torn() {
        let storage = MemoryStorage::with_content(vec![0; LOG_OFFSET as usize]);
        let older = example();
        older.write(&storage).unwrap();
        let newer = Superblock {
            generation: 7,
            log_tail: 1050,
            ..example()
        };
        newer.write(&storage).unwrap();
        assert_eq!(Superblock::read(&storage).unwrap(), newer);
        for byte in [0, 20, 100, LIST_AT, CRC_AT] {
            let mut content = storage.content();
            content[BLOCK_BYTES + byte] ^= 1;
            let torn = MemoryStorage::with_content(content);
            assert_eq!(Superblock::read(&torn).unwrap(), older, "byte {byte}");
        }
    }

    #[test]
    fn what_is_no_index_is_told_from_a_damaged_one() {
        let none = MemoryStorage::with_content(vec![0; LOG_OFFSET as usize]);
        assert!(matches!(
            Superblock::read(&none),
            Err(Error::NotAnIndex { .. })
        ));
        let short = MemoryStorage::with_content(vec![0; 512]);
        assert!(matches!(
            Superblock::read(&short),
            Err(Error::NotAnIndex { .. })
        ));
        let mut content = vec![0; LOG_OFFSET as usize];
        content[..BLOCK_BYTES].copy_from_slice(&example().encode());
        content[50] ^= 1;
        let damaged = MemoryStorage::with_content(content);
        assert!(matches!(
            Superblock::read(&damaged),
            Err(Error::Damaged { offset: 0, .. })
        ));
    }

    #[test]
    fn rings_that_the_log_cannot_be_in_make_no_superblock() {
        let reads = |superblock: &Superblock| {
            let storage = MemoryStorage::with_content(vec![0; LOG_OFFSET as usize]);
            superblock.write(&storage).unwrap();
            Superblock::read(&storage).is_ok()
        };
        let good = example();
        assert!(reads(&good));
        // No part of the log was needed when the log moved to the second ring.
        let empty = Superblock {
            log_tail: 1_100,
            ..good.clone()
        };
        assert!(reads(&empty));
        for (log_tail, log_durable) in [(899, 1_234), (1_101, 1_234), (1_000, 1_099)] {
            let bad = Superblock {
                log_tail,
                log_durable,
                ..good.clone()
            };
            assert!(!reads(&bad), "tail {log_tail}, durable {log_durable}");
        }
    }
}
