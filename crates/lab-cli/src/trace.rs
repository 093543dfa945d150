//! `bimetal-lab trace`: summarizes a trace, computes its stack distances, or converts it to the
//! compact format.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use bimetal_console::stderr::say;
use bimetal_console::table::{Align, Table};
use bimetal_sim::cache::CacheSize;
use bimetal_trace::{
    Accesses, Columns, CompactWriter, Format, Ignored, Key, Kind, Options, Reader, SkipBad,
    StackDistances, Summary, Tally,
};
use serde_json::json;

/// Options for reading traces.
#[derive(clap::Args)]
pub(crate) struct ReadArgs {
    /// Format of the trace [default: recognized by content and name]: vscsi, msr, ssdsim (of
    /// MQSim), disksim, arc, lirs, spc, blkparse, fio, pages, columns, oracle-general, compact
    #[arg(long, value_name = "NAME")]
    format: Option<Format>,
    /// Columns of a plain text file, such as `time_ms,-,op,offset_sectors,length_bytes`
    #[arg(long, value_name = "COLUMN,..", allow_hyphen_values = true)]
    columns: Option<Columns>,
    /// Size of a page in bytes, and of a block in formats that have only block numbers
    #[arg(long, value_name = "BYTES", default_value = "4096",
          value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    page_bytes: u64,
    /// Maximum number of bad records that are skipped and counted, or `all` for any number; more
    /// are an error
    #[arg(long, value_name = "N", value_parser = parse_skip_bad, default_value = "0")]
    skip_bad: SkipBad,
}

fn parse_skip_bad(text: &str) -> Result<SkipBad, String> {
    match text {
        "all" => Ok(SkipBad::All),
        "0" => Ok(SkipBad::None),
        number => u64::from_str(number)
            .map(SkipBad::AtMost)
            .map_err(|_| "expected a number or `all`".to_owned()),
    }
}

impl ReadArgs {
    /// Returns the page size in bytes.
    pub(crate) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Returns the options of a reader. `unit_bytes` is the block size for formats that have only
    /// block numbers.
    pub(crate) fn options(&self, unit_bytes: u64) -> Options {
        Options {
            format: self.format,
            columns: self.columns.clone(),
            unit_bytes,
            skip_bad: self.skip_bad,
        }
    }

    /// Prints the notes of a reader on standard error: the lines that the reader has skipped, its
    /// decisions, and the checks that were not possible.
    pub(crate) fn report_notes(&self, reader: &Reader) {
        for note in reader.notes() {
            say(format_args!("bimetal-lab: {}: {note}", reader.file()));
        }
    }

    fn open(&self, path: &Path) -> Result<Reader> {
        Ok(Reader::open(path, &self.options(self.page_bytes))?)
    }
}

