//! `bimetal side`: makes a running server add, remove, replace or convert a side of a volume.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bimetal_block::layers::mirror::sides_line;
use bimetal_console::progress::progress_bar;
use bimetal_control as control;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::Config;
use crate::edit;
use crate::health::rebuilt_share;
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
        #[command(flatten)]
        then: Then,
    },
    /// Remove a side permanently
    Remove {
        #[command(flatten)]
        on: VolumeArgs,
        /// The side to remove
        #[arg(value_name = "OLD")]
        old: String,
        /// Write the new `sides` into the configuration
        #[arg(long)]
        edit: bool,
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
        #[command(flatten)]
        then: Then,
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
        /// Wait until the side is complete
        #[arg(long, requires = "yes")]
        wait: bool,
    },
}

/// What happens after a side was added.
#[derive(clap::Args, Clone, Copy)]
struct Then {
    /// Wait until the new side is complete, and the old one has left
    #[arg(long)]
    wait: bool,
    /// Write the new `sides` into the configuration
    #[arg(long)]
    edit: bool,
}

/// Time for which a side that is waited for may be absent, as it is while its device is formatted.
const ABSENT_SECONDS_MAX: f64 = 10.0;
/// Interval at which the server is asked for the progress.
const ASK_EVERY: Duration = Duration::from_millis(200);

impl Verb {
    fn on(&self) -> &VolumeArgs {
        match self {
            Verb::Add { on, .. }
            | Verb::Remove { on, .. }
            | Verb::Replace { on, .. }
            | Verb::Convert { on, .. } => on,
        }
    }

    /// Returns the request to the server.
    fn request(&self) -> Value {
        let mut request = match self {
            Verb::Add { new, force, .. } => json!({ "do": "add", "new": new, "force": force }),
            Verb::Remove { old, .. } => json!({ "do": "remove", "old": old }),
            Verb::Replace {
                old, new, force, ..
            } => json!({ "do": "replace", "old": old, "new": new, "force": force }),
            Verb::Convert { side, layout, .. } => {
                json!({ "do": "convert", "old": side, "layout": layout, "plan": true })
            }
        };
        request["verb"] = "side".into();
        request["volume"] = self.on().volume.as_str().into();
        request
    }

    /// Returns the side to wait for, and the side that leaves then; `None` unless it is to wait.
    fn awaited(&self) -> Option<(&str, Option<&str>)> {
        match self {
            Verb::Add { new, then, .. } if then.wait => Some((new, None)),
            Verb::Replace { old, new, then, .. } if then.wait => Some((new, Some(old))),
            Verb::Convert {
                side, wait: true, ..
            } => Some((side, None)),
            _ => None,
        }
    }

    fn edits(&self) -> bool {
        match self {
            Verb::Add { then, .. } | Verb::Replace { then, .. } => then.edit,
            Verb::Remove { edit, .. } => *edit,
            Verb::Convert { .. } => false,
        }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let verb = &args.verb;
    let (on, mut request) = (verb.on(), verb.request());
    let config = Config::load(&on.file)?;
    let mut out = std::io::stdout().lock();
    if let Verb::Convert { yes, .. } = verb {
        let plan = config.carry_out(&request)?;
        writeln!(out, "{}", plan["note"].as_str().unwrap_or_default())?;
        if !yes {
            bail!("nothing was changed; the same command with --yes begins");
        }
        request["plan"] = false.into();
    }
    let operation = config.carry_out(&request)?;
    let word = |key: &str| operation[key].as_str().unwrap_or_default();
    if request["do"] == "remove" {
        writeln!(out, "done: {}", word("description"))?;
    } else {
        let more = match verb.awaited() {
            Some(_) => "",
            None => "; `bimetal status` shows the progress of the rebuild",
        };
        writeln!(out, "started: {}{more}", word("description"))?;
    }
    out.flush()?;
    // The edit comes before the wait: the volume knows its sides by now, and if the wait is
    // interrupted, nothing is left to do.
    if !verb.edits() {
        if !word("note").is_empty() {
            writeln!(out, "{}", word("note"))?;
        }
    } else if let Some(sides) = sides_to_name(&config, &on.volume)? {
        let path = config.path.display();
        let line = sides_line(&sides);
        match edit::set_sides(&config.path, &on.volume, &sides) {
            Ok(true) => writeln!(out, "{path}: [device.{}] now has {line}", on.volume)?,
            Ok(false) => writeln!(out, "{path}: [device.{}] has {line}", on.volume)?,
            Err(error) => {
                return Err(error.context(format!(
                    "the side was changed, but the configuration was not: write into [device.{}]: \
                    {line}",
                    on.volume
                )));
            }
        }
    }
    if let Some((new, old)) = verb.awaited() {
        wait(&config, &on.volume, new, old)?;
        let left = old.map_or(String::new(), |old| format!(", and {old} has left"));
        writeln!(out, "done: {new} is complete{left}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the sides that the configuration of the server should name; `None` if it names them.
fn sides_to_name(config: &Config, volume: &str) -> Result<Option<Vec<String>>> {
    #[derive(Deserialize)]
    struct Line {
        sides: Vec<String>,
    }
    let status = config.ask(&json!({ "verb": "status" }))?;
    let line = status["devices"][volume]["statistics"]["to_configure"].as_str();
    let line = line.map(toml::from_str::<Line>).transpose()?;
    Ok(line.map(|line| line.sides))
}

/// Waits until the side `new` is complete and the side `old` has left, and shows the progress.
///
/// # Errors
/// If the server is gone, or the side is absent: then it would not become complete.
fn wait(config: &Config, volume: &str, new: &str, old: Option<&str>) -> Result<()> {
    let bar = progress_bar(100);
    loop {
        let status = config.ask(&json!({ "verb": "status" }));
        let status = status.context("the volume remembers the change, and goes on with it")?;
        let sides = &status["devices"][volume]["parts"];
        let side = &sides[new];
        let number = |key: &str| side[key].as_f64().unwrap_or(0.0);
        match side["health"].as_str() {
            Some("absent") if number("health_seconds") > ABSENT_SECONDS_MAX => bail!(
                "{volume}: side {new} is absent ({}): it is rebuilt when it is back",
                side["absent_reason"].as_str().unwrap_or("not found")
            ),
            None => bail!("{volume}: {new} is no longer a side"),
            Some("healthy")
                if side["operation"].is_null() && old.is_none_or(|old| sides[old].is_null()) =>
            {
                break;
            }
            Some(_) => {}
        }
        let passed_bytes = side["resync_passed_bytes"].as_f64();
        let share = rebuilt_share(passed_bytes, number("out_of_sync_bytes"));
        bar.set_position((share.unwrap_or(0.0) * 100.0) as u64);
        control::pause(ASK_EVERY);
    }
    bar.finish_and_clear();
    Ok(())
}
