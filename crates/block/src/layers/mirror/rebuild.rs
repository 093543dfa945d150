//! Giving a side what it lacks: copying its stale ranges from other sides while the volume is in
//! use, several pieces at once, [sharing](super::share) the sides with clients.
//!
//! A piece is a part of a window of 1 MiB: stale ranges with small gaps between them, which are
//! read with one request. It goes straight home where the log of the side has nothing in its way.
//!
//! It must never undo a newer write, and never copy what need not be copied: what was never written
//! on the source is zeroes, which take no space.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::share::COST_BYTES_MIN;
use super::shared::Shared;
use super::side::{Progress, Side, add};
use super::store::{Append, Outcome, Space, Store, Unsettled};
use super::superblock::FIRST_CHANGE;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::range_lock::RangeGuard;
use crate::request::{EXTENTS_MAX, Extent, Flags, Request};

/// A piece does not reach over the end of a window of this size.
const WINDOW_BYTES: u64 = 1 << 20;
/// Ranges of a window with a gap of at most this between them are one piece: to read the gap costs
/// less than a further request.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// The same where a side seeks: in the time of a turn of a disk, so much passes below its head.
const GAP_SEEKING_BYTES_MAX: u64 = 256 << 10;
/// Pieces in flight: at most so many, with so many bytes together. A device is busy with these for
/// no longer than clients may wait, and has enough to choose from.
const PIECES_IN_FLIGHT_MAX: usize = 32;
/// The same where a side seeks.
const PIECES_IN_FLIGHT_SEEKING_MAX: usize = 24;
const IN_FLIGHT_BYTES_MAX: u64 = 4 << 20;
/// Where a piece takes longer than this, fewer bytes are in flight.
const PIECE_TIME_MAX: Duration = Duration::from_millis(100);
/// Ranges of one piece that are written at once.
const WRITES_IN_FLIGHT_MAX: usize = 16;
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

/// How a piece of a rebuild is written.
enum Writing {
    Logged(Outcome),
    Straight(Rc<Store>, RangeGuard, Payload),
    Bare(Range<u64>, Payload),
    /// The side has left the volume.
    Gone,
}

impl Shared {
    /// Copies every stale range of the side from other ones. What cannot be copied does not keep
    /// the rest from it.
    ///
    /// # Errors
    /// The first of a piece; it is still stale.
    pub(super) async fn copy_what_is_stale(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        self.repair.share.begin_rebuild();
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
        let (mut in_flight_bytes, mut in_flight_bytes_max) = (0, IN_FLIGHT_BYTES_MAX);
        let (pieces_max, gap_bytes_max) = match self.a_side_seeks() {
            true => (PIECES_IN_FLIGHT_SEEKING_MAX, GAP_SEEKING_BYTES_MAX),
            false => (PIECES_IN_FLIGHT_MAX, GAP_BYTES_MAX),
        };
        loop {
            while pieces.len() < pieces_max
                && in_flight_bytes < in_flight_bytes_max
                && !should_settle(side)
                && let Some(piece) = next_piece(side, position, gap_bytes_max)
            {
                if must_be_announced(side, &piece) {
                    if !pieces.is_empty() {
                        // Those in flight hold locks, and must be looked after.
                        break;
                    }
                    self.announce_copies(side, &piece).await?;
                }
                position = piece.end;
                in_flight_bytes += piece.end - piece.start;
                pieces.push(self.copy_in_turn(side, piece));
            }
            match pieces.next().await {
                Some((piece_bytes, took, outcome)) => {
                    in_flight_bytes -= piece_bytes;
                    let more = took <= PIECE_TIME_MAX;
                    let max = in_flight_bytes_max;
                    let max = if more { max * 2 } else { max / 2 };
                    in_flight_bytes_max = max.clamp(WINDOW_BYTES, IN_FLIGHT_BYTES_MAX);
                    copied = copied.and(outcome);
                }
                None if should_settle(side) => self.settle_copies(side).await?,
                // What has become stale behind the position is for the next round.
                None => break,
            }
            if !side.is_active() {
                return Err(IoError::Offline);
            }
        }
        copied
    }

    /// True when a side that takes part is on a disk that seeks.
    fn a_side_seeks(&self) -> bool {
        let mut active = self.sides.iter().filter(|side| side.is_active());
        active.any(|side| side.device.geometry().rotational)
    }

