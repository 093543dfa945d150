//! The log where no superblock says where it begins: every whole frame on the storage, and which of them
//! follow each other.

use super::Rebuilt;
use super::evidence::{WholeLog, read_what_can_be};
use crate::error::Error;
use crate::layout::{Geometry, LOG_OFFSET};
use crate::log::{Frame, HEADER_BYTES, Header};
use crate::node::Seq;
use crate::storage::{Aligned, BLOCK_BYTES, Storage};

/// Blocks read at a time.
const WINDOW_BLOCKS: u64 = 1024;

/// Whole frames, in the order in which they were come across.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Header>);

impl Found {
    /// Looks through the front of an index, where its log begins.
    pub(super) fn in_front(storage: &dyn Storage, geometry: &Geometry) -> Found {
        let mut found = Found::default();
        let mut window = Aligned::zeroed(WINDOW_BLOCKS as usize * BLOCK_BYTES);
        let mut at = 0;
        while at < geometry.front_blocks {
            let blocks = WINDOW_BLOCKS.min(geometry.front_blocks - at);
            let bytes = &mut window[..blocks as usize * BLOCK_BYTES];
            let offset = LOG_OFFSET + at * BLOCK_BYTES as u64;
            read_what_can_be(storage, offset, bytes);
            found.look(storage, geometry, offset, bytes);
            at += blocks;
        }
        found
    }

    /// Looks through bytes of the storage that begin at `offset`, with a block.
    pub(super) fn look(
        &mut self,
        storage: &dyn Storage,
        geometry: &Geometry,
        offset: u64,
        bytes: &[u8],
    ) {
        let mut at = 0;
        while at < bytes.len() {
            let place = offset + at as u64;
            let block = bytes.get(at..at + BLOCK_BYTES).unwrap_or_default();
            let header = Header::decode(geometry.id, block);
            let header = header.filter(|header| header.offset(geometry) == place);
            match header.filter(|header| read_frame(storage, geometry, header).is_some()) {
                Some(header) => {
                    self.0.push(header);
                    at += header.blocks() as usize * BLOCK_BYTES;
                }
                None => at += BLOCK_BYTES,
            }
        }
    }
}

/// The frames of a log, in order.
pub(super) struct Frames {
    geometry: Geometry,
    all: Vec<Header>,
    whole_from: u64,
    /// Behind the last frame.
    end: u64,
    last_seq: Seq,
}

/// What becomes of a frame and its operations.
pub(super) type TakeFrame<'a> = dyn FnMut(&Frame<'_>) -> Result<(), Error> + 'a;

impl Frames {
    /// Brings what was found into order.
    pub(super) fn of(
        storage: &dyn Storage,
        geometry: Geometry,
        found: Found,
        rebuilt: &mut Rebuilt,
    ) -> Frames {
        let Found(mut all) = found;
        let newest = all.iter().max_by_key(|f| (f.opening, f.position)).copied();
        let end = newest.map_or(0, |newest| newest.position + newest.blocks());
        all.retain(|frame| frame.position < end);
        // Of two at one position the one of the later opening counts.
        all.sort_unstable_by_key(|frame| (frame.position, u32::MAX - frame.opening));
        all.dedup_by_key(|frame| frame.position);
        let first = all.first().map_or(0, |first| first.position);
        let needed = newest.map_or(0, |newest| match newest.bytes {
            HEADER_BYTES => newest.tail,
            // Of an older version of the format. In the first lap it begins at 0; later with the first frame that has
            // not been written over.
            _ if end <= geometry.log_blocks => 0,
            _ => first,
        });
        let mut frames = Frames {
            geometry,
            all: Vec::new(),
            // Where there is no frame, the log has nothing: not even of the beginning.
            whole_from: newest.map_or(u64::MAX, |_| first.min(needed)),
            end: 0,
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
                if frame.position > needed {
                    let missing = frame.position - expected.max(needed);
                    let what = format!("{missing} blocks of the log are damaged");
                    rebuilt.problem(what, frame.offset(&geometry));
                }
                frames.whole_from = frame.position;
            }
            opening = frame.opening;
            expected = frame.position + frame.blocks();
            frames.all.push(frame);
        }
        frames.end = frames.all.last().map_or(0, |_| expected);
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

    /// Nothing of the index was ever durable: if there is no frame, there never was one.
    pub(super) fn begin_at_once(&mut self) {
        if self.all.is_empty() {
            self.whole_from = 0;
        }
    }

    /// Behind the last frame; 0 without any.
    pub(super) fn end(&self) -> u64 {
        self.end
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
                offset: frame.offset(&self.geometry),
            })?;
            take(&frame.frame(&self.geometry, &bytes))?;
        }
        Ok(())
    }
}

/// What the index is, if a whole frame of its log begins with this block, at this byte of the storage. One that has been
/// damaged would name an index that never was.
pub(super) fn geometry_of_frame(
    storage: &dyn Storage,
    block: &[u8],
    offset: u64,
) -> Option<Geometry> {
    let (frame, geometry) = Header::with_geometry(block, offset)?;
    read_frame(storage, &geometry, &frame)?;
    Some(geometry)
}

/// A frame, if it is whole.
fn read_frame(storage: &dyn Storage, geometry: &Geometry, frame: &Header) -> Option<Aligned> {
    let ring = frame.ring();
    let range = ring.range(geometry);
    if range.end > storage.len_bytes() || frame.blocks() > ring.blocks {
        return None;
    }
    let mut bytes = Aligned::zeroed(frame.blocks() as usize * BLOCK_BYTES);
    let before_end = ring.blocks - frame.position % ring.blocks;
    let before_end = before_end.min(frame.blocks()) as usize * BLOCK_BYTES;
    let (first, second) = bytes.split_at_mut(before_end);
    read_what_can_be(storage, frame.offset(geometry), first);
    if !second.is_empty() {
        read_what_can_be(storage, range.start, second);
    }
    let is_whole = crc32c::crc32c(&bytes[8..]).to_le_bytes() == bytes[4..8];
    is_whole.then_some(bytes)
}
