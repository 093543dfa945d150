//! Search for blocks in the segments of a side, whose places are lost because pages of the map are
//! damaged. What the segments say about their blocks leads to candidates. Which of them is the
//! valid content is for the caller to decide, who knows the checksums.
//!
//! The search must run before the segments are filled again: a segment without a place in the map
//! is free otherwise.

use std::cell::Cell;
use std::ops::Range;

use bimetal_rt::turn::{count_entries, give_way};
use futures_util::stream::{self, StreamExt};

use super::description::{self, Birth, Described};
use super::{Place, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::store::entry::{HEADER_BYTES, Header};
use crate::layers::mirror::superblock::areas::PAGE_BLOCKS;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Maximum number of segments that are read at once.
const IN_FLIGHT_MAX: usize = 8;
/// Maximum gap between two blocks that are read with one request, and maximum number of its blocks.
const READ_GAP_BLOCKS_MAX: u32 = 16;
const READ_BLOCKS_MAX: u32 = 256;

/// A block of the segments that may be the valid content of a block whose place is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Found {
    /// Number of the block in the virtual range.
    pub(in super::super) block: u64,
    pub(in super::super) birth: Birth,
    pub(in super::super) digest: u32,
    /// Generation of its segment, or 0 if the log has filled it. Of two contents of the same age,
    /// cleaning has moved the one with the higher generation later. The segment of the other one
    /// may have been free, and must become free again.
    pub(in super::super) moved_in: u64,
    /// Number of the block in the segments.
    at: u32,
}

impl Segments {
    /// Returns the blocks of the virtual range whose places are lost.
    pub(in super::super) fn lost_places(&self) -> RangeSet {
        let mut lost = RangeSet::new();
        lost.extend(self.places.borrow().lost().map(|block| block..block + 1));
        lost
    }

    /// Returns the ranges of a volume of `volume_bytes` whose places are lost.
    pub(in super::super) fn lost_ranges(&self, volume_bytes: u64) -> RangeSet {
        let first = self.first_volume_block();
        let mut lost = RangeSet::new();
        let blocks = first..first + volume_bytes / BLOCK_BYTES;
        for blocks in self.lost_places().parts_in(&blocks) {
            lost.insert((blocks.start - first) * BLOCK_BYTES..(blocks.end - first) * BLOCK_BYTES);
        }
        lost
    }

    /// Returns the ranges of a volume of `volume_bytes` whose places were lost since the last call,
    /// because a page of the map was found damaged while the side is in use.
    pub(in super::super) fn take_newly_lost(&self, volume_bytes: u64) -> RangeSet {
        let mut lost = RangeSet::new();
        for page in std::mem::take(&mut *self.newly_lost.borrow_mut()) {
            let first = self.first_volume_block();
            let blocks = (page * PAGE_BLOCKS).max(first)..(page + 1) * PAGE_BLOCKS;
            for block in blocks {
                let offset = (block - first) * BLOCK_BYTES;
                let is_lost = self.places.borrow().get(block) == Some(Place::Lost);
                if is_lost && offset < volume_bytes {
                    lost.insert(offset..offset + BLOCK_BYTES);
                }
            }
        }
        lost
    }

    /// Returns the number of blocks of the virtual range before the first block of the volume:
    /// pages of the checksums.
    pub(in super::super) fn first_volume_block(&self) -> u64 {
        self.pages_bytes / BLOCK_BYTES
    }

