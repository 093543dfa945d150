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
use bimetal_block::layers::mirror::superblock::{Candidate, SideKind};
use bimetal_block::layers::mirror::{
    Layouts, Mirror, MirrorConfig, MirrorStatus, OpenOptions, SideDevice, SideToOpen,
};
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::model::{ModelError, ModelType, Parameters};
use bimetal_block::media::null::NullDevice;
use bimetal_block::request::{Flags, Request};
use bimetal_block::units::show_size;
use bimetal_rt::sync::{Semaphore, TaskGroup};
use bimetal_rt::{Buf, Instant, Rng, Rt, VirtualOptions};

use super::filling::{FILL_BYTES, fill};
use super::latency::LatencyHistogram;
use super::sparse::Sparse;
use serde::{Deserialize, Serialize};

/// Difference between successive write lengths, as in the paper (10 KB); each length is rounded up
/// to whole blocks.
const STEP_BYTES: u64 = 10_000;
const STEPS: u64 = 50;
const BLOCK_BYTES: u64 = 4096;
/// Length of the longest write in bytes.
const WRITE_BYTES_MAX: u64 = (STEP_BYTES * STEPS).next_multiple_of(BLOCK_BYTES);
/// Size of the SSDs of the paper in bytes, in whole blocks.
pub const PAPERS_BYTES: u64 = 32_000_000_000 / BLOCK_BYTES * BLOCK_BYTES;
/// Time for which a volume rests between the writes that fill it and the load, so that the load
/// finds neither a backlog nor an empty pool of erased flash.
const REST: Duration = Duration::from_secs(60);

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
    /// Size of each SSD in bytes.
    pub ssd_bytes: u64,
    /// Size of the disk in bytes. The parameter `disk_bytes` of its profile can be larger: then
    /// only the outer part of a larger disk is used.
    pub hdd_bytes: u64,
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
            ssd_bytes: PAPERS_BYTES,
            hdd_bytes: PAPERS_BYTES,
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
            ssd_bytes: PAPERS_BYTES,
            hdd_bytes: PAPERS_BYTES,
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
            ssd_bytes: PAPERS_BYTES,
            hdd_bytes: PAPERS_BYTES,
        }
    }
}

/// Device that receives the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Scheme {
    /// One SSD.
    SingleSsd,
    /// One disk.
    SingleDisk,
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
    Formatted {
        /// Name of the scheme in tables.
        name: String,
        /// Keys of the mirror's configuration, as lines of TOML.
        settings: String,
        /// Length of the log on each side, in bytes.
        log_bytes: u64,
        /// Whether the loaded part of the volume is written once, in sequence, before the load.
        is_filled: bool,
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

    /// Returns the scheme with a bounded exposure on formatted sides of this layout. `is_filled`
    /// says whether the loaded part of the volume is written once before the load.
    pub fn formatted(layout: SideKind, log_bytes: u64, is_filled: bool) -> Scheme {
        let layout = layout.name();
        Scheme::Formatted {
            name: format!("{BOUNDED}, {layout}"),
            settings: format!("layout = \"{layout}\""),
            log_bytes,
            is_filled,
        }
    }

    /// Returns the name of the scheme in tables.
    pub fn name(&self) -> &str {
        match self {
            Scheme::SingleSsd => "single SSD",
            Scheme::SingleDisk => "single disk",
            Scheme::SsdMirror => "SSD mirror",
            Scheme::Hetero { name, .. } | Scheme::Formatted { name, .. } => name,
        }
    }
}

/// Load of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Average number of writes that arrive per second.
    pub writes_per_s: u64,
    /// Duration of the measured part of the run in seconds of virtual time.
    pub seconds: u64,
    /// Duration of the same load before the measured part, in seconds of virtual time.
    pub warm_up_s: u64,
    /// Size of the part of the volume to which the load writes, in bytes: the first part.
    pub span_bytes: u64,
    /// Maximum number of outstanding writes.
    pub outstanding_max: u64,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Longest response time in milliseconds.
    pub max_ms: f64,
    /// Maximum number of acknowledged bytes that at least one side lacked, since the volume was
    /// opened; zero without a mirror.
    pub exposed_bytes_peak: u64,
    /// Number of acknowledged bytes that at least one side lacked at the end of the load.
    pub exposed_bytes_end: u64,
    /// Number of mode switches per second, summed over the sides.
    pub mode_switches_per_s: f64,
    /// Bytes written to the log of a side, divided by the length of that log: the lowest value of
    /// all sides. Zero if there are no logs.
    pub log_rounds: f64,
    /// Bytes that cleaning has moved on a side, for each byte of the client: the highest value of
    /// all sides. Zero if no side is logged.
    pub moved_share: f64,
    /// Status of the mirror at the end of the load. It is not read back from a stored outcome.
    #[serde(skip_deserializing)]
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

