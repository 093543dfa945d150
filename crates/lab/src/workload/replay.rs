//! Replay of a trace on a device, without a file system: at the recorded times, or as fast as the
//! device completes requests.
//!
//! With recorded times, the latency of a request is measured from the time at which the request is
//! due, not from the time at which it gets a slot. Otherwise the latencies of a device that falls
//! behind would not include the waiting time of requests.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::Instant;
use bimetal_rt::sync::{Semaphore, TaskGroup};
use bimetal_sim::experiment::latency::LatencyHistogram;
use bimetal_trace::{Format, Op, Options, Reader, Record};
use serde::{Deserialize, Serialize};

use super::latency::figures;
use super::{Measured, World, sum};
use crate::files::Program;
use crate::layer::{FileLayer, LoadError};

/// Default and maximum of the number of requests that are replayed from a trace.
pub(super) const COUNT_USUAL: u64 = 100_000;
const COUNT_MAX: u64 = 10_000_000;
/// Default of the maximum number of requests in flight.
pub(super) const DEPTH_USUAL: u32 = 64;
/// Maximum number of blocks of a call; a longer request is split into several calls.
const CALL_BLOCKS_MAX: u64 = 1024;

/// When requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At the times recorded in the trace.
    #[default]
    Recorded,
    /// Each request is sent as soon as a slot for a request in flight is free (a closed loop).
    Closed,
}

/// Parameters of a load that replays a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Path of the trace.
    pub trace: PathBuf,
    /// Name of the format of the trace; detected if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// CRC-32C that the trace file must have, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<String>,
    /// Maximum number of requests to replay.
    pub count: u64,
    /// When the requests arrive.
    pub arrivals: Arrivals,
    /// Factor by which the replay is faster than the recording.
    pub speed: f64,
    /// Maximum number of requests in flight.
    pub depth: u32,
}

/// A request of the trace, converted to blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Due {
    time_ns: u64,
    is_write: bool,
    block: u32,
    blocks: u32,
}

impl Replay {
    /// Checks that the parameters are valid.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn check(&self) -> Result<(), String> {
        self.format()?;
        if !(1..=COUNT_MAX).contains(&self.count) || !(1..=1000).contains(&self.depth) {
            return Err("`count` must be 1 to 10,000,000 and `depth` 1 to 1000".to_owned());
        }
        if !(self.speed > 0.0 && self.speed <= 1e6) {
            return Err("`speed` must be above 0 and at most 1,000,000".to_owned());
        }
        sum::check_digits(self.crc32c.as_deref())
    }

    fn format(&self) -> Result<Option<Format>, String> {
        let named = self.format.as_ref().map(|name| {
            let unknown = || format!("no format `{name}`, expected one of {}", Format::names());
            name.parse().map_err(|_| unknown())
        });
        named.transpose()
    }

    /// Runs the load and returns its metrics.
    ///
    /// # Errors
    /// If the trace cannot be read or has a wrong checksum, or the layer fails.
    pub(super) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        sum::check(&self.trace, self.crc32c.as_deref())?;
        let (all, trims, passed_over) = self.read(world.files.device_blocks())?;
        let replayed = Rc::new(Replayed {
            world: world.clone(),
            latency: RefCell::new(LatencyHistogram::default()),
            failed: Cell::new(None),
        });
        let places = Semaphore::new(u64::from(self.depth));
        let tasks = TaskGroup::new(&world.rt);
        let begun = world.rt.now();
        let (mut late, mut bytes) = (0_u64, 0_u64);
        for due in &all {
            let due_at = match self.arrivals {
                Arrivals::Recorded => self.until_due(world, begun, due.time_ns).await,
                Arrivals::Closed => world.rt.now(),
            };
            let place = places.acquire(1).await;
            if self.arrivals == Arrivals::Recorded {
                late += u64::from(world.rt.now() > due_at);
            }
            bytes += u64::from(due.blocks) * 4096;
            let begins = match self.arrivals {
                Arrivals::Recorded => due_at,
                // In a closed loop, a request arrives when it gets its slot.
                Arrivals::Closed => world.rt.now(),
            };
            let (due, replayed) = (*due, Rc::clone(&replayed));
            tasks.spawn(async move {
                replayed.carry_out(due, begins).await;
                drop(place);
            });
        }
        tasks.join().await;
        if let Some(error) = replayed.failed.take() {
            return Err(error);
        }
        let seconds = world.rt.now().ns_since(begun) as f64 / 1e9;
        let mut figures = figures(&replayed.latency.borrow(), "latency");
        let rate = all.len() as f64 / seconds.max(f64::MIN_POSITIVE);
        figures.extend([
            ("requests".to_owned(), all.len() as f64),
            ("requests_per_s".to_owned(), rate),
            (
                "mb_per_s".to_owned(),
                bytes as f64 / 1e6 / seconds.max(f64::MIN_POSITIVE),
            ),
            ("made_late".to_owned(), late as f64),
            ("trims_left_out".to_owned(), trims as f64),
            ("lines_passed_over".to_owned(), passed_over as f64),
        ]);
        Ok(self.measured(figures, rate))
    }

    /// Returns the metrics. With recorded arrival times, the rate is determined by the trace, so
    /// the main metric is the mean latency.
    fn measured(&self, figures: BTreeMap<String, f64>, rate: f64) -> Measured {
        let (value, unit) = match self.arrivals {
            Arrivals::Recorded => (figures["latency_mean_ms"], "ms"),
            Arrivals::Closed => (rate, "requests/s"),
        };
        Measured {
            value,
            unit: unit.to_owned(),
            figures,
            ..Measured::default()
        }
    }

    /// Waits until a request is due, and returns the time at which it is due.
    async fn until_due<F: FileLayer>(
        &self,
        world: &World<F>,
        begun: Instant,
        time_ns: u64,
    ) -> Instant {
        let after = Duration::from_nanos((time_ns as f64 / self.speed) as u64);
        let due_at = begun + after;
        let now = world.rt.now();
        if due_at > now {
            world
                .rt
                .sleep(Duration::from_nanos(due_at.ns_since(now)))
                .await;
        }
        due_at
    }

    /// Reads the requests of the trace, for a device of `device_blocks` blocks. Also returns two
    /// numbers: the number of trims, which are not replayed, and the number of lines of the trace
    /// that are not requests.
    fn read(&self, device_blocks: u32) -> Result<(Vec<Due>, u64, u64), LoadError> {
        let options = Options {
            format: self.format().map_err(LoadError::Trace)?,
            ..Options::default()
        };
        let trace_error = |error: bimetal_trace::TraceError| LoadError::Trace(error.to_string());
        let mut reader = Reader::open(&self.trace, &options).map_err(trace_error)?;
        let (mut all, mut trims, mut first_ns) = (Vec::new(), 0, None);
        while (all.len() as u64) < self.count {
            let Some(record) = reader.next_record().map_err(trace_error)? else {
                break;
            };
            if record.op == Op::Trim {
                trims += 1;
                continue;
            }
            let first_ns = *first_ns.get_or_insert(record.time_ns);
            all.push(on_device(&record, first_ns, device_blocks));
        }
        if all.is_empty() {
            let path = self.trace.display();
            return Err(LoadError::Trace(format!(
                "{path}: it has no reads and no writes"
            )));
        }
        let tally = reader.tally();
        Ok((all, trims, tally.total() - tally.requests))
    }
}

