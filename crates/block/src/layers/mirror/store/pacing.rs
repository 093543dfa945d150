//! The pace of a store: tells the policy of the progress of the destager, and the log how much of
//! its free room is withheld.
//!
//! The room of a log must never be withheld while nothing is going to release it: whenever a chunk
//! ends without having freed anything, for whatever reason, nothing is withheld until a chunk
//! begins again. Withheld room must never count as a full log, because full logs drop what other
//! members still need.

use std::cell::RefCell;
use std::time::Duration;

use bimetal_policy::pacing::{Pacing, PacingParameters, Stage};
use bimetal_rt::Rt;

use super::Store;
use super::choose::{Chunk, Fill};
use super::log_area::CHUNKS_PER_LOG;
use crate::BLOCK_BYTES;

/// Bounds of the expected time between two releases of withheld room.
const STEP_MIN: Duration = Duration::from_millis(5);
const STEP_MAX: Duration = Duration::from_millis(250);
/// Time for which the destager works with priority after changes have waited for withheld room.
/// Otherwise it would slow down between two releases.
const PACED_FOR: Duration = Duration::from_secs(1);
/// Interval at which room is released while no step of the destager ends.
const RELEASE_INTERVAL: Duration = Duration::from_millis(50);
/// Cost of the way to a home location, in blocks: about as long as this takes on a disk.
const WAY_BLOCKS: u64 = 100;
/// Time in ns that a disk is assumed to take for a block, before it was measured: 8 ms for a block
/// and the way to it.
const DISK_NS_PER_BLOCK: f64 = 80_000.0;
/// Returns the cost of writing `bytes` bytes in `ranges` ranges home, in blocks.
pub(super) fn cost(bytes: u64, ranges: u64) -> u64 {
    ranges * WAY_BLOCKS + bytes / BLOCK_BYTES
}

/// Creates the pace of a log of `log_bytes`.
pub(super) fn of(log_bytes: u64) -> RefCell<Pacing> {
    RefCell::new(Pacing::new(PacingParameters {
        reserve_bytes: log_bytes / CHUNKS_PER_LOG,
        step_ns_min: STEP_MIN.as_nanos() as u64,
        step_ns_max: STEP_MAX.as_nanos() as u64,
    }))
}

/// Guard of a chunk that is being destaged. If the chunk has not ended when the guard is dropped,
/// it was in vain.
pub(super) struct Paced<'s> {
    store: &'s Store,
    has_ended: bool,
}

impl Paced<'_> {
    /// Ends the chunk, after its entries were dropped.
    pub(super) fn end(mut self) {
        self.has_ended = true;
        let now_ns = self.store.rt.now().as_ns();
        self.store.pacing.borrow_mut().end(now_ns);
        self.store.release_withheld();
    }
}

impl Drop for Paced<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.store.nothing_withheld();
        }
    }
}

impl Store {
    /// Begins to pace a chunk, which begins at the tail of the log.
    pub(super) fn begin_paced(&self, chunk: &Chunk) -> Paced<'_> {
        let ((_, free), now_ns) = (self.log.open_bytes(), self.rt.now().as_ns());
        let bytes = chunk.end - self.log.tail();
        self.pacing.borrow_mut().begin(now_ns, bytes, free);
        self.release_withheld();
        Paced {
            store: self,
            has_ended: false,
        }
    }

    /// Notes that `done` of `all` steps of a stage of the chunk are done, and releases room.
    pub(super) fn chunk_advances(&self, stage: Stage, done: usize, all: usize) {
        let now_ns = self.rt.now().as_ns();
        self.pacing.borrow_mut().advance(now_ns, stage, done, all);
        self.release_withheld();
    }

    /// Tells the log how much is withheld now. On a logged side, this is nothing: its log keeps
    /// step with cleaning instead, and no chunk would release what is withheld.
    pub(super) fn release_withheld(&self) {
        if self.segments.is_some() {
            return;
        }
        let withheld = self.pacing.borrow().withheld_bytes(self.rt.now().as_ns());
        self.log.withhold((withheld > 0).then_some(withheld));
    }

    /// Withholds nothing until a chunk begins, because nothing can be destaged now.
    pub(super) fn nothing_withheld(&self) {
        self.pacing.borrow_mut().in_vain();
        self.log.withhold(None);
    }

    /// Runs `work`, and releases room at intervals meanwhile.
    pub(super) async fn releasing<T>(&self, work: impl Future<Output = T>) -> T {
        let rt: &Rt = &self.rt;
        let mut work = std::pin::pin!(work);
        loop {
            match rt.timeout(RELEASE_INTERVAL, work.as_mut()).await {
                Ok(done) => return done,
                Err(_) => self.release_withheld(),
            }
        }
    }

    /// Returns the fill level that decides how urgent destaging is: changes that wait for withheld
    /// room are as urgent as changes that wait in a full log.
    pub(super) fn urgency(&self) -> Fill {
        match self.log.was_paced_within(PACED_FOR) {
            true => Fill::Full,
            false => self.fill(),
        }
    }

    /// Gives way to the entries of the log that are being written, on a disk whose log is paced: a
    /// disk that serves requests by position would continue through the home locations, where there
    /// is always another request, until the chunk ends.
    pub(super) async fn give_way_to_log(&self) {
        let rotational = self.device.geometry().rotational;
        if rotational && self.log.is_writing() && self.urgency() == Fill::Full {
            let written = self.log.changed.until(|| !self.log.is_writing());
            // The wait has a timeout, since the write in flight may hang on the device.
            let _ = self.rt.timeout(RELEASE_INTERVAL * 2, written).await;
        }
    }

    /// Returns true while changes wait for space in the log, whether the log is full or room is
    /// withheld.
    pub(in super::super) fn is_short_of_room(&self) -> bool {
        self.log.is_full() || self.log.is_paced()
    }

    /// Returns for how many of the last ten seconds changes have waited for space in the log; 0 if
    /// not for long.
    pub(in super::super) fn log_held_up_seconds(&self) -> f64 {
        self.log.held_up.held_up_seconds(self.rt.now())
    }

    /// Returns the time in ns in which the side is expected to store `bytes` bytes in `ranges`
    /// ranges, as far as its log decides this: at once what its log has room for now, and the rest
    /// at the pace of the destager. Half of the room counts, because changes that arrive singly
    /// have headers as long as themselves.
    pub(in super::super) fn stored_in_ns(&self, bytes: u64, ranges: u64) -> u64 {
        let (open, _) = self.log.open_bytes();
        let rest = bytes.saturating_sub(open / 2);
        let measured = self.pacing.borrow().ns_per_cost(self.rt.now().as_ns());
        let assumed = self
            .device
            .geometry()
            .rotational
            .then_some(DISK_NS_PER_BLOCK);
        let Some(ns_per_block) = measured.or(assumed).filter(|_| rest > 0) else {
            return 0;
        };
        let share = rest as f64 / bytes as f64;
        (cost(bytes, ranges) as f64 * share * ns_per_block) as u64
    }
}
