//! Reading the log without a superblock that says where it begins: finds every intact frame on the
//! storage, and determines the order of the frames.

use super::Rebuilt;
use super::evidence::{CompleteLog, read_what_can_be};
use crate::error::Error;
use crate::layout::{Geometry, LOG_OFFSET, Superblock};
use crate::log::{Frame, HEADER_BYTES, Header};
use crate::node::Seq;
use crate::storage::{Aligned, BLOCK_BYTES, Storage};

/// Number of blocks read at a time.
const WINDOW_BLOCKS: u64 = 1024;

/// Intact frames, in the order in which they were found.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Header>);

impl Found {
    /// Searches the front of the storage, where the log of an index begins.
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

    /// Collects the headers of all intact frames in `bytes`. `bytes` is a part of the storage that
    /// begins at `offset`, which is the start of a block.
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

/// Frames of a log, in order.
pub(super) struct Frames {
    geometry: Geometry,
    all: Vec<Header>,
    complete_from: u64,
    /// Position before which no frame is needed, according to the superblocks and the last frame.
    needed_from: u64,
    /// True if `needed_from` comes from a superblock. Otherwise it comes from the last frame: the
    /// log before this position was not needed when that frame was written.
    is_need_known: bool,
    /// True if a frame is missing after a needed frame.
    has_gap: bool,
    /// Position after the last frame.
    end: u64,
    last_seq: Seq,
}

/// Callback that receives a frame with its operations.
pub(super) type TakeFrame<'a> = dyn FnMut(&Frame<'_>) -> Result<(), Error> + 'a;

impl Frames {
    /// Sorts the frames that were found and keeps those that belong to the log. `superblocks` are
    /// the intact superblocks.
    pub(super) fn of(
        storage: &dyn Storage,
        geometry: Geometry,
        found: Found,
        superblocks: &[Superblock],
        rebuilt: &mut Rebuilt,
    ) -> Frames {
        let Found(mut all) = found;
        all.retain(|frame| !superblocks.iter().any(|block| is_leftover(frame, block)));
        let newest = all.iter().max_by_key(|f| (f.opening, f.position)).copied();
        let end = newest.map_or(0, |newest| newest.position + newest.blocks());
        all.retain(|frame| frame.position < end);
        // If two frames have the same position, the frame of the later incarnation is kept.
        all.sort_unstable_by_key(|frame| (frame.position, u32::MAX - frame.opening));
        all.dedup_by_key(|frame| frame.position);
        let first = all.first().map_or(0, |first| first.position);
        let tails = superblocks.iter().map(|superblock| superblock.log_tail);
        let needed = tails.chain(newest.map(|newest| match newest.bytes {
            HEADER_BYTES => newest.tail,
            // This frame is of an older version of the format. Such a log begins at 0 until it has
            // wrapped around. Later it begins with the first frame that has not been overwritten.
            _ if end <= geometry.log_blocks => 0,
            _ => first,
        }));
        let needed = needed.max().unwrap_or(0);
        let mut frames = Frames {
            geometry,
            all: Vec::new(),
            // If no frame was found, no part of the log is complete, not even its beginning.
            complete_from: newest.map_or(u64::MAX, |_| first.min(needed)),
            needed_from: needed,
            is_need_known: !superblocks.is_empty(),
            has_gap: false,
            end: 0,
            last_seq: 0,
        };
        frames.follow(&all, superblocks, rebuilt);
        frames.find_last(storage);
        rebuilt.log_frames = frames.all.len() as u64;
        frames
    }

