//! Folding: on a logged side, content stays where it was logged when its entry is dropped. The map
//! is made to refer to it there, which writes nothing but the changed pages of the map and of the
//! checksums.

use std::ops::Range;

use super::Store;
use super::checksums::Expected;
use super::choose::Chunk;
use super::index::{Content, Logged};
use super::segments::Segments;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::request::{Flags, Op, Request};

impl Store {
    /// Makes the map and the checksums describe the content of a chunk.
    ///
    /// # Errors
    /// Errors of the device; `Closed` when the destager must end.
    pub(super) async fn fold(&self, segments: &Segments, chunk: &Chunk) -> Result<(), IoError> {
        for (range, record) in &chunk.pieces {
            if self.ending.get() {
                return Err(IoError::Closed);
            }
            self.fold_piece(segments, range, record).await?;
        }
        segments.announce_drop(chunk.end);
        Ok(())
    }

    async fn fold_piece(
        &self,
        segments: &Segments,
        range: &Range<u64>,
        record: &Logged,
    ) -> Result<(), IoError> {
        let _home = self.home.lock(range.clone()).await;
        let (offset, bytes) = (self.data_offset + range.start, range.end - range.start);
        let count = (bytes / BLOCK_BYTES) as usize;
        let expected = match &record.content {
            Content::Data { position, digests } => {
                segments.refer(offset, bytes, self.log.area.at(*position));
                let each = digests.values().iter();
                each.map(|digest| Expected::Digest(*digest)).collect()
            }
            Content::Zeroes(_) | Content::Lost => {
                let clear = Request::without_data(Op::Discard, offset, bytes, Flags::NONE);
                if !is_planted(Bug::DiscardsChecksumOnly) {
                    self.device.submit(clear).await?;
                }
                if is_planted(Bug::DiscardsPlaceOnly) {
                    return Ok(());
                }
                let value = match record.content {
                    Content::Lost => Expected::Lost,
                    _ => Expected::NeverWritten,
                };
                vec![value; count]
            }
        };
        self.noticed.note();
        self.count(|counts| counts.destaged_bytes += bytes);
        match &self.checksums {
            Some(checksums) => {
                let first = range.start / BLOCK_BYTES;
                self.set_expected(checksums, first, &expected).await
            }
            None => Ok(()),
        }
    }
}
