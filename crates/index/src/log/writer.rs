//! Writer of the log. It must never overwrite blocks that are still needed.

use super::frame::{HEADER_BYTES, Header};
use crate::error::{At, Error};
use crate::layout::{Geometry, LOG_OFFSET};
use crate::planted::{Bug, is_planted};
use crate::rings::{RingLocation, Rings};
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up, sync};

/// Number of bytes beyond which no further batch is added to a frame.
const FRAME_BYTES: usize = 256 << 10;
/// Maximum number of blocks that are rewritten in one step.
const AGAIN_BLOCKS: u64 = 256;
/// Number of never-written blocks that are filled with zeroes together, before a durable write. A
/// file system marks a block as used on its first write, which makes a durable write more
/// expensive; filling blocks ahead incurs that cost once for many commits. A frame of at least a
/// quarter of this number of blocks is written without filling, because it spreads the cost over
/// its own blocks.
const ZEROED_BLOCKS: u64 = 256;

/// Writer of the log.
#[derive(Debug)]
pub(crate) struct Log {
    geometry: Geometry,
    opening: u32,
    rings: Rings,
    /// The blocks of the current ring from this position on have never been written. Used until the
    /// end of the first lap through the ring.
    unwritten_from: u64,
    /// Position of the next frame, in blocks. The position only grows.
    head: u64,
    /// Position of the oldest block that is still needed, as in the durable superblock.
    tail: u64,
    /// Position before which the whole log survives a power cut.
    durable_below: u64,
    /// Position at which this incarnation began to write the log. Earlier incarnations wrote the
    /// log before this position, and this incarnation has only read that part.
    read_below: u64,
    frame: Aligned,
    /// End of the batches in `frame`; [`HEADER_BYTES`] if there are no batches.
    filled: usize,
    first_seq: u64,
    /// Generation of the valid superblock.
    generation: u64,
    is_relogged: bool,
}

