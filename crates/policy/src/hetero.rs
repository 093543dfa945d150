//! The decisions of a hetero-mirror: when a side counts as delayed, which operation it is given
//! next, and when a write may be acknowledged early.
//!
//! Source: the hetero-mirroring paper (its HM_WRITE and HM_DELAY_WRITE), all of whose rules are
//! available here as settings, and lessons from its simulation: with the fixed wait limit of 1.3,
//! sides flap between modes, and without a bound the amount of data with only one copy grows
//! without end.
//!
//! There is one [`SidePolicy`] per side. It must never see data, and never wait.

use crate::latency::Quantiles;

/// The time that a side may take before it counts as delayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WaitLimit {
    /// The paper's rule: this multiple of the first side's time, counted from the first completion.
    Factor(f64),
    /// A rule from the side's own latencies: a multiple of its own quantile, counted from the start
    /// of the operation.
    Own {
        /// The quantile, 0 to 1.
        quantile: f64,
        /// The multiple of the quantile.
        multiple: f64,
    },
}

/// The time when a write is acknowledged, as far as the bounds permit an early acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRule {
    /// When the first side has completed the write (step 2 of the paper's HM_WRITE).
    First,
    /// When all sides have completed the write or the wait limit has passed (the paper's results
    /// section).
    WaitLimit,
}

/// The order in which a delayed side catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrder {
    /// From the head of the queue, one by one: the paper's HM_DELAY_WRITE to the letter.
    Fifo,
    /// An elevator over the queue, with adjacent writes merged.
    Sorted,
}

/// The time when a delayed side counts as in time again, which the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackInTime {
    /// When its delay queue is empty.
    Drained,
    /// When the writes that exceeded the limit have completed ("for the time being", read closely).
    /// Writes in its delay queue wait until the side is idle.
    LateDone,
}

/// The settings of a hetero-mirror.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeteroRules {
    /// When a side counts as delayed.
    pub wait_limit: WaitLimit,
    /// When a write is acknowledged.
    pub ack: AckRule,
    /// How a delayed side catches up.
    pub drain: DrainOrder,
    /// When a delayed side counts as in time again.
    pub back_in_time: BackInTime,
    /// Maximum number of acknowledged bytes that not all healthy sides hold; `u64::MAX` for no
    /// bound.
    pub exposure_bytes_max: u64,
    /// Maximum age of such bytes; `u64::MAX` for no bound.
    pub exposure_age_ns_max: u64,
    /// Minimum time between two mode switches of a side.
    pub mode_dwell_ns: u64,
    /// Time of silence after which a side with work counts as absent.
    pub absent_after_ns: u64,
    /// Maximum number of operations in flight on a side in time.
    pub depth_max: usize,
}

impl Default for HeteroRules {
    /// Returns rules that acknowledge at the first side, within 64 MiB and 5 s; a side is delayed
    /// beyond four times its own median; the drain is sorted.
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
            depth_max: 64,
        }
    }
}

impl HeteroRules {
    /// Returns the paper's rules to the letter: 1.3, no bounds, no dwell time, drained from the
    /// head.
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
            depth_max: usize::MAX,
        }
    }

    /// Returns true for the paper's way of sending writes: at once to every side in time.
    pub fn is_paper(&self) -> bool {
        self.back_in_time == BackInTime::LateDone
    }

    /// Returns true if a write of `len` may be acknowledged before all healthy sides have it.
    pub fn may_acknowledge_early(&self, exposed_bytes: u64, oldest_ns: u64, len: u64) -> bool {
        exposed_bytes.saturating_add(len) <= self.exposure_bytes_max
            && oldest_ns <= self.exposure_age_ns_max
    }

    /// Returns true when the volume should catch up before all other work: half of a bound is used.
    pub fn is_pressed(&self, exposed_bytes: u64, oldest_ns: u64) -> bool {
        exposed_bytes > self.exposure_bytes_max / 2 || oldest_ns > self.exposure_age_ns_max / 2
    }
}

/// The mode of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Writes go to the side at once.
    InTime,
    /// Writes go to the side's delay queue, which is drained in batches.
    Delayed,
}

