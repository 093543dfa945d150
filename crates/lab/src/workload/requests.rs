//! Requests at random or in sequence, as a job of fio has them, with so many under way. Without a file system.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bimetal_rt::Rng;
use bimetal_rt::sync::TaskGroup;
use serde::{Deserialize, Serialize};

use super::latency::Latency;
use super::{Measured, OPERATIONS_MAX, World, mb_per_s};
use crate::files::Program;
use crate::layer::{FileLayer, LoadError};

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
    /// Requests.
    pub count: u64,
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
        let latency = Rc::new(RefCell::new(Latency::new()));
        let next = Rc::new(Cell::new(0));
        let failed = Rc::new(Cell::new(None));
        let begun = world.rt.now();
        let tasks = TaskGroup::new(&world.rt);
        for task in 0..self.depth {
            let job = Job {
                load: *self,
                slots: (span_bytes / self.request_bytes).max(1),
                world: world.clone(),
                next: Rc::clone(&next),
                latency: Rc::clone(&latency),
            };
            let failed = Rc::clone(&failed);
            tasks.spawn(async move {
                if let Err(error) = job.run(task).await {
                    failed.set(Some(error));
                }
            });
        }
        tasks.join().await;
        if let Some(error) = failed.take() {
            return Err(error);
        }
        let ns = world.rt.now().ns_since(begun);
        let mut figures = latency.borrow().figures("latency");
        figures.insert(
            "mb_per_s".to_owned(),
            mb_per_s(self.count * self.request_bytes, ns),
        );
        Ok(Measured {
            value: self.count as f64 / (ns as f64 / 1e9).max(f64::MIN_POSITIVE),
            unit: "requests/s".to_owned(),
            figures,
            ..Measured::default()
        })
    }
}

/// One of those that ask.
struct Job<F> {
    load: Requests,
    /// Places for a request.
    slots: u64,
    world: World<F>,
    /// Requests begun by all.
    next: Rc<Cell<u64>>,
    latency: Rc<RefCell<Latency>>,
}

impl<F: FileLayer> Job<F> {
    async fn run(self, task: u32) -> Result<(), LoadError> {
        let mut program = Program::new(task);
        let mut rng = Rng::labelled(self.world.seed, &format!("requests of {task}"));
        let blocks = (self.load.request_bytes / 4096) as u32;
        loop {
            let number = self.next.get();
            if number >= self.load.count {
                return Ok(());
            }
            self.next.set(number + 1);
            let slot = match self.load.pattern {
                Pattern::RandomRead | Pattern::RandomWrite => rng.below(self.slots),
                Pattern::Read | Pattern::Write => number % self.slots,
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
