//! Streams: what is appended to segments outside of the log. Each stream fills a segment of its
//! own, chunk by chunk. A chunk begins with descriptions of its blocks, and a full segment ends
//! with a summary of all its blocks, see [`description`].
//!
//! A chunk never crosses the end of a segment, and nothing is written inside of what a segment has
//! been filled with.

use bimetal_rt::Payload;
use futures_util::future::join_all;

use super::description::{self, Birth, Described, chunk_heads, heads_of};
use super::usage::State;
use super::{Pins, SPARED_FOR_CLEANING, SPARED_FOR_PAGES, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::superblock::areas::DESCRIBED_MAX;
use crate::layers::mirror::superblock::segmented::SEGMENTS_RESERVED;
use crate::request::{Flags, Origin, Request};

/// What a segment is filled with. Each stream fills a segment of its own, so that content of
/// similar age is together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Runs of the journal.
    Journal,
    /// Pages of the map, of the page table and of the checksums.
    Pages,
    /// Content that a rebuild writes, which goes through no log.
    Copied,
    /// Content that cleaning has moved.
    Moved,
    /// Content that was put in the order of the volume. It is of its own kind, since all of it
    /// stays live until clients change it.
    Ordered,
}

pub(super) const STREAMS: usize = 5;

impl Stream {
    /// Returns the number of free segments that the stream leaves to others.
    fn spared(self) -> usize {
        match self {
            Stream::Journal => 0,
            Stream::Pages => 1,
            Stream::Moved => SPARED_FOR_PAGES,
            Stream::Copied => SPARED_FOR_CLEANING,
            Stream::Ordered => SEGMENTS_RESERVED as usize,
        }
    }
}

/// The segment that a stream fills.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    segment: u32,
    /// Generation of the segment.
    generation: u64,
    /// What its blocks hold that are taken.
    described: Vec<Described>,
}

impl Filled {
    fn blocks(&self) -> u32 {
        self.described.len() as u32
    }
}

/// Part of a segment that was taken for content that is to be written with
/// [`write_chunk`](Segments::write_chunk).
pub(super) struct Chunk<'s> {
    /// Number of the first block with content in the segments, and the number of these blocks.
    pub(super) at: u32,
    pub(super) blocks: u32,
    /// What is to be written, each with its offset on the device.
    writes: Vec<(u64, Payload)>,
    /// Keeps the segment from becoming free before the map refers to the content.
    _pins: Pins<'s>,
}

impl Chunk<'_> {
    /// Returns the number of bytes that are written, with descriptions.
    fn all_bytes(&self) -> u64 {
        let writes = self.writes.iter();
        writes.map(|(_, data)| data.len() as u64).sum()
    }
}

