//! The scenario that a seed draws: an index, the steps of its programs, and the faults of its disk.
//!
//! Each kind of operation occurs in some seeds and not in others, and with a different frequency in
//! each seed (swarm testing), because a run with all operations together reaches fewer states.

use bimetal_index::model::{Change, Draw, Shape, small_options, small_paper_options};
use bimetal_index::storage::memory::{Astray, Call};
use serde::{Serialize, Serializer};

use super::classes::{Class, Classes};

/// Maximum length in bytes of a value of [`Class::HugeValues`]; a log of 16 MiB accepts such
/// values.
const HUGE_VALUE_BYTES_MAX: u64 = (1 << 20) + (1 << 19);
/// The length of a long batch is computed from the length of the log. A log that is longer than
/// this number of bytes counts as this long.
const LONG_BATCH_LOG_BYTES: u64 = 1 << 20;

/// A step of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Step {
    /// Writes a batch.
    Write,
    /// Makes all earlier writes durable.
    Sync,
    /// Reads a key.
    Get,
    /// Scans a range of keys, upwards or downwards.
    Scan,
    /// Begins a scan, or reads more rows of a scan that was begun earlier.
    SlowScan,
    /// Takes a snapshot, reads from an open snapshot, or drops one.
    Snapshot,
    /// Begins a transaction, or runs an operation of an open transaction, or ends one.
    Transaction,
    /// Takes a checkpoint.
    Checkpoint,
    /// Writes all buffered changes to the nodes.
    WriteBack,
    /// Compacts the storage.
    Compact,
}

impl Step {
    const ALL: [Step; 10] = [
        Step::Write,
        Step::Sync,
        Step::Get,
        Step::Scan,
        Step::SlowScan,
        Step::Snapshot,
        Step::Transaction,
        Step::Checkpoint,
        Step::WriteBack,
        Step::Compact,
    ];

    /// Returns the possible frequencies of the step; a seed draws one of them.
    fn weights(self) -> &'static [u64] {
        match self {
            Step::Write => &[200, 400, 800],
            Step::Sync | Step::Snapshot | Step::SlowScan => &[0, 5, 40],
            Step::Get => &[10, 100],
            Step::Scan => &[0, 10, 40],
            Step::Transaction => &[0, 20, 200],
            Step::Checkpoint | Step::WriteBack | Step::Compact => &[0, 1, 8],
        }
    }

    /// Returns the name of the step in a report.
    pub fn name(self) -> &'static str {
        match self {
            Step::Write => "write",
            Step::Sync => "sync",
            Step::Get => "get",
            Step::Scan => "scan",
            Step::SlowScan => "slow scan",
            Step::Snapshot => "snapshot",
            Step::Transaction => "transaction",
            Step::Checkpoint => "checkpoint",
            Step::WriteBack => "write-back",
            Step::Compact => "compaction",
        }
    }
}

/// Failure of an operation of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of disk operations from the start of the life. The first operation of the kind `call`
    /// after this number of operations fails.
    pub after_operations: u64,
    /// Kind of the operation.
    pub call: Call,
    /// Whether all later operations of the kind fail as well.
    pub for_good: bool,
}

/// A period in which the disk cannot grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FullFor {
    /// First step of the period.
    pub from_step: u64,
    /// First step after the period.
    pub to_step: u64,
}

/// End of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The index is closed, which makes all writes durable.
    Clean,
    /// The program is killed, and the disk keeps all written content.
    Kill,
    /// The power is cut after the last step, unless it was cut earlier.
    PowerCut,
}

/// One life of a program.
#[derive(Clone, Debug)]
pub struct Life {
    /// Number of steps; a fault can end the life earlier.
    pub steps: u64,
    /// End of the life.
    pub end: End,
    /// Number of the disk operation, counted from the start of the life, at which the power is cut.
    pub cut_after_operations: Option<u64>,
    /// Whether a power cut loses all content that is not durable, rather than a random part of it.
    pub loses_all: bool,
    /// Failure of a disk operation, if there is one.
    pub failure: Option<Failure>,
    /// Period in which the disk is full.
    pub full: Option<FullFor>,
    /// A lost or misdirected operation. The fault hits the first suitable disk operation after the
    /// given number of disk operations.
    pub astray: Option<(u64, Astray)>,
    /// Whether the lost or misdirected operation (`astray`) must be in the segments, rather than in
    /// the log or a superblock.
    pub astray_in_segments: bool,
    /// Bit rot after the life. For each byte that changes: its offset in units of 1/2^32 of the
    /// length of the disk, and the mask of the bits that flip.
    pub rot: Vec<(u32, u8)>,
    /// One element for each opening after this life in which the power is cut: the number of the
    /// disk operation at which it is cut. Operations are counted from the start of the opening.
    pub cuts_in_opening: Vec<u64>,
    /// Disk operations that fail in the openings after this life. Each element is for one attempt
    /// to open: the number of the failing operation, counted from the start of the attempt.
    pub failures_in_opening: Vec<u64>,
}