/// Arguments of the verb `trace`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Convert a trace to the compact format, which can be read many times faster.
    Convert {
        /// The trace
        from: PathBuf,
        /// The file to write, which must not exist
        to: PathBuf,
        #[command(flatten)]
        read: ReadArgs,
    },
    /// Count the requests, bytes and pages of a trace.
    Summary {
        /// The trace
        file: PathBuf,
        #[command(flatten)]
        read: ReadArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the miss ratios of LRU at several cache sizes, computed from stack distances.
    StackDistance {
        /// The trace
        file: PathBuf,
        #[command(flatten)]
        read: ReadArgs,
        /// Cache sizes in pages, or as a share of the distinct pages in the trace
        #[arg(
            long,
            value_name = "SIZE,..",
            value_delimiter = ',',
            default_value = "1%,2%,5%,10%,20%,50%,100%"
        )]
        size: Vec<CacheSize>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::Convert { from, to, read } => convert(from, to, read)?,
        Verb::Summary { file, read, json } => summary(file, read, *json)?,
        Verb::StackDistance {
            file,
            read,
            size,
            json,
        } => stack_distance(file, read, size, *json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn convert(from: &Path, to: &Path, read: &ReadArgs) -> Result<()> {
    let mut reader = read.open(from)?;
    let about = || to.display().to_string();
    let file = File::create_new(to).with_context(about)?;
    let written = write_compact(&mut reader, file).with_context(about);
    if let Err(error) = written {
        // The incomplete trace is of no use, so it is removed. The error of the conversion is
        // returned, even if the removal fails too.
        return match std::fs::remove_file(to) {
            Ok(()) => Err(error),
            Err(left) => Err(error.context(format!("{}: left behind: {left}", about()))),
        };
    }
    read.report_notes(&reader);
    Ok(())
}

fn write_compact(reader: &mut Reader, file: File) -> Result<()> {
    let mut writer = CompactWriter::new(BufWriter::new(file))?;
    while let Some(record) = reader.next_record()? {
        writer.push(&record)?;
    }
    let file = writer
        .finish()?
        .into_inner()
        .map_err(|error| error.into_error())?;
    file.sync_all()?;
    Ok(())
}

/// Returns the number of lines that are not requests, by reason. Reasons without such lines are
/// omitted.
fn passed_over(tally: &Tally) -> serde_json::Map<String, serde_json::Value> {
    let reasons = Ignored::ALL
        .into_iter()
        .filter(|why| tally.ignored(*why) > 0);
    reasons
        .map(|why| (why.words().to_owned(), tally.ignored(why).into()))
        .collect()
}

fn summary(path: &Path, read: &ReadArgs, as_json: bool) -> Result<()> {
    let mut reader = read.open(path)?;
    let mut summary = Summary::new(read.page_bytes);
    while let Some(record) = reader.next_record()? {
        summary.add(&record);
    }
    if summary.uncounted > 0 {
        bail!("{}: more than 2^30 distinct pages", path.display());
    }
    let seconds = summary
        .times_ns
        .map_or(0.0, |(first, last)| last.saturating_sub(first) as f64 / 1e9);
    let mut out = std::io::stdout().lock();
    let of = |counts: [u64; 3]| json!({"read": counts[0], "write": counts[1], "trim": counts[2]});
    if as_json {
        let value = json!({
            "trace": path.display().to_string(),
            "format": reader.format().name(),
            "page_bytes": read.page_bytes,
            "requests": of(summary.requests),
            "bytes": of(summary.bytes),
            "page_accesses": of(summary.page_accesses),
            "footprint_pages": summary.footprint_pages(),
            "written_pages": summary.written_pages,
            "seconds": seconds,
            "lines": reader.tally().total(),
            "passed_over": passed_over(reader.tally()),
            "skipped": reader.skipped(),
            "notes": reader.notes(),
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&value)?)?;
        read.report_notes(&reader);
        return Ok(());
    }
    let mut table = Table::new(&[
        ("", Align::Left),
        ("read", Align::Right),
        ("write", Align::Right),
        ("trim", Align::Right),
    ]);
    for (name, counts) in [
        ("requests", summary.requests),
        ("bytes", summary.bytes),
        ("page accesses", summary.page_accesses),
    ] {
        let mut cells = vec![name.to_owned()];
        cells.extend(counts.map(|count| count.to_string()));
        table.row(cells);
    }
    writeln!(out, "{}: {}", path.display(), reader.format().name())?;
    for line in table.lines() {
        writeln!(out, "    {line}")?;
    }
    let (footprint, written) = (summary.footprint_pages(), summary.written_pages);
    writeln!(
        out,
        "    {footprint} distinct pages of {} bytes, {written} of them written, in {seconds:.3} s",
        read.page_bytes
    )?;
    read.report_notes(&reader);
    Ok(())
}

fn stack_distance(path: &Path, read: &ReadArgs, sizes: &[CacheSize], as_json: bool) -> Result<()> {
    let mut reader = read.open(path)?;
    let page_bytes = read.page_bytes;
    let accesses = Accesses::collect(&mut reader, Key::Page { page_bytes })?;
    read.report_notes(&reader);
    let mut distances = StackDistances::new();
    for (page, kind) in accesses.iter() {
        if kind != Kind::Trim {
            distances.access(page);
        }
    }
    let ratio = |pages| distances.misses(pages) as f64 / accesses.len().max(1) as f64;
    let footprint = accesses.pages().len();
    let points = sizes.iter().map(|size| size.pages(footprint));
    let points: Vec<(usize, f64)> = points.map(|pages| (pages, ratio(pages))).collect();
    let mut out = std::io::stdout().lock();
    if as_json {
        let list: Vec<_> = (points.iter())
            .map(|(pages, ratio)| json!({"size_pages": pages, "miss_ratio": ratio}))
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        return Ok(());
    }
    let mut table = Table::new(&[("pages", Align::Right), ("LRU miss ratio", Align::Right)]);
    for (pages, ratio) in points {
        table.row(vec![pages.to_string(), format!("{ratio:.4}")]);
    }
    for line in table.lines() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
