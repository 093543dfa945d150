//! The `bimetal` program. This module only parses the command line, runs one verb and turns its
//! outcome into an exit status: 0, 1 for a failure, 2 for a wrong command line, and the statuses of
//! `status`.
//!
//! A failure is reported as one line on standard error that states the problem, its place and the
//! remedy; a refused volume adds a list after the line.

// Both macros panic when the reader is gone: results are written with `?`, other output with `say`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod alerts;
mod attach;
mod bench;
mod cache;
mod cgroup;
mod check;
mod config;
mod control;
mod demo;
mod exports;
mod exposure;
mod facts;
mod figures;
mod format;
mod grow;
mod index;
mod itself;
mod lab;
mod lab_native;
mod lab_stack;
mod latency;
mod limits;
mod load;
mod local;
mod mount;
mod operation;
mod operations;
mod probe;
mod proxy;
mod rebuild;
mod record;
mod running;
mod runs;
mod runtime;
mod said;
mod scrub;
mod serve;
mod shown;
mod side;
mod sim;
mod sim_cache;
mod sim_index;
mod status;
mod table;
mod terminal;
mod tester;
mod tls;
mod trace;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use said::{say, say_notices};

/// Bonds unlike storage media into one block device.
#[derive(Parser)]
#[command(name = "bimetal", version, max_term_width = 100)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show three stacks under one load: a freezing SSD, a hard disk, and a mirror of such a pair.
    Demo(demo::Args),
    /// Prepare the sides of every mirror of a configuration.
    Format(format::Args),
    /// Serve the exports of a configuration until SIGTERM or SIGINT.
    Serve(serve::Args),
    /// Expose a device of a configuration as a block device of this machine until SIGTERM or
    /// SIGINT.
    Attach(attach::Args),
    /// Remove a block device that `attach` has made.
    Detach(attach::DetachArgs),
    /// Expose a device of a configuration as a file in a folder, by FUSE, until SIGTERM or SIGINT.
    Mount(mount::Args),
    /// Unmount a folder on which `mount` has mounted a device.
    Unmount(mount::UnmountArgs),
    /// Create a loop device over a file; `mount` runs this verb in a separate process.
    #[command(hide = true)]
    MakeLoop(mount::LoopArgs),
    /// Remove the mount on a folder; `mount` and `unmount` run this verb in a separate process.
    #[command(hide = true)]
    TakeAway(mount::TakeAwayArgs),
    /// Check a configuration and show its devices, without writing.
    Check(check::Args),
    /// Show the statistics of a running server.
    Status(status::Args),
    /// Read every copy of all data of a served volume, and repair corrupt copies.
    Scrub(scrub::Args),
    /// Show or set the rebuild rates of a served volume.
    Rebuild(rebuild::Args),
    /// Show a buffer cache of a running server, or accept its data loss.
    Cache(cache::Args),
    /// Add, remove or replace a side of a served volume.
    Side(side::Args),
    /// Grow a served volume to the size that its sides have room for.
    Grow(grow::Args),
    /// Measure a device of a configuration, without an export.
    Bench(bench::Args),
    /// List the exports of a BRP target.
    Exports(exports::Args),
    /// Offer an export of a BRP target to NBD clients until SIGTERM or SIGINT.
    Proxy(proxy::Args),
    /// Find the write size that suits a device, for the caches over it.
    Probe(probe::Args),
    /// Load, read and check an index: ordered keys and values in one file.
    Index(index::Args),
    /// Run the simulation tester, or an experiment in virtual time.
    Sim(sim::Args),
    /// Run experiments that show which scheduler, read-ahead, write mode and file system suit a
    /// device.
    Lab(lab::Args),
    /// Examine, convert or record an I/O trace.
    Trace(trace::Args),
}

fn main() -> ExitCode {
    bimetal_rt::real_time::fail_writes_instead_of_ending();
    let command = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => return report_usage(&error),
    };
    let outcome = match command.verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Format(args) => format::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Attach(args) => attach::run(&args),
        Verb::Detach(args) => attach::run_detach(&args),
        Verb::Mount(args) => mount::run(&args),
        Verb::Unmount(args) => mount::run_unmount(&args),
        Verb::MakeLoop(args) => mount::run_make_loop(&args),
        Verb::TakeAway(args) => mount::run_take_away(&args),
        Verb::Check(args) => check::run(&args),
        Verb::Status(args) => status::run(&args),
        Verb::Scrub(args) => scrub::run(&args),
        Verb::Rebuild(args) => rebuild::run(&args),
        Verb::Cache(args) => cache::run(&args),
        Verb::Side(args) => side::run(&args),
        Verb::Grow(args) => grow::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Exports(args) => exports::run(&args),
        Verb::Proxy(args) => proxy::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Index(args) => index::run(&args),
        Verb::Sim(args) => sim::run(&args),
        Verb::Lab(args) => lab::run(&args),
        Verb::Trace(args) => trace::run(&args),
    };
    say_notices();
    outcome.unwrap_or_else(|error| report_failure(&error))
}

/// Prints help and version to standard output; an error becomes one line and status 2.
fn report_usage(error: &clap::Error) -> ExitCode {
    let asked_for = matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
    );
    if asked_for || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // If the terminal is gone, the failed output is ignored.
        let _ = error.print();
        return if asked_for {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(2)
        };
    }
    say(format_args!(
        "bimetal: {}; see `bimetal --help`",
        usage_line(&error.to_string())
    ));
    ExitCode::from(2)
}

/// Returns the message of a usage error as one line, without the usage that follows it.
fn usage_line(rendered: &str) -> String {
    let message = rendered.split("\n\nUsage").next().unwrap_or(rendered);
    let message = message.split("\n\nFor more").next().unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let parts = message.split("\n\n").map(one_line);
    parts.collect::<Vec<_>>().join("; ")
}

fn report_failure(error: &anyhow::Error) -> ExitCode {
    let reader_left = error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe);
    if reader_left {
        // The reader has closed the pipe, as `head` does: it wants no more output, which is no
        // failure.
        return ExitCode::SUCCESS;
    }
    say(format_args!(
        "bimetal: {}",
        line_and_list(&format!("{error:#}"))
    ));
    ExitCode::FAILURE
}

/// Joins `text` into one line, but keeps the indented lines after it that begin with a digit: they
/// are a list for programs to read.
fn line_and_list(text: &str) -> String {
    let is_item = |line: &&str| {
        let item = line.strip_prefix("  ");
        item.is_some_and(|item| item.starts_with(|c: char| c.is_ascii_digit()))
    };
    let (items, words): (Vec<&str>, Vec<&str>) = text.lines().partition(is_item);
    let mut lines = vec![one_line(&words.join(" "))];
    lines.extend(items.into_iter().map(str::to_owned));
    lines.join("\n")
}

/// Returns `text` with every run of white space replaced by one space.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Command::command().debug_assert();
    }

    #[test]
    fn a_list_stays_behind_the_line() {
        let text = "vol.toml: nothing\n  known;\nmay be lost:\n  0+4096\n  8192+12288";
        let line = "vol.toml: nothing known; may be lost:\n  0+4096\n  8192+12288";
        assert_eq!(line_and_list(text), line);
        assert_eq!(line_and_list("a\n b"), "a b");
    }

    #[test]
    fn usage_errors_become_one_line() {
        let error = Command::try_parse_from(["bimetal", "serve"]).err().unwrap();
        let line = usage_line(&error.to_string());
        assert!(line.contains("<FILE>") && !line.contains("Usage"), "{line}");
        assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
    }
}
