//! The log: every change, in order, durable before it is acknowledged.
//!
//! A ring of blocks that is written round and round, never growing, so that a commit costs the file
//! system nothing beside its blocks. Batches that are written together make a frame of whole blocks;
//! its header has a checksum, the frame's own position, and how far the log was durable when it was
//! written. Reading stops at the first frame that is not whole, and says so if a later frame proves
//! that this one had been durable. It must never take a frame of an earlier lap, of an earlier opening
//! or of another index for one of its own.

use crate::batch::{Operation, Operations};
use crate::error::{At, Error};
use crate::layout::{COUNTS_MAX, Geometry, LOG_OFFSET, Superblock};
use crate::planted::{Bug, is_planted};
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up, sync};

const MAGIC: u32 = u32::from_le_bytes(*b"blog");
/// Bytes of a frame before its batches.
pub(crate) const HEADER_BYTES: usize = 64;
/// A frame that is this long takes no further batch.
const FRAME_BYTES: usize = 256 << 10;
/// Bytes read at a time: as much as makes a device busy on all its channels.
const WINDOW_BYTES: usize = 4 << 20;
/// Blocks that are written again at a time.
const AGAIN_BLOCKS: u64 = 256;
/// How far beyond its end the log is searched for proof that something was lost.
const PROOF_BLOCKS: u64 = 2048;

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub position: u64,
    pub durable_below: u64,
    pub first_seq: u64,
    pub payload_bytes: u32,
    pub opening: u32,
    pub generation: u64,
    pub is_carried: bool,
}

impl Header {
    fn encode(&self, geometry: &Geometry, frame: &mut [u8]) {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&geometry.id.to_le_bytes());
        header[16..24].copy_from_slice(&self.position.to_le_bytes());
        header[24..32].copy_from_slice(&self.durable_below.to_le_bytes());
        header[32..40].copy_from_slice(&self.first_seq.to_le_bytes());
        header[40..44].copy_from_slice(&self.payload_bytes.to_le_bytes());
        header[44..48].copy_from_slice(&self.opening.to_le_bytes());
        header[48..56].copy_from_slice(&self.generation.to_le_bytes());
        header[56] = u8::from(self.is_carried);
        // Where a log is found and nothing else, this says what it is the log of.
        header[57] = geometry.segment_bytes.ilog2() as u8;
        header[58..62].copy_from_slice(&(geometry.log_blocks as u32).to_le_bytes());
        frame[..HEADER_BYTES].copy_from_slice(&header);
        let crc = crc32c::crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// The header of a block, if it looks like one of this index. Its checksum is over the whole frame.
    pub(crate) fn decode(id: u64, block: &[u8]) -> Option<Header> {
        let number32 = |at: usize| {
            let field = block.get(at..at + 4)?;
            Some(u32::from_le_bytes(field.try_into().ok()?))
        };
        let number64 = |at: usize| {
            let field = block.get(at..at + 8)?;
            Some(u64::from_le_bytes(field.try_into().ok()?))
        };
        if number32(0)? != MAGIC || number64(8)? != id {
            return None;
        }
        Some(Header {
            position: number64(16)?,
            durable_below: number64(24)?,
            first_seq: number64(32)?,
            payload_bytes: number32(40)?,
            opening: number32(44)?,
            generation: number64(48)?,
            is_carried: *block.get(56)? == 1,
        })
    }

    /// What the index is, if the block at this byte of the storage looks like the start of a frame.
    pub(crate) fn geometry_of(block: &[u8], offset: u64) -> Option<Geometry> {
        let number64 = |at: usize| Some(u64::from_le_bytes(*block.get(at..)?.first_chunk()?));
        let header = Header::decode(number64(8)?, block)?;
        let log_blocks = u32::from_le_bytes(*block.get(58..)?.first_chunk()?);
        let geometry = Geometry {
            id: number64(8)?,
            log_blocks: log_blocks.into(),
            segment_bytes: 1_u32.checked_shl((*block.get(57)?).into())?,
        };
        if !geometry.is_possible() {
            return None;
        }
        (geometry.log_offset(header.position) == offset).then_some(geometry)
    }

