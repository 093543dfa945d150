//! The decisions of a hetero-mirror: when a side counts as delayed, what it is given next, and
//! when a write may be acknowledged early.
//!
//! Source: the hetero-mirroring paper (its HM_WRITE and HM_DELAY_WRITE), whose rules are all here
//! as settings, and what its simulation taught: the fixed wait limit of 1.3 makes sides flap
//! between modes, and without a bound the data that has one copy only grows without end.
//!
//! One [`SidePolicy`] per side. It must never see data, and never wait.

use crate::latency::Quantiles;

/// How long a side may take before it counts as delayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WaitLimit {
    /// The paper's: this many times the first side's time, counted from the first completion.
    Factor(f64),
    /// From the side's own behaviour: this many times its own quantile, counted from the start of
    /// the operation.
    Own {
        /// Which quantile, 0 to 1.
        quantile: f64,
        /// How many times it.
        multiple: f64,
    },
}

/// When a write is acknowledged, as far as the bounds allow it to be early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckRule {
    /// When the first side has it (step 2 of the paper's HM_WRITE).
    First,
    /// When all sides have it or the wait limit has passed (the paper's results section).
    WaitLimit,
}

/// In which order a delayed side catches up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOrder {
    /// From the head of the queue, one by one: the paper's HM_DELAY_WRITE to the letter.
    Fifo,
    /// An elevator over the queue, adjacent writes merged.
    Sorted,
}

/// When a delayed side counts as in time again, which the paper leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackInTime {
    /// When its queue is empty.
    Drained,
    /// When the writes that exceeded the limit are done ("for the time being", read closely). What
    /// is in its delay queue waits until the side is idle.
    LateDone,
}

/// The settings of a hetero-mirror.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeteroRules {
    /// When a side is delayed.
    pub wait_limit: WaitLimit,
    /// When a write is acknowledged.
    pub ack: AckRule,
    /// How a delayed side catches up.
    pub drain: DrainOrder,
    /// When a delayed side counts as in time again.
    pub back_in_time: BackInTime,
    /// Acknowledged bytes that not all healthy sides hold, at most; `u64::MAX` for no bound.
    pub exposure_bytes_max: u64,
    /// Their age, at most; `u64::MAX` for no bound.
    pub exposure_age_ns_max: u64,
    /// Time between two mode switches of a side, at least.
    pub mode_dwell_ns: u64,
    /// Silence after which a side with work counts as absent.
    pub absent_after_ns: u64,
    /// Operations that a side in time is given at once, at most.
    pub depth_max: usize,
}

impl Default for HeteroRules {
    /// Acknowledge first, within 64 MiB and 5 s; a side is delayed past four times its own median;
    /// sorted drain.
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
    /// The paper to the letter: 1.3, no bounds, no dwell, drained from the head.
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

    /// True for the paper's way of sending writes: at once to every side in time.
    pub fn is_paper(&self) -> bool {
        self.back_in_time == BackInTime::LateDone
    }

    /// May a write of `len` be acknowledged before all healthy sides have it?
    pub fn may_acknowledge_early(&self, exposed_bytes: u64, oldest_ns: u64, len: u64) -> bool {
        exposed_bytes.saturating_add(len) <= self.exposure_bytes_max
            && oldest_ns <= self.exposure_age_ns_max
    }

    /// True when the volume should catch up before all else: half of a bound is used.
    pub fn is_pressed(&self, exposed_bytes: u64, oldest_ns: u64) -> bool {
        exposed_bytes > self.exposure_bytes_max / 2 || oldest_ns > self.exposure_age_ns_max / 2
    }
}

/// Whether a side takes writes as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Writes go to the side at once.
    InTime,
    /// Writes go to its delay queue, which is drained in batches.
    Delayed,
}

/// What a side's queue looks like when it asks what to do next.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueView {
    /// A write waits that no other side is likely to take in time.
    pub urgent: bool,
    /// Something waits.
    pub waiting: bool,
    /// Operations that the side is working on.
    pub in_flight: usize,
    /// Those of them that are drained batches.
    pub drain_in_flight: usize,
    /// The volume should catch up: half of a bound is used, or a flush waits.
    pub pressed: bool,
    /// The side keeps a log: it takes everything in sequence, whatever its mode.
    pub logged: bool,
}

