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

/// The pace of a side; see the module documentation.
pub(super) struct Pace {
    admission: RefCell<Admission>,
    segment_blocks: u64,
    free_segments: Cell<u64>,
    dead_segments: Cell<u64>,
    /// Blocks of space that cleaning has paid for in the segments that it is emptying.
    paid_blocks: Cell<u64>,
    /// Blocks between the end of the last entry and the end of the last segment of the log.
    unspent_blocks: Cell<u64>,
    /// What cleaning of the next victims costs and gains.
    next: Cell<Yield>,
    /// Whether cleaning is due whenever it gains something.
    always: Cell<bool>,
    /// Number of tasks that wait until segments are free.
    waiting: Cell<usize>,
    /// Number of times that the log or a task began to wait for the cleaner.
    requests: Cell<u64>,
    /// Notified when cleaning may have become due.
    pub(super) work: Event,
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
            free_segments: Cell::new(0),
            dead_segments: Cell::new(0),
            paid_blocks: Cell::new(0),
            unspent_blocks: Cell::new(0),
            next: Cell::new(Yield::default()),
            always: Cell::new(false),
            waiting: Cell::new(0),
            requests: Cell::new(0),
            work: Event::new(),
        }
    }

    /// Sets whether cleaning is due whenever it gains something.
    pub(super) fn clean_always(&self, always: bool) {
        self.always.set(always);
    }

    fn level(&self) -> Level {
        Level {
            free_blocks: self.free_segments.get() * self.segment_blocks + self.unspent_blocks.get(),
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

    /// Sets the number of bytes between the end of the last entry and the end of the log's last
    /// segment.
    pub(super) fn set_unspent(&self, bytes: u64) {
        self.unspent_blocks.set(bytes / BLOCK_BYTES);
    }

    /// Returns the number of bytes that the log may append now.
    pub(super) fn granted_bytes(&self) -> u64 {
        let admission = self.admission.borrow();
        admission.may_append_blocks(&self.level(), &self.next.get()) * BLOCK_BYTES
    }

    /// Records that the log has appended `bytes` bytes, which [`set_unspent`](Self::set_unspent)
    /// has been told.
    pub(super) fn note_appended(&self, bytes: u64) {
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
        if self.waiting.get() > 0 && self.free_segments.get() <= SPARED_FOR_CLEANING as u64 {
            return PIECE_BLOCKS;
        }
        if self.always.get() && !self.next.get().is_nothing() {
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
