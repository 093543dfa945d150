//! `bimetal status`: shows the live statistics of a running server, for people or for programs. Its
//! exit status is for monitoring: 0 healthy, 1 degraded, 2 stopped or not reachable.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use bimetal_block::units::show_size;
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::terminal::{Terminal, Tone};
use crate::{health, latency, statistics, watch};
use bimetal_console::table::{Align, Table};

/// Exit status if all volumes work, but a device is not healthy.
const DEGRADED: u8 = 1;
/// Exit status if a volume accepts no requests, or no server answers.
const STOPPED: u8 = 2;
/// Interval at which `--watch` polls the server.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// Arguments of the verb `status`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print the answer as one line of JSON
    #[arg(long)]
    json: bool,
    /// Ask the server again every second; on a terminal, show a screen
    #[arg(long)]
    watch: bool,
    /// Show every figure of the sides, not only those that people need in operation
    #[arg(short, long)]
    verbose: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = match Config::load(&args.file) {
        Ok(config) => config,
        Err(error) => {
            bimetal_console::program::report_failure("bimetal", &error);
            return Ok(ExitCode::from(STOPPED));
        }
    };
    let terminal = Terminal::of_stdout();
    if args.watch && terminal.live && !args.json {
        let (colour, unicode) = terminal.shows();
        watch::run(&config, watch::Look { colour, unicode }, args.verbose)?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let answer = match config.ask(&json!({ "verb": "status" })) {
            Ok(answer) => answer,
            Err(error) => {
                bimetal_console::program::report_failure("bimetal", &error);
                return Ok(ExitCode::from(STOPPED));
            }
        };
        if args.json {
            writeln!(std::io::stdout().lock(), "{answer}")?;
        } else {
            let lines = to_lines(&answer, terminal, args.verbose);
            writeln!(std::io::stdout().lock(), "{}", lines.join("\n"))?;
        }
        if !args.watch {
            return Ok(ExitCode::from(match answer["health"].as_str() {
                Some("healthy") => 0,
                Some("degraded") => DEGRADED,
                _ => STOPPED,
            }));
        }
        pause();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a client without a runtime: nothing else waits on this thread"
)]
fn pause() {
    std::thread::sleep(WATCH_EVERY);
}

fn to_lines(answer: &Value, terminal: Terminal, is_verbose: bool) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let mut lines = health_lines(answer, terminal);
    let uptime = answer["uptime_s"].as_f64().unwrap_or(0.0);
    let longest_turn_ms = answer["longest_turn"]["time_ns"].as_f64().unwrap_or(0.0) / 1e6;
    lines.push(format!(
        "pid {}  up {}  driver {}  longest turn {longest_turn_ms:.1} ms{}",
        answer["pid"],
        statistics::show_uptime(uptime),
        word(&answer["driver"]["name"]),
        if answer["stopping"] == true {
            terminal.paint(Tone::Warn, "  stopping")
        } else {
            String::new()
        },
    ));
    if let Some(refused) = answer["driver"]["refused"].as_str() {
        let why = format!("io_uring cannot be used: {refused}");
        lines.push(terminal.paint(Tone::Warn, &why));
    }
    let empty = Map::new();
    let entries = |value: &Value| value.as_object().unwrap_or(&empty).clone();
    for (name, export) in &entries(&answer["exports"]) {
        lines.push(String::new());
        lines.push(format!(
            "{} {}  {} of device {} at {}",
            terminal.paint(Tone::Dim, "export"),
            terminal.paint(Tone::Strong, name),
            word(&export["protocol"]),
            word(&export["device"]),
            word(&export["listen"]),
        ));
        lines.extend(latency::lines(&entries(&export["latency"])));
        lines.extend(flowing(&entries(&export["statistics"])));
    }
    for (path, attached) in &entries(&answer["attached"]) {
        lines.push(String::new());
        lines.push(format!(
            "{} of device {}",
            terminal.paint(Tone::Strong, path),
            word(&attached["device"]),
        ));
        lines.extend(latency::lines(&entries(&attached["latency"])));
        lines.extend(flowing(&entries(&attached["statistics"])));
    }
    for (name, device) in &entries(&answer["devices"]) {
        let (own, parts) = (entries(&device["statistics"]), entries(&device["parts"]));
        let latency = latency::lines(&entries(&device["latency"]));
        if own.is_empty() && parts.is_empty() && latency.is_empty() {
            continue;
        }
        lines.push(String::new());
        lines.push(format!(
            "{} {}  {}  {}",
            terminal.paint(Tone::Dim, "device"),
            terminal.paint(Tone::Strong, name),
            word(&device["type"]),
            show_size(device["size_bytes"].as_u64().unwrap_or(0)),
        ));
        lines.extend(latency);
        lines.extend(flowing(&own));
        lines.extend(part_table(&parts, is_verbose));
    }
    lines
}

