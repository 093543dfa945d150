//! Progress and outcome of the running scrub of the volume, or of the last scrub if none runs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::Instant;
use serde::Serialize;

use super::pace::Pace;
use super::superblock::ScrubRecord;
use crate::device::{Statistic, StatisticVisitor};

/// Progress of the running scrub, or outcome of the last scrub.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScrubStatus {
    /// `running`, `done` or `cancelled`.
    pub state: &'static str,
    /// Number of bytes of the volume that have been scrubbed.
    pub position_bytes: u64,
    /// Number of bytes read from all sides together.
    pub read_bytes: u64,
    /// Number of bytes that could not be checked, because a side did not answer.
    pub skipped_bytes: u64,
    /// Number of blocks and metadata pages that were found corrupt on a side.
    pub found: u64,
    /// Number of corrupt blocks and pages that were repaired.
    pub repaired: u64,
    /// Number of corrupt blocks and pages that have no correct copy, or whose repair has failed.
    pub unrepairable: u64,
    /// Number of blocks that got a checksum after they were compared with the copy on another side.
    pub learned_blocks: u64,
    /// Number of seconds from the start of the scrub until now or until its end, including the time
    /// during which the volume was stopped.
    pub seconds: f64,
    /// True once the start of the scrub, or its end, is durably recorded on all healthy sides. The
    /// reported state then survives any stop.
    pub remembered: bool,
}

/// Counters of a scrub, in the units of [`ScrubStatus`].
#[derive(Default)]
pub(super) struct ScrubCounters {
    pub(super) position_bytes: Cell<u64>,
    pub(super) read_bytes: Cell<u64>,
    pub(super) skipped_bytes: Cell<u64>,
    pub(super) found: Cell<u64>,
    pub(super) repaired: Cell<u64>,
    pub(super) unrepairable: Cell<u64>,
    pub(super) learned_blocks: Cell<u64>,
}

/// A scrub that runs or has ended.
pub(super) struct Run {
    started: Instant,
    /// Start of the scrub in seconds since 1970.
    started_s: u64,
    /// Number of seconds between the start of the scrub and the opening of the volume that resumed
    /// it; `None` if the scrub was started after the opening.
    seconds_before: Option<u64>,
    /// True once the scrub was added to the volume's record of unfinished operations, which are
    /// resumed after a stop.
    noted: Cell<bool>,
    ended: Cell<Option<Instant>>,
    cancelled: Cell<bool>,
    /// True when closing the volume has stopped the scrub, so that the next opening resumes it.
    interrupted: Cell<bool>,
    pub(super) counts: ScrubCounters,
}

impl Run {
    /// Returns true when the scrub must stop before the end of the volume: it was cancelled, or the
    /// volume is being closed.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.get() || self.interrupted.get()
    }

    /// Returns true when the next opening resumes the scrub.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.get() && !self.cancelled.get()
    }

    /// Records that the scrub was added to the remembered operations of the volume.
    pub(super) fn is_noted(&self) {
        self.noted.set(true);
    }

    /// Returns the progress in the form in which the superblocks record it.
    pub(super) fn record(&self) -> ScrubRecord {
        let counts = &self.counts;
        ScrubRecord {
            started_s: self.started_s,
            position_bytes: counts.position_bytes.get(),
            read_bytes: counts.read_bytes.get(),
            skipped_bytes: counts.skipped_bytes.get(),
            found: counts.found.get(),
            repaired: counts.repaired.get(),
            unrepairable: counts.unrepairable.get(),
        }
    }

    /// Records that the scrub has ended at `now`.
    pub(super) fn end(&self, now: Instant) {
        self.ended.set(Some(now));
    }
}

/// The running scrub of a volume, or the last scrub if none runs, with the pace of scrubs.
pub(super) struct Scrub {
    run: RefCell<Option<Rc<Run>>>,
    pub(super) pace: Pace,
}

impl Scrub {
    pub(super) fn new(bytes_per_s: Option<u64>) -> Scrub {
        Scrub {
            run: RefCell::new(None),
            pace: Pace::new(bytes_per_s),
        }
    }

