//! A copy of the volume from one side alone, in the order in which its content lies on the device.
//! Unlike a rebuild, it also takes content of which no digest is known, and says where it is.
//!
//! Nothing is written, and no block is returned that does not match a digest of it.

use std::ops::Range;

use bimetal_rt::Payload;

use super::order::{Placed, READ_BYTES_MAX, Runs, sorted_by};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::extent_map::Cut;
use crate::layers::mirror::store::Store;
use crate::layers::mirror::store::checksums::{self, Checksums, Expected};
use crate::layers::mirror::store::digests::Digests;
use crate::layers::mirror::store::index::Content;
use crate::range_set::RangeSet;
use crate::request::{EXTENTS_MAX, Extent, Request};

/// A part of the volume that is in one place on the device.
#[derive(Clone, Debug)]
pub(in crate::layers::mirror) struct Piece {
    /// Offset on the device.
    at: u64,
    range: Range<u64>,
    /// Digests of the content, if it is in the log; else the checksums have them.
    digests: Option<Digests>,
}

impl Placed for Piece {
    fn at(&self) -> u64 {
        self.at
    }

    fn end(&self) -> u64 {
        self.at + self.len()
    }
}

/// Pieces that are read together.
#[derive(Clone, Copy, Debug)]
pub(in crate::layers::mirror) struct RunOfPieces<'p> {
    /// The pieces, at least one, in the order of the device.
    pieces: &'p [Piece],
    /// Offset on the device up to which is read.
    pub(in crate::layers::mirror) end: u64,
}

impl Piece {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn joins(&self, next: &Piece) -> bool {
        let is_next = self.end() == next.at && self.range.end == next.range.start;
        is_next && self.digests.is_none() && next.digests.is_none()
    }

    fn cut(&self, blocks: Range<u64>) -> Piece {
        let bytes = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
        Piece {
            at: self.at + bytes.start,
            range: self.range.start + bytes.start..self.range.start + bytes.end,
            digests: self.digests.as_ref().map(|digests| digests.cut(bytes)),
        }
    }
}

/// Content that was read.
#[derive(Debug, Default)]
pub(in crate::layers::mirror) struct Salvaged {
    /// Intact parts, each with its offset in the volume.
    pub(in crate::layers::mirror) intact: Vec<(u64, Payload)>,
    /// Ranges of the volume that cannot be read or do not match their digests.
    pub(in crate::layers::mirror) missing: Vec<Range<u64>>,
    /// Number of bytes in `intact` for which no digest is known.
    pub(in crate::layers::mirror) unverified_bytes: u64,
}

impl Store {
    /// Returns the range of the device that [`pieces_in`](Self::pieces_in) divides.
    pub(in crate::layers::mirror) fn content_area(&self) -> Range<u64> {
        match &self.segments {
            Some(segments) => segments.device_range(),
            None => self.data_offset..self.data_offset + self.volume_bytes.get(),
        }
    }

    /// Returns the parts of the volume whose newest content is in the log, in the order of the
    /// device, and adds the ranges that the log calls lost to `missing`.
    pub(in crate::layers::mirror) fn pieces_in_log(&self, missing: &mut RangeSet) -> Vec<Piece> {
        let index = self.log.index.borrow();
        let mut pieces = Vec::new();
        for (range, record) in index.newest_in(&(0..self.volume_bytes.get())) {
            match record.content {
                Content::Data { position, digests } => pieces.push(Piece {
                    at: self.log.area.at(position),
                    range,
                    digests: Some(digests),
                }),
                Content::Zeroes(_) => {}
                Content::Lost => missing.insert(range),
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.at);
        pieces
    }

    /// Returns the parts of the volume whose newest content is in a range of the device outside of
    /// the log, in the order of the device.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in crate::layers::mirror) async fn pieces_in(
        &self,
        range: Range<u64>,
    ) -> Result<Vec<Piece>, IoError> {
        let mut pieces = Vec::new();
        match &self.segments {
            Some(segments) => {
                let stored = segments.stored_in(&range).await?;
                for (at, offset) in sorted_by(stored, |(at, _)| *at).await {
                    if offset < self.volume_bytes.get() {
                        self.add_piece(&mut pieces, at, offset);
                    }
                }
            }
            None => {
                let home = range.start - self.data_offset..range.end - self.data_offset;
                self.pieces_at_home(home, &mut pieces).await?;
            }
        }
        Ok(pieces)
    }

    /// Adds the parts of a range of the volume that have content at home.
    async fn pieces_at_home(
        &self,
        range: Range<u64>,
        pieces: &mut Vec<Piece>,
    ) -> Result<(), IoError> {
        let mut position = range.start;
        while position < range.end {
            // One page of the checksums at a time: if it is damaged, all of its blocks may have
            // content.
            let page = Checksums::blocks_of(Checksums::page_of(position / BLOCK_BYTES));
            let end = range.end.min(page.end * BLOCK_BYTES);
            let extents = match self.extents(position..end, EXTENTS_MAX).await {
                Ok(found) => found.into_extents(),
                Err(IoError::Corrupt) => vec![Extent {
                    len: end - position,
                    data: true,
                }],
                Err(error) => return Err(error),
            };
            for extent in extents {
                let part = position..position + extent.len;
                position = part.end;
                for offset in part.step_by(BLOCK_BYTES as usize).filter(|_| extent.data) {
                    self.add_piece(pieces, self.data_offset + offset, offset);
                }
            }
        }
        Ok(())
    }

