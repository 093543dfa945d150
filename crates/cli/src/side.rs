//! `bimetal side`: has a running server add, remove or replace a side of a volume.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::config::Config;
use crate::control::{self, VolumeArgs};

/// What to do.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Take a device of the configuration, which the server reads again, as a further side
    Add {
        #[command(flatten)]
        on: VolumeArgs,
        /// The device
        #[arg(value_name = "NEW")]
        new: String,
        /// Also when it holds something else, such as a file system
        #[arg(long)]
        force: bool,
    },
    /// Let go of a side for good
    Remove {
        #[command(flatten)]
        on: VolumeArgs,
        /// The side
        #[arg(value_name = "OLD")]
        old: String,
    },
    /// Take a device as a further side, and let go of another one when it is whole
    Replace {
        #[command(flatten)]
        on: VolumeArgs,
        /// The side
        #[arg(value_name = "OLD")]
        old: String,
        /// The device
        #[arg(value_name = "NEW")]
        new: String,
        /// Also when it holds something else, such as a file system
        #[arg(long)]
        force: bool,
    },
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (on, mut request) = match &args.verb {
        Verb::Add { on, new, force } => (on, json!({ "do": "add", "new": new, "force": force })),
        Verb::Remove { on, old } => (on, json!({ "do": "remove", "old": old })),
        Verb::Replace {
            on,
            old,
            new,
            force,
        } => {
            let words = json!({ "do": "replace", "old": old, "new": new, "force": force });
            (on, words)
        }
    };
    request["verb"] = "side".into();
    request["volume"] = on.volume.as_str().into();
    let config = Config::load(&on.file)?;
    let operation = control::carry_out(&config.server.control, &request)?;
    let word = |key: &str| operation[key].as_str().unwrap_or_default();
    let mut out = std::io::stdout().lock();
    if request["do"] == "remove" {
        writeln!(out, "done: {}", word("does"))?;
    } else {
        writeln!(
            out,
            "begun: {}; `bimetal status` shows how the rebuild goes",
            word("does")
        )?;
    }
    if !word("note").is_empty() {
        writeln!(out, "{}", word("note"))?;
    }
    Ok(ExitCode::SUCCESS)
}