/// What to give a side next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The oldest urgent write.
    Urgent,
    /// The oldest write that waits.
    InOrder,
    /// The next batch of the elevator.
    Batch,
    /// Nothing for now.
    Nothing,
}

/// Samples after which a side's own quantiles are believed.
const SAMPLES_MIN: u32 = 16;
/// A side's own limit before that, and the least it can be: finer than this, scheduling noise of
/// the machine would pass for a delayed device.
const LIMIT_NS_MIN: u64 = 1_000_000;
const LIMIT_NS_UNKNOWN: u64 = 100_000_000;
/// Operations in flight on a side in time: as many as it does in this time, but some.
const AHEAD_NS: u64 = 20_000_000;
const DEPTH_MIN: usize = 8;
/// Batches in flight when nothing presses: as many as fit in this time, so that an urgent write
/// does not queue long behind them.
const DRAIN_AHEAD_NS: u64 = 4_000_000;
/// Batches in flight, at most.
const DRAIN_DEPTH_MAX: usize = 16;
/// Batches in flight when catching up presses: enough for a disk to choose from.
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
    /// A side in time, of which nothing is known yet.
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

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Mode switches so far.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    /// The typical time of an operation; `None` before enough of them are known.
    pub fn median_ns(&self) -> Option<u64> {
        (self.in_time_latency.samples() >= SAMPLES_MIN).then_some(self.median_ns)
    }

    /// An operation of the side has completed that was started with `ahead` others in flight. Only
    /// those that found the side idle teach what it can do, or else every backlog would make the
    /// next one acceptable; and none of them teaches more than twice the limit, or else freezes
    /// would.
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

    /// The time an operation may take that is started with `ahead` others in flight, by the side's
    /// own behaviour; `None` when the rule is the paper's. A side that works on one at a time needs
    /// a median for each of those before it.
    pub fn own_limit_ns(&self, ahead: usize) -> Option<u64> {
        let queued_ns = self.median_ns.saturating_mul(ahead as u64);
        matches!(self.rules.wait_limit, WaitLimit::Own { .. })
            .then(|| self.limit_ns.saturating_add(queued_ns))
    }

    /// Operations the side is given at once: what it does in [`AHEAD_NS`] one after the other, so
    /// that order and urgency are decided here and not in the device's queue.
    fn depth(&self) -> usize {
        match self.rules.wait_limit {
            WaitLimit::Factor(_) => self.rules.depth_max,
            WaitLimit::Own { .. } => {
                let ahead = (AHEAD_NS / self.median_ns.max(1)) as usize;
                ahead.max(DEPTH_MIN).min(self.rules.depth_max)
            }
        }
    }

    /// The time the others get after the first side has completed a write in `first_ns`; `None`
    /// when the rule is the side's own.
    pub fn limit_after_first_ns(&self, first_ns: u64) -> Option<u64> {
        match self.rules.wait_limit {
            WaitLimit::Factor(factor) => Some((first_ns as f64 * factor) as u64),
            WaitLimit::Own { .. } => None,
        }
    }

    /// The side has exceeded its limit. True when it becomes delayed by this.
    pub fn overdue(&mut self, now_ns: u64) -> bool {
        self.mode == Mode::InTime && self.switch(now_ns, Mode::Delayed)
    }

    /// The side has caught up, by the rule of [`BackInTime`]. True when it becomes in time by this.
    pub fn caught_up(&mut self, now_ns: u64) -> bool {
        self.mode == Mode::Delayed && self.switch(now_ns, Mode::InTime)
    }

    /// Switches unless the last switch is too recent.
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

    /// What the side is given next.
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

    /// A delayed side drains while it is otherwise idle, or when catching up presses.
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
        // A third of the operations freeze for two seconds: the limit stays.
        for round in 0..600 {
            side.completed(if round % 3 == 0 { 2_000 * MS } else { 5 * MS }, 0);
        }
        let limit_ms = side.own_limit_ns(0).unwrap() / MS;
        assert!((20..=21).contains(&limit_ms), "{limit_ms}");
    }

    #[test]
    fn a_backlog_is_no_excuse_but_is_reckoned_with() {
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
