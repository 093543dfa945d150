//! Cleaning: moves the live content of segments that hold little, so that a commit frees these
//! segments.
//!
//! A block that changes while it is moved keeps its newer place: the map is changed only if it
//! still names the old one. Until the next commit the old place counts, and it stays as it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bimetal_policy::cleaning::victims::{Candidate, Yield, expected_yield, next_victims};
use bimetal_rt::Payload;
use bimetal_rt::turn::{count_entries, give_way};
use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt};

use super::description::{Birth, Described};
use super::map_pages::FIRST_PAGE;
use super::streams::{Chunk, Stream};
use super::usage::{Segment, State};
use super::{Pins, Place, SPARED_FOR_CLEANING, SPARED_FOR_PAGES, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::layers::mirror::superblock::areas::{DESCRIBED_MAX, PAGE_BLOCKS};
use crate::request::{Flags, Origin, Request};

/// Maximum number of blocks that are moved between two commits.
const BATCH_BLOCKS_MAX: u64 = 16 << 10;
/// Maximum number of segments that are cleaned between two commits.
const VICTIMS_MAX: usize = 64;
/// Maximum number of segments whose summaries are read together.
const VICTIMS_TOGETHER: usize = 8;
/// Number of next victims whose cost paces the log.
const VICTIMS_AHEAD: usize = 64;
/// Maximum gap between two live blocks that are read with one request.
const READ_GAP_BLOCKS_MAX: u32 = 16;
/// Maximum number of bytes in one request.
pub(super) const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of requests in flight to the side.
const IN_FLIGHT_MAX: usize = 4;

/// A live block of a segment that is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Live {
    /// Number of its block in the segments.
    at: u32,
    /// Number of the block in the virtual range.
    pub(super) block: u64,
    /// Age of the content; the default when it is unknown.
    birth: Birth,
    /// Digest of the content as the segment describes it; `None` when it is unknown.
    pub(super) digest: Option<u32>,
}

impl Live {
    /// Describes a block `block` of the virtual range that is at the block `at` of the segments and
    /// is of the age `birth`. Its digest is that of the checksums.
    pub(super) fn of(block: u64, at: u32, birth: Birth) -> Live {
        Live {
            at,
            block,
            birth,
            digest: None,
        }
    }

    /// Returns the number of its block in the segments.
    pub(super) fn at(&self) -> u64 {
        u64::from(self.at)
    }
}

/// Segments that are emptied before the next commit.
pub(in super::super) struct Batch<'s> {
    /// Segments whose live blocks are not known yet.
    unread: VecDeque<u32>,
    /// Live blocks of the other segments that are not moved yet, in the order of the segments.
    live: VecDeque<Live>,
    cost: Yield,
    moved_blocks: u64,
    /// Whether content was appended again.
    has_moved: bool,
    segments: usize,
    /// Blocks that cleaning gains in each segment that is not emptied yet.
    gains: BTreeMap<u32, u64>,
    /// Blocks that cleaning has gained in the segments that are emptied.
    emptied_blocks: u64,
    /// Keeps the segments from being filled anew while their blocks are read.
    pins: Pins<'s>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.pins.of.pace.end_batch();
    }
}

impl Batch<'_> {
    /// Returns true when everything was moved.
    pub(in super::super) fn is_over(&self) -> bool {
        self.live.is_empty() && self.unread.is_empty()
    }

    /// Returns true when more segments should be read before the next blocks are taken.
    pub(in super::super) fn wants_more(&self) -> bool {
        self.live.is_empty() && !self.unread.is_empty()
    }

    /// Returns true when something was appended again.
    pub(in super::super) fn has_moved(&self) -> bool {
        self.has_moved
    }

    /// Removes and returns the next blocks to move.
    pub(in super::super) fn take(&mut self, blocks: u64) -> Vec<Live> {
        let count = self.live.len().min(blocks as usize);
        self.live.drain(..count).collect()
    }

    /// Returns the blocks of space that the moved blocks have paid for in the segments that are not
    /// emptied yet.
    fn paid_blocks(&self) -> u64 {
        let gained = self.cost.gained_blocks * self.moved_blocks;
        let paid = gained / self.cost.moved_blocks.max(1);
        paid.saturating_sub(self.emptied_blocks)
    }

    /// Returns true when blocks of a segment may be left that were not taken.
    fn has_left(&self, segment: u32) -> bool {
        let usage = self.pins.of.usage.borrow();
        // The blocks that are not taken are in the order of the segments.
        let next = self.live.front().map(|live| usage.segment_of(live.at));
        next.is_some_and(|next| next <= segment) || self.unread.contains(&segment)
    }

    /// Removes and returns the segments of which every block was taken.
    fn take_emptied(&mut self) -> Vec<u32> {
        let segments: Vec<u32> = self.gains.keys().copied().collect();
        let is_emptied = |segment: &u32| !self.has_left(*segment);
        let emptied: Vec<u32> = segments.into_iter().filter(is_emptied).collect();
        for segment in &emptied {
            self.emptied_blocks += self.gains.remove(segment).unwrap_or(0);
        }
        emptied
    }
}