    /// Adds a block of the volume, unless the log has something newer. Blocks are added in the
    /// order of the device.
    fn add_piece(&self, pieces: &mut Vec<Piece>, at: u64, offset: u64) {
        let range = offset..offset + BLOCK_BYTES;
        if !self.log.index.borrow().newest_in(&range).is_empty() {
            return;
        }
        let piece = Piece {
            at,
            range,
            digests: None,
        };
        match pieces.last_mut() {
            Some(last) if last.joins(&piece) && last.len() < READ_BYTES_MAX => {
                last.range.end = piece.range.end;
            }
            _ => pieces.push(piece),
        }
    }

    /// Divides pieces, given in the order of the device, into runs that are read together.
    pub(in crate::layers::mirror) fn runs_of<'p>(
        &self,
        pieces: &'p [Piece],
    ) -> impl Iterator<Item = RunOfPieces<'p>> {
        let transfer = u64::from(self.device.geometry().transfer_bytes_max);
        Runs::of(pieces, transfer).map(|(pieces, end)| RunOfPieces { pieces, end })
    }

    /// Reads a run of pieces with one request. If that fails, or a block is wrong, each block is
    /// read separately.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in crate::layers::mirror) async fn salvage(
        &self,
        run: RunOfPieces<'_>,
    ) -> Result<Salvaged, IoError> {
        let mut salvaged = Salvaged::default();
        let first = &run.pieces[0];
        let read = Request::read(first.at, run.end - first.at);
        let data = match self.device.submit(read).await {
            Ok(reply) => Some(reply.into_data()),
            Err(error) if error.is_of_a_block() => None,
            Err(error) => return Err(error),
        };
        for piece in run.pieces {
            let start = (piece.at - first.at) as usize;
            let part = data.as_ref();
            let part = part.map(|data| data.slice(start..start + piece.len() as usize));
            self.salvage_piece(piece, part, &mut salvaged).await?;
        }
        Ok(salvaged)
    }

    async fn salvage_piece(
        &self,
        piece: &Piece,
        data: Option<Payload>,
        salvaged: &mut Salvaged,
    ) -> Result<(), IoError> {
        let blocks = piece.len() / BLOCK_BYTES;
        if let Some(data) = data
            && self.is_intact(piece, &data, salvaged).await?
        {
            salvaged.intact.push((piece.range.start, data));
            return Ok(());
        }
        if blocks == 1 {
            salvaged.missing.push(piece.range.clone());
            return Ok(());
        }
        for block in 0..blocks {
            let one = piece.cut(block..block + 1);
            let data = match self.device.submit(Request::read(one.at, BLOCK_BYTES)).await {
                Ok(reply) => Some(reply.into_data()),
                Err(error) if error.is_of_a_block() => None,
                Err(error) => return Err(error),
            };
            Box::pin(self.salvage_piece(&one, data, salvaged)).await?;
        }
        Ok(())
    }

    /// Returns true when the content of a piece matches its digests, as far as these are known.
    async fn is_intact(
        &self,
        piece: &Piece,
        data: &Payload,
        salvaged: &mut Salvaged,
    ) -> Result<bool, IoError> {
        if let Some(digests) = &piece.digests {
            return Ok(digests.agree_with(data));
        }
        let blocks = piece.range.start / BLOCK_BYTES..piece.range.end / BLOCK_BYTES;
        let expected = match &self.checksums {
            None => None,
            Some(checksums) => match checksums.expected(blocks.clone()).await {
                Ok(expected) => Some(expected),
                Err(IoError::Corrupt) => None,
                Err(error) => return Err(error),
            },
        };
        let Some(expected) = expected else {
            salvaged.unverified_bytes += piece.len();
            return Ok(true);
        };
        let wrong = checksums::verify(self.digest, data, blocks.start, &expected);
        let unknown = expected.iter().filter(|of| **of == Expected::Unknown);
        if wrong.is_empty() {
            salvaged.unverified_bytes += unknown.count() as u64 * BLOCK_BYTES;
        }
        Ok(wrong.is_empty())
    }

    /// Returns the ranges of the volume that the side has lost: it does not know where they are, or
    /// no side had their content. Ranges that the log has something newer for are not among them.
    ///
    /// # Errors
    /// Errors of the device that do not concern single blocks.
    pub(in crate::layers::mirror) async fn lost_ranges(&self) -> Result<RangeSet, IoError> {
        let volume_bytes = self.volume_bytes.get();
        let mut lost = RangeSet::new();
        if let Some(segments) = &self.segments {
            lost.extend(segments.lost_ranges(volume_bytes).iter());
        }
        if let Some(checksums) = &self.checksums {
            lost.extend(lost_by_checksums(checksums, volume_bytes / BLOCK_BYTES).await?);
        }
        for (range, _) in self.log.index.borrow().newest_in(&(0..volume_bytes)) {
            lost.remove(range);
        }
        Ok(lost)
    }
}

/// Returns the ranges of a volume of `blocks` blocks whose content no side had, as the checksums
/// say. Damaged pages of them say nothing.
async fn lost_by_checksums(checksums: &Checksums, blocks: u64) -> Result<Vec<Range<u64>>, IoError> {
    let (mut lost, mut position) = (Vec::new(), 0);
    while position < blocks {
        let kinds = match checksums.kinds_in_page(position..blocks).await {
            Err(IoError::Corrupt) => {
                position = Checksums::blocks_of(Checksums::page_of(position)).end;
                continue;
            }
            other => other?,
        };
        for (kind, count) in kinds {
            if kind == Expected::Lost {
                lost.push(position * BLOCK_BYTES..(position + count) * BLOCK_BYTES);
            }
            position += count;
        }
    }
    Ok(lost)
}
