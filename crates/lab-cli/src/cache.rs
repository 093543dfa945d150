//! `bimetal-lab cache`: simulates replacement policies on traces, and prints the results as a table
//! or as records, or writes them as a page with plots.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bimetal_console::progress::progress_bar;
use bimetal_console::shell::shell_word;
use bimetal_console::stderr::say;
use bimetal_console::table::{Align, Table};
use bimetal_lab::cache::{Compared, Comparison, Row};
use bimetal_policy::replacement::Spec;
use bimetal_sim::cache::{
    CacheSize, Costs, Ftl, Geometry, Grid, Job, Over, jobs, miniature_pages, run_all,
};
use bimetal_trace::{Accesses, Format, Key, Reader, Sample};

use crate::trace::ReadArgs;

/// Minimum number of sampled pages in a simulated cache for which the estimate needs no warning. A
/// sample that is expected to hold n pages of the cache actually holds n +- sqrt(n) pages. The
/// estimate is therefore the exact result for a cache of a slightly different size: for n = 100,
/// the sizes differ by about a tenth. docs/cache-simulation.md has the measured errors.
const SIMULATED_PAGES_MIN: usize = 100;

/// The default size of a page in bytes.
const PAGE_BYTES: u64 = 4096;

/// Arguments of the verb `bimetal-lab cache`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The traces, each of which is simulated separately
    #[arg(long = "trace", value_name = "FILE", required = true, num_args = 1..)]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    read: ReadArgs,
    /// Replacement policies; an unknown name is answered with the list of all names
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "lru,arc,bimetal"
    )]
    policy: Vec<Spec>,
    /// Cache sizes in pages (in objects with `--key record`), or as a share of the distinct pages
    /// or objects in the trace, such as 10%
    #[arg(
        long,
        value_name = "SIZE,..",
        value_delimiter = ',',
        default_value = "10%"
    )]
    size: Vec<CacheSize>,
    /// Flash translation layers
    #[arg(
        long,
        value_name = "NAME,..",
        value_delimiter = ',',
        default_value = "none"
    )]
    ftl: Vec<Ftl>,
    /// Unit of an access: `page` counts every page of a request as an access, `record` counts the
    /// whole request as one access to an object that its offset identifies
    #[arg(long, value_name = "WHAT", default_value = "page")]
    key: KeyArg,
    /// Number of pages in an erase block
    #[arg(long, value_name = "N", default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_pages: u32,
    /// Time to read a page, in microseconds
    #[arg(long, value_name = "US", default_value = "25", value_parser = parse_cost)]
    read_us: f64,
    /// Time to program a page, in microseconds
    #[arg(long, value_name = "US", default_value = "200", value_parser = parse_cost)]
    program_us: f64,
    /// Time to erase a block, in microseconds
    #[arg(long, value_name = "US", default_value = "1500", value_parser = parse_cost)]
    erase_us: f64,
    /// Simulate only this share of the pages, with caches that are smaller by the same factor, and
    /// estimate the results for all pages; useful for long traces, with rates from 0.1 down to
    /// 0.001; only with `--ftl none`
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    sample: Option<f64>,
    /// Number of concurrent runs [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print the results as a JSON list of records
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print the results as CSV
    #[arg(long)]
    csv: bool,
    /// Also write an HTML page with plots and tables; an existing file is replaced
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KeyArg {
    Page,
    Record,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().unwrap_or(f64::NAN);
    let sample = Sample::new(rate).map_err(|error| error.to_string())?;
    Ok(sample.rate())
}

