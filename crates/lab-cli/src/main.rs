//! The `bimetal-lab` program: experiments, simulators and the simulation tester, which a server
//! does not need. This module only lists the verbs. `bimetal_console::program` runs one of them and
//! turns its outcome into an exit status.

// The macros `print` and `eprint` panic when the reader of the output has closed it. Results are
// therefore written with `write` and `?`, and other output with `say`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod cache;
mod experiments;
mod index;
mod mirror;
mod options;
mod output;
mod papers;
mod sustain;
mod tester;
mod trace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// End of the help text.
const EXAMPLES: &str = "\
First steps:
  bimetal-lab run contrib/lab/quick.toml       which scheduler and file system, in a minute
  bimetal-lab cache --trace FILE --html FILE   which replacement policy suits a trace
  bimetal-lab mirror --seconds 60              a mirror compared with the paper's
  bimetal-lab papers --source 1                the figures of a paper, run again
  bimetal-lab tester swarm --seeds 0..100      faults that bimetal must withstand

The server is another program: bimetal --help";

/// Experiments and simulations of storage: schedulers, caches, mirrors, indexes, and the tester of
/// bimetal itself.
#[derive(Parser)]
#[command(name = "bimetal-lab", version, max_term_width = 100, after_help = EXAMPLES)]
struct Command {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    #[command(flatten)]
    Experiments(experiments::Verb),
    /// Compare replacement policies of a buffer cache on traces.
    Cache(cache::Args),
    /// Run the experiment of the hetero-mirroring paper on a mirror, in virtual time.
    ///
    /// The loads and the devices are those of the paper. `sustain` runs other loads (small blocks,
    /// sequential or skewed offsets, flushes) on any pair of devices.
    Mirror(mirror::Args),
    /// Load a mirror for longer than its logs last, in virtual time, and show the load over time.
    ///
    /// The load and the devices are chosen by options. `mirror` runs the loads of the
    /// hetero-mirroring paper and compares the schemes.
    Sustain(sustain::Args),
    /// Run the experiment of the CHC-Tree paper on an ordered index, in virtual time.
    Index(index::Args),
    /// Run the experiments of the five papers again, and compare each table, figure and claim.
    Papers(papers::Args),
    /// Summarize an I/O trace, or convert it.
    Trace(trace::Args),
    /// Test the mirror and the index against injected faults, in virtual time.
    Tester(tester::Args),
}

fn main() -> ExitCode {
    bimetal_console::program::main("bimetal-lab", |command: Command| match command.verb {
        Verb::Experiments(verb) => experiments::run(&verb),
        Verb::Cache(args) => cache::run(&args),
        Verb::Mirror(args) => mirror::run(&args),
        Verb::Sustain(args) => sustain::run(&args),
        Verb::Index(args) => index::run(&args),
        Verb::Papers(args) => papers::run(&args),
        Verb::Trace(args) => trace::run(&args),
        Verb::Tester(args) => tester::run(&args),
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
