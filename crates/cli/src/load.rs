//! A load on a device: so many requests in flight, each followed by the next as soon as it is
//! answered. Open loops, where requests arrive whatever the device does, are in `demo`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::{Device, Flags, IoError, Op, Request};
use bimetal_rt::{Buf, Instant, Rng, Rt, yield_now};

use crate::latency::Latencies;

/// Data that writes are cut from; random, so that nothing below can make it smaller, and of the
/// largest size that still comes from the registered region.
const DATA_BYTES: u64 = bimetal_rt::buf::BLOCK_BYTES_MAX as u64;
/// Requests a worker sends before it lets the others run, for devices that answer at once.
const REQUESTS_PER_TURN: u32 = 64;
/// Requests answered at one instant of virtual time after which it will not pass at all.
const REQUESTS_PER_INSTANT_MAX: u64 = 1_000_000;

/// Reads, writes, or both half and half; one after the other or anywhere.
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
    /// True when it changes the device.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Pattern::Write | Pattern::RandWrite | Pattern::RandRw)
    }

    fn is_random(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::Write)
    }
}

/// What to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Which requests.
    pub(crate) pattern: Pattern,
    /// Size of a request.
    pub(crate) request_bytes: u64,
    /// Requests in flight.
    pub(crate) depth: u32,
    /// The part of the device that is used, from its start.
    pub(crate) region_bytes: u64,
    /// When to end, if by time.
    pub(crate) time: Option<Duration>,
    /// When to end, if by the number of requests.
    pub(crate) operations: Option<u64>,
    /// Where the random numbers come from.
    pub(crate) seed: u64,
}

/// What happened.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Latencies of reads that succeeded.
    pub(crate) reads: Latencies,
    /// Latencies of writes that succeeded.
    pub(crate) writes: Latencies,
    /// Requests that failed.
    pub(crate) errors: u64,
    /// Why the first of them did.
    pub(crate) first_error: Option<IoError>,
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// True when virtual time stood still, so that a bound on time would never be reached.
    pub(crate) stuck: bool,
}

/// A load that runs.
pub(crate) struct Run {
    rt: Rt,
    device: Rc<dyn Device>,
    load: Load,
    data: Buf,
    rng: RefCell<Rng>,
    start: Instant,
    sent: Cell<u64>,
    answered: Cell<u64>,
    /// The instant of the last answer, and how many there were at that instant.
    standstill: Cell<(Instant, u64)>,
    outcome: RefCell<Outcome>,
}

impl Run {
    /// Prepares a load; nothing is sent yet.
    ///
    /// # Panics
    /// When the region holds no request.
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

    /// Runs the load to its end.
    pub(crate) async fn finish(self: &Rc<Run>) {
        let workers: Vec<_> = (0..self.load.depth)
            .map(|_| self.rt.spawn(Rc::clone(self).work()))
            .collect();
        for worker in workers {
            worker.await;
        }
        self.outcome.borrow_mut().elapsed = self.rt.now().since(self.start);
    }

    /// What happened; call it after the end.
    pub(crate) fn into_outcome(self: Rc<Run>) -> Outcome {
        let run = Rc::into_inner(self).expect("every worker has ended");
        run.outcome.into_inner()
    }

    /// The part that is done, 0 to 1.
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

    /// Requests answered so far.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.get()
    }

    async fn work(self: Rc<Run>) {
        let mut in_turn = 0;
        // The end of one request is the beginning of the next: the clock is read once for both.
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

    /// The next request and whether it reads; `None` at the end.
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

/// A buffer of random bytes.
pub(crate) fn random_data(rt: &Rt, rng: &mut Rng, bytes: usize) -> Buf {
    let mut data = rt.pool().alloc_now(bytes);
    rng.fill(&mut data);
    data.freeze()
}

/// `bytes` of `data` from a random 4-KiB boundary.
pub(crate) fn cut(data: &Buf, rng: &mut Rng, bytes: usize) -> Buf {
    const STEP: usize = bimetal_block::BLOCK_BYTES as usize;
    let places = (data.len() - bytes) / STEP + 1;
    let start = rng.below(places as u64) as usize * STEP;
    data.slice(start..start + bytes)
}

/// The name of the operation in reports.
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
        // Half and half: binomial(1000, 0.5), standard deviation 16.
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