    /// The frame that this heads, of its whole content.
    pub(crate) fn frame<'a>(&self, geometry: &Geometry, bytes: &'a [u8]) -> Frame<'a> {
        Frame {
            first_seq: self.first_seq,
            is_carried: self.is_carried,
            position: self.position,
            end: self.position + self.blocks(),
            operations: &bytes[HEADER_BYTES..HEADER_BYTES + self.payload_bytes as usize],
            offset: geometry.log_offset(self.position),
        }
    }

    /// Blocks that the frame takes.
    pub(crate) fn blocks(&self) -> u64 {
        (round_up(HEADER_BYTES + self.payload_bytes as usize) / BLOCK_BYTES) as u64
    }
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Log {
    geometry: Geometry,
    opening: u32,
    /// Where the next frame goes, in blocks; it only grows.
    head: u64,
    /// The oldest block that is still needed, as the durable superblock has it.
    tail: u64,
    /// Everything before this survives a power cut.
    durable_below: u64,
    frame: Aligned,
    /// End of the batches in `frame`; [`HEADER_BYTES`] without any.
    filled: usize,
    first_seq: u64,
    /// Of the superblock that is valid.
    generation: u64,
    is_carried: bool,
}

impl Log {
    /// A log that goes on at `head`; what is needed of it begins at `tail`.
    pub(crate) fn new(geometry: Geometry, opening: u32, tail: u64, head: u64) -> Log {
        Log {
            geometry,
            opening,
            head,
            tail,
            durable_below: head,
            frame: Aligned::zeroed(16 * BLOCK_BYTES),
            filled: HEADER_BYTES,
            first_seq: 0,
            generation: 0,
            is_carried: false,
        }
    }

    /// Where the next frame goes.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Where what is needed begins.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Everything before this is durable.
    pub(crate) fn durable_below(&self) -> u64 {
        self.durable_below
    }

    /// Everything before this stands in the log, whether it is durable or not: it was read.
    pub(crate) fn go_on_from(&mut self, head: u64) {
        assert!(
            self.head <= head && !self.has_pending(),
            "frames follow each other"
        );
        self.head = head;
    }

    /// Nothing before `tail` is needed any more, and the superblock of this generation says so durably.
    pub(crate) fn release(&mut self, tail: u64, generation: u64) {
        assert!(self.tail <= tail && tail <= self.head, "a tail that exists");
        self.tail = tail;
        self.generation = generation;
    }

    /// Blocks that frames may still take.
    pub(crate) fn free_blocks(&self) -> u64 {
        let pending = if self.has_pending() {
            self.pending_blocks()
        } else {
            0
        };
        (self.tail + self.geometry.log_blocks).saturating_sub(self.head + pending)
    }

    /// Bytes of a batch, at most: a log has room for several such.
    pub(crate) fn batch_bytes_max(&self) -> usize {
        let log_bytes = self.geometry.log_blocks as usize * BLOCK_BYTES;
        log_bytes / 8 - HEADER_BYTES - 1
    }

    /// True if everything that was appended survives a power cut.
    pub(crate) fn is_durable(&self) -> bool {
        !self.has_pending() && self.durable_below == self.head
    }

    /// True if batches wait to be written.
    pub(crate) fn has_pending(&self) -> bool {
        self.filled > HEADER_BYTES
    }

    fn pending_blocks(&self) -> u64 {
        (round_up(self.filled) / BLOCK_BYTES) as u64
    }

    /// True if a batch of so many bytes should not go into the frame that waits.
    pub(crate) fn is_full_for(&self, bytes: usize) -> bool {
        self.has_pending() && self.filled + bytes > FRAME_BYTES
    }

    /// Adds a batch with its number, one above that of the batch before.
    pub(crate) fn append(&mut self, seq: u64, operations: &[u8], end: &[u8]) {
        if !self.has_pending() {
            self.first_seq = seq;
            self.is_carried = false;
        }
        assert!(!self.is_carried, "batches and carried records are apart");
        self.push(operations);
        self.push(end);
    }

