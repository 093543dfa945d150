//! Status and statistics of a mirror.

use bimetal_policy::hetero::Mode;
use bimetal_rt::Instant;
use serde::{Serialize, Serializer};

use super::capacity::Room;
use super::lifecycle::{AbsentReason, Life};
use super::operations::OperationStatus;
use super::scrub_progress::ScrubStatus;
use super::shared::{Shared, VolumeState};
use super::superblock::SideState;
use crate::device::{Statistic, StatisticVisitor};
use crate::range_set::RangeSet;

/// Status of a volume.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MirrorStatus {
    /// `open`, `read-only`, `stopped` or `closed`.
    pub state: &'static str,
    /// Why a volume that is `read-only` is so: `forced` when it was opened for inspection, or
    /// `degraded`.
    pub read_only_because: Option<&'static str>,
    /// True when a side is not healthy.
    pub degraded: bool,
    /// Number of acknowledged bytes that not all healthy sides hold at present.
    pub exposed_bytes: u64,
    /// Age in seconds of the oldest exposed write.
    pub exposed_seconds: f64,
    /// Highest number of exposed bytes since the volume was opened.
    pub exposed_bytes_peak: u64,
    /// Bound on the exposed bytes; `None` without a bound.
    pub exposed_bytes_max: Option<u64>,
    /// Bound on the age in seconds of the oldest exposed write; `None` without a bound.
    pub exposed_seconds_max: Option<f64>,
    /// Number of seconds, of the last ten, in which writes waited for room in the exposure; 0 if
    /// they waited for less than two of them.
    pub writes_held_up_seconds: f64,
    /// Number of writes that were acknowledged before all healthy sides had them.
    pub acknowledged_early: u64,
    /// Number of these writes that were acknowledged while a side that lacked the write had not
    /// ended its oldest operation for 200 ms.
    pub saved_from_freezes: u64,
    /// Number of reads that were also sent to a second side because the first was late.
    pub hedged_reads: u64,
    /// Number of writes whose acknowledgement was delayed because a bound of the exposure was
    /// reached.
    pub backpressured_writes: u64,
    /// Number of reads that failed because the content is corrupt and no side has a good copy.
    pub lost_reads: u64,
    /// Use of the room for content; `None` unless the volume is larger than what its sides have
    /// room for.
    pub room: Option<Room>,
    /// The running scrub, or the result of the last scrub; `None` before the first scrub.
    pub scrub: Option<ScrubStatus>,
    /// Unfinished operations, which the volume resumes after any stop or crash.
    pub operations: Vec<OperationStatus>,
    /// Names of the sides that the configuration should list; `None` when it lists them already.
    pub sides_to_name: Option<Vec<String>>,
    /// Name of the side that reads prefer.
    pub preferred: String,
    /// The sides in the order of the configuration.
    pub sides: Vec<SideStatus>,
}