/// Builds the devices of a scheme, and verifies that they hold the span.
///
/// # Errors
/// If a device or a setting does not exist, or if the span does not fit the volume.
pub fn check(devices: &Devices, scheme: &Scheme, span_bytes: u64) -> Result<(), ExperimentError> {
    let rt = Rt::virtual_time(VirtualOptions::default());
    let built = build(&rt, devices, scheme, 0);
    let fits = built.and_then(|(device, _)| check_span(scheme, span_bytes, device.as_ref()));
    rt.end();
    fits
}

/// Refuses a span that the device of the scheme cannot hold, or that has no room for the longest
/// write.
fn check_span(
    scheme: &Scheme,
    span_bytes: u64,
    device: &dyn Device,
) -> Result<(), ExperimentError> {
    let volume_bytes = device.geometry().size_bytes;
    // A write begins below the end of the span by more than its length.
    let least_bytes = WRITE_BYTES_MAX + BLOCK_BYTES;
    let why = if span_bytes < least_bytes {
        let least = show_size(least_bytes);
        format!("writes of up to 500 kB need at least {least}")
    } else if span_bytes > volume_bytes {
        format!("the volume has {}", show_size(volume_bytes))
    } else {
        return Ok(());
    };
    let (name, span) = (scheme.name(), show_size(span_bytes));
    Err(ExperimentError::Load(format!(
        "{name}: a span of {span}: {why}"
    )))
}

/// Runs one scheme under one load.
///
/// # Errors
/// If a device or a setting does not exist, or if the span does not fit the volume.
pub fn run(devices: &Devices, scheme: &Scheme, load: Load) -> Result<Outcome, ExperimentError> {
    Ok(run_with_responses(devices, scheme, load)?.0)
}

/// Response time of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Number of the write in the order of the arrivals, from 0. The writes of a load with one seed
    /// have the same numbers, arrivals, offsets and lengths under every scheme.
    pub number: u64,
    /// Response time in nanoseconds.
    pub ns: u64,
}

/// Runs one scheme under one load, as [`run`] does, and also returns the response time of each
/// write of the outcome, in the order of the completions.
///
/// # Errors
/// Those of [`run`].
pub fn run_with_responses(
    devices: &Devices,
    scheme: &Scheme,
    load: Load,
) -> Result<(Outcome, Vec<Response>), ExperimentError> {
    let rt = Rt::virtual_time(VirtualOptions {
        seed: load.seed,
        shuffle: false,
    });
    let (device, mirror) = build(&rt, devices, scheme, load.seed)?;
    check_span(scheme, load.span_bytes, device.as_ref())?;
    let span_bytes = load.span_bytes / BLOCK_BYTES * BLOCK_BYTES;
    if let Scheme::Formatted {
        is_filled: true, ..
    } = scheme
    {
        let zeroes = rt.pool().zeroed(FILL_BYTES as usize);
        let content = move |bytes: u64| zeroes.slice(0..bytes as usize);
        let span = (span_bytes, FILL_BYTES, FILL_BYTES);
        rt.block_on(fill(&rt, &device, span, content, |_| {}));
        rt.block_on(rt.sleep(REST));
    }
    let running = Rc::new(Running::new(&rt, device, mirror.clone()));
    rt.block_on(Rc::clone(&running).drive(span_bytes, load));
    let status = mirror.as_ref().map(Mirror::status);
    let (before, after) = (running.before.take(), Counted::of(mirror.as_ref()));
    // A mirror without a bound on its exposure can have a long backlog, so the run ends without
    // draining it.
    rt.end();
    let latencies = running.latencies.take();
    let at = |share| latencies.at_ns(share) as f64 / 1e6;
    let seconds = load.seconds as f64;
    let client_bytes = running.done_bytes.get().max(1) as f64;
    let outcome = Outcome {
        done_per_s: latencies.count() as f64 / seconds,
        mean_ms: latencies.mean_ns() / 1e6,
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: latencies.longest_ns() as f64 / 1e6,
        exposed_bytes_peak: status.as_ref().map_or(0, |s| s.exposed_bytes_peak),
        exposed_bytes_end: status.as_ref().map_or(0, |s| s.exposed_bytes),
        mode_switches_per_s: (after.mode_switches - before.mode_switches) as f64 / seconds,
        log_rounds: after.rounds_since(&before),
        moved_share: after.moved_bytes_since(&before) / client_bytes,
        mirror: status,
    };
    Ok((outcome, running.responses.take()))
}

