//! The writing end of the log.

use super::frame::{HEADER_BYTES, Header};
use crate::error::{At, Error};
use crate::layout::{Geometry, LOG_OFFSET};
use crate::planted::{Bug, is_planted};
use crate::rings::{Place, Rings};
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up, sync};

/// A frame that is this long takes no further batch.
const FRAME_BYTES: usize = 256 << 10;
/// Blocks that are written again at a time.
const AGAIN_BLOCKS: u64 = 256;
/// Blocks that were never written are filled with zeroes before a durable write, so many at a time.
/// A file system notes that a block is in use when it is written first, which costs a durable write
/// more than its blocks; this way it is paid once for many commits. A frame of a quarter of that
/// pays for itself.
const ZEROED_BLOCKS: u64 = 256;

/// The writing end.
#[derive(Debug)]
pub(crate) struct Log {
    geometry: Geometry,
    opening: u32,
    rings: Rings,
    /// Blocks of the current ring from this position on, to the end of its first lap, were never
    /// written.
    unwritten_from: u64,
    /// Where the next frame goes, in blocks; it only grows.
    head: u64,
    /// The oldest block that is still needed, as the durable superblock has it.
    tail: u64,
    /// Everything before this survives a power cut.
    durable_below: u64,
    /// Everything before this was read, not written by this opening.
    read_below: u64,
    frame: Aligned,
    /// End of the batches in `frame`; [`HEADER_BYTES`] without any.
    filled: usize,
    first_seq: u64,
    /// Of the superblock that is valid.
    generation: u64,
    is_carried: bool,
}

