//! One life of a program with an index: the steps of the program, and the check that each answer of
//! the index is correct.
//!
//! An error is correct only if a fault explains it: the disk has failed a call, the disk is full,
//! or some bytes of the disk differ from the bytes written. A wrong value is never correct.

use std::ops::Range;

use bimetal_index::model::{Change, batch_of};
use bimetal_index::storage::Storage;
use bimetal_index::storage::memory::Faults;
use bimetal_index::{Db, Error};

use super::readers::Readers;
use super::scenario::{End, Life, Step};
use super::world::{Checked, World, check_scan, lend, same};

/// Number of steps that a program still runs after its disk has failed permanently or its index has
/// become read-only.
const STEPS_AFTER_THE_END: u64 = 8;

const MIB: usize = 1 << 20;

/// Number of segments that the index fills concurrently.
const STREAMS: u64 = 4;

/// Byte offsets of the superblocks and the log on the disk.
pub struct LogPlaces {
    /// End of the area that contains both superblocks and the first ring of the log.
    pub front_end: u64,
    /// Byte ranges of the rings of the log.
    pub ranges: Vec<Range<u64>>,
}

/// A program with an open index and its readers.
pub struct Program<'w, 'a> {
    /// The index.
    pub db: Db,
    /// Disk and expected content of the index.
    pub world: &'w mut World<'a>,
    readers: Readers,
}

impl<'w, 'a> Program<'w, 'a> {
    /// Creates a program that has just opened the index.
    pub fn new(db: Db, world: &'w mut World<'a>) -> Program<'w, 'a> {
        Program {
            db,
            world,
            readers: Readers::default(),
        }
    }

    /// Runs the steps of a life and stops the program. Returns the offsets of the log at the stop.
    pub fn live(mut self, life: &Life) -> Checked<LogPlaces> {
        let log_end = self.db.segments_offset();
        let world = &mut *self.world;
        world.at_start = world.disk.counts();
        world.is_read_only = false;
        world.is_full = false;
        world.was_full = false;
        world.disk.set_faults(world.faults(life, log_end));
        let mut left = STEPS_AFTER_THE_END;
        for number in 0..life.steps {
            self.fill_the_disk(life, number);
            if self.world.disk.is_off() || self.world.is_read_only {
                left -= 1;
            }
            if left == 0 {
                break;
            }
            self.step()?;
        }
        self.stop(life)
    }

    /// Starts or ends the period in which the disk is full, if the period starts or ends at this
    /// step.
    fn fill_the_disk(&mut self, life: &Life, step: u64) {
        let Some(full) = life.full else { return };
        let world = &mut *self.world;
        if step == full.from_step {
            world.is_full = true;
            world.was_full = true;
            let len_bytes_max = Some(world.disk.len_bytes());
            let faults = world.disk.faults();
            world.disk.set_faults(Faults {
                len_bytes_max,
                ..faults
            });
        } else if step == full.to_step {
            world.is_full = false;
            let faults = world.disk.faults();
            world.disk.set_faults(Faults {
                len_bytes_max: None,
                ..faults
            });
        }
    }

    fn step(&mut self) -> Checked {
        let step = self.world.scenario.step(&mut self.world.draw);
        match step {
            Step::Write => self.write(),
            Step::Get => self.get(),
            Step::Scan => self.scan(),
            Step::Sync => self.keep(Db::sync),
            Step::Checkpoint => self.keep(Db::checkpoint),
            Step::WriteBack => self.keep(Db::write_back),
            Step::Compact => self.keep(|db| db.compact(|_| {})),
            Step::SlowScan => self.readers.go_on_scanning(&self.db, self.world),
            Step::Snapshot => self.readers.look_back(&self.db, self.world),
            Step::Transaction => self.readers.transact(&self.db, self.world),
        }
        .and_then(|()| self.check_memory())
        .map_err(|what| format!("{}: {what}", step.name()))?;
        let world = &mut *self.world;
        *world.operations.entry(step.name().to_owned()).or_default() += 1;
        let counts = world.disk.counts();
        let (given, durable) = (world.history.given(), world.history.durable());
        let numbers = [
            step as u64,
            counts.operations,
            counts.written_bytes,
            counts.failures,
            given as u64,
            durable as u64,
        ];
        world.trace.event(&numbers, || {
            format!(
                "{:12} {given} batches, {durable} durable, {} disk requests, {} failed",
                step.name(),
                counts.operations,
                counts.failures
            )
        });
        Ok(())
    }

