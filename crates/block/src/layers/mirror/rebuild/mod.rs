//! Rebuild: copies the out-of-sync ranges of a side from other sides while the volume is in use,
//! several pieces in parallel, [sharing](super::share) the sides with clients.
//!
//! A piece lies within a window of 1 MiB and consists of out-of-sync ranges with small gaps between
//! them, so that one request can read it. A piece is written directly to its home location if the
//! log of the side holds no record of it.
//!
//! A rebuild must never undo a newer write. It must never copy ranges that were never written on
//! the source, which read as zeroes and occupy no space.

mod by_place;

use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::share::COST_BYTES_MIN;
use crate::layers::mirror::shared::Shared;
use crate::layers::mirror::side::{Progress, Side, add};
use crate::layers::mirror::store::{Append, Outcome, Space, Store, Unsettled};
use crate::layers::mirror::superblock::FIRST_CHANGE;
use crate::range_lock::RangeGuard;
use crate::request::{EXTENTS_MAX, Extent, Flags, Request};

/// Size of a window in bytes. The volume consists of windows of this size. A piece, the unit that a
/// rebuild copies in one step, lies within one window.
const WINDOW_BYTES: u64 = 1 << 20;
/// Maximum gap between two ranges of a piece (the unit that a rebuild copies in one step): reading
/// the gap costs less than another request.
const GAP_BYTES_MAX: u64 = 16 << 10;
/// Maximum gap between two ranges of a piece if a side is on a disk that seeks: about this many
/// bytes pass below the head in one rotation.
const GAP_SEEKING_BYTES_MAX: u64 = 256 << 10;
/// Maximum gap between two ranges of a piece if the side is logged and no disk seeks: the content
/// of a piece is appended together, which saves more than it costs to read the gap.
const GAP_LOGGED_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of pieces (units of copying) in flight; together they have at most
/// [`IN_FLIGHT_BYTES_MAX`] bytes. The limits are low enough that clients do not wait long for a
/// device, and high enough that the device can reorder the requests.
const PIECES_IN_FLIGHT_MAX: usize = 32;
/// Maximum number of pieces (units of copying) in flight if a side is on a disk that seeks.
const PIECES_IN_FLIGHT_SEEKING_MAX: usize = 24;
const IN_FLIGHT_BYTES_MAX: u64 = 4 << 20;
/// If the copy of a piece takes longer than this, the number of bytes in flight is reduced.
const PIECE_TIME_MAX: Duration = Duration::from_millis(100);
/// Maximum number of ranges of one piece whose writes are in flight together.
const WRITES_IN_FLIGHT_MAX: usize = 16;
/// Number of failed attempts to rebuild the side, one second apart, after which a block that is
/// corrupt on every side is considered lost.
const LOST_AFTER_ROUNDS: u32 = 5;
/// Number of failed attempts after which a block that devices could not read is considered lost. It
/// is larger than [`LOST_AFTER_ROUNDS`], because errors of a device may be temporary.
const UNREADABLE_AFTER_ROUNDS: u32 = 600;

/// Content of a part of the volume on the source of a copy.
enum Source {
    Data(Payload),
    /// The part was never written on the source.
    Zeroes,
    /// No side can provide the content of the part any more.
    Lost,
}

/// Method by which a piece of a rebuild is written to the side.
enum Writing {
    Logged(Outcome),
    Straight(Rc<Store>, Vec<RangeGuard>, Payload),
    Bare(Range<u64>, Payload),
    /// No write is possible: the side has left the volume.
    Gone,
}

impl Shared {
    /// Copies every out-of-sync range of the side from other sides. If a range cannot be copied,
    /// the other ranges are copied nevertheless.
    ///
    /// # Errors
    /// The first error of a piece, which remains out of sync.
    pub(super) async fn copy_out_of_sync_regions(
        self: &Rc<Self>,
        side: &Side,
    ) -> Result<(), IoError> {
        self.repair.share.begin_rebuild();
        side.rebuild.set(Some(Progress {
            since: self.rt.now(),
            passed_bytes: 0,
            ahead_bytes: 0,
        }));
        let mut copied = self.free_what_is_gone(side).await;
        if copied.is_ok() {
            copied = self.copy_by_place(side).await;
        }
        while copied.is_ok() && !side.out_of_sync.is_empty() {
            copied = self.copy_pieces(side).await;
        }
        side.rebuild.set(None);
        copied
    }

