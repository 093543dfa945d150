//! `bimetal scrub`: makes a running server read every copy of all data in a volume, and repair
//! corrupt copies.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use bimetal_block::units::show_size;
use bimetal_control as control;
use serde_json::{Value, json};

use crate::config::Config;
use crate::volume::VolumeArgs;

/// Interval at which the client polls the state of the scrub.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Maximum number of polls until the volume has durably recorded the scrub request. All polls
/// together take 30 s. Within this time, all sides that accept writes have written their
/// superblocks.
const REMEMBERED_ASKS: u32 = 150;
/// Exit status if the scrub found data that it could not repair, or could not check all data.
const NOT_WHOLE: u8 = 3;

/// Arguments of the verb `scrub`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    on: VolumeArgs,
    /// Wait for the end of the scrub; the exit status is then 0 if the volume is intact, and 3 if
    /// data is corrupt on every side or could not be read
    #[arg(long)]
    wait: bool,
    /// Print the counters as one line of JSON
    #[arg(long)]
    json: bool,
    /// Cancel the running scrub
    #[arg(long, conflicts_with_all = ["wait", "show"])]
    cancel: bool,
    /// Show the running scrub, or else the last one, without starting a scrub
    #[arg(long)]
    show: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.on.file)?;
    let asked = |what: &str| -> Result<Value> {
        let request = json!({ "verb": "scrub", "volume": args.on.volume, "do": what });
        Ok(config.ask(&request)?["scrub"].take())
    };
    let first = match (args.cancel, args.show) {
        (true, _) => "cancel",
        (_, true) => "show",
        _ => "start",
    };
    let mut scrub = asked(first)?;
    // Wait until the request is durable in the volume, so that the printed state holds even if the
    // server stops.
    for _ in 0..REMEMBERED_ASKS {
        let is_over = scrub["state"] != "running";
        if args.show || scrub["remembered"] == true && (is_over || !args.cancel) {
            break;
        }
        control::pause(ASK_EVERY);
        scrub = asked("show")?;
    }
    while args.wait && scrub["state"] == "running" {
        control::pause(ASK_EVERY);
        scrub = asked("show")?;
    }
    if scrub.is_null() {
        bail!(
            "volume {}: not scrubbed since the server was started",
            args.on.volume
        );
    }
    let text = if args.json {
        scrub.to_string()
    } else {
        to_line(&scrub)
    };
    writeln!(std::io::stdout().lock(), "{text}")?;
    let whole = scrub["unrepairable"] == 0 && scrub["skipped_bytes"] == 0;
    let over = scrub["state"] != "running" && !args.cancel;
    Ok(ExitCode::from(if over && !whole { NOT_WHOLE } else { 0 }))
}

fn to_line(scrub: &Value) -> String {
    let count = |key: &str| scrub[key].as_u64().unwrap_or(0);
    let mut line = format!(
        "{}: {} read in {:.0} s, up to {}; corrupt {}, repaired {}, corrupt on every side {}",
        scrub["state"].as_str().unwrap_or("?"),
        show_size(count("read_bytes")),
        scrub["seconds"].as_f64().unwrap_or(0.0),
        show_size(count("position_bytes")),
        count("found"),
        count("repaired"),
        count("unrepairable"),
    );
    let skipped_bytes = count("skipped_bytes");
    if skipped_bytes > 0 {
        line += &format!("; {} could not be read", show_size(skipped_bytes));
    }
    line
}
