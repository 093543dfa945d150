//! Giving a side what it lacks: copying its stale ranges from other sides while the volume is in
//! use, several pieces at once, giving way to clients.
//!
//! It must never undo a newer write, and never copy what need not be copied: what was never written
//! on the source is zeroes, which take no space.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use bimetal_rt::Payload;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::shared::Shared;
use super::side::{Progress, Side, add};
use super::store::Append;
use super::superblock::FIRST_CHANGE;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::request::{EXTENTS_MAX, Extent, Flags, Request};

/// A rebuild copies this much at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// So many pieces at once.
const PIECES_IN_FLIGHT_MAX: usize = 4;
/// What was not what it should be on any side in so many rounds, which are a second apart, is lost.
const LOST_AFTER_ROUNDS: u32 = 5;
/// The same for what devices could not read: that may pass.
const UNREADABLE_AFTER_ROUNDS: u32 = 600;

/// What a source has in a part of the volume.
enum Source {
    Data(Payload),
    /// Nothing was ever written there.
    Zeroes,
    /// Nobody has it any more.
    Lost,
}

impl Shared {
    /// Copies every stale range of the side from other ones. What cannot be copied does not keep
    /// the rest from it.
    ///
    /// # Errors
    /// The first of a piece; it is still stale.
    pub(super) async fn copy_what_is_stale(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        side.rebuild.set(Some(Progress {
            since: self.rt.now(),
            passed_bytes: 0,
        }));
        let mut copied = Ok(());
        while copied.is_ok() && !side.out_of_sync.is_empty() {
            copied = self.copy_pieces(side).await;
        }
        side.rebuild.set(None);
        copied
    }

    async fn copy_pieces(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        let mut pieces = FuturesUnordered::new();
        let (mut position, mut copied) = (0, Ok(()));
        loop {
            while pieces.len() < PIECES_IN_FLIGHT_MAX
                && let Some(piece) = next_piece(side, position)
            {
                position = piece.end;
                pieces.push(self.copy_in_turn(side, piece));
            }
            match pieces.next().await {
                Some(piece) => copied = copied.and(piece),
                // What has become stale behind the position is for the next round.
                None => break,
            }
            if !side.is_active() {
                return Err(IoError::Offline);
            }
        }
        copied
    }

    async fn copy_in_turn(self: &Rc<Self>, side: &Side, piece: Range<u64>) -> Result<(), IoError> {
        let len = piece.end - piece.start;
        self.repair
            .rebuild_pace
            .turn(&self.repair.clients, len)
            .await;
        self.copy_piece(side, piece).await?;
        if let Some(mut progress) = side.rebuild.get() {
            progress.passed_bytes += len;
            side.rebuild.set(Some(progress));
        }
        Ok(())
    }

    /// Copies what is stale of a piece, under the range lock.
    pub(super) async fn copy_piece(
        self: &Rc<Self>,
        side: &Side,
        piece: Range<u64>,
    ) -> Result<(), IoError> {
        let guard = self.admission.ranges.lock(piece.clone()).await;
        if !side.is_active() {
            return Err(IoError::Offline);
        }
        // Writes since may have made parts of it fresh, and these must not be undone.
        for part in side.out_of_sync.parts_in(&piece) {
            self.copy_stale(side, part).await?;
        }
        drop(guard);
        Ok(())
    }

    /// Copies a range; where a block cannot be read, all the others. A block that no side could give
    /// for long is made one that cannot be read: else a side would never be whole again, and its
    /// other blocks not count, for the sake of one.
    async fn copy_stale(self: &Rc<Self>, side: &Side, range: Range<u64>) -> Result<(), IoError> {
        let mut copied = Ok(());
        for (part, has_data) in self.extents_for_resync(&range, side.index).await {
            match self.copy_part(side, part.clone(), has_data).await {
                Err(error) if error.is_of_a_block() => {}
                other => {
                    other?;
                    continue;
                }
            }
            for start in part.step_by(BLOCK_BYTES as usize) {
                let block = start..start + BLOCK_BYTES;
                match self.copy_part(side, block.clone(), has_data).await {
                    Err(error) if error.is_of_a_block() => {
                        match self.is_lost_for(side, &block, error) {
                            true => self.leave_lost(side, block).await?,
                            false => copied = Err(error),
                        }
                    }
                    other => other?,
                }
            }
        }
        copied
    }

    async fn copy_part(
        self: &Rc<Self>,
        side: &Side,
        part: Range<u64>,
        has_data: bool,
    ) -> Result<(), IoError> {
        if has_data {
            let data = self.read_for_resync(part.clone(), side.index).await?;
            let data = Source::Data(data);
            self.write_for_resync(side, part.clone(), data).await?;
            add(&side.counts.resynced_bytes, part.end - part.start);
        } else if !self.is_never_written(side.index, &part).await {
            self.write_for_resync(side, part.clone(), Source::Zeroes)
                .await?;
        }
        let repaired_bytes = side.out_of_sync.copied(part);
        add(&side.counts.repaired_blocks, repaired_bytes / BLOCK_BYTES);
        Ok(())
    }

