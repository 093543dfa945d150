//! The experiment of the hetero-mirroring paper: 40 to 320 writes per second of 10 to 500 KB at
//! random offsets, with at most 32 outstanding writes, on one SSD, a mirror of two SSDs, the
//! paper's hetero-mirror, and the hetero-mirror of this project with a bounded exposure.
//!
//! Source: sections 4.1 and 4.2 of the paper (its figures 7 and 8), and `docs/models.md` for the
//! devices. The paper's load is a closed queueing model that generates a constant number of writes
//! per second. Here, arrivals are a Poisson process. A write that arrives while 32 writes are
//! outstanding waits for a slot, and its response time starts when it gets the slot, as in a closed
//! model.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bimetal_block::device::{Device, Statistic, StatisticVisitor};
use bimetal_block::graph::OpenError;
use bimetal_block::layers::mirror::formatting::{self, Formatting};
use bimetal_block::layers::mirror::superblock::Candidate;
use bimetal_block::layers::mirror::{
    Mirror, MirrorConfig, MirrorStatus, OpenOptions, SideDevice, SideToOpen,
};
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::model::{ModelError, ModelType, Parameters};
use bimetal_block::media::null::NullDevice;
use bimetal_block::request::{Flags, Request};
use bimetal_rt::sync::{Semaphore, TaskGroup};
use bimetal_rt::{Buf, Rng, Rt, VirtualOptions};

use super::sparse::Sparse;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Difference between successive write lengths, as in the paper (10 KB); each length is rounded up
/// to whole blocks.
const STEP_BYTES: u64 = 10_000;
const STEPS: u64 = 50;
const BLOCK_BYTES: u64 = 4096;
/// Size of the volume in bytes; the SSDs of the paper have 32 GB.
const VOLUME_BYTES: u64 = 32_000_000_000 / BLOCK_BYTES * BLOCK_BYTES;

/// Device profiles of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Devices {
    /// Name of the devices in tables.
    pub name: String,
    /// Name of the profile of the SSDs.
    pub ssd: String,
    /// Name of the profile of the disk.
    pub hdd: String,
    /// Overrides of parameters of the SSD profile, as a line of TOML; empty for none.
    pub ssd_overrides: String,
    /// Overrides of parameters of the disk profile, as a line of TOML; empty for none.
    pub hdd_overrides: String,
}

/// Override that sets the size of the disk to 250 GB, as in the paper. The SSD of the paper has 32
/// GB, so the volume uses only the outer eighth of the disk.
const PAPERS_DISK: &str = "disk_bytes = 250000000000";

impl Devices {
    /// Returns the devices of the hetero-mirroring paper in fit A, in which the disk serves one
    /// request at a time.
    pub fn fit_a() -> Devices {
        Devices {
            name: "A: sata-2009-a + hdd-7200-qd1 (250 GB)".to_owned(),
            ssd: "sata-2009-a".to_owned(),
            hdd: "hdd-7200-qd1".to_owned(),
            ssd_overrides: String::new(),
            hdd_overrides: PAPERS_DISK.to_owned(),
        }
    }

    /// Returns fit B of the paper's devices, in which the disk reorders up to eight queued
    /// requests. The profile `sata-2009` is the SSD of fit B.
    pub fn fit_b() -> Devices {
        Devices {
            name: "B: sata-2009-b + hdd-7200 (250 GB)".to_owned(),
            ssd: "sata-2009-b".to_owned(),
            hdd: "hdd-7200".to_owned(),
            ssd_overrides: String::new(),
            hdd_overrides: PAPERS_DISK.to_owned(),
        }
    }
}

impl Devices {
    /// Returns a consumer SSD with four bits per cell (QLC) and an exhausted SLC cache, and the
    /// disk of the paper.
    pub fn qlc_exhausted() -> Devices {
        Devices {
            name: "QLC: qlc-sata with its SLC cache exhausted + hdd-7200 (250 GB)".to_owned(),
            ssd: "qlc-sata".to_owned(),
            hdd: "hdd-7200".to_owned(),
            ssd_overrides: "slc_cache_bytes_per_tb = 1000000".to_owned(),
            hdd_overrides: PAPERS_DISK.to_owned(),
        }
    }
}

