//! Reader of the log, for replay and verification.

use super::frame::{Frame, Header};
use crate::error::{At, Error};
use crate::layout::{Geometry, Superblock};
use crate::planted::{Bug, is_planted};
use crate::rings::Rings;
use crate::storage::{Aligned, BLOCK_BYTES, Storage};

/// Number of bytes read at a time, enough to keep all channels of a device busy.
const WINDOW_BYTES: usize = 4 << 20;
/// Maximum number of blocks after the end of the log that are searched for proof of a loss.
const PROOF_BLOCKS: u64 = 2048;

/// Reader of the frames from the tail to the last intact frame.
pub(crate) struct Reader<'a> {
    storage: &'a dyn Storage,
    geometry: Geometry,
    rings: Rings,
    /// Position of the next frame, if there is one.
    position: u64,
    tail: u64,
    /// Incarnation of the last frame read; before any frame is read, the minimum incarnation of the
    /// first frame.
    opening: u32,
    /// Minimum incarnation of every frame at or after `durable`. When the superblock was written,
    /// the log was durable up to `durable`. So a valid frame from that position on has the
    /// incarnation in the superblock or a later one.
    opening_beyond: u32,
    /// Generation of the superblock that was found.
    generation: u64,
    /// Position up to which the log is durable, according to the superblock.
    durable: u64,
    window: Aligned,
    window_at: u64,
    window_blocks: u64,
}

