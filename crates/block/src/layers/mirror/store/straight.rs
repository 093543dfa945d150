//! Straight writes: writes of a rebuild that go directly to home locations and bypass the log.
//!
//! Through the log, each byte would be written twice and read once, a disk would seek between the
//! log and the home location, and a rebuild would wait for space in a log full of client writes.
//! While a side is rebuilt, its superblock says so, and its data area may be a mixture of old and
//! new content. The protection that the log gives is therefore not needed there. Before the side
//! becomes a member, the content and its checksums must be durable. [`settle`](Store::settle) makes
//! them durable. Until then the written ranges are recorded, and are treated as lacking again if
//! the side fails.
//!
//! A straight write must never go to a range with a record in the log, since this older record
//! would be destaged later.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Payload;
use bimetal_rt::sync::Event;

use super::Store;
use super::checksums::Expected;
use super::destage::DestageWrite;
use super::digests::Digests;
use super::segments::Segments;
use super::superseded::Superseded;
use crate::BLOCK_BYTES;
use crate::error::IoError;
use crate::layers::mirror::superblock::areas::{
    CHECKSUM_PAGE_COVERS_BYTES, MAP_PAGE_COVERS_BYTES, REGION_BYTES,
};
use crate::range_lock::RangeGuard;
use crate::range_set::RangeSet;

/// Number of changed checksum pages in memory above which these pages are made durable.
const UNWRITTEN_PAGES_MAX: usize = 1024;
/// Number of ranges that were written directly to a logged side, and of their bytes, above which
/// they are made durable. If they are single blocks, the commit writes 64 bytes for each to the
/// journal.
const UNSETTLED_MAX: usize = 16 << 10;
const UNSETTLED_BYTES_MAX: u64 = 1 << 30;
/// Length in bytes of the part of the volume whose out-of-sync ranges are announced together
/// (marked in the dirty-region bitmap before a rebuild writes to them directly). Each announcement
/// costs flushes. If a rebuild is interrupted, zeroes are written to all announced ranges.
const ANNOUNCED_BYTES: u64 = 16 * MAP_PAGE_COVERS_BYTES;
/// Maximum time until the log is checked again for entries that it can drop.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Number of checksum pages that are preloaded together, before the copy of a rebuild needs them.
const PAGES_AHEAD: u64 = 64;

/// Reason why the content of straight writes (writes of a rebuild that bypass the log) could not be
/// made durable.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Unsettled {
    /// The checksums could not be written. The caller may retry.
    Unwritten(IoError),
    /// The flush has failed: the state of everything written since the last successful flush is
    /// unknown.
    Lost(IoError),
}

/// State of the straight writes of a side (writes of a rebuild that bypass the log): the ranges
/// written, and whether further straight writes are allowed.
#[derive(Default)]
pub(super) struct Straight {
    allowed: Cell<bool>,
    /// Ranges whose content and checksums are not known to be durable.
    unsettled: RefCell<RangeSet>,
    /// Ranges whose content is being made durable.
    settling: RefCell<RangeSet>,
    /// Ranges that the dirty-region bitmap durably marks as possibly written directly to their home
    /// location.
    announced: RefCell<RangeSet>,
    /// Changes in the log that are older than the content that the rebuild writes.
    superseded: RefCell<Superseded>,
    /// Number of straight writes (writes of a rebuild that bypass the log) that have begun. `ended`
    /// is the number of straight writes that have ended; `one_has_ended` is signaled at each end.
    begun: Cell<u64>,
    ended: Cell<u64>,
    one_has_ended: Event,
    /// Range of the volume whose checksums were preloaded last.
    ahead: RefCell<Range<u64>>,
}

/// Guard that marks a straight write (a write of a rebuild that bypasses the log) as in flight.
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
    /// Allows or forbids straight writes (writes of a rebuild that bypass the log). They are
    /// allowed only while the data area may be a mixture of old and new content.
    pub(super) fn allow(&self, allowed: bool) {
        self.allowed.set(allowed);
    }

    /// Returns true when a straight write (a write of a rebuild that bypasses the log) is in
    /// flight.
    pub(super) fn is_writing(&self) -> bool {
        self.ended.get() < self.begun.get()
    }

    /// Waits until every straight write (a write of a rebuild that bypasses the log) that was in
    /// flight when the wait began has ended.
    pub(super) async fn until_written(&self) {
        let begun = self.begun.get();
        self.one_has_ended.until(|| self.ended.get() >= begun).await;
    }

    /// Records that the log entry at position `entry` had changes of `ranges`. The rebuild
    /// supersedes these changes with newer content.
    pub(super) fn supersede(&self, entry: u64, ranges: Vec<Range<u64>>) {
        self.superseded.borrow_mut().note(entry, ranges);
    }
}

