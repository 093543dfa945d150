//! A closed-loop load on a device: the number of requests in flight is fixed, and each completion
//! starts the next request. The load of `demo` is open instead: its requests arrive independently
//! of completions.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::{Device, Flags, IoError, Op, Request};
use bimetal_rt::{Buf, Instant, Rng, Rt, yield_now};

use bimetal_console::latency::Latencies;

/// Size of the buffer that holds the write data: each write sends a slice of this buffer. The
/// content is random, so that no layer below can compress it. The size is the largest that is still
/// allocated from the registered buffer region.
const DATA_BYTES: u64 = bimetal_rt::buf::BLOCK_BYTES_MAX as u64;
/// Number of requests that a worker sends before it yields. The yield matters for devices that
/// complete requests without waiting.
const REQUESTS_PER_TURN: u32 = 64;
/// Maximum number of completions at the same instant of virtual time. After more completions, time
/// is considered to stand still.
const REQUESTS_PER_INSTANT_MAX: u64 = 1_000_000;

/// Access pattern of a load: reads, writes or half of each, sequential or random.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lower")]
pub(crate) enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Random reads and writes, half and half.
    RandRw,
}

impl Pattern {
    /// Returns true if the pattern contains writes.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandWrite | Pattern::RandRw)
    }

    fn is_random(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::Write)
    }
}

/// Parameters of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Access pattern.
    pub(crate) pattern: Pattern,
    /// Size of a request.
    pub(crate) request_bytes: u64,
    /// Queue depth.
    pub(crate) depth: u32,
    /// Number of bytes at the start of the device that the load uses.
    pub(crate) region_bytes: u64,
    /// Duration of the load; `None` if no duration limits the load.
    pub(crate) time: Option<Duration>,
    /// Total number of requests; `None` if the load is not bounded by a number of requests.
    pub(crate) operations: Option<u64>,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
}

/// Results of a load.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Latencies of reads that succeeded.
    pub(crate) reads: Latencies,
    /// Latencies of writes that succeeded.
    pub(crate) writes: Latencies,
    /// Number of failed requests.
    pub(crate) errors: u64,
    /// Error of the first failed request.
    pub(crate) first_error: Option<IoError>,
    /// Time from the first request to the last completion.
    pub(crate) elapsed: Duration,
    /// Whether the load was ended because virtual time stood still. In that case the duration of
    /// the load would never have passed.
    pub(crate) stuck: bool,
}

/// A running load.
pub(crate) struct Run {
    rt: Rt,
    device: Rc<dyn Device>,
    load: Load,
    data: Buf,
    rng: RefCell<Rng>,
    start: Instant,
    sent: Cell<u64>,
    answered: Cell<u64>,
    /// Time of the last completion, and the number of earlier completions at exactly the same time.
    /// The load uses them to detect that time stands still.
    standstill: Cell<(Instant, u64)>,
    outcome: RefCell<Outcome>,
}

impl Run {
    /// Prepares a load without sending requests.
    ///
    /// # Panics
    /// If the region is smaller than a request, or the size of a request is 0.
    pub(crate) fn new(rt: &Rt, device: Rc<dyn Device>, load: Load) -> Rc<Run> {
        assert!(load.region_bytes >= load.request_bytes && load.request_bytes > 0);
        let mut rng = Rng::labelled(load.seed, "load");
        let data_bytes = DATA_BYTES.max(load.request_bytes);
        let data = if load.pattern.writes() {
            random_data(rt, &mut rng, data_bytes as usize)
        } else {
            rt.pool().zeroed(0)
        };
        Rc::new(Run {
            rt: rt.clone(),
            device,
            load,
            data,
            rng: RefCell::new(rng),
            start: rt.now(),
            sent: Cell::new(0),
            answered: Cell::new(0),
            standstill: Cell::new((rt.now(), 0)),
            outcome: RefCell::new(Outcome {
                reads: Latencies::new(),
                writes: Latencies::new(),
                errors: 0,
                first_error: None,
                elapsed: Duration::ZERO,
                stuck: false,
            }),
        })
    }

    /// Runs the load, and returns when it has ended.
    pub(crate) async fn finish(self: &Rc<Run>) {
        let workers: Vec<_> = (0..self.load.depth)
            .map(|_| self.rt.spawn(Rc::clone(self).work()))
            .collect();
        for worker in workers {
            worker.await;
        }
        self.outcome.borrow_mut().elapsed = self.rt.now().since(self.start);
    }

    /// Returns the results. The load must have ended.
    pub(crate) fn into_outcome(self: Rc<Run>) -> Outcome {
        let run = Rc::into_inner(self).expect("every worker has ended");
        run.outcome.into_inner()
    }

    /// Returns the completed fraction of the load, from 0 to 1.
    pub(crate) fn progress(&self) -> f64 {
        let of_time = self.load.time.map(|time| {
            let elapsed = self.rt.now().since(self.start);
            elapsed.as_secs_f64() / time.as_secs_f64()
        });
        let of_operations = self
            .load
            .operations
            .map(|all| self.answered.get() as f64 / all.max(1) as f64);
        let furthest = of_time.into_iter().chain(of_operations).fold(0.0, f64::max);
        furthest.min(1.0)
    }

