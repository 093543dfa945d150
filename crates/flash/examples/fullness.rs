//! Prints what cleaning costs against how full the drive is: the same flash, less and less of it
//! free, under uniform random writes.
//!
//! `cargo run --release -p bimetal-flash --example fullness`

#[path = "../tests/common/mod.rs"]
mod common;

use bimetal_flash::{
    Capacity, Cleaning, Costs, Drive, DriveConfig, FtlConfig, Geometry, PageConfig,
};
use common::{Load, fifo_wa, fill, greedy_wa, uniform};

const BLOCKS: u32 = 2048;
const PAGES_PER_BLOCK: u32 = 64;
const FREE_BLOCKS: u32 = 1;

/// What a write costs more than its program, in percent, and its write amplification.
fn overhead(fullness: f64, cleaning: Cleaning) -> (f64, f64) {
    let physical = BLOCKS * PAGES_PER_BLOCK;
    let pages = (f64::from(physical) * fullness) as u32;
    let page = PageConfig {
        cleaning,
        ..PageConfig::default()
    };
    let geometry = Geometry::one_die(BLOCKS, PAGES_PER_BLOCK, 4096);
    let capacity = Capacity::LogicalPages(pages);
    let config = DriveConfig::new(geometry, capacity, FtlConfig::Page(page));
    let mut drive = Drive::new(&config).expect("room for the reserve");
    let mut load = Load(7);
    fill(&mut drive);
    uniform(&mut drive, &mut load, 3 * u64::from(pages));
    let done = uniform(&mut drive, &mut load, 8 * u64::from(pages));
    let costs = Costs::default();
    let bare_us = done.host_writes * u64::from(costs.program_us);
    let more = costs.time_us(&done) as f64 / bare_us as f64 - 1.0;
    (100.0 * more, done.write_amplification())
}

fn main() {
    println!("| full | greedy WA | formula | cleaning adds | FIFO WA | formula | cleaning adds |");
    println!("|---|---|---|---|---|---|---|");
    for percent in [30, 40, 50, 60, 70, 80, 85, 90, 95] {
        let fullness = f64::from(percent) / 100.0;
        let alpha = f64::from(BLOCKS - FREE_BLOCKS) / (f64::from(BLOCKS) * fullness);
        let (greedy, greedy_measured) = overhead(fullness, Cleaning::Greedy);
        let (fifo, fifo_measured) = overhead(fullness, Cleaning::Fifo);
        println!(
            "| {percent} % | {greedy_measured:.3} | {:.3} | {greedy:+.0} % | {fifo_measured:.3} | {:.3} | \
             {fifo:+.0} % |",
            greedy_wa(alpha, PAGES_PER_BLOCK),
            fifo_wa(alpha),
        );
    }
}
