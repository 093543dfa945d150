//! `bimetal cache`: shows the content and counters of a buffer cache of a running server, or
//! accepts a data loss that the cache has reported.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::config::Config;
use crate::statistics;
use bimetal_console::stderr::say;
use bimetal_console::table::{Align, Table};

/// Arguments of the verb `cache`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cache, by its name in the configuration
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Accept that data was lost in a failed flush; until then, every flush of the cache fails
    #[arg(long)]
    accept_loss: bool,
    /// Print the statistics as one line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb. The exit status is 1 if the operator accepts a loss but the cache has none.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let does = if args.accept_loss {
        "accept-loss"
    } else {
        "show"
    };
    let request = json!({ "verb": "cache", "device": args.device, "do": does });
    let answer = config.ask(&request)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{answer}")?;
    } else {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
        for (name, value) in answer["cache"].as_object().into_iter().flatten() {
            table.row(vec![name.replace('_', " "), statistics::show(name, value)]);
        }
        table
            .lines()
            .iter()
            .try_for_each(|line| writeln!(out, "{line}"))?;
    }
    if answer["accepted"] == false {
        say(format_args!(
            "bimetal: cache {} has lost no data",
            args.device
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
