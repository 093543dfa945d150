//! `bimetal report`: prints in one text what a person who helps must know: the configuration, the
//! health, the status and the events of the running server, and the machine.
//!
//! It must not print secrets, and it must print what it can if the server does not answer.

use std::fs::read_to_string;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use bimetal_block::units::{show_size, show_unix_time};
use bimetal_rt::UringOptions;
use serde_json::json;

use crate::config::Config;
use crate::{cgroup, health, runtime};

/// Keys whose values may be secret, such as a command with the token of a messaging service.
const SECRET_KEYS: [&str; 6] = ["alert", "key", "token", "password", "psk", "secret"];
/// What is printed instead of a secret value.
const HIDDEN: &str = "(not shown)";
/// Lines of the limits and the state of a process that say something about a server.
const OF_PROCESS: [&str; 8] = [
    "Max locked memory",
    "Max open files",
    "Max file size",
    "Max address space",
    "VmRSS",
    "VmLck",
    "VmSwap",
    "Threads",
];

/// Arguments of the verb `report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration of the server; it need not be running
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let text = read_to_string(&args.file).with_context(|| args.file.display().to_string())?;
    let mut report = String::new();
    let rt = runtime::start_quietly(UringOptions::default())?;
    introduce(&mut report, rt.unix_seconds());
    section(
        &mut report,
        &format!("configuration {}", args.file.display()),
    );
    report += &without_secrets(&text);
    match Config::load(&args.file) {
        Ok(config) => of_server(&mut report, &config),
        Err(error) => {
            section(&mut report, "server");
            report += &format!("the configuration has a mistake: {error:#}\n");
        }
    }
    std::io::stdout().lock().write_all(report.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn section(report: &mut String, title: &str) {
    *report += &format!("\n## {title}\n\n");
}

/// Adds the program, the time in seconds since 1970, and the machine.
fn introduce(report: &mut String, now_s: u64) {
    *report += &format!("# bimetal report of {}\n\n", show_unix_time(now_s));
    let mut line = |name: &str, value: String| *report += &format!("{name:14} {value}\n");
    line("program", format!("bimetal {}", env!("CARGO_PKG_VERSION")));
    line("kernel", first_line("/proc/version"));
    let processors = std::thread::available_parallelism();
    line(
        "processors",
        processors.map_or("unknown".to_owned(), |n| n.to_string()),
    );
    for name in ["MemTotal", "MemAvailable", "SwapTotal"] {
        line(name, value_of("/proc/meminfo", name));
    }
    if let Some(bytes) = cgroup::memory_limit_bytes() {
        line("memory cgroup", show_size(bytes));
    }
    let uring = first_line("/proc/sys/kernel/io_uring_disabled");
    line("io_uring off", uring);
}

/// Adds the health, the status and the events of the running server.
fn of_server(report: &mut String, config: &Config) {
    let ask = |verb: &str| config.ask(&json!({ "verb": verb }));
    section(report, "health");
    let status = match ask("status") {
        Ok(status) => status,
        Err(error) => {
            *report += &format!("{error:#}\n");
            return;
        }
    };
    for volume in health::worst_first(&status) {
        for found in health::shown(&status, volume) {
            *report += &format!("{}  {volume}: {}\n", found.word, found.reason);
        }
    }
    if let Some(pid) = status["pid"].as_u64() {
        section(report, &format!("process {pid}"));
        *report += &of_process(pid);
    }
    section(report, "events, the newest last");
    match ask("events") {
        Ok(answer) => {
            for event in answer["events"].as_array().into_iter().flatten() {
                *report += &format!("{event}\n");
            }
        }
        Err(error) => *report += &format!("{error:#}\n"),
    }
    section(report, "status");
    *report += &serde_json::to_string_pretty(&status).unwrap_or_default();
    *report += "\n";
}

/// Returns what the kernel says about a process, as far as it may be read.
fn of_process(pid: u64) -> String {
    let read = |name: &str| read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let all = read("limits") + &read("status");
    let told = all
        .lines()
        .filter(|line| OF_PROCESS.iter().any(|name| line.starts_with(name)));
    told.map(|line| format!("{line}\n")).collect()
}

fn first_line(path: &str) -> String {
    let text = read_to_string(Path::new(path));
    let line = text
        .ok()
        .and_then(|text| text.lines().next().map(str::to_owned));
    line.unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the value of a line `NAME: VALUE` of a file.
fn value_of(path: &str, name: &str) -> String {
    let text = read_to_string(path).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map_or("unknown".to_owned(), |value| value.trim().to_owned())
}

/// Returns a configuration without its secrets and comments. If it cannot be parsed, returns only a
/// line that says so: what is secret in it is not known then.
fn without_secrets(text: &str) -> String {
    let Ok(mut table) = text.parse::<toml::Table>() else {
        return "(not shown: it cannot be parsed)\n".to_owned();
    };
    for value in table.iter_mut() {
        hide(value);
    }
    table.to_string()
}

fn hide((key, value): (&String, &mut toml::Value)) {
    match value {
        toml::Value::Table(table) => table.iter_mut().for_each(hide),
        toml::Value::Array(values) => {
            values.iter_mut().for_each(|value| hide((key, value)));
        }
        _ if SECRET_KEYS.contains(&key.to_lowercase().as_str()) => {
            *value = toml::Value::String(HIDDEN.to_owned());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_wherever_they_are() {
        let text = "# my token is abc1\n[server]\nalert = \"curl -d abc2 https://x\"\n\
            [export.vol]\nlisten = \"unix:vol.sock\"\ntls = { key = \"abc3\", cert = \"c.pem\" }\n\
            [[more]]\npassword = [\"abc4\", \"abc5\"]\n";
        let shown = without_secrets(text);
        assert!(!shown.contains("abc"), "{shown}");
        for kept in ["unix:vol.sock", "c.pem", HIDDEN] {
            assert!(shown.contains(kept), "{shown}");
        }
        assert!(without_secrets("alert = abc").contains("cannot be parsed"));
    }
}