    /// Returns the number of requests completed so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.get()
    }

    async fn work(self: Rc<Run>) {
        let mut in_turn = 0;
        // A worker sends its next request when the previous one completes, so one reading of the
        // clock gives the time of both events.
        let mut now = self.rt.now();
        while let Some((request, read)) = self.next(now) {
            let sent = now;
            let result = self.device.submit(request).await;
            now = self.rt.now();
            self.count(read, sent, now, result.map(|_| ()));
            in_turn += 1;
            if in_turn == REQUESTS_PER_TURN {
                in_turn = 0;
                yield_now().await;
                now = self.rt.now();
            }
        }
    }

    /// Returns the next request, and whether the request is a read; `None` at the end of the load.
    fn next(&self, now: Instant) -> Option<(Request, bool)> {
        let load = &self.load;
        let sent = self.sent.get();
        let time_is_up = load.time.is_some_and(|time| now.since(self.start) >= time);
        let all_sent = load.operations.is_some_and(|all| sent >= all);
        if time_is_up || all_sent || self.outcome.borrow().stuck {
            return None;
        }
        self.sent.set(sent + 1);
        let mut rng = self.rng.borrow_mut();
        let requests = load.region_bytes / load.request_bytes;
        let index = if load.pattern.is_random() {
            rng.below(requests)
        } else {
            sent % requests
        };
        let offset = index * load.request_bytes;
        let read = match load.pattern {
            Pattern::RandRw => rng.chance(0.5),
            pattern => !pattern.writes(),
        };
        if read {
            return Some((Request::read(offset, load.request_bytes), true));
        }
        let payload = cut(&self.data, &mut rng, load.request_bytes as usize);
        Some((Request::write(offset, payload, Flags::NONE), false))
    }

    fn count(&self, read: bool, sent: Instant, now: Instant, result: Result<(), IoError>) {
        self.answered.set(self.answered.get() + 1);
        let mut outcome = self.outcome.borrow_mut();
        match result {
            Ok(()) if read => outcome.reads.record(now.ns_since(sent)),
            Ok(()) => outcome.writes.record(now.ns_since(sent)),
            Err(error) => {
                outcome.errors += 1;
                outcome.first_error.get_or_insert(error);
            }
        }
        let (instant, answers) = self.standstill.get();
        let answers = if instant == now { answers + 1 } else { 0 };
        self.standstill.set((now, answers));
        let by_operations = self.load.operations.is_some();
        outcome.stuck |= !by_operations && answers > REQUESTS_PER_INSTANT_MAX;
    }
}

/// Returns a buffer of random bytes.
pub(crate) fn random_data(rt: &Rt, rng: &mut Rng, bytes: usize) -> Buf {
    let mut data = rt.pool().alloc_now(bytes);
    rng.fill(&mut data);
    data.freeze()
}

/// Returns `bytes` bytes of `data`, starting at a random multiple of 4 KiB.
pub(crate) fn cut(data: &Buf, rng: &mut Rng, bytes: usize) -> Buf {
    const STEP: usize = bimetal_block::BLOCK_BYTES as usize;
    let places = (data.len() - bytes) / STEP + 1;
    let start = rng.below(places as u64) as usize * STEP;
    data.slice(start..start + bytes)
}

/// Returns the name of the operation as used in reports.
pub(crate) fn op_name(read: bool) -> &'static str {
    if read {
        Op::Read.name()
    } else {
        Op::Write.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bimetal_block::media::memory::MemoryDevice;
    use bimetal_rt::VirtualOptions;

    fn run(load: Load) -> Outcome {
        let rt = Rt::virtual_time(VirtualOptions::default());
        let device = Rc::new(MemoryDevice::new(&rt, 1 << 20));
        let run = Run::new(&rt, device, load);
        rt.block_on(run.finish());
        run.into_outcome()
    }

    const LOAD: Load = Load {
        pattern: Pattern::RandRw,
        request_bytes: 4096,
        depth: 4,
        region_bytes: 1 << 20,
        time: None,
        operations: Some(1000),
        seed: 1,
    };

    #[test]
    fn exactly_the_operations_asked_for_are_done() {
        let outcome = run(LOAD);
        assert_eq!(outcome.reads.count() + outcome.writes.count(), 1000);
        assert_eq!(outcome.errors, 0);
        // The numbers of reads follow binomial(1000, 0.5), whose standard deviation is 16.
        assert!((400..600).contains(&outcome.reads.count()));
    }

    #[test]
    fn a_load_without_writes_only_reads() {
        let outcome = run(Load {
            pattern: Pattern::Read,
            ..LOAD
        });
        assert_eq!((outcome.reads.count(), outcome.writes.count()), (1000, 0));
    }

    #[test]
    fn a_device_that_takes_no_virtual_time_does_not_run_for_ever() {
        let outcome = run(Load {
            pattern: Pattern::Read,
            operations: None,
            time: Some(Duration::from_secs(1)),
            ..LOAD
        });
        assert!(outcome.stuck);
    }
}
