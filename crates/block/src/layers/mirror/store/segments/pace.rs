//! Keeps the log and cleaning of a logged side in step, by the law of
//! [`bimetal_policy::cleaning::admission`]: what it may append, and what cleaning is due.

use std::cell::{Cell, RefCell};

use bimetal_policy::cleaning::admission::{Admission, Bounds, Level, PIECE_BLOCKS};
use bimetal_policy::cleaning::victims::Yield;
use bimetal_rt::sync::Event;

use super::SPARED_FOR_CLEANING;
use crate::BLOCK_BYTES;
use crate::layers::mirror::superblock::SegmentLayout;
use crate::layers::mirror::superblock::segmented::SEGMENTS_RESERVED;

/// Space that the log never uses, in bytes: the gaps that it keeps for its next incarnations.
const LOG_RESERVED_BYTES: u64 = 16 << 20;
/// Number of blocks of the smallest entry of the log with data.
const ENTRY_BLOCKS_MIN: u64 = 2;
/// Part of the segments that are free when cleaning keeps up with the log exactly.
const TARGET_DIVISOR: u64 = 32;

/// Highest price of space, in moved blocks, at which idle time cleans so that the side can be put
/// in order. Nearly full segments are mostly in order already.
const AHEAD_PRICE_MAX: f64 = 16.0;

/// Maximum number of bytes by which the log or the copies of a rebuild can be ahead of the other.
const LEAD_BYTES_MAX: i64 = 1 << 20;

/// The pace of a side; see the module documentation.
pub(super) struct Pace {
    admission: RefCell<Admission>,
    segment_blocks: u64,
    /// Blocks at the end of the last segment of the log that the log never uses.
    kept_by_log_blocks: u64,
    free_segments: Cell<u64>,
    /// Free segments that cannot be filled for a moment.
    withheld_segments: Cell<u64>,
    dead_segments: Cell<u64>,
    /// Blocks of space that cleaning has paid for in the segments that it is emptying.
    paid_blocks: Cell<u64>,
    /// Blocks between the end of the last entry and the end of the last segment of the log.
    unspent_blocks: Cell<u64>,
    /// What cleaning of the next victims costs and gains.
    next: Cell<Yield>,
    /// Whether cleaning is due whenever it gains something.
    always: Cell<bool>,
    /// Whether cleaning is due whenever it gains enough, so that the side can be put in order.
    ahead: Cell<bool>,
    /// Number of tasks that wait until segments are free.
    waiting: Cell<usize>,
    /// Number of copies of a rebuild that wait until they keep step with cleaning.
    waiting_copies: Cell<usize>,
    /// Bytes that the log has appended more than copies, at most [`LEAD_BYTES_MAX`] either way.
    lead_bytes: Cell<i64>,
    /// Number of times that the log or a task began to wait for the cleaner.
    requests: Cell<u64>,
    /// Notified when cleaning may have become due.
    pub(super) work: Event,
}

/// A copy of a rebuild that waits until it keeps step with cleaning. While it could go on, the log
/// does not get ahead of the copies.
pub(super) struct WaitingCopy<'p>(&'p Pace);

impl Drop for WaitingCopy<'_> {
    fn drop(&mut self) {
        let waiting = &self.0.waiting_copies;
        waiting.set(waiting.get() - 1);
    }
}

/// Cleaning ahead of what is due, in idle time, until this guard is dropped.
pub(in super::super) struct Ahead<'p>(&'p Pace);

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.0.ahead.set(false);
    }
}

