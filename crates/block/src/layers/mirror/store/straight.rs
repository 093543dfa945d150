//! What a rebuild copies goes straight home, past the log.
//!
//! Through the log each byte is written twice and read once more, and a disk goes to and fro
//! between both places; when the log is full of what clients write, a rebuild waits for its space.
//! While a side is rebuilt it is marked so, and its home may be a mixture: the log has nothing to
//! protect there. What must be so before the side counts is that the content and its checksums are
//! durable: until [`settle`](Store::settle) has seen to that, the ranges are remembered, and are
//! lacking again when the side is given up.
//!
//! It must never write where the log has something, which would come home later and is older.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;
use bimetal_rt::sync::Event;

use super::Store;
use super::destage::HomeWrite;
use super::digests::Digests;
use super::superseded::Superseded;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::superblock::areas::{
    CHECKSUM_PAGE_COVERS_BYTES, MAP_PAGE_COVERS_BYTES, REGION_BYTES,
};
use crate::range_lock::RangeGuard;
use crate::range_set::RangeSet;

/// Pages of checksums that have changed and are only in memory, before they are made durable.
const UNWRITTEN_PAGES_MAX: usize = 1024;
/// What is stale in so much of the volume is announced at once: each time costs flushes, and where
/// a rebuild is cut short, zeroes are written to all that was announced.
const ANNOUNCED_BYTES: u64 = 16 * MAP_PAGE_COVERS_BYTES;
/// Whether the log may let go of more is looked at this often, at least.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pages of checksums that are read together, ahead of what is copied.
const PAGES_AHEAD: u64 = 64;

/// Why what went straight home is not durable.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Unsettled {
    /// Its checksums could not be written. That can be tried again.
    Unwritten(IoError),
    /// It could not be flushed: nothing is known of what was written since the last good flush.
    Lost(IoError),
}

/// What went straight home, and whether more may.
#[derive(Default)]
pub(super) struct Straight {
    allowed: Cell<bool>,
    /// Not known to be durable with its checksums.
    unsettled: RefCell<RangeSet>,
    /// The same, and being made durable.
    settling: RefCell<RangeSet>,
    /// Of these ranges the map says durably that they may have been written past the log.
    announced: RefCell<RangeSet>,
    /// What the log has that is older than what a rebuild brings.
    superseded: RefCell<Superseded>,
    /// Writes that have begun and that have ended, and one has ended.
    begun: Cell<u64>,
    ended: Cell<u64>,
    one_has_ended: Event,
    /// The checksums of the volume are in memory from here to there, or have been.
    ahead: RefCell<Range<u64>>,
}

/// A write that is under way, until this is dropped.
struct Writing<'s>(&'s Straight);

impl Writing<'_> {
    fn begin(straight: &Straight) -> Writing<'_> {
        straight.begun.set(straight.begun.get() + 1);
        Writing(straight)
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.ended.set(self.0.ended.get() + 1);
        self.0.one_has_ended.notify();
    }
}

impl Straight {
    /// Only while the home may be a mixture.
    pub(super) fn allow(&self, allowed: bool) {
        self.allowed.set(allowed);
    }

    /// True when a write is under way.
    pub(super) fn is_writing(&self) -> bool {
        self.ended.get() < self.begun.get()
    }

    /// Waits until every write that is under way now has ended.
    pub(super) async fn until_written(&self) {
        let begun = self.begun.get();
        self.one_has_ended.until(|| self.ended.get() >= begun).await;
    }

    /// The entry of the log at a position had these ranges, of which a rebuild brings what is
    /// newer.
    pub(super) fn supersede(&self, entry: u64, ranges: Vec<Range<u64>>) {
        self.superseded.borrow_mut().note(entry, ranges);
    }
}

impl Store {
    /// True when content of a range may go straight home: it was announced, and the log has no
    /// record of it that counts. One that was forgotten would be found again after a crash: only
    /// what the log is known to let go of before the side counts is no obstacle.
    pub(in super::super) fn takes_straight(&self, range: &Range<u64>) -> bool {
        self.straight.allowed.get()
            && self.straight.announced.borrow().covers(range)
            && self.forgotten.borrow().is_clear(range)
            && self.log.index.borrow().newest_in(range).is_empty()
    }

    /// The part of the volume whose stale ranges are announced together with a position: what some
    /// pages of the map describe.
    pub(in super::super) fn announced_together(position: u64) -> Range<u64> {
        let start = position - position % ANNOUNCED_BYTES;
        start..start + ANNOUNCED_BYTES
    }

    /// True when a range must be announced before it may go straight home.
    pub(in super::super) fn is_to_be_announced(&self, range: &Range<u64>) -> bool {
        self.straight.allowed.get() && !self.straight.announced.borrow().covers(range)
    }

    /// Has the map say durably of ranges that they may be written past the log. After a crash in
    /// the middle of a rebuild it tells where the home may hold what the checksums do not know, and
    /// a side that was absent what it lacks.
    ///
    /// # Errors
    /// Those of the device.
    pub(in super::super) async fn announce(&self, ranges: Vec<Range<u64>>) -> Result<(), IoError> {
        for range in &ranges {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
        }
        self.write_pages().await?;
        // The map knows regions only, so all of them is announced.
        let regions = ranges.iter().map(|range| {
            let end = range.end.next_multiple_of(REGION_BYTES);
            range.start - range.start % REGION_BYTES..end
        });
        self.straight.announced.borrow_mut().extend(regions);
        Ok(())
    }

