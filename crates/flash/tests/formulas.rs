//! Tests of the translation layers against analytic models: the write amplification of cleaning,
//! and the merges of log blocks.
//!
//! The formulas are solved in `common` from their equations, and this file tests the solutions
//! against known values. For cleaning, devices are filled, overwritten at least three times, and
//! measured over eight times their capacity. Alpha is the ratio of physical to logical pages; the
//! physical pages do not include the blocks that are always free, one for each write stream.

mod common;

use bimetal_flash::{Cleaning, FtlConfig, Streams};
use common::{
    Skew, aged, alpha, drive, fifo_mixed_wa, fifo_wa, fill, greedy_wa, harmonic, page_mapped,
    random_pages, separated_wa, steady_skewed_wa, steady_wa, uniform,
};

const BLOCKS: u32 = 2048;

#[track_caller]
fn within_2_percent(measured: f64, formula: f64) {
    let off = (measured / formula - 1.0).abs();
    assert!(off < 0.02, "measured {measured:.4}, formula {formula:.4}");
}

fn cleaning_is_as_the_formula_says(cleaning: Cleaning, pages_per_block: u32, spare: f64) {
    let mut drive = drive(
        BLOCKS,
        pages_per_block,
        spare,
        page_mapped(cleaning, Streams::One),
    );
    let alpha = alpha(&drive, BLOCKS, pages_per_block, 1);
    let formula = match cleaning {
        Cleaning::Greedy => greedy_wa(alpha, pages_per_block),
        _ => fifo_wa(alpha),
    };
    within_2_percent(steady_wa(&mut drive, 3, 8), formula);
    drive.verify().expect("a consistent drive");
}

/// Tests the models themselves: harmonic numbers against their sums, known values of the FIFO
/// formulas, and the limit of large blocks, in which greedy cleaning equals FIFO.
#[test]
fn the_formulas_hold_where_they_can_be_computed() {
    for n in [0u32, 1, 2, 10, 64] {
        let sum: f64 = (1..=n).map(|k| 1.0 / f64::from(k)).sum();
        assert!((harmonic(f64::from(n)) - sum).abs() < 1e-10, "H({n})");
    }
    // H(1/2) = 2 - 2 ln 2.
    assert!((harmonic(0.5) - (2.0 - 2.0 * std::f64::consts::LN_2)).abs() < 1e-10);
    // For alpha = 2 ln 2, the solution is x = 1/2, so WA = 2.
    assert!((fifo_wa(2.0 * std::f64::consts::LN_2) - 2.0).abs() < 1e-9);
    assert!((greedy_wa(1.25, 60_000) / fifo_wa(1.25) - 1.0).abs() < 1e-3);
    // If both groups have the same write rate, the formula for mixed groups equals that for FIFO.
    assert!((fifo_mixed_wa(1.15, 0.5, 0.5) / fifo_wa(1.15) - 1.0).abs() < 1e-9);
}

#[test]
fn greedy_and_fifo_with_16_pages_a_block() {
    for spare in [0.07, 0.15, 0.28, 0.50] {
        cleaning_is_as_the_formula_says(Cleaning::Greedy, 16, spare);
        cleaning_is_as_the_formula_says(Cleaning::Fifo, 16, spare);
    }
}

#[test]
fn greedy_and_fifo_with_64_pages_a_block() {
    for spare in [0.07, 0.15, 0.28, 0.50] {
        cleaning_is_as_the_formula_says(Cleaning::Greedy, 64, spare);
        cleaning_is_as_the_formula_says(Cleaning::Fifo, 64, spare);
    }
}

#[test]
fn greedy_and_fifo_with_256_pages_a_block() {
    for spare in [0.07, 0.15, 0.28, 0.50] {
        cleaning_is_as_the_formula_says(Cleaning::Greedy, 256, spare);
        cleaning_is_as_the_formula_says(Cleaning::Fifo, 256, spare);
    }
}

/// Each of four dies behaves like a device with one die, so the distribution over dies does not
/// change the write amplification.
#[test]
fn four_dies_are_four_devices() {
    let geometry = bimetal_flash::Geometry {
        channels: 2,
        ways: 2,
        planes: 2,
        ..bimetal_flash::Geometry::one_die(512, 64, 4096)
    };
    let capacity = bimetal_flash::Capacity::OverProvisioning(0.15);
    let layer = page_mapped(Cleaning::Greedy, Streams::One);
    let config = bimetal_flash::DriveConfig::new(geometry, capacity, layer);
    let mut drive = bimetal_flash::Drive::new(&config).expect("a valid drive");
    let alpha = alpha(&drive, 4096, 64, 4);
    within_2_percent(steady_wa(&mut drive, 3, 8), greedy_wa(alpha, 64));
}

