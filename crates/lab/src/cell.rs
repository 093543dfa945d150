//! One run of one cell: a world in virtual time, and what came of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use bimetal_block::device::Device;
use bimetal_block::layers::queue::Queue;
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_block::media::null::NullDevice;
use bimetal_policy::scheduler::{Counts, DirectionCounts};
use bimetal_policy::write_back::WriteMode;
use bimetal_rt::{Rt, VirtualOptions};
use serde::{Deserialize, Serialize};

use crate::files::{CpuCosts, FileSystemKind, Files, FilesConfig, NoSpace};
use crate::plan::{content_hash, queue_config};
use crate::workload::{Measured, Resolved, World};

/// The version of what is written of a run. Runs of other versions are made again.
pub const SCHEMA: u32 = 1;

/// A device, with every parameter of its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSettings {
    /// The kind of model.
    #[serde(rename = "type")]
    pub of: ModelType,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Requests that it is given at a time.
    pub depth: u32,
    /// All parameters of the model.
    pub parameters: toml::Table,
}

impl DeviceSettings {
    fn model(&self) -> Result<Parameters, String> {
        let profile = self.of.default_profile();
        Parameters::from_profile(self.of, profile, self.parameters.clone())
            .map_err(|error| error.to_string().replace('\n', " "))
    }

    /// Refuses what cannot be made.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=1024).contains(&self.depth) {
            return Err("`depth` must be 1 to 1024".to_owned());
        }
        self.model().map(|_| ())
    }
}

/// All parameters of a model, as they are written.
pub(crate) fn written(parameters: &Parameters) -> toml::Table {
    let table = match parameters {
        Parameters::Ssd(of) => toml::Table::try_from(of),
        Parameters::Hdd(of) => toml::Table::try_from(of),
        Parameters::Network(of) => toml::Table::try_from(of),
        Parameters::Flash(of) => toml::Table::try_from(of.as_ref()),
    };
    table.expect("parameters are plain data")
}

/// A scheduler, with the parameters that are not at their defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulerSettings {
    /// Its name.
    pub name: String,
    /// Its parameters.
    pub parameters: BTreeMap<String, toml::Value>,
}

impl SchedulerSettings {
    /// Refuses what does not exist.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        queue_config(self, 1).check()
    }
}

/// Everything that a run depends on, but for its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The device.
    pub device: DeviceSettings,
    /// The scheduler in front of it.
    pub scheduler: SchedulerSettings,
    /// The longest window of read-ahead, in pages of 4 KiB.
    pub read_ahead_pages: u64,
    /// `back` or `through`.
    pub write_mode: String,
    /// The layout.
    pub file_system: String,
    /// The load.
    pub workload: Resolved,
    /// Pages of memory.
    pub memory_pages: u32,
    /// Whether commits and syncs flush the device's cache.
    pub barriers: bool,
}

/// One direction of what a queue has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Direction {
    /// Bios that came (*enqueued*).
    pub bios: u64,
    /// Bios put behind a request.
    pub back_merges: u64,
    /// Bios put in front of a request.
    pub front_merges: u64,
    /// Requests absorbed by another.
    pub request_merges: u64,
    /// Rests of bios that were split.
    pub splits: u64,
    /// Requests given to the device (*dequeued*).
    pub issued: u64,
    /// Requests done by the device.
    pub completed: u64,
    /// Bytes asked for.
    pub bytes: u64,
}