    /// Adds records that stand in the log already and would be overwritten. `seq` is the number of the
    /// last batch. Whatever waits must have been written.
    pub(crate) fn carry(&mut self, seq: u64, operations: &[u8]) {
        if !self.has_pending() {
            self.first_seq = seq;
            self.is_carried = true;
        }
        assert!(self.is_carried, "batches and carried records are apart");
        self.push(operations);
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        self.frame.reserve(round_up(end));
        self.frame[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
    }

    /// Writes what waits. After this, all that was appended is durable if `durable`; else it will be
    /// with the next durable one.
    pub(crate) fn write_out(&mut self, storage: &dyn Storage, durable: bool) -> Result<(), Error> {
        if self.has_pending() {
            let blocks = self.pending_blocks();
            assert!(
                self.head + blocks <= self.tail + self.geometry.log_blocks,
                "the log never overtakes its tail"
            );
            let bytes = blocks as usize * BLOCK_BYTES;
            self.frame[self.filled..bytes].fill(0);
            let header = Header {
                position: self.head,
                durable_below: self.durable_below,
                first_seq: self.first_seq,
                payload_bytes: (self.filled - HEADER_BYTES) as u32,
                opening: self.opening,
                generation: self.generation,
                is_carried: self.is_carried,
            };
            header.encode(&self.geometry, &mut self.frame[..bytes]);
            // A durable write says nothing of what was written before it.
            let alone = durable && self.durable_below == self.head;
            self.write_blocks(storage, bytes, alone)?;
            self.head += blocks;
            self.filled = HEADER_BYTES;
            if alone {
                self.durable_below = self.head;
            }
        }
        if durable && self.durable_below < self.head {
            sync(storage).at("making the log durable", LOG_OFFSET)?;
            self.durable_below = self.head;
        }
        Ok(())
    }

    /// Writes everything from `position` on once more, as it is read. Where a sync had failed, the system may
    /// have in its cache what is not on the device and take it for saved: a sync alone would save nothing of it
    /// (fsync(2) of Linux reports a failed write-back once and keeps the pages as clean ones).
    pub(crate) fn write_again(&self, storage: &dyn Storage, position: u64) -> Result<(), Error> {
        let mut at = position;
        let mut piece = Aligned::default();
        while at < self.head {
            let before_end = self.geometry.log_blocks - at % self.geometry.log_blocks;
            let blocks = AGAIN_BLOCKS.min(before_end).min(self.head - at);
            let bytes = blocks as usize * BLOCK_BYTES;
            piece.reserve(bytes);
            let (offset, piece) = (self.geometry.log_offset(at), &mut piece[..bytes]);
            storage.read(offset, piece).at("reading the log", offset)?;
            storage.write(offset, piece).at("writing the log", offset)?;
            at += blocks;
        }
        Ok(())
    }

    /// Makes sure that no frame begins at the end. One may have been written there by an opening whose last
    /// write was cut, and not be whole; a write of this one that is cut as well could make it whole, since parts
    /// of both are the same. Opening would know it by its number; a rebuild without superblocks would not.
    pub(crate) fn end_here(&self, storage: &dyn Storage) -> Result<(), Error> {
        if self.free_blocks() == 0 {
            // The ring is full: what stands there is its tail.
            return Ok(());
        }
        let offset = self.geometry.log_offset(self.head);
        let nothing = Aligned::zeroed(BLOCK_BYTES);
        let written = storage.write_durable(offset, &nothing);
        written.at("writing the log", offset)
    }

    fn write_blocks(
        &self,
        storage: &dyn Storage,
        bytes: usize,
        durable: bool,
    ) -> Result<(), Error> {
        let before_end = (self.geometry.log_blocks - self.head % self.geometry.log_blocks) as usize
            * BLOCK_BYTES;
        let (first, second) = self.frame[..bytes].split_at(bytes.min(before_end));
        for (position, part) in [
            (self.head, first),
            (self.head + (first.len() / BLOCK_BYTES) as u64, second),
        ] {
            let offset = self.geometry.log_offset(position);
            let written = match part.len() {
                0 => Ok(()),
                _ if durable => storage.write_durable(offset, part),
                _ => storage.write(offset, part),
            };
            written.at("writing the log", offset)?;
        }
        Ok(())
    }
}

/// A frame that was read.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    /// The number of its first batch; for carried records of the last before them.
    pub first_seq: u64,
    /// Records that had stood in the log before.
    pub is_carried: bool,
    /// Where it begins.
    pub position: u64,
    /// Where the next one begins.
    pub end: u64,
    /// Its operations.
    pub operations: &'a [u8],
    /// Its first byte on the storage.
    offset: u64,
}

