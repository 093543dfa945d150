//! Scrub of one side: finds corrupt blocks, blocks whose correct content is unknown, and damage in
//! the areas other than the data area.
//!
//! A scrub must never report a block as corrupt that is merely being destaged.

use std::ops::Range;

use bimetal_rt::Payload;

use super::Store;
use super::areas::CheckedAreas;
use super::checksums::{Expected, expected_of};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::{EXTENTS_MAX, Origin};

/// The changed checksum pages in memory are written when there are this many of them.
const UNWRITTEN_PAGES_MAX: usize = 64;

/// Result of checking a range of the volume.
#[derive(Default)]
pub(in super::super) struct Checked {
    /// Number of bytes that hold data and were read.
    pub(in super::super) read_bytes: u64,
    /// Blocks whose content does not match their checksums, or cannot be read.
    pub(in super::super) wrong: Vec<Range<u64>>,
    /// Blocks without a known checksum, whose present content is accepted.
    pub(in super::super) unknown: Vec<Range<u64>>,
}

fn push_block(ranges: &mut Vec<Range<u64>>, start: u64) {
    match ranges.last_mut() {
        Some(last) if last.end == start => last.end += BLOCK_BYTES,
        _ => ranges.push(start..start + BLOCK_BYTES),
    }
}

impl Store {
    /// Reads and verifies all data in a range of the volume.
    ///
    /// # Errors
    /// Errors of the device that do not concern a single block.
    pub(in super::super) async fn check(&self, range: &Range<u64>) -> Result<Checked, IoError> {
        let mut checked = Checked::default();
        let mut position = range.start;
        while position < range.end {
            let found = match self.extents(position..range.end, EXTENTS_MAX).await {
                Err(IoError::Corrupt) => {
                    // A checksum page is damaged, so the correct content of the blocks that it
                    // describes is unknown.
                    let starts = range.clone().step_by(BLOCK_BYTES as usize);
                    checked = Checked::default();
                    starts.for_each(|start| push_block(&mut checked.wrong, start));
                    return Ok(checked);
                }
                other => other?,
            };
            for extent in found.into_extents() {
                let part = position..position + extent.len;
                position = part.end;
                if extent.data {
                    checked.read_bytes += extent.len;
                    self.check_part(part, &mut checked.wrong).await?;
                }
            }
        }
        checked.unknown = self.unknown_in(range).await?;
        Ok(checked)
    }

