//! What a mirror says of itself.

use bimetal_policy::hetero::Mode;
use serde::{Serialize, Serializer};

use super::operations::OperationStatus;
use super::scrub_progress::ScrubStatus;
use super::shared::{Shared, VolumeState};
use super::superblock::State;
use crate::device::{Figure, FigureVisitor};
use crate::error::IoError;
use crate::range_set::RangeSet;

/// The state of a volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorStatus {
    /// `open`, `read-only`, `stopped` or `closed`.
    pub state: &'static str,
    /// True when a side is not healthy.
    pub degraded: bool,
    /// Acknowledged bytes that not all healthy sides hold, now.
    pub exposed_bytes: u64,
    /// Their age in seconds, now.
    pub exposed_seconds: f64,
    /// The most they have been.
    pub exposed_bytes_peak: u64,
    /// The bound on bytes; `None` without one.
    pub exposed_bytes_max: Option<u64>,
    /// Writes acknowledged before all sides had them.
    pub acknowledged_early: u64,
    /// Reads that were asked of a second side because the first was late.
    pub hedged_reads: u64,
    /// Writes that waited for all sides because a bound was reached.
    pub held_back: u64,
    /// Reads that failed because no side has what was written.
    pub lost_reads: u64,
    /// The scrub that runs, or how the last one ended; `None` before the first one.
    pub scrub: Option<ScrubStatus>,
    /// What the volume goes on with after any stop until it is done.
    pub operations: Vec<OperationStatus>,
    /// The sides that the configuration should name, when it names others.
    pub sides_to_name: Option<Vec<String>>,
    /// The side that reads go to.
    pub preferred: String,
    /// The sides in the order of the configuration.
    pub sides: Vec<SideStatus>,
}

/// The state of a side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideStatus {
    /// The name of its device.
    pub name: String,
    /// `healthy`, `resyncing` or `absent`.
    pub health: &'static str,
    /// `joining` or `leaving`, of a side that an operation concerns.
    pub operation: Option<&'static str>,
    /// Why an absent side was given up; `None` of one that takes part, and of one that was not
    /// there when the volume was opened.
    #[serde(serialize_with = "in_words")]
    pub absent_because: Option<IoError>,
    /// `in time`, also without anything to do, or `delayed`.
    pub mode: &'static str,
    /// True while its oldest write has exceeded the side's limit.
    pub stuck: bool,
    /// Bytes that wait for it.
    pub waiting_bytes: u64,
    /// Bytes it is working on.
    pub in_flight_bytes: u64,
    /// Age of the oldest acknowledged write it lacks, in seconds.
    pub lag_seconds: f64,
    /// Bytes that it lacks and that a rebuild will copy: degraded, not exposed.
    pub stale_bytes: u64,
    /// Ranges in which these are remembered.
    pub stale_ranges: u64,
    /// Mode switches so far.
    pub mode_switches: u64,
    /// Median time of a write, in nanoseconds; `None` before enough of them are known.
    pub write_median_ns: Option<u64>,
    /// Operations given to it so far.
    pub writes: u64,
    /// Bytes given to it so far.
    pub written_bytes: u64,
    /// Writes that went out as part of another one.
    pub merged: u64,
    /// Reads so far.
    pub reads: u64,
    /// Errors so far.
    pub errors: u64,
    /// Bytes copied to it by resyncs.
    pub resynced_bytes: u64,
    /// Seconds until it has all that it lacks, as far as that can be told; `None` while nothing is
    /// copied to it.
    pub resync_seconds_left: Option<f64>,
    /// Blocks of it that were found wrong.
    pub rotten_blocks: u64,
    /// True while changes wait for space in its log.
    pub log_full: bool,
}

fn in_words<S: Serializer>(error: &Option<IoError>, to: S) -> Result<S::Ok, S::Error> {
    error.map(|error| error.to_string()).serialize(to)
}