/// Status of a side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SideStatus {
    /// Name of the device.
    pub name: String,
    /// `healthy`, `resyncing` or `absent`.
    pub health: &'static str,
    /// `joining`, `leaving` or `converting` while the side is being added, removed or converted;
    /// otherwise `None`.
    pub operation: Option<&'static str>,
    /// Reason for which an absent side was ejected; `None` for a side in use, and for a side that
    /// was missing when the volume was opened.
    #[serde(serialize_with = "in_words")]
    pub absent_reason: Option<AbsentReason>,
    /// Time in seconds for which `health` has been what it is.
    pub health_seconds: f64,
    /// Number of times that the side was ejected because it was silent while writes waited for it.
    pub silences: u64,
    /// Silence in seconds after which the side is ejected if writes wait because of it; `None` if
    /// they wait until the side is absent.
    pub patience_seconds: Option<f64>,
    /// `delayed` while the side catches up after a late write; otherwise `in time`, also for an
    /// idle side.
    pub mode: &'static str,
    /// True while the oldest operation in flight on the side exceeds the side's own latency limit.
    pub stuck: bool,
    /// Number of bytes that wait in the queue of the side.
    pub waiting_bytes: u64,
    /// Number of bytes in flight to the side.
    pub in_flight_bytes: u64,
    /// Age in seconds of the oldest acknowledged write that the side lacks.
    pub lag_seconds: f64,
    /// Number of bytes that the side lacks and that a rebuild will copy. These bytes are degraded,
    /// not exposed.
    pub out_of_sync_bytes: u64,
    /// Number of ranges that make up `out_of_sync_bytes`.
    pub out_of_sync_ranges: u64,
    /// Number of switches between the modes `in time` and `delayed`.
    pub mode_switches: u64,
    /// Median time of a write, in nanoseconds; `None` until enough writes have been measured.
    pub write_median_ns: Option<u64>,
    /// Number of write operations given to the side.
    pub writes: u64,
    /// Number of bytes in the write operations given to the side.
    pub written_bytes: u64,
    /// Number of writes that were merged into the operation of another write.
    pub merged: u64,
    /// Number of reads given to the side.
    pub reads: u64,
    /// Number of failed operations of the side.
    pub errors: u64,
    /// Number of bytes copied to the side by resyncs.
    pub resynced_bytes: u64,
    /// Estimated number of seconds until the side lacks nothing; `None` while no rebuild of the
    /// side runs.
    pub resync_seconds_left: Option<f64>,
    /// Number of bytes that the running rebuild has passed; `None` while none runs.
    pub resync_passed_bytes: Option<u64>,
    /// Time in seconds for which nothing was copied to a side that is being rebuilt.
    pub resync_stalled_seconds: Option<f64>,
    /// Number of blocks of the side that were found corrupt.
    pub corrupt_blocks: u64,
    /// True while new changes wait for free space in the log of the side.
    pub log_full: bool,
    /// Number of seconds, of the last ten, in which changes waited for space in the log; 0 if they
    /// waited for less than two of them.
    pub log_held_up_seconds: f64,
}

fn in_words<S: Serializer>(reason: &Option<AbsentReason>, to: S) -> Result<S::Ok, S::Error> {
    reason.map(|reason| reason.to_string()).serialize(to)
}

