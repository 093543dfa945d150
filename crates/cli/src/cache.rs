//! `bimetal cache`: shows the content and counters of a buffer cache of a running server, and lets
//! the operator accept a data loss that the cache has reported.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::config::Config;
use crate::control;
use crate::figures;
use bimetal_console::stderr::say;
use bimetal_console::table::{Align, Table};

/// Which cache.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cache
    #[arg(value_name = "DEVICE")]
    device: String,
    /// After a failed flush has lost data that was not held any more, every flush fails. This says
    /// that the loss is known, so that they may succeed again
    #[arg(long)]
    accept_loss: bool,
    /// Print the figures as JSON, one line
    #[arg(long)]
    json: bool,
}

/// Runs the verb. The exit status is 1 when there was no loss to accept.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let does = if args.accept_loss {
        "accept-loss"
    } else {
        "show"
    };
    let request = json!({ "verb": "cache", "device": args.device, "do": does });
    let answer = control::ask(&config.server.control, &request)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{answer}")?;
    } else {
        let mut table = Table::new(&[("", Align::Left), ("", Align::Right)]);
        for (name, value) in answer["cache"].as_object().into_iter().flatten() {
            table.row(vec![name.replace('_', " "), figures::show(name, value)]);
        }
        table
            .lines()
            .iter()
            .try_for_each(|line| writeln!(out, "{line}"))?;
    }
    if answer["accepted"] == false {
        say(format_args!(
            "bimetal: cache {} has lost nothing",
            args.device
        ));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