impl<'a> Frame<'a> {
    /// Gives every operation with the number of its batch, in order. Returns the number of the last batch.
    ///
    /// # Errors
    ///
    /// Those of `take`, and [`Error::Damaged`] if these are no batches. A frame is written with all of each batch
    /// that it has: one that goes on to the end of the frame, without an end of its own, is a part of a batch, and
    /// of a batch there must not be a part.
    pub(crate) fn each(
        &self,
        mut take: impl FnMut(u64, Operation<'a>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let not_a_batch = || Error::Damaged {
            what: "a batch in the log".to_owned(),
            offset: self.offset,
        };
        let mut operations = Operations::new(self.operations);
        let mut seq = self.first_seq;
        let mut is_ended = true;
        while let Some(operation) = operations.take().map_err(|_| not_a_batch())? {
            is_ended = operation == Operation::End;
            if is_ended {
                seq += u64::from(!self.is_carried);
            } else {
                take(seq, operation)?;
            }
        }
        match (self.is_carried, is_ended) {
            (true, _) => Ok(seq),
            (false, true) => seq.checked_sub(1).ok_or_else(not_a_batch),
            (false, false) => Err(not_a_batch()),
        }
    }
}

/// The reading end, from the tail to the last whole frame.
pub(crate) struct Reader<'a> {
    storage: &'a dyn Storage,
    geometry: Geometry,
    /// Where the next frame would be.
    position: u64,
    tail: u64,
    /// Of the last frame read, or of the first one at least.
    opening: u32,
    /// Of every frame from `durable` on, at least: the superblock was written before them.
    opening_beyond: u32,
    /// Of the superblock that was found.
    generation: u64,
    /// The log is durable up to here, as the superblock says.
    durable: u64,
    /// The same, as frames say that were read.
    durable_by_frames: u64,
    window: Aligned,
    window_at: u64,
    window_blocks: u64,
}