    /// Gives the side the holes of what it lacks, on a volume that is larger than what its sides
    /// have room for. What was discarded while the side was absent still takes room there, and
    /// what was written instead must not need room beside it.
    async fn free_what_is_gone(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        if self.capacity.room().is_none() {
            return Ok(());
        }
        let (mut position, mut has_freed) = (0, false);
        while let Some(piece) = next_piece(side, position, 0) {
            position = piece.end;
            for (part, has_data) in self.extents_for_resync(&piece, side.index).await {
                if !has_data && !self.is_never_written(side.index, &part).await {
                    has_freed = true;
                    self.copy_in_turn(side, part).await.2?;
                }
            }
            if !side.is_active() {
                return Err(IoError::Offline);
            }
        }
        // The room is free once the log has dropped the records.
        let Some(store) = side.store().filter(|_| has_freed) else {
            return Ok(());
        };
        let emptied = self.done_by(side, async move { store.empty().await });
        emptied.await.unwrap_or(Err(IoError::Timeout)).map(drop)
    }

    async fn copy_pieces(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        let mut pieces = FuturesUnordered::new();
        let (mut position, mut copied) = (0, Ok(()));
        let (mut in_flight_bytes, mut in_flight_bytes_max) = (0, IN_FLIGHT_BYTES_MAX);
        let (pieces_max, gap_bytes_max) = match self.a_copy_seeks(side) {
            true => (PIECES_IN_FLIGHT_SEEKING_MAX, GAP_SEEKING_BYTES_MAX),
            false if side.store().is_some_and(|store| !store.has_homes()) => {
                (PIECES_IN_FLIGHT_MAX, GAP_LOGGED_BYTES_MAX)
            }
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
                        // The piece must be recorded in the dirty-region bitmap before it is
                        // copied. First let the pieces in flight end: they hold locks, and nothing
                        // polls them while this task waits for the recording.
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
                // Ranges before `position` that became out of sync again are copied in the next
                // pass.
                None => break,
            }
            if !side.is_active() {
                return Err(IoError::Offline);
            }
        }
        copied
    }

    /// Returns true when a disk seeks for each piece that is copied to a side: the side itself, or
    /// another side that may be read.
    fn a_copy_seeks(&self, target: &Side) -> bool {
        let mut active = self.sides.iter().filter(|side| side.is_active());
        active.any(|side| match side.index == target.index {
            true => side.seeks_for_copies(),
            false => side.device.geometry().rotational,
        })
    }

    /// Waits for the turn of a piece and copies it. Returns the length of the piece, the duration
    /// of the copy, and its outcome.
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
            side.advanced_at.set(self.rt.now());
        }
        (len, self.rt.now().since(began), copied)
    }

    /// Announces a piece: durably records the out-of-sync ranges around the piece in the
    /// dirty-region bitmap of the side. Only after that is the rebuild allowed to write the piece
    /// directly to its home location.
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

    /// Makes the content that the rebuild wrote directly to home locations durable.
    ///
    /// # Errors
    /// Errors of the device. If it is possible that content written earlier is lost too, the side
    /// is ejected.
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

    /// Makes the log of a side drop its records of ranges that the rebuild has since written
    /// directly to their home location.
    ///
    /// # Errors
    /// Errors of the device; `Timeout` when the side is ejected during the call.
    pub(super) async fn drop_superseded(self: &Rc<Self>, side: &Side) -> Result<(), IoError> {
        let Some(store) = side.store() else {
            return Ok(());
        };
        let dropped = self.done_by(side, async move { store.drop_superseded().await });
        dropped.await.unwrap_or(Err(IoError::Timeout))
    }

    /// Copies those parts of a piece that are out of sync, and holds the range lock on the piece
    /// meanwhile. A piece is the range that a rebuild copies in one step.
    pub(super) async fn copy_piece(
        self: &Rc<Self>,
        side: &Side,
        piece: Range<u64>,
    ) -> Result<(), IoError> {
        // The preload runs before the range is locked, so a side that hangs in it does not block a
        // client.
        self.look_ahead(side, &piece).await;
        let mut guard = Some(self.admission.ranges.lock(piece.clone()).await);
        if !side.is_active() {
            return Err(IoError::Offline);
        }
        // Writes completed before the lock was acquired may have brought parts of the piece up to
        // date; the copy must not undo these writes.
        let out_of_sync = side.out_of_sync.parts_in(&piece);
        let (Some(first), Some(last)) = (out_of_sync.first(), out_of_sync.last()) else {
            return Ok(());
        };
        let whole = first.start..last.end;
        if !self
            .copy_together(side, &whole, &out_of_sync, &mut guard)
            .await?
        {
            for part in out_of_sync {
                self.copy_out_of_sync(side, part).await?;
            }
        }
        drop(guard);
        Ok(())
    }

    /// Preloads the checksums that the copy of a range needs, on the source and on the target.
    async fn look_ahead(&self, side: &Side, range: &Range<u64>) {
        let source = self.current_side(range, &[side.index]);
        let source = source.and_then(|source| self.sides[source].store());
        let looks = side
            .store()
            .into_iter()
            .chain(source)
            .map(|store| async move {
                // If checksums cannot be read now, they are read when they are needed, and the
                // error is reported then.
                let _ = store.look_ahead(range).await;
            });
        futures_util::future::join_all(looks).await;
    }

    /// Copies the out-of-sync parts of a range with one read that includes the gaps between them.
    /// Returns false when such a read is impossible: no side has the whole range, or a part of the
    /// range is a hole or cannot be read.
    ///
    /// If all writes go directly to home locations, the lock of the range is released once they are
    /// in flight: with the lock, clients would wait for the slow side. Ranges that clients change
    /// during such a write stay out of sync.
    async fn copy_together(
        self: &Rc<Self>,
        side: &Side,
        whole: &Range<u64>,
        out_of_sync: &[Range<u64>],
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
        // A disk overwrites the gaps between the out-of-sync parts in less time than it needs to
        // skip them.
        let over_gaps = side.seeks_for_copies() && self.goes_straight(side, whole);
        let parts = match over_gaps {
            true => std::slice::from_ref(whole),
            false => out_of_sync,
        };
        let copying = side.out_of_sync.begin_copy(whole.clone());
        let mut written = Ok(());
        let (mut begun, mut all_straight) = (VecDeque::new(), true);
        let together = self.begin_together(side, parts, whole, &data);
        let left = if together.is_some() { &[] } else { parts };
        begun.extend(together);
        for part in left {
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
        for part in out_of_sync {
            for fresh in copying.not_overtaken(part) {
                self.is_copied(side, fresh);
            }
        }
        Ok(true)
    }

    /// Records that a range was copied to a side.
    fn is_copied(&self, side: &Side, part: Range<u64>) {
        add(&side.counts.resynced_bytes, part.end - part.start);
        self.is_fresh(side, part);
    }

    /// Records that a side has the newest content of a range.
    fn is_fresh(&self, side: &Side, part: Range<u64>) {
        let repaired_bytes = side.out_of_sync.copied(part);
        add(&side.counts.repaired_blocks, repaired_bytes / BLOCK_BYTES);
    }

    /// Copies a range to a side that is being rebuilt. If a block cannot be read, the other blocks
    /// are copied nevertheless. If no other side could provide the block in many attempts, the
    /// block is marked unreadable on the rebuilt side. Without this mark, a single block would
    /// prevent the rebuild from completing, and the side would never become healthy.
    async fn copy_out_of_sync(
        self: &Rc<Self>,
        side: &Side,
        range: Range<u64>,
    ) -> Result<(), IoError> {
        let _copying = side.out_of_sync.begin_copy(range.clone());
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

    /// Returns true when a block that could not be copied to a side is considered lost: enough
    /// attempts have failed, no absent side might have the block, no side has a write of it
    /// outstanding, and the side has checksums in which the block can be marked as lost.
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

    /// Marks a block as unreadable on a side until the block is written again. A block that was
    /// found corrupt on this same side is already unreadable.
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

    /// Divides a range into parts, and returns for each part whether the side that would be its
    /// source has data there.
    async fn extents_for_resync(
        self: &Rc<Self>,
        range: &Range<u64>,
        target: usize,
    ) -> Vec<(Range<u64>, bool)> {
        let all = vec![(range.clone(), true)];
        let source = self.current_side(range, &[target]);
        // A bare device reports no holes, so all of the range is copied.
        let Some(source) = source.filter(|&source| self.sides[source].store().is_some()) else {
            return all;
        };
        // If the source cannot report its holes, the copy does not fail: the whole range is copied
        // as data.
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

    /// Returns true when the range was never written on the side, so that it reads as zeroes there.
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

    /// Returns true when a rebuild is allowed to write the out-of-sync content of a range directly
    /// to its home location on the side, without an entry in the log.
    fn goes_straight(&self, side: &Side, range: &Range<u64>) -> bool {
        let store = side.store();
        side.queue.borrow().is_current(range)
            && store.is_some_and(|store| store.takes_straight(range))
    }

    /// Starts the write of several parts of a piece at once, directly to a logged side; `data` is
    /// the content of the piece `whole`. Returns `None` when the parts must be written one by one.
    fn begin_together(
        self: &Rc<Self>,
        side: &Side,
        parts: &[Range<u64>],
        whole: &Range<u64>,
        data: &Payload,
    ) -> Option<Begun> {
        let store = side.store()?;
        if !parts
            .iter()
            .all(|part| side.queue.borrow().is_current(part))
        {
            return None;
        }
        let kept = store.begin_straight_together(parts)?;
        let mut content = Payload::empty();
        for part in parts {
            let at = |position: u64| (position - whole.start) as usize;
            content.append(data.slice(at(part.start)..at(part.end)));
        }
        Some(self.begin_writing(side, Writing::Straight(store, kept, content)))
    }

    /// Writes a piece of a rebuild to a side. If the side is ejected during the call, the call
    /// returns but the write continues, without a lock of the range; the side is not used again
    /// before the write has ended.
    async fn write_for_resync(
        self: &Rc<Self>,
        side: &Side,
        range: Range<u64>,
        source: Source,
    ) -> Result<(), IoError> {
        end_of_write(side, self.begin_write(side, range, source)).await
    }

    /// Starts the write of [`write_for_resync`](Self::write_for_resync). The write continues to its
    /// end even if no task waits for it.
    fn begin_write(self: &Rc<Self>, side: &Side, range: Range<u64>, source: Source) -> Begun {
        let writing = self.way_of_resync(side, range, source);
        self.begin_writing(side, writing)
    }

    fn begin_writing(self: &Rc<Self>, side: &Side, writing: Writing) -> Begun {
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

    /// Runs `work` for a side to its end, even if the returned future is dropped. The work is
    /// registered as an operation in flight, so that a side that hangs in it is detected. Returns
    /// `None` when the side is ejected before the work has ended; the effect of requests already
    /// sent to the side may then be lost.
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
            // Changes that were admitted during the work can still be queued, because they waited
            // for the side to become idle. So send them now.
            shared.pump(index);
        });
        outcome
    }

    /// Chooses how to write a range of a rebuild to a side: through the log of the side, directly
    /// to the home location, or, on a bare device, to the device. If the log is chosen, this call
    /// appends the range to it.
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
        // The copy uses the sequence number of the last admitted change, since the newest content
        // of the range comes from that change or an older one. The copy gets no sequence number of
        // its own, because the other sides would never have a change with that number.
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
            Source::Data(data) if let Some(kept) = kept => {
                Writing::Straight(store, Vec::from([kept]), data)
            }
            Source::Data(data) => Writing::Logged(store.append(Append::of(range, data, number))),
            Source::Zeroes => {
                Writing::Logged(store.append(Append::zeroes(range, Space::Freed, number)))
            }
            Source::Lost => Writing::Logged(store.append(Append::lost(range, number))),
        }
    }
}

