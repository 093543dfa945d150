//! Tests of the choice of victims and of the streams together, on a simulated side.
//!
//! Expected values have two sources that are independent of this code. For uniform loads, it is the
//! formula for a log that cleans its oldest segment: u = (f - 1) / ln f, and each written block
//! costs 1 / (1 - f) appended ones; u is the live share of the segments that are in use. For other
//! loads, it is an earlier simulation of the same rules by other code, the column "earlier" of
//! `docs/cleaning.md`.

mod loads;
mod side;
mod steps;

use super::admission::{Admission, Bounds, Level};
use super::uniform_amplification;
use super::victims::{VICTIMS_AHEAD, Yield};
use loads::{Draws, Load};
use side::{RESERVE, Side};

/// Size of a simulated side, and its load.
#[derive(Clone, Copy)]
struct Run {
    segments: u32,
    segment_blocks: u32,
    load: Load,
    /// Written blocks, as a percentage of the blocks of all segments.
    full_percent: u32,
    /// Number of times that all blocks are overwritten, on average.
    overwrites: u64,
}

impl Run {
    fn blocks(&self) -> u32 {
        self.segments * self.segment_blocks / 100 * self.full_percent
    }

    /// Fills the side in order, overwrites its blocks, and returns the write amplification of the
    /// last quarter of the overwrites.
    fn write_amplification(&self, seed: u64) -> f64 {
        let blocks = self.blocks();
        let mut side = Side::new(self.segments, self.segment_blocks, blocks);
        let mut draws = Draws::new(self.load, blocks, seed);
        let write = |side: &mut Side, block| {
            side.write(block);
            side.clean_to_reserve();
        };
        (0..blocks).for_each(|block| write(&mut side, block));
        let overwrites = self.overwrites * u64::from(blocks);
        let last = overwrites / 4;
        (0..overwrites - last).for_each(|_| write(&mut side, draws.next()));
        let (written, moved) = (side.written, side.moved);
        (0..last).for_each(|_| write(&mut side, draws.next()));
        side.amplification_since(written, moved)
    }
}

#[test]
fn the_formula_gives_the_published_values() {
    for (u, published) in [(0.5, 1.26), (0.7, 1.88), (0.8, 2.69), (0.9, 5.18)] {
        assert!(
            (uniform_amplification(u) - published).abs() < 0.006,
            "{}",
            uniform_amplification(u)
        );
    }
}

/// Returns a run that is small enough for a test in a debug build: 1,024 segments, because fewer of
/// them cost more writes, but of only 64 blocks each.
fn small(load: Load, full_percent: u32, overwrites: u64) -> Run {
    Run {
        segments: 1024,
        segment_blocks: 64,
        load,
        full_percent,
        overwrites,
    }
}

/// The reserve holds no blocks, so u is taken over the other segments. The tolerance is 3 %: the
/// segments of 64 blocks differ more in their live share than larger ones, which saves up to 2 %,
/// and separating blocks that do not differ costs up to 2 %.
#[test]
fn uniform_overwriting_costs_what_the_formula_says() {
    for full_percent in [50, 80] {
        let measured = small(Load::Uniform, full_percent, 5).write_amplification(1);
        let in_use = 1.0 - RESERVE as f64 / 1024.0;
        let expected = uniform_amplification(f64::from(full_percent) / 100.0 / in_use);
        let ratio = measured / expected;
        assert!((ratio - 1.0).abs() < 0.03, "{measured}, not {expected}");
    }
}

/// The earlier simulation has 2.14 and 1.78 at 80 %, after 30 overwrites. Up to 2 % more is
/// tolerated, for chance and because the loads are not quite steady after the 10 overwrites of this
/// test, and up to 8 % less: blocks that were moved once can stay hot here, which saves 5 % in the
/// 90/10 load, and small segments save 2 %.
#[test]
fn skewed_overwriting_costs_what_the_earlier_simulation_found() {
    for (load, earlier) in [(Load::Zipf, 2.14), (Load::NinetyTen, 1.78)] {
        let measured = small(load, 80, 10).write_amplification(1);
        let ratio = measured / earlier;
        assert!((0.92..1.02).contains(&ratio), "{load}: {measured}");
    }
}

/// The side under the law of admission, with a client that always offers more than is admitted and
/// a device that moves 1,000 blocks in a step.
struct Paced {
    side: Side,
    law: Admission,
    draws: Draws,
    /// Blocks of the current piece of cleaning that have not been moved yet.
    piece: u64,
    next: Yield,
}

/// Blocks appended in each step of 1,000 moved blocks, and the write amplification.
struct Measured {
    mean: u64,
    least: u64,
    amplification: f64,
}

/// Reserve of the law in segments: those that must remain free, and one for each stream, because
/// the rest of an open segment counts as free.
const PACED_RESERVE: u64 = RESERVE as u64 + 4;
/// Target of the law in segments: 8 above the reserve and one segment.
const PACED_TARGET: u64 = PACED_RESERVE + 1 + 8;

