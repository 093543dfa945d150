//! Folding: on a logged side, content stays where it was logged when its entry is dropped. The map
//! is made to refer to it there, which writes nothing but the changed pages of the map and of the
//! checksums.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::Permit;

use super::Store;
use super::checksums::Expected;
use super::choose::Chunk;
use super::index::{Content, Logged};
use super::segments::Segments;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::planted::{Bug, is_planted};
use crate::request::{Flags, Op, Request};

/// Maximum time for which a fold waits for another member to make durable what it has stored.
const RELEASE_MAX: Duration = Duration::from_millis(20);

/// A chunk that was folded, and whose entries are in the log still.
pub(super) struct Folded {
    chunk: Chunk,
    /// Keeps other chunks from being folded.
    _one: Permit,
}

impl Store {
    /// Folds what the log may drop, for a commit that follows anyway. Returns `None` when that is
    /// nothing. [`drop_folded`](Self::drop_folded) must follow.
    ///
    /// # Errors
    /// Those of [`fold`](Self::fold).
    pub(super) async fn fold_now(
        self: &Rc<Self>,
        segments: &Segments,
    ) -> Result<Option<Folded>, IoError> {
        // A copy of a rebuild may keep a piece from being folded while it waits for space, and so
        // for the caller.
        if self.destaging.free() == 0 || self.mixes.get() || self.ending.get() {
            return Ok(None);
        }
        let one = self.destaging.acquire(1).await;
        self.until_released().await?;
        let Some(chunk) = self.choose_chunk(self.log.area.bytes).await else {
            return Ok(None);
        };
        self.fold(segments, &chunk).await?;
        Ok(Some(Folded { chunk, _one: one }))
    }

    /// Makes what the log has stored durable, here and on the other members: the log keeps what
    /// they lack. Waits for them only for a short time.
    ///
    /// # Errors
    /// When the device fails.
    async fn until_released(self: &Rc<Self>) -> Result<(), IoError> {
        if self.log.has_unflushed() {
            self.log.flush(0).await?;
        }
        let all = self.log.complete_durable();
        self.wants_release.set(true);
        self.durability_has_moved();
        let is_released = || self.released_below.get() >= all;
        let released = self.log.changed.until(is_released);
        // What is not released by then stays in the log.
        let _ = self.rt.timeout(RELEASE_MAX, released).await;
        self.wants_release.set(false);
        Ok(())
    }

    /// Commits what was folded, and drops its entries from the log.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) async fn drop_folded(&self, folded: Folded) -> Result<(), IoError> {
        self.drop_chunk(&folded.chunk).await
    }

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