    /// Copies a piece when it is its turn. Returns its length, how long it took, and what came of
    /// it.
    async fn copy_in_turn(
        self: &Rc<Self>,
        side: &Side,
        piece: Range<u64>,
    ) -> (u64, Duration, Result<(), IoError>) {
        let len = piece.end - piece.start;
        let share = &self.repair.share;
        let cost_bytes = len.max(COST_BYTES_MIN);
        let turn = share.turn(&self.repair.clients, cost_bytes).await;
        let began = self.rt.now();
        let before = side.counts.resynced_bytes.get();
        let copied = self.copy_piece(side, piece).await;
        let nothing = side.counts.resynced_bytes.get() == before;
        if copied.is_ok() && nothing {
            turn.took(0);
        } else if copied.is_ok() {
            share.brought(cost_bytes);
            self.repair.following.wake_first();
        }
        if let (Ok(()), Some(mut progress)) = (copied, side.rebuild.get()) {
            progress.passed_bytes += len;
            side.rebuild.set(Some(progress));
        }
        (len, self.rt.now().since(began), copied)
    }

    /// Has the side announce what it lacks around a piece, before that may go straight home.
    async fn announce_copies(
        self: &Rc<Self>,
        side: &Side,
        piece: &Range<u64>,
    ) -> Result<(), IoError> {
        let Some(store) = side.store() else {
            return Ok(());
        };
        let together = Store::announced_together(piece.start);
        let ranges = side.out_of_sync.parts_in(&together);
        let announced = self.done_by(side, async move { store.announce(ranges).await });
        announced.await.unwrap_or(Err(IoError::Timeout))
    }

    /// Makes durable what has gone straight home.
    ///
    /// # Errors
    /// Those of the device. When it is not known what is lost, the side is given up.
    pub(super) async fn settle_copies(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        let Some(store) = side.store() else {
            return Ok(());
        };
        match self
            .done_by(side, async move { store.settle().await })
            .await
        {
            None => Err(IoError::Timeout),
            Some(Ok(())) => Ok(()),
            Some(Err(Unsettled::Unwritten(error))) => Err(error),
            Some(Err(Unsettled::Lost(error))) => {
                if side.is_active() {
                    self.lost_since_last_flush(side.index, error);
                }
                Err(error)
            }
        }
    }

    /// Has the log of a side let go of what it has of ranges that were copied past it.
    ///
    /// # Errors
    /// Those of the device; `Timeout` when the side is given up meanwhile.
    pub(super) async fn drop_superseded(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        let Some(store) = side.store() else {
            return Ok(());
        };
        let dropped = self.done_by(side, async move { store.drop_superseded().await });
        dropped.await.unwrap_or(Err(IoError::Timeout))
    }

    /// Copies what is stale of a piece, under the range lock.
    pub(super) async fn copy_piece(
        self: &Rc<Self>,
        side: &Side,
        piece: Range<u64>,
    ) -> Result<(), IoError> {
        // Without the lock: a side that hangs in it keeps no client waiting.
        self.look_ahead(side, &piece).await;
        let mut guard = Some(self.admission.ranges.lock(piece.clone()).await);
        if !side.is_active() {
            return Err(IoError::Offline);
        }
        // Writes since may have made parts of it fresh, and these must not be undone.
        let stale = side.out_of_sync.parts_in(&piece);
        let (Some(first), Some(last)) = (stale.first(), stale.last()) else {
            return Ok(());
        };
        let whole = first.start..last.end;
        if !self.copy_together(side, &whole, &stale, &mut guard).await? {
            for part in stale {
                self.copy_stale(side, part).await?;
            }
        }
        drop(guard);
        Ok(())
    }

    /// Has both sides read what they will need to know of the home.
    async fn look_ahead(&self, side: &Side, range: &Range<u64>) {
        let source = self.current_side(range, &[side.index]);
        let source = source.and_then(|source| self.sides[source].store());
        let looks = side
            .store()
            .into_iter()
            .chain(source)
            .map(|store| async move {
                // What cannot be read now is read when it is needed, and an error is told then.
                let _ = store.look_ahead(range).await;
            });
        futures_util::future::join_all(looks).await;
    }

