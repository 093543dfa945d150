//! The devices of the demo and their load. Each device gets the same requests at the same times,
//! regardless of whether earlier requests have completed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::{BLOCK_BYTES, Device, Flags, IoError, Request, Statistic};
use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Instant, Rng, Rt};

use crate::load::{cut, random_data};
use bimetal_console::latency::Latencies;

/// Step of the write sizes. The sizes are 10 to 500 KB in steps of 10 KB, as in the paper on
/// hetero-mirroring. According to the paper, 96 % of the files in use are smaller than 500 KB.
const WRITE_STEP_BYTES: u64 = 10_000;
const WRITE_STEPS_MAX: u64 = 50;
/// Number of writes for each read.
const WRITES_PER_READ: f64 = 5.0;
/// Size of a read.
const READ_BYTES: u64 = 16 << 10;
/// Maximum number of requests in flight on one device. Further requests are counted but not sent.
const OUTSTANDING_MAX: usize = 4096;
/// Number of steps that a latency curve shows.
pub(super) const STEPS_MAX: usize = 60;

/// Parameters of the load.
pub(super) struct Arrivals {
    /// Mean number of writes per second. Writes arrive as a Poisson process.
    pub(super) writes_per_s: f64,
    /// Maximum number of bytes that the load uses at the start of each device.
    pub(super) device_bytes: u64,
    /// Seed of the random numbers.
    pub(super) seed: u64,
    /// Duration of the load; no request arrives later.
    pub(super) duration: Duration,
}

/// Statistics of a device: the part, the name and the value of each.
type Statistics = Vec<(String, String, Statistic)>;

/// A device to which the load sends requests, with its results.
pub(super) struct Target {
    /// Title on the screen.
    pub(super) title: String,
    /// The device; `None` once it was let go.
    device: RefCell<Option<Rc<dyn Device>>>,
    /// Statistics of the device when it was let go.
    last_statistics: RefCell<Statistics>,
    rt: Rt,
    tasks: TaskGroup,
    /// Arrival time and sequence number of each request in flight.
    outstanding: RefCell<BTreeSet<(Instant, u64)>>,
    sent: Cell<u64>,
    counts: RefCell<Measured>,
}

/// Results that a target has measured so far.
pub(super) struct Measured {
    /// Latencies of writes, from arrival to completion.
    pub(super) writes: Latencies,
    /// Latencies of reads.
    pub(super) reads: Latencies,
    /// Number of failed requests.
    pub(super) errors: u64,
    /// Error of the first failed request.
    pub(super) first_error: Option<IoError>,
    /// Number of requests that were not sent because [`OUTSTANDING_MAX`] requests were in flight.
    pub(super) rejected: u64,
    /// Values of the latency curve, one for each past step, newest last; `None` for a step without
    /// requests.
    pub(super) steps: VecDeque<Option<u64>>,
    slowest_in_step_ns: Option<u64>,
}

impl Target {
    /// Creates a target that has not been sent a request.
    pub(super) fn new(rt: &Rt, title: &str, device: Rc<dyn Device>) -> Rc<Target> {
        Rc::new(Target {
            title: title.to_owned(),
            device: RefCell::new(Some(device)),
            last_statistics: RefCell::default(),
            rt: rt.clone(),
            tasks: TaskGroup::new(rt),
            outstanding: RefCell::default(),
            sent: Cell::new(0),
            counts: RefCell::new(Measured {
                writes: Latencies::new(),
                reads: Latencies::new(),
                errors: 0,
                first_error: None,
                rejected: 0,
                steps: VecDeque::with_capacity(STEPS_MAX),
                slowest_in_step_ns: None,
            }),
        })
    }