impl<'a> Reader<'a> {
    /// Reads from the tail of a superblock on.
    pub(crate) fn new(storage: &'a dyn Storage, superblock: &Superblock) -> Reader<'a> {
        let Superblock {
            geometry,
            log_tail: tail,
            generation,
            opening_at_tail,
            opening,
            log_durable,
            ..
        } = *superblock;
        let (opening_at_tail, opening) = match is_planted(Bug::TrustsTheTail) {
            true => (0, 0),
            false => (opening_at_tail, opening),
        };
        Reader {
            storage,
            geometry,
            position: tail,
            tail,
            opening: opening_at_tail,
            opening_beyond: opening,
            generation,
            durable: log_durable,
            durable_by_frames: tail,
            window: Aligned::zeroed(WINDOW_BYTES),
            window_at: 0,
            window_blocks: 0,
        }
    }

    /// Makes `blocks` blocks from `position` on be in the window; returns where they begin there.
    fn fill(&mut self, position: u64, blocks: u64) -> Result<usize, Error> {
        let has =
            self.window_at <= position && position + blocks <= self.window_at + self.window_blocks;
        if !has {
            let ring = self.geometry.log_blocks;
            let wanted = blocks.max((WINDOW_BYTES / BLOCK_BYTES) as u64).min(ring);
            self.window.reserve(wanted as usize * BLOCK_BYTES);
            let before_end = (ring - position % ring).min(wanted);
            let cut = before_end as usize * BLOCK_BYTES;
            let end = wanted as usize * BLOCK_BYTES;
            let offset = self.geometry.log_offset(position);
            let first = self.storage.read(offset, &mut self.window[..cut]);
            first.at("reading the log", offset)?;
            if cut < end {
                let second = self.storage.read(LOG_OFFSET, &mut self.window[cut..end]);
                second.at("reading the log", LOG_OFFSET)?;
            }
            (self.window_at, self.window_blocks) = (position, wanted);
        }
        Ok((position - self.window_at) as usize * BLOCK_BYTES)
    }

    /// The header at `position`, if a whole frame of this index is there that may follow.
    fn whole(&mut self, position: u64) -> Result<Option<Header>, Error> {
        if position >= self.tail + self.geometry.log_blocks {
            return Ok(None);
        }
        let follows = |header: &Header, opening: u32| {
            let is_numbered = header.first_seq > 0 || header.is_carried;
            let is_counted = is_numbered && header.first_seq < COUNTS_MAX;
            let is_of_this_lap = header.position == position || is_planted(Bug::TakesOlderLaps);
            is_of_this_lap && header.opening >= opening && is_counted
        };
        // A frame that was not taken, because a part of it had gone, is whole again where a write that was cut
        // has put the same there, zeroes for instance. It has not been heard of since an earlier opening.
        let opening = match position >= self.durable {
            true => self.opening.max(self.opening_beyond),
            false => self.opening,
        };
        let header = self
            .header(position)?
            .filter(|header| follows(header, opening));
        match header {
            Some(header) if self.is_whole(position, &header)? => Ok(Some(header)),
            _ => Ok(None),
        }
    }

    /// What looks like the header of a frame of this index in the block of a position.
    fn header(&mut self, position: u64) -> Result<Option<Header>, Error> {
        let at = self.fill(position, 1)?;
        Ok(Header::decode(
            self.geometry.id,
            &self.window[at..at + BLOCK_BYTES],
        ))
    }

    /// Checks a frame that begins in the block of a position.
    fn is_whole(&mut self, position: u64, header: &Header) -> Result<bool, Error> {
        let blocks = header.blocks();
        if blocks > self.geometry.log_blocks {
            return Ok(false);
        }
        let at = self.fill(position, blocks)?;
        let frame = &self.window[at..at + blocks as usize * BLOCK_BYTES];
        let is_right = crc32c::crc32c(&frame[8..]).to_le_bytes() == frame[4..8];
        Ok(is_right || is_planted(Bug::BelievesFrames))
    }

    /// The next frame; `None` at the end.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if what is missing had been durable.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let position = self.position;
        let Some(header) = self.whole(position)? else {
            self.search_for_proof()?;
            return Ok(None);
        };
        self.position += header.blocks();
        self.opening = header.opening;
        self.durable_by_frames = self.durable_by_frames.max(header.durable_below);
        let start = (position - self.window_at) as usize * BLOCK_BYTES;
        let frame = &self.window[start..start + header.blocks() as usize * BLOCK_BYTES];
        Ok(Some(header.frame(&self.geometry, frame)))
    }

    /// What was read is durable up to here, as far as anything says. Of the rest it is not known.
    pub(crate) fn known_durable(&self) -> u64 {
        self.durable.max(self.durable_by_frames).min(self.position)
    }

    /// The superblock proves that the device has lost what it had promised, if it says that more of the
    /// log was durable. So does a whole frame near the end, if the end was durable already when it was
    /// written, or if there was a newer superblock than the one that was found.
    fn search_for_proof(&mut self) -> Result<(), Error> {
        let end = self.position;
        if end < self.durable {
            return Err(self.lost(self.lost_log(self.durable)));
        }
        let last = end + PROOF_BLOCKS.min(self.geometry.log_blocks);
        for position in end..last {
            let Some(header) = self.header(position)? else {
                continue;
            };
            let beyond = header.position == position
                && header.position < self.tail + self.geometry.log_blocks
                && header.opening >= self.opening
                && header.durable_below > end;
            let is_newer = header.generation > self.generation;
            if (beyond || is_newer) && self.is_whole(position, &header)? {
                let what = match is_newer {
                    true => "the newest superblock: the log knows of a later one".to_owned(),
                    false => self.lost_log(header.durable_below),
                };
                return Err(self.lost(what));
            }
        }
        Ok(())
    }

