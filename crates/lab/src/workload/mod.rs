//! The loads: programs over the file layer, by a seed.
//!
//! A load has one main figure, by which cells are compared, and others beside it. A load begins
//! when its preparation is on the device, and ends when what it has written is. The same load runs
//! in virtual time and on this machine: it asks the clock and the [layer](crate::layer) that it is
//! given.

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

/// Where a load runs.
#[derive(Clone)]
pub struct World<F> {
    /// Time.
    pub rt: Rt,
    /// The files.
    pub files: F,
    /// The seed of its choices.
    pub seed: u64,
}

/// What a page that a program reads or writes costs to simulate, about.
const PAGE_ESTIMATE_NS: u64 = 1_500;
/// The same of one large file, whose pages are more than fit into the processor's caches.
const STREAM_PAGE_ESTIMATE_NS: u64 = 8_000;

/// What a page takes of a machine, with its device, about: it depends on both.
const NATIVE_PAGE_ESTIMATE_NS: u64 = 30_000;
/// Making a device ready and putting it back.
const NATIVE_RUN_ESTIMATE_NS: u64 = 1_500_000_000;

/// More operations than anybody waits for; below it, nothing that is reckoned from them overflows.
const OPERATIONS_MAX: u64 = 1_000_000_000;

/// What a load has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The main figure; more is better.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// Other figures, by names that end in their unit.
    pub figures: BTreeMap<String, f64>,
    /// Curves: points of what is along the horizontal axis, and the value.
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
}

/// A load as an experiment file has it.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Workload {
    /// See [`postmark`].
    Postmark {
        /// One of SS, SL, LS and LL, from which the others are changed.
        load: Option<String>,
        /// The shortest file.
        low: Option<Size>,
        /// The longest file.
        high: Option<Size>,
        /// Files at the start.
        files: Option<u64>,
        /// Transactions.
        transactions: Option<u64>,
        /// When everything is made durable.
        sync: Option<postmark::Sync>,
    },
    /// See [`sweep`].
    Sweep {
        /// Places at which the rate is measured.
        points: Option<u64>,
        /// Bytes read at each.
        bytes: Option<Size>,
        /// Bytes of a request.
        request: Option<Size>,
        /// Reads at random places.
        accesses: Option<u64>,
    },
    /// See [`stream`].
    Stream {
        /// Length of the file.
        size: Size,
        /// Chunks read at random.
        seeks: Option<u64>,
    },
    /// See [`requests`].
    Requests {
        /// In which order, and which way.
        pattern: Pattern,
        /// Bytes of a request.
        request: Option<Size>,
        /// Requests under way.
        depth: Option<u32>,
        /// The part of the device that is used.
        span: Option<Size>,
        /// Requests.
        count: Option<u64>,
        /// In rounds until they are alike.
        steady: Option<bool>,
    },
    /// See [`replay`].
    Replay {
        /// The file.
        trace: PathBuf,
        /// Its format.
        format: Option<String>,
        /// What it must have.
        crc32c: Option<String>,
        /// Requests that are taken.
        count: Option<u64>,
        /// When they are made.
        arrivals: Option<replay::Arrivals>,
        /// So many times as fast as recorded.
        speed: Option<f64>,
        /// Requests under way at most.
        depth: Option<u32>,
    },
    /// See [`clients`].
    Clients {
        /// Numbers of clients.
        counts: Vec<u32>,
        /// Time of each.
        time: Option<Time>,
        /// What each does, as Dbench has it recorded; without, a mix.
        script: Option<PathBuf>,
        /// What that file must have.
        crc32c: Option<String>,
    },
    /// See [`tool`].
    Tool {
        /// The name of the load that it makes.
        of: String,
    },
}

/// A load with every number in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Resolved {
    /// See [`postmark`].
    Postmark(Postmark),
    /// See [`sweep`].
    Sweep(Sweep),
    /// See [`stream`].
    Stream(Stream),
    /// See [`requests`].
    Requests(Requests),
    /// See [`replay`].
    Replay(Replay),
    /// See [`clients`].
    Clients(Clients),
    /// See [`tool`].
    Tool(Tool),
}

impl Workload {
    /// With every number in it, and so many times as much; `named` gives the other loads of the
    /// file.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn resolved<'w>(
        &'w self,
        scale: f64,
        named: &dyn Fn(&str) -> Option<&'w Workload>,
    ) -> Result<Resolved, String> {
        match self {
            Workload::Tool { of } => match named(of) {
                Some(Workload::Tool { .. }) => Err(format!(
                    "`of` must be a load of our own, and `{of}` is none"
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
    /// What a run costs whoever simulates it, about, in ns of a processor.
    pub fn estimated_ns(&self) -> u64 {
        match self {
            Resolved::Postmark(load) => load.estimated_pages().saturating_mul(PAGE_ESTIMATE_NS),
            Resolved::Sweep(load) => load.estimated_pages().saturating_mul(PAGE_ESTIMATE_NS),
            Resolved::Stream(load) => load
                .estimated_pages()
                .saturating_mul(STREAM_PAGE_ESTIMATE_NS),
            Resolved::Requests(load) => load.estimated_pages().saturating_mul(PAGE_ESTIMATE_NS),
            Resolved::Replay(load) => load.count.saturating_mul(PAGE_ESTIMATE_NS),
            // A client moves some 10,000 pages in a second of its own, or waits.
            Resolved::Clients(load) => {
                load.seconds * load.counts.len() as u64 * 10_000 * PAGE_ESTIMATE_NS
            }
            Resolved::Tool(tool) => tool.of.estimated_ns(),
        }
    }

    /// What a run takes on a machine of which nothing is known, about, in ns.
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

    /// Runs it.
    ///
    /// # Errors
    /// When the device is full, or the layer fails.
    pub(crate) async fn run<F: FileLayer>(&self, world: &World<F>) -> Result<Measured, LoadError> {
        match self {
            Resolved::Postmark(load) => run_postmark(load, world).await,
            Resolved::Sweep(load) => load.run(world).await,
            Resolved::Stream(load) => load.run(world).await,
            Resolved::Requests(load) => load.run(world).await,
            Resolved::Replay(load) => load.run(world).await,
            Resolved::Clients(load) => load.run(world).await,
            Resolved::Tool(_) => Err(LoadError::Io {
                what: "a program on files that are no kernel's".to_owned(),
                error: std::io::ErrorKind::Unsupported.into(),
            }),
        }
    }

    /// True if it is on the device itself, without a file system.
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
    // Removing the files is no part of it, making durable what the transactions did is.
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

/// Millions of bytes a second.
fn mb_per_s(bytes: u64, ns: u64) -> f64 {
    bytes as f64 / 1e6 / (ns as f64 / 1e9).max(f64::MIN_POSITIVE)
}

fn named(figures: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let owned = figures
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    owned.collect()
}