/// Divides, for each side with a log, the number of bytes written to the log by the length of the
/// log. Returns the lowest quotient, or zero if there are no logs.
pub(super) fn log_rounds(mirror: &Mirror) -> f64 {
    Counted::of(Some(mirror)).rounds_since(&Counted::default())
}

/// Counters of a mirror at one moment. The vectors have an element for each side that has the
/// counter.
#[derive(Default)]
struct Counted {
    mode_switches: u64,
    log_written_bytes: Vec<f64>,
    log_bytes: Vec<f64>,
    moved_bytes: Vec<f64>,
}

impl Counted {
    fn of(mirror: Option<&Mirror>) -> Counted {
        let mut counted = Counted::default();
        if let Some(mirror) = mirror {
            let sides = mirror.status().sides;
            counted.mode_switches = sides.iter().map(|side| side.mode_switches).sum();
            mirror.statistics(&mut counted);
        }
        counted
    }

    /// Returns how often the log was filled since `before`: the lowest value of all sides.
    fn rounds_since(&self, before: &Counted) -> f64 {
        let written = since(&self.log_written_bytes, &before.log_written_bytes);
        let rounds = written.zip(&self.log_bytes).map(|(bytes, all)| bytes / all);
        rounds.reduce(f64::min).unwrap_or(0.0)
    }

    /// Returns the bytes that cleaning has moved since `before`: the highest value of all sides.
    fn moved_bytes_since(&self, before: &Counted) -> f64 {
        since(&self.moved_bytes, &before.moved_bytes).fold(0.0, f64::max)
    }
}

/// Returns the difference of each counter from its earlier value, which is zero if there is none.
fn since<'c>(now: &'c [f64], before: &'c [f64]) -> impl Iterator<Item = f64> + 'c {
    let before = before.iter().copied().chain(std::iter::repeat(0.0));
    now.iter().zip(before).map(|(now, before)| now - before)
}

impl StatisticVisitor for Counted {
    fn statistic(&mut self, _part: &str, name: &str, value: Statistic) {
        match (name, value) {
            ("log_written_bytes", Statistic::Counter(value)) => {
                self.log_written_bytes.push(value as f64);
            }
            ("moved_bytes", Statistic::Counter(value)) => self.moved_bytes.push(value as f64),
            ("log_bytes", Statistic::Gauge(value)) => self.log_bytes.push(value),
            _ => {}
        }
    }
}

fn build(
    rt: &Rt,
    devices: &Devices,
    scheme: &Scheme,
    seed: u64,
) -> Result<(Rc<dyn Device>, Option<Mirror>), ExperimentError> {
    let model = |of, profile: &str, overrides: &str, bytes: u64, seed| {
        let overrides: toml::Table = toml::from_str(overrides)?;
        let parameters = Parameters::from_profile(of, profile, overrides)?;
        let bytes = bytes / BLOCK_BYTES * BLOCK_BYTES;
        let below: Rc<dyn Device> = match scheme {
            Scheme::Formatted { .. } => Rc::new(Sparse::new(rt, bytes)),
            _ => Rc::new(NullDevice::new(rt, bytes)),
        };
        let device = Timing::new(rt, below, &parameters, seed)?;
        Ok::<Rc<dyn Device>, ExperimentError>(Rc::new(device))
    };
    let ssd = |seed| {
        let (profile, overrides) = (&devices.ssd, &devices.ssd_overrides);
        model(ModelType::Ssd, profile, overrides, devices.ssd_bytes, seed)
    };
    let hdd = |seed| {
        let (profile, overrides) = (&devices.hdd, &devices.hdd_overrides);
        model(ModelType::Hdd, profile, overrides, devices.hdd_bytes, seed)
    };
    let (sides, settings) = match scheme {
        Scheme::SingleSsd => return Ok((ssd(seed)?, None)),
        Scheme::SingleDisk => return Ok((hdd(seed)?, None)),
        // With a bound of 0 bytes on the exposure, the mirror acknowledges a write only after both
        // SSDs have completed the write.
        Scheme::SsdMirror => (
            vec![ssd(seed)?, ssd(seed + 1_000)?],
            "exposure = { bytes = \"0B\" }".to_owned(),
        ),
        Scheme::Hetero { settings, .. } | Scheme::Formatted { settings, .. } => {
            (vec![ssd(seed)?, hdd(seed + 1_000)?], settings.clone())
        }
    };
    let text = format!("sides = [\"a\", \"b\"]\n{settings}");
    let config: MirrorConfig = toml::from_str(&text)?;
    config.check().map_err(ExperimentError::Mirror)?;
    if let Scheme::Formatted { log_bytes, .. } = scheme {
        let mirror = rt.block_on(formatted(rt, &config, sides, Some(*log_bytes), None));
        let mirror = mirror.map_err(|error| ExperimentError::Mirror(error.to_string()))?;
        return Ok((Rc::new(mirror.clone()), Some(mirror)));
    }
    let sizes = sides.iter().map(|side| side.geometry().size_bytes);
    let volume_bytes = sizes.min().unwrap_or(0);
    let sides = sides
        .into_iter()
        .zip(["fast", "slow"])
        .map(|(device, name)| SideDevice {
            name: name.to_owned(),
            device,
            data_offset: 0,
            out_of_sync: false,
        });
    let mirror = Mirror::new(rt, &config, sides.collect(), volume_bytes);
    Ok((Rc::new(mirror.clone()), Some(mirror)))
}

