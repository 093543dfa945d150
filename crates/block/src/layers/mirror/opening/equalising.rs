//! Giving all sources (the sides that make up the volume) the same changes before the volume is
//! served.
//!
//! Until a source holds all valid changes, it must keep its state: it must still be possible to
//! open or fork this source alone, with every change below its complete sequence number, which is
//! the number below which it has every change (T14). So the changes that the source lacks are first
//! appended to its log, and none of them is destaged before all of them are in the log. If the log
//! has too little room, the complete changes of the source are destaged first. Changes that the
//! source has stored out of order are dropped if another source also has them, and are given to the
//! source again later.

use std::ops::Range;

use super::lacking::{Lacked, lacked, most_complete, newest_of, regions_lacked};
use super::{Attempt, Inspected, Made, OpeningStep, Setback, store_of, superblock_of};
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::family::Plan;
use crate::range_set::RangeSet;
use crate::request::Origin;

/// Maximum number of bytes that one step reads from each of two sides and compares.
const PIECE_BYTES: u64 = 1 << 20;
/// Smallest value of the limit on the bytes that an opening compares. The limit is the length of
/// the side's log, or this constant if the log is shorter. The limit is necessary because all
/// requests wait during the comparison.
const COMPARED_BYTES_MIN: u64 = 1 << 30;

/// Changes that one source (a side that counts) lacks.
pub(super) struct Lacking {
    pub(super) side: usize,
    pub(super) lacks: Lacked,
}

