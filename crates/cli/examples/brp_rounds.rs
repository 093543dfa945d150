//! Kills a BRP target repeatedly under a load that checks every answer. The rounds run in batches.
//! The results of finished batches are kept in a file, and a later call does not run these batches
//! again:
//!
//!     cargo build --release -p bimetal-cli
//!     cargo run --release -p bimetal-cli --example brp_rounds -- --rounds 1000 --state rounds.json
//!
//! The exit status is 1 if a write is lost, or if an older write overwrites a newer one. The
//! directory of the failed batch is then kept.

#[path = "../tests/rounds/mod.rs"]
mod rounds;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Parser;
use rounds::{Met, Stack, rounds};
use serde_json::{Value, json};

/// Number of rounds in a batch. All rounds of a batch use the same volume and the same session.
const BATCH: u64 = 25;

#[derive(Parser)]
struct Args {
    /// Total number of rounds; in half of them the volume is a file, in the other half a file
    /// behind a write-back cache
    #[arg(long, default_value = "1000")]
    rounds: u64,
    /// File with the results of finished batches; a later call skips these batches
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Maximum number of batches to start
    #[arg(long, value_name = "N")]
    batches: Option<u64>,
    /// The program to test [default: the program that was built together with this example]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Directory in which the volumes are created
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,
}

/// Results of finished batches, indexed by batch number. The batch number is also the seed of the
/// batch.
struct RoundsState {
    path: Option<PathBuf>,
    batches: Vec<Met>,
}

impl RoundsState {
    fn load(path: Option<PathBuf>) -> Result<RoundsState> {
        let mut batches = Vec::new();
        if let Some(path) = path.as_deref().filter(|path| path.exists()) {
            let text = std::fs::read_to_string(path)?;
            let value: Value = serde_json::from_str(&text)?;
            let wrong = || anyhow!("{}: not a state of these rounds", path.display());
            ensure!(value["batch"] == BATCH, wrong());
            for met in value["met"].as_array().ok_or_else(wrong)? {
                let field = |name: &str| met[name].as_u64().ok_or_else(wrong);
                batches.push(Met {
                    rounds: field("rounds")?,
                    writes: field("writes")?,
                    blocks_read: field("blocks_read")?,
                    under_way: field("under_way")?,
                    flushes: field("flushes")?,
                });
            }
        }
        Ok(RoundsState { path, batches })
    }

    /// Writes the state to a temporary file and renames it, so that an interruption loses at most
    /// the results of one batch.
    fn save(&self) -> Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let met: Vec<Value> = self.batches.iter().map(to_json).collect();
        let beside = path.with_extension("new");
        std::fs::write(&beside, json!({ "batch": BATCH, "met": met }).to_string())?;
        std::fs::rename(&beside, path)?;
        Ok(())
    }

    fn total(&self) -> Met {
        let sum = |field: fn(&Met) -> u64| self.batches.iter().map(field).sum();
        Met {
            rounds: sum(|met| met.rounds),
            writes: sum(|met| met.writes),
            blocks_read: sum(|met| met.blocks_read),
            under_way: sum(|met| met.under_way),
            flushes: sum(|met| met.flushes),
        }
    }
}

fn to_json(met: &Met) -> Value {
    json!({
        "rounds": met.rounds,
        "writes": met.writes,
        "blocks_read": met.blocks_read,
        "under_way": met.under_way,
        "flushes": met.flushes,
    })
}

fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let profile = own.ancestors().nth(2).context("TARGET/PROFILE/examples")?;
    Ok(profile.join("bimetal"))
}

fn run_batch(binary: &Path, parent: &Path, batch: u64) -> Result<Met> {
    let dir = parent.join(format!("bimetal-rounds-{}-{batch}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
    let stack = if batch.is_multiple_of(2) {
        Stack::File
    } else {
        Stack::Cache
    };
    let met = rounds(binary, &dir, stack, batch, BATCH);
    let met =
        met.map_err(|words| anyhow!("batch {batch}, {stack:?}: {words}; {}", dir.display()))?;
    std::fs::remove_dir_all(&dir)?;
    Ok(met)
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let binary = match args.binary {
        Some(binary) => binary,
        None => beside()?,
    };
    let mut state = RoundsState::load(args.state)?;
    let mut left = args.batches.unwrap_or(u64::MAX);
    while state.total().rounds < args.rounds && left > 0 {
        let batch = state.batches.len() as u64;
        match run_batch(&binary, &args.dir, batch) {
            Ok(met) => state.batches.push(met),
            Err(error) => {
                eprintln!("{error:#}");
                return Ok(ExitCode::FAILURE);
            }
        }
        state.save()?;
        left -= 1;
        println!("{}", to_json(&state.total()));
    }
    Ok(ExitCode::SUCCESS)
}
