//! Clients of a file server, in the manner of Dbench. Each client creates, writes, reads and
//! removes files in its own directory, as fast as its calls complete, for a fixed time. The load is
//! measured once for each number of clients.
//!
//! The steps are a mix drawn from the seed: of 20 steps, 7 write a chunk to the last file of the
//! client's list, 6 read a chunk of a file, 3 create a file, 3 remove a file, and 1 syncs the last
//! file. A file has up to 1 MiB, and a chunk 4 to 64 KiB. Alternatively, each client repeats
//! recorded calls (a load file).

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bimetal_rt::sync::TaskGroup;
use bimetal_rt::{Instant, Rng};
use bimetal_sim::experiment::latency::LatencyHistogram;
use serde::{Deserialize, Serialize};

use super::latency::figures;
use super::loadfile::{LoadFile, Player};
use super::{Measured, World, mb_per_s, sum};
use crate::files::{FileId, Program};
use crate::layer::{FileLayer, LoadError};

/// Maximum length of a file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of files of a client.
const FILES_MAX: usize = 100;

/// A load of several clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clients {
    /// Numbers of clients, each of which is measured separately.
    pub counts: Vec<u32>,
    /// Duration of each measurement in seconds.
    pub seconds: u64,
    /// Path of the load file that each client repeats; if absent, clients run the random mix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<PathBuf>,
    /// CRC-32C that the load file must have, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<String>,
}

impl Clients {
    /// Checks that the parameters are valid.
    ///
    /// # Errors
    /// A description of the mistake.
    pub fn check(&self) -> Result<(), String> {
        let possible = |count: &u32| (1..=1000).contains(count);
        if !(1..=100).contains(&self.counts.len()) || !self.counts.iter().all(possible) {
            return Err("`counts` must be 1 to 100 numbers, each of 1 to 1000 clients".to_owned());
        }
        if !(1..=100_000).contains(&self.seconds) {
            return Err("`time` must be 1 s to 100,000 s".to_owned());
        }
        if self.crc32c.is_some() && self.script.is_none() {
            return Err("`crc32c` is the checksum of a `script`, but there is none".to_owned());
        }
        sum::check_digits(self.crc32c.as_deref())
    }

    /// Runs the load and returns its metrics.
    ///
    /// # Errors
    /// If the device is full, or the layer fails.
    pub(super) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        let mut measured = Measured {
            unit: "MB/s".to_owned(),
            ..Measured::default()
        };
        let script = self.script()?;
        let (mut curve, mut slowest) = (Vec::new(), Vec::new());
        for count in &self.counts {
            let (rate, latency) = self.with(world, *count, script.as_ref()).await?;
            curve.push((f64::from(*count), rate));
            let figures = figures(&latency.borrow(), "step");
            slowest.push((f64::from(*count), figures["step_p99_ms"]));
            measured
                .figures
                .insert(format!("with_{count}_mb_per_s"), rate);
            measured.value = measured.value.max(rate);
        }
        measured.curves = [
            ("MB/s against clients".to_owned(), curve),
            ("p99 of a step in ms against clients".to_owned(), slowest),
        ]
        .into();
        Ok(measured)
    }

    /// Returns the load file, if the load has one.
    ///
    /// # Errors
    /// If the load file cannot be read, or its checksum differs from the one that the plan states.
    pub(super) fn script(&self) -> Result<Option<Rc<LoadFile>>, LoadError> {
        let Some(path) = &self.script else {
            return Ok(None);
        };
        sum::check(path, self.crc32c.as_deref())?;
        Ok(Some(Rc::new(LoadFile::read(path)?)))
    }

    /// Runs `count` clients, and returns their total rate and the latencies of their steps.
    async fn with<F: FileLayer>(
        &self,
        world: &World<F>,
        count: u32,
        script: Option<&Rc<LoadFile>>,
    ) -> Result<(f64, Rc<RefCell<LatencyHistogram>>), LoadError> {
        let begun = world.rt.now();
        let until = begun + Duration::from_secs(self.seconds);
        let latency = Rc::new(RefCell::new(LatencyHistogram::default()));
        let bytes = Rc::new(Cell::new(0));
        let failed = Rc::new(Cell::new(None));
        let tasks = TaskGroup::new(&world.rt);
        for number in 0..count {
            let client = Client {
                world: world.clone(),
                program: Program::new(number),
                rng: Rng::labelled(world.seed, &format!("client {number} of {count}")),
                files: Vec::new(),
                bytes: Rc::clone(&bytes),
                latency: Rc::clone(&latency),
            };
            let (failed, script) = (Rc::clone(&failed), script.cloned());
            tasks.spawn(async move {
                let ended = match script {
                    Some(script) => client.play(&script, until).await,
                    None => client.run(until).await,
                };
                if let Err(error) = ended {
                    failed.set(Some(error));
                }
            });
        }
        world.rt.sleep_until(until).await;
        // Use the actual duration, because on a busy machine the sleep can take longer than
        // requested.
        let rate = mb_per_s(bytes.get(), world.rt.now().ns_since(begun));
        tasks.join().await;
        world.files.sync(&mut Program::new(0)).await?;
        match failed.take() {
            Some(error) => Err(error),
            None => Ok((rate, latency)),
        }
    }
}

