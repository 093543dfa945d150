//! The loads: programs over the file layer, by a seed.
//!
//! A load has one main figure, by which cells are compared, and others beside it. Its times are virtual: a load
//! begins when its preparation is on the device, and ends when what it has written is.

pub mod postmark;

use std::collections::BTreeMap;

use bimetal_rt::{Rng, Rt};
use serde::{Deserialize, Serialize};

use crate::files::{Files, NoSpace, Program};
use postmark::{Postmark, Tally};

/// Where a load runs.
pub struct World {
    /// Time.
    pub rt: Rt,
    /// The files.
    pub files: Files,
    /// The seed of its choices.
    pub seed: u64,
}

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
        low: Option<bimetal_block::units::Size>,
        /// The longest file.
        high: Option<bimetal_block::units::Size>,
        /// Files at the start.
        files: Option<u64>,
        /// Transactions.
        transactions: Option<u64>,
    },
}

/// A load with every number in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Resolved {
    /// See [`postmark`].
    Postmark(Postmark),
}

impl Workload {
    /// With every number in it, and so many times as much.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn resolved(&self, scale: f64) -> Result<Resolved, String> {
        match self {
            Workload::Postmark {
                load,
                low,
                high,
                files,
                transactions,
            } => {
                let mut of = Postmark::named(load.as_deref().unwrap_or("SS"))?;
                of.low_bytes = low.map_or(of.low_bytes, |size| size.0);
                of.high_bytes = high.map_or(of.high_bytes, |size| size.0);
                of.files = files.unwrap_or(of.files);
                of.transactions = transactions.unwrap_or(of.transactions);
                of.check()?;
                Ok(Resolved::Postmark(of.scaled(scale)))
            }
        }
    }
}

impl Resolved {
    /// Runs it.
    ///
    /// # Errors
    /// When the device is full.
    pub(crate) async fn run(&self, world: &World) -> Result<Measured, NoSpace> {
        match self {
            Resolved::Postmark(load) => run_postmark(load, world).await,
        }
    }
}

async fn run_postmark(load: &Postmark, world: &World) -> Result<Measured, NoSpace> {
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
    files.sync(&mut program).await;
    let seconds = rt.now().ns_since(begun) as f64 / 1e9;
    load.clean_up(files, pool, &mut program).await;
    files.sync(&mut program).await;
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

fn named(figures: &[(&str, f64)]) -> BTreeMap<String, f64> {
    let owned = figures
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    owned.collect()
}
