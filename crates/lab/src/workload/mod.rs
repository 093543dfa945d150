//! Loads: programs that run on the file layer and draw their random choices from a seed.
//!
//! A load has one main metric, by which cells are compared, and other metrics. The preparation of a
//! load is not measured. A load on files ends when its written data is on the device. A load is the
//! same in virtual time and on a real machine: it uses only the clock and the [layer](crate::layer)
//! that it receives.

pub mod clients;
mod latency;
mod loadfile;
pub mod postmark;
pub mod replay;
pub mod requests;
pub mod stream;
mod sum;
pub mod sweep;
pub mod tool;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bimetal_rt::{Rng, Rt};
use serde::{Deserialize, Serialize};

use crate::files::Program;
use crate::layer::{FileLayer, LoadError};
use bimetal_block::units::{Size, Time};
use clients::Clients;
use postmark::{Postmark, Tally};
use replay::Replay;
use requests::{Pattern, Requests};
use stream::Stream;
use sweep::Sweep;
use tool::Tool;

/// Environment of a load.
#[derive(Clone)]
pub struct World<F> {
    /// Runtime, which provides the clock.
    pub rt: Rt,
    /// The file layer.
    pub files: F,
    /// Seed of the random choices of the load.
    pub seed: u64,
}

/// Approximate CPU time in ns of simulating a page that a program reads or writes.
const PAGE_ESTIMATE_NS: u64 = 1_500;
/// Approximate CPU time in ns of simulating a page of one large file. The state of these pages does
/// not fit into the caches of the processor.
const STREAM_PAGE_ESTIMATE_NS: u64 = 8_000;

/// Estimated time in ns of reading or writing a page on a real machine. The estimate is the same
/// for every machine and device.
const NATIVE_PAGE_ESTIMATE_NS: u64 = 30_000;
/// Approximate time in ns of preparing a device for a run and restoring it afterwards.
const NATIVE_RUN_ESTIMATE_NS: u64 = 1_500_000_000;

/// Maximum number of operations of a load. No user would wait for more, and estimates computed from
/// it do not overflow.
const OPERATIONS_MAX: u64 = 1_000_000_000;

/// Metrics that a load has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Main metric. A higher value is better, except for a latency (unit `ms`).
    pub value: f64,
    /// Unit of the main metric.
    pub unit: String,
    /// Other metrics, by name. A name ends in the unit of its metric.
    pub figures: BTreeMap<String, f64>,
    /// Curves, by name. Each point consists of the position on the horizontal axis and the value.
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
}

/// A load as written in an experiment file.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Workload {
    /// The load of the module [`postmark`].
    Postmark {
        /// Name of a predefined load (SS, SL, LS or LL). The other fields override its parameters.
        load: Option<String>,
        /// Minimum length of a file.
        low: Option<Size>,
        /// Maximum length of a file.
        high: Option<Size>,
        /// Number of files at the start.
        files: Option<u64>,
        /// Number of transactions.
        transactions: Option<u64>,
        /// When all data is made durable.
        sync: Option<postmark::Sync>,
    },
    /// The load of the module [`sweep`].
    Sweep {
        /// Number of positions at which the rate is measured.
        points: Option<u64>,
        /// Number of bytes read at each position.
        bytes: Option<Size>,
        /// Length of a request in bytes.
        request: Option<Size>,
        /// Number of reads at random positions.
        accesses: Option<u64>,
    },
    /// The load of the module [`stream`].
    Stream {
        /// Length of the file.
        size: Size,
        /// Number of chunks read at random offsets.
        seeks: Option<u64>,
    },
    /// The load of the module [`requests`].
    Requests {
        /// Order and direction of the requests.
        pattern: Pattern,
        /// Length of a request in bytes.
        request: Option<Size>,
        /// Number of requests in flight.
        depth: Option<u32>,
        /// Length of the part of the device that is used.
        span: Option<Size>,
        /// Number of requests.
        count: Option<u64>,
        /// Whether to repeat rounds of requests until the rates of the rounds are steady.
        steady: Option<bool>,
    },
    /// The load of the module [`replay`].
    Replay {
        /// Path of the trace.
        trace: PathBuf,
        /// Format of the trace.
        format: Option<String>,
        /// CRC-32C that the trace file must have.
        crc32c: Option<String>,
        /// Maximum number of requests to replay.
        count: Option<u64>,
        /// When the requests arrive.
        arrivals: Option<replay::Arrivals>,
        /// Factor by which the replay is faster than the recording.
        speed: Option<f64>,
        /// Maximum number of requests in flight.
        depth: Option<u32>,
    },
    /// The load of the module [`clients`].
    Clients {
        /// Numbers of clients; each number is measured separately.
        counts: Vec<u32>,
        /// Duration of each measurement.
        time: Option<Time>,
        /// Dbench load file that each client repeats; if absent, clients run a random mix.
        script: Option<PathBuf>,
        /// CRC-32C that the load file must have.
        crc32c: Option<String>,
    },
    /// The load of the module [`tool`].
    Tool {
        /// Name of a load in the plan. The external program makes the same load.
        of: String,
    },
}