impl Store {
    /// Returns true when a rebuild is allowed to write content of a range directly to its home
    /// location: the range was announced in the dirty-region bitmap, and the log has no valid
    /// record of it. A discarded record also forbids this, since it would be found again after a
    /// crash; the exception is a record that the log is known to drop before the side becomes a
    /// member.
    pub(in super::super) fn takes_straight(&self, range: &Range<u64>) -> bool {
        self.straight.allowed.get()
            && self.straight.announced.borrow().covers(range)
            && self.forgotten.borrow().is_clear(range)
            && self.log.index.borrow().newest_in(range).is_empty()
    }

    /// Returns true when content that the side lacks may be given up, where
    /// [`takes_straight`](Self::takes_straight) returns true.
    pub(super) fn gives_up(&self) -> bool {
        self.straight.allowed.get()
    }

    /// Returns the part of the volume that contains `position` and whose out-of-sync ranges are
    /// announced together (marked in the dirty-region bitmap before a rebuild writes to them
    /// directly). A few pages of the bitmap describe this part.
    pub(in super::super) fn announced_together(position: u64) -> Range<u64> {
        let start = position - position % ANNOUNCED_BYTES;
        start..start + ANNOUNCED_BYTES
    }

    /// Returns true when a range must be announced (marked in the dirty-region bitmap) before a
    /// rebuild can write to it directly.
    pub(in super::super) fn is_to_be_announced(&self, range: &Range<u64>) -> bool {
        self.straight.allowed.get() && !self.straight.announced.borrow().covers(range)
    }