/// The state of a side's queue when it asks for its next operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueView {
    /// True when a write waits that no other side is likely to complete in time.
    pub urgent: bool,
    /// True when a write waits.
    pub waiting: bool,
    /// Number of operations that the side is working on.
    pub in_flight: usize,
    /// Number of drained batches among them.
    pub drain_in_flight: usize,
    /// True when the volume should catch up: half of a bound is used, or a flush waits.
    pub pressed: bool,
    /// True when the side keeps a log: it takes all writes in sequence, whatever its mode.
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

/// Number of samples after which a side's own quantiles are used.
const SAMPLES_MIN: u32 = 16;
/// The minimum of a side's own limit, and the limit before enough samples are known. Below the
/// minimum, scheduling noise of the machine would look like a delayed device.
const LIMIT_NS_MIN: u64 = 1_000_000;
const LIMIT_NS_UNKNOWN: u64 = 100_000_000;
/// Time whose work a side in time may have in flight, and the minimum number of such operations.
const AHEAD_NS: u64 = 20_000_000;
const DEPTH_MIN: usize = 8;
/// Time whose work may be in flight as batches when there is no pressure, so that an urgent write
/// does not queue long behind them.
const DRAIN_AHEAD_NS: u64 = 4_000_000;
/// Maximum number of batches in flight.
const DRAIN_DEPTH_MAX: usize = 16;
/// Minimum limit of batches in flight under pressure to catch up: enough for a disk to reorder.
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
    /// Creates the state of a side in time whose latencies are not known yet.
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

    /// Returns the median latency of an operation; `None` before enough samples are known.
    pub fn median_ns(&self) -> Option<u64> {
        (self.in_time_latency.samples() >= SAMPLES_MIN).then_some(self.median_ns)
    }

    /// Records the completion of an operation of the side that was started with `ahead` others in
    /// flight. Once there are enough samples, only operations that found the side idle are counted,
    /// since otherwise every backlog would make the next one acceptable. No sample counts as more
    /// than twice the limit, since otherwise freezes would raise it.
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

    /// Returns the time that an operation may take which is started with `ahead` others in flight,
    /// by the side's own latencies; `None` when the rule is the paper's. A side that serves one
    /// operation at a time needs a median for each of the others.
    pub fn own_limit_ns(&self, ahead: usize) -> Option<u64> {
        let queued_ns = self.median_ns.saturating_mul(ahead as u64);
        matches!(self.rules.wait_limit, WaitLimit::Own { .. })
            .then(|| self.limit_ns.saturating_add(queued_ns))
    }

    /// Returns the number of operations that the side is given at once: the number it completes in
    /// [`AHEAD_NS`] one after another, so that order and urgency are decided here and not in the
    /// device's queue.
    fn depth(&self) -> usize {
        match self.rules.wait_limit {
            WaitLimit::Factor(_) => self.rules.depth_max,
            WaitLimit::Own { .. } => {
                let ahead = (AHEAD_NS / self.median_ns.max(1)) as usize;
                ahead.max(DEPTH_MIN).min(self.rules.depth_max)
            }
        }
    }

    /// Returns the time that the other sides get after the first side has completed a write in
    /// `first_ns`; `None` when the rule is the side's own.
    pub fn limit_after_first_ns(&self, first_ns: u64) -> Option<u64> {
        match self.rules.wait_limit {
            WaitLimit::Factor(factor) => Some((first_ns as f64 * factor) as u64),
            WaitLimit::Own { .. } => None,
        }
    }

    /// Records that the side has exceeded its limit. Returns true when this makes it delayed.
    pub fn overdue(&mut self, now_ns: u64) -> bool {
        self.mode == Mode::InTime && self.switch(now_ns, Mode::Delayed)
    }

    /// Records that the side has caught up, by the rule of [`BackInTime`]. Returns true when this
    /// makes it in time.
    pub fn caught_up(&mut self, now_ns: u64) -> bool {
        self.mode == Mode::Delayed && self.switch(now_ns, Mode::InTime)
    }

    /// Switches the mode unless the last switch is too recent.
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

    /// Returns true if a delayed side may start a batch: while it is otherwise idle, or under
    /// pressure.
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
        // A third of the operations freeze for two seconds, and the limit stays.
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