struct Client<F> {
    world: World<F>,
    program: Program,
    rng: Rng,
    files: Vec<FileId>,
    bytes: Rc<Cell<u64>>,
    latency: Rc<RefCell<LatencyHistogram>>,
}

impl<F: FileLayer> Client<F> {
    async fn run(mut self, until: Instant) -> Result<(), LoadError> {
        let directory = self.world.files.make_directory(&mut self.program).await?;
        while self.world.rt.now() < until {
            let begun = self.world.rt.now();
            self.step(directory).await?;
            let ns = self.world.rt.now().ns_since(begun);
            self.latency.borrow_mut().record(ns);
        }
        for file in std::mem::take(&mut self.files) {
            self.world.files.remove(file, &mut self.program).await?;
        }
        Ok(())
    }

    async fn play(self, script: &LoadFile, until: Instant) -> Result<(), LoadError> {
        let (latency, bytes) = (self.latency, self.bytes);
        let moved = |count: u64| bytes.set(bytes.get() + count);
        let mut player = Player::new(self.world, script, self.program);
        player.play(until, &latency, moved).await
    }

    async fn step(&mut self, directory: u32) -> Result<(), LoadError> {
        let draw = self.rng.below(20);
        let files = self.world.files.clone();
        if self.files.is_empty() || ((13..16).contains(&draw) && self.files.len() < FILES_MAX) {
            let open = files.create(directory, &mut self.program).await?;
            self.files.push(files.file_of(&open));
            return Ok(());
        }
        let last = self.files[self.files.len() - 1];
        match draw {
            0..7 => self.write(last).await?,
            7..13 => self.read().await?,
            13..19 => {
                let at = self.rng.below(self.files.len() as u64) as usize;
                let file = self.files.swap_remove(at);
                files.remove(file, &mut self.program).await?;
            }
            _ => files.sync_file(last, &mut self.program).await?,
        }
        Ok(())
    }

    fn chunk(&mut self) -> u64 {
        4096 * self.rng.between(1, 16)
    }

    async fn write(&mut self, file: FileId) -> Result<(), LoadError> {
        let files = &self.world.files.clone();
        let (length, bytes) = (files.size_bytes(file), self.chunk());
        let offset = match length + bytes <= FILE_BYTES_MAX {
            true => length,
            false => 0,
        };
        files.write(file, offset, bytes, &mut self.program).await?;
        self.count(bytes);
        Ok(())
    }

    async fn read(&mut self) -> Result<(), LoadError> {
        let at = self.rng.below(self.files.len() as u64) as usize;
        let (file, bytes) = (self.files[at], self.chunk());
        let files = &self.world.files.clone();
        let length = files.size_bytes(file);
        if length == 0 {
            return Ok(());
        }
        let offset = self.rng.below(length) / 4096 * 4096;
        let mut open = files.open(file, &mut self.program).await?;
        files
            .read(&mut open, offset, bytes, &mut self.program)
            .await?;
        self.count(bytes.min(length - offset));
        Ok(())
    }

    fn count(&self, bytes: u64) {
        self.bytes.set(self.bytes.get() + bytes);
    }
}
