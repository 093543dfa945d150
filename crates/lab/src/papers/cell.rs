//! Cells: the independent runs of the papers' experiments.
//!
//! A cell calls the function of an experiment and stores what it returns. It must never contain a
//! policy, a model or a load of its own.

use bimetal_policy::replacement::Spec;
use bimetal_sim::cache::{self, Costs, Ftl, Geometry, Job, Over};
use bimetal_sim::experiment::hetero::{self, Devices, Load};
use bimetal_sim::experiment::index::{self, Area, Cost, Extent, Row, Setting};
use serde::{Deserialize, Serialize};

use super::pairs::{self, Pairs};
use super::traces::{TraceId, Traces};
use crate::outcome;
use crate::plan::Choice;
use crate::results::name_of;
use crate::settings::{Settings, content_hash};

/// Version of the format of stored runs. Runs of another version are made again.
pub const SCHEMA: u32 = 1;

/// Pages of an erase block of the flash of source 4.
const BLOCK_PAGES: u32 = 64;

/// A run, with everything that it depends on.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "experiment", rename_all = "snake_case")]
pub enum Cell {
    /// A scheme of `bimetal-lab mirror` under one load.
    Mirror {
        /// Devices.
        devices: Devices,
        /// Scheme.
        scheme: hetero::Scheme,
        /// Load with its seed.
        load: Load,
    },
    /// The same load on the SSD and on the disk of `bimetal-lab mirror`.
    Pairs {
        /// Devices.
        devices: Devices,
        /// Load with its seed.
        load: Load,
    },
    /// A scheme of `bimetal-lab index` under all loads.
    Index {
        /// Parameters.
        setting: Setting,
        /// Rule for the amount of flash.
        area: Area,
        /// Scheme.
        scheme: index::Scheme,
        /// Seed.
        seed: u64,
    },
    /// A policy of `bimetal-lab cache` on a trace.
    Cache {
        /// Trace.
        trace: TraceId,
        /// Policy.
        policy: String,
        /// Size of the buffer in pages.
        size_pages: usize,
        /// Flash translation layer.
        ftl: String,
    },
    /// A cell of a plan of `bimetal-lab run`.
    Lab {
        /// Choice on each axis.
        choice: Choice,
        /// Settings.
        settings: Box<Settings>,
        /// Seed.
        seed: u64,
    },
}

/// Results of one scheme of an index under all loads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Life {
    /// Throughput and response time under each load.
    pub rows: Vec<Row>,
    /// Flash operations of each kind of load.
    pub costs: Vec<Cost>,
}

/// Outcome of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Raw {
    /// Of [`Cell::Mirror`].
    Mirror(Box<hetero::Outcome>),
    /// Of [`Cell::Pairs`].
    Pairs(Pairs),
    /// Of [`Cell::Index`].
    Index(Life),
    /// Of [`Cell::Cache`].
    Cache(cache::Outcome),
    /// Of [`Cell::Lab`].
    Lab(Box<outcome::Outcome>),
}

/// Error of a run.
#[derive(Debug, thiserror::Error)]
#[error("{cell}: {why}")]
pub struct CellError {
    /// Name of the cell.
    cell: String,
    /// Description of the problem.
    why: String,
}

impl Cell {
    /// Returns the identity of the cell, which is the name of the file of its run.
    pub fn id(&self) -> String {
        content_hash(&(SCHEMA, self))
    }

    /// Returns the name of the cell in messages.
    pub fn name(&self) -> String {
        match self {
            Cell::Mirror {
                devices,
                scheme,
                load,
            } => {
                let (name, rate) = (scheme.name(), load.writes_per_s);
                format!("{}, {name}, {rate} writes/s", devices.name)
            }
            Cell::Pairs { devices, load } => {
                format!(
                    "{}, both devices, {} writes/s",
                    devices.name, load.writes_per_s
                )
            }
            Cell::Index { area, scheme, .. } => {
                format!("index {}, area {}", scheme.name(), area.name())
            }
            Cell::Cache {
                policy, size_pages, ..
            } => format!("cache {policy}, {size_pages} pages"),
            Cell::Lab { choice, .. } => name_of(choice),
        }
    }

    /// Returns roughly how long the cell takes, so that long cells are not begun last. The unit is
    /// arbitrary.
    pub fn weight(&self) -> u64 {
        match self {
            Cell::Mirror { load, .. } | Cell::Pairs { load, .. } => load.seconds,
            Cell::Index { setting, .. } => setting.keys / 50,
            Cell::Cache { .. } => 50,
            Cell::Lab { settings, .. } => settings.workload.estimated_ns() / 50_000_000,
        }
    }

    /// Runs the cell.
    ///
    /// # Errors
    /// If its experiment fails, or its trace cannot be read.
    pub fn run(&self, traces: &Traces) -> Result<Raw, CellError> {
        let failed = |why: String| CellError {
            cell: self.name(),
            why,
        };
        match self {
            Cell::Mirror {
                devices,
                scheme,
                load,
            } => hetero::run(devices, scheme, *load)
                .map(|outcome| Raw::Mirror(Box::new(outcome)))
                .map_err(|error| failed(error.to_string())),
            Cell::Pairs { devices, load } => pairs::run(devices, *load)
                .map(Raw::Pairs)
                .map_err(|error| failed(error.to_string())),
            Cell::Index {
                setting,
                area,
                scheme,
                seed,
            } => {
                let extent = Extent {
                    schemes: vec![*scheme],
                    areas: vec![*area],
                    first_seed: *seed,
                    seeds: 1,
                };
                let lived = index::compare(setting, &extent, |_, _| {});
                let lived = lived.map_err(|error| failed(error.to_string()))?;
                Ok(Raw::Index(Life {
                    rows: lived.rows,
                    costs: lived.costs,
                }))
            }
            Cell::Cache {
                trace,
                policy,
                size_pages,
                ftl,
            } => run_cache(traces, trace, (policy, *size_pages, ftl))
                .map(Raw::Cache)
                .map_err(failed),
            Cell::Lab {
                choice,
                settings,
                seed,
            } => crate::cell::run(choice, settings, *seed)
                .map(|outcome| Raw::Lab(Box::new(outcome)))
                .map_err(|error| failed(error.to_string())),
        }
    }
}

/// Runs a policy over a trace, as `bimetal-lab cache` does.
fn run_cache(
    traces: &Traces,
    trace: &TraceId,
    (policy, size_pages, ftl): (&str, usize, &str),
) -> Result<cache::Outcome, String> {
    let accesses = traces.accesses(trace).map_err(|error| error.to_string())?;
    let geometry = Geometry::new(accesses.pages(), BLOCK_PAGES)
        .ok_or_else(|| "the trace has more pages than a device can have".to_owned())?;
    let policy: Spec = policy.parse().map_err(|error| format!("{error}"))?;
    let ftl: Ftl = ftl.parse().map_err(|error| format!("{error}"))?;
    let job = Job {
        policy,
        size_pages,
        ftl,
    };
    let over = Over {
        accesses: &accesses,
        geometry: &geometry,
        costs: Costs::default(),
        as_tables: false,
        rate: 1.0,
    };
    let outcomes = cache::run_all(&[job], &over, 1, |_| {}).map_err(|error| error.to_string())?;
    outcomes
        .into_iter()
        .next()
        .ok_or_else(|| "the run has no outcome".to_owned())
}
