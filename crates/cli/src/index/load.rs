//! `bimetal index load`: loads records into an index in batches. A batch is not durable when it is
//! written; at the end, all batches are made durable together. If a load ends early, the records
//! loaded so far are made durable, and their number is reported.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use bimetal_block::units::{Size, show_size};
use bimetal_index::{Batch, Db, Durability, Error, KEY_BYTES_MAX};

use super::form::Form;
use super::progress::{Progress, Unit};
use super::records::{self, Bad, Format, Position, Reading, Record, Records};
use super::volume::open_device;
use super::{MakeArgs, OpenArgs, failed};
use bimetal_block::units::show_count;

/// Maximum size of a batch in bytes. It is smaller if the log of the index is too short for such a
/// batch.
const BATCH_BYTES: usize = 256 << 10;
/// Maximum number of bytes that an operation occupies in a batch in addition to its key and value:
/// a kind and two lengths.
const OPERATION_BYTES: usize = 16;

/// Arguments of the verb `load`.
///
/// If several records have the same key, the last of them is kept. The format of a file is
/// recognized by the extension of its name: .csv, .tsv (CSV with tabs), .bin, .txt (lines), .json
/// and .jsonl.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The index
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// The files; `-` stands for standard input, which is also the default
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Format of the records [default: determined by the extension of each file]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Form of keys in CSV, lines and JSON
    #[arg(long, value_name = "FORM", default_value = "text")]
    key: Form,
    /// Form of values in CSV and JSON
    #[arg(long, value_name = "FORM", default_value = "text")]
    value: Form,
    /// Skip the first line of each CSV file
    #[arg(long)]
    header: bool,
    /// Delimiter between the columns of CSV: a character, or `tab` [default: a comma, or a tab for
    /// .tsv]
    #[arg(long, value_name = "CHAR", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    #[command(flatten)]
    make: MakeArgs,
    #[command(flatten)]
    open: OpenArgs,
}

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"tab" | b"\\t" => Ok(b'\t'),
        [b'"' | b'\n' | b'\r'] => Err("it has a special meaning in CSV".to_owned()),
        [one] if one.is_ascii() => Ok(*one),
        _ => Err("expected one ASCII character or `tab`".to_owned()),
    }
}

/// Maximum number of log bytes that a load leaves for the next open to replay. If more are left,
/// the load writes the changes into nodes, because otherwise each later `get` would replay them. If
/// fewer are left, writing nodes and a checkpoint would cost more than the replay.
const LOG_LEFT_BYTES: u64 = 256 << 10;
/// Minimum duration in seconds of a load for which a rate is shown. The rate of a shorter load is
/// not meaningful.
const SECONDS_TOLD: f64 = 0.1;

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    // All inputs are opened before the index is created or changed, so that a wrong file name is
    // found first.
    let inputs = Input::all(args)?;
    let total = inputs.iter().map(|input| input.len_bytes).sum();
    let db = open_or_make(args)?;
    let progress = Progress::start(Unit::Bytes(total), "");
    let mut loading = Loading::new(args, &db, &progress);
    let mut outcome = Ok(());
    for input in inputs {
        outcome = loading.load(input);
        if outcome.is_err() {
            break;
        }
    }
    let loaded = loading.finish(outcome)?;
    if db.statistics().log_used_bytes > LOG_LEFT_BYTES {
        progress.bar().set_message("writing changes into nodes");
        db.write_back().map_err(|error| {
            let loaded = show_records(loaded);
            failed(&args.index, &error).context(format!("loaded and durable: {loaded}"))
        })?;
    }
    let seconds = progress.seconds();
    drop(progress);
    let mut line = format!("{}: {} loaded", args.index.display(), show_records(loaded));
    if seconds >= SECONDS_TOLD {
        let rate = show_count((loaded as f64 / seconds) as u64);
        line.push_str(&format!(" in {seconds:.1} s, {rate}/s"));
    }
    writeln!(std::io::stdout().lock(), "{line}")?;
    Ok(ExitCode::SUCCESS)
}

fn show_records(count: u64) -> String {
    match count {
        1 => "1 record".to_owned(),
        _ => format!("{} records", show_count(count)),
    }
}

/// An open input.
struct Input {
    name: String,
    format: Format,
    delimiter: u8,
    bytes: Box<dyn Read>,
    /// Length in bytes; `None` if it is not known.
    len_bytes: Option<u64>,
}

