//! Random or sequential requests, as in a job of fio, with a fixed number of requests in flight and
//! without a file system.
//!
//! New flash is faster than flash that has been written. The requests can therefore be made in
//! rounds, on a device that was written twice before, until the rates of the rounds are steady
//! (SNIA, Solid State Storage Performance Test Specification).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::Rng;
use bimetal_rt::sync::TaskGroup;
use bimetal_sim::experiment::latency::LatencyHistogram;
use serde::{Deserialize, Serialize};

use super::latency::figures;
use super::{Measured, OPERATIONS_MAX, World, mb_per_s};
use crate::files::Program;
use crate::layer::{FileLayer, LoadError};
use crate::statistics::{STEADY_ROUNDS, Steadiness};

/// Maximum number of rounds of requests.
const ROUNDS_MAX: u64 = 25;
/// Number of times that the device is written before the rounds, and length of these writes in
/// blocks.
const FILLS: u64 = 2;
const FILL_BLOCKS: u32 = 32;

/// Order and direction of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Random reads.
    RandomRead,
    /// Random writes.
    RandomWrite,
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
}

/// Parameters of a load of requests to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Order and direction of the requests.
    pub pattern: Pattern,
    /// Length of a request in bytes.
    pub request_bytes: u64,
    /// Number of requests in flight, each made by its own task.
    pub depth: u32,
    /// Length in bytes of the part of the device that is used; 0 means the whole device.
    pub span_bytes: u64,
    /// Number of requests; with rounds, number of requests in each round.
    pub count: u64,
    /// Whether to write the device first, and to repeat rounds of requests until the rates are
    /// steady.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steady: bool,
}

impl Requests {
    /// Checks that the parameters are valid.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn check(&self) -> Result<(), String> {
        let blocks = self.request_bytes > 0 && self.request_bytes.is_multiple_of(4096);
        if !blocks || self.request_bytes > 32 << 20 {
            return Err("`request` must be a multiple of 4 KiB, of 32 MiB at most".to_owned());
        }
        if self.span_bytes != 0 && self.span_bytes < self.request_bytes {
            return Err("`span` must hold a request".to_owned());
        }
        if !(1..=1000).contains(&self.depth) || !(1..=OPERATIONS_MAX).contains(&self.count) {
            let why = "`depth` must be 1 to 1000 and `count` 1 to 1,000,000,000";
            return Err(why.to_owned());
        }
        Ok(())
    }

    /// Returns the approximate number of calls. Without `steady`, it is `count`. With `steady`, it
    /// is the number of initial writes, plus `count` times half the maximum number of rounds. If
    /// the load uses the whole device, the initial writes are not included, because the size of the
    /// device is not known here.
    pub(super) fn estimated_pages(&self) -> u64 {
        let fill_calls = self.span_bytes.div_ceil(4096 * u64::from(FILL_BLOCKS)) * FILLS;
        match self.steady {
            false => self.count,
            true => self
                .count
                .saturating_mul(ROUNDS_MAX / 2)
                .saturating_add(fill_calls),
        }
    }

    /// Runs the load and returns its metrics.
    ///
    /// # Errors
    /// If the layer fails.
    pub(super) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        let device_bytes = u64::from(world.files.device_blocks()) * 4096;
        let span_bytes = match self.span_bytes {
            0 => device_bytes,
            span => span.min(device_bytes),
        };
        let slots = (span_bytes / self.request_bytes).max(1);
        match self.steady {
            false => Ok(self.round(world, slots, 0).await?.measured(self)),
            true => self.until_steady(world, slots).await,
        }
    }

    /// Repeats rounds until their rates are steady, or until the maximum number of rounds. Returns
    /// the metrics of the last rounds.
    async fn until_steady<F: FileLayer>(
        &self,
        world: &World<F>,
        slots: u64,
    ) -> Result<Measured, LoadError> {
        self.fill(world, slots).await?;
        let (mut rounds, mut rates) = (Vec::new(), Vec::new());
        let steadiness = loop {
            let round = self.round(world, slots, rounds.len() as u64).await?;
            rates.push(round.rate(self));
            rounds.push(round);
            let steadiness = Steadiness::of(&rates);
            let is_over = rounds.len() as u64 == ROUNDS_MAX;
            if let Some(found) = steadiness.filter(|found| found.is_steady() || is_over) {
                break found;
            }
        };
        let mut window = Round::default();
        for round in &rounds[rounds.len() - STEADY_ROUNDS..] {
            window.latency.borrow_mut().add(&round.latency.borrow());
            window.ns += round.ns;
        }
        let of_window = Requests {
            count: self.count * STEADY_ROUNDS as u64,
            ..*self
        };
        let mut measured = window.measured(&of_window);
        measured.value = steadiness.mean;
        measured.figures.extend([
            ("rounds".to_owned(), rounds.len() as f64),
            ("is_steady".to_owned(), f64::from(steadiness.is_steady())),
            ("range_of_mean".to_owned(), steadiness.range),
            ("slope_of_mean".to_owned(), steadiness.slope),
        ]);
        let points = (1..).map(f64::from).zip(rates);
        measured
            .curves
            .insert("requests/s against rounds".to_owned(), points.collect());
        Ok(measured)
    }

    /// Writes the used part of the device sequentially, [`FILLS`] times.
    async fn fill<F: FileLayer>(&self, world: &World<F>, slots: u64) -> Result<(), LoadError> {
        let mut program = Program::new(0);
        let blocks = (slots * (self.request_bytes / 4096)) as u32;
        for _ in 0..FILLS {
            for block in (0..blocks).step_by(FILL_BLOCKS as usize) {
                let count = FILL_BLOCKS.min(blocks - block);
                world.files.write_device(block, count, &mut program).await?;
            }
        }
        Ok(())
    }

    /// Executes the requests of round number `number`, and returns their latencies and duration.
    async fn round<F: FileLayer>(
        &self,
        world: &World<F>,
        slots: u64,
        number: u64,
    ) -> Result<Round, LoadError> {
        let round = Round::default();
        let next = Rc::new(Cell::new(0));
        let failed = Rc::new(Cell::new(None));
        let begun = world.rt.now();
        let tasks = TaskGroup::new(&world.rt);
        for task in 0..self.depth {
            let label = match number {
                0 => format!("requests of {task}"),
                _ => format!("requests of {task} in round {number}"),
            };
            let job = Job {
                load: *self,
                slots,
                world: world.clone(),
                rng: Rng::labelled(world.seed, &label),
                first: number * self.count,
                next: Rc::clone(&next),
                latency: Rc::clone(&round.latency),
            };
            let failed = Rc::clone(&failed);
            tasks.spawn(async move {
                if let Err(error) = job.run(task).await {
                    failed.set(Some(error));
                }
            });
        }
        tasks.join().await;
        match failed.take() {
            Some(error) => Err(error),
            None => Ok(Round {
                ns: world.rt.now().ns_since(begun),
                ..round
            }),
        }
    }
}

