//! The reading end of the log.

use super::frame::{Frame, Header};
use crate::error::{At, Error};
use crate::layout::{Geometry, Superblock};
use crate::planted::{Bug, is_planted};
use crate::rings::Rings;
use crate::storage::{Aligned, BLOCK_BYTES, Storage};

/// Bytes read at a time: as much as makes a device busy on all its channels.
const WINDOW_BYTES: usize = 4 << 20;
/// How far beyond its end the log is searched for proof that something was lost.
const PROOF_BLOCKS: u64 = 2048;

/// The reading end, from the tail to the last whole frame.
pub(crate) struct Reader<'a> {
    storage: &'a dyn Storage,
    geometry: Geometry,
    rings: Rings,
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

    /// Makes `blocks` blocks from `position` on, all of one ring, be in the window; returns where
    /// they begin there.
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

    /// True if the log may have got as far as this position.
    fn may_be(&self, position: u64) -> bool {
        let ring = self.rings.at(position).0;
        position < self.tail.max(ring.from).saturating_add(ring.blocks)
    }

    /// The header at `position`, if a whole frame of this index is there that may follow.
    fn whole(&mut self, position: u64) -> Result<Option<Header>, Error> {
        if !self.may_be(position) {
            return Ok(None);
        }
        let follows = |header: &Header, opening: u32| {
            let is_numbered = header.first_seq > 0 || header.is_carried;
            let is_of_this_lap = header.position == position || is_planted(Bug::TakesOlderLaps);
            is_of_this_lap && header.opening >= opening && is_numbered
        };
        // A frame that was not taken, because a part of it had gone, is whole again where a write
        // that was cut has put the same there, zeroes for instance. It has not been heard of since
        // an earlier opening.
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
        let (ring, ring_end) = self.rings.at(position);
        if blocks > ring.blocks.min(ring_end - position) {
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
        let start = (position - self.window_at) as usize * BLOCK_BYTES;
        let frame = &self.window[start..start + header.blocks() as usize * BLOCK_BYTES];
        Ok(Some(header.frame(&self.geometry, frame)))
    }

    /// The superblock proves that the device has lost what it had promised, if it says that more of
    /// the log was durable. So does a whole frame near the end, if the end was durable already when
    /// it was written, or if there was a newer superblock than the one that was found.
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
        let offset = self.rings.offset_of(&self.geometry, self.position);
        Error::Damaged { what, offset }
    }
}
