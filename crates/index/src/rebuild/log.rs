//! The log where no superblock says where it begins: every whole frame in the ring, and which of them
//! follow each other.

use super::Rebuilt;
use super::evidence::{WholeLog, read_what_can_be};
use crate::error::Error;
use crate::layout::{Geometry, LOG_OFFSET};
use crate::log::{Frame, Header};
use crate::node::Seq;
use crate::storage::{Aligned, BLOCK_BYTES, Storage};

/// Blocks read at a time.
const WINDOW_BLOCKS: u64 = 1024;

/// The frames of a log, in order.
pub(super) struct Frames {
    geometry: Geometry,
    all: Vec<Header>,
    whole_from: u64,
    last_seq: Seq,
}

/// What becomes of a frame and its operations.
pub(super) type TakeFrame<'a> = dyn FnMut(&Frame<'_>) -> Result<(), Error> + 'a;

impl Frames {
    /// Looks through the whole ring.
    pub(super) fn of(storage: &dyn Storage, geometry: Geometry, rebuilt: &mut Rebuilt) -> Frames {
        let mut all = found(storage, &geometry);
        // A position of an earlier lap has been written over, but for what is behind the newest frame.
        let newest = all.iter().max_by_key(|f| (f.opening, f.position)).copied();
        let (from, to) = newest.map_or((0, 0), |f| {
            let end = f.position + f.blocks();
            (end.saturating_sub(geometry.log_blocks), end)
        });
        all.retain(|frame| from <= frame.position && frame.position < to);
        all.sort_unstable_by_key(|frame| frame.position);
        // In the first lap it begins at 0; later with the first frame that has not been written over.
        let first = all.first().filter(|_| from > 0);
        let mut frames = Frames {
            geometry,
            all: Vec::new(),
            whole_from: first.map_or(0, |first| first.position),
            last_seq: 0,
        };
        let mut opening = 0;
        let mut expected = frames.whole_from;
        for frame in all {
            if frame.position < expected || frame.opening < opening {
                continue;
            }
            if frame.position > expected {
                let was_durable = frame.durable_below > expected || frame.opening > opening;
                if !was_durable {
                    break;
                }
                let at = LOG_OFFSET + expected % geometry.log_blocks * BLOCK_BYTES as u64;
                let missing = frame.position - expected;
                rebuilt.problem(format!("{missing} blocks of the log are damaged"), at);
                frames.whole_from = frame.position;
            }
            opening = frame.opening;
            expected = frame.position + frame.blocks();
            frames.all.push(frame);
        }
        frames.find_last(storage);
        rebuilt.log_frames = frames.all.len() as u64;
        frames
    }

    /// The number of the last batch is that of the last frame and as many as that has.
    fn find_last(&mut self, storage: &dyn Storage) {
        let Some(last) = self.all.last() else { return };
        let bytes = self.read(storage, last);
        let frame = bytes.as_ref().map(|b| last.frame(&self.geometry, b));
        let last_seq = frame.map(|frame| frame.each(|_, _| Ok(())));
        self.last_seq = last_seq.and_then(Result::ok).unwrap_or(last.first_seq);
    }

    fn read(&self, storage: &dyn Storage, frame: &Header) -> Option<Aligned> {
        read_frame(storage, &self.geometry, frame)
    }

    /// From where on the log has everything.
    pub(super) fn whole(&self) -> WholeLog {
        let first = self
            .all
            .iter()
            .find(|frame| frame.position >= self.whole_from);
        let first_seq = match first {
            // Carried records have the number of the batch before.
            Some(first) => first.first_seq + u64::from(first.is_carried),
            None => Seq::MAX,
        };
        WholeLog {
            from: self.whole_from,
            first_seq: if self.whole_from == 0 { 0 } else { first_seq },
        }
    }

    pub(super) fn last_seq(&self) -> Seq {
        self.last_seq
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Gives every frame, in order.
    pub(super) fn each(
        &self,
        storage: &dyn Storage,
        take: &mut TakeFrame<'_>,
    ) -> Result<(), Error> {
        for frame in &self.all {
            let bytes = self.read(storage, frame).ok_or_else(|| Error::Damaged {
                what: "a frame of the log, which was whole before".to_owned(),
                offset: LOG_OFFSET,
            })?;
            take(&frame.frame(&self.geometry, &bytes))?;
        }
        Ok(())
    }
}

/// All whole frames in the ring, in the order of places.
fn found(storage: &dyn Storage, geometry: &Geometry) -> Vec<Header> {
    let ring = geometry.log_blocks;
    let mut all = Vec::new();
    let mut window = Aligned::zeroed(WINDOW_BLOCKS as usize * BLOCK_BYTES);
    let mut block = 0;
    for start in (0..ring).step_by(WINDOW_BLOCKS as usize) {
        let end = (start + WINDOW_BLOCKS).min(ring);
        let bytes = (end - start) as usize * BLOCK_BYTES;
        let offset = LOG_OFFSET + start * BLOCK_BYTES as u64;
        read_what_can_be(storage, offset, &mut window[..bytes]);
        block = block.max(start);
        while block < end {
            let at = (block - start) as usize * BLOCK_BYTES;
            let header = Header::decode(geometry.id, &window[at..at + BLOCK_BYTES]);
            let header = header.filter(|h| h.position % ring == block && h.blocks() <= ring);
            match header.filter(|header| read_frame(storage, geometry, header).is_some()) {
                Some(header) => {
                    all.push(header);
                    block += header.blocks();
                }
                None => block += 1,
            }
        }
    }
    all
}

/// What the index is, if a whole frame of its log begins with this block, at this byte of the storage. One that has been
/// damaged would name an index that never was.
pub(super) fn geometry_of_frame(
    storage: &dyn Storage,
    block: &[u8],
    offset: u64,
) -> Option<Geometry> {
    let geometry = Header::geometry_of(block, offset)?;
    let frame = Header::decode(geometry.id, block)?;
    let log_end = LOG_OFFSET + geometry.log_blocks * BLOCK_BYTES as u64;
    let is_there = log_end <= storage.len_bytes();
    let is_inside = is_there && frame.blocks() <= geometry.log_blocks;
    is_inside.then(|| read_frame(storage, &geometry, &frame))??;
    Some(geometry)
}

/// A frame, if it is whole.
fn read_frame(storage: &dyn Storage, geometry: &Geometry, frame: &Header) -> Option<Aligned> {
    let ring = geometry.log_blocks;
    let mut bytes = Aligned::zeroed(frame.blocks() as usize * BLOCK_BYTES);
    let place = frame.position % ring;
    let before_end = (ring - place).min(frame.blocks()) as usize * BLOCK_BYTES;
    let (first, second) = bytes.split_at_mut(before_end);
    read_what_can_be(storage, LOG_OFFSET + place * BLOCK_BYTES as u64, first);
    if !second.is_empty() {
        read_what_can_be(storage, LOG_OFFSET, second);
    }
    let is_whole = crc32c::crc32c(&bytes[8..]).to_le_bytes() == bytes[4..8];
    is_whole.then_some(bytes)
}