    /// Returns the results so far.
    pub(super) fn counts(&self) -> std::cell::Ref<'_, Measured> {
        self.counts.borrow()
    }

    /// Returns the age of the oldest request in flight in ns, or 0 if there is none.
    pub(super) fn oldest_ns(&self) -> u64 {
        let outstanding = self.outstanding.borrow();
        let oldest = outstanding.first().map(|(arrival, _)| *arrival);
        oldest.map_or(0, |arrival| self.rt.now().ns_since(arrival))
    }

    /// Returns the statistics of the device, or those that it had when it was let go.
    pub(super) fn statistics(&self) -> Statistics {
        let Some(device) = self.device.borrow().clone() else {
            return self.last_statistics.borrow().clone();
        };
        let mut statistics = Vec::new();
        device.statistics(&mut statistics);
        statistics
    }

    /// Lets the device go, which must be stopped, so that its files can be opened anew.
    pub(super) fn let_go(&self) {
        self.last_statistics.replace(self.statistics());
        self.device.replace(None);
    }

    fn open_device(&self) -> Rc<dyn Device> {
        let device = self.device.borrow().clone();
        device.expect("the load has ended before the device is let go")
    }

    /// Ends a step of the latency curve. The value of the step is the highest latency of its
    /// completed requests or the age of the oldest request in flight, whichever is higher.
    pub(super) fn end_step(&self) {
        let waiting_ns = Some(self.oldest_ns()).filter(|ns| *ns > 0);
        let mut counts = self.counts.borrow_mut();
        let slowest = counts.slowest_in_step_ns.take().max(waiting_ns);
        if counts.steps.len() == STEPS_MAX {
            counts.steps.pop_front();
        }
        counts.steps.push_back(slowest);
    }

    /// Waits until every request has completed.
    pub(super) async fn finish(&self) {
        self.tasks.join().await;
    }

    fn send(self: &Rc<Target>, arrival: Instant, request: Request, read: bool) {
        if self.outstanding.borrow().len() >= OUTSTANDING_MAX {
            self.counts.borrow_mut().rejected += 1;
            return;
        }
        let number = self.sent.get();
        self.sent.set(number + 1);
        self.outstanding.borrow_mut().insert((arrival, number));
        let target = Rc::clone(self);
        self.tasks.spawn(async move {
            let result = target.open_device().submit(request).await;
            target.outstanding.borrow_mut().remove(&(arrival, number));
            let latency_ns = target.rt.now().ns_since(arrival);
            let mut counts = target.counts.borrow_mut();
            counts.slowest_in_step_ns = counts.slowest_in_step_ns.max(Some(latency_ns));
            match result {
                Ok(_) if read => counts.reads.record(latency_ns),
                Ok(_) => counts.writes.record(latency_ns),
                Err(error) => {
                    counts.errors += 1;
                    counts.first_error.get_or_insert(error);
                }
            }
        });
    }
}

/// Sends the same requests to every target until the duration of the load has passed, without
/// waiting for completions.
pub(super) async fn run(rt: Rt, targets: Vec<Rc<Target>>, arrivals: Arrivals) {
    let mut rng = Rng::labelled(arrivals.seed, "demo");
    let largest = (WRITE_STEP_BYTES * WRITE_STEPS_MAX).next_multiple_of(BLOCK_BYTES);
    let data = random_data(&rt, &mut rng, 4 << 20);
    // The load uses the size of the smallest target. A mirror offers less than its sides, because
    // it reserves a part of them.
    let sizes = targets
        .iter()
        .map(|t| t.open_device().geometry().size_bytes);
    let device_bytes = sizes.fold(arrivals.device_bytes, u64::min);
    assert!(device_bytes >= largest, "a device holds the largest write");
    let requests_per_s = arrivals.writes_per_s * (1.0 + 1.0 / WRITES_PER_READ);
    let end = rt.now() + arrivals.duration;
    let mut arrival = rt.now();
    loop {
        let gap_s = rng.exponential(1.0 / requests_per_s);
        arrival += Duration::from_secs_f64(gap_s);
        if arrival >= end {
            rt.sleep_until(end).await;
            return;
        }
        rt.sleep_until(arrival).await;
        let read = rng.chance(1.0 / (1.0 + WRITES_PER_READ));
        let bytes = if read {
            READ_BYTES
        } else {
            let size = WRITE_STEP_BYTES * rng.between(1, WRITE_STEPS_MAX);
            size.next_multiple_of(BLOCK_BYTES)
        };
        let places = (device_bytes - bytes) / BLOCK_BYTES + 1;
        let offset = rng.below(places) * BLOCK_BYTES;
        let request = if read {
            Request::read(offset, bytes)
        } else {
            Request::write(offset, cut(&data, &mut rng, bytes as usize), Flags::NONE)
        };
        for target in &targets {
            target.send(arrival, request.clone(), read);
        }
    }
}
