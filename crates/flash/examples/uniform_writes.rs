//! Writes a given number of pages, uniformly at random, so that the speed of the simulation can be
//! measured: `cargo build --release -p bimetal-flash --example uniform_writes`, then
//! `time target/release/examples/uniform_writes REQUESTS BLOCKS PAGES_PER_BLOCK SPARE`.

#[path = "../tests/common/mod.rs"]
mod common;

use bimetal_flash::{Cleaning, Streams};
use common::{Load, drive, page_mapped, uniform};

/// Returns the command-line argument number `place`, or `otherwise` if it is missing.
fn argument<T: std::str::FromStr>(place: usize, otherwise: T) -> T {
    let text = std::env::args().nth(place);
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() {
    let requests = argument(1, 20_000_000);
    let (blocks, pages_per_block) = (argument(2, 2048), argument(3, 64));
    let layer = page_mapped(Cleaning::Greedy, Streams::One);
    let mut drive = drive(blocks, pages_per_block, argument(4, 0.28), layer);
    common::fill(&mut drive);
    let done = uniform(&mut drive, &mut Load(1), requests);
    println!(
        "{requests} requests of a page, {} pages, write amplification {:.3}",
        drive.logical_pages(),
        done.write_amplification()
    );
}
