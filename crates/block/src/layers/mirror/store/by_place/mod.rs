//! The content of a side in the order in which it lies on the device: for a rebuild of another
//! side, and for a copy of the volume from one side alone ([`salvage`]). What was written at random
//! is in the order of writing on a logged side, so a disk supplies it fast in this order only.
//!
//! Content must never be returned that does not have its digest: a segment may be filled again
//! after its blocks were listed.

mod order;
mod salvage;

use std::ops::Range;

use bimetal_rt::Payload;
use bimetal_rt::turn::{count_entries, give_way};

use self::order::{Placed, Runs, sorted_by};
pub(in crate::layers::mirror) use self::salvage::Piece;
use super::Store;
use super::checksums::{self, Checksums, Expected};
use super::index::Content;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_set::RangeSet;
use crate::request::Request;

/// Number of parts of the log that are listed between two yields.
const PARTS_PER_TURN: usize = 1024;

/// A block of the volume and its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror) struct Listed {
    /// Offset on the device in bytes.
    at: u64,
    /// Offset in the volume in bytes.
    pub(in crate::layers::mirror) offset: u64,
    digest: u32,
}

impl Placed for Listed {
    fn at(&self) -> u64 {
        self.at
    }

    fn end(&self) -> u64 {
        self.at + BLOCK_BYTES
    }
}

/// Blocks that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::layers::mirror) struct Run {
    /// The blocks, at least one, in the order of the device.
    pub(in crate::layers::mirror) blocks: Vec<Listed>,
    /// Offset on the device up to which is read.
    end: u64,
}

impl Store {
    /// Returns the blocks of which the log has the newest content, in the order of the device, and
    /// all ranges of the volume of which it has a record. Only blocks are returned whose offset in
    /// the volume is `wanted`. A record that is folded meanwhile may be missing: the map and the
    /// checksums describe its content then.
    pub(in crate::layers::mirror) async fn list_log(
        &self,
        wanted: &dyn Fn(u64) -> bool,
    ) -> (Vec<Listed>, RangeSet) {
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
                    let blocks = blocks.zip(digests.values());
                    let blocks = blocks.filter(|(offset, _)| wanted(*offset));
                    listed.extend(blocks.map(|(offset, digest)| Listed {
                        at: at + (offset - range.start),
                        offset,
                        digest: *digest,
                    }));
                }
                logged.insert(range);
            }
            give_way().await;
        }
        (sorted_by(listed, Listed::at).await, logged)
    }

    /// Returns the blocks outside of the log that lie in a range of the device, in the order of the
    /// device. Only blocks with a known digest are returned whose offset in the volume is `wanted`.
    ///
    /// The caller must disregard each block that has changed since it began to list, and must not
    /// want one of which the log had a record then.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in crate::layers::mirror) async fn list_by_place(
        &self,
        range: &Range<u64>,
        wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Vec<Listed>, IoError> {
        let (Some(segments), Some(checksums)) = (&self.segments, &self.checksums) else {
            return Ok(Vec::new());
        };
        let stored = segments.stored_in(range).await?;
        // In the order of the volume, each page of the checksums is read once.
        let stored = sorted_by(stored, |(_, offset)| *offset).await;
        let volume_bytes = self.volume_bytes.get();
        let page_of = |offset: u64| Checksums::page_of(offset / BLOCK_BYTES);
        let mut listed = Vec::with_capacity(stored.len());
        for of_page in stored.chunk_by(|a, b| page_of(a.1) == page_of(b.1)) {
            give_way().await;
            count_entries(of_page.len());
            let is_wanted = |(_, offset): &&(u64, u64)| *offset < volume_bytes && wanted(*offset);
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
        Ok(sorted_by(listed, Listed::at).await)
    }

    /// Divides blocks, given in the order of the device, into runs that are read together.
    pub(in crate::layers::mirror) fn runs_by_place(
        &self,
        listed: &[Listed],
    ) -> impl Iterator<Item = Run> {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        Runs::of(listed, transfer).map(|(blocks, end)| Run {
            blocks: blocks.to_vec(),
            end,
        })
    }

    /// Reads a run of blocks with one request. Returns those whose content has its digest, each
    /// with its offset in the volume, in the order of the volume.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in crate::layers::mirror) async fn read_by_place(
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