/// Scenario of a seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Fault classes that occur in the seed.
    pub classes: Classes,
    /// Options with which the index is created and opened.
    pub options: bimetal_index::Options,
    /// Distribution from which keys and values are drawn.
    pub shape: Shape,
    /// Frequency of each step.
    pub weights: Vec<(Step, u64)>,
    /// Average interval, in batches, between batches that are about as long as the log accepts; 0
    /// means no such batch.
    pub long_batch_in: u64,
    /// Average interval, in batches, between batches with a value of up to `HUGE_VALUE_BYTES_MAX`
    /// bytes; 0 means no such batch.
    pub huge_value_in: u64,
    /// Average number of batches, out of sixteen, that are written with relaxed durability.
    pub relaxed_of_16: u64,
    /// The lives.
    pub lives: Vec<Life>,
}

impl Serialize for Scenario {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{self:?}"))
    }
}

/// Returns the random stream of a fault class in a seed.
fn stream_of(seed: u64, class: Class) -> Draw {
    Draw::new(seed ^ (class as u64 + 1) << 48)
}

impl Scenario {
    /// Draws the scenario of a seed. Each class in `on` occurs in a third of the seeds; `PowerCut`
    /// occurs in every seed if it is on.
    pub fn draw(seed: u64, on: Classes) -> Scenario {
        let mut draw = Draw::new(seed);
        let classes: Classes = on
            .iter()
            .filter(|class| stream_of(seed, *class).below(3) == 0 || *class == Class::PowerCut)
            .collect();
        let mut options = match classes.has(Class::Paper) {
            true => small_paper_options(&mut stream_of(!seed, Class::Paper)),
            false => small_options(&mut draw),
        };
        // The program has one writer, so a group commit need not wait for batches of other writers.
        options.group_wait_us = 0;
        options.hot_share = draw.one_of(&[0.0, 1.0 / 3.0, 1.0]);
        if classes.has(Class::OldSnapshots) {
            options.snapshot_batches_max = stream_of(!seed, Class::OldSnapshots).magnitude(8);
        }
        let is_paper = classes.has(Class::Paper);
        if classes.has(Class::GrowingLog) && !is_paper {
            options.log_bytes = stream_of(!seed, Class::GrowingLog).one_of(&[4 << 20, 16 << 20]);
        }
        let mut huge_value_in = 0;
        if classes.has(Class::HugeValues) && !is_paper {
            options.log_bytes = 16 << 20;
            huge_value_in = stream_of(!seed, Class::HugeValues).one_of(&[8, 64]);
        }
        let weights = Step::ALL.map(|step| (step, draw.one_of(step.weights())));
        let mut scenario = Scenario {
            seed,
            classes,
            options,
            shape: Shape::draw(&mut draw),
            weights: weights.to_vec(),
            long_batch_in: draw.one_of(&[0, 0, 4, 64]),
            huge_value_in,
            relaxed_of_16: draw.one_of(&[0, 2, 8, 16]),
            lives: Vec::new(),
        };
        let lives = 1 + draw.below(5);
        for number in 0..lives {
            scenario.lives.push(life(&mut draw));
            scenario.add_faults(number as usize);
        }
        scenario
    }

    fn stream(&self, class: Class, life: usize) -> Option<Draw> {
        let seed = self.seed.wrapping_add((life as u64 + 1) << 40);
        self.classes.has(class).then(|| stream_of(!seed, class))
    }

    fn add_faults(&mut self, number: usize) {
        let streams = Class::ALL.map(|class| (class, self.stream(class, number)));
        let life = &mut self.lives[number];
        for (class, stream) in streams {
            if let Some(mut draw) = stream {
                life.add(class, &mut draw);
            }
        }
    }

