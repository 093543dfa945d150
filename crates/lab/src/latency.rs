//! Device latencies over the time of a run: a histogram for each time interval, quantiles over all
//! requests, and the periods in which no request completed.
//!
//! The memory used is bounded, whatever the length of the run and the number of requests: when a
//! run has more than [`INTERVALS_MAX`] intervals, the length of the intervals is doubled. Recording
//! must never change the timing of the requests.

use std::collections::BTreeMap;

use bimetal_sim::experiment::latency::LatencyHistogram;
use serde::{Deserialize, Serialize};

/// Maximum number of intervals of a run.
pub const INTERVALS_MAX: usize = 64;
/// Initial length of an interval: 2^20 ns, about a millisecond.
const INTERVAL_NS_MIN: u64 = 1 << 20;
/// Number of latency classes: two for each power of two, from 2^10 ns (about a microsecond) to 2^37
/// ns (137 s). The first class includes all shorter latencies, and the last class all longer ones.
pub const CLASSES: u8 = 54;
const CLASS_POWER_MIN: u32 = 10;
/// Time in ns without a completion, while requests are in flight, above which the device is
/// considered frozen.
pub const FREEZE_NS: u64 = 100_000_000;

/// Latencies of the reads or of the writes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectionLatency {
    /// Number of requests.
    pub count: u64,
    /// Median latency in ns, to three digits.
    pub p50_ns: u64,
    /// 99th percentile in ns.
    pub p99_ns: u64,
    /// 99.9th percentile in ns.
    pub p999_ns: u64,
    /// Maximum latency in ns.
    pub max_ns: u64,
    /// Number of requests for each interval and latency class, in order. Each element consists of
    /// the interval in which the requests completed, the class, and the number of requests.
    pub map: Vec<(u16, u8, u64)>,
}

/// Latencies of requests over the time of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Length in ns of an interval of both maps.
    pub interval_ns: u64,
    /// Latencies of reads.
    pub reads: DirectionLatency,
    /// Latencies of writes.
    pub writes: DirectionLatency,
    /// Number of periods longer than [`FREEZE_NS`] in which requests were in flight but none
    /// completed.
    pub freezes: u64,
    /// Length in ns of the longest period in which requests were in flight but none completed, even
    /// if it is shorter than [`FREEZE_NS`].
    pub pause_ns_max: u64,
}

/// Returns the class of a latency.
fn class_of(ns: u64) -> u8 {
    let ns = ns.max(1 << CLASS_POWER_MIN);
    let power = ns.ilog2();
    let half = (ns >> (power - 1)) & 1;
    let class = u64::from(power - CLASS_POWER_MIN) * 2 + half;
    class.min(u64::from(CLASSES) - 1) as u8
}

/// Returns the lower bound of a latency class, in ns. For [`CLASSES`], returns the upper bound of
/// the last class.
pub fn class_begin_ns(class: u8) -> u64 {
    let power = 1_u64 << (CLASS_POWER_MIN + u32::from(class) / 2);
    power + if class % 2 == 1 { power / 2 } else { 0 }
}

/// Recorded latencies of one direction.
struct Recorded {
    all: LatencyHistogram,
    map: BTreeMap<(u16, u8), u64>,
}

impl Recorded {
    fn new() -> Recorded {
        Recorded {
            all: LatencyHistogram::default(),
            map: BTreeMap::new(),
        }
    }

    fn halve(&mut self) {
        for ((interval, class), count) in std::mem::take(&mut self.map) {
            *self.map.entry((interval / 2, class)).or_default() += count;
        }
    }

    fn latency(&self) -> DirectionLatency {
        let at = |quantile: f64| self.all.at_ns(quantile);
        let cells = self.map.iter();
        DirectionLatency {
            count: self.all.count(),
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.all.longest_ns(),
            map: cells.map(|((i, c), count)| (*i, *c, *count)).collect(),
        }
    }
}

/// Recorder of request latencies.
pub(crate) struct Recorder {
    interval_ns: u64,
    directions: [Recorded; 2],
    under_way: u64,
    /// Time of the last completion, or of the first start after the device was idle. Used only
    /// while requests are in flight.
    waiting_since_ns: u64,
    freezes: u64,
    pause_ns_max: u64,
}

impl Recorder {
    pub(crate) fn new() -> Recorder {
        Recorder {
            interval_ns: INTERVAL_NS_MIN,
            directions: [Recorded::new(), Recorded::new()],
            under_way: 0,
            waiting_since_ns: 0,
            freezes: 0,
            pause_ns_max: 0,
        }
    }

