//! Prints the cost of cleaning as a function of a drive's fullness: a drive with 28 % spare flash,
//! with an increasing share of its pages in use, under three loads.
//!
//! `cargo run --release -p bimetal-flash --example fullness` runs for a few seconds.

#[path = "../tests/common/mod.rs"]
mod common;

use bimetal_flash::{Cleaning, Costs, Counters, Drive, Streams};
use common::{Load, Skew, alpha, drive, greedy_wa, page_mapped};

const BLOCKS: u32 = 2048;
const PAGES_PER_BLOCK: u32 = 64;
const SPARE: f64 = 0.28;

/// Write pattern on the logical pages in use.
#[derive(Clone, Copy)]
enum Writes {
    /// Single pages, uniformly distributed.
    Uniform,
    /// Single pages: 80 % of the writes are to a fifth of the pages. The drive separates the two
    /// groups of pages.
    Skewed,
    /// Runs of 32 pages that start at any page.
    Runs,
}

fn write_once(drive: &mut Drive, load: &mut Load, used: u32, writes: Writes) {
    let skew = Skew {
        pages: 0.2,
        writes: 0.8,
    };
    match writes {
        Writes::Uniform => put(drive, load.below(used)),
        Writes::Skewed => put(drive, skew.draw(load, used).0),
        Writes::Runs => {
            let first = load.below(used - 32);
            (first..first + 32).for_each(|lpn| put(drive, lpn));
        }
    }
}

fn put(drive: &mut Drive, lpn: u32) {
    drive.write(&[lpn]).expect("within the drive");
}

/// Fills the first `used` pages, and writes 12 x `used` pages to warm up. Returns the counters of
/// the following writes of 8 x `used` pages.
fn steady(drive: &mut Drive, used: u32, writes: Writes) -> Counters {
    let mut load = Load(7);
    (0..used).for_each(|lpn| put(drive, lpn));
    let mut run = |drive: &mut Drive, rounds: u64| {
        let before = drive.counters();
        let end = before.host_writes + rounds * u64::from(used);
        while drive.counters().host_writes < end {
            write_once(drive, &mut load, used, writes);
        }
        drive.counters() - before
    };
    run(drive, 12);
    run(drive, 8)
}

/// Returns the write amplification, and the total time in microseconds for each written page.
fn cost(fullness: f64, writes: Writes) -> (f64, f64) {
    let streams = match writes {
        Writes::Skewed => Streams::Measured,
        _ => Streams::One,
    };
    let layer = page_mapped(Cleaning::Greedy, streams);
    let mut drive = drive(BLOCKS, PAGES_PER_BLOCK, SPARE, layer);
    let used = (f64::from(drive.logical_pages()) * fullness) as u32;
    let done = steady(&mut drive, used, writes);
    let page_us = Costs::default().time_us(&done) as f64 / done.host_writes as f64;
    (done.write_amplification(), page_us)
}

fn main() {
    println!("| in use | uniform WA | formula | adds | 80/20 WA | adds | runs WA | adds |");
    println!("|---|---|---|---|---|---|---|---|");
    let layer = page_mapped(Cleaning::Greedy, Streams::One);
    let empty = drive(BLOCKS, PAGES_PER_BLOCK, SPARE, layer);
    let alpha = alpha(&empty, BLOCKS, PAGES_PER_BLOCK, 1);
    let loads = [Writes::Uniform, Writes::Skewed, Writes::Runs];
    let bare_us = loads.map(|writes| cost(0.1, writes).1);
    for percent in [10, 20, 40, 50, 60, 70, 80, 90, 100] {
        let fullness = f64::from(percent) / 100.0;
        let formula = greedy_wa(alpha / fullness, PAGES_PER_BLOCK);
        print!("| {percent} % ");
        for (n, writes) in loads.into_iter().enumerate() {
            let (amplification, page_us) = cost(fullness, writes);
            let more = 100.0 * (page_us / bare_us[n] - 1.0);
            print!("| {amplification:.3} ");
            if n == 0 {
                print!("| {formula:.3} ");
            }
            print!("| {more:+.0} % ");
        }
        println!("|");
    }
}
