//! Measurements: time, processor time, and the I/O that reached the device.
//!
//! Bytes, reads and flushes come from the block counters of the device, which only this run uses.
//! The counters of the process are not used: for a change of one block they count a whole large
//! page. A cell (one measurement) must never count I/O that was done before its first mark, where
//! the measurement starts. It must never omit I/O that is still in flight at its last mark, where
//! the measurement ends.

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};

const SECTOR_BYTES: u64 = 512;

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time of the monotonic clock in nanoseconds.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the processor time of all threads of this process in nanoseconds, user and system: the
/// sum that getrusage returns, with a finer resolution.
pub fn cpu_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// Returns the cost of the clock: the time between two successive reads of the clock. The caller
/// subtracts this cost from each measured latency.
pub fn clock_cost_ns() -> u64 {
    let mut pairs: Vec<u64> = (0..10_001)
        .map(|_| {
            let start = now_ns();
            now_ns() - start
        })
        .collect();
    pairs.sort_unstable();
    pairs[pairs.len() / 2]
}

/// Histogram of the latencies of one kind of operation.
pub struct Latencies {
    histogram: Histogram<u64>,
    clock_ns: u64,
}

impl Latencies {
    /// Creates an empty histogram. `clock_ns` is the cost of the clock: the time between two
    /// successive reads of the clock, which is subtracted from each latency.
    pub fn new(clock_ns: u64) -> Latencies {
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
        Latencies {
            histogram: histogram.expect("the bounds are in order"),
            clock_ns,
        }
    }

    /// Runs `act` and records its latency.
    pub fn time<T>(&mut self, act: impl FnOnce() -> T) -> T {
        let start = now_ns();
        let result = act();
        self.note(now_ns() - start);
        result
    }

    /// Records a latency: the difference `shown_ns` between two reads of the clock, less the cost
    /// of the clock.
    pub fn note(&mut self, shown_ns: u64) {
        let latency_ns = shown_ns.saturating_sub(self.clock_ns).max(1);
        self.histogram.saturating_record(latency_ns);
    }

    /// Adds the latencies that another thread has recorded.
    pub fn add(&mut self, other: &Latencies) {
        self.histogram
            .add(&other.histogram)
            .expect("both have the same bounds");
    }

    /// Returns count, median and 99th percentile. If each recorded latency covers `parts`
    /// operations, the count is multiplied by `parts` and the nanoseconds are divided by `parts`.
    pub fn summary(&self, parts: u64) -> Value {
        let part = |ns: u64| ns as f64 / parts as f64;
        json!({
            "count": self.histogram.len() * parts,
            "p50_ns": part(self.histogram.value_at_quantile(0.5)),
            "p99_ns": part(self.histogram.value_at_quantile(0.99)),
        })
    }
}

/// I/O counters of a device at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceCounters {
    reads: u64,
    read_sectors: u64,
    writes: u64,
    written_sectors: u64,
    flushes: u64,
}

impl DeviceCounters {
    /// Parses the content of the file `stat` of a block device, which is one line
    /// (Documentation/block/stat.rst).
    fn parse(text: &str) -> Option<DeviceCounters> {
        let fields: Option<Vec<u64>> = text
            .split_whitespace()
            .map(|field| field.parse().ok())
            .collect();
        let fields = fields?;
        Some(DeviceCounters {
            reads: *fields.first()?,
            read_sectors: *fields.get(2)?,
            writes: *fields.get(4)?,
            written_sectors: *fields.get(6)?,
            flushes: *fields.get(15)?,
        })
    }
}

/// The block device below the folder of an engine, with the file of its counters if the counters
/// are to be read.
pub struct Device {
    stat: Option<PathBuf>,
    folder: File,
}

impl Device {
    /// Opens `folder`, which is on the device. `stat` is the file with the counters of the device.
    pub fn new(stat: Option<PathBuf>, folder: &Path) -> Result<Device> {
        let folder = File::open(folder).with_context(|| folder.display().to_string())?;
        Ok(Device { stat, folder })
    }

    /// Writes out the dirty data of the file system. This is done before the I/O counters are read,
    /// so that the I/O for all data written earlier is already in the counters.
    pub fn drain(&self) -> Result<()> {
        rustix::fs::syncfs(&self.folder).context("syncfs")
    }

    /// Returns the present counters of the device, or `None` if no file of counters was given.
    pub fn counters(&self) -> Result<Option<DeviceCounters>> {
        let Some(stat) = &self.stat else {
            return Ok(None);
        };
        let text = std::fs::read_to_string(stat).with_context(|| stat.display().to_string())?;
        let counters = DeviceCounters::parse(&text);
        Ok(Some(counters.with_context(|| {
            format!("{}: not the counters of a device", stat.display())
        })?))
    }
}

/// Returns the I/O of the device between two moments, or null if the counters were not read.
pub fn device_between(before: Option<DeviceCounters>, after: Option<DeviceCounters>) -> Value {
    let (Some(before), Some(after)) = (before, after) else {
        return Value::Null;
    };
    json!({
        "reads": after.reads - before.reads,
        "read_bytes": (after.read_sectors - before.read_sectors) * SECTOR_BYTES,
        "writes": after.writes - before.writes,
        "written_bytes": (after.written_sectors - before.written_sectors) * SECTOR_BYTES,
        "flushes": after.flushes - before.flushes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_device() {
        // The line looks like the statistics of a loop device. It has the fields that the kernel's
        // documentation lists.
        let line = "  100 0 800 5 20 3 160 7 0 9 12 0 0 0 0 11 4\n";
        let counters = DeviceCounters::parse(line).unwrap();
        assert_eq!((counters.reads, counters.read_sectors), (100, 800));
        assert_eq!((counters.writes, counters.written_sectors), (20, 160));
        assert_eq!(counters.flushes, 11);
        // Kernels before 5.5 do not count flushes.
        assert!(DeviceCounters::parse("1 2 3 4 5 6 7 8 9 10 11").is_none());
        assert!(DeviceCounters::parse("none").is_none());
    }

    #[test]
    fn the_clock_is_taken_off_and_medians_are_of_parts() {
        let mut latencies = Latencies::new(50);
        for shown_ns in [10, 1050, 1050] {
            latencies.note(shown_ns);
        }
        let summary = latencies.summary(100);
        assert_eq!(summary["count"], 300);
        let median = summary["p50_ns"].as_f64().unwrap();
        assert!((median - 10.0).abs() < 0.02, "{median}");
    }
}