/// Duration of a round, and the latencies of its requests.
#[derive(Default)]
struct Round {
    ns: u64,
    latency: Rc<RefCell<LatencyHistogram>>,
}

impl Round {
    /// Returns the rate of the round in requests per second.
    fn rate(&self, load: &Requests) -> f64 {
        load.count as f64 / (self.ns as f64 / 1e9).max(f64::MIN_POSITIVE)
    }

    fn measured(&self, load: &Requests) -> Measured {
        let mut figures = figures(&self.latency.borrow(), "latency");
        let rate = mb_per_s(load.count * load.request_bytes, self.ns);
        figures.insert("mb_per_s".to_owned(), rate);
        Measured {
            value: self.rate(load),
            unit: "requests/s".to_owned(),
            figures,
            ..Measured::default()
        }
    }
}

/// A task that makes requests, one after another.
struct Job<F> {
    load: Requests,
    /// Number of positions at which a request can start: the used part of the device divided by the
    /// length of a request.
    slots: u64,
    world: World<F>,
    rng: Rng,
    /// Number of requests in earlier rounds. Sequential requests of this round continue after the
    /// requests of the earlier rounds.
    first: u64,
    /// Number of requests of the present round that all tasks together have begun. A round is one
    /// run of `load.count` requests; a load can repeat rounds until their rates are steady.
    next: Rc<Cell<u64>>,
    latency: Rc<RefCell<LatencyHistogram>>,
}

impl<F: FileLayer> Job<F> {
    async fn run(mut self, task: u32) -> Result<(), LoadError> {
        let mut program = Program::new(task);
        let blocks = (self.load.request_bytes / 4096) as u32;
        loop {
            let number = self.next.get();
            if number >= self.load.count {
                return Ok(());
            }
            self.next.set(number + 1);
            let slot = match self.load.pattern {
                Pattern::RandomRead | Pattern::RandomWrite => self.rng.below(self.slots),
                Pattern::Read | Pattern::Write => (self.first + number) % self.slots,
            };
            let block = (slot * u64::from(blocks)) as u32;
            let begun = self.world.rt.now();
            let files = &self.world.files;
            match self.load.pattern {
                Pattern::RandomRead | Pattern::Read => {
                    files.read_device(block, blocks, &mut program).await?;
                }
                Pattern::RandomWrite | Pattern::Write => {
                    files.write_device(block, blocks, &mut program).await?;
                }
            }
            let ns = self.world.rt.now().ns_since(begun);
            self.latency.borrow_mut().record(ns);
        }
    }
}