    /// Copies the stale parts of a range with one read, the gaps between them included. False when
    /// that cannot be done: no side has all of it, some of it is no data, or cannot be read.
    ///
    /// What goes straight home needs no lock of the range any more once it is on its way: clients
    /// would wait as long as the side takes. What they change meanwhile is not made fresh by it.
    async fn copy_together(
        self: &Rc<Self>,
        side: &Side,
        whole: &Range<u64>,
        stale: &[Range<u64>],
        guard: &mut Option<RangeGuard>,
    ) -> Result<bool, IoError> {
        if self.current_side(whole, &[side.index]).is_none() {
            return Ok(false);
        }
        let extents = self.extents_for_resync(whole, side.index).await;
        if extents.iter().any(|(_, has_data)| !has_data) {
            return Ok(false);
        }
        let data = match self.read_for_resync(whole.clone(), side.index).await {
            Ok(data) => data,
            Err(error) if error.is_of_a_block() => return Ok(false),
            Err(error) => return Err(error),
        };
        // A disk writes over the gaps in less time than it takes to leave them out.
        let seeks = side.device.geometry().rotational;
        let over_gaps = seeks && self.goes_straight(side, whole);
        let parts = match over_gaps {
            true => std::slice::from_ref(whole),
            false => stale,
        };
        let copying = side.out_of_sync.begin_copy(whole.clone());
        let mut written = Ok(());
        let (mut begun, mut all_straight) = (VecDeque::new(), true);
        for part in parts {
            if begun.len() >= WRITES_IN_FLIGHT_MAX
                && let Some(first) = begun.pop_front()
            {
                written = written.and(end_of_write(side, first).await);
            }
            let at = |position: u64| (position - whole.start) as usize;
            let data = Source::Data(data.slice(at(part.start)..at(part.end)));
            let write = self.begin_write(side, part.clone(), data);
            all_straight &= write.straight;
            begun.push_back(write);
        }
        if all_straight {
            guard.take();
        }
        for write in begun {
            written = written.and(end_of_write(side, write).await);
        }
        written?;
        for part in stale {
            for fresh in copying.not_overtaken(part) {
                self.is_copied(side, fresh);
            }
        }
        Ok(true)
    }

    /// Notes that a range was copied to a side.
    fn is_copied(&self, side: &Side, part: Range<u64>) {
        add(&side.counts.resynced_bytes, part.end - part.start);
        self.is_fresh(side, part);
    }

    /// Notes that a side has a range, as it should be.
    fn is_fresh(&self, side: &Side, part: Range<u64>) {
        let repaired_bytes = side.out_of_sync.copied(part);
        add(&side.counts.repaired_blocks, repaired_bytes / BLOCK_BYTES);
    }