    /// Adds the frames in `all`, which are sorted by position, up to the first gap that a power cut
    /// may have left.
    fn follow(&mut self, all: &[Header], superblocks: &[Superblock], rebuilt: &mut Rebuilt) {
        // For each frame: the position below which the log was durable. This is the highest such
        // position in the superblocks, in the frame itself and in all later frames.
        let of_superblocks = superblocks.iter().map(|s| s.log_durable).max();
        let mut durable = of_superblocks.unwrap_or(0);
        let durable: Vec<u64> = (all.iter().rev())
            .map(|frame| {
                durable = durable.max(frame.durable_below);
                durable
            })
            .collect();
        let mut opening = 0;
        let mut expected = self.complete_from;
        for (frame, durable) in all.iter().zip(durable.into_iter().rev()) {
            if frame.position < expected || frame.opening < opening {
                continue;
            }
            if frame.position > expected {
                let was_durable = durable > expected || frame.opening > opening;
                if !was_durable {
                    break;
                }
                self.has_gap |= expected > self.needed_from && !self.all.is_empty();
                if frame.position > self.needed_from {
                    let missing = frame.position - expected.max(self.needed_from);
                    let what = format!("{missing} blocks of the log are damaged");
                    rebuilt.problem(what, frame.offset(&self.geometry));
                }
                self.complete_from = frame.position;
            }
            opening = frame.opening;
            expected = frame.position + frame.blocks();
            self.all.push(*frame);
        }
        self.end = self.all.last().map_or(0, |_| expected);
    }

    /// Determines the sequence number of the last batch by reading the last frame.
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

    /// Returns the position from which the log is complete.
    pub(super) fn whole(&self) -> CompleteLog {
        let first = self
            .all
            .iter()
            .find(|frame| frame.position >= self.complete_from);
        let first_seq = match first {
            // The header of a frame of relogged records has the sequence number of the last batch
            // before that frame. So the first batch after the frame has the next number.
            Some(first) => first.first_seq + u64::from(first.is_relogged),
            None => Seq::MAX,
        };
        CompleteLog {
            from: self.complete_from,
            first_seq: if self.complete_from == 0 {
                0
            } else {
                first_seq
            },
        }
    }

    /// Returns true if a part of the log is missing and no image has the changes of that part.
    /// Without superblocks, a missing beginning of the log is not treated as needed. That beginning
    /// may have been freed after the last intact frame was written, and a power cut may have torn
    /// the frames that were then written in its place.
    pub(super) fn lacks_needed(&self) -> bool {
        match self.is_need_known {
            true => self.complete_from > self.needed_from,
            false => self.has_gap,
        }
    }

    /// Notes that no part of the index was ever durable, so that the log need not have any frames.
    /// If no frame was found, the log is treated as empty and complete.
    pub(super) fn begin_at_once(&mut self) {
        if self.all.is_empty() {
            self.complete_from = 0;
        }
    }

    /// Returns the position after the last frame; 0 if there are no frames.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn last_seq(&self) -> Seq {
        self.last_seq
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Calls `take` with every frame, in order.
    pub(super) fn each(
        &self,
        storage: &dyn Storage,
        take: &mut TakeFrame<'_>,
    ) -> Result<(), Error> {
        for frame in &self.all {
            let bytes = self.read(storage, frame).ok_or_else(|| Error::Damaged {
                what: "a frame of the log, which was intact before".to_owned(),
                offset: frame.offset(&self.geometry),
            })?;
            take(&frame.frame(&self.geometry, &bytes))?;
        }
        Ok(())
    }
}

/// Returns true if a frame is a leftover: its incarnation is earlier than that of the superblock,
/// and its position is at or after the end of the part that is durable according to the superblock.
fn is_leftover(frame: &Header, superblock: &Superblock) -> bool {
    let is_known = superblock.log_durable > 0;
    is_known && frame.position >= superblock.log_durable && frame.opening < superblock.opening
}

/// Returns the geometry of the index if an intact frame of its log begins with this block, at the
/// byte `offset` of the storage. A damaged frame is not accepted: it could name an index that never
/// existed.
pub(super) fn geometry_of_frame(
    storage: &dyn Storage,
    block: &[u8],
    offset: u64,
) -> Option<Geometry> {
    let (frame, geometry) = Header::with_geometry(block, offset)?;
    read_frame(storage, &geometry, &frame)?;
    Some(geometry)
}

/// Reads a frame; returns `None` if the frame is not intact.
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