    async fn check_part(
        &self,
        part: Range<u64>,
        wrong: &mut Vec<Range<u64>>,
    ) -> Result<(), IoError> {
        match self.read_once(&part, Origin::NONE).await {
            Err(error) if error.is_of_a_block() => {}
            other => return other.map(|_| ()),
        }
        // The part was possibly destaged during the first read. The lock prevents destaging from
        // now on.
        let _still = self.home.lock(part.clone()).await;
        for start in part.step_by(BLOCK_BYTES as usize) {
            match self
                .read_once(&(start..start + BLOCK_BYTES), Origin::NONE)
                .await
            {
                Err(error) if error.is_of_a_block() => push_block(wrong, start),
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Returns the blocks of a range that have no known checksum and are not in the log.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when a checksum page is damaged.
    pub(in super::super) async fn unknown_in(
        &self,
        range: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, IoError> {
        let mut unknown = Vec::new();
        let blocks = range.start / BLOCK_BYTES..range.end / BLOCK_BYTES;
        let expected = match &self.checksums {
            Some(checksums) => checksums.expected(blocks).await?,
            None => blocks.map(|_| Expected::Unknown).collect(),
        };
        let index = self.log.index.borrow();
        for (start, expected) in range.clone().step_by(BLOCK_BYTES as usize).zip(expected) {
            let logged = || !index.newest_in(&(start..start + BLOCK_BYTES)).is_empty();
            if expected == Expected::Unknown && !logged() {
                push_block(&mut unknown, start);
            }
        }
        Ok(unknown)
    }

    /// Records the checksums of `data` for those blocks of a range that have none. The range must
    /// not be changed during the call. Returns the number of checksums recorded.
    ///
    /// # Errors
    /// Errors of the device; `Corrupt` when a checksum page is damaged.
    pub(in super::super) async fn learn(
        &self,
        range: Range<u64>,
        data: &Payload,
    ) -> Result<u64, IoError> {
        let Some(checksums) = &self.checksums else {
            return Ok(0);
        };
        let home = self.home.lock(range.clone()).await;
        if !self.log.index.borrow().newest_in(&range).is_empty() {
            return Ok(0);
        }
        let first = range.start / BLOCK_BYTES;
        let expected = checksums.expected(first..range.end / BLOCK_BYTES).await?;
        let mut learned = 0;
        for ((block, expected), is) in (first..).zip(expected).zip(expected_of(self.digest, data)) {
            if expected == Expected::Unknown {
                checksums.update(block, &[is]).await?;
                learned += 1;
            }
        }
        // The lock is released before the pages are written, so that a destage of the same range
        // that waits for the lock does not wait for this write too.
        drop(home);
        if checksums.unwritten_pages() >= UNWRITTEN_PAGES_MAX {
            self.write_pages().await?;
        }
        Ok(learned)
    }

    /// Returns true when a page of the checksums was found damaged and has not been started anew.
    pub(in super::super) fn is_damaged(&self) -> bool {
        let checksums = self.checksums.as_ref();
        checksums.is_some_and(|checksums| !checksums.damaged().is_empty())
    }

    /// Returns the position at which a range of the volume begins to hold data, as far as this is
    /// known without I/O: before that position, the log has no records and no checksum page was
    /// ever written.
    pub(in super::super) fn first_touched(&self, range: &Range<u64>) -> u64 {
        let Some(checksums) = &self.checksums else {
            return range.start;
        };
        let unsettled = self.unsettled.borrow();
        let mut end = range.end;
        end = unsettled
            .overlapping(range)
            .map(|part| part.start)
            .fold(end, u64::min);
        let logged = self.log.index.borrow().first_in(range);
        end = logged
            .map_or(end, |(part, _)| end.min(part.start))
            .max(range.start);
        let blocks = range.start / BLOCK_BYTES..end / BLOCK_BYTES;
        if blocks.is_empty() {
            return range.start;
        }
        match checksums.untouched(&blocks) {
            Some((Expected::NeverWritten, blocks)) => range.start + blocks * BLOCK_BYTES,
            _ => range.start,
        }
    }

    /// Reads the checksum pages from `page` on from the device, as many as one request can read;
    /// with page 0 also the checkpoint and the dirty-region bitmap. Rewrites corrupt pages.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in super::super) async fn check_areas(&self, page: u64) -> Result<CheckedAreas, IoError> {
        let mut areas = CheckedAreas::default();
        if page == 0 {
            areas = self.regions.check().await?;
            if let Some(written) = &self.written {
                let (read_bytes, wrong_pages) = written.check().await?;
                areas.read_bytes += read_bytes;
                areas.wrong_pages += wrong_pages;
            }
            if let Some(segments) = &self.segments {
                let (read_bytes, wrong_pages) = segments.check_map().await?;
                areas.read_bytes += read_bytes;
                areas.wrong_pages += wrong_pages;
                let no_commit = self.turn_for_commit().await;
                areas.wrong_pages += segments.check_record().await?;
                let (read_bytes, wrong_blocks) = segments.check_journal().await?;
                areas.read_bytes += read_bytes;
                areas.wrong_pages += wrong_blocks;
                drop(no_commit);
            }
            if areas.wrong_pages > 0 {
                self.write_pages().await?;
            }
            areas.wrong_pages += self.log.check_checkpoint().await?;
        }
        let Some(checksums) = &self.checksums else {
            return Ok(areas);
        };
        let (of_checksums, lost) = checksums.check_from(page).await?;
        self.suspect_pages(lost);
        if of_checksums.wrong_pages > 0 {
            self.write_pages().await?;
        }
        areas.read_bytes += of_checksums.read_bytes;
        areas.wrong_pages += of_checksums.wrong_pages;
        areas.next = of_checksums.next;
        Ok(areas)
    }
}