impl Log {
    /// Creates a writer for a log that occupies `rings`, continues at `head`, and is needed from
    /// `tail` on.
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
            is_relogged: false,
        }
    }

    /// Returns the position of the next frame.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Returns the position from which the log is needed.
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    /// Returns the position before which the whole log is durable.
    pub(crate) fn durable_below(&self) -> u64 {
        self.durable_below
    }

    /// Notes that the log was read up to `head`. The log is durable up to `known_durable`; whether
    /// the rest is durable is unknown.
    pub(crate) fn go_on_from(&mut self, head: u64, known_durable: u64) {
        assert!(
            self.head <= head && !self.has_pending(),
            "frames follow each other"
        );
        self.head = head;
        self.read_below = head;
        self.durable_below = self.durable_below.max(known_durable.min(head));
    }

    /// Releases the log before `tail`, and continues in `rings`. The superblock with the generation
    /// `generation` must already name this tail and these rings durably.
    pub(crate) fn release(&mut self, tail: u64, rings: Rings, generation: u64) {
        assert!(self.tail <= tail && tail <= self.head, "a tail that exists");
        self.tail = tail;
        self.go_on_in(rings, generation);
    }

    /// Continues the log in the last of `rings`. Both superblocks must already name that ring
    /// durably; `generation` is that of the newer superblock.
    pub(crate) fn go_on_in(&mut self, rings: Rings, generation: u64) {
        let is_another = rings.current() != self.rings.current();
        if is_another {
            assert!(self.is_durable(), "a ring begins where all is durable");
            self.unwritten_from = first_unwritten(&rings, self.head);
        }
        self.rings = rings;
        self.generation = generation;
    }

    /// Returns the rings that the log occupies.
    pub(crate) fn rings(&self) -> &Rings {
        &self.rings
    }

    /// Returns the position at which the needed part of the log begins in the current ring. If
    /// nothing in the current ring is needed, this is the next position to be written.
    fn begins_at(&self) -> u64 {
        self.tail.max(self.rings.current().from)
    }

    /// Returns the number of needed blocks in the current ring.
    pub(crate) fn used_blocks(&self) -> u64 {
        self.head - self.begins_at()
    }

    /// Returns the number of blocks of the current ring.
    pub(crate) fn ring_blocks(&self) -> u64 {
        self.rings.current().blocks
    }

    /// Returns the number of blocks of the current ring that remain free once the pending frame is
    /// written.
    pub(crate) fn free_blocks(&self) -> u64 {
        let pending = if self.has_pending() {
            self.pending_blocks()
        } else {
            0
        };
        self.ring_blocks()
            .saturating_sub(self.used_blocks() + pending)
    }

    /// Returns true if all appended batches survive a power cut.
    pub(crate) fn is_durable(&self) -> bool {
        !self.has_pending() && self.durable_below == self.head
    }

    /// Returns true if batches or relogged records wait to be written.
    pub(crate) fn has_pending(&self) -> bool {
        self.filled > HEADER_BYTES
    }

    fn pending_blocks(&self) -> u64 {
        (round_up(self.filled) / BLOCK_BYTES) as u64
    }

    /// Returns true if a batch of `bytes` bytes should not be added to the pending frame.
    pub(crate) fn is_full_for(&self, bytes: usize) -> bool {
        self.has_pending() && self.filled + bytes > FRAME_BYTES
    }

    /// Appends a batch. Its sequence number, `seq`, must be one above that of the previous batch.
    pub(crate) fn append(&mut self, seq: u64, operations: &[u8], end: &[u8]) {
        if !self.has_pending() {
            self.first_seq = seq;
            self.is_relogged = false;
        }
        assert!(!self.is_relogged, "batches and relogged records are apart");
        self.push(operations);
        self.push(end);
    }

    /// Relogs records that are in the log already and would otherwise be overwritten. `seq` is the
    /// sequence number of the last batch. All pending batches must have been written.
    pub(crate) fn relog(&mut self, seq: u64, operations: &[u8]) {
        if !self.has_pending() {
            self.first_seq = seq;
            self.is_relogged = true;
        }
        assert!(self.is_relogged, "batches and relogged records are apart");
        self.push(operations);
    }

    fn push(&mut self, bytes: &[u8]) {
        let end = self.filled + bytes.len();
        self.frame.reserve(round_up(end));
        self.frame[self.filled..end].copy_from_slice(bytes);
        self.filled = end;
    }

    /// Writes the pending frame. If `durable` is true, all appended batches are durable after the
    /// call; otherwise they become durable with the next durable call.
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
                is_relogged: self.is_relogged,
                tail: self.tail,
                place: self.rings.current().place,
                ring_blocks: self.ring_blocks(),
                bytes: HEADER_BYTES,
            };
            header.encode(&self.geometry, &mut self.frame[..bytes]);
            // A durable write does not make earlier writes durable.
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

    /// Rewrites the part of the log that was read but may not be durable, with the content that was
    /// read. After a failed sync the page cache may hold content that is not on the device but is
    /// marked as clean, so that another sync alone would not write it (fsync(2) of Linux reports a
    /// failed write-back once and keeps the pages as clean pages).
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

    /// Fills the block at the end of the log with zeroes, so that no frame begins there. An earlier
    /// incarnation may have left a torn frame in that block. If a new frame is written there and is
    /// torn too, the bytes that it has written could complete the old frame. Opening would reject
    /// the old frame by its incarnation; a rebuild without superblocks would not.
    pub(crate) fn end_here(&self, storage: &dyn Storage) -> Result<(), Error> {
        if self.free_blocks() == 0 {
            // The ring is full: the next block is that of the tail.
            return Ok(());
        }
        let offset = self.rings.offset_of(&self.geometry, self.head);
        let nothing = Aligned::zeroed(BLOCK_BYTES);
        let written = storage.write_durable(offset, &nothing);
        written.at("writing the log", offset)
    }

    /// Fills never-written blocks with zeroes, if the next frame, of `blocks` blocks, reaches them.
    fn prepare(&mut self, storage: &dyn Storage, blocks: u64) -> Result<(), Error> {
        let ring = self.rings.current();
        // Position at which the first lap of the ring ends.
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

/// Returns the position in the log from which blocks of the current ring may never have been
/// written. Returns `u64::MAX` for a ring at the front of the storage, because all blocks of this
/// ring were written when the index was created.
fn first_unwritten(rings: &Rings, head: u64) -> u64 {
    match rings.current().place {
        RingLocation::Front => u64::MAX,
        RingLocation::Segments(_) => head,
    }
}