impl Segments {
    fn candidate(&self, number: u32, segment: &Segment) -> Option<Candidate> {
        let State::Sealed(sealed_at_blocks) = segment.state else {
            return None;
        };
        if !self.is_counted() {
            return None;
        }
        // The blocks of the journal in a segment die together, before long.
        if self.journal.borrow().is_in(number) {
            return None;
        }
        Some(Candidate {
            id: number,
            live_blocks: segment.live,
            capacity_blocks: self.content_blocks() as u32,
            sealed_at_blocks,
        })
    }

    /// Returns the number of blocks with content that fit a segment in long chunks.
    pub(super) fn content_blocks(&self) -> u64 {
        self.layout.usable_blocks() * DESCRIBED_MAX / (DESCRIBED_MAX + 1)
    }

    /// Sets whether cleaning is due whenever a segment has a dead block.
    pub(in super::super) fn clean_always(&self, always: bool) {
        self.pace.clean_always(always);
    }

    /// Tells the pace of the side how many segments are free, and what the next victims cost.
    pub(super) fn tell_pace(&self) {
        let usage = self.usage.borrow();
        let sealed = usage.all().filter_map(|(n, s)| self.candidate(n, &s));
        let next = expected_yield(sealed, usage.appended_blocks, VICTIMS_AHEAD);
        self.pace
            .set_segments(usage.free_count(), self.dead_count(), next);
    }