    /// Copies a range; where a block cannot be read, all the others. A block that no side could
    /// give for long is made one that cannot be read: else a side would never be whole again, and
    /// its other blocks not count, for the sake of one.
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
            self.is_copied(side, part);
            return Ok(());
        }
        if !self.is_never_written(side.index, &part).await {
            self.write_for_resync(side, part.clone(), Source::Zeroes)
                .await?;
        }
        self.is_fresh(side, part);
        Ok(())
    }

    /// True when what cannot be read for a side is lost: it was tried often enough, nobody is
    /// absent who might have it or is only being given it, and the side can keep in mind that it
    /// has not.
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

    /// True when what a side lacks of a range may be written past its log.
    fn goes_straight(&self, side: &Side, range: &Range<u64>) -> bool {
        let store = side.store();
        side.queue.borrow().is_current(range)
            && store.is_some_and(|store| store.takes_straight(range))
    }

    /// Writes a piece of a rebuild. When the side is given up meanwhile the piece goes on by
    /// itself, and the side is not used again before it has ended; but its range is not kept locked
    /// for it.
    async fn write_for_resync(
        self: &Rc<Self>,
        side: &Side,
        range: Range<u64>,
        source: Source,
    ) -> Result<(), IoError> {
        end_of_write(side, self.begin_write(side, range, source)).await
    }

    /// Begins what [`write_for_resync`](Self::write_for_resync) does. It goes on to its end whether
    /// anybody waits for it or not.
    fn begin_write(self: &Rc<Self>, side: &Side, range: Range<u64>, source: Source) -> Begun {
        let writing = self.way_of_resync(side, range, source);
        let straight = matches!(writing, Writing::Straight(..));
        let (shared, index) = (Rc::clone(self), side.index);
        let outcome = self.begin_work(side, async move {
            match writing {
                Writing::Logged(appended) => appended.wait().await,
                Writing::Straight(store, kept, data) => store.write_straight(kept, data).await,
                Writing::Gone => Err(IoError::Offline),
                Writing::Bare(range, data) => {
                    let write = Request::write(range.start, data, Flags::NONE);
                    shared.sides[index].change_bare(write).await
                }
            }
        });
        Begun { straight, outcome }
    }

    /// Has a side do something, to its end, whatever becomes of the future that waits for it. It
    /// counts as work in flight, so a side that hangs in it is noticed. `None` when the side is
    /// given up meanwhile: what it was given before that may be lost.
    async fn done_by<T: 'static>(
        self: &Rc<Self>,
        side: &Side,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        end_of_work(side, &self.begin_work(side, work)).await
    }

    fn begin_work<T: 'static>(
        self: &Rc<Self>,
        side: &Side,
        work: impl Future<Output = T> + 'static,
    ) -> Rc<Cell<Option<T>>> {
        let outcome = Rc::new(Cell::new(None));
        let (shared, ended, index) = (Rc::clone(self), Rc::clone(&outcome), side.index);
        let operation = side.start(self.rt.now());
        self.tasks.spawn(async move {
            let done = work.await;
            let side = &shared.sides[index];
            side.finish(operation, shared.rt.now());
            ended.set(Some(done));
            side.changed.notify();
            // What was admitted meanwhile may have waited for the side to be idle.
            shared.pump(index);
        });
        outcome
    }

    /// Decides how a piece of a rebuild is written. What goes through the log is given to it here.
    fn way_of_resync(&self, side: &Side, range: Range<u64>, source: Source) -> Writing {
        let Some(store) = side.store() else {
            return match source {
                _ if self.is_logged() => Writing::Gone,
                Source::Data(data) => Writing::Bare(range, data),
                Source::Zeroes | Source::Lost => {
                    unreachable!("a bare device knows of no holes and of nothing that is lost")
                }
            };
        };
        // The newest content of the range is that of the last change that was admitted, or of an
        // older one. A number of its own would be one that the other sides never hear of.
        let number = self
            .admission
            .next_number()
            .saturating_sub(1)
            .max(FIRST_CHANGE);
        let kept = match &source {
            Source::Data(_) if side.queue.borrow().is_current(&range) => {
                store.begin_straight(&range)
            }
            _ => None,
        };
        match source {
            Source::Data(data) if let Some(kept) = kept => Writing::Straight(store, kept, data),
            Source::Data(data) => Writing::Logged(store.append(Append::of(range, data, number))),
            Source::Zeroes => {
                Writing::Logged(store.append(Append::zeroes(range, Space::Freed, number)))
            }
            Source::Lost => Writing::Logged(store.append(Append::lost(range, number))),
        }
    }
}

/// A write of a rebuild that is on its way.
struct Begun {
    straight: bool,
    outcome: Rc<Cell<Option<Result<(), IoError>>>>,
}

/// Waits until a write of a rebuild has ended, or the side is given up.
async fn end_of_write(side: &Side, write: Begun) -> Result<(), IoError> {
    let written = end_of_work(side, &write.outcome).await;
    written.unwrap_or(Err(IoError::Timeout))
}

/// Waits for what a side was given to do; `None` when the side is given up meanwhile.
async fn end_of_work<T>(side: &Side, outcome: &Cell<Option<T>>) -> Option<T> {
    let done = side.changed.until_some(|| match side.is_active() {
        true => outcome.take().map(Some),
        false => Some(None),
    });
    done.await
}

/// True when so much has gone straight home that it must be made durable first.
fn should_settle(side: &Side) -> bool {
    side.store().is_some_and(|store| store.should_settle())
}

/// True when a piece can only go straight home once it is announced.
fn must_be_announced(side: &Side, piece: &Range<u64>) -> bool {
    let Some(store) = side.store() else {
        return false;
    };
    let lacking = side.out_of_sync.parts_in(piece);
    lacking.iter().any(|part| store.is_to_be_announced(part))
}

/// The next piece that is stale from a position on.
fn next_piece(side: &Side, position: u64, gap_bytes_max: u64) -> Option<Range<u64>> {
    let start = side.out_of_sync.next_from(position)?.start;
    let window_end = (start / WINDOW_BYTES + 1) * WINDOW_BYTES;
    let mut ranges = side.out_of_sync.parts_in(&(start..window_end)).into_iter();
    let mut end = ranges.next()?.end;
    for range in ranges {
        if range.start - end > gap_bytes_max {
            break;
        }
        end = range.end;
    }
    Some(start..end)
}
