//! Giving a side the changes that it lacks and that other sides have, before the volume is served.
//!
//! If no side has the content of a change any more, a record in the side's log marks the content as
//! lost. A reader must never get the older content of the side instead.

use std::ops::Range;
use std::time::Duration;

use bimetal_rt::Payload;

use super::lacking::{Lacked, Newest, pieces};
use super::{Attempt, Inspected, OpeningProgress, OpeningStep, Setback, store_of};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::store::{Append, Outcome, all_stored};
use crate::request::Origin;

/// Number of appends after which the opening waits until all of them are stored.
const APPENDS_AT_ONCE: usize = 32;
/// Minimum time between two progress reports.
const TELL_EVERY: Duration = Duration::from_secs(2);

impl Attempt<'_> {
    /// Gives a side the changes that it lacks, under their original sequence numbers; the changes
    /// are durable when this returns. Returns the ranges whose content no side has any more.
    pub(super) async fn give(
        &self,
        inspected: &[Inspected],
        index: usize,
        lacks: Lacked,
    ) -> Result<Vec<Range<u64>>, Setback> {
        let store = store_of(inspected, index);
        let (mut outcomes, mut missing) = (Vec::new(), Vec::new());
        let any = !lacks.is_empty();
        let lacked_bytes = lacks.iter().map(|(range, _)| range.end - range.start).sum();
        let mut given_bytes = 0;
        for (range, newest) in lacks {
            let parts = store_of(inspected, newest.side).parts_in(&range).await;
            for (part, space) in parts.into_iter().flat_map(pieces) {
                // Zeroes are one record without data, however long they are. As data they would
                // take time and room: a discard can be a whole volume.
                let appends = match space {
                    Some(space) => vec![Append::zeroes(part.clone(), space, newest.number)],
                    None => self.appends_of(inspected, index, &part, newest).await?,
                };
                let lost = appends.iter().filter(|append| append.is_lost());
                missing.extend(lost.map(|append| append.range()));
                // A store without checksums cannot record lost content at home locations, so a lost
                // block is not appended.
                let kept = appends.into_iter();
                let kept = kept.filter(|append| !append.is_lost() || store.has_checksums());
                outcomes.extend(kept.map(|append| store.append(append)));
                if outcomes.len() >= APPENDS_AT_ONCE {
                    self.stored(index, &mut outcomes).await?;
                    self.tell(index, OpeningStep::Giving, given_bytes, lacked_bytes);
                }
                given_bytes += part.end - part.start;
            }
        }
        self.stored(index, &mut outcomes).await?;
        if any {
            self.on_side(index, store.flush(0)).await?;
        }
        Ok(missing)
    }

    /// Reports how far the opening of the side with this index has progressed, unless the last
    /// report was less than [`TELL_EVERY`] ago.
    pub(super) fn tell(&self, index: usize, step: OpeningStep, done_bytes: u64, bytes_max: u64) {
        let now = self.rt.now();
        let Some(progress) = self.options.progress else {
            return;
        };
        if now.since(self.acknowledged_at.get()) >= TELL_EVERY {
            self.acknowledged_at.set(now);
            let side = self.sides[index].name.clone();
            progress(&OpeningProgress {
                side,
                step,
                done_bytes,
                bytes_max,
            });
        }
    }

    async fn stored(&self, index: usize, outcomes: &mut Vec<Outcome>) -> Result<(), Setback> {
        let stored = all_stored(std::mem::take(outcomes));
        self.on_side(index, stored).await
    }

    /// Reads the content of a range with one request. If a part of the range is corrupt, reads it
    /// block by block instead. Returns the content as appends for the log of side `index`.
    async fn appends_of(
        &self,
        inspected: &[Inspected],
        index: usize,
        piece: &Range<u64>,
        newest: Newest,
    ) -> Result<Vec<Append>, Setback> {
        if let Some(data) = self.content(inspected, newest.side, piece).await? {
            return Ok(vec![Append::of(piece.clone(), data, newest.number)]);
        }
        let mut appends = Vec::new();
        for start in piece.clone().step_by(BLOCK_BYTES as usize) {
            let block = start..start + BLOCK_BYTES;
            let data = self
                .content_of_block(inspected, index, &block, newest)
                .await?;
            appends.push(match data {
                Some(data) => Append::of(block, data, newest.number),
                None => Append::lost(block, newest.number),
            });
        }
        Ok(appends)
    }

    /// Reads a block from the side `newest.side`. If the block is corrupt there, reads it from
    /// another side whose log has a change of the block with the same sequence number. Returns
    /// `None` if the block is corrupt on all of these sides.
    async fn content_of_block(
        &self,
        inspected: &[Inspected],
        index: usize,
        block: &Range<u64>,
        newest: Newest,
    ) -> Result<Option<Payload>, Setback> {
        let has_it = |other: usize| {
            let store = inspected[other].store.as_ref();
            let numbers = store.map(|store| store.numbers_in(block));
            numbers.is_some_and(|n| n.iter().any(|(_, number)| *number == newest.number))
        };
        let others = (0..inspected.len())
            .filter(|&other| other != index && other != newest.side && has_it(other));
        for side in std::iter::once(newest.side).chain(others) {
            let data = self.content(inspected, side, block).await?;
            if data.is_some() {
                return Ok(data);
            }
        }
        Ok(None)
    }

    /// Reads a range from a side; `None` if the range is corrupt on that side.
    async fn content(
        &self,
        inspected: &[Inspected],
        side: usize,
        range: &Range<u64>,
    ) -> Result<Option<Payload>, Setback> {
        let read = async {
            let store = store_of(inspected, side);
            match store.read(range.clone(), Origin::NONE).await {
                Err(IoError::Corrupt) => Ok(None),
                other => other.map(|reply| Some(reply.into_data())),
            }
        };
        self.on_side(side, read).await
    }
}