/// A task that waits until segments are free. Cleaning is due while there is one.
pub(super) struct Waiting<'p>(&'p Pace);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl Pace {
    /// Creates the pace of a side whose log has `log_bytes`.
    pub(super) fn new(layout: &SegmentLayout, log_bytes: u64) -> Pace {
        let (segments, segment_blocks) = (layout.segments(), layout.segment_blocks());
        let of_log = LOG_RESERVED_BYTES.min(log_bytes / 4) / BLOCK_BYTES;
        let reserve_blocks = SEGMENTS_RESERVED * segment_blocks + of_log;
        let aim = (segments / TARGET_DIVISOR).max(3) * segment_blocks;
        let bounds = Bounds {
            all_blocks: segments * segment_blocks,
            segment_blocks,
            reserve_blocks,
            target_blocks: (reserve_blocks + aim).min(segments * segment_blocks),
        };
        Pace {
            admission: RefCell::new(Admission::new(bounds)),
            segment_blocks,
            kept_by_log_blocks: of_log,
            free_segments: Cell::new(0),
            withheld_segments: Cell::new(0),
            dead_segments: Cell::new(0),
            paid_blocks: Cell::new(0),
            unspent_blocks: Cell::new(0),
            next: Cell::new(Yield::default()),
            always: Cell::new(false),
            ahead: Cell::new(false),
            waiting: Cell::new(0),
            waiting_copies: Cell::new(0),
            lead_bytes: Cell::new(0),
            requests: Cell::new(0),
            work: Event::new(),
        }
    }

    /// Sets whether cleaning is due whenever it gains something.
    pub(super) fn clean_always(&self, always: bool) {
        self.always.set(always);
    }

    /// Returns true when less space is free, or coming, than cleaning aims for.
    pub(super) fn is_below_target(&self) -> bool {
        self.admission.borrow().is_below_target(&self.level())
    }

    fn level(&self) -> Level {
        let free = self.free_segments.get() + self.withheld_segments.get();
        Level {
            free_blocks: free * self.segment_blocks + self.unspent_blocks.get(),
            coming_blocks: self.dead_segments.get() * self.segment_blocks + self.paid_blocks.get(),
        }
    }

    /// Sets the numbers of free and of dead segments, and what cleaning of the next victims costs
    /// and gains.
    pub(super) fn set_segments(&self, free: usize, dead: usize, next: Yield) {
        self.free_segments.set(free as u64);
        self.dead_segments.set(dead as u64);
        self.next.set(next);
        self.work.notify();
    }

    /// Sets the number of free segments, after one was taken.
    pub(super) fn set_free(&self, free: usize) {
        self.free_segments.set(free as u64);
    }

    /// Sets the number of free segments that cannot be filled for a moment. They count as free for
    /// the law: the log has other segments meanwhile.
    pub(super) fn set_withheld(&self, segments: usize) {
        self.withheld_segments.set(segments as u64);
    }

    /// Sets the number of bytes between the end of the last entry and the end of the log's last
    /// segment.
    pub(super) fn set_unspent(&self, bytes: u64) {
        self.unspent_blocks.set(bytes / BLOCK_BYTES);
    }

    /// Returns the number of whole segments that the log has, has not begun to fill, and can fill.
    pub(super) fn unspent_segments(&self) -> usize {
        let unspent = self.unspent_blocks.get();
        (unspent.saturating_sub(self.kept_by_log_blocks) / self.segment_blocks) as usize
    }

    /// Returns the number of bytes that the log may append now. While copies of a rebuild wait and
    /// could go on, this is nothing if the log is ahead of them: each is given half.
    pub(super) fn granted_to_log_bytes(&self) -> u64 {
        let copies_go_on = self.waiting_copies.get() > 0 && self.takes_copies();
        match copies_go_on && self.lead_bytes.get() > 0 {
            true => 0,
            false => self.granted_bytes(),
        }
    }

    fn granted_bytes(&self) -> u64 {
        let admission = self.admission.borrow();
        admission.may_append_blocks(&self.level(), &self.next.get()) * BLOCK_BYTES
    }

    /// Returns true when a rebuild may append now: segments are free for it, and it keeps step with
    /// cleaning, if there is something to clean.
    pub(super) fn takes_copies(&self) -> bool {
        let is_free = self.free_segments.get() > SPARED_FOR_CLEANING as u64;
        let in_step = self.granted_bytes() >= ENTRY_BLOCKS_MIN * BLOCK_BYTES;
        is_free && (in_step || !self.can_clean())
    }

