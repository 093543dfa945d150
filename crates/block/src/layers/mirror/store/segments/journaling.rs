//! The journal of a side in use: how many pages each commit writes so that the journal keeps its
//! length, and reading, writing and checking its runs.

use std::collections::BTreeMap;

use bimetal_rt::Payload;
use bimetal_rt::turn::give_way;
use futures_util::future::try_join_all;

use super::journal::{Item, Journal, Replayed, Run, items, pack, replay, seal};
use super::map_pages::FIRST_PAGE;
use super::places::is_entry;
use super::{Place, SPARED_FOR_PAGES, Segments};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::store::changes::{ENTRIES_MAX, Since};
use crate::layers::mirror::superblock::SegmentLayout;
use crate::layers::mirror::superblock::areas::PAGE_BLOCKS;
use crate::layers::mirror::superblock::segmented::{LOG_FOLD_DIVISOR, RUNS_MAX};
use crate::request::{Flags, Request};

/// Bytes that a changed block adds to a copy of the journal: an entry of a page of the map, and one
/// of a page of the checksums.
const CHANGE_BYTES: u64 = 32;
/// Number of changes of the journal for each page of the side. So the pages are written once for
/// about as many changes, and add an eighth to what is written.
const CHANGES_PER_PAGE: u64 = 8;
/// The journal has room for this many folds of the log at least.
const FOLDS: u64 = 4;
/// Part of a side that a copy of its journal takes at most.
const SIDE_DIVISOR: u64 = 512;
/// Part of the free segments that a commit fills with pages of one kind at most, unless they must
/// be written. As much is for the journal.
const ROOM_DIVISOR: u64 = 4;
/// Maximum number of bytes in one request.
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Returns the number of bytes that a copy of the journal of a side is to have, if its log has
/// `log_bytes` and its map and its checksums have `pages` pages.
pub(super) fn journal_bytes(layout: &SegmentLayout, log_bytes: u64, pages: u64) -> u64 {
    let of_pages = pages * CHANGES_PER_PAGE * CHANGE_BYTES;
    let of_folds = log_bytes / LOG_FOLD_DIVISOR / BLOCK_BYTES * CHANGE_BYTES * FOLDS;
    let most = (layout.area.1 / SIDE_DIVISOR).max(4 * BLOCK_BYTES);
    of_pages.max(of_folds).min(most)
}

/// Returns the maximum number of bytes that changes of the map and of the checksums take in pages
/// and in the journal, if they are changes of `blocks` consecutive blocks.
pub(in super::super) fn commit_bytes_of(blocks: u64) -> u64 {
    let pages = 1 + blocks.div_ceil(PAGE_BLOCKS);
    match blocks <= u64::from(ENTRIES_MAX) {
        true => 4 * (10 * pages + 6 * blocks),
        false => 2 * BLOCK_BYTES * pages,
    }
}

/// Entries of the pages of the checksums that an opening found in the journal.
pub(in super::super) type ReplayedChecksums = Replayed;

/// What a commit says about pages of the checksums: the pages that were written, and entries.
#[derive(Default)]
pub(in super::super) struct ChecksumChanges {
    pub(in super::super) written: Vec<u64>,
    pub(in super::super) entries: BTreeMap<u64, Vec<(u16, u32)>>,
}

impl Segments {
    /// Returns the number of the next run of the journal.
    pub(in super::super) fn next_run(&self) -> u64 {
        self.journal.borrow().next
    }

    /// Returns the maximum number of bytes that the changes before the next commit may take in
    /// pages and in the journal, see [`commit_bytes_of`].
    pub(in super::super) fn commit_bytes_max(&self) -> u64 {
        let free = self.usage.borrow().free_count() as u64;
        free * self.layout.segment_bytes / ROOM_DIVISOR
    }

    /// Returns the number of pages of the map of which the journal has entries, and the number of
    /// bytes that the changes of the map since the last commit take in it.
    pub(in super::super) fn owed(&self) -> (usize, u64) {
        let places = self.places.borrow();
        let changes = places.changes();
        (changes.owed_pages(), changes.journal_bytes())
    }