/// A load with all defaults filled in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Resolved {
    /// The load of the module [`postmark`].
    Postmark(Postmark),
    /// The load of the module [`sweep`].
    Sweep(Sweep),
    /// The load of the module [`stream`].
    Stream(Stream),
    /// The load of the module [`requests`].
    Requests(Requests),
    /// The load of the module [`replay`].
    Replay(Replay),
    /// The load of the module [`clients`].
    Clients(Clients),
    /// The load of the module [`tool`].
    Tool(Tool),
}

impl Workload {
    /// Fills in all defaults, and multiplies the size of the load by `scale` if the load can be
    /// scaled. `named` returns another load of the file by its name.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(crate) fn resolved<'w>(
        &'w self,
        scale: f64,
        named: &dyn Fn(&str) -> Option<&'w Workload>,
    ) -> Result<Resolved, String> {
        match self {
            Workload::Tool { of } => match named(of) {
                Some(Workload::Tool { .. }) => Err(format!(
                    "`of` must name a built-in load, but `{of}` is not one"
                )),
                Some(load) => Ok(Resolved::Tool(Tool::new(load.resolved(scale, named)?)?)),
                None => Err(format!("there is no [workload.{of}]")),
            },
            Workload::Postmark {
                load,
                low,
                high,
                files,
                transactions,
                sync,
            } => {
                let mut of = Postmark::named(load.as_deref().unwrap_or("SS"))?;
                of.low_bytes = low.map_or(of.low_bytes, |size| size.0);
                of.high_bytes = high.map_or(of.high_bytes, |size| size.0);
                of.files = files.unwrap_or(of.files);
                of.transactions = transactions.unwrap_or(of.transactions);
                of.sync = sync.unwrap_or_default();
                of.check()?;
                Ok(Resolved::Postmark(of.scaled(scale)))
            }
            Workload::Sweep {
                points,
                bytes,
                request,
                accesses,
            } => {
                let of = Sweep {
                    points: points.unwrap_or(64),
                    bytes: bytes.map_or(8 << 20, |size| size.0),
                    request_bytes: request.map_or(256 << 10, |size| size.0),
                    accesses: accesses.unwrap_or(500),
                };
                of.check()?;
                Ok(Resolved::Sweep(of))
            }
            Workload::Stream { size, seeks } => {
                let of = Stream {
                    bytes: size.0,
                    seeks: seeks.unwrap_or(4000),
                };
                of.check()?;
                Ok(Resolved::Stream(of.scaled(scale)))
            }
            Workload::Requests {
                pattern,
                request,
                depth,
                span,
                count,
                steady,
            } => {
                let of = Requests {
                    pattern: *pattern,
                    request_bytes: request.map_or(4096, |size| size.0),
                    depth: depth.unwrap_or(1),
                    span_bytes: span.map_or(0, |size| size.0),
                    count: count.unwrap_or(10_000),
                    steady: steady.unwrap_or(false),
                };
                of.check()?;
                Ok(Resolved::Requests(of))
            }
            Workload::Replay {
                trace,
                format,
                crc32c,
                count,
                arrivals,
                speed,
                depth,
            } => {
                let of = Replay {
                    trace: trace.clone(),
                    format: format.clone(),
                    crc32c: crc32c.as_ref().map(|text| text.to_lowercase()),
                    count: count.unwrap_or(replay::COUNT_USUAL),
                    arrivals: arrivals.unwrap_or_default(),
                    speed: speed.unwrap_or(1.0),
                    depth: depth.unwrap_or(replay::DEPTH_USUAL),
                };
                of.check()?;
                Ok(Resolved::Replay(of))
            }
            Workload::Clients {
                counts,
                time,
                script,
                crc32c,
            } => {
                let of = Clients {
                    counts: counts.clone(),
                    seconds: time.map_or(30, |time| time.0.as_secs()),
                    script: script.clone(),
                    crc32c: crc32c.as_ref().map(|text| text.to_lowercase()),
                };
                of.check()?;
                Ok(Resolved::Clients(of))
            }
        }
    }
}

