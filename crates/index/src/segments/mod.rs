//! Manages the segments to which images of nodes are written, and records how much of each segment
//! is in use. A stream fills one segment after the other with nodes that are expected to become
//! obsolete at about the same time.
//!
//! Source: the hot and cold clusters of the CHC-Tree. Images that survive cleaning have a stream of
//! their own, so that all content of a segment becomes obsolete together (docs/index.md). A segment
//! is written once, from start to end, and again only after a checkpoint has freed it. A segment
//! that a checkpoint on the storage still names must never be allocated.

mod place;

pub(crate) use place::{Generations, Location, Spot};

use crate::error::{At, Error};
use crate::footer::{About, Entry, Generation, HEAD_BYTES, footer_bytes, name_of};
use crate::layout::Geometry;
use crate::node::{NodeId, Seq, seal};
use crate::planted::{Bug, is_planted};
use crate::storage::{Aligned, BLOCK_BYTES, Storage, round_up};
use std::ops::Range;
use std::sync::Arc;

/// Alignment of images in bytes.
pub(crate) const GRANULE_BYTES: usize = 64;
/// Maximum number of bytes in the buffer of a stream before the stream writes it.
const WRITE_BYTES: usize = 128 << 10;
/// Divisor of the memory budget: the quotient limits the length of each stream's buffer.
const GATHERED_SHARE: usize = 32;
/// Number of free segments reserved for cleaning, inner nodes and checkpoints.
const SPARE_SEGMENTS: usize = 4;
/// Minimum number of segments by which the storage grows.
const GROWTH_SEGMENTS: u32 = 4;

/// Class of nodes that are expected to become obsolete at about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Leaves that change often.
    Hot,
    /// Leaves that change rarely.
    Cold,
    /// Live content that cleaning has moved.
    Survivor,
    /// Inner nodes.
    Inner,
    /// Patches of leaves: a patch becomes obsolete when its leaf is rewritten.
    Patch,
}

impl Class {
    const ALL: [Class; 5] = [
        Class::Hot,
        Class::Cold,
        Class::Survivor,
        Class::Inner,
        Class::Patch,
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentState {
    /// The segment can be written.
    Free,
    /// The segment has no live content, but a checkpoint may name it.
    Emptied,
    /// A stream is writing the segment.
    Open,
    /// The segment was written to its end.
    Written,
    /// The segment holds a checkpoint.
    Checkpoint,
    /// The segment holds a part of the log.
    Log,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    state: SegmentState,
    live_bytes: u32,
    /// Class of the stream that filled the segment last.
    class: Class,
    /// Value of `begun` when a stream began to fill this segment; 0 if filled before this opening.
    filled_as: u64,
}

/// An image to be written.
pub(crate) struct NewImage<'a> {
    pub node: NodeId,
    pub lsn: Seq,
    pub bytes: &'a mut [u8],
    /// Content of the image's entry in the segment's footer.
    pub about: About,
}

/// A stream and the segment that it is filling.
#[derive(Debug)]
struct Stream {
    segment: Option<u32>,
    buffer: Aligned,
    /// Offset of the end of the content: images and footers.
    filled: usize,
    /// Offset up to which the buffer was written to the storage; a multiple of the block size.
    written: usize,
    /// Images that end beyond `written`, and so are not on the storage yet.
    waiting: Vec<(NodeId, Location)>,
    /// Footer entries of images that no footer lists yet.
    unlisted: Vec<Entry>,
    unlisted_bytes: usize,
    /// End of the last footer, or of the segment head.
    listed_to: usize,
    /// Number of the segment's generation.
    generation: u64,
}

impl Stream {
    /// Returns the offset at which an image of `bytes` bytes and the footer that lists it would
    /// end.
    fn end_with(&self, bytes: usize, about: &About) -> usize {
        let entries_bytes = self.unlisted_bytes + about.entry_bytes();
        self.filled + bytes + footer_bytes(entries_bytes)
    }
}

/// All segments.
#[derive(Debug)]
pub(crate) struct Segments {
    geometry: Geometry,
    all: Vec<Segment>,
    free: usize,
    /// Number of segments that have no live content, although a checkpoint may still name them.
    emptied: usize,
    /// Number of segments that the log occupies.
    log: usize,
    streams: [Stream; Class::ALL.len()],
    live_bytes: u64,
    /// Images that have reached the storage since the last call of
    /// [`take_flushed`](Self::take_flushed).
    flushed: Vec<(NodeId, Location)>,
    written_bytes: u64,
    /// Number of segments that streams have begun to fill.
    begun: u64,
    /// Number of bytes after which a stream writes its buffer.
    write_bytes: usize,
    /// True if segments have heads and footers.
    has_footers: bool,
    /// Number of the next segment generation.
    next_generation: u64,
    generations: Arc<Generations>,
    /// Number of segments at the last failed attempt to grow the storage. While the index has this
    /// number of segments, no further attempt is made.
    refused_at: Option<usize>,
}

/// Statistics of the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStatistics {
    /// Number of segments.
    pub segments: u32,
    /// Segments that can be written.
    pub free_segments: u32,
    /// Segments with nodes: segments that are being filled, or have live content.
    pub used_segments: u32,
    /// Segments with nodes of the hot class.
    pub hot_segments: u32,
    /// Segments that the log occupies.
    pub log_segments: u32,
    /// Bytes of live images.
    pub live_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u32,
}

