//! One cell of the comparison of index engines: one engine does one kind of work in one process,
//! and reports its cost in one line of JSON. `python3 benches index` runs the cells and compares
//! them.

mod engine;
mod measure;
mod record;
mod workload;

use anyhow::Result;
use clap::Parser;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use workload::{Cell, Plan};

/// Measures one cell: the cost of one kind of work of one engine. Prints one line of JSON.
#[derive(Parser)]
struct Words {
    engine: engine::Name,
    cell: Cell,
    /// Folder that only this engine uses.
    folder: PathBuf,
    #[arg(long, default_value = "8+8")]
    shape: record::Shape,
    /// Number of records that the cell `load` writes to the folder. A cell is one kind of work;
    /// every other cell expects these records in the folder.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    #[arg(long, default_value_t = 256 << 20)]
    cache_bytes: u64,
    /// Part of the cache for changes that are not in nodes yet, in bytes; only for `ours`. The
    /// default has room for 10 % of the records, but is at most half of the cache.
    #[arg(long)]
    buffer_bytes: Option<u64>,
    /// Maximum size of a leaf image in bytes; only for `ours`.
    #[arg(long, default_value_t = 4096)]
    node_bytes: usize,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum number of operations (gets, scans or commits).
    #[arg(long, default_value_t = 5000)]
    count: u64,
    /// Maximum time of the operations, in seconds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Number of updates that `mix100`, `update100` and `kill` write before their measurement
    /// begins. The default is three fifths of the records. After that many updates, leaves are
    /// written back at different times.
    #[arg(long)]
    warm: Option<u64>,
    /// The data do not fit into the cache: before counting, read random records instead of all
    /// records.
    #[arg(long)]
    cold: bool,
    /// File with the counters of the block device below the folder: /sys/block/NAME/stat.
    #[arg(long)]
    stat: Option<PathBuf>,
}

impl Words {
    fn plan(self) -> Plan {
        // Memory that one record occupies as a change, in bytes.
        let change_bytes = match self.shape {
            record::Shape::Short => 48,
            record::Shape::Long => 160,
            record::Shape::Wide => 1060,
        };
        let tenth_bytes = self.keys / 10 * change_bytes;
        // A size that the user gives is used unchanged, even if it exceeds half of the cache.
        let half_bytes = self.cache_bytes / 2;
        let buffer_bytes = self.buffer_bytes.unwrap_or(tenth_bytes.min(half_bytes));
        Plan {
            cell: self.cell,
            engine: self.engine,
            folder: self.folder,
            shape: self.shape,
            keys: self.keys,
            setting: engine::Setting {
                cache_bytes: self.cache_bytes,
                buffer_bytes,
                node_bytes: self.node_bytes,
            },
            seed: self.seed,
            count: self.count,
            limit_ns: (self.seconds * 1e9) as u64,
            warm_updates: self.warm.unwrap_or(self.keys / 5 * 3),
            is_cold: self.cold,
            stat: self.stat,
        }
    }
}

fn main() -> Result<()> {
    let plan = Words::parse().plan();
    let mut found = workload::run(&plan)?;
    if let Value::Object(found) = &mut found {
        found.insert(
            "engine".to_owned(),
            json!(format!("{:?}", plan.engine).to_lowercase()),
        );
        found.insert(
            "cell".to_owned(),
            json!(format!("{:?}", plan.cell).to_lowercase()),
        );
        found.insert(
            "user_bytes".to_owned(),
            json!(plan.keys * plan.shape.record_bytes()),
        );
        found.insert("buffer_bytes".to_owned(), json!(plan.setting.buffer_bytes));
    }
    let mut out = std::io::stdout();
    writeln!(out, "{found}")?;
    out.flush()?;
    if plan.cell == Cell::Kill {
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::KILL)?;
    }
    Ok(())
}