fn parse_cost(text: &str) -> Result<f64, String> {
    let cost: f64 = text
        .parse()
        .map_err(|_| "expected microseconds".to_owned())?;
    let possible = cost.is_finite() && cost >= 0.0;
    possible
        .then_some(cost)
        .ok_or_else(|| "expected microseconds, 0 or more".to_owned())
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    check_sample(args)?;
    let traces = (args.traces.iter())
        .map(|path| run_trace(args, path))
        .collect::<Result<Vec<Compared>>>()?;
    let command: Vec<String> = std::env::args().map(|word| shell_word(&word)).collect();
    let comparison = Comparison {
        command: command.join(" "),
        policies: args.policy.clone(),
        sizes: args.size.clone(),
        ftls: args.ftl.clone(),
        key: args.unit(),
        block_pages: args.block_pages,
        costs: args.costs(),
        sample_rate: args.sample.unwrap_or(1.0),
        traces,
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = comparison.records();
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else if args.csv {
        comparison.write_csv(&mut out)?;
    } else {
        for line in table(&comparison).lines() {
            writeln!(out, "{line}")?;
        }
        for verdict in comparison.verdicts() {
            writeln!(out, "{verdict}")?;
        }
        if comparison.sample_rate < 1.0 {
            writeln!(
                out,
                "estimates from {} of the pages",
                comparison.sample_rate
            )?;
        }
    }
    if let Some(path) = &args.html {
        std::fs::write(path, comparison.html()).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Returns the unit of an access.
    fn unit(&self) -> Key {
        match self.key {
            KeyArg::Page => Key::Page {
                page_bytes: self.read.page_bytes(),
            },
            KeyArg::Record => Key::Record,
        }
    }

    /// Returns the times of the flash operations.
    fn costs(&self) -> Costs {
        Costs {
            read_us: self.read_us,
            program_us: self.program_us,
            erase_us: self.erase_us,
        }
    }
}

/// Refuses a sample together with a simulated flash device. The cost of an erase block depends on
/// all accesses that are close in time, so a device with a translation layer cannot be scaled down
/// with the sample.
fn check_sample(args: &Args) -> Result<()> {
    if args.sample.is_none() {
        return Ok(());
    }
    if let Some(ftl) = args.ftl.iter().find(|ftl| **ftl != Ftl::None) {
        bail!(
            "--sample cannot be used with --ftl {ftl}: cleaning and merges cannot be estimated \
            from a sample of the pages; omit --sample, or use --ftl none"
        );
    }
    if args.policy.iter().any(|policy| policy.name() == "bplru") {
        bail!(
            "--sample cannot be used with bplru, which fills blocks up with pages that are not in a sample"
        );
    }
    Ok(())
}

/// Prints a warning if the smallest cache is estimated from too few pages. The error of the
/// estimate can then exceed the differences between policies. `sampled_pages` is the number of
/// distinct pages in the sample.
fn warn_of_few_pages(trace: &str, jobs: &[Job], rate: f64, sampled_pages: usize) {
    let sizes = jobs.iter().map(|job| job.size_pages);
    let Some(size_pages) = sizes.min().filter(|_| rate < 1.0) else {
        return;
    };
    let simulated_pages = miniature_pages(size_pages, rate).min(sampled_pages);
    if simulated_pages >= SIMULATED_PAGES_MIN {
        return;
    }
    let enough = rate * SIMULATED_PAGES_MIN as f64 / simulated_pages.max(1) as f64;
    let advice = if enough < 1.0 {
        // The suggested rate is rounded up to the next percent.
        format!("use --sample {} or more", (enough * 100.0).ceil() / 100.0)
    } else {
        "omit --sample".to_owned()
    };
    say(format_args!(
        "bimetal-lab: warning: {trace}: a cache of {size_pages} pages is estimated from \
        {simulated_pages} pages; with fewer than {SIMULATED_PAGES_MIN} pages, the error may exceed \
        the differences that are compared; {advice}"
    ));
}

fn run_trace(args: &Args, path: &std::path::Path) -> Result<Compared> {
    let key = args.unit();
    let (unit_bytes, block_pages) = match key {
        Key::Page { page_bytes } => (page_bytes, args.block_pages),
        // Each object is an erase block of its own, because adjacent object names are not related.
        Key::Record => (1, 1),
    };
    let mut reader = Reader::open(path, &args.read.options(unit_bytes))?;
    let rate = args.sample.unwrap_or(1.0);
    let accesses = match args.sample {
        None => Accesses::collect(&mut reader, key)?,
        Some(rate) => Accesses::collect_sampled(&mut reader, key, Sample::new(rate)?)?,
    };
    args.read.report_notes(&reader);
    let counts_pages = reader.format() == Format::Pages || reader.format().only_counts_blocks();
    if counts_pages && args.read.page_bytes() != PAGE_BYTES {
        say(format_args!(
            "bimetal-lab: warning: {}: --page-bytes changes nothing, because the format {} has \
            numbers of pages, not offsets",
            path.display(),
            reader.format().name()
        ));
    }
    if accesses.is_empty() {
        let of = if rate < 1.0 { " in the sample" } else { "" };
        bail!("{}: no reads and no writes{of}", path.display());
    }
    let geometry = Geometry::new(accesses.pages(), block_pages)
        .with_context(|| format!("{}: more pages than a device can have", path.display()))?;
    let grid = Grid {
        policies: args.policy.clone(),
        sizes: args.size.clone(),
        ftls: args.ftl.clone(),
    };
    let footprint_pages = (accesses.pages().len() as f64 / rate).round() as usize;
    let jobs = jobs(&grid, footprint_pages);
    let trace = path.file_name().unwrap_or(path.as_os_str());
    let trace = trace.to_string_lossy().into_owned();
    warn_of_few_pages(&trace, &jobs, rate, accesses.pages().len());
    let bar = progress_bar(jobs.len() as u64);
    bar.set_message(trace.clone());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.jobs.map_or(cores, usize::from);
    let done = |count: usize| bar.set_position(count as u64);
    let over = Over {
        accesses: &accesses,
        geometry: &geometry,
        costs: args.costs(),
        as_tables: args.key == KeyArg::Record || reader.format().only_counts_blocks(),
        rate,
    };
    let outcomes = run_all(&jobs, &over, threads, done);
    bar.finish_and_clear();
    let outcomes = outcomes.with_context(|| format!("{}: its device", path.display()))?;
    let runs = jobs.into_iter().zip(outcomes);
    Ok(Compared {
        trace,
        format: reader.format().name(),
        counts: accesses.seen(),
        footprint_pages,
        sampled_accesses: accesses.len(),
        rows: runs.map(|(job, outcome)| Row { job, outcome }).collect(),
    })
}

/// Formats the runs for a terminal.
fn table(comparison: &Comparison) -> Table {
    let mut table = Table::new(&[
        ("device s", Align::Right),
        ("policy", Align::Left),
        ("pages", Align::Right),
        ("ftl", Align::Left),
        ("miss ratio", Align::Right),
        ("host writes", Align::Right),
        ("programs", Align::Right),
        ("erases", Align::Right),
        ("WA", Align::Right),
        ("trace", Align::Left),
    ]);
    for (of, Row { job, outcome: o }) in comparison.runs() {
        table.row(vec![
            format!("{:.3}", o.device_time_us / 1e6),
            job.policy.name().to_owned(),
            job.size_pages.to_string(),
            job.ftl.to_string(),
            format!("{:.4}", o.miss_ratio()),
            o.host_writes.to_string(),
            o.work.programs.to_string(),
            o.work.erases.to_string(),
            format!("{:.3}", o.write_amplification()),
            of.trace.clone(),
        ]);
    }
    table
}
