//! Bringing changes home from the log: a chunk of the oldest entries at a time, sorted and merged,
//! and without what newer ones have replaced.
//!
//! Only what is durable in the log and complete goes home, so that the home is never ahead of what
//! the side could be started with. An entry is dropped when its records are durable at home, with
//! their checksums, and every other side has them or the map marks their regions.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;
use bimetal_rt::sync::TaskGroup;

use super::Store;
use super::checksums::{Checksums, Expected};
use super::content::Crcs;
use super::index::{Content, Index, Logged};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::{Flags, Op, Origin, Request};

/// A chunk has at most so much that goes home; it is in memory meanwhile.
const CHUNK_LIVE_BYTES_MAX: u64 = 64 << 20;
/// Neighbours are merged up to this.
const WRITE_BYTES_MAX: u64 = 1 << 20;
/// A side counts as idle when nobody has wanted anything for so long.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Whether it is time is looked at this often, at least.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After an error, nothing is brought home for so long.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A peer that is asked for content is waited for so long.
const PEER_PATIENCE: Duration = Duration::from_millis(20);
/// A page that is not found as it was written is written again so often.
const PAGE_TRIES: usize = 4;
/// Home writes between two turns of the log, on a device that does not seek.
const BURST_WRITES: usize = 8;
/// Reads of the log in flight.
const READS_IN_FLIGHT_MAX: usize = 4;
/// Pieces of the log that lie together are read together: so many, each at most so long, and with
/// at most so much between them that is of no use (a header, and a block that was replaced).
const READ_PIECES_MAX: usize = 64;
const READ_TOGETHER_BYTES_MAX: u64 = 64 << 10;
const READ_GAP_BYTES_MAX: u64 = 8 << 10;

/// How much of the log is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fill {
    /// Less than seven eighths: only an idle side brings things home. What is replaced meanwhile
    /// never has to go there.
    Low,
    /// Seven eighths of it or more: whenever nothing else is to be done.
    Much,
    /// Fifteen sixteenths or more, or so many runs: beside everything else.
    High,
    /// Changes wait for space: before everything else.
    Full,
}

/// What goes home together.
struct Chunk {
    /// The entries up to here are dropped afterwards.
    end: u64,
    pieces: Vec<(Range<u64>, Logged)>,
    /// The records that some side may not have.
    unreleased: Vec<Range<u64>>,
    replaced_bytes: u64,
}

/// Something that is written home as one operation.
struct HomeWrite {
    range: Range<u64>,
    /// Nothing for zeroes.
    data: Payload,
    expected: Vec<Expected>,
}

impl HomeWrite {
    /// Content with these checksums; without data, only they go home.
    fn of(range: &Range<u64>, data: Payload, crcs: &Crcs) -> HomeWrite {
        let expected = crcs.values().iter().map(|crc| Expected::Crc(*crc));
        HomeWrite {
            range: range.clone(),
            data,
            expected: expected.collect(),
        }
    }
}

impl Store {
    fn fill(&self) -> Fill {
        let (used, all) = (self.log.used_bytes(), self.log.usable_bytes());
        if self.log.is_full() {
            Fill::Full
        } else if used >= all / 16 * 15 || self.log.has_many_runs() {
            Fill::High
        } else if used >= all / 8 * 7 {
            Fill::Much
        } else {
            Fill::Low
        }
    }

    /// True when it is time for the next piece.
    fn may_destage(&self) -> bool {
        let held = || {
            let held = Rc::clone(&self.held.borrow());
            self.log.is_busy() || held()
        };
        match self.fill() {
            _ if self.hurries.get() > 0 => true,
            Fill::Full | Fill::High => true,
            Fill::Much => !held(),
            Fill::Low => self.rt.now().since(self.wanted.get()) >= IDLE_AFTER && !held(),
        }
    }

    /// Waits until it is time for the next piece.
    ///
    /// # Errors
    /// `Closed` when there is none any more.
    async fn turn(&self) -> Result<(), IoError> {
        let over = || self.ending.get() || self.may_destage();
        while !over() {
            let moved = self.log.changed.until(over);
            // An idle side is one where nothing happens, so the time is looked at as well.
            let _ = self.rt.timeout(LOOK_EVERY, moved).await;
        }
        if self.ending.get() {
            return Err(IoError::Closed);
        }
        Ok(())
    }