/// Device that receives the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Scheme {
    /// One SSD.
    SingleSsd,
    /// A mirror of two SSDs that acknowledges a write when both SSDs have completed it.
    SsdMirror,
    /// A mirror of an SSD and a disk with the given settings, without logs.
    Hetero {
        /// Name of the scheme in tables.
        name: String,
        /// Keys of the mirror's configuration, as lines of TOML.
        settings: String,
    },
    /// A mirror of an SSD and a disk on formatted sides, with logs and checksums, as the server
    /// runs it.
    Logged {
        /// Name of the scheme in tables.
        name: String,
        /// Keys of the mirror's configuration, as lines of TOML.
        settings: String,
        /// Length of the log on each side, in bytes.
        log_bytes: u64,
        /// Size of the loaded part of the volume, in bytes.
        span_bytes: u64,
    },
}

impl Scheme {
    /// Returns a hetero-mirror scheme. `settings` are keys of the mirror's configuration, as lines
    /// of TOML.
    pub fn hetero(name: &str, settings: &str) -> Scheme {
        Scheme::Hetero {
            name: name.to_owned(),
            settings: settings.to_owned(),
        }
    }

    /// Returns the name of the scheme in tables.
    pub fn name(&self) -> &str {
        match self {
            Scheme::SingleSsd => "single SSD",
            Scheme::SsdMirror => "SSD mirror",
            Scheme::Hetero { name, .. } | Scheme::Logged { name, .. } => name,
        }
    }
}

/// Load of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Average number of writes that arrive per second.
    pub writes_per_s: u64,
    /// Duration of the run in seconds of virtual time.
    pub seconds: u64,
    /// Maximum number of outstanding writes.
    pub outstanding_max: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Number of completed writes per second.
    pub done_per_s: f64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
    /// Median of the response time in milliseconds.
    pub p50_ms: f64,
    /// 99 % quantile of the response time in milliseconds.
    pub p99_ms: f64,
    /// 99.9 % quantile of the response time in milliseconds.
    pub p999_ms: f64,
    /// Maximum number of acknowledged bytes that at least one side lacked; zero without a mirror.
    pub exposed_bytes_peak: u64,
    /// Number of acknowledged bytes that at least one side lacked at the end of the load.
    pub exposed_bytes_end: u64,
    /// Number of mode switches per second, summed over the sides.
    pub mode_switches_per_s: f64,
    /// Bytes written to the log of a side, divided by the length of that log: the lowest value of
    /// all sides. Zero if there are no logs.
    pub log_rounds: f64,
    /// Status of the mirror at the end of the load.
    pub mirror: Option<MirrorStatus>,
}

