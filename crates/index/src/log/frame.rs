//! Frames of the log: one or more whole blocks with the batches that were written together.

use crate::batch::{Operation, Operations};
use crate::error::Error;
use crate::layout::{COUNTS_MAX, Geometry};
use crate::rings::{Ring, RingLocation};
use crate::storage::{BLOCK_BYTES, round_up};

const MAGIC: u32 = u32::from_le_bytes(*b"blo5");
/// Magic of a frame up to version 4 of the format.
const OLD_MAGIC: u32 = u32::from_le_bytes(*b"blog");
/// Length of the header of a frame, in bytes.
pub(crate) const HEADER_BYTES: usize = 96;
/// Length of the header up to version 4 of the format.
const OLD_HEADER_BYTES: usize = 64;

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub position: u64,
    pub durable_below: u64,
    pub first_seq: u64,
    pub payload_bytes: u32,
    pub opening: u32,
    pub generation: u64,
    pub is_relogged: bool,
    /// Tail of the log when the frame was written: the part of the log before this position was no
    /// longer needed.
    pub tail: u64,
    /// Location of the frame's ring, whose length is `ring_blocks`.
    pub place: RingLocation,
    pub ring_blocks: u64,
    /// Length of the header itself, in bytes.
    pub bytes: usize,
}

impl Header {
    /// Writes the header into a frame that already has its content, with a checksum of the whole
    /// frame.
    pub(super) fn encode(&self, geometry: &Geometry, frame: &mut [u8]) {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&geometry.id.to_le_bytes());
        header[16..24].copy_from_slice(&self.position.to_le_bytes());
        header[24..32].copy_from_slice(&self.durable_below.to_le_bytes());
        header[32..40].copy_from_slice(&self.first_seq.to_le_bytes());
        header[40..44].copy_from_slice(&self.payload_bytes.to_le_bytes());
        header[44..48].copy_from_slice(&self.opening.to_le_bytes());
        header[48..56].copy_from_slice(&self.generation.to_le_bytes());
        header[56] = u8::from(self.is_relogged);
        // If only the log is left, these fields describe the index that the log belongs to.
        header[57] = geometry.segment_bytes.ilog2() as u8;
        header[58..62].copy_from_slice(&(geometry.log_blocks as u32).to_le_bytes());
        header[64..72].copy_from_slice(&self.tail.to_le_bytes());
        header[72..76].copy_from_slice(&self.place.stored().to_le_bytes());
        header[76..80].copy_from_slice(&(self.ring_blocks as u32).to_le_bytes());
        header[80..84].copy_from_slice(&(geometry.front_blocks as u32).to_le_bytes());
        frame[..HEADER_BYTES].copy_from_slice(&header);
        let crc = crc32c::crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the header in a block, if the block looks like the start of a frame of the index
    /// `id`. The checksum is not verified, because it covers the whole frame.
    pub(crate) fn decode(id: u64, block: &[u8]) -> Option<Header> {
        let number32 = |at: usize| {
            let field = block.get(at..at + 4)?;
            Some(u32::from_le_bytes(field.try_into().ok()?))
        };
        let number64 = |at: usize| {
            let field = block.get(at..at + 8)?;
            Some(u64::from_le_bytes(field.try_into().ok()?))
        };
        let is_old = match number32(0)? {
            MAGIC => false,
            OLD_MAGIC => true,
            _ => return None,
        };
        if number64(8)? != id {
            return None;
        }
        let header = Header {
            position: number64(16)?,
            durable_below: number64(24)?,
            first_seq: number64(32)?,
            payload_bytes: number32(40)?,
            opening: number32(44)?,
            generation: number64(48)?,
            is_relogged: *block.get(56)? == 1,
            tail: 0,
            place: RingLocation::Front,
            ring_blocks: number32(58)?.into(),
            bytes: OLD_HEADER_BYTES,
        };
        let header = match is_old {
            true => header,
            false => Header {
                tail: number64(64)?,
                place: RingLocation::from_stored(number32(72)?),
                ring_blocks: number32(76)?.into(),
                bytes: HEADER_BYTES,
                ..header
            },
        };
        // Bound these numbers, so that incrementing them never overflows.
        let counts = [header.position, header.first_seq, header.tail];
        let is_counted = counts.iter().all(|count| *count < COUNTS_MAX);
        (is_counted && header.ring_blocks > 0).then_some(header)
    }