    /// Draws the changes of a batch.
    pub fn batch(&self, draw: &mut Draw) -> Vec<Change> {
        let mut batch = self.shape.batch(draw);
        if self.huge_value_in > 0 && draw.once_in(self.huge_value_in) {
            batch.push(Change::Put(self.shape.key(draw), huge_value(draw)));
        }
        if self.long_batch_in == 0 || !draw.once_in(self.long_batch_in) {
            return batch;
        }
        let bytes_of = |change: &Change| match change {
            Change::Put(key, value) => key.len() + value.len(),
            Change::Delete(key) | Change::DeleteRange(key, _) => key.len(),
        };
        // The batch can be slightly longer than the limit of a batch. For a short log, this limit
        // is an eighth of the length of the log.
        let log_bytes = self.options.log_bytes.min(LONG_BATCH_LOG_BYTES);
        let wanted = draw.below(log_bytes / 7) as usize;
        let mut bytes = 0;
        while bytes < wanted {
            let more = self.shape.batch(draw);
            bytes += more.iter().map(bytes_of).sum::<usize>();
            batch.extend(more);
        }
        batch
    }

    /// Draws the next step of a program. Each kind of step is drawn with the frequency that the
    /// scenario gives it.
    pub fn step(&self, draw: &mut Draw) -> Step {
        let all = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut left = draw.below(all);
        for (step, weight) in &self.weights {
            if left < *weight {
                return *step;
            }
            left -= weight;
        }
        Step::Write
    }
}

/// Draws a value that is long enough to be read in many parts, and that does not compress.
fn huge_value(draw: &mut Draw) -> Vec<u8> {
    let len = draw.below(HUGE_VALUE_BYTES_MAX) as usize;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&draw.number().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn life(draw: &mut Draw) -> Life {
    Life {
        steps: 20 + draw.magnitude(12),
        end: End::Clean,
        cut_after_operations: None,
        loses_all: draw.once_in(3),
        failure: None,
        full: None,
        astray: None,
        astray_in_segments: false,
        rot: Vec::new(),
        cuts_in_opening: Vec::new(),
        failures_in_opening: Vec::new(),
    }
}

impl Life {
    fn add(&mut self, class: Class, draw: &mut Draw) {
        match class {
            Class::PowerCut if !draw.once_in(4) => {
                self.end = End::PowerCut;
                self.cut_after_operations = Some(draw.magnitude(15));
            }
            Class::CutOpening => {
                let cuts = draw.below(4);
                self.cuts_in_opening = (0..cuts).map(|_| draw.magnitude(7)).collect();
            }
            Class::Kill if draw.once_in(2) => {
                self.end = End::Kill;
                self.cut_after_operations = None;
            }
            Class::FailedReads => self.fail(&[Call::Read], draw),
            Class::FailedWrites => self.fail(&[Call::Write, Call::Write, Call::Resize], draw),
            Class::FailedSyncs => self.fail(&[Call::Sync], draw),
            Class::FailedOpening => {
                let failures = draw.below(3);
                self.failures_in_opening = (0..failures).map(|_| draw.magnitude(6)).collect();
            }
            Class::Full if draw.once_in(2) => {
                let from_step = draw.below(self.steps);
                let to_step = from_step + 1 + draw.below(self.steps);
                self.full = Some(FullFor { from_step, to_step });
            }
            Class::Rot if draw.once_in(2) => {
                let bytes = 1 + draw.magnitude(6);
                let byte = |_| (draw.number() as u32, draw.below(255) as u8 + 1);
                self.rot = (0..bytes).map(byte).collect();
            }
            Class::LostWrites => self.lead_astray(Astray::LostWrite, draw),
            Class::MisdirectedWrites => {
                let by = 1 + draw.magnitude(10);
                self.lead_astray(Astray::MisdirectedWrite(by), draw);
            }
            Class::MisdirectedReads => {
                let by = 1 + draw.magnitude(10);
                self.lead_astray(Astray::MisdirectedRead(by), draw);
            }
            Class::LostNodes => {
                let by = 1 + draw.magnitude(10);
                let astray = draw.one_of(&[Astray::LostWrite, Astray::MisdirectedWrite(by)]);
                self.lead_astray(astray, draw);
                self.astray_in_segments = true;
            }
            _ => {}
        }
    }

    fn fail(&mut self, calls: &[Call], draw: &mut Draw) {
        if draw.once_in(2) {
            self.failure = Some(Failure {
                after_operations: draw.magnitude(14),
                call: draw.one_of(calls),
                for_good: draw.once_in(3),
            });
        }
    }

    fn lead_astray(&mut self, astray: Astray, draw: &mut Draw) {
        if draw.once_in(2) {
            self.astray = Some((draw.magnitude(14), astray));
        }
    }
}