impl Paced {
    fn new(run: Run) -> Paced {
        let (segments, size) = (u64::from(run.segments), u64::from(run.segment_blocks));
        let mut side = Side::new(run.segments, run.segment_blocks, run.blocks());
        (0..run.blocks()).for_each(|block| side.write(block));
        Paced {
            side,
            law: Admission::new(Bounds {
                all_blocks: segments * size,
                segment_blocks: size,
                reserve_blocks: PACED_RESERVE * size,
                target_blocks: PACED_TARGET * size,
            }),
            draws: Draws::new(run.load, run.blocks(), 1),
            piece: 0,
            next: Yield::default(),
        }
    }

    fn level(&self) -> Level {
        Level {
            free_blocks: self.side.free_blocks(),
            coming_blocks: self.side.coming_blocks(),
        }
    }

    /// Runs a step of 50 slices in which at most `offered` blocks are appended; returns the number
    /// of appended blocks.
    fn step(&mut self, offered: u64) -> u64 {
        let before = self.side.written;
        for _ in 0..50 {
            self.next = self.side.expected(VICTIMS_AHEAD);
            let admitted = self.law.may_append_blocks(&self.level(), &self.next);
            let appended = admitted.min(offered / 50);
            (0..appended).for_each(|_| self.side.write(self.draws.next()));
            self.law.note_appended(appended, &self.level());
            self.clean(20);
            assert!(self.side.free_segments() >= RESERVE);
        }
        self.side.written - before
    }

    /// Runs `settling` steps, and then 200 steps that are measured.
    fn measure(&mut self, settling: u64) -> Measured {
        const OFFERED: u64 = 4000;
        (0..settling).for_each(|_| assert!(self.step(OFFERED) > 0));
        let (written, moved) = (self.side.written, self.side.moved);
        let steps: Vec<u64> = (0..200).map(|_| self.step(OFFERED)).collect();
        Measured {
            mean: steps.iter().sum::<u64>() / 200,
            least: steps.iter().min().copied().unwrap_or(0),
            amplification: self.side.amplification_since(written, moved),
        }
    }

    /// Moves up to `blocks` blocks if they are due.
    fn clean(&mut self, mut blocks: u64) {
        while blocks > 0 {
            if self.piece == 0 {
                self.piece = self.law.due_blocks(&self.level(), &self.next);
            }
            if self.piece == 0 {
                return;
            }
            let Some((moved, victim)) = self.side.clean_blocks(self.piece.min(blocks)) else {
                return;
            };
            self.law
                .note_moved(moved, &self.level(), &victim, &self.next);
            self.piece -= moved.min(self.piece);
            blocks -= moved;
        }
    }
}

/// Victims that are chosen among real segments differ from each other, unlike those of the model of
/// a device. Each step of 1,000 moved blocks must still admit at least half of the mean, and the
/// free segments must not fall below the reserve. Keeping the target free costs what the formula
/// says for that many fewer segments, within 3 % for uniform loads.
#[test]
fn admission_is_even_on_a_side_with_real_victims() {
    for load in [Load::Uniform, Load::NinetyTen] {
        let measured = Paced::new(small(load, 80, 0)).measure(300);
        let Measured { mean, least, .. } = measured;
        assert!(least >= mean / 2, "{load}: {least} of {mean}");
        if load == Load::Uniform {
            let in_use = 1.0 - PACED_TARGET as f64 / 1024.0;
            let ratio = measured.amplification / uniform_amplification(0.8 / in_use);
            assert!((ratio - 1.0).abs() < 0.03, "{ratio}");
        }
    }
}

/// Returns the run of a row of `docs/cleaning.md`.
fn published(load: Load, full_percent: u32) -> Run {
    Run {
        segments: 1024,
        segment_blocks: 512,
        load,
        full_percent,
        overwrites: if load == Load::Uniform { 12 } else { 30 },
    }
}

/// Prints the tables of `docs/cleaning.md`.
#[test]
#[ignore = "takes four minutes even in a release build; docs/cleaning.md has the command"]
fn tables() {
    let loads = [Load::Uniform, Load::Zipf, Load::NinetyTen];
    for load in loads {
        for full_percent in [50, 70, 80, 90] {
            let measured = published(load, full_percent).write_amplification(1);
            let formula = match load {
                Load::Uniform => format!(
                    "{:.2}",
                    uniform_amplification(f64::from(full_percent) / 100.0)
                ),
                _ => "-".to_owned(),
            };
            println!(
                "| {load} | .{} | {formula} | {measured:.2} |",
                full_percent / 10
            );
        }
    }
    for load in loads {
        for full_percent in [50, 80, 90] {
            let measured = Paced::new(published(load, full_percent)).measure(12_000);
            let Measured {
                mean,
                least,
                amplification,
            } = measured;
            let full = full_percent / 10;
            println!("| {load} | .{full} | {mean} | {least} | {amplification:.2} |");
        }
    }
}