impl Shared {
    pub(super) fn status(&self) -> MirrorStatus {
        let bound = self.rules().exposure_bytes_max;
        let age_ns_max = self.rules.exposure_age_ns_max;
        MirrorStatus {
            state: match self.state.get() {
                VolumeState::Open => "open",
                VolumeState::ReadOnly | VolumeState::Frozen => "read-only",
                VolumeState::Stopped => "stopped",
                VolumeState::Closed => "closed",
            },
            read_only_because: match self.state.get() {
                VolumeState::Frozen => Some("forced"),
                VolumeState::ReadOnly => Some("degraded"),
                _ => None,
            },
            degraded: !self.all_are_healthy(),
            exposed_bytes: self.exposure.bytes(),
            exposed_seconds: self.exposure_age_ns() as f64 / 1e9,
            exposed_bytes_peak: self.exposure.bytes_peak(),
            exposed_bytes_max: (bound != u64::MAX).then_some(bound),
            exposed_seconds_max: (age_ns_max != u64::MAX).then_some(age_ns_max as f64 / 1e9),
            writes_held_up_seconds: self.exposure.held_up_seconds(self.rt.now()),
            acknowledged_early: self.counts.acknowledged_early.get(),
            saved_from_freezes: self.counts.saved_from_freezes.get(),
            hedged_reads: self.counts.hedged_reads.get(),
            backpressured_writes: self.counts.backpressured_writes.get(),
            lost_reads: self.counts.lost_reads.get(),
            room: self.capacity.room(),
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
        let seconds_since = |at: Instant| self.rt.now().ns_since(at) as f64 / 1e9;
        let advanced_seconds = seconds_since(side.advanced_at.get());
        let lacks_some = side.life.get() == Life::Resyncing;
        SideStatus {
            name: side.name.clone(),
            health: side.life.get().name(),
            operation: self.operation_of(side),
            absent_reason: side.life.get().absent_reason(),
            health_seconds: seconds_since(side.life_since.get()),
            silences: side.counts.silences.get(),
            patience_seconds: self.patience_with(side).map(|patience| {
                let patience_ns = patience.ns(self.rt.now().as_ns());
                patience_ns as f64 / 1e9
            }),
            mode: match policy.mode() {
                // A delayed side changes to the mode `in time` only at its next write, so an idle
                // side is shown as in time.
                Mode::Delayed if !side.is_idle() => "delayed",
                Mode::Delayed | Mode::InTime => "in time",
            },
            stuck: side.work.is_stuck(),
            waiting_bytes: queue.waiting_bytes(),
            in_flight_bytes: queue.flying_bytes(),
            lag_seconds: oldest.map_or(0.0, seconds_since),
            out_of_sync_bytes: side.out_of_sync.bytes(),
            out_of_sync_ranges: side.out_of_sync.count() as u64,
            mode_switches: policy.switches(),
            write_median_ns: policy.median_ns(),
            writes: side.counts.writes.get(),
            written_bytes: side.counts.written_bytes.get(),
            merged: side.counts.merged.get(),
            reads: side.counts.reads.get(),
            errors: side.counts.errors.get(),
            resynced_bytes: side.counts.resynced_bytes.get(),
            resync_seconds_left: side.rebuild.get().and_then(|progress| {
                let left_bytes = side
                    .out_of_sync
                    .bytes()
                    .saturating_sub(progress.ahead_bytes);
                progress.seconds_left(self.rt.now(), left_bytes)
            }),
            resync_passed_bytes: side.rebuild.get().map(|progress| progress.passed_bytes),
            resync_stalled_seconds: lacks_some.then_some(advanced_seconds),
            corrupt_blocks: side.counts.corrupt.get(),
            log_held_up_seconds: side
                .store()
                .map_or(0.0, |store| store.log_held_up_seconds()),
            log_full: side.store().is_some_and(|store| store.is_short_of_room()),
        }
    }
}

impl Shared {
    /// Reports the statistics that exist only on sides with logs.
    pub(super) fn statistics_of_sides(&self, out: &mut dyn StatisticVisitor) {
        let Some(volume) = &self.membership.superblocks else {
            return;
        };
        for side in self.sides.iter() {
            let part = &side.name;
            let mark = volume.state(side.index).map_or("none", SideState::name);
            out.statistic(part, "mark", Statistic::State(mark.to_owned()));
            let lost = self.lost_if_gone(side.index).bytes();
            out.statistic(part, "sole_copy_bytes", Statistic::Gauge(lost as f64));
            let repaired = Statistic::Counter(side.counts.repaired_blocks.get());
            out.statistic(part, "corrupt_repaired", repaired);
            let lost = Statistic::Counter(side.counts.lost_blocks.get());
            out.statistic(part, "lost_blocks", lost);
            if let Some(device_path) = &side.device_path {
                device_path.statistics(part, out);
            }
            if let Some(store) = side.store() {
                store.statistics(part, out);
            }
        }
    }

    /// Returns the ranges of acknowledged content that only side `index` holds. This content would
    /// be lost with the side. A side that is not present is treated as lacking everything.
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