    fn write(&mut self) -> Checked {
        let world = &mut *self.world;
        let changes = world.scenario.batch(&mut world.draw);
        let changes = world.history.numbered(&changes);
        let durability = world.durability();
        let failures = world.disk.counts().failures;
        let answer = self.db.write(&batch_of(&changes), durability);
        world.judge_write(&answer, failures)?;
        let is_huge =
            |change: &Change| matches!(change, Change::Put(_, value) if value.len() >= MIB);
        // The write can be durable although a call failed during the maintenance that followed.
        // This maintenance is then incomplete.
        let is_behind = answer.is_err() || world.disk.counts().failures > failures;
        world.was_full &= world.is_full || is_behind;
        if answer.is_ok() && changes.iter().any(is_huge) {
            world.reach("value of a mebibyte");
        }
        world
            .history
            .wrote(changes, durability, answer.as_ref().err());
        Ok(())
    }

    /// Checks that the index keeps its memory for nodes and changes within the bound. The bound
    /// does not include changes that are being written. Skips the check if the disk was full and
    /// the index has not caught up since: the changes in memory can then exceed the bound. Also
    /// skips the check if the index is read-only.
    fn check_memory(&self) -> Checked {
        let world = &*self.world;
        if world.was_full || world.is_read_only {
            return Ok(());
        }
        let used = self.db.memory_bytes();
        let options = &world.scenario.options;
        let batch_bytes = options.log_bytes / 8;
        let bound = options.memory_bytes + STREAMS * u64::from(options.segment_bytes) + batch_bytes;
        match used <= bound {
            true => Ok(()),
            false => Err(format!(
                "{used} bytes of memory are used, {} of them for changes; the bound is {bound}",
                self.db.statistics().delta_bytes
            )),
        }
    }

    /// Runs an action of the index that also makes all earlier writes durable.
    fn keep(&mut self, act: impl FnOnce(&Db) -> Result<(), Error>) -> Checked {
        let world = &mut *self.world;
        let failures = world.disk.counts().failures;
        let answer = act(&self.db);
        world.judge_write(&answer, failures)?;
        if answer.is_ok() {
            world.history.synced();
        }
        Ok(())
    }

    fn get(&mut self) -> Checked {
        let world = &mut *self.world;
        let key = world.key();
        let failures = world.disk.counts().failures;
        match self.db.get(&key) {
            Ok(value) => same(&key, value.as_ref(), world.history.now().get(&key)),
            Err(error) => world.judge_read(&error, failures, world.history.given()),
        }
    }

    fn scan(&mut self) -> Checked {
        let world = &mut *self.world;
        let bounds = world.between();
        let is_reverse = world.draw.once_in(2);
        let rows_max = world.draw.magnitude(13) as usize;
        let scan = match is_reverse {
            true => self.db.scan_reverse(lend(&bounds)),
            false => self.db.scan(lend(&bounds)),
        };
        let now = world.history.now();
        let since = world.history.given();
        check_scan(world, scan, now, since, &bounds, is_reverse, rows_max)
    }

    /// Stops the program. The readers are dropped before the index is closed or abandoned.
    fn stop(self, life: &Life) -> Checked<LogPlaces> {
        let Program { db, world, readers } = self;
        drop(readers);
        if life.end == End::Clean && !world.disk.is_off() && !world.is_read_only {
            let failures = world.disk.counts().failures;
            let answer = db.clone().close();
            world.judge_write(&answer, failures)?;
            if answer.is_ok() {
                world.history.synced();
                world.reach("stopped cleanly");
            }
        }
        let statistics = db.statistics();
        world.note_maintenance(&statistics.maintenance);
        let log = LogPlaces {
            front_end: db.segments_offset(),
            ranges: db.log_ranges(),
        };
        // Like a killed program, the index writes nothing more.
        db.abandon();
        Ok(log)
    }
}