    /// Commits as [`commit`](Self::commit) does, after [`write_journal`](Self::write_journal):
    /// the checksums need no run of the journal before `needed_from`, and `first_run` is the first
    /// run that was written for this commit.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit).
    pub(in super::super) async fn commit_changes(
        &self,
        dead: &[u32],
        log_floor: u64,
        (needed_from, first_run): (u64, u64),
    ) -> Result<(), IoError> {
        let oldest = self.places.borrow().changes().oldest_run();
        let floor = oldest.map_or(needed_from, |oldest| oldest.min(needed_from));
        self.commit(dead, log_floor, floor).await?;
        self.places.borrow_mut().committed(first_run);
        if floor == first_run {
            self.empties_journal.set(false);
        }
        Ok(())
    }

    /// Returns how many of `owed` owed pages the next commit should write, if the changes before it
    /// take `bytes` bytes of the journal.
    pub(in super::super) fn pages_per_commit(&self, owed: usize, bytes: u64) -> usize {
        let journal = self.journal.borrow();
        let runs = journal.runs.len() as u64;
        // Writing all owed pages empties the journal.
        let must = self.empties_journal.get() || runs >= RUNS_MAX / 8 * 7;
        if must {
            return owed;
        }
        let free = self.usage.borrow().free_count();
        if free <= SPARED_FOR_PAGES && runs < RUNS_MAX / 2 {
            return 0;
        }
        let by_bytes = (owed as u64 * bytes).div_ceil(self.journal_bytes);
        let by_runs = match runs {
            0..=4 => 0,
            _ => (owed as u64).div_ceil(RUNS_MAX / 4),
        };
        let late = match journal.bytes() > 2 * self.journal_bytes {
            true => (owed as u64).div_ceil(4),
            false => 0,
        };
        let room = free as u64 * self.layout.segment_blocks() / ROOM_DIVISOR;
        by_bytes.max(by_runs).max(late).min(room).min(owed as u64) as usize
    }

    /// Writes what has changed since the last commit to the journal, in two copies. The next commit
    /// makes it count.
    ///
    /// # Errors
    /// Errors of the device; `NoSpace` when no segment is free.
    pub(in super::super) async fn write_journal(
        &self,
        of_checksums: ChecksumChanges,
    ) -> Result<(), IoError> {
        self.forget_pending();
        let of_map = self.places.borrow_mut().take_changes();
        let blocks = pack(self.items_of(of_map, of_checksums));
        let mut left = blocks.as_slice();
        while !left.is_empty() {
            let wanted = left.len() as u64;
            let (one, count, _pins) = self.take_for_journal(wanted)?;
            let (other, blocks, _pins) = self.take_for_journal(u64::from(count))?;
            let (now, rest) = left.split_at(blocks as usize);
            left = rest;
            let sequence = {
                let mut journal = self.journal.borrow_mut();
                journal.next += 1;
                journal.next - 1
            };
            let run = Run {
                sequence,
                copies: [one, other],
                blocks,
            };
            self.begin_run(run);
            self.write_journal_run(&run, now).await?;
        }
        Ok(())
    }

    /// Counts the blocks of a run as live.
    fn begin_run(&self, run: Run) {
        let mut journal = self.journal.borrow_mut();
        journal.pending.push(run);
        self.add_run(&mut journal, &run);
    }

    /// Gives up the runs of a commit that has failed.
    fn forget_pending(&self) {
        let mut journal = self.journal.borrow_mut();
        for run in std::mem::take(&mut journal.pending) {
            self.remove_run(&mut journal, &run);
        }
    }

    fn add_run(&self, journal: &mut Journal, run: &Run) {
        journal.count(run, self.layout.segment_blocks() as u32);
        let mut usage = self.usage.borrow_mut();
        run.all_blocks().for_each(|block| usage.add_live(block));
    }

    fn remove_run(&self, journal: &mut Journal, run: &Run) {
        journal.discount(run, self.layout.segment_blocks() as u32);
        let mut usage = self.usage.borrow_mut();
        run.all_blocks().for_each(|block| usage.remove_live(block));
    }