/// Converts a record to blocks of the device. An offset beyond the end of the device wraps around.
/// A request that crosses the end of the device is truncated.
fn on_device(record: &Record, first_ns: u64, device_blocks: u32) -> Due {
    let first = record.offset_bytes / 4096;
    let last = (record.offset_bytes + record.length_bytes - 1) / 4096;
    let block = (first % u64::from(device_blocks)) as u32;
    let room = u64::from(device_blocks - block);
    Due {
        // Some traces are slightly out of order, so a record can be earlier than the first one.
        // Such a record gets the time 0.
        time_ns: record.time_ns.saturating_sub(first_ns),
        is_write: record.op == Op::Write,
        block,
        blocks: (last - first + 1).min(room) as u32,
    }
}

/// State shared by the tasks that execute requests.
struct Replayed<F> {
    world: World<F>,
    latency: RefCell<LatencyHistogram>,
    failed: Cell<Option<LoadError>>,
}

impl<F: FileLayer> Replayed<F> {
    async fn carry_out(&self, due: Due, due_at: Instant) {
        if let Err(error) = self.ask(due).await {
            self.failed.set(Some(error));
            return;
        }
        let ns = self.world.rt.now().ns_since(due_at);
        self.latency.borrow_mut().record(ns);
    }

    async fn ask(&self, due: Due) -> Result<(), LoadError> {
        // A trace does not record which program made a request, so all requests are from one
        // program.
        let mut program = Program::new(0);
        let files = &self.world.files;
        let end = u64::from(due.block) + u64::from(due.blocks);
        for start in (u64::from(due.block)..end).step_by(CALL_BLOCKS_MAX as usize) {
            let (block, blocks) = (start as u32, (end - start).min(CALL_BLOCKS_MAX) as u32);
            match due.is_write {
                true => files.write_device(block, blocks, &mut program).await?,
                false => files.read_device(block, blocks, &mut program).await?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(offset_bytes: u64, length_bytes: u64) -> Record {
        Record {
            time_ns: 1500,
            op: Op::Write,
            offset_bytes,
            length_bytes,
        }
    }

    #[test]
    fn a_record_touches_whole_blocks_of_a_device_that_is_smaller() {
        let of = |offset, length| {
            let due = on_device(&record(offset, length), 500, 100);
            assert!(due.is_write && due.time_ns == 1000);
            (due.block, due.blocks)
        };
        assert_eq!(of(0, 1), (0, 1));
        assert_eq!(of(4095, 2), (0, 2));
        assert_eq!(of(8192, 4096), (2, 1));
        // The device has 100 blocks, so block 205 wraps around to block 5.
        assert_eq!(of(205 * 4096, 8192), (5, 2));
        assert_eq!(of(98 * 4096, 10 * 4096), (98, 2), "it ends with the device");
        assert_eq!(of((3 << 44) + 512, 512).1, 1);
    }
}