    /// Starts a scrub, or resumes the interrupted scrub `before`; the time is `unix_s` seconds
    /// since 1970. Returns `None` when a scrub already runs.
    pub(super) fn begin(
        &self,
        now: Instant,
        unix_s: u64,
        before: Option<ScrubRecord>,
    ) -> Option<Rc<Run>> {
        if self.is_running() {
            return None;
        }
        let so_far = before.unwrap_or_default();
        let run = Rc::new(Run {
            started: now,
            started_s: before.map_or(unix_s.max(1), |before| before.started_s),
            seconds_before: before.map(|before| unix_s.saturating_sub(before.started_s)),
            noted: Cell::new(before.is_some()),
            ended: Cell::new(None),
            cancelled: Cell::new(false),
            interrupted: Cell::new(false),
            counts: ScrubCounters {
                position_bytes: Cell::new(so_far.position_bytes),
                read_bytes: Cell::new(so_far.read_bytes),
                skipped_bytes: Cell::new(so_far.skipped_bytes),
                found: Cell::new(so_far.found),
                repaired: Cell::new(so_far.repaired),
                unrepairable: Cell::new(so_far.unrepairable),
                learned_blocks: Cell::new(0),
            },
        });
        *self.run.borrow_mut() = Some(Rc::clone(&run));
        Some(run)
    }

    /// Cancels the running scrub; returns false when no scrub runs.
    pub(super) fn cancel(&self) -> bool {
        let running = self.running();
        running.is_some_and(|run| !run.cancelled.replace(true))
    }

    /// Stops the running scrub at its position, from which the next opening resumes it. Returns the
    /// scrub; `None` when no scrub runs.
    pub(super) fn interrupt(&self) -> Option<Rc<Run>> {
        let running = self.running()?;
        running.interrupted.set(true);
        Some(running)
    }

    /// Returns true while a scrub is running that was resumed when the volume was opened.
    pub(super) fn was_resumed(&self) -> bool {
        let running = self.running();
        running.is_some_and(|run| run.seconds_before.is_some())
    }

    fn running(&self) -> Option<Rc<Run>> {
        let run = self.run.borrow();
        run.clone().filter(|run| run.ended.get().is_none())
    }

    /// Returns true while a scrub is running.
    pub(super) fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Returns the progress; `None` before the first scrub. `up_to_date` says whether the
    /// remembered operations of the volume are durable on all healthy sides.
    pub(super) fn status(&self, now: Instant, up_to_date: bool) -> Option<ScrubStatus> {
        let run = self.run.borrow();
        let run = run.as_ref()?;
        let state = match (run.ended.get(), run.cancelled.get()) {
            (None, _) => "running",
            (Some(_), true) => "cancelled",
            (Some(_), false) => "done",
        };
        let counts = &run.counts;
        Some(ScrubStatus {
            state,
            position_bytes: counts.position_bytes.get(),
            read_bytes: counts.read_bytes.get(),
            skipped_bytes: counts.skipped_bytes.get(),
            found: counts.found.get(),
            repaired: counts.repaired.get(),
            unrepairable: counts.unrepairable.get(),
            learned_blocks: counts.learned_blocks.get(),
            seconds: run.seconds_before.unwrap_or(0) as f64
                + run.ended.get().unwrap_or(now).ns_since(run.started) as f64 / 1e9,
            remembered: up_to_date && (run.noted.get() || run.ended.get().is_some()),
        })
    }
}

impl ScrubStatus {
    /// Reports the fields of the status as named statistics.
    pub(super) fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let mut show = |name, statistic| out.statistic("", name, statistic);
        show("scrub", Statistic::State(self.state.to_owned()));
        let position = self.position_bytes as f64;
        show("scrub_position_bytes", Statistic::Gauge(position));
        show("scrub_read_bytes", Statistic::Gauge(self.read_bytes as f64));
        let skipped = self.skipped_bytes as f64;
        show("scrub_skipped_bytes", Statistic::Gauge(skipped));
        show("scrub_found", Statistic::Gauge(self.found as f64));
        show("scrub_repaired", Statistic::Gauge(self.repaired as f64));
        let unrepairable = self.unrepairable as f64;
        show("scrub_unrepairable", Statistic::Gauge(unrepairable));
        let learned = self.learned_blocks as f64;
        show("scrub_learned_blocks", Statistic::Gauge(learned));
        show("scrub_seconds", Statistic::Gauge(self.seconds));
    }
}