    /// Adopts the runs of a commit that has succeeded, and drops those before `floor`.
    pub(super) fn take_over_runs(&self, floor: u64) {
        let mut journal = self.journal.borrow_mut();
        while let Some(run) = journal.runs.pop_front_if(|run| run.sequence < floor) {
            self.remove_run(&mut journal, &run);
        }
        let pending = std::mem::take(&mut journal.pending);
        journal.runs.extend(pending);
    }

    fn items_of(&self, of_map: Since, of_checksums: ChecksumChanges) -> Vec<Item> {
        let places = self.places.borrow();
        let written = of_map.written.clone().into_iter();
        let written = written.map(|page| FIRST_PAGE + page);
        let written = written.chain(of_checksums.written).map(Item::Written);
        let of_map = of_map.values_with(|page, index| places.changed_entry(page, index));
        let of_map = of_map
            .into_iter()
            .map(|(page, entries)| Item::Entries(FIRST_PAGE + page, entries));
        let of_checksums = of_checksums.entries.into_iter();
        let of_checksums = of_checksums.map(|(page, entries)| Item::Entries(page, entries));
        written.chain(of_map).chain(of_checksums).collect()
    }

    async fn write_journal_run(&self, run: &Run, packed: &[Vec<u8>]) -> Result<(), IoError> {
        let mut bytes = Vec::with_capacity(packed.len() * BLOCK_BYTES as usize);
        for (index, block) in (0..).zip(packed) {
            bytes.extend_from_slice(&seal(&self.side, (run.sequence, index), block));
        }
        let data = Payload::from(self.rt.pool().copy_of(&bytes));
        // The copies are adjacent in most cases, so a disk seeks once for both.
        let written = run.copies.map(|copy| self.write_copy(run, copy, &data));
        try_join_all(written).await.map(|_| ())
    }

    async fn write_copy(&self, run: &Run, copy: u32, data: &Payload) -> Result<(), IoError> {
        for (at, part) in self.journal_parts(copy, run.blocks) {
            let start = u64::from(at - copy) * BLOCK_BYTES;
            let end = start + u64::from(part) * BLOCK_BYTES;
            let data = data.slice(start as usize..end as usize);
            let write = Request::write(self.offset_at(at), data, Flags::NONE);
            self.device.submit(write).await?;
        }
        Ok(())
    }

    /// Divides the blocks of a copy into parts that one request can transfer.
    fn journal_parts(&self, copy: u32, blocks: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        let step = (REQUEST_BYTES_MAX.min(transfer) / BLOCK_BYTES).max(1) as u32;
        (0..blocks)
            .step_by(step as usize)
            .map(move |done| (copy + done, step.min(blocks - done)))
    }