impl Resolved {
    /// Returns the approximate CPU time of simulating a run, in ns.
    pub fn estimated_ns(&self) -> u64 {
        match self {
            Resolved::Postmark(load) => load.estimated_pages().saturating_mul(PAGE_ESTIMATE_NS),
            Resolved::Sweep(load) => load.estimated_pages().saturating_mul(PAGE_ESTIMATE_NS),
            Resolved::Stream(load) => load
                .estimated_pages()
                .saturating_mul(STREAM_PAGE_ESTIMATE_NS),
            Resolved::Requests(load) => load.estimated_pages().saturating_mul(PAGE_ESTIMATE_NS),
            Resolved::Replay(load) => load.count.saturating_mul(PAGE_ESTIMATE_NS),
            // In one second of its running time, a client reads and writes about 10,000 pages. A
            // client that waits handles fewer pages.
            Resolved::Clients(load) => {
                load.seconds * load.counts.len() as u64 * 10_000 * PAGE_ESTIMATE_NS
            }
            Resolved::Tool(tool) => tool.of.estimated_ns(),
        }
    }

    /// Returns the approximate duration of a run on an unknown real machine, in ns.
    pub fn estimated_native_ns(&self) -> u64 {
        let pages = match self {
            Resolved::Tool(tool) => return tool.of.estimated_native_ns(),
            Resolved::Postmark(load) => load.estimated_pages(),
            Resolved::Sweep(load) => load.estimated_pages(),
            Resolved::Stream(load) => load.estimated_pages(),
            Resolved::Requests(load) => load.estimated_pages(),
            Resolved::Replay(load) => load.count,
            Resolved::Clients(load) => {
                let seconds = load.seconds.saturating_mul(load.counts.len() as u64);
                return seconds.saturating_mul(1_000_000_000) + NATIVE_RUN_ESTIMATE_NS;
            }
        };
        let moving = pages.saturating_mul(NATIVE_PAGE_ESTIMATE_NS);
        moving.saturating_add(NATIVE_RUN_ESTIMATE_NS)
    }

    /// Runs the load and returns its metrics.
    ///
    /// # Errors
    /// If the device is full, or the layer fails.
    pub(crate) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        match self {
            Resolved::Postmark(load) => run_postmark(load, world).await,
            Resolved::Sweep(load) => load.run(world).await,
            Resolved::Stream(load) => load.run(world).await,
            Resolved::Requests(load) => load.run(world).await,
            Resolved::Replay(load) => load.run(world).await,
            Resolved::Clients(load) => load.run(world).await,
            Resolved::Tool(_) => Err(LoadError::Io {
                what: "a program on files outside a kernel".to_owned(),
                error: std::io::ErrorKind::Unsupported.into(),
            }),
        }
    }

    /// Returns true if the load runs on the device itself, without a file system.
    pub fn is_raw(&self) -> bool {
        match self {
            Resolved::Requests(_) | Resolved::Sweep(_) | Resolved::Replay(_) => true,
            Resolved::Postmark(_) | Resolved::Stream(_) | Resolved::Clients(_) => false,
            Resolved::Tool(tool) => tool.of.is_raw(),
        }
    }
}

async fn run_postmark<F: FileLayer>(
    load: &Postmark,
    world: &World<F>,
) -> Result<Measured, LoadError> {
    let World { rt, files, seed } = world;
    let mut rng = Rng::labelled(*seed, "postmark");
    let (mut program, mut tally) = (Program::new(0), Tally::default());
    let mut pool = load
        .prepare(files, &mut rng, &mut program, &mut tally)
        .await?;
    files.pay(&mut program).await;
    let begun = rt.now();
    for _ in 0..load.transactions {
        load.transact(files, &mut pool, &mut rng, &mut program, &mut tally)
            .await?;
    }
    match load.sync {
        postmark::Sync::Transactions => files.sync(&mut program).await?,
        postmark::Sync::Removal => files.pay(&mut program).await,
    }
    let transacting_ns = rt.now().ns_since(begun);
    load.clean_up(files, pool, &mut program).await?;
    files.pay(&mut program).await;
    let removed = rt.now();
    files.sync(&mut program).await?;
    // The time of the removal of the files is not measured, but the time of the final sync is.
    let syncing_ns = match load.sync {
        postmark::Sync::Transactions => 0,
        postmark::Sync::Removal => rt.now().ns_since(removed),
    };
    let seconds = (transacting_ns + syncing_ns) as f64 / 1e9;
    let figures = [
        ("transactions_s", seconds),
        ("program_read_bytes", tally.read_bytes as f64),
        ("program_written_bytes", tally.written_bytes as f64),
        ("files_created", tally.created as f64),
    ];
    Ok(Measured {
        value: tally.transactions as f64 / seconds,
        unit: "transactions/s".to_owned(),
        figures: named(&figures),
        curves: BTreeMap::new(),
    })
}

/// Returns a rate in millions of bytes per second.
fn mb_per_s(bytes: u64, ns: u64) -> f64 {
    bytes as f64 / 1e6 / (ns as f64 / 1e9).max(f64::MIN_POSITIVE)
}

fn named(figures: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let owned = figures
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    owned.collect()
}