    /// Announces ranges: durably marks them in the dirty-region bitmap before a rebuild writes
    /// directly to their home locations. After a crash during a rebuild, the bitmap then shows
    /// where the data area may hold content that the checksums do not describe, and which regions
    /// an absent side lacks.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in super::super) async fn announce(&self, ranges: Vec<Range<u64>>) -> Result<(), IoError> {
        for range in &ranges {
            self.regions.mark(range.clone(), self.epoch.get() + 1);
        }
        self.write_pages().await?;
        // The bitmap has one entry for each region. So each region that a range touches is now
        // announced as a whole.
        let regions = ranges.iter().map(|range| {
            let end = range.end.next_multiple_of(REGION_BYTES);
            range.start - range.start % REGION_BYTES..end
        });
        self.straight.announced.borrow_mut().extend(regions);
        Ok(())
    }

    /// Locks the home location of a range for a straight write (a write of a rebuild that bypasses
    /// the log). Returns `None` when a straight write is not allowed, or when the range is being
    /// written. Changes that enter the log after this call are destaged after the straight write.
    pub(in super::super) fn begin_straight(&self, range: &Range<u64>) -> Option<RangeGuard> {
        let taken = self.takes_straight(range);
        let kept = taken.then(|| self.home.try_lock(range.clone())).flatten()?;
        self.straight.unsettled.borrow_mut().insert(range.clone());
        Some(kept)
    }

    /// Locks the home locations of several ranges as [`begin_straight`](Self::begin_straight) does,
    /// so that their content is written together. Returns `None` when one of them cannot be written
    /// now, and on a side whose blocks have a home: there, each range is written separately.
    pub(in super::super) fn begin_straight_together(
        &self,
        ranges: &[Range<u64>],
    ) -> Option<Vec<RangeGuard>> {
        if self.has_homes() {
            return None;
        }
        ranges
            .iter()
            .map(|range| self.begin_straight(range))
            .collect()
    }

    /// Writes the content of locked ranges directly to their home locations. `data` is the content
    /// of all of them. The content becomes durable with the next [`settle`](Self::settle).
    ///
    /// # Errors
    /// Errors of the device; the content of the ranges is then unknown.
    pub(in super::super) async fn write_straight(
        &self,
        kept: Vec<RangeGuard>,
        data: Payload,
    ) -> Result<(), IoError> {
        self.wanted.set(self.rt.now());
        let ranges: Vec<Range<u64>> = kept.iter().map(|kept| kept.range().clone()).collect();
        let writing = Writing::begin(&self.straight);
        let written = match &self.segments {
            Some(segments) => self.append_straight(segments, &ranges, &data).await,
            None => self.write_straight_home(&ranges, &data).await,
        };
        drop(writing);
        // A `settle` during the write possibly does not cover the content of the write, so the
        // ranges are recorded again.
        self.straight.unsettled.borrow_mut().extend(ranges);
        written
    }

    async fn write_straight_home(
        &self,
        ranges: &[Range<u64>],
        data: &Payload,
    ) -> Result<(), IoError> {
        for (range, data) in each_range(ranges, data) {
            let digests = Digests::of(self.digest, &data);
            let write = DestageWrite::of(range, data, &digests);
            self.write_locked_home(write).await?;
        }
        Ok(())
    }

    async fn append_straight(
        &self,
        segments: &Segments,
        ranges: &[Range<u64>],
        data: &Payload,
    ) -> Result<(), IoError> {
        self.append_copies(segments, ranges, data).await?;
        let Some(checksums) = &self.checksums else {
            return Ok(());
        };
        for (range, data) in each_range(ranges, data) {
            let digests = Digests::of(self.digest, &data);
            let expected = digests.values().iter();
            let expected: Vec<Expected> = expected.map(|d| Expected::Digest(*d)).collect();
            let first = range.start / BLOCK_BYTES;
            self.set_expected(checksums, first, &expected).await?;
        }
        Ok(())
    }

    /// Returns true when [`settle`](Self::settle) should be called, because straight writes (writes
    /// of a rebuild that bypass the log) have changed many pages of the checksums, or on a logged
    /// side, whose commits need not write the pages, many ranges or bytes.
    pub(in super::super) fn should_settle(&self) -> bool {
        if self.segments.is_some() {
            let unsettled = self.straight.unsettled.borrow();
            return unsettled.len() > UNSETTLED_MAX || unsettled.bytes() > UNSETTLED_BYTES_MAX;
        }
        let checksums = self.checksums.as_ref();
        checksums.is_some_and(|checksums| checksums.unwritten_pages() > UNWRITTEN_PAGES_MAX)
    }

    /// Makes the content and the checksums of straight writes (writes of a rebuild that bypass the
    /// log) durable. This covers the straight writes that ended before the call.
    ///
    /// # Errors
    /// Errors of the device. The variant says whether earlier writes may be lost. Ranges that are
    /// not durable remain recorded.
    pub(in super::super) async fn settle(&self) -> Result<(), Unsettled> {
        let unsettled = std::mem::take(&mut *self.straight.unsettled.borrow_mut());
        if unsettled.is_empty() {
            return Ok(());
        }
        // The ranges are recorded here until they are durable. If the side fails before that, they
        // count as ranges that the side lacks.
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

    /// Ends straight writes (writes of a rebuild that bypass the log). From now on, all changes go
    /// through the log, and the log defines the content of the side.
    pub(in super::super) fn end_straight(&self) {
        self.straight.allow(false);
    }

    /// Makes the log drop all entries up to the last entry with changes that a rebuild has
    /// superseded. This must be done before the side becomes a member: from then on, an opening
    /// after a crash trusts the log. If the log must keep some of these entries for other members,
    /// this waits until these members have the changes.
    ///
    /// # Errors
    /// Errors of the device.
    pub(in super::super) async fn drop_superseded(self: &Rc<Self>) -> Result<(), IoError> {
        let last = self.straight.superseded.borrow().last_entry();
        while last.is_some_and(|last| self.log.tail() <= last) {
            if !self.make_space().await? {
                let tail = self.log.tail();
                let moved = self.log.changed.until(|| self.log.tail() > tail);
                let _ = self.rt.timeout(PROBE_INTERVAL, moved).await;
            }
        }
        Ok(())
    }

    /// Returns the changes in the log that were discarded because a rebuild has superseded them. A
    /// new store on this side finds these changes in the log again, and must discard them too: the
    /// rebuild has written newer content in their ranges, and the records may no longer say that
    /// the side lacks these ranges.
    pub(in super::super) fn superseded(&self) -> Superseded {
        self.straight
            .superseded
            .borrow()
            .without_before(self.log.tail())
    }

    /// Returns the ranges whose content the side holds but may lose, because the content is
    /// possibly not durable. These ranges can contain logged changes with a sequence number below
    /// `complete_durable`, because a change that a rebuild logs has the number of an older change.
    /// The call also clears the record of the ranges that the rebuild has written directly to home
    /// locations.
    pub(in super::super) fn take_not_durable(&self) -> RangeSet {
        let mut ranges = self.straight.unsettled.take();
        ranges.extend(self.straight.settling.take().iter());
        let changes = self.changes_from(self.complete_durable()).into_iter();
        ranges.extend(changes.map(|(range, _)| range));
        ranges.extend(self.log.unflushed());
        ranges
    }

    /// Preloads the checksums of a range and of the following blocks with one request, before a
    /// rebuild needs them page by page. A disk would otherwise seek for each page.
    ///
    /// # Errors
    /// Errors of a read of the checksums.
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

/// Returns each range with its part of `data`, which is the content of all of them.
fn each_range<'r>(
    ranges: &'r [Range<u64>],
    data: &Payload,
) -> impl Iterator<Item = (&'r Range<u64>, Payload)> {
    let mut left = 0..data.len();
    ranges.iter().map(move |range| {
        let start = left.start;
        left.start += (range.end - range.start) as usize;
        (range, data.slice(start..left.start))
    })
}
