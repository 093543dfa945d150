//! The blocks of a logged side in the order in which they lie on the device, for a rebuild of
//! another side. What was written at random is in the order of writing, so a disk supplies it fast
//! in this order only.
//!
//! Content must never be returned that does not have its digest: a segment may be filled again
//! after its blocks were listed.

use std::ops::Range;

use bimetal_rt::Payload;
use bimetal_rt::turn::{count_entries, give_way};

use super::Store;
use super::checksums::{self, Checksums, Expected};
use super::index::Content;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Maximum number of bytes between two blocks that are read together, and of all bytes that are
/// read together. A disk passes over such a gap faster than it seeks.
const READ_GAP_BYTES_MAX: u64 = 256 << 10;
const READ_BYTES_MAX: u64 = 1 << 20;

/// Number of parts of the log that are listed between two yields.
const PARTS_PER_TURN: usize = 1024;

/// A block of the volume and its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Listed {
    /// Offset on the device in bytes.
    at: u64,
    /// Offset in the volume in bytes.
    pub(in super::super) offset: u64,
    digest: u32,
}

/// Blocks that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Run {
    /// The blocks, at least one, in the order of the device.
    pub(in super::super) blocks: Vec<Listed>,
    /// Offset on the device up to which is read.
    end: u64,
}

impl Store {
    /// Returns the blocks of which the log has the newest content, in the order of the device, and
    /// all ranges of the volume of which it has a record. A record that is folded meanwhile may be
    /// missing: the map and the checksums describe its content then.
    pub(in super::super) async fn list_log(&self) -> (Vec<Listed>, RangeSet) {
        let volume_bytes = self.volume_bytes.get();
        let (mut listed, mut logged, mut position) = (Vec::new(), RangeSet::new(), 0);
        loop {
            let rest = position..volume_bytes;
            let some = self
                .log
                .index
                .borrow()
                .some_newest_in(&rest, PARTS_PER_TURN);
            let Some((last, _)) = some.last() else { break };
            position = last.end;
            count_entries(some.len());
            for (range, record) in some {
                if let Content::Data { position, digests } = &record.content {
                    let at = self.log.area.at(*position);
                    let blocks = range.clone().step_by(BLOCK_BYTES as usize);
                    listed.extend(blocks.zip(digests.values()).map(|(offset, digest)| Listed {
                        at: at + (offset - range.start),
                        offset,
                        digest: *digest,
                    }));
                }
                logged.insert(range);
            }
            give_way().await;
        }
        listed.sort_unstable_by_key(|block| block.at);
        (listed, logged)
    }

    /// Returns the blocks outside of the log that lie in a range of the device, in the order of the
    /// device. Only blocks with a known digest are returned whose offset in the volume is `wanted`.
    ///
    /// The caller must disregard each block that has changed since it began to list, and must not
    /// want one of which the log had a record then.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn list_by_place(
        &self,
        range: &Range<u64>,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<Listed>, IoError> {
        let (Some(segments), Some(checksums)) = (&self.segments, &self.checksums) else {
            return Ok(Vec::new());
        };
        let mut stored = segments.stored_in(range).await?;
        let volume_bytes = self.volume_bytes.get();
        stored.retain(|(_, offset)| *offset < volume_bytes);
        // In the order of the volume, each page of the checksums is read once.
        stored.sort_unstable_by_key(|(_, offset)| *offset);
        let page_of = |offset: u64| Checksums::page_of(offset / BLOCK_BYTES);
        let mut listed = Vec::with_capacity(stored.len());
        for of_page in stored.chunk_by(|a, b| page_of(a.1) == page_of(b.1)) {
            give_way().await;
            count_entries(of_page.len());
            let is_wanted = |(_, offset): &&(u64, u64)| wanted(*offset);
            let of_page: Vec<(u64, u64)> = of_page.iter().filter(is_wanted).copied().collect();
            let (Some((_, first)), Some((_, last))) = (of_page.first(), of_page.last()) else {
                continue;
            };
            let (first, end) = (first / BLOCK_BYTES, last / BLOCK_BYTES + 1);
            let expected = match checksums.expected(first..end).await {
                Err(error) if error.is_of_a_block() => continue,
                other => other?,
            };
            for (at, offset) in of_page {
                let expected = expected[(offset / BLOCK_BYTES - first) as usize];
                if let Expected::Digest(digest) = expected {
                    listed.push(Listed { at, offset, digest });
                }
            }
        }
        listed.sort_unstable_by_key(|block| block.at);
        Ok(listed)
    }

    /// Divides blocks, given in the order of the device, into runs that are read together. Where
    /// the next run is near, a run is read up to it: a disk loses a rotation between two reads that
    /// are not adjacent.
    pub(in super::super) fn runs_by_place(&self, listed: &[Listed]) -> Vec<Run> {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        let most_bytes = READ_BYTES_MAX.min(transfer);
        let gap_bytes = READ_GAP_BYTES_MAX.min(most_bytes / 4);
        let mut runs: Vec<Run> = Vec::new();
        let mut left = listed;
        while let Some(first) = left.first() {
            let is_near = |end: usize| {
                let until = left[end].at + BLOCK_BYTES;
                until <= left[end - 1].at + 2 * BLOCK_BYTES + gap_bytes
                    && until - first.at <= most_bytes - gap_bytes
            };
            let end = (1..left.len()).find(|end| !is_near(*end));
            let (run, rest) = left.split_at(end.unwrap_or(left.len()));
            if let Some(last) = runs.last_mut()
                && first.at <= last.end + gap_bytes
            {
                last.end = first.at;
            }
            runs.push(Run {
                end: run[run.len() - 1].at + BLOCK_BYTES,
                blocks: run.to_vec(),
            });
            left = rest;
        }
        runs
    }

    /// Reads a run of blocks with one request. Returns those whose content has its digest, each
    /// with its offset in the volume, in the order of the volume.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in super::super) async fn read_by_place(
        &self,
        run: &Run,
    ) -> Result<Vec<(u64, Payload)>, IoError> {
        let first = run.blocks[0];
        let read = Request::read(first.at, run.end - first.at);
        let data = match self.device.submit(read).await {
            // A rebuild in the order of the volume reads each block separately.
            Err(error) if error.is_of_a_block() => return Ok(Vec::new()),
            other => other?.into_data(),
        };
        give_way().await;
        count_entries(run.blocks.len());
        let mut content = Vec::with_capacity(run.blocks.len());
        for block in &run.blocks {
            let start = (block.at - first.at) as usize;
            let data = data.slice(start..start + BLOCK_BYTES as usize);
            let expected = [Expected::Digest(block.digest)];
            let number = block.offset / BLOCK_BYTES;
            if checksums::verify(self.digest, &data, number, &expected).is_empty() {
                content.push((block.offset, data));
            }
        }
        content.sort_unstable_by_key(|(offset, _)| *offset);
        Ok(content)
    }
}