    /// Reads of the log in flight.
    fn reads_depth(&self) -> usize {
        if self.fill() <= Fill::Much {
            1
        } else {
            READS_IN_FLIGHT_MAX
        }
    }

    /// Home writes in flight.
    fn destage_depth(&self) -> usize {
        match self.fill() {
            _ if self.hurries.get() > 0 => 16,
            Fill::Full => 16,
            Fill::High => self.burst_writes(),
            Fill::Much => 1,
            Fill::Low => 4,
        }
    }

    /// Home writes between two turns of the log. A disk seeks for each, and what its log waits for so
    /// long is what clients wait for while the other side is frozen.
    fn burst_writes(&self) -> usize {
        match self.device.geometry().rotational {
            true => 1,
            false => BURST_WRITES,
        }
    }

    /// Brings changes home for ever, when it is time.
    pub(super) async fn destage_for_ever(self: Rc<Self>) {
        loop {
            let some = || !self.log.index.borrow().entries().is_empty();
            self.log.changed.until(some).await;
            if self.turn().await.is_err() {
                return;
            }
            let (tail, durable) = (self.log.tail(), self.log.flushed());
            let brought = self.destage_chunk().await;
            if let Err(error) = brought {
                // A change that waits for this space would wait for ever.
                self.log.fail_waiting(error);
                self.rt.sleep(RETRY_AFTER).await;
            } else if self.log.tail() == tail && self.log.flushed() == durable {
                // Nothing could go: a peer, or a change that is missing, must move first; or what
                // came meanwhile has filled the log and must be flushed.
                let full = || self.log.is_full() && self.log.has_unflushed();
                let moved = self.log.changed.until(|| full() || self.chunk().is_some());
                let _ = self.rt.timeout(IDLE_AFTER, moved).await;
            }
        }
    }

    /// Brings everything home that can go, and says whether that was all.
    ///
    /// # Errors
    /// When the device fails.
    pub(in super::super) async fn empty(self: &Rc<Self>) -> Result<bool, IoError> {
        self.hurries.set(self.hurries.get() + 1);
        let emptied = self.empty_now().await;
        self.hurries.set(self.hurries.get() - 1);
        emptied
    }