/// The formula for greedy cleaning is as accurate when cleaning moves pages into the host's open
/// blocks as when moved pages have open blocks of their own.
#[test]
fn one_append_point_is_as_good_as_two() {
    let layer = FtlConfig::Page(bimetal_flash::PageConfig {
        separate_copies: false,
        ..bimetal_flash::PageConfig::default()
    });
    let mut drive = drive(BLOCKS, 64, 0.15, layer);
    let alpha = alpha(&drive, BLOCKS, 64, 1);
    within_2_percent(steady_wa(&mut drive, 3, 8), greedy_wa(alpha, 64));
}

/// Random choice among many blocks is as good as greedy cleaning. Random choice among few blocks is
/// between greedy cleaning and a single random block. A single random block gives a write
/// amplification of alpha / (alpha - 1), because it has the average number of valid pages of a
/// block.
#[test]
fn random_choices_lie_between_blind_and_greedy() {
    let wa = |choices| {
        let layer = page_mapped(Cleaning::Choices(choices), Streams::One);
        let mut drive = drive(BLOCKS, 64, 0.28, layer);
        let alpha = alpha(&drive, BLOCKS, 64, 1);
        (alpha, steady_wa(&mut drive, 3, 8))
    };
    let (alpha, blind) = wa(1);
    within_2_percent(blind, alpha / (alpha - 1.0));
    let (_, five) = wa(5);
    let (_, many) = wa(200);
    assert!(many < five && five < blind, "{many} {five} {blind}");
    within_2_percent(many, greedy_wa(alpha, 64));
}

#[test]
fn hot_and_cold_apart_are_as_the_formula_says() {
    for (pages, writes) in [(0.2, 0.8), (0.1, 0.9)] {
        for spare in [0.07, 0.15, 0.28] {
            let layer = page_mapped(Cleaning::Greedy, Streams::Given(2));
            let mut drive = drive(2 * BLOCKS, 64, spare, layer);
            let alpha = alpha(&drive, 2 * BLOCKS, 64, 2);
            let skew = Skew { pages, writes };
            let measured = steady_skewed_wa(&mut drive, skew, true, 4, 8);
            within_2_percent(measured, separated_wa(alpha, pages, writes, 64));
            drive.verify().expect("a consistent drive");
        }
    }
}

/// If hot and cold pages share blocks, skewed writes cause a higher write amplification than
/// uniform writes. For FIFO cleaning, the result is that of the formula.
#[test]
fn hot_and_cold_mixed_are_worse_than_uniform() {
    let (pages, writes, spare) = (0.2, 0.8, 0.15);
    let skew = Skew { pages, writes };
    let mixed = |cleaning| {
        let mut drive = drive(BLOCKS, 64, spare, page_mapped(cleaning, Streams::One));
        let alpha = alpha(&drive, BLOCKS, 64, 1);
        (alpha, steady_skewed_wa(&mut drive, skew, false, 4, 8))
    };
    let (alpha, fifo) = mixed(Cleaning::Fifo);
    within_2_percent(fifo, fifo_mixed_wa(alpha, pages, writes));
    let (_, greedy) = mixed(Cleaning::Greedy);
    assert!(greedy > greedy_wa(alpha, 64), "{greedy}");
    assert!(greedy > 1.4 * separated_wa(alpha, pages, writes, 64));
}

/// The drive separates hot and cold pages by counting writes. Once the old mixture has been cleaned
/// away, the write amplification is at most 5 % above the optimum of a drive that is told the class
/// of each page, and far below that of a drive with mixed pages.
#[test]
fn measured_classes_come_close_to_given_ones() {
    let layer = page_mapped(Cleaning::Greedy, Streams::Measured);
    let mut drive = drive(BLOCKS, 64, 0.15, layer);
    let alpha = alpha(&drive, BLOCKS, 64, 2);
    let skew = Skew {
        pages: 0.2,
        writes: 0.8,
    };
    let measured = steady_skewed_wa(&mut drive, skew, false, 20, 8);
    assert!(
        measured < 1.05 * separated_wa(alpha, 0.2, 0.8, 64),
        "{measured}"
    );
    drive.verify().expect("a consistent drive");
}

/// Cost-benefit cleaning was designed for skewed writes and is better than greedy cleaning under
/// them (Rosenblum and Ousterhout 1991, figure 6).
#[test]
fn cost_benefit_beats_greedy_under_skew() {
    let skew = Skew {
        pages: 0.1,
        writes: 0.9,
    };
    let wa = |cleaning| {
        let mut drive = drive(512, 64, 0.15, page_mapped(cleaning, Streams::One));
        steady_skewed_wa(&mut drive, skew, false, 4, 8)
    };
    let (benefit, greedy) = (wa(Cleaning::CostBenefit), wa(Cleaning::Greedy));
    assert!(benefit < greedy, "{benefit} {greedy}");
}

