//! `bimetal probe`: finds the write size that suits a device. This size is the unit of the write
//! buffer of a cache above the device.
//!
//! A drive with a page-mapped translation layer handles small random writes nearly as fast as large
//! ones at a sufficient queue depth. A block-mapped drive spends a whole block on each small write,
//! and a disk spends a seek on each. The probe therefore measures random writes of growing size,
//! and selects the smallest size that reaches a quarter of the best rate. It must never write
//! without explicit permission.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bimetal_block::graph::{OpenOptions, Stack};
use bimetal_block::units::{Size, Time, parse_size, parse_time, show_size};
use bimetal_block::{BLOCK_BYTES, Device};
use bimetal_rt::{Rt, VirtualOptions};
use serde_json::json;

use crate::bench::check_virtual;
use crate::config::Config;
use crate::load::{Load, Outcome, Pattern, Run};
use crate::runtime;
use bimetal_console::progress::progress_bar;
use bimetal_console::table::{Align, Table};

/// Maximum write size that is measured.
const UNIT_BYTES_MAX: u64 = 4 << 20;
/// Queue depth of the random writes. It is high enough to hide the latency of a single write.
const DEPTH: u32 = 32;
/// Fraction of the best rate that a write size must reach to be sufficient. It must be low, so that
/// single pages are sufficient on a page-mapped drive. Even such a drive copies pages when single
/// pages are written at random: with 28 % of spare flash, it programs 2.4 pages for each page
/// written. A block-mapped drive programs 64.
const GOOD_SHARE: f64 = 0.25;
/// Minimum number of write units in the used region of the device.
const UNITS_MIN: u64 = 16;

/// Arguments of the verb `probe`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The configuration
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, by its name in the configuration
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Use only the first SIZE bytes of the device, or the whole of a smaller device
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    size: Size,
    /// Duration of the measurement of each write size
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    time: Time,
    /// Run in virtual time; every medium below the device must be `memory` or `null`
    #[arg(long = "virtual")]
    in_virtual_time: bool,
    /// Allow writes; they overwrite the data in the part of the device that `--size` selects
    #[arg(long)]
    destroy_data: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Result of a probe.
struct Found {
    region_bytes: u64,
    read_us: f64,
    /// Measured sizes of random writes in ascending order, each with its rate in bytes per second.
    rates: Vec<(u64, f64)>,
}

impl Found {
    /// Returns the smallest write size whose rate reaches [`GOOD_SHARE`] of the best rate.
    fn unit_bytes(&self) -> u64 {
        let best = self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let good = self
            .rates
            .iter()
            .find(|(_, rate)| *rate >= best * GOOD_SHARE);
        good.map_or(BLOCK_BYTES, |(unit, _)| *unit)
    }

    /// Returns the mean time for each write of the smallest measured size, a single page, in
    /// microseconds.
    fn page_us(&self) -> f64 {
        let pages_per_s = self
            .rates
            .first()
            .map_or(0.0, |(unit, rate)| rate / *unit as f64);
        1e6 / pages_per_s.max(1e-6)
    }