impl Segments {
    /// Creates the table of a storage with all segments free; [`take_up`](Self::take_up) marks the
    /// used segments. `opening` is an incarnation that has filled no segment yet; `generations` are
    /// the segment generations found on the storage.
    pub(crate) fn new(
        geometry: Geometry,
        segments: u32,
        opening: u32,
        generations: Arc<Generations>,
    ) -> Segments {
        let stream = |_| Stream {
            segment: None,
            buffer: Aligned::default(),
            filled: 0,
            written: 0,
            waiting: Vec::new(),
            unlisted: Vec::new(),
            unlisted_bytes: 0,
            listed_to: 0,
            generation: 0,
        };
        let free = Segment {
            state: SegmentState::Free,
            live_bytes: 0,
            class: Class::Cold,
            filled_as: 0,
        };
        Segments {
            geometry,
            all: vec![free; segments as usize],
            free: segments as usize,
            emptied: 0,
            log: 0,
            streams: Class::ALL.map(stream),
            live_bytes: 0,
            flushed: Vec::new(),
            written_bytes: 0,
            begun: 0,
            write_bytes: WRITE_BYTES,
            has_footers: true,
            next_generation: u64::from(opening) << 32,
            generations,
            refused_at: None,
        }
    }

    /// Marks the location of an image as in use. A checkpoint names this location. Returns false if
    /// other content occupies the location.
    #[must_use]
    pub(crate) fn take_up(&mut self, location: Location) -> bool {
        let segment = self.all[location.segment() as usize];
        let room = self.geometry.segment_bytes - segment.live_bytes;
        if matches!(segment.state, SegmentState::Checkpoint | SegmentState::Log)
            || location.bytes() > room as usize
        {
            return false;
        }
        self.set_state(location.segment(), SegmentState::Written);
        self.add_live(location);
        true
    }

    /// Marks a segment as holding the valid checkpoint. Returns false if the segment is not free.
    #[must_use]
    pub(crate) fn take_up_checkpoint(&mut self, segment: u32) -> bool {
        let is_free = self.all.get(segment as usize).map(|s| s.state) == Some(SegmentState::Free);
        if is_free {
            self.set_state(segment, SegmentState::Checkpoint);
        }
        is_free
    }