impl Input {
    /// Opens all inputs, in the order given.
    fn all(args: &Args) -> Result<Vec<Input>> {
        let standard = [PathBuf::from("-")];
        let files = if args.files.is_empty() {
            &standard[..]
        } else {
            &args.files
        };
        if files.iter().filter(|file| is_standard(file)).count() > 1 {
            bail!("standard input can be loaded only once");
        }
        files.iter().map(|path| Input::open(args, path)).collect()
    }

    fn open(args: &Args, path: &Path) -> Result<Input> {
        let name = if is_standard(path) {
            "standard input".to_owned()
        } else {
            path.display().to_string()
        };
        let Some((format, delimiter)) = args.format.map(|f| (f, b',')).or_else(|| by_name(path))
        else {
            bail!("{name}: the name has no extension of a known format; use --format");
        };
        let mut input = Input {
            name,
            format,
            delimiter: args.delimiter.unwrap_or(delimiter),
            bytes: Box::new(std::io::stdin()),
            len_bytes: None,
        };
        if !is_standard(path) {
            let about = |error| anyhow!("{}: {error}", input.name);
            let file = File::open(path).map_err(about)?;
            let metadata = file.metadata().map_err(about)?;
            if metadata.is_dir() {
                bail!("{}: this is a directory", input.name);
            }
            input.len_bytes = metadata.is_file().then_some(metadata.len());
            input.bytes = Box::new(file);
        }
        Ok(input)
    }
}

fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Returns the format and the delimiter that the extension of a file name selects.
fn by_name(path: &Path) -> Option<(Format, u8)> {
    let end = path.extension()?.to_str()?.to_ascii_lowercase();
    Some(match &*end {
        "csv" => (Format::Csv, b','),
        "tsv" => (Format::Csv, b'\t'),
        "bin" => (Format::Binary, b','),
        "txt" => (Format::Lines, b','),
        "json" | "jsonl" => (Format::Json, b','),
        _ => return None,
    })
}

/// Opens the index. If the file is missing or empty, or the device is empty, the index is created.
fn open_or_make(args: &Args) -> Result<Db> {
    let path = &args.index;
    if let Some(config) = &args.open.place.config {
        let opened = Db::open_or_create(open_device(config, path)?, &args.make.options(&args.open));
        let db = opened.map_err(|error| failed(path, &error))?;
        check_geometry(args, &db)?;
        return Ok(db);
    }
    let is_there = path.exists();
    let opened =
        Db::open_path(path, &args.make.options(&args.open)).map_err(|error| failed(path, &error));
    let is_empty = || path.metadata().is_ok_and(|metadata| metadata.len() == 0);
    if opened.is_err() && !is_there && is_empty() {
        // The open was refused, so the file is still empty and is removed. If the removal fails as
        // well, only the refusal is reported.
        let _ = std::fs::remove_file(path);
    }
    let db = opened?;
    check_geometry(args, &db)?;
    Ok(db)
}

/// Returns an error if a length that the command line gives differs from the corresponding length
/// of the existing index.
fn check_geometry(args: &Args, db: &Db) -> Result<()> {
    let (statistics, path) = (db.statistics(), args.index.display());
    let segment_bytes = u64::from(statistics.space.segment_bytes);
    for (flag, asked, has) in [
        ("log-bytes", args.make.log_bytes, statistics.log_bytes_max),
        ("segment-bytes", args.make.segment_bytes, segment_bytes),
    ] {
        if let Some(Size(asked)) = asked
            && asked != has
        {
            bail!(
                "{path}: it was created with {}, which cannot be changed; omit --{flag}, or load \
                into a new index",
                show_size(has)
            );
        }
    }
    Ok(())
}

/// Returns the message for a record that exceeds a limit. The message names the option that raises
/// the limit.
fn too_long(bytes: usize, max: usize, option: &str) -> String {
    let (bytes, max) = (show_size(bytes as u64), show_size(max as u64));
    format!(
        "a record has {bytes}, but at most {max} are possible; create the index with a larger \
        {option}"
    )
}

/// Reason why loading ended early. `is_index` tells whether the index has failed, so that no
/// further record can be written.
struct Ended {
    why: anyhow::Error,
    is_index: bool,
}

/// State of a load, which takes the records from one input after another.
struct Loading<'a> {
    args: &'a Args,
    db: &'a Db,
    progress: &'a Progress,
    batch: Batch,
    batch_bytes: usize,
    batch_bytes_max: usize,
    /// Number of records that the index has accepted.
    loaded: u64,
}

