//! One run of one cell, in virtual time, and what comes of runs wherever they happen: the queue with its scheduler and the
//! file layer over some device, and a load on them.

use std::collections::BTreeMap;
use std::rc::Rc;

use bimetal_block::IoError;
use bimetal_block::device::Device;
use bimetal_block::layers::queue::Queue;
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::null::NullDevice;
use bimetal_policy::scheduler::{Counts, DirectionCounts};
use bimetal_policy::write_back::WriteMode;
use bimetal_rt::{Rt, VirtualOptions};
use serde::{Deserialize, Serialize};

use crate::device::{Backend, DeviceSettings};
use crate::files::{CpuCosts, FileSystemKind, Files, FilesConfig};
use crate::latency::Latencies;
use crate::layer::LoadError;
use crate::native::NativeError;
use crate::plan::{content_hash, queue_config};
use crate::stack::StackError;
use crate::workload::{Measured, Resolved, World};

/// The version of what is written of a run. Runs of other versions are made again.
pub const SCHEMA: u32 = 1;

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

    /// Refuses what can be no name of the kernel's: names become paths in sysfs.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check_words(&self) -> Result<(), String> {
        for name in std::iter::once(&self.name).chain(self.parameters.keys()) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
            if name.is_empty() || !name.chars().all(plain) {
                return Err(format!(
                    "`{name}` is no name of a scheduler or of a parameter"
                ));
            }
        }
        for (name, value) in &self.parameters {
            if !value.is_integer() && !value.is_str() {
                return Err(format!(
                    "`{name}` must be a whole number or a text, as in queue/iosched"
                ));
            }
        }
        Ok(())
    }
}

/// Everything that a run depends on, but for its seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Where the run happens.
    #[serde(default, skip_serializing_if = "Backend::is_virtual")]
    pub backend: Backend,
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
    /// Pages of memory; 0 for all of the machine's.
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
    /// Time from start to end, in ns.
    pub elapsed_ns: u64,
    /// What bios took, where that is known: the kernel's are counted only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latencies>,
    /// The machine on which it was made, if it was not in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
}

/// What else a run on a machine depends on, and how its settings read just before the load.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The release of the kernel.
    pub kernel: String,
    /// The device, in words.
    pub device: String,
    /// Settings as they were read back, by their paths.
    pub settings: BTreeMap<String, String>,
    /// The command that made the file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<String>,
    /// The options with which the kernel has mounted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<String>,
    /// What counted the requests.
    pub counted_by: String,
    /// Processor time of this program during the run, in ns.
    #[serde(default)]
    pub cpu_ns: u64,
    /// How far behind their models emulated devices were, where there are such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lateness: Option<Lateness>,
}

/// How far behind the times of its model an emulated device was: what the emulation added to what it emulates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Events of the model, such as the end of a request.
    pub events: u64,
    /// How late they were in the mean, in ns.
    pub mean_ns: u64,
    /// The latest, in ns.
    pub max_ns: u64,
}

/// Why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The load did not come to its end.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Settings that cannot be made, though they were read.
    #[error("{0}")]
    Settings(String),
    /// The device refused something.
    #[error("the device refused a request: {0}")]
    Device(IoError),
    /// Devices of our stack do not open or close.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The machine does not do what the run needs.
    #[error(transparent)]
    Native(#[from] NativeError),
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
    let DeviceSettings::Model(of) = &settings.device else {
        let why = "a device of a machine has no virtual time";
        return Err(RunError::Settings(why.to_owned()));
    };
    let parameters = of.model().map_err(RunError::Settings)?;
    let below = Rc::new(NullDevice::new(rt, of.size_bytes));
    let device = Timing::new(rt, below, &parameters, seed)
        .map_err(|error| RunError::Settings(error.to_string()))?;
    let device = Rc::new(device);
    let bed = Bed {
        device: Rc::clone(&device) as Rc<dyn Device>,
        depth: of.depth,
        cpu: CpuCosts::default(),
    };
    let outcome = rt.block_on(bed.run(rt, choice, settings, seed))?;
    let counters = device.counters();
    Ok(Outcome {
        seeks: counters.seeks,
        seek_distance_bytes: counters.seek_distance_bytes,
        ..outcome
    })
}

/// What the queue of a run is put on.
pub(crate) struct Bed {
    pub device: Rc<dyn Device>,
    /// Requests that it is given at a time.
    pub depth: u32,
    /// What processors take.
    pub cpu: CpuCosts,
}

impl Bed {
    /// Runs the load of a cell in the time of `rt`. The file layer ends with the runtime.
    ///
    /// # Errors
    /// When the device is too small for the load, or refuses something.
    ///
    /// # Panics
    /// When the counts contradict each other.
    pub(crate) async fn run(
        self,
        rt: &Rt,
        choice: &BTreeMap<String, String>,
        settings: &Settings,
        seed: u64,
    ) -> Result<Outcome, RunError> {
        let begun = rt.now();
        let config = queue_config(&settings.scheduler, self.depth);
        let queue = Queue::new(rt, self.device, &config)
            .map_err(|error| RunError::Settings(error.to_string()))?;
        let queue = Rc::new(queue);
        let files = Files::new(rt, Rc::clone(&queue), files_config(settings, self.cpu)?);
        let world = World {
            rt: rt.clone(),
            files: files.clone(),
            seed,
        };
        let measured = settings.workload.run(&world).await;
        files.until_idle().await;
        if let Some(error) = files.device_failure() {
            return Err(RunError::Device(error));
        }
        let Counts { reads, writes } = queue.counts();
        let (flushes, read_bytes, written_bytes) = files.device_traffic();
        Ok(Outcome {
            schema: SCHEMA,
            choice: choice.clone(),
            settings: settings.clone(),
            seed,
            measured: measured?,
            reads: Direction::new(&reads, read_bytes),
            writes: Direction::new(&writes, written_bytes),
            flushes,
            seeks: 0,
            seek_distance_bytes: 0,
            elapsed_ns: rt.now().ns_since(begun),
            latency: Some(files.device_latencies()),
            machine: None,
        })
    }
}

fn files_config(settings: &Settings, cpu: CpuCosts) -> Result<FilesConfig, RunError> {
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
        cpu,
    })
}