/// Repeated sequential writes of the whole drive invalidate whole blocks, so no page is copied.
#[test]
fn sequential_writes_amplify_nothing() {
    let layers = [
        page_mapped(Cleaning::Greedy, Streams::One),
        page_mapped(Cleaning::Fifo, Streams::One),
        page_mapped(Cleaning::CostBenefit, Streams::One),
    ];
    for layer in layers {
        let mut drive = drive(256, 64, 0.07, layer);
        for _ in 0..5 {
            fill(&mut drive);
        }
        assert_eq!(drive.counters().write_amplification(), 1.0);
        assert_eq!(drive.counters().programs_copy, 0);
    }
}

#[test]
fn bast_merges_are_as_the_formula_says() {
    for (l, k) in [(1000, 10), (1000, 30), (1000, 100)] {
        let mut drive = aged(l, k + 2, FtlConfig::Bast { log_blocks: k });
        let done = random_pages(&mut drive, l, 20_000, 100_000);
        let merges = 1.0 - f64::from(k) / f64::from(l);
        within_2_percent(done.merges_full as f64 / done.host_writes as f64, merges);
        within_2_percent(done.write_amplification(), 1.0 + 64.0 * merges);
        // A full merge costs 64 programs, 64 reads and two erases.
        assert_eq!(done.programs_copy, 64 * done.merges_full);
        assert_eq!(done.reads_copy, done.programs_copy);
        assert_eq!(done.erases, 2 * done.merges_full);
        assert_eq!(done.merges(), done.merges_full);
        drive.verify().expect("a consistent drive");
    }
}

#[test]
fn fast_merges_are_as_the_formula_says() {
    for (l, k) in [(1000, 10), (1000, 30), (1000, 100), (4000, 120)] {
        let mut drive = aged(l, k + 2, FtlConfig::Fast { log_blocks: k });
        let done = random_pages(&mut drive, l, 100_000, 200_000);
        let merges = f64::from(l) / (f64::from(l) + 64.0 * f64::from(k) - 32.0);
        let writes = done.host_writes as f64;
        within_2_percent(done.merges_full as f64 / writes, merges);
        within_2_percent(done.write_amplification(), 1.0 + 64.0 * merges);
        within_2_percent(done.erases as f64 / writes, merges + 1.0 / 64.0);
        assert_eq!(done.programs_copy, 64 * done.merges_full);
        drive.verify().expect("a consistent drive");
    }
}

/// Writing whole blocks in order costs one switch merge for each block: the log block becomes the
/// data block, with one erase for 64 pages, and no copies.
#[test]
fn log_blocks_switch_under_sequential_writes() {
    let layers = [
        FtlConfig::Bast { log_blocks: 4 },
        FtlConfig::Fast { log_blocks: 4 },
    ];
    for layer in layers {
        let mut drive = aged(100, 6, layer);
        let before = drive.counters();
        fill(&mut drive);
        let done = drive.counters() - before;
        assert_eq!(done.write_amplification(), 1.0);
        assert_eq!((done.merges_switch, done.merges()), (100, 100));
        assert_eq!(done.erases, 100);
    }
}

/// Writing k of the 64 pages of a block in one call costs 64 - k reads, 64 programs and one erase.
#[test]
fn block_mapped_writes_rewrite_their_block() {
    let mut drive = aged(50, 1, FtlConfig::Block);
    for k in [1u32, 5, 63, 64] {
        let before = drive.counters();
        let together: Vec<u32> = (0..k).map(|n| 7 * 64 + (n * 11) % 64).collect();
        drive.write(&together).expect("within the drive");
        let done = drive.counters() - before;
        assert_eq!(done.reads_copy, u64::from(64 - k));
        assert_eq!(done.programs, 64);
        assert_eq!(done.programs_host, u64::from(k));
        assert_eq!(done.erases, 1);
    }
    drive.verify().expect("a consistent drive");
}

/// Without a translation layer, a write costs one program.
#[test]
fn no_layer_costs_nothing_more() {
    let mut drive = drive(16, 64, 0.0, FtlConfig::None);
    assert_eq!(drive.logical_pages(), 1024);
    let done = uniform(&mut drive, &mut common::Load(1), 5000);
    assert_eq!((done.programs, done.erases), (5000, 0));
    assert_eq!(drive.device_time_us(), 5000 * 200);
}