/// Formats the sides, and opens a mirror on them. The logs have `log_bytes` bytes, or the default
/// length if `log_bytes` is `None`. The side with the number `absent` is missing from the opening
/// on.
pub(super) async fn formatted(
    rt: &Rt,
    config: &MirrorConfig,
    sides: Vec<Rc<dyn Device>>,
    log_bytes: Option<u64>,
    absent: Option<usize>,
) -> Result<Mirror, OpenError> {
    let named = config.sides.iter().cloned().zip(sides);
    let candidates: Vec<Candidate> = named
        .map(|(name, device)| Candidate { name, device })
        .collect();
    let formatting = Formatting {
        layouts: match &config.layout {
            // The figures of the papers' experiments are those of sides with homes.
            Layouts::Unsaid => Layouts::All(SideKind::Home),
            said => said.clone(),
        },
        log_bytes,
        no_checksums: !config.checksums,
        volume_bytes: config.size.map(|size| size.0),
        reserve: config.reserve,
        ..Formatting::default()
    };
    formatting::format(rt, "experiment", &candidates, &formatting).await?;
    let sides = candidates.into_iter().enumerate();
    let sides = sides.map(|(number, candidate)| SideToOpen {
        name: candidate.name,
        device: match absent == Some(number) {
            true => Err(OpenError::new("it is absent in this experiment")),
            false => Ok(candidate.device),
        },
    });
    Mirror::open(rt, config, sides.collect(), &OpenOptions::default()).await
}

/// A load in progress.
struct Running {
    rt: Rt,
    device: Rc<dyn Device>,
    mirror: Option<Mirror>,
    /// Response times of the writes that completed within the measured part.
    latencies: RefCell<LatencyHistogram>,
    /// Response time of each of these writes.
    responses: RefCell<Vec<Response>>,
    /// Bytes of these writes.
    done_bytes: Cell<u64>,
    /// Counters of the mirror at the beginning of the measured part.
    before: RefCell<Counted>,
}

impl Running {
    fn new(rt: &Rt, device: Rc<dyn Device>, mirror: Option<Mirror>) -> Running {
        Running {
            rt: rt.clone(),
            device,
            mirror,
            latencies: RefCell::default(),
            responses: RefCell::default(),
            done_bytes: Cell::new(0),
            before: RefCell::default(),
        }
    }

    /// Submits the load until its time has passed.
    async fn drive(self: Rc<Self>, span_bytes: u64, load: Load) {
        let mut rng = Rng::labelled(load.seed, "load");
        let places = Semaphore::new(load.outstanding_max);
        let start = self.rt.now();
        let measured = start + Duration::from_secs(load.warm_up_s);
        let end = measured + Duration::from_secs(load.seconds);
        let data = self.rt.pool().zeroed(WRITE_BYTES_MAX as usize);
        let writers = TaskGroup::new(&self.rt);
        let this = Rc::clone(&self);
        writers.spawn(async move {
            this.rt.sleep_until(measured).await;
            this.before.replace(Counted::of(this.mirror.as_ref()));
        });
        let mut arrival_ns = 0.0;
        for number in 0.. {
            arrival_ns += rng.exponential(1e9 / load.writes_per_s as f64);
            let arrival = start + Duration::from_nanos(arrival_ns as u64);
            if arrival >= end {
                break;
            }
            self.rt.sleep_until(arrival).await;
            let place = places.acquire(1).await;
            if self.rt.now() >= end {
                break;
            }
            let request = draw_write(&mut rng, &data, span_bytes);
            let this = Rc::clone(&self);
            writers.spawn(async move {
                this.write(number, request, measured, end).await;
                drop(place);
            });
        }
        self.rt.sleep_until(end).await;
    }