/// A write of a rebuild in flight.
struct Begun {
    straight: bool,
    outcome: Rc<Cell<Option<Result<(), IoError>>>>,
}

/// Waits until a write of a rebuild has ended, or the side is ejected.
async fn end_of_write(side: &Side, write: Begun) -> Result<(), IoError> {
    let written = end_of_work(side, &write.outcome).await;
    written.unwrap_or(Err(IoError::Timeout))
}

/// Waits for the outcome of work on a side; `None` when the side is ejected before the work has
/// ended.
async fn end_of_work<T>(side: &Side, outcome: &Cell<Option<T>>) -> Option<T> {
    let done = side.changed.until_some(|| match side.is_active() {
        true => outcome.take().map(Some),
        false => Some(None),
    });
    done.await
}

/// Returns true when a rebuild has written so much content directly to home locations that this
/// content must be made durable before the rebuild writes more.
fn should_settle(side: &Side) -> bool {
    side.store().is_some_and(|store| store.should_settle())
}

/// Returns true when a piece must be announced (recorded in the dirty-region bitmap) before a
/// rebuild is allowed to write it directly to its home location.
fn must_be_announced(side: &Side, piece: &Range<u64>) -> bool {
    let Some(store) = side.store() else {
        return false;
    };
    let lacking = side.out_of_sync.parts_in(piece);
    lacking.iter().any(|part| store.is_to_be_announced(part))
}

/// Returns the next range to copy, which starts with the first out-of-sync range at or after
/// `position`. Later ranges of the same window are included, with the gaps before them, up to the
/// first gap longer than `gap_bytes_max`.
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