impl<'a> Reader<'a> {
    /// Creates a reader that begins at the tail in a superblock.
    pub(crate) fn new(storage: &'a dyn Storage, superblock: &Superblock) -> Reader<'a> {
        let Superblock {
            geometry,
            log_tail: tail,
            generation,
            opening_at_tail,
            opening,
            log_durable,
            ref rings,
            ..
        } = *superblock;
        let (opening_at_tail, opening) = match is_planted(Bug::TrustsTheTail) {
            true => (0, 0),
            false => (opening_at_tail, opening),
        };
        Reader {
            storage,
            geometry,
            rings: rings.clone(),
            position: tail,
            tail,
            opening: opening_at_tail,
            opening_beyond: opening,
            generation,
            durable: log_durable,
            window: Aligned::zeroed(WINDOW_BYTES),
            window_at: 0,
            window_blocks: 0,
        }
    }

    /// Makes the window hold `blocks` blocks from `position` on, and reads them if needed. All of
    /// these blocks must be in one ring. Returns their offset in the window.
    fn fill(&mut self, position: u64, blocks: u64) -> Result<usize, Error> {
        let has =
            self.window_at <= position && position + blocks <= self.window_at + self.window_blocks;
        if !has {
            let (ring, ring_end) = self.rings.at(position);
            let wanted = blocks.max((WINDOW_BYTES / BLOCK_BYTES) as u64);
            let wanted = wanted.min(ring.blocks).min(ring_end - position);
            self.window.reserve(wanted as usize * BLOCK_BYTES);
            let before_end = (ring.blocks - position % ring.blocks).min(wanted);
            let cut = before_end as usize * BLOCK_BYTES;
            let end = wanted as usize * BLOCK_BYTES;
            let offset = ring.offset_of(&self.geometry, position);
            let first = self.storage.read(offset, &mut self.window[..cut]);
            first.at("reading the log", offset)?;
            if cut < end {
                let offset = ring.range(&self.geometry).start;
                let second = self.storage.read(offset, &mut self.window[cut..end]);
                second.at("reading the log", offset)?;
            }
            (self.window_at, self.window_blocks) = (position, wanted);
        }
        Ok((position - self.window_at) as usize * BLOCK_BYTES)
    }

    /// Returns true if the log can have grown to `position` without overwriting blocks that are
    /// still needed.
    fn may_be(&self, position: u64) -> bool {
        let ring = self.rings.at(position).0;
        position < self.tail.max(ring.from).saturating_add(ring.blocks)
    }

    /// Returns the header of the frame at `position`, if that frame is intact, belongs to this
    /// index, and can be the next frame of the log.
    fn whole(&mut self, position: u64) -> Result<Option<Header>, Error> {
        if !self.may_be(position) {
            return Ok(None);
        }
        let follows = |header: &Header, opening: u32| {
            let is_numbered = header.first_seq > 0 || header.is_relogged;
            let is_of_this_lap = header.position == position || is_planted(Bug::TakesOlderLaps);
            is_of_this_lap && header.opening >= opening && is_numbered
        };
        // At this position, an earlier incarnation may have left a torn frame that no opening has
        // accepted. A later torn write can make that frame intact again, because it can write the
        // missing bytes, for instance zeroes. So at and after the durable position, a frame is not
        // accepted if its incarnation is earlier than that of the superblock.
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

    /// Returns the header in the block at a position, if the block looks like the start of a frame
    /// of this index.
    fn header(&mut self, position: u64) -> Result<Option<Header>, Error> {
        let at = self.fill(position, 1)?;
        Ok(Header::decode(
            self.geometry.id,
            &self.window[at..at + BLOCK_BYTES],
        ))
    }

    /// Returns true if the frame that begins in the block of a position is intact.
    fn is_whole(&mut self, position: u64, header: &Header) -> Result<bool, Error> {
        let blocks = header.blocks();
        let (ring, ring_end) = self.rings.at(position);
        if blocks > ring.blocks.min(ring_end - position) {
            return Ok(false);
        }
        let at = self.fill(position, blocks)?;
        let frame = &self.window[at..at + blocks as usize * BLOCK_BYTES];
        let is_right = crc32c::crc32c(&frame[8..]).to_le_bytes() == frame[4..8];
        Ok(is_right || is_planted(Bug::BelievesFrames))
    }

    /// Returns the next frame; `None` at the end of the log.
    ///
    /// # Errors
    ///
    /// [`Error::Damaged`] if a part of the log that was durable, or the newest superblock, is
    /// missing.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, Error> {
        let position = self.position;
        let Some(header) = self.whole(position)? else {
            self.search_for_proof()?;
            return Ok(None);
        };
        self.position += header.blocks();
        self.opening = header.opening;
        let start = (position - self.window_at) as usize * BLOCK_BYTES;
        let frame = &self.window[start..start + header.blocks() as usize * BLOCK_BYTES];
        Ok(Some(header.frame(&self.geometry, frame)))
    }

    /// Searches for proof that the device has lost durable content. The superblock is a proof if it
    /// says that the log was durable beyond the end that was found. An intact frame near the end is
    /// a proof if it says that the log was durable beyond the end that was found, or if it names a
    /// newer superblock than the superblock that was found.
    fn search_for_proof(&mut self) -> Result<(), Error> {
        let end = self.position;
        if end < self.durable {
            return Err(self.lost(self.lost_log(self.durable)));
        }
        let last = end + PROOF_BLOCKS.min(self.rings.current().blocks);
        for position in end..last {
            let Some(header) = self.header(position)? else {
                continue;
            };
            let beyond = header.position == position
                && self.may_be(position)
                && header.opening >= self.opening
                && header.durable_below > end;
            let is_newer = header.generation > self.generation;
            if (beyond || is_newer) && self.is_whole(position, &header)? {
                let what = match is_newer {
                    true => "the newest superblock (the log refers to a newer one)".to_owned(),
                    false => self.lost_log(header.durable_below),
                };
                return Err(self.lost(what));
            }
        }
        Ok(())
    }

    fn lost_log(&self, durable: u64) -> String {
        let end = self.position;
        format!("the log, which was durable up to block {durable} but ends at {end}")
    }

    fn lost(&self, what: String) -> Error {
        let offset = self.rings.offset_of(&self.geometry, self.position);
        Error::Damaged { what, offset }
    }
}