/// Error in the devices or settings of an experiment.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A device profile that does not exist, or an override that its profile does not allow.
    #[error("{0}")]
    Model(#[from] ModelError),
    /// Settings that are not valid TOML, or keys that a mirror does not have.
    #[error("settings: {0}")]
    Settings(#[from] toml::de::Error),
    /// Values of settings that a mirror refuses.
    #[error("settings: {0}")]
    Mirror(String),
    /// A device profile that does not exist for any type of device.
    #[error("unknown profile {name:?}, expected one of {known}")]
    UnknownProfile {
        /// Requested name.
        name: String,
        /// Existing names, separated by commas.
        known: String,
    },
    /// A load that does not fit the volume.
    #[error("{0}")]
    Load(String),
}

/// Runs one scheme under one load.
///
/// # Errors
/// If a device or a setting does not exist.
pub fn run(devices: &Devices, scheme: &Scheme, load: Load) -> Result<Outcome, ExperimentError> {
    let rt = Rt::virtual_time(VirtualOptions {
        seed: load.seed,
        shuffle: false,
    });
    let (device, mirror) = build(&rt, devices, scheme, load.seed)?;
    let span_bytes = match scheme {
        Scheme::Logged { span_bytes, .. } => *span_bytes,
        _ => VOLUME_BYTES,
    };
    let span_bytes = span_bytes.min(device.geometry().size_bytes);
    let histogram = Rc::new(RefCell::new(
        Histogram::new_with_bounds(1, 3_600_000_000_000, 3).expect("an hour at three digits"),
    ));
    let done = rt.block_on(drive(&rt, device, span_bytes, load, Rc::clone(&histogram)));
    let status = mirror.as_ref().map(Mirror::status);
    let log_rounds = mirror.as_ref().map_or(0.0, log_rounds);
    // A mirror without a bound on its exposure can have a long backlog, so the run ends without
    // draining it.
    rt.end();
    let histogram = histogram.borrow();
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    let seconds = load.seconds as f64;
    let switches = |s: &MirrorStatus| s.sides.iter().map(|side| side.mode_switches).sum::<u64>();
    Ok(Outcome {
        done_per_s: done as f64 / seconds,
        mean_ms: histogram.mean() / 1e6,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        exposed_bytes_peak: status.as_ref().map_or(0, |s| s.exposed_bytes_peak),
        exposed_bytes_end: status.as_ref().map_or(0, |s| s.exposed_bytes),
        mode_switches_per_s: status.as_ref().map_or(0, switches) as f64 / seconds,
        log_rounds,
        mirror: status,
    })
}

/// Divides, for each side with a log, the number of bytes written to the log by the length of the
/// log. Returns the lowest quotient, or zero if there are no logs.
pub(super) fn log_rounds(mirror: &Mirror) -> f64 {
    #[derive(Default)]
    struct Logs {
        written_bytes: Vec<f64>,
        bytes: Vec<f64>,
    }
    impl StatisticVisitor for Logs {
        fn statistic(&mut self, _part: &str, name: &str, value: Statistic) {
            match (name, value) {
                ("log_written_bytes", Statistic::Counter(value)) => {
                    self.written_bytes.push(value as f64);
                }
                ("log_bytes", Statistic::Gauge(value)) => self.bytes.push(value),
                _ => {}
            }
        }
    }
    let mut logs = Logs::default();
    mirror.statistics(&mut logs);
    let rounds = logs.written_bytes.iter().zip(&logs.bytes);
    let least = rounds.map(|(written, all)| written / all).reduce(f64::min);
    least.unwrap_or(0.0)
}

fn build(
    rt: &Rt,
    devices: &Devices,
    scheme: &Scheme,
    seed: u64,
) -> Result<(Rc<dyn Device>, Option<Mirror>), ExperimentError> {
    let model = |of, profile: &str, overrides: &str, seed| {
        let overrides: toml::Table = toml::from_str(overrides)?;
        let parameters = Parameters::from_profile(of, profile, overrides)?;
        let below: Rc<dyn Device> = match scheme {
            Scheme::Logged { .. } => Rc::new(Sparse::new(rt, VOLUME_BYTES)),
            _ => Rc::new(NullDevice::new(rt, VOLUME_BYTES)),
        };
        let device = Timing::new(rt, below, &parameters, seed)?;
        Ok::<Rc<dyn Device>, ExperimentError>(Rc::new(device))
    };
    let ssd = |seed| model(ModelType::Ssd, &devices.ssd, &devices.ssd_overrides, seed);
    let hdd = |seed| model(ModelType::Hdd, &devices.hdd, &devices.hdd_overrides, seed);
    let (sides, settings) = match scheme {
        Scheme::SingleSsd => return Ok((ssd(seed)?, None)),
        // With a bound of 0 bytes on the exposure, the mirror acknowledges a write only after both
        // SSDs have completed the write.
        Scheme::SsdMirror => (
            vec![ssd(seed)?, ssd(seed + 1_000)?],
            "exposure = { bytes = \"0B\" }".to_owned(),
        ),
        Scheme::Hetero { settings, .. } | Scheme::Logged { settings, .. } => {
            (vec![ssd(seed)?, hdd(seed + 1_000)?], settings.clone())
        }
    };
    let text = format!("sides = [\"a\", \"b\"]\n{settings}");
    let config: MirrorConfig = toml::from_str(&text)?;
    config.check().map_err(ExperimentError::Mirror)?;
    if let Scheme::Logged { log_bytes, .. } = scheme {
        let mirror = rt.block_on(formatted(rt, &config, sides, Some(*log_bytes)));
        let mirror = mirror.map_err(|error| ExperimentError::Mirror(error.to_string()))?;
        return Ok((Rc::new(mirror.clone()), Some(mirror)));
    }
    let sides = sides
        .into_iter()
        .zip(["fast", "slow"])
        .map(|(device, name)| SideDevice {
            name: name.to_owned(),
            device,
            data_offset: 0,
            out_of_sync: false,
        });
    let mirror = Mirror::new(rt, &config, sides.collect(), VOLUME_BYTES);
    Ok((Rc::new(mirror.clone()), Some(mirror)))
}

/// Formats the sides, and opens a mirror on them. The logs have `log_bytes` bytes, or the default
/// length if `log_bytes` is `None`.
pub(super) async fn formatted(
    rt: &Rt,
    config: &MirrorConfig,
    sides: Vec<Rc<dyn Device>>,
    log_bytes: Option<u64>,
) -> Result<Mirror, OpenError> {
    let named = config.sides.iter().cloned().zip(sides);
    let candidates: Vec<Candidate> = named
        .map(|(name, device)| Candidate { name, device })
        .collect();
    let formatting = Formatting {
        layouts: config.layout.clone(),
        log_bytes,
        no_checksums: !config.checksums,
        ..Formatting::default()
    };
    formatting::format(rt, "experiment", &candidates, &formatting).await?;
    let sides = candidates.into_iter().map(|candidate| SideToOpen {
        name: candidate.name,
        device: Ok(candidate.device),
    });
    Mirror::open(rt, config, sides.collect(), &OpenOptions::default()).await
}

/// Submits the load to the device, and returns the number of writes that completed within the
/// duration of the load.
async fn drive(
    rt: &Rt,
    device: Rc<dyn Device>,
    span_bytes: u64,
    load: Load,
    histogram: Rc<RefCell<Histogram<u64>>>,
) -> u64 {
    let mut rng = Rng::labelled(load.seed, "load");
    let places = Semaphore::new(load.outstanding_max);
    let done = Rc::new(Cell::new(0));
    let start = rt.now();
    let end = start + Duration::from_secs(load.seconds);
    let data = rt
        .pool()
        .zeroed((STEP_BYTES * STEPS).next_multiple_of(BLOCK_BYTES) as usize);
    let writers = TaskGroup::new(rt);
    let mut arrival_ns = 0.0;
    loop {
        arrival_ns += rng.exponential(1e9 / load.writes_per_s as f64);
        let arrival = start + Duration::from_nanos(arrival_ns as u64);
        if arrival >= end {
            break;
        }
        rt.sleep_until(arrival).await;
        let place = places.acquire(1).await;
        if rt.now() >= end {
            break;
        }
        let request = draw_write(&mut rng, &data, span_bytes);
        let (device, histogram, done, rt2) = (
            Rc::clone(&device),
            Rc::clone(&histogram),
            Rc::clone(&done),
            rt.clone(),
        );
        writers.spawn(async move {
            let started = rt2.now();
            let result = device.submit(request).await;
            assert!(result.is_ok(), "the devices of this experiment do not fail");
            if rt2.now() <= end {
                histogram
                    .borrow_mut()
                    .saturating_record(rt2.now().ns_since(started));
                done.set(done.get() + 1);
            }
            drop(place);
        });
    }
    rt.sleep_until(end).await;
    done.get()
}

fn draw_write(rng: &mut Rng, data: &Buf, span_bytes: u64) -> Request {
    let len = (STEP_BYTES * rng.between(1, STEPS)).next_multiple_of(BLOCK_BYTES);
    let offset = rng.below((span_bytes - len) / BLOCK_BYTES) * BLOCK_BYTES;
    Request::write(offset, data.slice(0..len as usize), Flags::NONE)
}

/// Returns the schemes of the paper's comparison, and the default policy.
pub fn schemes() -> Vec<Scheme> {
    vec![
        Scheme::SingleSsd,
        Scheme::SsdMirror,
        Scheme::hetero(PAPER, "policy = \"paper\""),
        Scheme::hetero(PAPER_WAIT_LIMIT, "policy = \"paper-wait-limit\""),
        Scheme::hetero(BOUNDED, ""),
    ]
}

/// Name of the scheme with the policy `paper`, which acknowledges a write at its first completion.
pub const PAPER: &str = "paper, first";
/// Name of the scheme with the policy `paper-wait-limit`, which acknowledges a write when both
/// sides have completed it or the wait limit has passed.
pub const PAPER_WAIT_LIMIT: &str = "paper, limit";
/// Name of the scheme with the default policy, which bounds the exposure to 64 MiB and 5 s.
pub const BOUNDED: &str = "bounded";