    /// Marks segments as holding the log. Returns false if they are not all free.
    #[must_use]
    pub(crate) fn take_up_log(&mut self, segments: Range<u32>) -> bool {
        let is_free = |segment: u32| {
            let segment = self.all.get(segment as usize);
            segment.map(|segment| segment.state) == Some(SegmentState::Free)
        };
        let are_free = segments.end as usize <= self.all.len() && segments.clone().all(is_free);
        if are_free {
            segments.for_each(|segment| self.set_state(segment, SegmentState::Log));
        }
        are_free
    }

    /// Allocates `count` consecutive free segments for the log, and returns the first. At least
    /// `spare` other segments stay free.
    ///
    /// # Errors
    ///
    /// [`Error::Full`] if there are no such segments and the storage cannot grow by enough.
    pub(crate) fn take_for_log(
        &mut self,
        storage: &dyn Storage,
        count: u32,
        spare: usize,
    ) -> Result<u32, Error> {
        let has_spare = self.free >= count as usize + spare;
        let first = match self.first_run(count as usize).filter(|_| has_spare) {
            Some(first) => first,
            None => {
                let first = self.all.len() - self.end_free();
                let more = (first + count as usize).saturating_sub(self.all.len());
                let lacks = (count as usize + spare).saturating_sub(self.free + more);
                self.extend(storage, (more + lacks) as u32)?;
                first
            }
        };
        (first..first + count as usize)
            .for_each(|segment| self.set_state(segment as u32, SegmentState::Log));
        Ok(first as u32)
    }

    /// Returns the start of the first run of `count` free segments.
    fn first_run(&self, count: usize) -> Option<usize> {
        let mut run = 0;
        for (number, segment) in self.all.iter().enumerate() {
            run = match segment.state {
                SegmentState::Free => run + 1,
                _ => 0,
            };
            if run == count {
                return Some(number + 1 - count);
            }
        }
        None
    }

    /// Frees segments that the log no longer occupies and that no superblock names any more.
    pub(crate) fn release_log(&mut self, segments: Range<u32>) {
        for segment in segments {
            let state = self.all[segment as usize].state;
            assert!(state == SegmentState::Log, "the log was in it");
            self.set_state(segment, SegmentState::Free);
        }
    }

    fn set_state(&mut self, segment: u32, state: SegmentState) {
        let before = std::mem::replace(&mut self.all[segment as usize].state, state);
        self.free -= usize::from(before == SegmentState::Free);
        self.free += usize::from(state == SegmentState::Free);
        self.emptied -= usize::from(before == SegmentState::Emptied);
        self.emptied += usize::from(state == SegmentState::Emptied);
        self.log -= usize::from(before == SegmentState::Log);
        self.log += usize::from(state == SegmentState::Log);
    }

    fn add_live(&mut self, location: Location) {
        let bytes = location.bytes() as u32;
        self.all[location.segment() as usize].live_bytes += bytes;
        self.live_bytes += u64::from(bytes);
    }

    /// Marks the image at a location as no longer in use.
    pub(crate) fn release(&mut self, location: Location) {
        if location.is_nowhere() {
            return;
        }
        let bytes = location.bytes() as u32;
        let segment = &mut self.all[location.segment() as usize];
        assert!(segment.live_bytes >= bytes, "released once");
        segment.live_bytes -= bytes;
        self.live_bytes -= u64::from(bytes);
        if segment.live_bytes == 0 && segment.state == SegmentState::Written {
            let is_early = is_planted(Bug::FreesEarly);
            let state = if is_early {
                SegmentState::Free
            } else {
                SegmentState::Emptied
            };
            self.set_state(location.segment(), state);
        }
    }

    /// Returns the number of segments.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of segments that the log does not occupy.
    pub(crate) fn count_without_log(&self) -> usize {
        self.all.len() - self.log
    }