impl Shared {
    pub(super) fn status(&self) -> MirrorStatus {
        let bound = self.rules().exposure_bytes_max;
        MirrorStatus {
            state: match self.state.get() {
                VolumeState::Open => "open",
                VolumeState::ReadOnly | VolumeState::Frozen => "read-only",
                VolumeState::Stopped => "stopped",
                VolumeState::Closed => "closed",
            },
            degraded: !self.all_are_healthy(),
            exposed_bytes: self.exposure.bytes(),
            exposed_seconds: self.exposure_age_ns() as f64 / 1e9,
            exposed_bytes_peak: self.exposure.bytes_peak(),
            exposed_bytes_max: (bound != u64::MAX).then_some(bound),
            acknowledged_early: self.counts.acknowledged_early.get(),
            hedged_reads: self.counts.hedged_reads.get(),
            held_back: self.counts.held_back.get(),
            lost_reads: self.counts.lost_reads.get(),
            scrub: self
                .repair
                .scrub
                .status(self.rt.now(), self.scrub_is_remembered()),
            operations: self.operations(),
            sides_to_name: self.sides_to_name(&self.config.sides),
            preferred: self.sides[self.preference.side.get()].name.clone(),
            sides: self
                .sides
                .iter()
                .map(|side| self.side_status(side.index))
                .collect(),
        }
    }

    fn scrub_is_remembered(&self) -> bool {
        let volume = self.membership.superblocks.as_ref();
        volume.is_some_and(|volume| self.has_remembered(volume))
    }

    fn side_status(&self, index: usize) -> SideStatus {
        let side = &self.sides[index];
        let (queue, policy) = (side.queue.borrow(), side.policy.borrow());
        let oldest = queue.oldest_acknowledged(0);
        SideStatus {
            name: side.name.clone(),
            health: side.life.get().name(),
            operation: self.operation_of(side),
            absent_because: side.life.get().absent_because(),
            mode: match policy.mode() {
                // The mode of a side that has caught up changes with its next write.
                Mode::Delayed if !side.is_idle() => "delayed",
                Mode::Delayed | Mode::InTime => "in time",
            },
            stuck: side.work.is_stuck(),
            waiting_bytes: queue.waiting_bytes(),
            in_flight_bytes: queue.flying_bytes(),
            lag_seconds: oldest.map_or(0.0, |at| self.rt.now().ns_since(at) as f64 / 1e9),
            stale_bytes: side.out_of_sync.bytes(),
            stale_ranges: side.out_of_sync.count() as u64,
            mode_switches: policy.switches(),
            write_median_ns: policy.median_ns(),
            writes: side.counts.writes.get(),
            written_bytes: side.counts.written_bytes.get(),
            merged: side.counts.merged.get(),
            reads: side.counts.reads.get(),
            errors: side.counts.errors.get(),
            resynced_bytes: side.counts.resynced_bytes.get(),
            resync_seconds_left: side.rebuild.get().and_then(|progress| {
                let left_bytes = side.out_of_sync.bytes();
                progress.seconds_left(self.rt.now(), left_bytes)
            }),
            rotten_blocks: side.counts.rotten.get(),
            log_full: side.store().is_some_and(|store| store.is_full()),
        }
    }
}

impl Shared {
    /// What only the sides of a volume with logs can say of themselves.
    pub(super) fn figures_of_sides(&self, out: &mut dyn FigureVisitor) {
        let Some(volume) = &self.membership.superblocks else {
            return;
        };
        for side in self.sides.iter() {
            let part = &side.name;
            let mark = volume.state(side.index).map_or("none", State::name);
            out.figure(part, "mark", Figure::State(mark.to_owned()));
            let lost = self.lost_if_gone(side.index).bytes();
            out.figure(part, "lost_if_gone_bytes", Figure::Gauge(lost as f64));
            let repaired = Figure::Counter(side.counts.repaired_blocks.get());
            out.figure(part, "rotten_repaired", repaired);
            let lost = Figure::Counter(side.counts.lost_blocks.get());
            out.figure(part, "lost_blocks", lost);
            if let Some(way) = &side.way {
                way.figures(part, out);
            }
            if let Some(store) = side.store() {
                store.figures(part, out);
            }
        }
    }

    /// What was acknowledged and only this side has: what would be lost if it died now. Of a side
    /// that is not there nothing is known, so the others are then all that there is.
    fn lost_if_gone(&self, index: usize) -> RangeSet {
        let own = self.lacked_by(index);
        let everything = 0..self.size_bytes();
        let mut lost = RangeSet::new();
        own.gaps(&everything)
            .into_iter()
            .for_each(|held| lost.insert(held));
        for other in (0..self.sides.len()).filter(|&other| other != index) {
            for held in self.lacked_by(other).gaps(&everything) {
                lost.remove(held);
            }
        }
        lost
    }

