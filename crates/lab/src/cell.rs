//! Executes one run of one cell (a combination of choices in an experiment): a load above the file
//! layer, the queue with its scheduler, and a device. [`run`] uses a modelled device in virtual
//! time.

use std::collections::BTreeMap;
use std::rc::Rc;

use bimetal_block::device::Device;
use bimetal_block::layers::queue::QueueLayer;
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::null::NullDevice;
use bimetal_policy::scheduler::QueueCounters;
use bimetal_policy::write_back::WriteMode;
use bimetal_rt::{Rt, VirtualOptions};

use crate::device::DeviceSettings;
use crate::failure::RunError;
use crate::files::{CpuCosts, FileSystemKind, Files, FilesConfig};
use crate::outcome::{Direction, Outcome};
use crate::settings::{SCHEMA, Settings, queue_config};
use crate::workload::World;

/// Runs a cell (a combination of choices in an experiment) with the given seed, on a modelled
/// device in virtual time.
///
/// # Errors
/// If the settings cannot be realized, or the device is too small for the load.
///
/// # Panics
/// If the counters of the run are inconsistent.
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
    // The flusher and the timers of the file layer run until the runtime ends, so end the runtime.
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

/// Device below the queue of a run, and CPU costs of the file layer above the queue.
pub(crate) struct Bed {
    pub device: Rc<dyn Device>,
    /// Queue depth of the device.
    pub depth: u32,
    /// CPU costs of the calls of programs.
    pub cpu: CpuCosts,
}

impl Bed {
    /// Runs the load of a cell on the runtime `rt`, in virtual or real time. The background tasks
    /// of the file layer end only with the runtime.
    ///
    /// # Errors
    /// If the device is too small for the load, or fails a request.
    ///
    /// # Panics
    /// If the counters of the run are inconsistent.
    pub(crate) async fn run(
        self,
        rt: &Rt,
        choice: &BTreeMap<String, String>,
        settings: &Settings,
        seed: u64,
    ) -> Result<Outcome, RunError> {
        let begun = rt.now();
        let config = queue_config(&settings.scheduler, self.depth);
        let queue = QueueLayer::new(rt, self.device, &config)
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
        let QueueCounters { reads, writes } = queue.counts();
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