    /// Returns the bytes of live images.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Returns the statistics; this visits all segments.
    pub(crate) fn statistics(&self) -> SpaceStatistics {
        SpaceStatistics {
            segments: self.all.len() as u32,
            free_segments: self.free as u32,
            used_segments: Class::ALL
                .map(|class| self.used_by(class) as u32)
                .iter()
                .sum(),
            hot_segments: self.used_by(Class::Hot) as u32,
            log_segments: self.log as u32,
            live_bytes: self.live_bytes,
            segment_bytes: self.geometry.segment_bytes,
        }
    }

    /// Returns the bytes written to segments so far.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Returns the number of segments that streams have begun to fill so far.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Limits the buffers of streams to their share of `memory_bytes`.
    pub(crate) fn gather_within(&mut self, memory_bytes: usize) {
        let share = (memory_bytes / GATHERED_SHARE).next_multiple_of(BLOCK_BYTES);
        self.write_bytes = share.min(WRITE_BYTES);
    }

    /// Makes streams write block by block from now on, without heads and footers.
    pub(crate) fn write_by_blocks(&mut self) {
        self.write_bytes = BLOCK_BYTES;
        self.has_footers = false;
    }

    fn of(&self, class: Class) -> impl Iterator<Item = &Segment> {
        let holds_nodes = |state| matches!(state, SegmentState::Open | SegmentState::Written);
        let all = self.all.iter();
        all.filter(move |segment| segment.class == class && holds_nodes(segment.state))
    }

    /// Returns the number of segments of a class that are being filled or have live content.
    pub(crate) fn used_by(&self, class: Class) -> usize {
        self.of(class).count()
    }

    /// Returns the live bytes in the segments of a class.
    pub(crate) fn live_bytes_of(&self, class: Class) -> u64 {
        let segments = self.of(class);
        segments.map(|segment| u64::from(segment.live_bytes)).sum()
    }

    /// Returns the class of a segment that holds nodes.
    pub(crate) fn class_of(&self, segment: u32) -> Class {
        self.all[segment as usize].class
    }

    /// Returns the number of segments that can be written now.
    pub(crate) fn free_count(&self) -> usize {
        self.free
    }

    /// Returns the number of segments without live content that are not free yet.
    pub(crate) fn emptied_count(&self) -> usize {
        self.emptied
    }

    /// Returns the segments without live content, to be freed once no checkpoint names them.
    pub(crate) fn emptied(&self) -> Vec<u32> {
        let states = self.all.iter().enumerate();
        let emptied = states.filter(|(_, segment)| segment.state == SegmentState::Emptied);
        emptied.map(|(number, _)| number as u32).collect()
    }

    /// Frees a segment that no checkpoint names any more.
    pub(crate) fn free(&mut self, segment: u32) {
        let state = self.all[segment as usize].state;
        assert!(
            matches!(state, SegmentState::Emptied | SegmentState::Checkpoint)
                || is_planted(Bug::FreesEarly),
            "nothing of it is in use"
        );
        self.set_state(segment, SegmentState::Free);
    }

    /// Returns the written segment with the fewest live bytes, and the number of these bytes. If
    /// `class` is given, considers only segments of that class.
    pub(crate) fn cleanest(&self, class: Option<Class>) -> Option<(u32, u32)> {
        let written = self.all.iter().enumerate();
        let written = written.filter(|(_, segment)| {
            segment.state == SegmentState::Written
                && class.is_none_or(|class| segment.class == class)
        });
        let least = written.min_by_key(|(_, segment)| segment.live_bytes)?;
        Some((least.0 as u32, least.1.live_bytes))
    }

    /// Returns the written segment with the fewest live bytes, if they are less than nine tenths of
    /// it. Ignores segments that this opening began after its first `begun` segments.
    pub(crate) fn worth_moving(&self, begun: u64) -> Option<u32> {
        let written = self.all.iter().enumerate();
        let written = written.filter(|(_, segment)| {
            segment.state == SegmentState::Written && segment.filled_as <= begun
        });
        let (number, segment) = written.min_by_key(|(_, segment)| segment.live_bytes)?;
        let is_sparse = segment.live_bytes < self.geometry.segment_bytes / 10 * 9;
        is_sparse.then_some(number as u32)
    }