impl Segments {
    /// Takes blocks for the first of `blocks`, as many as fit the segment of the stream: each is
    /// the number of a block in the virtual range, or of a page, and its age. `data` is the content
    /// of all of them.
    ///
    /// # Errors
    /// `NoSpace` when the segment of the stream is full and no segment is free for it.
    pub(super) fn take_chunk(
        &self,
        stream: Stream,
        blocks: &[(u64, Birth)],
        data: &Payload,
    ) -> Result<Chunk<'_>, IoError> {
        let room = self.open_segment(stream)?;
        let count = blocks.len().min((room - heads_of_room(room)) as usize);
        let data = data.slice(0..count * BLOCK_BYTES as usize);
        let digests = self.digest.of_each(&data);
        let described: Vec<Described> = blocks[..count]
            .iter()
            .zip(digests)
            .map(|((block, birth), digest)| Described {
                block: *block,
                birth: *birth,
                digest,
            })
            .collect();
        let mut filled = self.filled.borrow_mut();
        let this = filled[stream as usize].as_mut().expect("it is open");
        let (segment, index) = (this.segment, this.blocks());
        let heads = chunk_heads(&self.side, (this.generation, index), &described);
        let heads_count = heads_of(count as u64) as u32;
        let nothing = std::iter::repeat_n(Described::NOTHING, heads_count as usize);
        this.described.extend(nothing.chain(described));
        let first = segment * self.layout.segment_blocks() as u32 + index;
        let mut payload = Payload::from(self.rt.pool().copy_of(&heads));
        payload.append(data);
        let mut writes = vec![(self.offset_at(first), payload)];
        let pins = self.note_taken(segment, u64::from(heads_count) + count as u64);
        let room = self.layout.usable_blocks() as u32 - this.blocks();
        if room < 2 {
            let full = filled[stream as usize].take().expect("it is open");
            writes.push(self.seal(full));
        }
        Ok(Chunk {
            at: first + heads_count,
            blocks: count as u32,
            writes,
            _pins: pins,
        })
    }

    /// Returns the number of blocks of content for which the segment that a stream fills has room.
    pub(super) fn room_in_open(&self, stream: Stream) -> u64 {
        let filled = self.filled.borrow();
        let usable = self.layout.usable_blocks() as u32;
        let room = filled[stream as usize]
            .as_ref()
            .map(|open| usable - open.blocks());
        room.map_or(0, |room| u64::from(room - heads_of_room(room)))
    }

    /// Makes sure that the stream has a segment with room. Returns the number of blocks for which
    /// there is room.
    fn open_segment(&self, stream: Stream) -> Result<u32, IoError> {
        let mut filled = self.filled.borrow_mut();
        let this = &mut filled[stream as usize];
        let usable = self.layout.usable_blocks() as u32;
        if let Some(open) = this {
            return Ok(usable - open.blocks());
        }
        let mut usage = self.usage.borrow_mut();
        let taken = usage.take(State::Open, stream.spared());
        self.pace.set_free(usage.free_count());
        *this = Some(Filled {
            segment: taken.ok_or(IoError::NoSpace)?,
            generation: self.sequence.get(),
            described: Vec::with_capacity(usable as usize),
        });
        Ok(usable)
    }

    fn note_taken(&self, segment: u32, blocks: u64) -> Pins<'_> {
        let mut usage = self.usage.borrow_mut();
        usage.appended_blocks += blocks;
        usage.pin(segment);
        Pins {
            of: self,
            segments: vec![segment],
        }
    }

    /// Seals a full segment. Returns its summary with the offset to which it is to be written.
    fn seal(&self, mut full: Filled) -> (u64, Payload) {
        let usable = self.layout.usable_blocks();
        full.described.resize(usable as usize, Described::NOTHING);
        let mut usage = self.usage.borrow_mut();
        usage.appended_blocks += self.layout.segment_blocks() - usable;
        let appended = usage.appended_blocks;
        usage.set_state(full.segment, State::Sealed(appended));
        let summary = description::summary(&self.side, full.generation, &full.described);
        usage.set_summary(full.segment, Some(crc32c::crc32c(&summary)));
        self.keep_described(full.segment, full.described);
        let data = Payload::from(self.rt.pool().copy_of(&summary));
        (self.summary_offset(full.segment), data)
    }

    /// Returns the offset on the device of the summary of a segment.
    pub(super) fn summary_offset(&self, segment: u32) -> u64 {
        let first = u64::from(segment) * self.layout.segment_blocks();
        self.layout.area.0 + (first + self.layout.usable_blocks()) * BLOCK_BYTES
    }

    /// Writes a chunk, and the summary of its segment if the chunk is the last one in it. Neither
    /// is durable when this returns.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn write_chunk(
        &self,
        chunk: &Chunk<'_>,
        flags: Flags,
        origin: Origin,
    ) -> Result<(), IoError> {
        let writes = chunk.writes.iter().map(|(offset, data)| {
            let write = Request::write(*offset, data.clone(), flags);
            self.device.submit(write.from_origin(origin))
        });
        // All of them end before the segment may become free.
        let written = join_all(writes).await;
        written.into_iter().try_for_each(|each| each.map(|_| ()))
    }

    /// Takes blocks as [`take_chunk`](Self::take_chunk) does, for content that a rebuild writes. It
    /// counts as appended by clients: cleaning must gain as much space.
    ///
    /// # Errors
    /// As [`take_chunk`](Self::take_chunk).
    pub(super) fn take_for_copies(
        &self,
        blocks: &[(u64, Birth)],
        data: &Payload,
    ) -> Result<Chunk<'_>, IoError> {
        let chunk = self.take_chunk(Stream::Copied, blocks, data)?;
        self.pace.note_copied(chunk.all_bytes());
        Ok(chunk)
    }

    /// Returns true when segments are free for content that a rebuild writes, and this content
    /// keeps step with cleaning.
    pub(in super::super) fn takes_copies(&self) -> bool {
        self.pace.takes_copies()
    }

    /// Waits until [`takes_copies`](Self::takes_copies) returns true.
    pub(in super::super) async fn until_it_takes_copies(&self) {
        if self.takes_copies() {
            return;
        }
        self.tell_pace();
        let (waiting, copy) = (self.pace.wait_for_space(), self.pace.copy_waits());
        self.freed.until(|| self.takes_copies()).await;
        drop((waiting, copy));
    }

    /// Takes up to `blocks_max` blocks, one behind the other, for blocks of the journal, which
    /// describe themselves. Returns the number of the first one, and how many they are. The segment
    /// stays protected by the guard.
    ///
    /// # Errors
    /// `NoSpace` when the segment of the journal is full and no segment is free for it.
    pub(super) fn take_for_journal(
        &self,
        blocks_max: u64,
    ) -> Result<(u32, u32, Pins<'_>), IoError> {
        let room = self.open_segment(Stream::Journal)?;
        let mut filled = self.filled.borrow_mut();
        let this = filled[Stream::Journal as usize].as_mut();
        let this = this.expect("it is open");
        let (segment, index) = (this.segment, this.blocks());
        let blocks = blocks_max.min(u64::from(room)) as u32;
        let nothing = std::iter::repeat_n(Described::NOTHING, blocks as usize);
        this.described.extend(nothing);
        let first = segment * self.layout.segment_blocks() as u32 + index;
        let pins = self.note_taken(segment, u64::from(blocks));
        if blocks == room {
            filled[Stream::Journal as usize] = None;
            let mut usage = self.usage.borrow_mut();
            let appended = usage.appended_blocks;
            usage.set_state(segment, State::Sealed(appended));
        }
        Ok((first, blocks, pins))
    }

    /// Returns the numbers of `count` consecutive blocks for [`take_chunk`](Self::take_chunk), all
    /// of the same age.
    pub(super) fn of_age(first: u64, count: u64, birth: Birth) -> Vec<(u64, Birth)> {
        (first..first + count).map(|block| (block, birth)).collect()
    }

    /// Returns the age of pages that are written now: the number of the next commit.
    pub(super) fn birth_of_pages(&self) -> Birth {
        Birth {
            epoch: 0,
            number: self.sequence.get() + 1,
        }
    }
}

/// Returns the number of blocks with descriptions that a chunk has which fills `room` blocks.
fn heads_of_room(room: u32) -> u32 {
    room.div_ceil(DESCRIBED_MAX as u32 + 1)
}
