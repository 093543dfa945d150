//! `bimetal index`: works on an index (docs/index.md) from the command line. This module only opens
//! and queries indexes and shows the results. The format of an index, and every decision about it,
//! is in the crate `bimetal-index`.

mod compact;
mod create;
mod form;
mod get;
mod load;
mod progress;
mod rebuild;
mod records;
mod scan;
mod stats;
mod verify;
mod volume;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use bimetal_block::units::{Size, parse_size};
use bimetal_index::storage::file::{FileStorage, Presence};
use bimetal_index::{Db, Error, ErrorKind, Options};

use bimetal_console::table::{Align, Table};
use progress::{Progress, Unit};
use volume::{WhereArgs, open_device};

/// Arguments of the verb `index`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Create an empty index in a new file or on a block device.
    Create(create::Args),
    /// Load records from files into an index, which is created if it does not exist.
    Load(load::Args),
    /// Print the values of keys.
    Get(get::Args),
    /// Print keys and their values in order.
    Scan(scan::Args),
    /// Check every node of an index and its log, without writing.
    Verify(verify::Args),
    /// Make an index as small as possible.
    Compact(compact::Args),
    /// Rebuild a damaged index in a new file, from the parts that are still readable.
    Rebuild(rebuild::Args),
    /// Show the space and the memory that an index uses.
    Stats(stats::Args),
}

/// Options for opening an index.
#[derive(clap::Args)]
struct OpenArgs {
    /// Memory for nodes and buffered changes
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    memory: Size,
    #[command(flatten)]
    place: WhereArgs,
}

impl OpenArgs {
    fn options(&self) -> Options {
        Options {
            memory_bytes: self.memory.0,
            // By default, a quarter of the memory is for buffered changes.
            buffer_bytes: self.memory.0 / 4,
            ..Options::default()
        }
    }

    /// Opens an existing index for reading only. Other readers can have it open at the same time.
    fn open_read_only(&self, path: &Path) -> Result<Db> {
        let _progress = Progress::start(Unit::Nothing, "opening");
        let storage = self.place.storage_to_read(path)?;
        Db::open_read_only(storage, &self.options()).map_err(|error| failed(path, &error))
    }

    /// Opens an existing index.
    fn open(&self, path: &Path) -> Result<Db> {
        let _progress = Progress::start(Unit::Nothing, "opening");
        let options = self.options();
        let opened = match &self.place.config {
            Some(config) => Db::open(open_device(config, path)?, &options),
            None => {
                let storage = FileStorage::open(path, Presence::Existing);
                Db::open(storage.map_err(|error| unopened(path, &error))?, &options)
            }
        };
        opened.map_err(|error| failed(path, &error))
    }
}

/// Options for creating an index.
#[derive(clap::Args)]
struct MakeArgs {
    /// Length of the log of a new index [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    log_bytes: Option<Size>,
    /// Length of a segment of a new index, ideally the erase unit of the SSD [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    segment_bytes: Option<Size>,
}

impl MakeArgs {
    fn options(&self, open: &OpenArgs) -> Options {
        let mut options = open.options();
        if let Some(log) = self.log_bytes {
            options.log_bytes = log.0;
        }
        if let Some(segment) = self.segment_bytes {
            // A value that does not fit in 32 bits is replaced by the maximum, which the index
            // refuses with a message of its own.
            options.segment_bytes = u32::try_from(segment.0).unwrap_or(u32::MAX);
        }
        options
    }
}

/// Returns the error for a file that could not be opened, as one line with advice for the operator.
fn unopened(path: &Path, error: &io::Error) -> anyhow::Error {
    could_not_open(path, error.kind().into(), &error.to_string())
}

fn could_not_open(path: &Path, kind: ErrorKind, reason: &str) -> anyhow::Error {
    let path = path.display();
    match kind {
        ErrorKind::Busy => anyhow!(
            "{path}: {reason}; a program can write an index only while no other program has it \
             open; try again when that program has closed it"
        ),
        ErrorKind::Missing => {
            anyhow!("{path}: there is no such file; `bimetal index load` creates an index")
        }
        _ => anyhow!("{path}: {reason}"),
    }
}

/// Converts an error of an index to one line, with the file and advice for the operator.
fn failed(path: &Path, error: &Error) -> anyhow::Error {
    let at = path;
    let path = path.display();
    match error {
        Error::Damaged { .. } => {
            anyhow!(
                "{path}: {error}; `bimetal index verify` lists the damage, and `bimetal index \
                rebuild` saves the readable parts"
            )
        }
        Error::NotAnIndex { .. } => {
            anyhow!("{path}: {error}; `bimetal index create` creates an index on a device")
        }
        Error::Full { .. } => {
            anyhow!("{path}: {error}; free space on the file system, or use a larger device")
        }
        Error::Version { .. } => {
            anyhow!("{path}: {error}; use the version of bimetal that wrote it")
        }
        Error::Option { option, reason } => {
            // The engine names its options like the command line does. The exceptions are its two
            // options for memory, which have a unit in their names and are both set by `--memory`.
            let flag = match *option {
                "memory_bytes" | "buffer_bytes" => "memory".to_owned(),
                other => other.replace('_', "-"),
            };
            anyhow!("--{flag}: {reason}")
        }
        Error::Open { kind, reason, .. } => could_not_open(at, *kind, reason),
        _ => anyhow!("{path}: {error}"),
    }
}

/// Writes a group of statistics under a heading. Each row consists of a name, a value and a note.
fn write_group(
    out: &mut impl Write,
    heading: &str,
    rows: &[(&str, String, &str)],
) -> io::Result<()> {
    let columns = [("", Align::Left), ("", Align::Right), ("", Align::Left)];
    let mut table = Table::new(&columns);
    for (what, statistic, remark) in rows {
        table.row(vec![
            (*what).to_owned(),
            statistic.clone(),
            (*remark).to_owned(),
        ]);
    }
    writeln!(out, "  {heading}")?;
    for line in table.lines().iter().skip(1) {
        writeln!(out, "    {line}")?;
    }
    Ok(())
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Create(args) => create::run(args),
        Verb::Load(args) => load::run(args),
        Verb::Get(args) => get::run(args),
        Verb::Scan(args) => scan::run(args),
        Verb::Verify(args) => verify::run(args),
        Verb::Compact(args) => compact::run(args),
        Verb::Rebuild(args) => rebuild::run(args),
        Verb::Stats(args) => stats::run(args),
    }
}