    /// Returns all blocks of the segments that are described as one of the `wanted` blocks. Calls
    /// `told` with the length of the segments that were searched, and that of all segments, in
    /// bytes.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn find(
        &self,
        wanted: &RangeSet,
        told: &dyn Fn(u64, u64),
    ) -> Result<Vec<Found>, IoError> {
        let (all, bytes) = (self.layout.segments(), self.layout.segment_bytes);
        let done = Cell::new(0);
        let searches = (0..all as u32).map(async |segment| {
            let found = self.find_in(segment, wanted).await;
            done.set(done.get() + 1);
            told(done.get() * bytes, all * bytes);
            found
        });
        let mut searches = stream::iter(searches).buffer_unordered(IN_FLIGHT_MAX);
        let mut found = Vec::new();
        while let Some(some) = searches.next().await {
            found.extend(some?);
        }
        Ok(found)
    }

    async fn find_in(&self, segment: u32, wanted: &RangeSet) -> Result<Vec<Found>, IoError> {
        let mut found = Vec::new();
        for part in self.all_descriptions(segment).await? {
            give_way().await;
            count_entries(part.described.len());
            for (at, of) in (part.first..).zip(&part.described) {
                if of.is_something() && wanted.covers(&(of.block..of.block + 1)) {
                    found.push(Found {
                        block: of.block,
                        birth: of.birth,
                        digest: of.digest,
                        moved_in: self.chain.moved_in(part.generation),
                        at,
                    });
                }
            }
        }
        Ok(found)
    }

    /// Returns all that a segment says about its blocks: the summary, and, if the segment was begun
    /// again since, what the chunks and entries say that it was filled with.
    async fn all_descriptions(&self, segment: u32) -> Result<Vec<Part>, IoError> {
        let first = segment * self.layout.segment_blocks() as u32;
        let mut all = Vec::new();
        let summary = self.read_summary(segment).await?;
        let summarised = summary.as_ref().map(|(generation, _)| *generation);
        if let Some((generation, described)) = summary {
            all.push(Part {
                generation,
                first,
                described,
            });
            let begun = self.read_blocks(first, 1).await?.pop().flatten();
            let begun = begun.and_then(|block| self.walk(&block, 0));
            if begun.is_some_and(|walked| Some(walked.generation) == summarised) {
                return Ok(all);
            }
        }
        self.walk_through(first, &mut all).await?;
        Ok(all)
    }

    /// Adds what the chunks and entries say that a segment was filled with. Blocks that say nothing
    /// are passed over: between two incarnations of the log is a gap.
    async fn walk_through(&self, first: u32, all: &mut Vec<Part>) -> Result<(), IoError> {
        let usable = self.layout.usable_blocks() as u32;
        // Index of the next block that may describe others: content must not be taken for that.
        let mut next = 0;
        let mut start = 0;
        while start < usable {
            let count = READ_BLOCKS_MAX.min(usable - start);
            if next < start + count {
                let read = self.read_blocks(first + start, count).await?;
                for (index, block) in (start..).zip(read) {
                    give_way().await;
                    let Some(block) = block.filter(|_| index >= next) else {
                        continue;
                    };
                    let Some(walked) = self.walk(&block, index) else {
                        continue;
                    };
                    next = walked.next;
                    all.push(Part {
                        generation: walked.generation,
                        first: first + walked.first,
                        described: walked.described,
                    });
                }
            }
            start += count;
        }
        Ok(())
    }

    /// Reads a segment, and returns what its blocks hold: what the chunks and entries in it say,
    /// where the content has the digest that they name.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(super) async fn described_by_content(
        &self,
        segment: u32,
    ) -> Result<Vec<Described>, IoError> {
        let first = segment * self.layout.segment_blocks() as u32;
        let usable = self.layout.usable_blocks() as u32;
        let mut all = vec![Described::NOTHING; usable as usize];
        let mut next = 0;
        for start in (0..usable).step_by(READ_BLOCKS_MAX as usize) {
            let count = READ_BLOCKS_MAX.min(usable - start);
            let blocks = self.read_blocks(first + start, count).await?;
            for (index, block) in (start..).zip(blocks) {
                give_way().await;
                let Some(block) = block else { continue };
                let known = &mut all[index as usize];
                if known.is_something() {
                    if self.digest.of(&block) == known.digest {
                        continue;
                    }
                    // What describes this block is of an earlier generation.
                    *known = Described::NOTHING;
                    next = index;
                }
                if index < next {
                    continue;
                }
                if let Some(walked) = self.walk(&block, index) {
                    next = walked.next;
                    let into = &mut all[walked.first as usize..];
                    into[..walked.described.len()].copy_from_slice(&walked.described);
                }
            }
        }
        Ok(all)
    }

    /// Reads consecutive blocks; `None` for one that cannot be read.
    async fn read_blocks(&self, at: u32, count: u32) -> Result<Vec<Option<Vec<u8>>>, IoError> {
        let read = Request::read(self.offset_at(at), u64::from(count) * BLOCK_BYTES);
        match self.device.submit(read).await {
            Ok(reply) => {
                let data = reply.into_data().to_vec();
                let blocks = data.chunks_exact(BLOCK_BYTES as usize);
                Ok(blocks.map(|block| Some(block.to_vec())).collect())
            }
            Err(error) if error.is_of_a_block() && count > 1 => {
                let mut read = Vec::with_capacity(count as usize);
                for block in at..at + count {
                    read.extend(Box::pin(self.read_blocks(block, 1)).await?);
                }
                Ok(read)
            }
            Err(error) if error.is_of_a_block() => Ok(vec![None]),
            Err(error) => Err(error),
        }
    }

    /// Interprets the block with the index `index` in a segment as one that describes others: of a
    /// chunk, or the header of an entry of the log.
    fn walk(&self, block: &[u8], index: u32) -> Option<Walked> {
        let usable = self.layout.usable_blocks();
        let inside = |next: u64| (next <= usable).then_some(next as u32);
        if let Some((head, described)) = description::decode(&self.side, block) {
            let next = inside(u64::from(index) + u64::from(head.next))?;
            let end = u64::from(head.first) + described.len() as u64;
            let follows = next > index && head.first > index && end <= usable;
            return follows.then_some(Walked {
                generation: head.generation,
                first: head.first,
                described,
                next,
            });
        }
        let header = Header::decode(block).filter(|header| header.side == self.side)?;
        let (_, generation) = self.chain.generation_at(header.position);
        let is_here = header.position / BLOCK_BYTES % usable == u64::from(index);
        let next = inside(u64::from(index) + (header.end() - header.position) / BLOCK_BYTES)?;
        is_here.then(|| Walked {
            generation,
            first: index + (HEADER_BYTES / BLOCK_BYTES) as u32,
            described: self.chain.described_by(&header),
            next,
        })
    }

    /// Returns true when a block is in a segment of the log, at the position `head` of the log or
    /// behind it.
    pub(in super::super) fn is_ahead_of_log(&self, found: &Found, head: u64) -> bool {
        let segment_blocks = self.layout.segment_blocks() as u32;
        let (segment, index) = (found.at / segment_blocks, found.at % segment_blocks);
        let start = self.chain.start_of(segment);
        start.is_some_and(|start| start + u64::from(index) * BLOCK_BYTES >= head)
    }

    /// Reads candidates, and returns those whose content has the digest of their description.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn intact(
        &self,
        mut found: Vec<Found>,
    ) -> Result<Vec<Found>, IoError> {
        found.sort_unstable_by_key(|found| found.at);
        let together = |a: &Found, b: &Found| b.at - a.at <= READ_GAP_BLOCKS_MAX;
        let mut intact = Vec::with_capacity(found.len());
        for near in found.chunk_by(together) {
            let mut left = near;
            while let Some(first) = left.first() {
                let end = left.partition_point(|of| of.at - first.at < READ_BLOCKS_MAX);
                let (now, rest) = left.split_at(end);
                left = rest;
                self.keep_intact(now, &mut intact).await?;
            }
        }
        Ok(intact)
    }

    async fn keep_intact(&self, run: &[Found], intact: &mut Vec<Found>) -> Result<(), IoError> {
        let (first, last) = (run[0].at, run[run.len() - 1].at);
        let bytes = u64::from(last - first + 1) * BLOCK_BYTES;
        let read = self
            .device
            .submit(Request::read(self.offset_at(first), bytes));
        let data = match read.await {
            Ok(reply) => reply.into_data().to_vec(),
            Err(error) if error.is_of_a_block() && run.len() > 1 => {
                for one in run {
                    Box::pin(self.keep_intact(std::slice::from_ref(one), intact)).await?;
                }
                return Ok(());
            }
            Err(error) if error.is_of_a_block() => return Ok(()),
            Err(error) => return Err(error),
        };
        give_way().await;
        for one in run {
            let start = (one.at - first) as usize * BLOCK_BYTES as usize;
            let block = &data[start..start + BLOCK_BYTES as usize];
            if self.digest.of(block) == one.digest {
                intact.push(*one);
            }
        }
        Ok(())
    }

    /// Gives a block its place again, if it is still lost.
    pub(in super::super) fn restore(&self, found: &Found) {
        self.restore_place(found.block, Place::At(found.at));
    }

    /// Records that a block whose place is lost has none, if it is still lost: it was never
    /// written, or was discarded.
    pub(in super::super) fn restore_nowhere(&self, block: u64) {
        self.restore_place(block, Place::Nowhere);
    }

    fn restore_place(&self, block: u64, place: Place) {
        let is_taken = match place {
            Place::At(at) => self.usage.borrow().is_live(at),
            Place::Nowhere | Place::Lost => false,
        };
        if self.places.borrow().get(block) == Some(Place::Lost) && !is_taken {
            self.set_place(block, place);
        }
    }

    /// Returns the range of the device that the segments take.
    pub(in super::super) fn device_range(&self) -> Range<u64> {
        self.layout.area.0..self.layout.area.0 + self.layout.area.1
    }

    /// Returns the blocks of the volume that are in a range of the device: the offset of each on
    /// the device, and its offset in the volume, in the order of the volume.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn stored_in(
        &self,
        range: &Range<u64>,
    ) -> Result<Vec<(u64, u64)>, IoError> {
        let pages = self.places.borrow().pages();
        let mut stored = Vec::new();
        for page in 0..pages {
            give_way().await;
            count_entries(PAGE_BLOCKS as usize);
            let _known = self.know_page(page).await?;
            for (block, at) in self.places.borrow().stored_in_page(page) {
                let at = self.offset_at(at);
                if block >= self.first_volume_block() && range.contains(&at) {
                    stored.push((at, block * BLOCK_BYTES - self.pages_bytes));
                }
            }
        }
        Ok(stored)
    }
}

/// A part of what a segment says about its blocks.
struct Part {
    generation: u64,
    /// Number of the first described block.
    first: u32,
    described: Vec<Described>,
}

/// What a block of a segment says about the blocks that follow it.
struct Walked {
    generation: u64,
    /// Index in the segment of the first described block.
    first: u32,
    described: Vec<Described>,
    /// Index in the segment of the next block that describes others.
    next: u32,
}

/// Returns the range of blocks that a list of ranges begins with, at most `blocks_max` blocks, as a
/// set, and removes it from the list.
pub(in super::super) fn take_some(left: &mut RangeSet, blocks_max: u64) -> RangeSet {
    let mut some = RangeSet::new();
    let mut room = blocks_max;
    let ranges: Vec<Range<u64>> = left.iter().collect();
    for range in ranges {
        if room == 0 {
            break;
        }
        let part = range.start..range.end.min(range.start + room);
        room -= part.end - part.start;
        left.remove(part.clone());
        some.insert(part);
    }
    some
}