    /// Notes that a copy of a rebuild waits until it keeps step with cleaning, until the returned
    /// guard is dropped.
    pub(super) fn copy_waits(&self) -> WaitingCopy<'_> {
        self.waiting_copies.set(self.waiting_copies.get() + 1);
        WaitingCopy(self)
    }

    fn lead_by(&self, bytes: i64) {
        let lead = self.lead_bytes.get().saturating_add(bytes);
        self.lead_bytes
            .set(lead.clamp(-LEAD_BYTES_MAX, LEAD_BYTES_MAX));
    }

    /// Records that a rebuild has appended `bytes` bytes.
    pub(super) fn note_copied(&self, bytes: u64) {
        self.lead_by(-(bytes as i64));
        self.owe(bytes);
    }

    /// Records that the log has appended `bytes` bytes, which [`set_unspent`](Self::set_unspent)
    /// has been told.
    pub(super) fn note_appended(&self, bytes: u64) {
        self.lead_by(bytes as i64);
        self.owe(bytes);
    }

    fn owe(&self, bytes: u64) {
        let mut admission = self.admission.borrow_mut();
        admission.note_appended(bytes / BLOCK_BYTES, &self.level());
        drop(admission);
        if self.due_blocks() > 0 {
            self.work.notify();
        }
    }

    /// Records that cleaning has moved `blocks` blocks, and that it has paid for `paid_blocks`
    /// blocks of space in the segments that it is emptying, which cost and gain `victims`.
    pub(super) fn note_moved(&self, blocks: u64, paid_blocks: u64, victims: &Yield) {
        self.paid_blocks.set(paid_blocks);
        let mut admission = self.admission.borrow_mut();
        admission.note_moved(blocks, &self.level(), victims, &self.next.get());
    }

    /// Returns true when so much is free that `blocks` blocks may be put in order.
    pub(super) fn may_order(&self, blocks: u64) -> bool {
        let mut level = self.level();
        level.free_blocks = level.free_blocks.saturating_sub(blocks);
        self.admission.borrow().may_order(&level)
    }

    /// Returns true when cleaning gains enough to be done so that the side can be put in order.
    pub(super) fn can_clean_for_order(&self) -> bool {
        self.can_clean() && self.next.get().moved_per_appended() <= AHEAD_PRICE_MAX
    }

    /// Makes cleaning due while it gains enough, because the side is to be put in order and has
    /// no space for that, until the returned guard is dropped.
    pub(super) fn clean_for_order(&self) -> Ahead<'_> {
        self.ahead.set(true);
        self.work.notify();
        Ahead(self)
    }

    /// Records that cleaning has emptied segments before others of the same batch: `dead` segments
    /// are dead now, and `paid_blocks` blocks of space are paid for in the others.
    pub(super) fn note_emptied(&self, dead: usize, paid_blocks: u64) {
        self.dead_segments
            .set(self.dead_segments.get() + dead as u64);
        self.paid_blocks.set(paid_blocks);
    }

    /// Records that cleaning empties no segment any more.
    pub(super) fn end_batch(&self) {
        self.paid_blocks.set(0);
    }

    /// Returns true when the log could append more if segments that are paid for were free.
    pub(super) fn is_limited_by_space(&self) -> bool {
        let admission = self.admission.borrow();
        admission.is_limited_by_space(&self.level(), &self.next.get())
    }

    /// Returns true when there is a segment that cleaning gains something from.
    pub(super) fn can_clean(&self) -> bool {
        !self.next.get().is_nothing()
    }

    /// Makes cleaning due while few segments are free, until the returned guard is dropped.
    pub(super) fn wait_for_space(&self) -> Waiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        self.request();
        Waiting(self)
    }

    /// Wakes the cleaner, because the log or a task waits for it.
    pub(super) fn request(&self) {
        self.requests.set(self.requests.get() + 1);
        self.work.notify();
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// Returns the number of blocks that cleaning has to move now.
    pub(super) fn due_blocks(&self) -> u64 {
        let always = self.always.get() && self.can_clean();
        if always || self.ahead.get() && self.can_clean_for_order() {
            return PIECE_BLOCKS;
        }
        self.owed_blocks()
    }

    /// Returns the number of blocks that cleaning has to move now because of what was appended, or
    /// because a task waits for it.
    pub(super) fn owed_blocks(&self) -> u64 {
        if self.waiting.get() > 0 && self.free_segments.get() <= SPARED_FOR_CLEANING as u64 {
            return PIECE_BLOCKS;
        }
        let admission = self.admission.borrow();
        let (level, next) = (self.level(), self.next.get());
        // The log cannot append less than this.
        if admission.may_append_blocks(&level, &next) < ENTRY_BLOCKS_MIN && !next.is_nothing() {
            return PIECE_BLOCKS;
        }
        admission.due_blocks(&level, &next)
    }

    /// Returns the blocks of space that cleaning owes, for statistics.
    pub(super) fn debt_blocks(&self) -> u64 {
        self.admission.borrow().debt_blocks(&self.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::mirror::superblock::{Asked, SideKind, SideLayout};

    const MIB: u64 = 1 << 20;
    /// What the next victims cost and gain.
    const NEXT: Yield = Yield {
        moved_blocks: 100,
        gained_blocks: 100,
    };

    /// Returns the pace of a side with room, and segments to clean.
    fn pace() -> Pace {
        let asked = Asked {
            kind: SideKind::Log,
            ..Asked::default()
        };
        let geometry = crate::geometry::Geometry::of_size(1 << 30);
        let layout = SideLayout::of(&geometry, asked).expect("it is large enough");
        let segments = layout.segments.expect("it is logged");
        let pace = Pace::new(&segments, 16 * MIB);
        pace.set_segments(segments.segments() as usize / 4, 0, NEXT);
        pace
    }

    /// The log is asked first each time. Without a share, copies of a rebuild would wait for as
    /// long as the log has something to append.
    #[test]
    fn the_log_leaves_waiting_copies_their_half() {
        let pace = pace();
        assert!(pace.granted_to_log_bytes() > 4 * MIB);
        pace.note_appended(MIB / 2);
        assert!(pace.granted_to_log_bytes() > 0, "no copy waits");
        let waiting = pace.copy_waits();
        assert!(pace.takes_copies());
        assert_eq!(pace.granted_to_log_bytes(), 0);
        pace.note_copied(MIB / 2);
        assert!(pace.granted_to_log_bytes() > 0, "it is not ahead any more");
        pace.note_appended(8 * MIB);
        drop(waiting);
        assert!(pace.granted_to_log_bytes() > 0, "no copy waits");
        // The lead is bounded, so that no long pause follows a long time without copies.
        let waiting = pace.copy_waits();
        pace.note_copied(MIB);
        assert!(pace.granted_to_log_bytes() > 0, "it is not ahead any more");
        drop(waiting);
    }

    /// Copies take space as entries of the log do, so cleaning must gain as much.
    #[test]
    fn copies_owe_cleaning() {
        let pace = pace();
        pace.set_segments(SPARED_FOR_CLEANING + 20, 0, NEXT);
        assert_eq!(pace.due_blocks(), 0);
        let mut copied = 0;
        while pace.takes_copies() {
            pace.note_copied(MIB);
            copied += MIB;
            assert!(copied < 1 << 30, "they never wait");
        }
        assert!(pace.due_blocks() > 0);
        // Few free segments are left to cleaning, whatever is owed.
        let next = Yield::default();
        pace.set_segments(SPARED_FOR_CLEANING, 0, next);
        assert!(!pace.takes_copies());
        pace.set_segments(SPARED_FOR_CLEANING + 1, 0, next);
        assert!(pace.takes_copies(), "there is nothing to clean");
    }

    /// While no segment is free for copies, the log does not wait for them.
    #[test]
    fn the_log_does_not_wait_for_copies_that_cannot_go_on() {
        let pace = pace();
        let _waiting = pace.copy_waits();
        pace.note_appended(MIB);
        pace.set_segments(SPARED_FOR_CLEANING, 0, Yield::default());
        pace.set_unspent(64 * MIB);
        assert!(pace.granted_to_log_bytes() > 0);
    }
}
