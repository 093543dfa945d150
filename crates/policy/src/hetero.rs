//! The decisions of a hetero-mirror, a mirror whose sides differ in speed: when a side is treated
//! as delayed, which operation a side is given next, and when a write is allowed to be acknowledged
//! early.
//!
//! Source: the hetero-mirroring paper (its HM_WRITE and HM_DELAY_WRITE), and experience from its
//! simulation. All rules of the paper are available as settings. In the simulation, sides switched
//! back and forth between modes with the paper's fixed wait limit of 1.3, and without a bound the
//! amount of data with only one copy grew without limit.
//!
//! There is one [`SidePolicy`] per side. It must never access data, and never wait.

use crate::latency::Quantiles;

/// The time limit of an operation. If an operation exceeds its limit, its side is treated as
/// delayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WaitLimit {
    /// The rule of the hetero-mirroring paper. The limit begins when the first side has completed
    /// the write. Its length is this multiple of the time in which the first side completed the
    /// write.
    Factor(f64),
    /// A rule based on the side's own latencies. The time limit begins at the start of the
    /// operation, and is a multiple of a quantile of these latencies.
    Own {
        /// The quantile, 0 to 1.
        quantile: f64,
        /// The multiple of the quantile.
        multiple: f64,
    },
}

/// The event after which a write is acknowledged, provided that the bounds permit an early
/// acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRule {
    /// The first side has completed the write (step 2 of the paper's HM_WRITE).
    First,
    /// All sides have completed the write, or the wait limit has passed (from the results section
    /// of the hetero-mirroring paper).
    WaitLimit,
}

/// The order in which the queue of a delayed side is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrder {
    /// One write at a time, from the head of the delay queue, exactly as the paper's
    /// HM_DELAY_WRITE.
    Fifo,
    /// Elevator order over the whole delay queue, with adjacent writes merged.
    Sorted,
}

/// The condition under which a delayed side switches back to the mode `InTime`. The paper does not
/// define this condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackInTime {
    /// The delay queue of the side is empty.
    Drained,
    /// A delayed side switches back as soon as the writes that exceeded the limit have completed.
    /// This is a close reading of the paper's "for the time being". Other writes in the delay queue
    /// of the side wait until the side is idle.
    LateDone,
}

/// The settings of a hetero-mirror.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeteroRules {
    /// The limit beyond which a side is treated as delayed.
    pub wait_limit: WaitLimit,
    /// When a write is acknowledged.
    pub ack: AckRule,
    /// How a delayed side catches up.
    pub drain: DrainOrder,
    /// When a delayed side is treated as in time again.
    pub back_in_time: BackInTime,
    /// Maximum number of acknowledged bytes that are not on every healthy side yet; `u64::MAX` for
    /// no bound.
    pub exposure_bytes_max: u64,
    /// Maximum age of acknowledged bytes that are not on every healthy side yet; `u64::MAX` for no
    /// bound.
    pub exposure_age_ns_max: u64,
    /// Minimum time between two mode switches of a side.
    pub mode_dwell_ns: u64,
    /// Timeout after which a side that has outstanding requests and completes none of them is
    /// treated as absent.
    pub absent_after_ns: u64,
    /// Silence in nanoseconds after which a side is ejected for the first time if writes wait
    /// because of it; `u64::MAX` if the writes wait until the side is absent.
    pub silence_ns_max: u64,
    /// Maximum number of operations in flight on a side that is not delayed.
    pub depth_max: usize,
}

impl Default for HeteroRules {
    /// Returns rules that acknowledge a write when the first side has completed it, within bounds
    /// of 64 MiB and 5 s. A side is delayed if an operation takes longer than four times the side's
    /// own median latency. The delay queue of a delayed side is drained in sorted order.
    fn default() -> HeteroRules {
        HeteroRules {
            wait_limit: WaitLimit::Own {
                quantile: 0.5,
                multiple: 4.0,
            },
            ack: AckRule::First,
            drain: DrainOrder::Sorted,
            back_in_time: BackInTime::Drained,
            exposure_bytes_max: 64 << 20,
            exposure_age_ns_max: 5_000_000_000,
            mode_dwell_ns: 1_000_000_000,
            absent_after_ns: 30_000_000_000,
            silence_ns_max: 1_000_000_000,
            depth_max: 64,
        }
    }
}

