//! `bimetal rebuild`: shows or sets the rates at which a running server rebuilds the sides of a
//! volume.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use bimetal_block::units::show_size;
use serde_json::{Value, json};

use crate::config::Config;
use crate::volume::VolumeArgs;

/// Arguments of the verb `rebuild`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArgs,
    /// Minimum rate under any client load, such as 20MiB/s; 0B/s for no minimum
    #[arg(long, value_name = "RATE")]
    floor: Option<String>,
    /// Maximum rate, such as 100MiB/s; `none` for no limit
    #[arg(long, value_name = "RATE")]
    ceiling: Option<String>,
    /// Print the rates as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.on.file)?;
    let mut request = json!({ "verb": "rebuild", "volume": args.on.volume, "do": "show" });
    for (key, rate) in [("floor", &args.floor), ("ceiling", &args.ceiling)] {
        if let Some(rate) = rate {
            request["do"] = json!("set");
            request[key] = json!(rate);
        }
    }
    let rates = config.ask(&request)?["rebuild"].take();
    let text = if args.json {
        rates.to_string()
    } else {
        to_line(&rates)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(ExitCode::SUCCESS)
}

fn to_line(rates: &Value) -> String {
    let shown = |key: &str| {
        rates[key]
            .as_u64()
            .map(|rate| format!("{}/s", show_size(rate)))
    };
    let or_none = |rate: Option<String>| rate.unwrap_or_else(|| "none".to_owned());
    let (floor, ceiling) = (shown("floor_bytes_per_s"), shown("ceiling_bytes_per_s"));
    format!("floor {}, ceiling {}", or_none(floor), or_none(ceiling))
}