    fn lost_log(&self, durable: u64) -> String {
        let end = self.position;
        format!("the log, which was durable up to block {durable} and ends at {end}")
    }

    fn lost(&self, what: String) -> Error {
        let offset = self.geometry.log_offset(self.position);
        Error::Damaged { what, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{END, push_operation};
    use crate::storage::memory::MemoryStorage;

    const GEOMETRY: Geometry = Geometry {
        id: 42,
        log_blocks: 64,
        segment_bytes: 64 << 10,
    };

    fn storage() -> MemoryStorage {
        let len_bytes = GEOMETRY.segments_offset() as usize;
        MemoryStorage::with_content(vec![0; len_bytes])
    }

    fn superblock(log_tail: u64, generation: u64) -> Superblock {
        Superblock {
            geometry: GEOMETRY,
            generation,
            opening: 1,
            log_tail,
            seq_at_tail: 0,
            opening_at_tail: 0,
            log_durable: 0,
            checkpoint: Vec::new(),
            checkpoint_bytes: 0,
            checkpoint_crc: 0,
        }
    }

    fn batch(number: u64, bytes: usize) -> Vec<u8> {
        let mut operations = Vec::new();
        let value = vec![number as u8; bytes];
        push_operation(
            &mut operations,
            Operation::Put {
                key: &number.to_be_bytes(),
                value: &value,
            },
        );
        operations
    }

    fn read_all(storage: &MemoryStorage, tail: u64) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let mut reader = Reader::new(storage, &superblock(tail, 9));
        let mut all = Vec::new();
        while let Some(frame) = reader.next()? {
            all.push((frame.first_seq, frame.operations.to_vec()));
        }
        Ok(all)
    }

    #[test]
    fn what_was_written_is_read_round_the_ring() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        let mut expected = Vec::new();
        for number in 1..=100 {
            let operations = batch(number, 6000);
            log.append(number, &operations, &[]);
            log.write_out(&storage, true).unwrap();
            expected.push((number, operations));
            // Two blocks each: the last ten are needed.
            log.release(log.head().saturating_sub(20), 9);
        }
        let read = read_all(&storage, log.tail()).unwrap();
        assert_eq!(read, expected[90..]);
        assert_eq!(log.head(), 200);
    }

