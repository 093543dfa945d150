//! Reads of a side: the newest content from the log, and the rest from the home locations. Corrupt
//! content is never returned: each block is verified against its digest.

use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;

use super::Store;
use super::checksums::{self, Expected};
use super::index::{Content, Logged};
use super::log::Log;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::media::null::zero_payload;
use crate::request::{IoResult, Origin, Reply, Request};

impl Store {
    /// Reads a range of the volume, and verifies every block of it.
    ///
    /// # Errors
    /// `Corrupt` when a block does not match its digest; the block is then among the
    /// [suspects](Store::take_suspects). Otherwise errors of the device.
    pub(in super::super) async fn read(&self, range: Range<u64>, origin: Origin) -> IoResult {
        self.wanted.set(self.rt.now());
        match self.read_once(&range, origin).await {
            Err(IoError::Corrupt) => {}
            other => return other,
        }
        // The block was possibly destaged during the first read. The lock prevents this during the
        // second read.
        let _still = self.home.lock(range.clone()).await;
        let reply = self.read_once(&range, origin).await;
        if matches!(reply, Err(IoError::Corrupt)) {
            self.find_corrupt(&range).await;
        }
        reply
    }

    /// Records which blocks of a range are corrupt.
    async fn find_corrupt(&self, range: &Range<u64>) {
        for start in range.clone().step_by(BLOCK_BYTES as usize) {
            let block = start..start + BLOCK_BYTES;
            if matches!(
                self.read_once(&block, Origin::NONE).await,
                Err(IoError::Corrupt)
            ) {
                self.suspect.borrow_mut().insert(block);
            }
        }
    }

    pub(super) async fn read_once(&self, range: &Range<u64>, origin: Origin) -> IoResult {
        let logged = self.pin(range);
        if logged.parts.is_empty() {
            return self.read_home(range, origin).await.map(Reply::Data);
        }
        let mut data = Payload::empty();
        let mut position = range.start;
        for (part, record) in &logged.parts {
            if position < part.start {
                data.append(self.read_home(&(position..part.start), origin).await?);
            }
            data.append(self.read_logged(part, record, origin).await?);
            position = part.end;
        }
        if position < range.end {
            data.append(self.read_home(&(position..range.end), origin).await?);
        }
        Ok(Reply::Data(data))
    }

    /// Returns the parts of a range that are in the log, protected from reuse of their space until
    /// the result is dropped.
    fn pin(&self, range: &Range<u64>) -> Pinned<'_> {
        let mut index = self.log.index.borrow_mut();
        let parts = index.newest_in(range);
        for (_, record) in &parts {
            index.pin(record.entry);
        }
        Pinned {
            log: &self.log,
            parts,
        }
    }

    pub(super) async fn read_logged(
        &self,
        range: &Range<u64>,
        record: &Logged,
        origin: Origin,
    ) -> Result<Payload, IoError> {
        let len = range.end - range.start;
        match &record.content {
            Content::Zeroes(_) => Ok(zero_payload(&self.zeroes, len)),
            Content::Lost => Err(IoError::Corrupt),
            Content::Data { position, digests } => {
                let read = Request::read(self.log.area.at(*position), len);
                let read = read.from_origin(origin);
                let data = self.device.submit(read).await?.into_data();
                if digests.agree_with(&data) {
                    Ok(data)
                } else {
                    Err(IoError::Corrupt)
                }
            }
        }
    }

    /// Returns the offset on the device of the newest content of a block; `None` if the log records
    /// the block as zeroes or lost, without content. For tests that access the device directly.
    pub(in super::super) fn place_of(&self, offset: u64) -> Option<u64> {
        let newest = self
            .log
            .index
            .borrow()
            .newest_in(&(offset..offset + BLOCK_BYTES));
        match newest.first().map(|(_, record)| &record.content) {
            Some(Content::Data { position, .. }) => Some(self.log.area.at(*position)),
            Some(Content::Zeroes(_) | Content::Lost) => None,
            None => match &self.segments {
                Some(segments) => segments.offset_of(self.data_offset + offset),
                None => Some(self.data_offset + offset),
            },
        }
    }

    async fn read_home(&self, range: &Range<u64>, origin: Origin) -> Result<Payload, IoError> {
        let read = Request::read(self.data_offset + range.start, range.end - range.start);
        let read = read.from_origin(origin);
        let Some(checksums) = &self.checksums else {
            return self.device.submit(read).await.map(Reply::into_data);
        };
        let blocks = range.start / BLOCK_BYTES..range.end / BLOCK_BYTES;
        let expected = checksums.expected(blocks.clone()).await?;
        if expected.iter().all(|e| *e == Expected::NeverWritten) {
            return Ok(zero_payload(&self.zeroes, range.end - range.start));
        }
        let data = self.device.submit(read).await?.into_data();
        if !checksums::verify(self.digest, &data, blocks.start, &expected).is_empty() {
            return Err(IoError::Corrupt);
        }
        Ok(self.with_zeroes(data, &expected))
    }

    /// Puts zeroes in place of blocks that were never written, in data that was read from the
    /// device.
    fn with_zeroes(&self, data: Payload, expected: &[Expected]) -> Payload {
        if !expected.contains(&Expected::NeverWritten) {
            return data;
        }
        let mut whole = Payload::empty();
        let mut block = 0;
        for run in expected
            .chunk_by(|a, b| (*a == Expected::NeverWritten) == (*b == Expected::NeverWritten))
        {
            let bytes = block * BLOCK_BYTES as usize..(block + run.len()) * BLOCK_BYTES as usize;
            block += run.len();
            if run[0] == Expected::NeverWritten {
                whole.append(zero_payload(&self.zeroes, bytes.len() as u64));
            } else {
                whole.append(data.slice(bytes));
            }
        }
        whole
    }
}

/// Parts of the log that are being read. Their space is not reused until this guard is dropped.
struct Pinned<'s> {
    log: &'s Rc<Log>,
    parts: Vec<(Range<u64>, Logged)>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if self.parts.is_empty() {
            return;
        }
        let mut index = self.log.index.borrow_mut();
        for (_, record) in &self.parts {
            index.unpin(record.entry);
        }
        drop(index);
        if self.log.is_full() || self.log.is_paced() {
            self.log.pump();
        }
    }
}