    /// Chooses segments to empty before the next commit, as far as the free segments have room for
    /// their content; `None` when no segment can be cleaned now. If content may be given up, some
    /// are chosen even where there is no room.
    pub(in super::super) fn begin_batch(&self, gives_up: bool) -> Option<Batch<'_>> {
        let (victims, pins) = self.choose_victims(gives_up)?;
        let of_victims = victims.iter().map(Candidate::cleaning_yield);
        Some(Batch {
            segments: victims.len(),
            unread: victims.iter().map(|victim| victim.id).collect(),
            live: VecDeque::new(),
            moved_blocks: 0,
            has_moved: false,
            cost: of_victims.fold(Yield::default(), Yield::plus),
            gains: victims
                .iter()
                .map(|victim| (victim.id, victim.cleaning_yield().gained_blocks))
                .collect(),
            emptied_blocks: 0,
            pins,
        })
    }

    /// Finds the live blocks of the next segments of a batch. The summaries of all of them together
    /// could take a disk a second. Returns the pages of the checksums that are in the segments:
    /// they are not moved but written again, like all of these pages, so that they are read back.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn read_next_victims(
        &self,
        batch: &mut Batch<'_>,
    ) -> Result<Vec<u64>, IoError> {
        let count = batch.unread.len().min(VICTIMS_TOGETHER);
        let victims: Vec<u32> = batch.unread.drain(..count).collect();
        let live = self.live_in(&victims).await?;
        let first_block = self.pages_bytes / BLOCK_BYTES;
        let (content, of_checksums): (Vec<Live>, Vec<Live>) =
            live.into_iter().partition(|live| live.block >= first_block);
        batch.moved_blocks += of_checksums.len() as u64;
        batch.has_moved |= !of_checksums.is_empty();
        batch.live.extend(content);
        Ok(of_checksums.iter().map(|live| live.block).collect())
    }

    fn choose_victims(&self, gives_up: bool) -> Option<(Vec<Candidate>, Pins<'_>)> {
        let mut usage = self.usage.borrow_mut();
        let sealed = usage.all().filter_map(|(n, s)| self.candidate(n, &s));
        let next = next_victims(sealed, usage.appended_blocks, VICTIMS_MAX);
        let content_blocks = self.content_blocks();
        let room = room_segments(usage.free_count()) as u64 * content_blocks;
        // Without any, what cleaning fills now may have room for the content of a segment.
        let room = room.max(self.room_in_open(Stream::Moved));
        let batch_max = BATCH_BLOCKS_MAX.max(content_blocks);
        let blocks_max = match gives_up {
            true => batch_max,
            false => room.min(batch_max),
        };
        let (mut victims, mut moved_blocks) = (Vec::new(), 0);
        for victim in next {
            moved_blocks += u64::from(victim.live_blocks);
            if moved_blocks > blocks_max {
                break;
            }
            victims.push(victim);
        }
        if victims.is_empty() {
            return None;
        }
        let segments: Vec<u32> = victims.iter().map(|victim| victim.id).collect();
        segments.iter().for_each(|segment| usage.pin(*segment));
        Some((victims, Pins { of: self, segments }))
    }

    /// Returns the offset in the volume of a live block.
    pub(in super::super) fn volume_offset(&self, live: &Live) -> u64 {
        live.block * BLOCK_BYTES - self.pages_bytes
    }

    /// Returns the offsets in the volume of blocks of a piece that are not in its content.
    pub(in super::super) fn unread(&self, piece: &[Live], content: &[(Live, Payload)]) -> Vec<u64> {
        let mut found: Vec<Live> = content.iter().map(|(live, _)| *live).collect();
        found.sort_unstable();
        let is_unread = |live: &&Live| found.binary_search(live).is_err();
        let unread = piece.iter().filter(is_unread);
        unread.map(|live| self.volume_offset(live)).collect()
    }

    /// Returns the live blocks of some segments, in the order of the segments. Pages of the map and
    /// of the page table are not among them: these are marked to be written again.
    async fn live_in(&self, victims: &[u32]) -> Result<Vec<Live>, IoError> {
        let mut live = Vec::new();
        let mut unknown = Vec::new();
        let described = victims.iter().map(|victim| self.described(*victim));
        for (victim, summary) in victims.iter().zip(try_join_all(described).await?) {
            give_way().await;
            let by_summary = summary.as_ref().and_then(|summary| {
                self.live_by_summary(*victim, &summary.described, summary.is_newest)
            });
            let found = match by_summary {
                // The places of some blocks are only in pages of the map that are not in memory.
                None if !self.places.borrow().are_all_known() => {
                    self.count(|counts| counts.map_searches += 1);
                    let described = self.described_by_content(*victim).await?;
                    self.live_by_summary(*victim, &described, true)
                }
                found => found,
            };
            match found {
                Some(found) => live.extend(found),
                None => unknown.push(*victim),
            }
        }
        if !unknown.is_empty() {
            live.extend(self.live_by_map(&unknown).await?);
        }
        live.sort_unstable();
        Ok(live)
    }

    /// Returns the live blocks of a segment as its descriptions say, and marks the pages of the map
    /// and of the page table in it; `None` when they do not tell all that is live. `is_newest` says
    /// whether they certainly describe what is in the segment now.
    fn live_by_summary(
        &self,
        segment: u32,
        described: &[Described],
        is_newest: bool,
    ) -> Option<Vec<Live>> {
        count_entries(described.len());
        let first = segment * self.layout.segment_blocks() as u32;
        let (mut live, mut pages) = (Vec::new(), 0);
        for (at, of) in (first..).zip(described) {
            if of.block < self.places.borrow().blocks() {
                let is_live = match is_newest {
                    true => self.is_live_at(of.block, at),
                    false => self.places.borrow().is_at(of.block, at) == Some(true),
                };
                if is_live {
                    live.push(Live {
                        at,
                        block: of.block,
                        birth: of.birth,
                        digest: Some(of.digest),
                    });
                }
                continue;
            }
            let (mut places, mut tables) = (self.places.borrow_mut(), self.tables.borrow_mut());
            if tables.mark_at(of.block, at) {
                pages += 1;
            } else if let Some(page) = of.block.checked_sub(FIRST_PAGE)
                && page < places.pages()
                && tables.get(page).block() == Some(at)
            {
                places.mark([page]);
                pages += 1;
            }
        }
        let all = self.usage.borrow().live_in(segment);
        (live.len() as u32 + pages == all).then_some(live)
    }

    /// Returns whether a block is at a place that it was stored at. If it is not, although the
    /// place counts as live, only a page of the map on the device refers to it, and the block has
    /// changed since, or that page is lost: the place is dead then.
    fn is_live_at(&self, block: u64, at: u32) -> bool {
        let (mut places, mut usage) = (self.places.borrow_mut(), self.usage.borrow_mut());
        if !usage.is_live(at) {
            return false;
        }
        match places.is_at(block, at) {
            // Only the page says it, and what it says counts as live.
            None => true,
            Some(true) => true,
            Some(false) => {
                if places.settle(block) || places.is_known(block / PAGE_BLOCKS) {
                    usage.remove_live(at);
                }
                false
            }
        }
    }

    /// Returns the live blocks of some segments by a search in the whole map, and marks the pages
    /// of the map and of the page table in them. The age of the blocks is unknown.
    async fn live_by_map(&self, victims: &[u32]) -> Result<Vec<Live>, IoError> {
        self.count(|counts| counts.map_searches += 1);
        let mut is_victim = vec![false; self.usage.borrow().count()];
        victims.iter().for_each(|v| is_victim[*v as usize] = true);
        let is_inside = |block| is_victim[self.usage.borrow().segment_of(block) as usize];
        let of_map: Vec<u64> = {
            let mut tables = self.tables.borrow_mut();
            tables.mark_in(is_inside);
            let inside = tables.all();
            let inside = inside.filter(|(_, entry)| entry.block().is_some_and(is_inside));
            inside.map(|(page, _)| page).collect()
        };
        self.places.borrow_mut().mark(of_map);
        let mut live = Vec::new();
        let pages = self.places.borrow().pages();
        for page in 0..pages {
            give_way().await;
            count_entries(PAGE_BLOCKS as usize);
            let _known = self.know_page(page).await?;
            let stored = self.places.borrow().stored_in_page(page).into_iter();
            live.extend(stored.filter(|of| is_inside(of.1)).map(|(block, at)| Live {
                at,
                block,
                birth: Birth::default(),
                digest: None,
            }));
        }
        self.forget_dead(victims, &live);
        Ok(live)
    }

    /// Counts all blocks of some segments as dead to which nothing refers: neither one of the
    /// `live` blocks is there, nor a page of the map or of the page table. What a page said that is
    /// lost counts as live until then.
    fn forget_dead(&self, victims: &[u32], live: &[Live]) {
        let mut usage = self.usage.borrow_mut();
        let mut referred: BTreeSet<u32> = live.iter().map(|live| live.at).collect();
        referred.extend(self.tables.borrow().blocks());
        for victim in victims {
            let dead = usage.live_blocks(*victim);
            let dead: Vec<u32> = dead.filter(|at| !referred.contains(at)).collect();
            dead.into_iter().for_each(|at| usage.remove_live(at));
        }
    }

    /// Appends content of a batch again, which was read with [`read_own`](Self::read_own) or
    /// [`read_from`](Self::read_from), and records that `blocks` blocks of the batch are done.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free.
    pub(in super::super) async fn move_content(
        &self,
        batch: &mut Batch<'_>,
        blocks: u64,
        content: Vec<(Live, Payload)>,
    ) -> Result<(), IoError> {
        batch.has_moved |= !content.is_empty();
        self.write_moved(Stream::Moved, content).await?;
        batch.moved_blocks += blocks;
        self.pace
            .note_moved(blocks, batch.paid_blocks(), &batch.cost);
        // Copies of a rebuild may append more.
        self.freed.notify();
        Ok(())
    }

    /// Lets the next commit free the segments of a batch of which every block was taken. All blocks
    /// that were taken must have been moved, or given up.
    pub(in super::super) fn release_emptied(&self, batch: &mut Batch<'_>) {
        let emptied = batch.take_emptied();
        batch.pins.unpin(&emptied);
        let usage = self.usage.borrow();
        let dead = emptied.iter().filter(|segment| usage.is_dead(**segment));
        self.pace.note_emptied(dead.count(), batch.paid_blocks());
        drop(usage);
        // A task may wait for what a commit frees now.
        self.freed.notify();
    }

    /// Records that a batch is over. The next commit frees its segments.
    pub(in super::super) fn end_batch(&self, batch: Batch<'_>) {
        let segments = match batch.is_over() {
            true => batch.segments as u64,
            false => 0,
        };
        self.count(|counts| counts.cleaned_segments += segments);
        drop(batch);
        if is_planted(Bug::FreesEarly) {
            let dead = self.dead();
            self.usage.borrow_mut().release(&dead);
        }
        self.tell_pace();
    }

    /// Reads live blocks of this side, given in the order of the segments. Blocks that cannot be
    /// read are left out, and their segments are retired.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn read_own(
        &self,
        live: &[Live],
    ) -> Result<Vec<(Live, Payload)>, IoError> {
        let runs = self.read_together(live, READ_GAP_BLOCKS_MAX).into_iter();
        let reads = runs.map(|run| self.read_run(run));
        let mut reads = stream::iter(reads).buffer_unordered(IN_FLIGHT_MAX);
        let mut content = Vec::with_capacity(live.len());
        while let Some(read) = reads.next().await {
            content.extend(read?);
        }
        Ok(content)
    }

    /// Divides live blocks, given in the order of the segments, into runs that are read with one
    /// request each. A request passes over at most `gap_blocks_max` blocks between two of them.
    pub(super) fn read_together<'l>(
        &self,
        live: &'l [Live],
        gap_blocks_max: u32,
    ) -> Vec<&'l [Live]> {
        let segment_blocks = self.layout.segment_blocks() as u32;
        let together = |a: &Live, b: &Live| {
            b.at - a.at <= gap_blocks_max && a.at / segment_blocks == b.at / segment_blocks
        };
        let blocks_max = self.request_blocks_max() as u32;
        let runs = live.chunk_by(together);
        runs.flat_map(|run| split(run, blocks_max)).collect()
    }

    fn request_blocks_max(&self) -> u64 {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        REQUEST_BYTES_MAX.min(transfer) / BLOCK_BYTES
    }

    /// Divides content into parts of at most `blocks_max` blocks, in the order of the volume.
    pub(in super::super) fn in_parts(
        &self,
        mut content: Vec<(Live, Payload)>,
        blocks_max: usize,
    ) -> Vec<Vec<(Live, Payload)>> {
        content.sort_unstable_by_key(|(live, _)| live.block);
        let parts = content.chunks(blocks_max);
        parts.map(<[(Live, Payload)]>::to_vec).collect()
    }

    /// Reads live blocks that are [read together](Self::read_together). Blocks that cannot be read
    /// are left out, and their segment is retired.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn read_run(
        &self,
        run: &[Live],
    ) -> Result<Vec<(Live, Payload)>, IoError> {
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
                usage.retire(segment);
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the number of blocks of content of the longest chunk that is moved with one request.
    pub(in super::super) fn moved_together_max(&self) -> usize {
        let request_blocks = self.request_blocks_max();
        let described = request_blocks - request_blocks.div_ceil(DESCRIBED_MAX + 1);
        described.max(1) as usize
    }

    /// Appends content to a stream again, in the order of the volume, and makes the map refer to
    /// its new place where it still refers to the old one.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free.
    pub(super) async fn write_moved(
        &self,
        stream: Stream,
        mut content: Vec<(Live, Payload)>,
    ) -> Result<(), IoError> {
        content.sort_unstable_by_key(|(live, _)| live.block);
        let blocks_max = self.moved_together_max();
        let mut parts: Vec<(Range<usize>, Chunk<'_>)> = Vec::new();
        let (mut start, mut result) = (0, Ok(()));
        while start < content.len() {
            let end = content.len().min(start + blocks_max);
            let chunk = match self.take_moved(stream, &content[start..end]) {
                Ok(chunk) => chunk,
                Err(error) => {
                    // The chunks that were taken are written nevertheless: a segment that is full
                    // with them has no other summary.
                    result = Err(error);
                    break;
                }
            };
            let end = start + chunk.blocks as usize;
            parts.push((start..end, chunk));
            start = end;
        }
        let content = &content;
        let writes = parts
            .into_iter()
            .map(|(range, chunk)| self.write_part(stream, &content[range], chunk));
        let mut writes = stream::iter(writes).buffer_unordered(IN_FLIGHT_MAX);
        while let Some(written) = writes.next().await {
            result = result.and(written);
        }
        result
    }

    /// Takes blocks for the first of some blocks that are moved, as many as fit.
    fn take_moved(
        &self,
        stream: Stream,
        content: &[(Live, Payload)],
    ) -> Result<Chunk<'_>, IoError> {
        let mut data = Payload::empty();
        let mut blocks = Vec::with_capacity(content.len());
        for (live, block) in content {
            data.append(block.clone());
            blocks.push((live.block, live.birth));
        }
        self.take_chunk(stream, &blocks, &data)
    }

    async fn write_part(
        &self,
        stream: Stream,
        part: &[(Live, Payload)],
        chunk: Chunk<'_>,
    ) -> Result<(), IoError> {
        if is_planted(Bug::RefersBeforeWritten) {
            self.refer_to_moved(stream, part, chunk.at);
        }
        self.write_chunk(&chunk, Flags::NONE, Origin::NONE).await?;
        self.refer_to_moved(stream, part, chunk.at);
        Ok(())
    }

    fn refer_to_moved(&self, stream: Stream, part: &[(Live, Payload)], at: u32) {
        let orders = stream == Stream::Ordered;
        let goes_over_newer = match orders {
            true => is_planted(Bug::OrdersOverNewer),
            false => is_planted(Bug::MovesOverNewer),
        };
        for (at, (live, _)) in (at..).zip(part) {
            if !self.is_live_at(live.block, live.at) && !goes_over_newer {
                continue;
            }
            let before = Some(Place::At(live.at));
            if orders {
                self.exchange_place(live.block, Place::At(at), before);
                self.count(|counts| counts.ordered_blocks += 1);
            } else {
                self.change_place(live.block, Place::At(at), before);
                self.count(|counts| counts.moved_blocks += 1);
            }
        }
    }

    /// Makes the map refer to nothing where it still refers to a live block. Returns false when it
    /// refers to another place already.
    pub(in super::super) fn forget_live(&self, live: &Live) -> bool {
        let is_there = self.is_live_at(live.block, live.at);
        if is_there {
            let before = Some(Place::At(live.at));
            self.change_place(live.block, Place::Nowhere, before);
        }
        is_there
    }

    /// Returns true when so few segments are free that everything must be moved that keeps one from
    /// becoming free, and that a commit should free each of them at once.
    pub(in super::super) fn is_cramped(&self) -> bool {
        self.usage.borrow().free_count() <= SPARED_FOR_CLEANING
    }

    /// Returns the number of blocks that have to be moved now.
    pub(in super::super) fn due_blocks(&self) -> u64 {
        self.pace.due_blocks()
    }

    /// Waits until cleaning may be due, or `is_over` returns true.
    pub(in super::super) async fn until_due(&self, is_over: impl Fn() -> bool) {
        let is_due = || is_over() || self.pace.due_blocks() > 0;
        self.pace.work.until(is_due).await;
    }

    /// Returns a value that changes when the map is committed, and when the log or a task begins to
    /// wait for the cleaner.
    pub(in super::super) fn moment(&self) -> (u64, u64) {
        (self.commits(), self.pace.requests())
    }

    /// Waits until [`moment`](Self::moment) is no longer `moment`, or `is_over` returns true.
    pub(in super::super) async fn until_after(
        &self,
        moment: (u64, u64),
        is_over: impl Fn() -> bool,
    ) {
        let is_after = || is_over() || self.moment() != moment;
        self.pace.work.until(is_after).await;
    }

    /// Wakes the cleaner, so that it notices that the store ends.
    pub(in super::super) fn wake(&self) {
        self.pace.work.notify();
        self.freed.notify();
    }
}

/// Returns the number of segments that content may be moved to before the next commit, when `free`
/// segments are free. The commit needs others for pages. If few are free, one is enough: it changes
/// few pages.
fn room_segments(free: usize) -> usize {
    match free {
        0..=SPARED_FOR_PAGES => 0,
        _ if free < SPARED_FOR_CLEANING => 1,
        _ => free - SPARED_FOR_CLEANING + 1,
    }
}

/// Divides a run of live blocks into parts that span at most `blocks_max` blocks.
fn split(run: &[Live], blocks_max: u32) -> Vec<&[Live]> {
    let mut parts = Vec::new();
    let mut rest = run;
    while let Some(first) = rest.first() {
        let end = rest.partition_point(|live| live.at - first.at < blocks_max);
        let (part, left) = rest.split_at(end);
        parts.push(part);
        rest = left;
    }
    parts
}