    #[test]
    fn operations_have_the_number_of_their_batch_and_a_batch_without_an_end_is_none() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        log.append(7, &batch(1, 1), &[END]);
        log.append(8, &[], &[END]);
        log.append(9, &[batch(2, 1), batch(3, 1)].concat(), &[END]);
        log.write_out(&storage, false).unwrap();
        log.carry(9, &batch(4, 1));
        log.write_out(&storage, false).unwrap();
        log.append(10, &batch(5, 1), &[END]);
        log.append(11, &batch(6, 1), &[]);
        log.write_out(&storage, false).unwrap();
        let mut reader = Reader::new(&storage, &superblock(0, 9));
        let mut next = || {
            let mut seqs = Vec::new();
            let frame = reader.next().unwrap().expect("three frames");
            let last = frame.each(|seq, operation| {
                assert!(matches!(operation, Operation::Put { .. }));
                seqs.push(seq);
                Ok(())
            });
            (seqs, last)
        };
        assert_eq!(next(), (vec![7, 9, 9], Ok(9)));
        assert_eq!(next(), (vec![9], Ok(9)));
        let (seqs, last) = next();
        assert_eq!(seqs, [10, 11]);
        let damaged = Error::Damaged {
            what: "a batch in the log".to_owned(),
            offset: LOG_OFFSET + 2 * BLOCK_BYTES as u64,
        };
        assert_eq!(last, Err(damaged));
    }

    #[test]
    fn an_older_lap_and_an_older_opening_are_not_read() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        for number in 1..=8 {
            log.append(number, &batch(number, 10), &[]);
            log.write_out(&storage, false).unwrap();
        }
        // A power cut that left block 3 unwritten; what follows it is not part of the log.
        let mut content = storage.content();
        let at = LOG_OFFSET as usize + 3 * BLOCK_BYTES;
        content[at..at + BLOCK_BYTES].fill(0);
        let storage = MemoryStorage::with_content(content);
        assert_eq!(read_all(&storage, 0).unwrap().len(), 3);
        let mut log = Log::new(GEOMETRY, 2, 0, 3);
        log.append(4, &batch(4, 20), &[]);
        log.write_out(&storage, true).unwrap();
        let read = read_all(&storage, 0).unwrap();
        assert_eq!(read.len(), 4, "the old frames at 4.. are of opening 1");
        assert_eq!(read[3], (4, batch(4, 20)));
    }

    #[test]
    fn a_frame_that_was_durable_and_is_missing_is_damage() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        for number in 1..=5 {
            log.append(number, &batch(number, 10), &[]);
            log.write_out(&storage, true).unwrap();
        }
        for lost in 0..4 {
            let mut content = storage.content();
            content[LOG_OFFSET as usize + lost * BLOCK_BYTES + 100] ^= 1;
            let damaged = MemoryStorage::with_content(content);
            assert!(
                matches!(read_all(&damaged, 0), Err(Error::Damaged { .. })),
                "frame {lost}"
            );
        }
        // Nobody knows of the last one whether it had been durable: it may have been torn.
        let mut content = storage.content();
        content[LOG_OFFSET as usize + 4 * BLOCK_BYTES + 100] ^= 1;
        let torn = MemoryStorage::with_content(content);
        assert_eq!(read_all(&torn, 0).unwrap().len(), 4);
    }

    #[test]
    fn a_superblock_that_was_not_the_newest_is_found_out() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        for number in 1..=100 {
            log.append(number, &batch(number, 10), &[]);
            log.write_out(&storage, true).unwrap();
            log.release(log.head(), 2 + number);
        }
        // The superblock of generation 9 said that the log is needed from block 7 on; the ring has
        // come round since.
        assert!(matches!(read_all(&storage, 7), Err(Error::Damaged { .. })));
        let mut newest = Reader::new(&storage, &superblock(100, 102));
        assert!(
            newest.next().unwrap().is_none(),
            "nothing is newer than that"
        );
    }

    #[test]
    fn a_log_that_ends_before_what_the_superblock_knows_to_be_durable_is_found_out() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        for number in 1..=3 {
            log.append(number, &batch(number, 100), &[]);
            log.write_out(&storage, false).unwrap();
        }
        storage.sync().unwrap();
        // None of the frames says that one before it is durable.
        storage.rot(LOG_OFFSET + BLOCK_BYTES as u64 + 70, 1);
        assert_eq!(read_all(&storage, 0).unwrap().len(), 1);
        for (durable, is_lost) in [(1, false), (2, true), (3, true)] {
            let known = Superblock {
                log_durable: durable,
                ..superblock(0, 9)
            };
            let mut reader = Reader::new(&storage, &known);
            assert!(reader.next().unwrap().is_some());
            assert_eq!(reader.next().is_err(), is_lost, "{durable}");
        }
    }

    #[test]
    fn one_durable_write_a_commit_and_a_sync_where_something_waited() {
        let storage = storage();
        let mut log = Log::new(GEOMETRY, 1, 0, 0);
        log.append(1, &batch(1, 10), &[]);
        log.write_out(&storage, true).unwrap();
        assert_eq!((storage.counts().writes, storage.counts().flushes), (1, 1));
        assert_eq!(storage.counts().written_bytes, BLOCK_BYTES as u64);
        log.append(2, &batch(2, 10), &[]);
        log.write_out(&storage, false).unwrap();
        assert_eq!(log.durable_below(), 1);
        log.append(3, &batch(3, 10), &[]);
        log.write_out(&storage, true).unwrap();
        assert_eq!((storage.counts().writes, storage.counts().flushes), (3, 2));
        assert_eq!(log.durable_below(), 3);
        // Whatever a power cut leaves, all three are there.
        let after = storage.after_power_cut(&mut || 0);
        assert_eq!(read_all(&after, 0).unwrap().len(), 3);
    }
}