impl Attempt<'_> {
    /// Determines the changes that each source (a side that makes up the volume) lacks. If the log
    /// of a source has no room for them, the source is removed from the plan and is rebuilt while
    /// the volume is in use. Only a side that was last used by a program that did not record
    /// `kept_from` can lack that many changes.
    pub(super) async fn weigh(
        &self,
        inspected: &[Inspected],
        plan: &mut Plan,
    ) -> Result<Vec<Lacking>, Setback> {
        let sources = plan.sources.clone();
        let truth = most_complete(inspected, &sources);
        let (mut all, mut left_out) = (Vec::new(), Vec::new());
        for &side in &sources {
            match self.lacked_by(inspected, &sources, side).await? {
                Some(lacks) => all.push(Lacking { side, lacks }),
                None if side == truth => unreachable!("the plan was cut to what its log can take"),
                None => left_out.push(side),
            }
        }
        plan.sources.retain(|side| !left_out.contains(side));
        for side in left_out {
            plan.leave_out(side, superblock_of(inspected, side));
        }
        Ok(all)
    }

    /// Returns the changes that a source lacks; `None` if they do not fit into its log, or if too
    /// many bytes would have to be compared to find them.
    async fn lacked_by(
        &self,
        inspected: &[Inspected],
        sources: &[usize],
        side: usize,
    ) -> Result<Option<Lacked>, Setback> {
        let store = store_of(inspected, side);
        let regions = regions_lacked(inspected, sources, side);
        let (_, log_bytes) = store.log_bytes();
        if regions.bytes() > log_bytes.max(COMPARED_BYTES_MIN) {
            return Ok(None);
        }
        let truth = most_complete(inspected, sources);
        let differing = self.differing(inspected, (truth, side), &regions).await?;
        let lacks = lacked(inspected, sources, side, &differing);
        if takes(inspected, side, &lacks) {
            return Ok(Some(lacks));
        }
        if !self.has_nothing_alone(inspected, sources, side) {
            return Ok(None);
        }
        store.forget_from(store.complete());
        let lacks = lacked(inspected, sources, side, &differing);
        Ok(takes(inspected, side, &lacks).then_some(lacks))
    }

    /// Looks at the changes that the side has stored out of order. Returns true if the logs of
    /// other sources have each of these changes, or newer changes of its blocks.
    fn has_nothing_alone(&self, inspected: &[Inspected], sources: &[usize], side: usize) -> bool {
        let store = store_of(inspected, side);
        let others: Vec<usize> = sources.iter().copied().filter(|&s| s != side).collect();
        let newest = newest_of(inspected, &others);
        let own = store.changes_from(store.complete()).into_iter();
        own.into_iter().all(|(range, number)| {
            let mut position = range.start;
            for (part, found) in newest.overlapping(&range) {
                if part.start <= position && found.number >= number {
                    position = position.max(part.end);
                }
            }
            position >= range.end
        })
    }

    /// Returns the blocks of the given regions in which a side differs from the most complete side.
    /// If a piece of [`PIECE_BYTES`] is corrupt on one of the two sides, the whole piece is
    /// returned.
    async fn differing(
        &self,
        inspected: &[Inspected],
        (truth, side): (usize, usize),
        regions: &RangeSet,
    ) -> Result<RangeSet, Setback> {
        let mut differing = RangeSet::new();
        for region in regions.iter() {
            for start in region.clone().step_by(PIECE_BYTES as usize) {
                let piece = start..region.end.min(start + PIECE_BYTES);
                let theirs = self.content_to_compare(inspected, truth, &piece).await?;
                let own = self.content_to_compare(inspected, side, &piece).await?;
                let (Some(theirs), Some(own)) = (theirs, own) else {
                    differing.insert(piece);
                    continue;
                };
                let blocks = piece.step_by(BLOCK_BYTES as usize);
                let pairs = theirs.chunks(BLOCK_BYTES as usize);
                let pairs = pairs.zip(own.chunks(BLOCK_BYTES as usize));
                for (start, (theirs, own)) in blocks.zip(pairs) {
                    if theirs != own {
                        differing.insert(start..start + BLOCK_BYTES);
                    }
                }
            }
        }
        Ok(differing)
    }

    async fn content_to_compare(
        &self,
        inspected: &[Inspected],
        side: usize,
        piece: &Range<u64>,
    ) -> Result<Option<Vec<u8>>, Setback> {
        let read = store_of(inspected, side).read(piece.clone(), Origin::NONE);
        match read.await {
            Ok(reply) => Ok(Some(reply.into_data().to_vec())),
            Err(IoError::Corrupt) => Ok(None),
            Err(error) => Err(Setback::Side(side, error)),
        }
    }

    /// Durably gives each source the changes that it lacks. Each source is then complete, and its
    /// log records this. The least complete source is processed first. To make room, this source
    /// can destage its changes below its complete sequence number, because all other sources have
    /// these changes. Meanwhile the logs of the other sources keep the changes that the least
    /// complete source lacks.
    pub(super) async fn make_equal(
        &self,
        inspected: &[Inspected],
        plan: &Plan,
        mut lacking: Vec<Lacking>,
        made: &mut Made,
    ) -> Result<(), Setback> {
        for &side in &plan.sources {
            let store = store_of(inspected, side);
            // The side will be given the changes that it lacks. Its log must record them under the
            // newest epoch, so that later openings accept them.
            store.set_epoch(plan.newest.current().number);
            self.on_side(side, store.flush_what_was_found()).await?;
        }
        self.restore_places(inspected, plan).await?;
        self.release(inspected, plan);
        lacking.sort_by_key(|of| store_of(inspected, of.side).complete());
        for Lacking { side, lacks } in lacking {
            let store = store_of(inspected, side);
            self.on_side(side, store.begin()).await?;
            let missing = self.give(inspected, side, lacks).await?;
            made.out_of_sync[side].extend(missing);
            self.on_side(side, store.become_complete(made.next_number))
                .await?;
            self.release(inspected, plan);
        }
        Ok(())
    }

    /// Finds blocks of logged sources again whose places are lost, unless another source can supply
    /// them.
    async fn restore_places(&self, inspected: &[Inspected], plan: &Plan) -> Result<(), Setback> {
        if let [alone] = plan.sources[..] {
            let told = |done, all| self.tell(alone, OpeningStep::ReadingMap, done, all);
            let counted = store_of(inspected, alone).count_map(&told);
            self.on_side(alone, counted).await?;
        }
        let has_lost = |side: &&usize| store_of(inspected, **side).has_lost_pages();
        let lacking: Vec<usize> = plan.sources.iter().filter(has_lost).copied().collect();
        if lacking.len() < plan.sources.len() {
            return Ok(());
        }
        for side in lacking {
            let told = |done, all| self.tell(side, OpeningStep::RestoringMap, done, all);
            let restored = store_of(inspected, side).restore_places(&told);
            self.on_side(side, restored).await?;
        }
        Ok(())
    }

    /// Tells the log of each source the sequence number below which all other sources durably have
    /// every change. The log is allowed to drop only changes below that number.
    fn release(&self, inspected: &[Inspected], plan: &Plan) {
        let listed = plan.table.iter().flatten().count();
        let missing = plan.sources.len() < listed || !plan.made.is_empty();
        for &side in &plan.sources {
            let others = plan.sources.iter().filter(|&&other| other != side);
            let durable = others.map(|&other| store_of(inspected, other).complete_durable());
            store_of(inspected, side).release(durable.min().unwrap_or(u64::MAX), missing);
        }
    }
}

/// Returns true if the changes that a side lacks fit into its log.
pub(super) fn takes(inspected: &[Inspected], side: usize, lacks: &Lacked) -> bool {
    let bytes = lacks.iter().map(|(range, _)| range.end - range.start).sum();
    store_of(inspected, side).takes(bytes, lacks.len() as u64)
}