    fn to_lines(&self, device: &str) -> Vec<String> {
        let mut table = Table::new(&[
            ("random writes of", Align::Right),
            ("a second", Align::Right),
        ]);
        for (unit, rate) in &self.rates {
            table.row(vec![
                show_size(*unit),
                format!("{}/s", show_size(*rate as u64)),
            ]);
        }
        let mut lines = table.lines();
        let unit = self.unit_bytes();
        lines.push(String::new());
        lines.push(match unit {
            BLOCK_BYTES => format!(
                "{device} is efficient with single-page writes: writing neighbouring pages \
                together gains nothing"
            ),
            _ => format!(
                "{device} needs writes of {} or more: neighbouring dirty pages should be written \
                together",
                show_size(unit)
            ),
        });
        lines.push(format!(
            "reading a page takes {:.0} us, writing a page {:.0} us, with {DEPTH} requests in \
            flight",
            self.read_us,
            self.page_us()
        ));
        // The unit is formatted in the notation of the configuration.
        let cluster = match unit >> 20 {
            0 => format!("{}KiB", unit >> 10),
            mib => format!("{mib}MiB"),
        };
        lines.push(format!(
            "in the section of a cache over it:  cluster = \"{cluster}\""
        ));
        lines
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let config = Config::load(&args.file)?;
    let device = config.device(&args.device)?;
    if !args.destroy_data {
        bail!(
            "device {device}: a probe overwrites its first {}; add --destroy-data to allow that",
            show_size(args.size.0)
        );
    }
    let rt = if args.in_virtual_time {
        check_virtual(&config, device)?;
        Rt::virtual_time(VirtualOptions {
            seed: 0,
            shuffle: false,
        })
    } else {
        runtime::start(config.server.runtime(0))?
    };
    let found = rt.block_on(open_and_probe(&rt, &config, device, args))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let sizes = found.rates.iter();
        let sizes = sizes.map(|(unit, rate)| json!({ "unit_bytes": unit, "bytes_per_s": rate }));
        let shown = json!({
            "version": 1,
            "device": device,
            "region_bytes": found.region_bytes,
            "read_us": found.read_us,
            "write_page_us": found.page_us(),
            "random_writes": sizes.collect::<Vec<_>>(),
            "unit_bytes": found.unit_bytes(),
        });
        writeln!(out, "{shown}")?;
    } else {
        for line in found.to_lines(device) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn open_and_probe(rt: &Rt, config: &Config, name: &str, args: &Args) -> Result<Found> {
    let stack = Stack::open(rt, &config.graph, &[name], &OpenOptions::default()).await?;
    let top = Rc::clone(stack.get(name).expect("the root of a stack is open"));
    let found = probe(rt, &top, name, args).await;
    let closed = stack.close().await;
    let found = found?;
    if let Err((device, error)) = closed {
        bail!("device {device}: closing failed: {error}");
    }
    Ok(found)
}

async fn probe(rt: &Rt, top: &Rc<dyn Device>, name: &str, args: &Args) -> Result<Found> {
    let geometry = *top.geometry();
    ensure!(geometry.writable, "device {name}: is read-only");
    let region_bytes = args.size.0.min(geometry.size_bytes) / BLOCK_BYTES * BLOCK_BYTES;
    let most = u64::from(geometry.transfer_bytes_max).min(UNIT_BYTES_MAX);
    let most = most.min(region_bytes / UNITS_MIN);
    ensure!(
        most >= BLOCK_BYTES,
        "device {name}: {} is too small to probe, at least {} is needed",
        show_size(region_bytes),
        show_size(BLOCK_BYTES * UNITS_MIN)
    );
    let doubled = std::iter::successors(Some(BLOCK_BYTES), |unit| Some(unit * 4));
    let units: Vec<u64> = doubled.take_while(|unit| *unit <= most).collect();
    let load = |pattern, request_bytes, depth| Load {
        pattern,
        request_bytes,
        depth,
        region_bytes,
        time: Some(args.time.0),
        operations: None,
        seed: 1,
    };
    let bar = progress_bar(units.len() as u64 + 2);
    // Fill the region first, because a device handles blocks that were never written differently
    // from written blocks.
    let fill = Load {
        time: None,
        operations: Some(region_bytes / most),
        ..load(Pattern::Write, most, 4)
    };
    drive(rt, top, name, fill).await?;
    bar.inc(1);
    let reads = drive(rt, top, name, load(Pattern::RandRead, BLOCK_BYTES, 1)).await?;
    bar.inc(1);
    let mut rates = Vec::new();
    for unit in units {
        let depth = DEPTH.min((region_bytes / unit / 2) as u32);
        let written = drive(rt, top, name, load(Pattern::RandWrite, unit, depth)).await?;
        let bytes = written.writes.count() as f64 * unit as f64;
        rates.push((unit, bytes / seconds(&written)));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Found {
        region_bytes,
        read_us: seconds(&reads) * 1e6 / reads.reads.count().max(1) as f64,
        rates,
    })
}

fn seconds(outcome: &Outcome) -> f64 {
    outcome.elapsed.max(Duration::from_nanos(1)).as_secs_f64()
}

async fn drive(rt: &Rt, top: &Rc<dyn Device>, name: &str, load: Load) -> Result<Outcome> {
    let run = Run::new(rt, Rc::clone(top), load);
    run.finish().await;
    let outcome = run.into_outcome();
    if let Some(error) = outcome.first_error {
        bail!("device {name}: {error}");
    }
    ensure!(
        !outcome.stuck,
        "device {name}: requests take no virtual time; add a timing model to the stack"
    );
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rates: &[(u64, f64)]) -> Found {
        Found {
            region_bytes: 1 << 28,
            read_us: 100.0,
            rates: rates.to_vec(),
        }
    }

    #[test]
    fn the_smallest_size_that_reaches_a_quarter_of_the_best_rate_is_enough() {
        // Writes of 4 KiB reach 60 MB/s, and the best rate is 100 MB/s, as on a page-mapped drive.
        let pages = found(&[(4096, 60e6), (16384, 90e6), (65536, 100e6)]);
        assert_eq!(pages.unit_bytes(), 4096);
        // 60 MB/s are 14,648 pages per second, one page each 68 us.
        assert!((pages.page_us() - 68.27).abs() < 0.01);
        // Each write costs a block of 256 KiB, so the rate grows with the write size up to 256 KiB.
        let blocks = found(&[
            (4096, 1e6),
            (16384, 4e6),
            (65536, 16e6),
            (262_144, 64e6),
            (1 << 20, 66e6),
        ]);
        assert_eq!(blocks.unit_bytes(), 262_144);
    }
}
