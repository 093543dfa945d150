//! The `bimetal` program: the server, the operations on a running server, and the index. This
//! module only lists the verbs. `bimetal_console::program` runs one of them and turns its outcome
//! into an exit status.

// The macros `print` and `eprint` panic when the reader of the output has closed it. Results are
// therefore written with `write` and `?`, and other output with `say`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod alerts;
mod attach;
mod bench;
mod browser;
mod cache;
mod cgroup;
mod check;
mod config;
mod conversion;
mod damping;
mod demo;
mod edit;
mod events;
mod exports;
mod exposure;
mod facts;
mod figures;
mod format;
mod grow;
mod health;
mod history;
mod import;
mod index;
mod init;
mod itself;
mod kinds;
mod latency;
mod limits;
mod load;
mod local;
mod logged;
mod lookout;
mod memory;
mod metrics;
mod mount;
mod moved;
mod operation;
mod operations;
mod probe;
mod proxy;
mod rebuild;
mod record;
mod report;
mod rescue;
mod running;
mod runtime;
mod scrub;
mod serve;
mod shown;
mod side;
mod statistics;
mod status;
mod terminal;
mod tls;
mod volume;
mod watch;
mod whereabouts;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// End of the help text.
const EXAMPLES: &str = "\
First steps:
  bimetal demo                     a mirror under load for 45 seconds; no root, 1 GiB of disk
  bimetal init vol.toml FAST SLOW  writes a configuration for two devices
  bimetal format vol.toml          prepares the sides of a mirror, once
  bimetal serve vol.toml           serves it until SIGTERM or SIGINT
  bimetal status --watch vol.toml  shows its state

Experiments, simulators and the tester are in a second program: bimetal-lab --help";

/// Bonds unlike storage media into one block device.
#[derive(Parser)]
#[command(name = "bimetal", version, max_term_width = 100, after_help = EXAMPLES)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show three stacks under the same load: a freezing SSD, a hard disk, and a mirror of such a
    /// pair.
    Demo(demo::Args),
    /// Write a configuration for a volume on two devices.
    Init(init::Args),
    /// Write the configuration of a volume whose configuration was lost, from its sides.
    Import(import::Args),
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
    /// Show what has happened to the volumes of a running server.
    Events(events::Args),
    /// Print what a person who helps must know about a server, without secrets.
    Report(report::Args),
    /// Read every copy of all data of a served volume, and repair corrupt copies.
    Scrub(scrub::Args),
    /// Show or set the rebuild rates of a served volume.
    Rebuild(rebuild::Args),
    /// Show a buffer cache of a running server, or accept a data loss that it has reported.
    Cache(cache::Args),
    /// Add, remove, replace or convert a side of a served volume.
    Side(side::Args),
    /// Copy a volume from one of its sides, without a server, a configuration or the other sides.
    Rescue(rescue::Args),
    /// Grow a served volume to the largest size that its sides allow.
    Grow(grow::Args),
    /// Measure the performance of a device of a configuration, without an export.
    Bench(bench::Args),
    /// List the exports of a BRP target.
    Exports(exports::Args),
    /// Offer an export of a BRP target to NBD clients until SIGTERM or SIGINT.
    Proxy(proxy::Args),
    /// Find the write size that suits a device, for a cache above it.
    Probe(probe::Args),
    /// Create, load, read and check an index of ordered keys and values.
    Index(index::Args),
    /// Record the requests on a device of a running server as an I/O trace.
    Record(record::Args),
    /// Verbs that have moved to another program or to another name.
    #[command(flatten)]
    Moved(moved::Verb),
}

fn main() -> ExitCode {
    bimetal_console::program::main("bimetal", |command: Command| match command.verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Init(args) => init::run(&args),
        Verb::Import(args) => import::run(&args),
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
        Verb::Events(args) => events::run(&args),
        Verb::Report(args) => report::run(&args),
        Verb::Scrub(args) => scrub::run(&args),
        Verb::Rebuild(args) => rebuild::run(&args),
        Verb::Cache(args) => cache::run(&args),
        Verb::Side(args) => side::run(&args),
        Verb::Rescue(args) => rescue::run(&args),
        Verb::Grow(args) => grow::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Exports(args) => exports::run(&args),
        Verb::Proxy(args) => proxy::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Index(args) => index::run(&args),
        Verb::Record(args) => record::run(&args),
        Verb::Moved(verb) => Ok(moved::refuse(&verb)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Command::command().debug_assert();
    }
}