impl HeteroRules {
    /// Returns exactly the paper's rules: a wait limit of 1.3, no bounds, no minimum time between
    /// mode switches, and draining from the head of the queue.
    pub fn paper(ack: AckRule) -> HeteroRules {
        HeteroRules {
            wait_limit: WaitLimit::Factor(1.3),
            ack,
            drain: DrainOrder::Fifo,
            back_in_time: BackInTime::LateDone,
            exposure_bytes_max: u64::MAX,
            exposure_age_ns_max: u64::MAX,
            mode_dwell_ns: 0,
            absent_after_ns: u64::MAX,
            silence_ns_max: u64::MAX,
            depth_max: usize::MAX,
        }
    }

    /// Returns true for the paper's way of sending writes, which sends a write immediately to every
    /// side that is not delayed.
    pub fn is_paper(&self) -> bool {
        self.back_in_time == BackInTime::LateDone
    }

    /// Returns true if a write of `len` bytes is allowed to be acknowledged before all healthy
    /// sides have completed it. `exposed_bytes` and `oldest_ns` are the amount and the greatest age
    /// of acknowledged bytes that are not on every healthy side.
    pub fn may_acknowledge_early(&self, exposed_bytes: u64, oldest_ns: u64, len: u64) -> bool {
        exposed_bytes.saturating_add(len) <= self.exposure_bytes_max
            && oldest_ns <= self.exposure_age_ns_max
    }

    /// Returns true if unreplicated bytes must be copied to the other sides before any other work
    /// is done. This is the case if the amount or the age of these bytes exceeds half of its bound.
    /// `exposed_bytes` and `oldest_ns` are the amount and the greatest age of acknowledged bytes
    /// that are not on every healthy side.
    pub fn is_pressed(&self, exposed_bytes: u64, oldest_ns: u64) -> bool {
        exposed_bytes > self.exposure_bytes_max / 2 || oldest_ns > self.exposure_age_ns_max / 2
    }
}

/// The mode of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Writes are sent to the side immediately.
    InTime,
    /// Writes are added to the side's delay queue, which is drained in batches.
    Delayed,
}

/// The state of a side's queue at the time when the side can start another operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueView {
    /// True when an urgent write waits. It is sent before the other waiting writes.
    pub urgent: bool,
    /// True when a write waits.
    pub waiting: bool,
    /// Number of operations in flight on the side.
    pub in_flight: usize,
    /// Number of batches from the delay queue among the operations in flight.
    pub drain_in_flight: usize,
    /// True when the volume must catch up: half of a bound on unreplicated bytes is used, or a
    /// flush waits.
    pub pressed: bool,
    /// True when the side has a log. Such a side receives all writes in sequence, whatever its
    /// mode.
    pub logged: bool,
}

/// The next operation for a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The oldest urgent write.
    Urgent,
    /// The oldest waiting write.
    InOrder,
    /// The next batch of the elevator.
    Batch,
    /// No operation for now.
    Nothing,
}

/// Minimum number of samples for the quantiles of a side to be used.
const SAMPLES_MIN: u32 = 16;
/// `LIMIT_NS_MIN` is the minimum of the latency limit that is computed from a side's own latencies.
/// A lower limit would take scheduling noise of the machine for a delayed device.
/// `LIMIT_NS_UNKNOWN` is the limit until there are enough samples.
const LIMIT_NS_MIN: u64 = 1_000_000;
const LIMIT_NS_UNKNOWN: u64 = 100_000_000;
/// `AHEAD_NS` and `DEPTH_MIN` determine the maximum number of operations in flight on a side that
/// is not delayed: the number of operations that the side completes in `AHEAD_NS`, but at least
/// `DEPTH_MIN`.
const AHEAD_NS: u64 = 20_000_000;
const DEPTH_MIN: usize = 8;
/// Time that limits the batches in flight from the delay queue of a side while there is no pressure
/// to catch up. The maximum number of these batches is the number of operations that the side
/// completes in this time. An urgent write therefore waits only a short time for these batches.
const DRAIN_AHEAD_NS: u64 = 4_000_000;
/// Maximum number of batches from the delay queue in flight on a side.
const DRAIN_DEPTH_MAX: usize = 16;
/// Minimum of the limit on batches in flight while there is pressure to catch up. With this number
/// of batches in flight, a disk has enough batches to reorder.
const DRAIN_DEPTH_PRESSED_MIN: usize = 8;