    /// True when what cannot be read for a side is lost: it was tried often enough, nobody is absent
    /// who might have it or is only being given it, and the side can keep in mind that it has not.
    fn is_lost_for(&self, side: &Side, block: &Range<u64>, error: IoError) -> bool {
        let mut sides = self.sides.iter();
        let claimed = self.current_side(block, &[side.index]).is_some();
        let rounds = match error {
            IoError::Medium if claimed => UNREADABLE_AFTER_ROUNDS,
            _ => LOST_AFTER_ROUNDS,
        };
        let is_given = |other: &Side| !other.queue.borrow().pending_in(block).is_empty();
        side.failed_copies.get() >= rounds
            && !self.sides.iter().any(is_given)
            && side.store().is_some_and(|store| store.has_checksums())
            && !self.incomplete_table()
            && sides.all(|side| side.is_active())
    }

    /// Has a side say of a block that it cannot be read, until it is written again. What was found
    /// wrong on the side itself says so already.
    async fn leave_lost(self: &Rc<Self>, side: &Side, block: Range<u64>) -> Result<(), IoError> {
        if !side.out_of_sync.is_corrupt(&block) {
            self.write_for_resync(side, block.clone(), Source::Lost)
                .await?;
            add(&side.counts.lost_blocks, 1);
        }
        side.out_of_sync.copied(block.clone());
        self.repair.note_lost(block);
        Ok(())
    }

    /// The parts of a range, each with whether the side that it would be read from has anything
    /// there.
    async fn extents_for_resync(
        self: &Rc<Self>,
        range: &Range<u64>,
        target: usize,
    ) -> Vec<(Range<u64>, bool)> {
        let all = vec![(range.clone(), true)];
        let source = self.current_side(range, &[target]);
        // A bare device is copied as it is.
        let Some(source) = source.filter(|&source| self.sides[source].store().is_some()) else {
            return all;
        };
        // Not knowing where the holes are is no reason to fail: all is data.
        let mut parts = Vec::new();
        let mut position = range.start;
        while position < range.end {
            let rest = position..range.end;
            let Some(extents) = self.extents_on(source, &rest, EXTENTS_MAX).await else {
                return all;
            };
            for Extent { len, data } in extents {
                parts.push((position..position + len, data));
                position += len;
            }
        }
        parts
    }

    /// True when nothing was ever written to a range of a side, so that it reads as zeroes.
    async fn is_never_written(self: &Rc<Self>, index: usize, range: &Range<u64>) -> bool {
        if self.sides[index].store().is_none() {
            return false;
        }
        let mut position = range.start;
        while position < range.end {
            let rest = position..range.end;
            match self.extents_on(index, &rest, 1).await.as_deref() {
                Some([Extent { len, data: false }]) => position += len,
                _ => return false,
            }
        }
        true
    }

    /// Writes a piece of a rebuild. When the side is given up meanwhile the piece goes on by itself,
    /// and the side is not used again before it has ended; but its range is not kept locked for it.
    async fn write_for_resync(
        self: &Rc<Self>,
        side: &Side,
        range: Range<u64>,
        source: Source,
    ) -> Result<(), IoError> {
        let outcome = Rc::new(Cell::new(None));
        let (shared, ended, index) = (Rc::clone(self), Rc::clone(&outcome), side.index);
        let operation = side.start(self.rt.now());
        // The newest content of the range is that of the last change that was admitted, or of an
        // older one. A number of its own would be one that the other sides never hear of.
        let number = self
            .admission
            .next_number()
            .saturating_sub(1)
            .max(FIRST_CHANGE);
        let append = |range| match &source {
            Source::Data(data) => Append::of(range, data.clone(), number),
            Source::Zeroes => Append::zeroes(range, number),
            Source::Lost => Append::lost(range, number),
        };
        let appended = side
            .store()
            .map(|store| store.append(append(range.clone())));
        self.tasks.spawn(async move {
            let side = &shared.sides[index];
            let written = match (appended, source) {
                (Some(appended), _) => appended.wait().await,
                (None, Source::Data(data)) => {
                    let write = Request::write(range.start, data, Flags::NONE);
                    side.change_bare(write).await
                }
                (None, Source::Zeroes | Source::Lost) => {
                    unreachable!("a bare device knows of no holes and of nothing that is lost")
                }
            };
            side.finish(operation, shared.rt.now());
            ended.set(Some(written));
            side.changed.notify();
            // What was admitted meanwhile may have waited for the side to be idle.
            shared.pump(index);
        });
        let over = || outcome.get().is_some() || !side.is_active();
        side.changed.until(over).await;
        outcome.get().unwrap_or(Err(IoError::Timeout))
    }
}

/// The next piece that is stale from a position on.
fn next_piece(side: &Side, position: u64) -> Option<Range<u64>> {
    let Range { start, end } = side.out_of_sync.next_from(position)?;
    Some(start..end.min(start + PIECE_BYTES))
}
