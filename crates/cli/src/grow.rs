//! `bimetal grow`: makes a running server grow a volume to the largest size that its sides allow.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::config::Config;
use crate::volume::VolumeArgs;

/// Arguments of the verb `grow`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArgs,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.on.file)?;
    let request = json!({ "verb": "grow", "volume": args.on.volume });
    let operation = config.carry_out(&request)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{operation}")?;
    } else {
        let word = |key: &str| operation[key].as_str().unwrap_or_default();
        writeln!(out, "done: {}\n{}", word("description"), word("note"))?;
    }
    Ok(ExitCode::SUCCESS)
}
