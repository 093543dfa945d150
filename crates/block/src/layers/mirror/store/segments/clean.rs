//! Cleaning: moves the live content of segments that hold little, so that a commit frees these
//! segments.
//!
//! A block that changes while it is moved keeps its newer place: the map is changed only if it still
//! names the old one. A move needs no copy of the log: until the next commit the old place counts,
//! and it stays as it is.

use std::ops::Range;

use bimetal_rt::Payload;
use bimetal_rt::turn::give_way;
use futures_util::stream::{self, StreamExt};

use super::usage::{Segment, State};
use super::{Pins, Place, Segments, Stream};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::superblock::segmented::SEGMENTS_RESERVED;
use crate::request::{Flags, Request};

/// Maximum number of bytes that are moved together. They are in memory meanwhile.
const MOVED_TOGETHER_BYTES_MAX: u64 = 32 << 20;
/// Maximum number of segments that are cleaned together.
const VICTIMS_MAX: usize = 16;
/// Maximum gap between two live blocks that are read with one request.
const READ_GAP_BLOCKS_MAX: u32 = 16;
/// Maximum number of bytes in one request.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of requests in flight.
const IN_FLIGHT_MAX: usize = 4;

/// A live block of a segment that is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Live {
    /// Number of its block in the segments.
    at: u32,
    /// Number of the block in the virtual range.
    block: u64,
}

impl Segments {
    /// Returns true when so few segments are free that others should be cleaned.
    pub(in super::super) fn wants_cleaning(&self) -> bool {
        let usage = self.usage.borrow();
        let of_log = (self.log_bytes / self.layout.segment_bytes) as usize;
        usage.free_count() < 2 * SEGMENTS_RESERVED as usize + of_log / 2
    }

    /// Moves the live content of some segments, as much as the free segments have room for. The
    /// next commit frees them. Returns the number of segments that were emptied, or that are
    /// about to be freed already.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks; `NoSpace` when no segment is free.
    pub(in super::super) async fn clean_some(&self) -> Result<usize, IoError> {
        let dead = self.dead().len();
        let victims = self.victims();
        if victims.is_empty() {
            return Ok(dead);
        }
        let _pins = self.pin_all(&victims);
        let mut live = self.live_in(&victims).await;
        live.sort_unstable();
        let moved = self.read_live(live).await?;
        self.write_moved(moved).await?;
        let cleaned = victims.len() as u64;
        self.count(|counts| counts.cleaned_segments += cleaned);
        Ok(dead + victims.len())
    }