    /// Submits a write, and counts it if it completes within the measured part.
    async fn write(&self, number: u64, request: Request, measured: Instant, end: Instant) {
        let (started, bytes) = (self.rt.now(), request.len);
        let result = self.device.submit(request).await;
        assert!(result.is_ok(), "the devices of this experiment do not fail");
        let now = self.rt.now();
        if now >= measured && now <= end {
            let took_ns = now.ns_since(started);
            self.latencies.borrow_mut().record(took_ns);
            let response = Response {
                number,
                ns: took_ns,
            };
            self.responses.borrow_mut().push(response);
            self.done_bytes.set(self.done_bytes.get() + bytes);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            writes_per_s: 80,
            seconds: 20,
            warm_up_s: 0,
            span_bytes: 100 << 20,
            outstanding_max: 32,
            seed: 1,
        }
    }

    fn small() -> Devices {
        Devices {
            ssd_bytes: 512 << 20,
            hdd_bytes: 256 << 20,
            ..Devices::fit_b()
        }
    }

    /// The smaller device of the pair decides which spans a mirror takes, and one SSD is held to
    /// the same rule. A span must have room for a write of 500 kB, which takes 123 blocks.
    #[test]
    fn a_span_fits_the_volume_of_each_scheme() {
        let log = |kind| Scheme::formatted(kind, 16 << 20, false);
        let (home, logged) = (log(SideKind::Home), log(SideKind::Log));
        let refused = |scheme: &Scheme, span_bytes| {
            let checked = check(&small(), scheme, span_bytes);
            let run = run(
                &small(),
                scheme,
                Load {
                    span_bytes,
                    ..load()
                },
            );
            let run = run.map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(checked.map_err(|error| error.to_string()), run);
            run.unwrap_err()
        };
        for scheme in [Scheme::SingleSsd, Scheme::hetero(BOUNDED, ""), home, logged] {
            for span_bytes in [0, 4096, 123 * 4096] {
                let why = refused(&scheme, span_bytes);
                assert!(why.contains("at least 496 KiB"), "{why}");
            }
            let why = refused(&scheme, 100 << 40);
            assert!(why.contains("the volume has"), "{why}");
            let least = run(
                &small(),
                &scheme,
                Load {
                    span_bytes: 124 * 4096,
                    ..load()
                },
            );
            assert!(least.unwrap().done_per_s > 0.0);
        }
        let why = refused(&Scheme::hetero(BOUNDED, ""), 300 << 20);
        assert!(why.contains("the volume has 256 MiB"), "{why}");
    }

    /// A write that completes before the measured part is not counted. A load of 80 writes per
    /// second is within what one SSD completes, so the same number per second is completed in each
    /// part: 1600, with a standard deviation of 40.
    #[test]
    fn a_warm_up_is_not_measured() {
        for warm_up_s in [0, 30] {
            let load = Load {
                warm_up_s,
                ..load()
            };
            let outcome = run(&small(), &Scheme::SingleSsd, load).unwrap();
            let done = outcome.done_per_s * load.seconds as f64;
            assert!((1_400.0..=1_800.0).contains(&done), "{done}");
            assert!(outcome.max_ms >= outcome.p999_ms * 0.999, "{outcome:?}");
        }
    }

    /// The number of the responses and their mean are those of the outcome, whose histogram has
    /// three digits. Both devices get the same writes, and begin with the same one.
    #[test]
    fn each_write_has_a_response_on_either_device() {
        let both = [Scheme::SingleSsd, Scheme::SingleDisk];
        let [ssd, disk] = both.map(|scheme| run_with_responses(&small(), &scheme, load()).unwrap());
        for (outcome, responses) in [&ssd, &disk] {
            let done = (outcome.done_per_s * 20.0).round();
            assert_eq!(responses.len() as f64, done);
            let sum: u64 = responses.iter().map(|response| response.ns).sum();
            let mean_ms = sum as f64 / responses.len() as f64 / 1e6;
            assert!(
                (mean_ms / outcome.mean_ms - 1.0).abs() < 1e-3,
                "{outcome:?}"
            );
        }
        let first = |of: &[Response]| of.iter().any(|response| response.number == 0);
        assert!(first(&ssd.1) && first(&disk.1));
        assert_ne!(ssd.1, disk.1);
    }
}