    /// Returns the ranges of acknowledged content that the side lacks; all ranges if it is not
    /// present.
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
    /// Reports the fields of the status as named statistics.
    pub(super) fn statistics(&self, out: &mut dyn StatisticVisitor) {
        out.statistic("", "state", Statistic::State(self.state.to_owned()));
        if let Some(because) = self.read_only_because {
            let because = Statistic::State(because.to_owned());
            out.statistic("", "read_only_because", because);
        }
        out.statistic(
            "",
            "degraded",
            Statistic::Gauge(f64::from(u8::from(self.degraded))),
        );
        out.statistic(
            "",
            "exposed_bytes",
            Statistic::Gauge(self.exposed_bytes as f64),
        );
        out.statistic(
            "",
            "exposed_seconds",
            Statistic::Gauge(self.exposed_seconds),
        );
        out.statistic(
            "",
            "exposed_bytes_peak",
            Statistic::Gauge(self.exposed_bytes_peak as f64),
        );
        if let Some(bound) = self.exposed_bytes_max {
            out.statistic("", "exposed_bytes_max", Statistic::Gauge(bound as f64));
        }
        if let Some(bound) = self.exposed_seconds_max {
            out.statistic("", "exposed_seconds_max", Statistic::Gauge(bound));
        }
        let held_up = Statistic::Gauge(self.writes_held_up_seconds);
        out.statistic("", "writes_held_up_seconds", held_up);
        out.statistic(
            "",
            "acknowledged_early",
            Statistic::Counter(self.acknowledged_early),
        );
        out.statistic(
            "",
            "saved_from_freezes",
            Statistic::Counter(self.saved_from_freezes),
        );
        out.statistic("", "hedged_reads", Statistic::Counter(self.hedged_reads));
        out.statistic(
            "",
            "backpressured_writes",
            Statistic::Counter(self.backpressured_writes),
        );
        out.statistic("", "lost_reads", Statistic::Counter(self.lost_reads));
        if let Some(room) = self.room {
            let (content, all) = (room.content_bytes as f64, room.room_bytes as f64);
            out.statistic("", "content_bytes", Statistic::Gauge(content));
            out.statistic("", "room_bytes", Statistic::Gauge(all));
            let refused = Statistic::Counter(room.refused_writes);
            out.statistic("", "refused_writes", refused);
        }
        if let Some(scrub) = &self.scrub {
            scrub.statistics(out);
        }
        if !self.operations.is_empty() {
            let words: Vec<String> = self.operations.iter().map(|o| o.words()).collect();
            out.statistic("", "operations", Statistic::State(words.join(", ")));
        }
        if let Some(sides) = &self.sides_to_name {
            let line = super::sides_line(sides);
            out.statistic("", "to_configure", Statistic::State(line));
        }
        for side in self.sides.iter() {
            let part = &side.name;
            out.statistic(part, "health", Statistic::State(side.health.to_owned()));
            if let Some(reason) = side.absent_reason {
                out.statistic(part, "absent_reason", Statistic::State(reason.to_string()));
            }
            let health_seconds = Statistic::Gauge(side.health_seconds);
            out.statistic(part, "health_seconds", health_seconds);
            if let Some(seconds) = side.patience_seconds {
                out.statistic(part, "patience_seconds", Statistic::Gauge(seconds));
            }
            out.statistic(part, "silences", Statistic::Counter(side.silences));
            if let Some(operation) = side.operation {
                out.statistic(part, "operation", Statistic::State(operation.to_owned()));
            }
            out.statistic(part, "mode", Statistic::State(side.mode.to_owned()));
            out.statistic(
                part,
                "stuck",
                Statistic::Gauge(f64::from(u8::from(side.stuck))),
            );
            out.statistic(
                part,
                "waiting_bytes",
                Statistic::Gauge(side.waiting_bytes as f64),
            );
            out.statistic(
                part,
                "in_flight_bytes",
                Statistic::Gauge(side.in_flight_bytes as f64),
            );
            out.statistic(part, "lag_seconds", Statistic::Gauge(side.lag_seconds));
            out.statistic(
                part,
                "out_of_sync_bytes",
                Statistic::Gauge(side.out_of_sync_bytes as f64),
            );
            let ranges = Statistic::Gauge(side.out_of_sync_ranges as f64);
            out.statistic(part, "out_of_sync_ranges", ranges);
            out.statistic(
                part,
                "mode_switches",
                Statistic::Counter(side.mode_switches),
            );
            if let Some(median_ns) = side.write_median_ns {
                out.statistic(part, "write_median_ns", Statistic::Gauge(median_ns as f64));
            }
            out.statistic(part, "writes", Statistic::Counter(side.writes));
            out.statistic(
                part,
                "written_bytes",
                Statistic::Counter(side.written_bytes),
            );
            out.statistic(part, "merged", Statistic::Counter(side.merged));
            out.statistic(part, "reads", Statistic::Counter(side.reads));
            out.statistic(part, "errors", Statistic::Counter(side.errors));
            out.statistic(
                part,
                "resynced_bytes",
                Statistic::Counter(side.resynced_bytes),
            );
            if let Some(seconds) = side.resync_seconds_left {
                out.statistic(part, "resync_left_seconds", Statistic::Gauge(seconds));
            }
            if let Some(bytes) = side.resync_passed_bytes {
                let passed = Statistic::Gauge(bytes as f64);
                out.statistic(part, "resync_passed_bytes", passed);
            }
            if let Some(seconds) = side.resync_stalled_seconds {
                out.statistic(part, "resync_stalled_seconds", Statistic::Gauge(seconds));
            }
            let held_up = Statistic::Gauge(side.log_held_up_seconds);
            out.statistic(part, "log_held_up_seconds", held_up);
            out.statistic(
                part,
                "corrupt_found",
                Statistic::Counter(side.corrupt_blocks),
            );
        }
    }
}
