//! How the scrub of a volume stands: the one that runs, or the last one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::Instant;
use serde::Serialize;

use super::pace::Pace;
use super::superblock::ScrubRecord;
use crate::device::{Figure, FigureVisitor};

/// How a scrub stands, or how the last one ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScrubStatus {
    /// `running`, `done` or `cancelled`.
    pub state: &'static str,
    /// How much of the volume has been looked at, in bytes.
    pub position_bytes: u64,
    /// Bytes read from all sides together.
    pub read_bytes: u64,
    /// Bytes that could not be looked at, because a side did not answer.
    pub skipped_bytes: u64,
    /// Blocks, and pages of what a side keeps beside its data, that were wrong on a side.
    pub found: u64,
    /// Those of them that are right again.
    pub repaired: u64,
    /// Those that are wrong on every side, or whose repair has failed.
    pub unrepairable: u64,
    /// Blocks that are known by a checksum since they were compared.
    pub learned_blocks: u64,
    /// Seconds since the start, or from the start to the end, stops of the volume included.
    pub seconds: f64,
    /// True once all sides that count durably know that it runs, or that it is over: what is then
    /// said of it holds after any stop.
    pub remembered: bool,
}

/// What a scrub has counted so far, in the units of [`ScrubStatus`].
#[derive(Default)]
pub(super) struct Counts {
    pub(super) position_bytes: Cell<u64>,
    pub(super) read_bytes: Cell<u64>,
    pub(super) skipped_bytes: Cell<u64>,
    pub(super) found: Cell<u64>,
    pub(super) repaired: Cell<u64>,
    pub(super) unrepairable: Cell<u64>,
    pub(super) learned_blocks: Cell<u64>,
}

/// One scrub.
pub(super) struct Run {
    started: Instant,
    /// The same in seconds since 1970.
    started_s: u64,
    /// Seconds that it had taken before the volume was opened; `None` when it was begun since.
    seconds_before: Option<u64>,
    /// The volume has been told to remember it.
    noted: Cell<bool>,
    ended: Cell<Option<Instant>>,
    cancelled: Cell<bool>,
    /// The volume is being closed, and the next opening goes on.
    interrupted: Cell<bool>,
    pub(super) counts: Counts,
}

impl Run {
    /// True when it is to end early.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.get() || self.interrupted.get()
    }

    /// True when the next opening goes on with it.
    pub(super) fn is_interrupted(&self) -> bool {
        self.interrupted.get() && !self.cancelled.get()
    }

    /// The volume has been told to remember it.
    pub(super) fn is_noted(&self) {
        self.noted.set(true);
    }

    /// How far it is, as the superblocks remember it.
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

    /// It has ended.
    pub(super) fn end(&self, now: Instant) {
        self.ended.set(Some(now));
    }
}

/// The scrub of a volume: the one that runs, or the last one.
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

    /// Begins a scrub, or goes on with one that was interrupted, at `unix_s` seconds since 1970;
    /// `None` when one runs.
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
            counts: Counts {
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

    /// Ends the one that runs; false when none does.
    pub(super) fn cancel(&self) -> bool {
        let running = self.running();
        running.is_some_and(|run| !run.cancelled.replace(true))
    }

    /// Ends the one that runs where it is, for the next opening to go on. Returns it.
    pub(super) fn interrupt(&self) -> Option<Rc<Run>> {
        let running = self.running()?;
        running.interrupted.set(true);
        Some(running)
    }

    /// True while one runs that an opening has gone on with.
    pub(super) fn was_resumed(&self) -> bool {
        let running = self.running();
        running.is_some_and(|run| run.seconds_before.is_some())
    }

    fn running(&self) -> Option<Rc<Run>> {
        let run = self.run.borrow();
        run.clone().filter(|run| run.ended.get().is_none())
    }

    fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// How it stands; `None` before the first one.
    /// `up_to_date` when all sides that count have what the volume remembers.
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
    /// The same as named figures.
    pub(super) fn figures(&self, out: &mut dyn FigureVisitor) {
        let mut show = |name, figure| out.figure("", name, figure);
        show("scrub", Figure::State(self.state.to_owned()));
        let position = self.position_bytes as f64;
        show("scrub_position_bytes", Figure::Gauge(position));
        show("scrub_read_bytes", Figure::Gauge(self.read_bytes as f64));
        let skipped = self.skipped_bytes as f64;
        show("scrub_skipped_bytes", Figure::Gauge(skipped));
        show("scrub_found", Figure::Gauge(self.found as f64));
        show("scrub_repaired", Figure::Gauge(self.repaired as f64));
        let unrepairable = self.unrepairable as f64;
        show("scrub_unrepairable", Figure::Gauge(unrepairable));
        let learned = self.learned_blocks as f64;
        show("scrub_learned_blocks", Figure::Gauge(learned));
        show("scrub_seconds", Figure::Gauge(self.seconds));
    }
}