impl Log {
    /// A log in these rings that goes on at `head`; what is needed of it begins at `tail`.
    pub(crate) fn new(geometry: Geometry, opening: u32, rings: Rings, tail: u64, head: u64) -> Log {
        Log {
            geometry,
            opening,
            unwritten_from: first_unwritten(&rings, head),
            rings,
            head,
            tail,
            durable_below: head,
            read_below: head,
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

    /// Everything before `head` stands in the log: it was read. Before `known_durable` it is
    /// durable, and of the rest that is not known.
    pub(crate) fn go_on_from(&mut self, head: u64, known_durable: u64) {
        assert!(
            self.head <= head && !self.has_pending(),
            "frames follow each other"
        );
        self.head = head;
        self.read_below = head;
        self.durable_below = self.durable_below.max(known_durable.min(head));
    }

    /// Nothing before `tail` is needed any more, and the log is in these rings; the superblock of
    /// this generation says so durably.
    pub(crate) fn release(&mut self, tail: u64, rings: Rings, generation: u64) {
        assert!(self.tail <= tail && tail <= self.head, "a tail that exists");
        self.tail = tail;
        self.go_on_in(rings, generation);
    }

    /// The log goes on in the last of these rings. Both superblocks say so durably, the later of
    /// them of this generation.
    pub(crate) fn go_on_in(&mut self, rings: Rings, generation: u64) {
        let is_another = rings.current() != self.rings.current();
        if is_another {
            assert!(self.is_durable(), "a ring begins where all is durable");
            self.unwritten_from = first_unwritten(&rings, self.head);
        }
        self.rings = rings;
        self.generation = generation;
    }

    /// Where the log is.
    pub(crate) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// The first position of the current ring that is needed, or was not yet written.
    fn begins_at(&self) -> u64 {
        self.tail.max(self.rings.current().from)
    }

    /// Blocks of the current ring that are needed.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.head - self.begins_at()
    }

    /// Blocks of the current ring.
    pub(crate) fn ring_blocks(&self) -> u64 {
        self.rings.current().blocks
    }

    /// Blocks that frames may still take.
    pub(crate) fn free_blocks(&self) -> u64 {
        let pending = if self.has_pending() {
            self.pending_blocks()
        } else {
            0
        };
        self.ring_blocks()
            .saturating_sub(self.used_blocks() + pending)
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

    /// Adds records that stand in the log already and would be overwritten. `seq` is the number of
    /// the last batch. Whatever waits must have been written.
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

    /// Writes what waits. After this, all that was appended is durable if `durable`; else it will
    /// be with the next durable one.
    pub(crate) fn write_out(&mut self, storage: &dyn Storage, durable: bool) -> Result<(), Error> {
        if self.has_pending() {
            let blocks = self.pending_blocks();
            assert!(
                self.used_blocks() + blocks <= self.ring_blocks(),
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
                tail: self.tail,
                place: self.rings.current().place,
                ring_blocks: self.ring_blocks(),
                bytes: HEADER_BYTES,
            };
            header.encode(&self.geometry, &mut self.frame[..bytes]);
            // A durable write says nothing of what was written before it.
            let alone = durable && self.durable_below == self.head;
            if alone {
                self.prepare(storage, blocks)?;
            }
            self.write_blocks(storage, bytes, alone)?;
            self.unwritten_from = self.unwritten_from.max(self.head + blocks);
            self.head += blocks;
            self.filled = HEADER_BYTES;
            if alone {
                self.durable_below = self.head;
            }
        }
        if durable && self.durable_below < self.head {
            self.write_again(storage)?;
            sync(storage).at("making the log durable", LOG_OFFSET)?;
            self.durable_below = self.head;
        }
        Ok(())
    }

    /// Writes what was read and may not be durable once more, as it is read. Where a sync had
    /// failed, the system may have in its cache what is not on the device and take it for saved: a
    /// sync alone would save nothing of it (fsync(2) of Linux reports a failed write-back once and
    /// keeps the pages as clean ones).
    fn write_again(&self, storage: &dyn Storage) -> Result<(), Error> {
        if is_planted(Bug::BelievesTheCache) {
            return Ok(());
        }
        let mut at = self.durable_below;
        let mut piece = Aligned::default();
        while at < self.read_below {
            let (ring, end) = self.rings.at(at);
            let before_end = (ring.blocks - at % ring.blocks).min(end - at);
            let blocks = AGAIN_BLOCKS.min(before_end).min(self.read_below - at);
            let bytes = blocks as usize * BLOCK_BYTES;
            piece.reserve(bytes);
            let (offset, piece) = (ring.offset_of(&self.geometry, at), &mut piece[..bytes]);
            storage.read(offset, piece).at("reading the log", offset)?;
            storage.write(offset, piece).at("writing the log", offset)?;
            at += blocks;
        }
        Ok(())
    }

    /// Makes sure that no frame begins at the end. One may have been written there by an opening
    /// whose last write was cut, and not be whole; a write of this one that is cut as well could
    /// make it whole, since parts of both are the same. Opening would know it by its number; a
    /// rebuild without superblocks would not.
    pub(crate) fn end_here(&self, storage: &dyn Storage) -> Result<(), Error> {
        if self.free_blocks() == 0 {
            // The ring is full: what stands there is its tail.
            return Ok(());
        }
        let offset = self.rings.offset_of(&self.geometry, self.head);
        let nothing = Aligned::zeroed(BLOCK_BYTES);
        let written = storage.write_durable(offset, &nothing);
        written.at("writing the log", offset)
    }

    /// Fills blocks behind a frame of so many blocks with zeroes, if the frame will be in blocks
    /// that were never written.
    fn prepare(&mut self, storage: &dyn Storage, blocks: u64) -> Result<(), Error> {
        let ring = self.rings.current();
        // Where the first lap ends.
        let end = ring.from.saturating_add(ring.blocks);
        let is_reached = self.unwritten_from < (self.head + blocks).min(end);
        if !is_reached || blocks >= ZEROED_BLOCKS / 4 {
            return Ok(());
        }
        let mut at = self.unwritten_from;
        let to = (self.head + ZEROED_BLOCKS).min(end);
        let zeroes = Aligned::zeroed((to - at) as usize * BLOCK_BYTES);
        while at < to {
            let before_end = ring.blocks - at % ring.blocks;
            let piece = before_end.min(to - at);
            let offset = ring.offset_of(&self.geometry, at);
            let written = storage.write(offset, &zeroes[..piece as usize * BLOCK_BYTES]);
            written.at("preparing the log", offset)?;
            at += piece;
        }
        self.unwritten_from = to;
        Ok(())
    }

    fn write_blocks(
        &self,
        storage: &dyn Storage,
        bytes: usize,
        durable: bool,
    ) -> Result<(), Error> {
        let ring = self.rings.current();
        let before_end = (ring.blocks - self.head % ring.blocks) as usize * BLOCK_BYTES;
        let (first, second) = self.frame[..bytes].split_at(bytes.min(before_end));
        for (position, part) in [
            (self.head, first),
            (self.head + (first.len() / BLOCK_BYTES) as u64, second),
        ] {
            let offset = ring.offset_of(&self.geometry, position);
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

/// From which position on blocks of the current ring may never have been written. The front was
/// prepared when the index was made.
fn first_unwritten(rings: &Rings, head: u64) -> u64 {
    match rings.current().place {
        Place::Front => u64::MAX,
        Place::Segments(_) => head,
    }
}