/// Returns the health of each volume, the worst first: a word, and the reason in a sentence.
fn health_lines(answer: &Value, terminal: Terminal) -> Vec<String> {
    let mut lines = Vec::new();
    for volume in health::worst_first(answer) {
        for (at, found) in health::shown(answer, volume).iter().enumerate() {
            let word = terminal.paint(found.tone(), found.word);
            lines.push(match at {
                0 => format!("{word}  {volume}: {}", found.reason),
                _ => format!("  also {word}  {}", found.reason),
            });
        }
    }
    if lines.is_empty() {
        // The server has no device, or is of an earlier version.
        lines.push(answer["health"].as_str().unwrap_or("?").to_owned());
    }
    lines
}

/// Formats the statistics, several on each line, which is indented.
fn flowing(statistics: &Map<String, Value>) -> Vec<String> {
    const WIDTH: usize = 94;
    let lines = statistics::flowing(statistics.iter(), WIDTH);
    lines.iter().map(|line| format!("  {line}")).collect()
}

/// Formats the statistics of the parts of a device as a table, with a column for every part and a
/// row for every statistic. Rows without a value other than 0 are omitted, and internal counters
/// unless they are wanted.
fn part_table(parts: &Map<String, Value>, is_verbose: bool) -> Vec<String> {
    let mut columns = vec![("", Align::Left)];
    columns.extend(parts.keys().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    let mut names: Vec<&String> = Vec::new();
    for statistics in parts.values().filter_map(Value::as_object) {
        for name in statistics.keys() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let is_something = |value: &Value| value.as_f64() != Some(0.0) && !value.is_null();
    names.retain(|name| {
        let mut values = parts
            .values()
            .filter_map(|statistics| statistics.get(*name));
        is_verbose || !statistics::is_internal(name) && values.any(is_something)
    });
    for name in names {
        let mut row = vec![statistics::label(name)];
        row.extend(parts.values().map(|statistics| {
            statistics
                .get(name)
                .map_or_else(String::new, |value| statistics::show(name, value))
        }));
        table.row(row);
    }
    if table.is_empty() {
        return Vec::new();
    }
    let indent = |line: String| format!("  {line}").trim_end().to_owned();
    table.lines().into_iter().map(indent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_side_by_side() {
        let parts = json!({
            "fast": { "mode": "live", "writes": 1200 },
            "slow": { "mode": "delayed", "writes": 7, "lag_bytes": 4096 },
        });
        assert_eq!(
            part_table(parts.as_object().unwrap(), false),
            [
                "           fast     slow",
                "  mode     live  delayed",
                "  writes  1,200        7",
                "  lag              4 KiB",
            ]
        );
    }

    #[test]
    fn what_is_zero_or_internal_is_not_shown() {
        let parts = json!({
            "fast": { "errors": 0, "map_commits": 3, "corrupt_found": 2 },
            "slow": { "errors": 0, "map_commits": 5, "corrupt_found": 0 },
        });
        let table = |is_verbose| part_table(parts.as_object().unwrap(), is_verbose).len();
        assert_eq!((table(false), table(true)), (2, 4));
    }
}
