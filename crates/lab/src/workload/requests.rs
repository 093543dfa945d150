//! Requests at random or in sequence, as a job of fio has them, with so many under way. Without a
//! file system.
//!
//! What flash does when it is new it does not go on doing. So they can be made in rounds, on a
//! device that was written twice before, until the rounds are alike (SNIA, Solid State Storage
//! Performance Test Specification).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::Rng;
use bimetal_rt::sync::TaskGroup;
use serde::{Deserialize, Serialize};

use super::latency::Latency;
use super::{Measured, OPERATIONS_MAX, World, mb_per_s};
use crate::files::Program;
use crate::layer::{FileLayer, LoadError};
use crate::statistics::{STEADY_ROUNDS, Steadiness};

/// Rounds that are made at most until they are alike.
const ROUNDS_MAX: u64 = 25;
/// The device is written so many times before, in requests of so many bytes.
const FILLS: u64 = 2;
const FILL_BLOCKS: u32 = 32;

/// In which order, and which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Reads at random places.
    RandomRead,
    /// Writes at random places.
    RandomWrite,
    /// Reads, one behind the other.
    Read,
    /// Writes, one behind the other.
    Write,
}

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// In which order, and which way.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub request_bytes: u64,
    /// Requests under way, each for a task of its own.
    pub depth: u32,
    /// The part of the device that is used; 0 for all of it.
    pub span_bytes: u64,
    /// Requests; those of a round, if there are rounds.
    pub count: u64,
    /// In rounds until they are alike, on a device that was written before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steady: bool,
}

impl Requests {
    /// Refuses what cannot be run.
    ///
    /// # Errors
    /// What is wrong, in words.
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

    /// Calls that it makes, about: half of the rounds that there may be, after the fillings. Those
    /// of a whole device are not among them, for its size is not known here.
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

    /// Runs it.
    ///
    /// # Errors
    /// When the layer fails.
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

    /// Rounds until they are alike, and what the last of them have in common.
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

    /// Writes all places for requests, in order.
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

    /// So many requests, the round `number` of them.
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

/// How long requests took, together and each.
#[derive(Default)]
struct Round {
    ns: u64,
    latency: Rc<RefCell<Latency>>,
}

impl Round {
    /// Requests a second.
    fn rate(&self, load: &Requests) -> f64 {
        load.count as f64 / (self.ns as f64 / 1e9).max(f64::MIN_POSITIVE)
    }

    fn measured(&self, load: &Requests) -> Measured {
        let mut figures = self.latency.borrow().figures("latency");
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

/// One of those that ask.
struct Job<F> {
    load: Requests,
    /// Places for a request.
    slots: u64,
    world: World<F>,
    rng: Rng,
    /// Requests of earlier rounds, behind which those in sequence go on.
    first: u64,
    /// Requests begun by all.
    next: Rc<Cell<u64>>,
    latency: Rc<RefCell<Latency>>,
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
