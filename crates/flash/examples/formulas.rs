//! Prints the tables of docs/flash.md: analytic models compared with measurements of the
//! translation layers.
//!
//! `cargo run --release -p bimetal-flash --example formulas` runs for about half a minute.

#[path = "../tests/common/mod.rs"]
mod common;

use bimetal_flash::{Cleaning, FtlConfig, Streams};
use common::{
    Skew, aged, alpha, drive, fifo_mixed_wa, fifo_wa, greedy_wa, page_mapped, random_pages,
    separated_wa, steady_skewed_wa, steady_wa,
};

const BLOCKS: u32 = 2048;
const SPARES: [f64; 4] = [0.07, 0.15, 0.28, 0.50];

fn percent(measured: f64, formula: f64) -> String {
    format!("{:+.2} %", (measured / formula - 1.0) * 100.0)
}

fn uniform_table() {
    println!(
        "| over-provisioning | pages a block | cleaning | alpha | formula | measured | off by |"
    );
    println!("|---|---|---|---|---|---|---|");
    for spare in SPARES {
        for pages_per_block in [16, 64, 256] {
            for cleaning in [Cleaning::Greedy, Cleaning::Fifo] {
                let layer = page_mapped(cleaning, Streams::One);
                let mut drive = drive(BLOCKS, pages_per_block, spare, layer);
                let alpha = alpha(&drive, BLOCKS, pages_per_block, 1);
                let formula = match cleaning {
                    Cleaning::Greedy => greedy_wa(alpha, pages_per_block),
                    _ => fifo_wa(alpha),
                };
                let measured = steady_wa(&mut drive, 3, 8);
                let off = percent(measured, formula);
                println!(
                    "| {spare:.2} | {pages_per_block} | {cleaning:?} | {alpha:.4} | {formula:.3} | \
                     {measured:.3} | {off} |"
                );
            }
        }
    }
}

/// Returns alpha and the write amplification under skewed writes. If the drive measures the classes
/// of pages, the first fill puts all pages in one class and the drive must first separate them, so
/// these runs are longer.
fn skewed(cleaning: Cleaning, streams: Streams, spare: f64, skew: Skew) -> (f64, f64) {
    let blocks = 2 * BLOCKS;
    let mut drive = drive(blocks, 64, spare, page_mapped(cleaning, streams));
    let alpha = alpha(&drive, blocks, 64, u32::from(streams.count()));
    let (given, warm) = match streams {
        Streams::One => (false, 4),
        Streams::Given(_) => (true, 4),
        Streams::Measured => (false, 24),
    };
    (alpha, steady_skewed_wa(&mut drive, skew, given, warm, 8))
}

fn skewed_table() {
    println!();
    println!(
        "| hot pages / writes | over-provisioning | FIFO mixed: formula | measured | greedy mixed: \
         measured | greedy apart: formula | classes given | off by | classes measured |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (pages, writes) in [(0.2, 0.8), (0.1, 0.9)] {
        let skew = Skew { pages, writes };
        for spare in [0.07, 0.15, 0.28] {
            let (one, fifo) = skewed(Cleaning::Fifo, Streams::One, spare, skew);
            let (_, mixed) = skewed(Cleaning::Greedy, Streams::One, spare, skew);
            let (two, given) = skewed(Cleaning::Greedy, Streams::Given(2), spare, skew);
            let (_, measured) = skewed(Cleaning::Greedy, Streams::Measured, spare, skew);
            let apart = separated_wa(two, pages, writes, 64);
            println!(
                "| {pages} / {writes} | {spare:.2} | {:.3} | {fifo:.3} | {mixed:.3} | {apart:.3} | \
                 {given:.3} | {} | {measured:.3} |",
                fifo_mixed_wa(one, pages, writes),
                percent(given, apart),
            );
        }
    }
}

fn log_block_table() {
    println!();
    println!(
        "| layer | data blocks L | log blocks K | merges formula | measured | off by | WA formula | measured |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (data_blocks, log_blocks) in [(1000, 10), (1000, 30), (1000, 100), (4000, 120)] {
        for is_fast in [false, true] {
            let (l, k) = (f64::from(data_blocks), f64::from(log_blocks));
            let (name, layer, merges) = if is_fast {
                (
                    "FAST",
                    FtlConfig::Fast { log_blocks },
                    l / (l + 64.0 * k - 32.0),
                )
            } else {
                ("BAST", FtlConfig::Bast { log_blocks }, 1.0 - k / l)
            };
            let mut drive = aged(data_blocks, log_blocks + 2, layer);
            let done = random_pages(&mut drive, data_blocks, 100_000, 400_000);
            let measured = done.merges_full as f64 / done.host_writes as f64;
            println!(
                "| {name} | {data_blocks} | {log_blocks} | {merges:.4} | {measured:.4} | {} | \
                 {:.3} | {:.3} |",
                percent(measured, merges),
                1.0 + 64.0 * merges,
                done.write_amplification(),
            );
        }
    }
}

fn main() {
    uniform_table();
    skewed_table();
    log_block_table();
}