    /// Protects segments, so that none of them is filled anew while its blocks are read.
    fn pin_all(&self, segments: &[u32]) -> Pins<'_> {
        let mut usage = self.usage.borrow_mut();
        segments.iter().for_each(|segment| usage.pin(*segment));
        Pins {
            of: self,
            segments: segments.to_vec(),
        }
    }

    /// Chooses the segments to clean together.
    fn victims(&self) -> Vec<u32> {
        let usage = self.usage.borrow();
        let segment_blocks = self.layout.segment_blocks();
        let now = usage.appended_blocks;
        let score = |segment: &Segment| {
            let State::Sealed(at) = segment.state else {
                return None;
            };
            let (live, full) = (u64::from(segment.live), segment_blocks);
            if live == 0 || live >= full {
                return None;
            }
            let age = (now - at + 1) as f64;
            Some(age * (full - live) as f64 / live as f64)
        };
        let scored = usage.all().filter_map(|(number, segment)| {
            let score = score(&segment)?;
            Some((score, number, u64::from(segment.live)))
        });
        let mut scored: Vec<(f64, u32, u64)> = scored.collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let room = usage.free_count().saturating_sub(2) as u64 * segment_blocks;
        let blocks_max = room.min((MOVED_TOGETHER_BYTES_MAX / BLOCK_BYTES).max(segment_blocks));
        let (mut victims, mut blocks) = (Vec::new(), 0);
        for (_, number, live) in scored.into_iter().take(VICTIMS_MAX) {
            if blocks + live > blocks_max {
                break;
            }
            blocks += live;
            victims.push(number);
        }
        victims
    }

    /// Returns the live blocks of some segments. Pages of the map are not among them: these are
    /// marked to be written again.
    async fn live_in(&self, victims: &[u32]) -> Vec<Live> {
        let mut is_victim = vec![false; self.usage.borrow().count()];
        victims.iter().for_each(|v| is_victim[*v as usize] = true);
        for victim in victims {
            let pages = self.map_pages_in(*victim);
            self.places.borrow_mut().mark(pages);
        }
        let mut live = Vec::new();
        let pages = self.places.borrow().pages();
        for page in 0..pages {
            give_way().await;
            let (places, usage) = (self.places.borrow(), self.usage.borrow());
            let stored = places.stored_in_page(page);
            let inside = stored.filter(|(_, at)| is_victim[usage.segment_of(*at) as usize]);
            live.extend(inside.map(|(block, at)| Live { at, block }));
        }
        live
    }

    /// Reads live blocks, given in the order of the segments. Returns each with its content, in the
    /// order of the virtual range. Blocks that cannot be read are left out, and their segments are
    /// retired.
    async fn read_live(&self, live: Vec<Live>) -> Result<Vec<(Live, Payload)>, IoError> {
        let segment_blocks = self.layout.segment_blocks() as u32;
        let together = |a: &Live, b: &Live| {
            b.at - a.at <= READ_GAP_BLOCKS_MAX && a.at / segment_blocks == b.at / segment_blocks
        };
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        let bytes_max = REQUEST_BYTES_MAX.min(transfer);
        let per_request = (bytes_max / BLOCK_BYTES / u64::from(READ_GAP_BLOCKS_MAX)).max(1);
        let runs = live.chunk_by(together);
        let runs = runs.flat_map(|run| split(run, bytes_max, per_request as usize));
        let reads = runs.map(|run| self.read_run(run));
        let mut reads = stream::iter(reads).buffer_unordered(IN_FLIGHT_MAX);
        let mut moved = Vec::with_capacity(live.len());
        while let Some(read) = reads.next().await {
            moved.extend(read?);
        }
        moved.sort_unstable_by_key(|(live, _)| live.block);
        Ok(moved)
    }

    async fn read_run(&self, run: &[Live]) -> Result<Vec<(Live, Payload)>, IoError> {
        let (first, last) = (run[0].at, run[run.len() - 1].at);
        let bytes = u64::from(last - first + 1) * BLOCK_BYTES;
        let read = Request::read(self.offset_at(first), bytes);
        match self.device.submit(read).await {
            Ok(reply) => {
                let data = reply.into_data();
                let block = |live: &Live| {
                    let start = (live.at - first) as usize * BLOCK_BYTES as usize;
                    (*live, data.slice(start..start + BLOCK_BYTES as usize))
                };
                Ok(run.iter().map(block).collect())
            }
            Err(error) if error.is_of_a_block() && run.len() > 1 => {
                let mut found = Vec::new();
                for live in run {
                    found.extend(Box::pin(self.read_run(std::slice::from_ref(live))).await?);
                }
                Ok(found)
            }
            Err(error) if error.is_of_a_block() => {
                let mut usage = self.usage.borrow_mut();
                let segment = usage.segment_of(first);
                usage.set_state(segment, State::Retired);
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Appends content again, and makes the map refer to its new place where it still refers to the
    /// old one.
    async fn write_moved(&self, moved: Vec<(Live, Payload)>) -> Result<(), IoError> {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        let blocks_max = REQUEST_BYTES_MAX.min(transfer) / BLOCK_BYTES;
        let mut parts: Vec<(Range<usize>, u32, Pins<'_>)> = Vec::new();
        let mut start = 0;
        while start < moved.len() {
            let wanted = blocks_max.min((moved.len() - start) as u64);
            let (at, blocks, pins) = self.take_blocks(Stream::Moved, wanted)?;
            let end = start + blocks as usize;
            parts.push((start..end, at, pins));
            start = end;
        }
        let moved = &moved;
        let writes = parts.into_iter().map(|(range, at, pins)| async move {
            let mut data = Payload::empty();
            for (_, block) in &moved[range.clone()] {
                data.append(block.clone());
            }
            let write = Request::write(self.offset_at(at), data, Flags::NONE);
            self.device.submit(write).await?;
            for (index, (live, _)) in (0..).zip(&moved[range]) {
                if self.is_at(live.block, live.at) {
                    self.set_place(live.block, Place::At(at + index));
                    self.count(|counts| counts.moved_blocks += 1);
                }
            }
            drop(pins);
            Ok::<(), IoError>(())
        });
        let mut writes = stream::iter(writes).buffer_unordered(IN_FLIGHT_MAX);
        let mut result = Ok(());
        while let Some(written) = writes.next().await {
            result = result.and(written);
        }
        result
    }
}

/// Divides a run of live blocks into parts that one request can read.
fn split(run: &[Live], bytes_max: u64, blocks_max: usize) -> Vec<&[Live]> {
    let span = run.last().map_or(0, |last| last.at - run[0].at + 1);
    match u64::from(span) * BLOCK_BYTES <= bytes_max {
        true => vec![run],
        false => run.chunks(blocks_max).collect(),
    }
}