    /// Decodes the header of a frame and the geometry of its index. Returns `None` unless the
    /// block, which is at the byte `offset` of the storage, looks like the start of a frame.
    pub(crate) fn with_geometry(block: &[u8], offset: u64) -> Option<(Header, Geometry)> {
        let number32 = |at: usize| Some(u32::from_le_bytes(*block.get(at..)?.first_chunk()?));
        let id = u64::from_le_bytes(*block.get(8..)?.first_chunk()?);
        let header = Header::decode(id, block)?;
        let log_blocks = u64::from(number32(58)?);
        let geometry = Geometry {
            id,
            log_blocks,
            segment_bytes: 1_u32.checked_shl((*block.get(57)?).into())?,
            front_blocks: match header.bytes {
                HEADER_BYTES => number32(80)?.into(),
                _ => log_blocks,
            },
        };
        let is_there = geometry.is_possible() && header.offset(&geometry) == offset;
        is_there.then_some((header, geometry))
    }

    /// Returns the ring that contains the frame. The first position of the returned ring is the
    /// position of the frame.
    pub(crate) fn ring(&self) -> Ring {
        Ring {
            from: self.position,
            place: self.place,
            blocks: self.ring_blocks,
        }
    }

    /// Returns the location of the frame according to its header, in bytes from the start of the
    /// storage.
    pub(crate) fn offset(&self, geometry: &Geometry) -> u64 {
        self.ring().offset_of(geometry, self.position)
    }

    /// Returns the frame with this header. `bytes` is the whole frame.
    pub(crate) fn frame<'a>(&self, geometry: &Geometry, bytes: &'a [u8]) -> Frame<'a> {
        Frame {
            first_seq: self.first_seq,
            is_relogged: self.is_relogged,
            position: self.position,
            end: self.position + self.blocks(),
            durable_below: self.durable_below,
            operations: &bytes[self.bytes..self.bytes + self.payload_bytes as usize],
            offset: self.offset(geometry),
        }
    }

    /// Returns the number of blocks of the frame.
    pub(crate) fn blocks(&self) -> u64 {
        (round_up(self.bytes + self.payload_bytes as usize) / BLOCK_BYTES) as u64
    }
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// Sequence number of the first batch; in a frame of relogged records, that of the last batch
    /// before the frame.
    pub first_seq: u64,
    /// True if the frame has relogged records.
    pub is_relogged: bool,
    /// Position of the frame.
    pub position: u64,
    /// Position of the next frame.
    pub end: u64,
    /// Position up to which the log was durable when the frame was written.
    pub durable_below: u64,
    /// Operations of the frame.
    pub operations: &'a [u8],
    /// Location of the frame, in bytes from the start of the storage.
    offset: u64,
}

impl<'a> Frame<'a> {
    /// Calls `take` with every operation and the sequence number of its batch, in order. Returns
    /// the sequence number of the last batch.
    ///
    /// # Errors
    ///
    /// The errors of [`each_batch`](Self::each_batch).
    pub(crate) fn each(
        &self,
        mut take: impl FnMut(u64, Operation<'a>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        self.each_batch(|seq, operations| {
            let mut operations = Operations::new(operations);
            while let Some(operation) = operations.take().map_err(|_| self.not_a_batch())? {
                if operation != Operation::End {
                    take(seq, operation)?;
                }
            }
            Ok(())
        })
    }

    /// Calls `take` with the sequence number and the operations of every batch, in order; the
    /// relogged records of a frame are passed as one batch. Returns the sequence number of the last
    /// batch.
    ///
    /// # Errors
    ///
    /// The errors of `take`, and [`Error::Damaged`] if the bytes are not whole batches. A frame is
    /// written only with complete batches, so a frame whose last batch has no end is damaged. That
    /// batch must never be applied.
    pub(crate) fn each_batch(
        &self,
        mut take: impl FnMut(u64, &'a [u8]) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        if self.is_relogged {
            take(self.first_seq, self.operations)?;
            return Ok(self.first_seq);
        }
        let mut operations = Operations::new(self.operations);
        let mut seq = self.first_seq;
        let mut begin = self.operations;
        let mut is_ended = true;
        while let Some(operation) = operations.take().map_err(|_| self.not_a_batch())? {
            is_ended = operation == Operation::End;
            if is_ended {
                let bytes = begin.len() - operations.rest().len() - 1;
                take(seq, &begin[..bytes])?;
                seq += 1;
                begin = operations.rest();
            }
        }
        match is_ended {
            true => seq.checked_sub(1).ok_or_else(|| self.not_a_batch()),
            false => Err(self.not_a_batch()),
        }
    }

    /// Returns the error for a frame with bytes that are not a batch.
    pub(crate) fn not_a_batch(&self) -> Error {
        Error::Damaged {
            what: "a batch in the log".to_owned(),
            offset: self.offset,
        }
    }
}
