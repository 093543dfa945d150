//! `bimetal side`: makes a running server add, remove, replace or convert a side of a volume.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use bimetal_control as control;
use serde_json::json;

use crate::config::Config;
use crate::volume::VolumeArgs;

/// Arguments of the verb `side`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Add a device as a further side; the server reads the configuration again to find the device
    Add {
        #[command(flatten)]
        on: VolumeArgs,
        /// The device to add
        #[arg(value_name = "NEW")]
        new: String,
        /// Add the device even if it holds other data, such as a file system
        #[arg(long)]
        force: bool,
    },
    /// Remove a side permanently
    Remove {
        #[command(flatten)]
        on: VolumeArgs,
        /// The side to remove
        #[arg(value_name = "OLD")]
        old: String,
    },
    /// Add a device as a further side, and remove another side when the new side is complete
    Replace {
        #[command(flatten)]
        on: VolumeArgs,
        /// The side to remove
        #[arg(value_name = "OLD")]
        old: String,
        /// The device to add
        #[arg(value_name = "NEW")]
        new: String,
        /// Add the device even if it holds other data, such as a file system
        #[arg(long)]
        force: bool,
    },
    /// Format the device of a side for the other layout, and rebuild the side from the other sides;
    /// without --yes, only say what this would do and for how long
    Convert {
        #[command(flatten)]
        on: VolumeArgs,
        /// The side to convert
        #[arg(value_name = "SIDE")]
        side: String,
        /// The layout that the side gets
        #[arg(long, value_name = "LAYOUT", value_parser = ["home", "log"])]
        layout: String,
        /// Begin; meanwhile the volume has one copy less
        #[arg(long)]
        yes: bool,
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
        Verb::Convert {
            on, side, layout, ..
        } => {
            let words = json!({ "do": "convert", "old": side, "layout": layout, "plan": true });
            (on, words)
        }
    };
    request["verb"] = "side".into();
    request["volume"] = on.volume.as_str().into();
    let config = Config::load(&on.file)?;
    let mut out = std::io::stdout().lock();
    if let Verb::Convert { yes, .. } = &args.verb {
        let plan = control::carry_out(&config.server.control, &request)?;
        writeln!(out, "{}", plan["note"].as_str().unwrap_or_default())?;
        if !yes {
            bail!("nothing was changed; the same command with --yes begins");
        }
        request["plan"] = false.into();
    }
    let operation = control::carry_out(&config.server.control, &request)?;
    let word = |key: &str| operation[key].as_str().unwrap_or_default();
    if request["do"] == "remove" {
        writeln!(out, "done: {}", word("description"))?;
    } else {
        writeln!(
            out,
            "started: {}; `bimetal status` shows the progress of the rebuild",
            word("description")
        )?;
    }
    if !word("note").is_empty() {
        writeln!(out, "{}", word("note"))?;
    }
    Ok(ExitCode::SUCCESS)
}