impl Direction {
    fn new(counts: &DirectionCounts, bytes: u64) -> Direction {
        let of = Direction {
            bios: counts.bios,
            back_merges: counts.back_merges,
            front_merges: counts.front_merges,
            request_merges: counts.request_merges,
            splits: counts.splits,
            issued: counts.issued,
            completed: counts.completed,
            bytes,
        };
        // What holds in every run, or none of its figures can be believed.
        let merges = of.back_merges + of.front_merges + of.request_merges;
        assert_eq!(
            of.issued + merges,
            of.bios + of.splits,
            "issued = bios - merges + splits: {of:?}"
        );
        assert_eq!(of.issued, of.completed, "nothing is left behind: {of:?}");
        of
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The version of this.
    pub schema: u32,
    /// The choices of its cell.
    pub choice: BTreeMap<String, String>,
    /// Everything it depends on.
    pub settings: Settings,
    /// Its seed.
    pub seed: u64,
    /// What was measured.
    pub measured: Measured,
    /// Reads at the device.
    pub reads: Direction,
    /// Writes at the device.
    pub writes: Direction,
    /// Flushes at the device.
    pub flushes: u64,
    /// Seeks of a disk, and the bytes of address that it moved over.
    pub seeks: u64,
    /// See `seeks`.
    pub seek_distance_bytes: u64,
    /// Virtual time from start to end, in ns.
    pub elapsed_ns: u64,
}

/// Why a run has no outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RunError {
    /// The device has no room for the load.
    #[error("{0}")]
    NoSpace(#[from] NoSpace),
    /// Settings that cannot be made, though they were read.
    #[error("{0}")]
    Settings(String),
}

/// The identity of a run: the same settings, seed and version give the same outcome.
pub fn run_id(settings: &Settings, seed: u64) -> String {
    content_hash(&(SCHEMA, settings, seed))
}

/// Runs a cell with a seed.
///
/// # Errors
/// When the device is too small for the load.
///
/// # Panics
/// When the counts contradict each other.
pub fn run(
    choice: &BTreeMap<String, String>,
    settings: &Settings,
    seed: u64,
) -> Result<Outcome, RunError> {
    let rt = Rt::virtual_time(VirtualOptions {
        seed,
        shuffle: false,
    });
    let outcome = run_in(&rt, choice, settings, seed);
    // Flushers and timers have no end of their own.
    rt.end();
    outcome
}

fn run_in(
    rt: &Rt,
    choice: &BTreeMap<String, String>,
    settings: &Settings,
    seed: u64,
) -> Result<Outcome, RunError> {
    let parameters = settings.device.model().map_err(RunError::Settings)?;
    let below = Rc::new(NullDevice::new(rt, settings.device.size_bytes));
    let device = Timing::new(rt, below, &parameters, seed)
        .map_err(|error| RunError::Settings(error.to_string()))?;
    let device = Rc::new(device);
    let config = queue_config(&settings.scheduler, settings.device.depth);
    let queue = Queue::new(rt, Rc::clone(&device) as Rc<dyn Device>, &config)
        .map_err(|error| RunError::Settings(error.to_string()))?;
    let queue = Rc::new(queue);
    let files = Files::new(rt, Rc::clone(&queue), files_config(settings)?);
    let world = World {
        rt: rt.clone(),
        files: files.clone(),
        seed,
    };
    let measured = rt.block_on(settings.workload.run(&world))?;
    let Counts { reads, writes } = queue.counts();
    let (flushes, read_bytes, written_bytes) = files.device_traffic();
    let counters = device.counters();
    Ok(Outcome {
        schema: SCHEMA,
        choice: choice.clone(),
        settings: settings.clone(),
        seed,
        measured,
        reads: Direction::new(&reads, read_bytes),
        writes: Direction::new(&writes, written_bytes),
        flushes,
        seeks: counters.seeks,
        seek_distance_bytes: counters.seek_distance_bytes,
        elapsed_ns: rt.now().as_ns(),
    })
}

fn files_config(settings: &Settings) -> Result<FilesConfig, RunError> {
    let name = settings.file_system.as_str();
    let kind = FileSystemKind::ALL
        .iter()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| RunError::Settings(format!("no file system `{name}`")))?
        .1;
    let write_mode = match settings.write_mode.as_str() {
        "through" => WriteMode::Through,
        _ => WriteMode::Back,
    };
    Ok(FilesConfig {
        kind,
        memory_pages: settings.memory_pages,
        read_ahead_pages: settings.read_ahead_pages,
        write_mode,
        barriers: settings.barriers,
        cpu: CpuCosts::default(),
    })
}