    /// Excludes a segment from the result of [`worth_moving`](Self::worth_moving).
    pub(crate) fn leave(&mut self, segment: u32) {
        self.all[segment as usize].filled_as = u64::MAX;
    }

    /// Returns the last written segment, if its content can be moved to free segments before it.
    pub(crate) fn last_to_move(&self) -> Option<u32> {
        let last = self
            .all
            .iter()
            .rposition(|s| s.state == SegmentState::Written)?;
        let first_free = self
            .all
            .iter()
            .position(|s| s.state == SegmentState::Free)?;
        // Moving the content of the last segment takes one free segment, and possibly a part of a
        // second one.
        (first_free < last && self.free > 2).then_some(last as u32)
    }

    /// Writes out all streams, and ends the segments that the streams are filling.
    pub(crate) fn close_streams(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        self.flush_all(storage)?;
        for class in Class::ALL {
            if let Some(segment) = self.streams[class as usize].segment.take() {
                let is_empty = self.all[segment as usize].live_bytes == 0;
                let state = if is_empty {
                    SegmentState::Emptied
                } else {
                    SegmentState::Written
                };
                self.set_state(segment, state);
            }
        }
        Ok(())
    }

    /// Allocates the lowest free segment, so that segments at the end of the storage can become
    /// free. Grows the storage first if at most `spare` segments (the reserve) are free.
    fn take(
        &mut self,
        storage: &dyn Storage,
        state: SegmentState,
        spare: usize,
    ) -> Result<u32, Error> {
        if self.free <= spare {
            self.grow(storage)?;
        }
        let free = self.all.iter().position(|s| s.state == SegmentState::Free);
        let segment = free.expect("one is counted as free") as u32;
        self.set_state(segment, state);
        Ok(segment)
    }

    /// Grows the storage.
    pub(crate) fn grow(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        let more = GROWTH_SEGMENTS.max(self.all.len() as u32 / 64);
        self.extend(storage, more)
    }

    /// Grows the storage by `more` segments.
    fn extend(&mut self, storage: &dyn Storage, more: u32) -> Result<(), Error> {
        let count = self.all.len() as u32 + more;
        let len_bytes = self.geometry.segment_offset(count);
        storage.resize(len_bytes).map_err(|source| match source {
            crate::storage::StorageError::Full => Error::Full {
                len_bytes: storage.len_bytes(),
            },
            source => Error::Storage {
                action: "extending the storage",
                offset: len_bytes,
                source,
            },
        })?;
        let free = Segment {
            state: SegmentState::Free,
            live_bytes: 0,
            class: Class::Cold,
            filled_as: 0,
        };
        self.all.resize(count as usize, free);
        self.free += more as usize;
        Ok(())
    }