    /// Keeps the home of a range for content that goes straight there; `None` when it may not, or
    /// is being written. What comes to the log from then on goes home after that content.
    pub(in super::super) fn begin_straight(&self, range: &Range<u64>) -> Option<RangeGuard> {
        let taken = self.takes_straight(range);
        let kept = taken.then(|| self.home.try_lock(range.clone())).flatten()?;
        self.straight.unsettled.borrow_mut().insert(range.clone());
        Some(kept)
    }

    /// Writes the content of a range that was kept straight home. It is durable after the next
    /// [`settle`](Self::settle).
    ///
    /// # Errors
    /// Those of the device; what the range holds is then unknown.
    pub(in super::super) async fn write_straight(
        &self,
        kept: RangeGuard,
        data: Payload,
    ) -> Result<(), IoError> {
        self.wanted.set(self.rt.now());
        let range = kept.range().clone();
        let digests = Digests::of(self.digest, &data);
        let write = HomeWrite::of(&range, data, &digests);
        let writing = Writing::begin(&self.straight);
        let written = self.write_locked_home(write).await;
        drop(writing);
        // What is settled meanwhile is what was there before.
        self.straight.unsettled.borrow_mut().insert(range);
        written
    }

    /// True when so much has gone straight home that it should be settled.
    pub(in super::super) fn should_settle(&self) -> bool {
        let checksums = self.checksums.as_ref();
        checksums.is_some_and(|checksums| checksums.unwritten_pages() > UNWRITTEN_PAGES_MAX)
    }

    /// Makes durable what went straight home before the call, with its checksums.
    ///
    /// # Errors
    /// Those of the device, and whether anything may be lost that was written before. What is not
    /// durable is still remembered.
    pub(in super::super) async fn settle(&self) -> Result<(), Unsettled> {
        let unsettled = std::mem::take(&mut *self.straight.unsettled.borrow_mut());
        if unsettled.is_empty() {
            return Ok(());
        }
        // Until it is durable, a side that is given up lacks it.
        let settling = &self.straight.settling;
        settling.borrow_mut().extend(unsettled.iter());
        let settled = self.settle_now().await;
        let settling = settling.take();
        if settled.is_err() {
            let mut unsettled = self.straight.unsettled.borrow_mut();
            unsettled.extend(settling.iter());
        }
        settled
    }

    async fn settle_now(&self) -> Result<(), Unsettled> {
        if let Some(checksums) = &self.checksums {
            checksums.write_back().await.map_err(Unsettled::Unwritten)?;
        }
        self.write_pages().await.map_err(Unsettled::Lost)
    }

    /// From now on the log says what the side holds: everything more goes through it.
    pub(in super::super) fn end_straight(&self) {
        self.straight.allow(false);
    }

    /// Has the log let go of what is older than what a rebuild has brought past it: of all up to
    /// there. The side must not count before that, since after a crash the log would be believed.
    /// When it waits for other members to hold what it keeps for them, this waits as long.
    ///
    /// # Errors
    /// Those of the device.
    pub(in super::super) async fn drop_superseded(self: &Rc<Self>) -> Result<(), IoError> {
        let last = self.straight.superseded.borrow().last_entry();
        while last.is_some_and(|last| self.log.tail() <= last) {
            if !self.make_space().await? {
                let tail = self.log.tail();
                let moved = self.log.changed.until(|| self.log.tail() > tail);
                let _ = self.rt.timeout(LOOK_EVERY, moved).await;
            }
        }
        Ok(())
    }

    /// What was forgotten of the entries that the log has not let go of. Another store that reads
    /// this log finds it again, and must forget it as well: what a rebuild has brought past the log
    /// in its place is newer, and may not be lacking any more.
    pub(in super::super) fn superseded(&self) -> Superseded {
        self.straight
            .superseded
            .borrow()
            .without_before(self.log.tail())
    }

    /// What the side holds and may lose, because it is not known to be durable: in its log, also
    /// under numbers below which everything else is, since what a rebuild brings has the number of
    /// an older change; and straight at home. The latter is forgotten here.
    pub(in super::super) fn take_not_durable(&self) -> RangeSet {
        let mut ranges = self.straight.unsettled.take();
        ranges.extend(self.straight.settling.take().iter());
        let changes = self.changes_from(self.complete_durable()).into_iter();
        ranges.extend(changes.map(|(range, _)| range));
        ranges.extend(self.log.unflushed());
        ranges
    }

    /// Reads the checksums of a range, and with the same request those behind it, before a rebuild
    /// asks for one page after the other. A disk would seek for each.
    ///
    /// # Errors
    /// As of any look at the checksums.
    pub(in super::super) async fn look_ahead(&self, range: &Range<u64>) -> Result<(), IoError> {
        let Some(checksums) = &self.checksums else {
            return Ok(());
        };
        let ahead = self.straight.ahead.borrow().clone();
        if ahead.start <= range.start && range.end <= ahead.end {
            return Ok(());
        }
        let end = range.start + PAGES_AHEAD * CHECKSUM_PAGE_COVERS_BYTES;
        let end = end.max(range.end).min(self.volume_bytes.get());
        *self.straight.ahead.borrow_mut() = range.start..end;
        let blocks = range.start / BLOCK_BYTES..end / BLOCK_BYTES;
        checksums
            .bring_in(blocks, self.straight.allowed.get())
            .await
    }
}