    /// Brings the oldest chunk home, and says whether that has made space. It need not be all that
    /// can go: what a side has kept for peers that are late saves them more than its region.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) async fn make_space(self: &Rc<Self>) -> Result<bool, IoError> {
        let tail = self.log.tail();
        self.hurries.set(self.hurries.get() + 1);
        let brought = self.destage_chunk().await;
        self.hurries.set(self.hurries.get() - 1);
        brought.map(|()| self.log.tail() > tail)
    }

    async fn empty_now(self: &Rc<Self>) -> Result<bool, IoError> {
        loop {
            let left = self.log.index.borrow().entries().len();
            if left == 0 {
                return Ok(true);
            }
            self.destage_chunk().await?;
            if self.log.index.borrow().entries().len() == left {
                return Ok(false);
            }
        }
    }

    /// Brings one chunk home and lets go of its entries.
    async fn destage_chunk(self: &Rc<Self>) -> Result<(), IoError> {
        let _one = self.destaging.acquire(1).await;
        if self.chunk().is_none() && self.log.has_unflushed() {
            self.log.flush(0).await?;
        }
        let Some(chunk) = self.chunk() else {
            return Ok(());
        };
        let writes = self.contents_of(&chunk).await?;
        self.write_home(writes).await?;
        for range in &chunk.unreleased {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
        }
        let pages = self.write_pages().await;
        let dropped = match pages {
            Ok(()) => self.log.drop_before(chunk.end).await,
            Err(error) => Err(error),
        };
        // A page that is not what was written says nothing of what was flushed.
        if let Err(error) = dropped
            && error != IoError::Corrupt
        {
            self.log.note_failed_flush(error);
        }
        dropped?;
        self.count(|counts| counts.replaced_bytes += chunk.replaced_bytes);
        Ok(())
    }

    /// Writes what has changed of the checksums and the map, durably, and reads it again: of a page
    /// nothing else tells that it is older than it should be. Everything written home before is
    /// durable afterwards as well.
    async fn write_pages(&self) -> Result<(), IoError> {
        for _ in 0..PAGE_TRIES {
            if let Some(checksums) = &self.checksums {
                checksums.write_back().await?;
            }
            if self.regions.dirty() {
                self.regions.write_back().await?;
            }
            self.device.submit(Request::flush()).await?;
            let mut taken = self.regions.verify().await?;
            if let Some(checksums) = &self.checksums {
                taken &= checksums.verify().await?;
            }
            if taken {
                return Ok(());
            }
        }
        Err(IoError::Corrupt)
    }

    /// What may go home next: the oldest entries that are durable, complete, and not needed by a
    /// member that is only late.
    fn chunk(&self) -> Option<Chunk> {
        let index = self.log.index.borrow();
        let (flushed, limit) = (self.log.flushed(), self.destage_limit());
        let patient = self.fill() < Fill::High;
        let log_bytes_max = self.log.area.bytes / 16;
        let (mut newest, mut end, mut begin) = (Index::default(), 0, None);
        for entry in index.entries() {
            let highest = entry.highest().unwrap_or(0);
            let needed = patient && highest >= self.released_below.get() && highest > 0;
            let begin = *begin.get_or_insert(entry.position);
            let large = newest.bytes() >= CHUNK_LIVE_BYTES_MAX || entry.end - begin > log_bytes_max;
            let first = end == 0;
            if entry.end > flushed || highest >= limit || needed || large && !first {
                break;
            }
            newest.push(entry.clone());
            end = entry.end;
        }
        (end > 0).then(|| self.pieces_of(&index, &newest, end, limit))
    }

    /// Changes below this number may go home.
    fn destage_limit(&self) -> u64 {
        if self.mixes.get() {
            u64::MAX
        } else {
            self.log.complete_durable()
        }
    }

    /// The newest records of a chunk, without what later ones have replaced that are durable and
    /// complete themselves.
    fn pieces_of(&self, index: &Index, newest: &Index, end: u64, limit: u64) -> Chunk {
        let flushed = self.log.flushed();
        let mut chunk = Chunk {
            end,
            pieces: Vec::new(),
            unreleased: Vec::new(),
            replaced_bytes: 0,
        };
        for (range, record) in newest.newest_in(&(0..self.volume_bytes.get())) {
            if self.marks_all.get() || record.number >= self.released_below.get() {
                chunk.unreleased.push(range.clone());
            }
            let mut position = range.start;
            let mut keep = |part: Range<u64>| {
                if !part.is_empty() {
                    use crate::extent_map::Cut;
                    let cut = record.cut(part.start - range.start..part.end - range.start);
                    chunk.pieces.push((part, cut));
                }
            };
            for (part, other) in index.newest_in(&range) {
                let replaced = other.number > record.number
                    && other.number < limit
                    && other.entry >= end
                    && other.entry < flushed;
                if replaced {
                    keep(position..part.start);
                    position = part.end;
                    chunk.replaced_bytes += part.end - part.start;
                }
            }
            keep(position..range.end);
        }
        chunk
    }

    /// Reads what goes home, in the order of the log, and puts it in the order of the home, with
    /// neighbours merged.
    async fn contents_of(&self, chunk: &Chunk) -> Result<Vec<HomeWrite>, IoError> {
        let mut pieces: Vec<&(Range<u64>, Logged)> = chunk.pieces.iter().collect();
        pieces.sort_by_key(|(_, record)| match record.content {
            Content::Data { position, .. } => position,
            Content::Zeroes | Content::Lost => u64::MAX,
        });
        let mut writes = Vec::with_capacity(pieces.len());
        let runs: Vec<&[&(Range<u64>, Logged)]> = pieces
            .chunk_by(|a, b| self.are_read_together(a, b))
            .flat_map(|run| run.chunks(READ_PIECES_MAX))
            .collect();
        let mut runs = runs.as_slice();
        while !runs.is_empty() {
            self.turn().await?;
            let (some, rest) = runs.split_at(self.reads_depth().min(runs.len()));
            runs = rest;
            let reads = some.iter().map(|run| self.contents_of_run(run));
            for run in futures_util::future::join_all(reads).await {
                writes.extend(run?);
            }
        }
        writes.sort_by_key(|write| write.range.start);
        Ok(merged(writes))
    }

    /// True when two pieces lie so close in the log that reading what is between them costs less
    /// than reading each for itself. A side that asks a peer reads little of its own log.
    fn are_read_together(&self, one: &(Range<u64>, Logged), next: &(Range<u64>, Logged)) -> bool {
        let place = |(range, record): &(Range<u64>, Logged)| match record.content {
            Content::Data { position, .. } => {
                let at = self.log.area.at(position);
                Some(at..at + (range.end - range.start))
            }
            Content::Zeroes | Content::Lost => None,
        };
        let (Some(one), Some(next)) = (place(one), place(next)) else {
            return false;
        };
        let (small, near) = (one.end - one.start, one.end..=one.end + READ_GAP_BYTES_MAX);
        small <= READ_TOGETHER_BYTES_MAX
            && near.contains(&next.start)
            && self.peer.borrow().is_none()
    }

    /// What goes home of a run of pieces that lie close together in the log, with one read. When it
    /// is not all as it should be, each piece is read for itself.
    async fn contents_of_run(
        &self,
        run: &[&(Range<u64>, Logged)],
    ) -> Result<Vec<HomeWrite>, IoError> {
        if run.len() > 1
            && let Some(writes) = self.read_run(run).await?
        {
            return Ok(writes);
        }
        let mut writes = Vec::with_capacity(run.len());
        for (range, record) in run {
            writes.push(self.content_of(range, record).await?);
        }
        Ok(writes)
    }

    async fn read_run(
        &self,
        run: &[&(Range<u64>, Logged)],
    ) -> Result<Option<Vec<HomeWrite>>, IoError> {
        let mut parts = Vec::with_capacity(run.len());
        for (range, record) in run {
            let Content::Data { position, crcs } = &record.content else {
                return Ok(None);
            };
            parts.push((range, self.log.area.at(*position), crcs));
        }
        let (first, (last, last_at, _)) = (parts[0].1, &parts[parts.len() - 1]);
        let bytes = last_at + (last.end - last.start) - first;
        if bytes > u64::from(self.device.geometry().transfer_bytes_max) {
            return Ok(None);
        }
        let read = Request::read(first, bytes);
        let data = match self.device.submit(read).await {
            Ok(reply) => reply.into_data(),
            Err(IoError::Medium) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.noticed.note();
        let mut writes = Vec::with_capacity(parts.len());
        for (range, at, crcs) in parts {
            let start = (at - first) as usize;
            let data = data.slice(start..start + (range.end - range.start) as usize);
            if !crcs.agree_with(&data) {
                return Ok(None);
            }
            writes.push(HomeWrite::of(range, data, crcs));
        }
        Ok(Some(writes))
    }

    async fn content_of(&self, range: &Range<u64>, record: &Logged) -> Result<HomeWrite, IoError> {
        let count = ((range.end - range.start) / BLOCK_BYTES) as usize;
        let without_data = |expected| HomeWrite {
            range: range.clone(),
            data: Payload::empty(),
            expected: vec![expected; count],
        };
        let crcs = match &record.content {
            Content::Zeroes => return Ok(without_data(Expected::NeverWritten)),
            Content::Lost => return Ok(without_data(Expected::Lost)),
            Content::Data { crcs, .. } => crcs,
        };
        if let Some(data) = self.content_from_peer(range, crcs).await {
            return Ok(HomeWrite::of(range, data, crcs));
        }
        match self.read_logged(range, record, Origin::NONE).await {
            Ok(data) => {
                self.noticed.note();
                Ok(HomeWrite::of(range, data, crcs))
            }
            Err(IoError::Corrupt) => {
                // What the log says that it should be is believed, and will not be found at home:
                // so it cannot be taken for the content before.
                self.suspect.borrow_mut().insert(range.clone());
                Ok(HomeWrite::of(range, Payload::empty(), crcs))
            }
            Err(error) => Err(error),
        }
    }

    /// What a peer has of a range, if that is what the log says it should be: so a disk need not
    /// seek to its own log.
    async fn content_from_peer(&self, range: &Range<u64>, crcs: &Crcs) -> Option<Payload> {
        let ask = self.peer.borrow().clone()?;
        // A peer that does not answer must not keep this side from its own log.
        let asked = self.rt.timeout(PEER_PATIENCE, ask(range.clone())).await;
        let data = asked.ok()??;
        crcs.agree_with(&data).then_some(data)
    }

    async fn write_home(self: &Rc<Self>, writes: Vec<HomeWrite>) -> Result<(), IoError> {
        let failed = Rc::new(Cell::new(None));
        let group = TaskGroup::new(&self.rt);
        let mut burst = 0;
        for write in writes {
            if let Err(error) = self.turn().await {
                failed.set(Some(error));
                break;
            }
            self.give_way_after_burst(&group, &mut burst).await;
            group.at_most(self.destage_depth().saturating_sub(1)).await;
            if failed.get().is_some() {
                break;
            }
            let (store, failed) = (Rc::clone(self), Rc::clone(&failed));
            group.spawn(async move {
                if let Err(error) = store.write_one_home(write).await {
                    failed.set(Some(error));
                }
            });
        }
        group.join().await;
        failed.get().map_or(Ok(()), Err)
    }

    /// Beside other work home writes come in bursts, and the log has its turn between two of them. A
    /// disk that orders its requests by place would otherwise go on through the home, where there is
    /// always one more, and never come back to the log.
    async fn give_way_after_burst(&self, group: &TaskGroup, burst: &mut usize) {
        *burst += 1;
        if *burst < self.burst_writes() || self.fill() != Fill::High || self.hurries.get() > 0 {
            return;
        }
        *burst = 0;
        group.join().await;
        let had = || self.fill() != Fill::High || !self.log.is_busy() || self.ending.get();
        // A log that is never idle has had its turn after a while.
        let _ = self
            .rt
            .timeout(LOOK_EVERY, self.log.changed.until(had))
            .await;
    }

    async fn write_one_home(&self, write: HomeWrite) -> Result<(), IoError> {
        let _home = self.home.lock(write.range.clone()).await;
        let (offset, len) = (
            self.data_offset + write.range.start,
            write.range.end - write.range.start,
        );
        let zeroes = write.expected[0] == Expected::NeverWritten;
        if !write.data.is_empty() {
            let request = Request::write(offset, write.data, Flags::NONE);
            self.device.submit(request).await?;
        } else if zeroes {
            let op = if self.device.geometry().discard_zeroes {
                Op::Discard
            } else {
                Op::WriteZeroes
            };
            let request = Request::without_data(op, offset, len, Flags::NONE);
            self.device.submit(request).await?;
        }
        self.count(|counts| {
            counts.destage_writes += 1;
            counts.destaged_bytes += len;
        });
        if let Some(checksums) = &self.checksums {
            let first = write.range.start / BLOCK_BYTES;
            self.set_expected(checksums, first, &write.expected).await?;
        }
        Ok(())
    }

    /// A page of checksums that has gone bad is begun anew: nothing is known of its other blocks,
    /// which are therefore to be repaired from another side.
    pub(super) async fn set_expected(
        &self,
        checksums: &Checksums,
        first: u64,
        expected: &[Expected],
    ) -> Result<(), IoError> {
        loop {
            match checksums.update(first, expected).await {
                Err(IoError::Corrupt) => {}
                other => return other,
            }
            for (page, _) in checksums.damaged() {
                checksums.reset_page(page).await;
                let blocks = Checksums::blocks_of(page);
                let end = (blocks.end * BLOCK_BYTES).min(self.volume_bytes.get());
                let range = blocks.start * BLOCK_BYTES..end;
                if !range.is_empty() {
                    self.suspect.borrow_mut().insert(range);
                }
            }
        }
    }
}

/// Merges neighbours that can be written as one.
fn merged(writes: Vec<HomeWrite>) -> Vec<HomeWrite> {
    let mut merged: Vec<HomeWrite> = Vec::with_capacity(writes.len());
    for write in writes {
        let len = write.range.end - write.range.start;
        match merged.last_mut() {
            Some(last)
                if last.range.end == write.range.start
                    && !last.data.is_empty()
                    && !write.data.is_empty()
                    && last.range.end - last.range.start + len <= WRITE_BYTES_MAX =>
            {
                last.range.end = write.range.end;
                last.data.append(write.data);
                last.expected.extend(write.expected);
            }
            _ => merged.push(write),
        }
    }
    merged
}