    /// Grows the storage like [`grow`](Self::grow), or returns false if there is no room. After a
    /// failed attempt the next attempt is made only when the number of segments has changed.
    pub(crate) fn try_grow(&mut self, storage: &dyn Storage) -> Result<bool, Error> {
        if self.refused_at == Some(self.all.len()) {
            return Ok(false);
        }
        match self.grow(storage) {
            Ok(()) => Ok(true),
            Err(Error::Full { .. }) => {
                self.refused_at = Some(self.all.len());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Truncates the free end of the storage, but keeps `spare` free segments. Does nothing if the
    /// gain is small. The caller has made sure that no durable metadata names the free end.
    pub(crate) fn shrink(&mut self, storage: &dyn Storage, spare: usize) -> Result<(), Error> {
        let cut = self.end_free().min(self.free.saturating_sub(spare));
        match cut < GROWTH_SEGMENTS as usize * 2 {
            true => Ok(()),
            false => self.cut(storage, cut),
        }
    }

    /// Truncates the whole free end of the storage, to which no durable metadata may refer.
    pub(crate) fn trim(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        match self.end_free() {
            0 => Ok(()),
            cut => self.cut(storage, cut),
        }
    }

    /// Returns the number of free segments at the end of the storage.
    fn end_free(&self) -> usize {
        let used = self.all.iter().rposition(|s| s.state != SegmentState::Free);
        self.all.len() - used.map_or(0, |last| last + 1)
    }

    fn cut(&mut self, storage: &dyn Storage, cut: usize) -> Result<(), Error> {
        let count = self.all.len() - cut;
        let len_bytes = self.geometry.segment_offset(count as u32);
        storage
            .resize(len_bytes)
            .at("shortening the storage", len_bytes)?;
        self.all.truncate(count);
        self.free -= cut;
        Ok(())
    }

    /// Returns true if the stream of `class` has no segment, or if its segment has no room for the
    /// image. An append of the image then begins another segment.
    pub(crate) fn would_turn_over(&self, class: Class, bytes: usize, about: &About) -> bool {
        let stream = &self.streams[class as usize];
        let room = self.geometry.segment_bytes as usize;
        let end = match self.has_footers {
            true => stream.end_with(bytes, about),
            false => stream.filled + bytes,
        };
        stream.segment.is_none() || end > room
    }

    /// Appends an image to the stream of its class, and returns the location that the image will
    /// have. The image is only in memory until [`take_flushed`](Self::take_flushed) returns it. If
    /// `may_write` is false, images stay in the buffer as long as possible.
    pub(crate) fn append(
        &mut self,
        storage: &dyn Storage,
        class: Class,
        image: NewImage<'_>,
        may_write: bool,
    ) -> Result<Location, Error> {
        let NewImage {
            node,
            lsn,
            bytes,
            about,
        } = image;
        if self.would_turn_over(class, bytes.len(), &about) {
            self.turn_over(storage, class)?;
        }
        let has_footers = self.has_footers;
        let stream = &mut self.streams[class as usize];
        let segment = stream.segment.expect("a stream has a segment now");
        let location = Location::new(segment, stream.filled, bytes.len());
        seal(bytes, self.generations.seal_of(location));
        let end = stream.filled + bytes.len();
        stream.buffer[stream.filled..end].copy_from_slice(bytes);
        if has_footers && about != About::Inner {
            stream.unlisted_bytes += about.entry_bytes();
            stream.unlisted.push(Entry {
                at: stream.filled,
                bytes: bytes.len(),
                node,
                lsn,
                about,
            });
        }
        stream.filled = end;
        stream.waiting.push((node, location));
        let is_due = end / BLOCK_BYTES * BLOCK_BYTES - stream.written >= self.write_bytes;
        self.add_live(location);
        if is_due && may_write {
            self.list(class);
            let whole = self.streams[class as usize].filled / BLOCK_BYTES * BLOCK_BYTES;
            self.write(storage, class, whole)?;
        }
        Ok(location)
    }

    /// Appends a footer that lists all images of the segment that no footer lists yet.
    fn list(&mut self, class: Class) {
        let stream = &mut self.streams[class as usize];
        let Some(segment) = stream.segment.filter(|_| !stream.unlisted.is_empty()) else {
            return;
        };
        let generation = Generation {
            geometry: self.geometry,
            segment,
            number: stream.generation,
        };
        let footer = generation.footer(&stream.unlisted, stream.filled, stream.listed_to);
        let end = stream.filled + footer.len();
        stream.buffer[stream.filled..end].copy_from_slice(&footer);
        (stream.filled, stream.listed_to) = (end, end);
        stream.unlisted.clear();
        stream.unlisted_bytes = 0;
    }

    /// Ends the segment that a stream is filling, and begins another one.
    fn turn_over(&mut self, storage: &dyn Storage, class: Class) -> Result<(), Error> {
        self.flush(storage, class)?;
        let spare = match class {
            Class::Hot | Class::Cold | Class::Patch => SPARE_SEGMENTS,
            Class::Survivor | Class::Inner => 0,
        };
        let next = self.take(storage, SegmentState::Open, spare)?;
        self.all[next as usize].class = class;
        self.begun += 1;
        self.all[next as usize].filled_as = self.begun;
        let room = self.geometry.segment_bytes as usize;
        let stream = &mut self.streams[class as usize];
        let ended = stream.segment.replace(next);
        stream.buffer.reserve(room);
        (stream.filled, stream.written) = (0, 0);
        stream.generation = self.next_generation;
        self.next_generation += 1;
        self.generations
            .set(next, name_of(self.geometry.id, stream.generation));
        if self.has_footers {
            let generation = Generation {
                geometry: self.geometry,
                segment: next,
                number: stream.generation,
            };
            stream.buffer[..HEAD_BYTES].copy_from_slice(&generation.head());
            (stream.filled, stream.listed_to) = (HEAD_BYTES, HEAD_BYTES);
        }
        if let Some(ended) = ended {
            let is_empty = self.all[ended as usize].live_bytes == 0;
            let state = if is_empty {
                SegmentState::Emptied
            } else {
                SegmentState::Written
            };
            self.set_state(ended, state);
        }
        Ok(())
    }

    /// Writes the buffer of a stream. The rest of its last block is filled with zeroes and stays
    /// unused.
    pub(crate) fn flush(&mut self, storage: &dyn Storage, class: Class) -> Result<(), Error> {
        self.list(class);
        let stream = &mut self.streams[class as usize];
        let end = round_up(stream.filled);
        if end > stream.written {
            let filled = stream.filled;
            stream.buffer[filled..end].fill(0);
            self.write(storage, class, end)?;
            self.streams[class as usize].filled = end;
        }
        Ok(())
    }

    /// Writes the buffers of all streams.
    pub(crate) fn flush_all(&mut self, storage: &dyn Storage) -> Result<(), Error> {
        Class::ALL
            .into_iter()
            .try_for_each(|class| self.flush(storage, class))
    }

    fn write(&mut self, storage: &dyn Storage, class: Class, end: usize) -> Result<(), Error> {
        let stream = &mut self.streams[class as usize];
        let segment = stream.segment.expect("what is filled is in a segment");
        let offset = self.geometry.segment_offset(segment) + stream.written as u64;
        let data = &stream.buffer[stream.written..end];
        storage.write(offset, data).at("writing nodes", offset)?;
        self.written_bytes += data.len() as u64;
        stream.written = end;
        let flushed = &mut self.flushed;
        stream.waiting.retain(|(node, location)| {
            let is_flushed = location.at() + location.bytes() <= end;
            if is_flushed {
                flushed.push((*node, *location));
            }
            !is_flushed
        });
        Ok(())
    }

    /// Returns the generation tags of all segments.
    pub(crate) fn names(&self) -> Vec<u32> {
        self.generations.all(self.all.len())
    }

    /// Returns the images that have reached the storage since the last call.
    pub(crate) fn take_flushed(&mut self) -> Vec<(NodeId, Location)> {
        std::mem::take(&mut self.flushed)
    }

    /// Allocates segments for a checkpoint of `bytes` bytes.
    pub(crate) fn take_for_checkpoint(
        &mut self,
        storage: &dyn Storage,
        bytes: usize,
    ) -> Result<Vec<u32>, Error> {
        let count = bytes.div_ceil(self.geometry.segment_bytes as usize);
        let mut taken = Vec::with_capacity(count);
        for _ in 0..count {
            match self.take(storage, SegmentState::Checkpoint, 0) {
                Ok(segment) => taken.push(segment),
                Err(error) => {
                    taken.into_iter().for_each(|segment| self.free(segment));
                    return Err(error);
                }
            }
        }
        Ok(taken)
    }
}