    /// Records the start of a request. All times are relative to the start of the run.
    pub(crate) fn begin(&mut self, now_ns: u64) {
        if self.under_way == 0 {
            self.waiting_since_ns = now_ns;
        }
        self.under_way += 1;
    }

    /// Records the completion of a request that started at `begun_ns`. `is_write` is `None` for a
    /// flush, which is neither a read nor a write.
    pub(crate) fn end(&mut self, begun_ns: u64, now_ns: u64, is_write: Option<bool>) {
        let pause_ns = now_ns - self.waiting_since_ns;
        self.pause_ns_max = self.pause_ns_max.max(pause_ns);
        self.freezes += u64::from(pause_ns > FREEZE_NS);
        self.waiting_since_ns = now_ns;
        self.under_way -= 1;
        let Some(is_write) = is_write else { return };
        let interval = self.interval_of(now_ns);
        let latency_ns = now_ns - begun_ns;
        let of = &mut self.directions[usize::from(is_write)];
        of.all.record(latency_ns);
        *of.map.entry((interval, class_of(latency_ns))).or_default() += 1;
    }

    /// Returns the number of the interval that contains a time. Doubles the length of the intervals
    /// until the number is below [`INTERVALS_MAX`].
    fn interval_of(&mut self, now_ns: u64) -> u16 {
        while now_ns / self.interval_ns >= INTERVALS_MAX as u64 {
            self.interval_ns *= 2;
            self.directions.iter_mut().for_each(Recorded::halve);
        }
        (now_ns / self.interval_ns) as u16
    }

    pub(crate) fn latencies(&self) -> Latencies {
        let [reads, writes] = &self.directions;
        Latencies {
            interval_ns: self.interval_ns,
            reads: reads.latency(),
            writes: writes.latency(),
            freezes: self.freezes,
            pause_ns_max: self.pause_ns_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn classes_are_halves_of_powers_of_two() {
        assert_eq!((class_of(0), class_of(1023), class_of(1024)), (0, 0, 0));
        // Each power of two is divided into two classes. The classes begin at 1024, so 1536 (1.5
        // times 1024) is the lower bound of class 1.
        assert_eq!((class_of(1535), class_of(1536), class_of(2047)), (0, 1, 1));
        assert_eq!((class_of(2048), class_of(3072)), (2, 3));
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
        for class in 0..CLASSES {
            let begin_ns = class_begin_ns(class);
            assert_eq!(class_of(begin_ns), class);
            assert_eq!(class_of(begin_ns - 1), class.saturating_sub(1));
        }
        assert_eq!(class_begin_ns(CLASSES), 1 << 37);
    }

    #[test]
    fn a_long_run_has_long_intervals_and_loses_no_request() {
        let mut recorder = Recorder::new();
        // For ten minutes, a write with a latency of 2 ms completes in each ms.
        for ms in 2..600_000 {
            recorder.begin((ms - 2) * MS);
            recorder.end((ms - 2) * MS, ms * MS, Some(true));
        }
        let of = recorder.latencies();
        let last = of.writes.map.last().unwrap();
        assert!(
            usize::from(last.0) < INTERVALS_MAX && last.0 >= 32,
            "{last:?}"
        );
        let sum: u64 = of.writes.map.iter().map(|cell| cell.2).sum();
        assert_eq!((sum, of.writes.count), (599_998, 599_998));
        // A latency of 2 ms lies between 1.5 * 2^20 and 2^21 ns, which is the upper half of the
        // range from 2^20 to 2^21 ns. So its class is 2 * (20 - 10) + 1 = 21.
        assert!(of.writes.map.iter().all(|cell| cell.1 == 21));
        assert_eq!(of.reads, DirectionLatency::default());
    }

    #[test]
    fn a_freeze_is_silence_while_something_is_asked() {
        let mut recorder = Recorder::new();
        recorder.begin(0);
        recorder.end(0, 10 * MS, Some(false));
        // The device was idle for a second.
        recorder.begin(1000 * MS);
        recorder.begin(1050 * MS);
        recorder.end(1000 * MS, 1100 * MS, None);
        assert_eq!(
            recorder.latencies().freezes,
            0,
            "100 ms are not more than 100 ms"
        );
        // This completion is 101 ms after the previous completion. The pause is longer than 100 ms,
        // so it is a freeze.
        recorder.end(1050 * MS, 1201 * MS, Some(false));
        let of = recorder.latencies();
        assert_eq!((of.freezes, of.pause_ns_max), (1, 101 * MS));
        assert_eq!(
            (of.reads.count, of.writes.count),
            (2, 0),
            "a flush is none of them"
        );
    }
}