impl<'a> Loading<'a> {
    fn new(args: &'a Args, db: &'a Db, progress: &'a Progress) -> Loading<'a> {
        // A batch of several records takes at most half of the index's limit. So only a batch of a
        // single record can exceed the limit.
        let half = db.limits().batch_bytes_max / 2;
        Loading {
            args,
            db,
            progress,
            batch: Batch::new(),
            batch_bytes: 0,
            batch_bytes_max: BATCH_BYTES.min(half),
            loaded: 0,
        }
    }

    fn load(&mut self, input: Input) -> Result<(), Ended> {
        let reading = Reading {
            key: self.args.key,
            value: self.args.value,
            delimiter: input.delimiter,
            has_header: self.args.header,
        };
        let bytes = self.progress.bar().wrap_read(input.bytes);
        let mut records = records::open(input.format, reading, bytes);
        let mut record = Record::default();
        loop {
            match records.next(&mut record) {
                Ok(true) => self.put(&record, &input.name, &*records)?,
                Ok(false) => return Ok(()),
                Err(Bad::Record(why)) => return Err(bad(&input.name, records.place(), &why)),
                Err(Bad::Input(error)) => {
                    return Err(Ended {
                        why: anyhow!("{}: {error}", input.name),
                        is_index: false,
                    });
                }
            }
        }
    }

    fn put(&mut self, record: &Record, name: &str, records: &dyn Records) -> Result<(), Ended> {
        let key_bytes = record.key.len();
        if key_bytes > KEY_BYTES_MAX {
            let error = Error::KeyTooLong {
                bytes: key_bytes,
                max: KEY_BYTES_MAX,
            };
            return Err(bad(name, records.place(), &error.to_string()));
        }
        let bytes = key_bytes + record.value.len() + OPERATION_BYTES;
        if self.batch_bytes + bytes > self.batch_bytes_max {
            self.write().map_err(|error| self.ended(&error))?;
        }
        self.batch.put(&record.key, &record.value);
        self.batch_bytes += bytes;
        if self.batch_bytes <= self.batch_bytes_max {
            return Ok(());
        }
        // The batch contains only this record, so the record itself is too long.
        self.write().map_err(|error| match error {
            Error::BatchTooLong { bytes, max } => {
                let why = too_long(bytes, max, "--log-bytes");
                bad(name, records.place(), &why)
            }
            Error::ValueTooLong { bytes, max } => {
                let why = too_long(bytes, max, "--segment-bytes");
                bad(name, records.place(), &why)
            }
            error => self.ended(&error),
        })
    }

    fn ended(&self, error: &Error) -> Ended {
        Ended {
            why: failed(&self.args.index, error),
            is_index: true,
        }
    }

    /// Writes the pending batch to the index. If the index refuses the batch, the batch is
    /// discarded.
    fn write(&mut self) -> Result<(), Error> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let written = self.db.write(&self.batch, Durability::Relaxed);
        if written.is_ok() {
            self.loaded += self.batch.len() as u64;
        }
        self.batch.clear();
        self.batch_bytes = 0;
        let seconds = self.progress.seconds();
        let rate = show_count((self.loaded as f64 / seconds) as u64);
        let message = format!("{}, {rate}/s", show_records(self.loaded));
        self.progress.bar().set_message(message);
        written
    }

    /// Writes the pending batch and makes all loaded records durable. Returns the number of loaded
    /// records, or an error if loading ended early.
    fn finish(mut self, outcome: Result<(), Ended>) -> Result<u64> {
        let ended = match outcome {
            Ok(()) => self.write().map_err(|error| self.ended(&error)).err(),
            Err(ended) if ended.is_index => Some(ended),
            Err(ended) => match self.write() {
                Ok(()) => Some(ended),
                Err(error) => Some(self.ended(&error)),
            },
        };
        let index = self.args.index.display();
        let loaded = show_records(self.loaded);
        if let Err(error) = self.db.sync() {
            let why = ended.map_or_else(|| failed(&self.args.index, &error), |ended| ended.why);
            bail!("{why:#}; loaded before, and possibly not durable: {loaded}");
        }
        match ended {
            None => Ok(self.loaded),
            Some(ended) if self.loaded == 0 => bail!("{:#}; nothing was loaded", ended.why),
            Some(ended) => bail!("{:#}; loaded into {index} before that: {loaded}", ended.why),
        }
    }
}

fn bad(name: &str, place: Position, why: &str) -> Ended {
    Ended {
        why: match place {
            Position::Line(line) => anyhow!("{name}:{line}: {why}"),
            Position::Record { .. } => anyhow!("{name}: {place}: {why}"),
        },
        is_index: false,
    }
}