/// The state of one side.
#[derive(Clone, Debug)]
pub struct SidePolicy {
    rules: HeteroRules,
    mode: Mode,
    switched_ns: Option<u64>,
    switches: u64,
    in_time_latency: Quantiles,
    median_ns: u64,
    limit_ns: u64,
    since_update: u32,
}

impl SidePolicy {
    /// Creates the state of a side in the mode [`InTime`](Mode::InTime), without latency samples.
    pub fn new(rules: HeteroRules) -> SidePolicy {
        SidePolicy {
            rules,
            mode: Mode::InTime,
            switched_ns: None,
            switches: 0,
            in_time_latency: Quantiles::new(512),
            median_ns: LIMIT_NS_UNKNOWN,
            limit_ns: LIMIT_NS_UNKNOWN,
            since_update: 0,
        }
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the number of mode switches so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// Returns the median latency of an operation; `None` while there are too few samples.
    pub fn median_ns(&self) -> Option<u64> {
        (self.in_time_latency.samples() >= SAMPLES_MIN).then_some(self.median_ns)
    }

    /// Records the completion of an operation of the side. When this operation was started, `ahead`
    /// other operations were in flight.
    ///
    /// Once there are enough samples, only operations that were started on an idle side are
    /// recorded. Otherwise every backlog would raise the limit for the next backlog. A sample is
    /// recorded as at most twice the limit. Otherwise a device that freezes for a time would raise
    /// its own limit.
    pub fn completed(&mut self, latency_ns: u64, ahead: usize) {
        if ahead > 0 && self.in_time_latency.samples() >= SAMPLES_MIN {
            return;
        }
        self.in_time_latency
            .record(latency_ns.min(self.limit_ns.saturating_mul(2)));
        self.since_update += 1;
        let samples = self.in_time_latency.samples();
        if samples >= SAMPLES_MIN && (self.since_update >= 16 || samples == SAMPLES_MIN) {
            self.since_update = 0;
            self.update_limit();
        }
    }

    fn update_limit(&mut self) {
        let quantile = |q| {
            self.in_time_latency
                .quantile_ns(q)
                .unwrap_or(LIMIT_NS_UNKNOWN)
        };
        self.median_ns = quantile(0.5);
        if let WaitLimit::Own {
            quantile: q,
            multiple,
        } = self.rules.wait_limit
        {
            let limit = quantile(q) as f64 * multiple;
            self.limit_ns = (limit as u64).max(LIMIT_NS_MIN);
        }
    }

    /// Returns the time limit of an operation that is started with `ahead` other operations in
    /// flight, based on the side's own latencies; `None` under the paper's rule. The limit grows by
    /// one median latency for each of the other operations, as for a side that serves one operation
    /// at a time.
    pub fn own_limit_ns(&self, ahead: usize) -> Option<u64> {
        let queued_ns = self.median_ns.saturating_mul(ahead as u64);
        matches!(self.rules.wait_limit, WaitLimit::Own { .. })
            .then(|| self.limit_ns.saturating_add(queued_ns))
    }

    /// Returns the maximum number of operations in flight on the side, which never exceeds
    /// `depth_max`. With `WaitLimit::Own`, it is the number that the side completes in [`AHEAD_NS`]
    /// one after another, but at least [`DEPTH_MIN`]. A small number keeps the decisions about
    /// order and urgency in this policy instead of the device's queue.
    fn depth(&self) -> usize {
        match self.rules.wait_limit {
            WaitLimit::Factor(_) => self.rules.depth_max,
            WaitLimit::Own { .. } => {
                let ahead = (AHEAD_NS / self.median_ns.max(1)) as usize;
                ahead.max(DEPTH_MIN).min(self.rules.depth_max)
            }
        }
    }

    /// Returns the time limit of the other sides, counted from the completion of the write on the
    /// first side. `first_ns` is the time in which the first side completed the write. Returns
    /// `None` if the limit is based on each side's own latencies.
    pub fn limit_after_first_ns(&self, first_ns: u64) -> Option<u64> {
        match self.rules.wait_limit {
            WaitLimit::Factor(factor) => Some((first_ns as f64 * factor) as u64),
            WaitLimit::Own { .. } => None,
        }
    }

    /// Records that an operation of the side has exceeded the latency limit of the side. Returns
    /// true if the side becomes delayed.
    pub fn overdue(&mut self, now_ns: u64) -> bool {
        self.mode == Mode::InTime && self.switch(now_ns, Mode::Delayed)
    }

    /// Records that the side has caught up, by the rule of [`BackInTime`]. Returns true if the side
    /// is no longer delayed.
    pub fn caught_up(&mut self, now_ns: u64) -> bool {
        self.mode == Mode::Delayed && self.switch(now_ns, Mode::InTime)
    }

    /// Switches to `mode` unless the last switch is too recent; returns true if the mode was
    /// switched.
    fn switch(&mut self, now_ns: u64, mode: Mode) -> bool {
        let too_soon = self
            .switched_ns
            .is_some_and(|switched| now_ns.saturating_sub(switched) < self.rules.mode_dwell_ns);
        if too_soon {
            return false;
        }
        self.mode = mode;
        self.switched_ns = Some(now_ns);
        self.switches += 1;
        true
    }

    /// Returns the next operation for the side.
    pub fn next(&self, view: QueueView) -> Next {
        if view.urgent && view.in_flight - view.drain_in_flight < self.depth() {
            return Next::Urgent;
        }
        if !view.waiting {
            return Next::Nothing;
        }
        if view.logged {
            let times = if self.mode == Mode::Delayed { 2 } else { 1 };
            let free = view.in_flight < self.rules.depth_max.saturating_mul(times);
            return if free { Next::InOrder } else { Next::Nothing };
        }
        match (self.rules.drain, self.mode) {
            (DrainOrder::Fifo, _) if view.in_flight == 0 => Next::InOrder,
            (DrainOrder::Fifo, _) => Next::Nothing,
            (DrainOrder::Sorted, Mode::InTime) if view.in_flight < self.depth() => Next::InOrder,
            (DrainOrder::Sorted, Mode::Delayed) if self.may_drain(view) => Next::Batch,
            (DrainOrder::Sorted, _) => Next::Nothing,
        }
    }

    /// Returns true if a delayed side is allowed to start another batch from its delay queue. The
    /// number of batches in flight must be below the limit. Unless there is pressure to catch up,
    /// no other operation of the side may be in flight.
    fn may_drain(&self, view: QueueView) -> bool {
        let idle = view.in_flight == view.drain_in_flight;
        (idle || view.pressed) && view.drain_in_flight < self.drain_depth(view.pressed)
    }

    fn drain_depth(&self, pressed: bool) -> usize {
        let ahead = (DRAIN_AHEAD_NS / self.median_ns.max(1)).clamp(1, DRAIN_DEPTH_MAX as u64);
        let ahead = ahead as usize;
        if pressed {
            ahead.max(DRAIN_DEPTH_PRESSED_MIN)
        } else {
            ahead
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn taught(rules: HeteroRules, latency_ms: u64) -> SidePolicy {
        let mut side = SidePolicy::new(rules);
        (0..64).for_each(|_| side.completed(latency_ms * MS, 0));
        side
    }

    #[test]
    fn the_own_limit_follows_the_median_and_not_the_freezes() {
        let mut side = taught(HeteroRules::default(), 5);
        let limit_ms = side.own_limit_ns(0).unwrap() / MS;
        assert!(
            (20..=21).contains(&limit_ms),
            "4 x 5 ms within 6 %: {limit_ms}"
        );
        // A third of the operations take two seconds, as on a device that freezes. The limit must
        // not rise because of them.
        for round in 0..600 {
            side.completed(if round % 3 == 0 { 2_000 * MS } else { 5 * MS }, 0);
        }
        let limit_ms = side.own_limit_ns(0).unwrap() / MS;
        assert!((20..=21).contains(&limit_ms), "{limit_ms}");
    }

    #[test]
    fn a_backlog_is_no_excuse_but_is_taken_into_account() {
        let mut side = taught(HeteroRules::default(), 5);
        let before = side.own_limit_ns(0).unwrap();
        (0..500).for_each(|_| side.completed(160 * MS, 31));
        assert_eq!(side.own_limit_ns(0), Some(before));
        assert_eq!(
            side.own_limit_ns(3),
            Some(before + 3 * side.median_ns().unwrap())
        );
    }

    #[test]
    fn the_own_limit_has_a_floor() {
        let mut side = SidePolicy::new(HeteroRules::default());
        (0..64).for_each(|_| side.completed(20_000, 0));
        assert_eq!(side.own_limit_ns(0), Some(LIMIT_NS_MIN));
    }

    #[test]
    fn the_papers_limit_follows_the_first_side() {
        let side = SidePolicy::new(HeteroRules::paper(AckRule::First));
        assert_eq!(side.limit_after_first_ns(10 * MS), Some(13 * MS));
        assert_eq!(side.own_limit_ns(0), None);
    }

    #[test]
    fn modes_do_not_flap() {
        let mut side = SidePolicy::new(HeteroRules::default());
        assert!(side.overdue(0));
        assert!(!side.overdue(1), "it is delayed already");
        assert!(!side.caught_up(999 * MS), "not within a second");
        assert!(side.caught_up(1_000 * MS));
        assert!(!side.overdue(1_500 * MS));
        assert!(side.overdue(2_000 * MS));
        assert_eq!(side.switches(), 3);
    }

    #[test]
    fn a_delayed_side_drains_when_idle_or_pressed() {
        let mut side = taught(HeteroRules::default(), 15);
        side.overdue(0);
        let idle = QueueView {
            waiting: true,
            ..QueueView::default()
        };
        assert_eq!(side.next(idle), Next::Batch);
        let urgent = QueueView {
            urgent: true,
            ..idle
        };
        assert_eq!(side.next(urgent), Next::Urgent);
        let busy = QueueView {
            in_flight: 1,
            ..idle
        };
        assert_eq!(
            side.next(busy),
            Next::Nothing,
            "an urgent write is being worked on"
        );
        assert_eq!(
            side.next(QueueView {
                pressed: true,
                ..busy
            }),
            Next::Batch
        );
        let draining = QueueView {
            in_flight: 1,
            drain_in_flight: 1,
            ..idle
        };
        assert_eq!(
            side.next(draining),
            Next::Nothing,
            "one 15 ms batch at a time"
        );
        assert_eq!(
            side.next(QueueView {
                pressed: true,
                ..draining
            }),
            Next::Batch
        );
        let deep = QueueView {
            in_flight: 8,
            drain_in_flight: 8,
            pressed: true,
            ..idle
        };
        assert_eq!(side.next(deep), Next::Nothing);
    }

    #[test]
    fn the_paper_takes_one_delayed_write_at_a_time_from_the_head() {
        let mut side = SidePolicy::new(HeteroRules::paper(AckRule::First));
        assert!(side.overdue(0));
        let waiting = QueueView {
            waiting: true,
            ..QueueView::default()
        };
        assert_eq!(side.next(waiting), Next::InOrder);
        assert_eq!(
            side.next(QueueView {
                in_flight: 1,
                ..waiting
            }),
            Next::Nothing
        );
    }

    #[test]
    fn the_bounds_hold_back_early_acknowledgements() {
        let rules = HeteroRules::default();
        let cap = 64 << 20;
        assert!(rules.may_acknowledge_early(cap - 4096, 0, 4096));
        assert!(!rules.may_acknowledge_early(cap - 4095, 0, 4096));
        assert!(!rules.may_acknowledge_early(0, 5_000_000_001, 4096));
        let paper = HeteroRules::paper(AckRule::First);
        assert!(paper.may_acknowledge_early(u64::MAX - 1, u64::MAX, 4096));
    }
}