    /// What a side lacks of what was acknowledged.
    fn lacked_by(&self, index: usize) -> RangeSet {
        let side = &self.sides[index];
        let mut lacked = RangeSet::new();
        if side.store().is_none() {
            lacked.insert(0..self.size_bytes());
            return lacked;
        }
        lacked.extend(side.out_of_sync.ranges());
        let queue = side.queue.borrow();
        for exposed in self.exposure.ranges() {
            lacked.extend(queue.pending_in(&exposed));
        }
        lacked
    }
}

impl MirrorStatus {
    /// The same as named figures.
    pub(super) fn figures(&self, out: &mut dyn FigureVisitor) {
        out.figure("", "state", Figure::State(self.state.to_owned()));
        out.figure(
            "",
            "degraded",
            Figure::Gauge(f64::from(u8::from(self.degraded))),
        );
        out.figure(
            "",
            "exposed_bytes",
            Figure::Gauge(self.exposed_bytes as f64),
        );
        out.figure("", "exposed_seconds", Figure::Gauge(self.exposed_seconds));
        out.figure(
            "",
            "exposed_bytes_peak",
            Figure::Gauge(self.exposed_bytes_peak as f64),
        );
        if let Some(bound) = self.exposed_bytes_max {
            out.figure("", "exposed_bytes_max", Figure::Gauge(bound as f64));
        }
        out.figure(
            "",
            "acknowledged_early",
            Figure::Counter(self.acknowledged_early),
        );
        out.figure("", "hedged_reads", Figure::Counter(self.hedged_reads));
        out.figure("", "held_back", Figure::Counter(self.held_back));
        out.figure("", "lost_reads", Figure::Counter(self.lost_reads));
        if let Some(scrub) = &self.scrub {
            scrub.figures(out);
        }
        if !self.operations.is_empty() {
            let words: Vec<String> = self.operations.iter().map(|o| o.words()).collect();
            out.figure("", "operations", Figure::State(words.join(", ")));
        }
        if let Some(sides) = &self.sides_to_name {
            let line = super::sides_line(sides);
            out.figure("", "to_configure", Figure::State(line));
        }
        for side in self.sides.iter() {
            let part = &side.name;
            out.figure(part, "health", Figure::State(side.health.to_owned()));
            if let Some(error) = side.absent_because {
                out.figure(part, "absent_because", Figure::State(error.to_string()));
            }
            if let Some(operation) = side.operation {
                out.figure(part, "operation", Figure::State(operation.to_owned()));
            }
            out.figure(part, "mode", Figure::State(side.mode.to_owned()));
            out.figure(
                part,
                "stuck",
                Figure::Gauge(f64::from(u8::from(side.stuck))),
            );
            out.figure(
                part,
                "waiting_bytes",
                Figure::Gauge(side.waiting_bytes as f64),
            );
            out.figure(
                part,
                "in_flight_bytes",
                Figure::Gauge(side.in_flight_bytes as f64),
            );
            out.figure(part, "lag_seconds", Figure::Gauge(side.lag_seconds));
            out.figure(part, "stale_bytes", Figure::Gauge(side.stale_bytes as f64));
            let ranges = Figure::Gauge(side.stale_ranges as f64);
            out.figure(part, "stale_ranges", ranges);
            out.figure(part, "mode_switches", Figure::Counter(side.mode_switches));
            if let Some(median_ns) = side.write_median_ns {
                out.figure(part, "write_median_ns", Figure::Gauge(median_ns as f64));
            }
            out.figure(part, "writes", Figure::Counter(side.writes));
            out.figure(part, "written_bytes", Figure::Counter(side.written_bytes));
            out.figure(part, "merged", Figure::Counter(side.merged));
            out.figure(part, "reads", Figure::Counter(side.reads));
            out.figure(part, "errors", Figure::Counter(side.errors));
            out.figure(part, "resynced_bytes", Figure::Counter(side.resynced_bytes));
            if let Some(seconds) = side.resync_seconds_left {
                out.figure(part, "resync_left_seconds", Figure::Gauge(seconds));
            }
            out.figure(part, "rotten_found", Figure::Counter(side.rotten_blocks));
        }
    }
}