    /// Reads back the runs that were written for the commit under way. Returns true when both
    /// copies are as they were written.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in super::super) async fn verify_journal(&self) -> Result<bool, IoError> {
        let pending = self.journal.borrow().pending.clone();
        let copies = pending
            .iter()
            .flat_map(|run| run.copies.map(|copy| (run, copy)));
        let reads = copies.map(|(run, copy)| self.read_copy(run, copy));
        let read = try_join_all(reads).await?;
        Ok(read.iter().flatten().all(Option::is_some))
    }

    /// Reads a copy of a run: the items of each of its blocks; `None` for a damaged block.
    async fn read_copy(&self, run: &Run, copy: u32) -> Result<Vec<Option<Vec<Item>>>, IoError> {
        let mut found = Vec::with_capacity(run.blocks as usize);
        for (at, blocks) in self.journal_parts(copy, run.blocks) {
            let read = self.read_journal_blocks(at, blocks).await?;
            for block in read {
                give_way().await;
                let index = found.len() as u32;
                let place = (run.sequence, index);
                found.push(block.and_then(|block| items(&self.side, place, &block)));
            }
        }
        Ok(found)
    }

    async fn read_journal_blocks(
        &self,
        at: u32,
        blocks: u32,
    ) -> Result<Vec<Option<Vec<u8>>>, IoError> {
        let _pin = self.pin(&[(Place::At(at), u64::from(blocks))]);
        let bytes = u64::from(blocks) * BLOCK_BYTES;
        let read = self.device.submit(Request::read(self.offset_at(at), bytes));
        match read.await {
            Ok(reply) => {
                let data = reply.into_data().to_vec();
                let blocks = data.chunks_exact(BLOCK_BYTES as usize);
                Ok(blocks.map(|block| Some(block.to_vec())).collect())
            }
            Err(error) if error.is_of_a_block() && blocks > 1 => {
                let mut found = Vec::new();
                for block in at..at + blocks {
                    found.extend(Box::pin(self.read_journal_blocks(block, 1)).await?);
                }
                Ok(found)
            }
            Err(error) if error.is_of_a_block() => Ok(vec![None]),
            Err(error) => Err(error),
        }
    }

    /// Reads the journal before the pages of the map are read. Keeps what it says about the map and
    /// about the checksums.
    ///
    /// # Errors
    /// `Corrupt` when a block is damaged in both copies; errors of the device that do not concern
    /// single blocks.
    pub(super) async fn load_journal(&self, runs: &[Run]) -> Result<(), IoError> {
        let mut replayed = Replayed::new();
        for run in runs {
            let one = self.read_copy(run, run.copies[0]).await?;
            let other = match one.iter().any(Option::is_none) {
                true => {
                    self.empties_journal.set(true);
                    self.read_copy(run, run.copies[1]).await?
                }
                false => vec![None; one.len()],
            };
            for (one, other) in one.into_iter().zip(other) {
                let items = one.or(other).ok_or(IoError::Corrupt)?;
                replay(&mut replayed, run.sequence, items);
            }
            let blocks: Vec<u32> = run.all_blocks().collect();
            if !self.usage.borrow_mut().try_add_live(&blocks) {
                return Err(IoError::Corrupt);
            }
            let mut journal = self.journal.borrow_mut();
            journal.runs.push_back(*run);
            journal.count(run, self.layout.segment_blocks() as u32);
        }
        let of_map = replayed.split_off(&FIRST_PAGE);
        let of_checksums = replayed.last_key_value().map_or(0, |(page, _)| page + 1);
        if of_checksums > self.pages_bytes / BLOCK_BYTES {
            return Err(IoError::Corrupt);
        }
        *self.replayed.borrow_mut() = replayed;
        self.replay_map(of_map).await
    }

    async fn replay_map(&self, of_map: Replayed) -> Result<(), IoError> {
        let blocks = self.layout.area.1 / BLOCK_BYTES;
        for (page, (run, entries)) in of_map {
            give_way().await;
            let page = page - FIRST_PAGE;
            let mut places = self.places.borrow_mut();
            if page >= places.pages() {
                return Err(IoError::Corrupt);
            }
            for (index, entry) in entries {
                if !is_entry(entry, blocks) {
                    return Err(IoError::Corrupt);
                }
                places.replay(page, (index, entry));
            }
            places.owe(page, run);
        }
        Ok(())
    }

    /// Removes and returns what the journal says about the checksums.
    pub(in super::super) fn take_replayed(&self) -> ReplayedChecksums {
        std::mem::take(&mut self.replayed.borrow_mut())
    }

    /// Reads the whole journal. If it is damaged, the next commit writes the pages of which it has
    /// entries. Returns the number of bytes read, and the number of damaged blocks. No commit may
    /// be under way.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn check_journal(&self) -> Result<(u64, u64), IoError> {
        let runs: Vec<Run> = self.journal.borrow().runs.iter().copied().collect();
        let (mut read_bytes, mut wrong) = (0, 0);
        for run in runs {
            for copy in run.copies {
                let read = self.read_copy(&run, copy).await?;
                read_bytes += read.len() as u64 * BLOCK_BYTES;
                wrong += read.iter().filter(|block| block.is_none()).count() as u64;
            }
        }
        if wrong > 0 {
            self.empties_journal.set(true);
        }
        Ok((read_bytes, wrong))
    }
}
