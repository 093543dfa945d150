//! Loads of writes for the simulated side: which block is overwritten next.

use std::fmt;

/// A generator of pseudo-random numbers (xorshift64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `below`, which must be below 2^32.
    pub fn below(&mut self, below: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(below)) >> 32) as u32
    }
}

/// How often the blocks are overwritten, relative to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Each block equally often.
    Uniform,
    /// The block of rank r with a probability that is proportional to 1 / r^0.9.
    Zipf,
    /// 90 % of the writes go to 10 % of the blocks, and the others to the other blocks.
    NinetyTen,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Load::Uniform => "uniform",
            Load::Zipf => "zipf(.9)",
            Load::NinetyTen => "90/10",
        })
    }
}

/// Draws the blocks of a load.
pub struct Draws {
    load: Load,
    random: Random,
    /// The block of each rank, so that hot blocks do not lie side by side.
    block_of_rank: Vec<u32>,
    /// For the zipf load, for each rank the probability of this rank and all lower ones, times
    /// 2^32; empty for the other loads.
    cumulated: Vec<u32>,
}

impl Draws {
    /// Returns a generator over `blocks` blocks.
    pub fn new(load: Load, blocks: u32, seed: u64) -> Draws {
        let mut random = Random::new(seed);
        let mut block_of_rank: Vec<u32> = (0..blocks).collect();
        for at in (1..blocks).rev() {
            block_of_rank.swap(at as usize, random.below(at + 1) as usize);
        }
        let cumulated = match load {
            Load::Zipf => zipf_cumulated(blocks),
            _ => Vec::new(),
        };
        Draws {
            load,
            random,
            block_of_rank,
            cumulated,
        }
    }

    /// Returns the next block that is overwritten.
    pub fn next(&mut self) -> u32 {
        let blocks = self.block_of_rank.len() as u32;
        let hot = blocks / 10;
        let rank = match self.load {
            Load::Uniform => self.random.below(blocks),
            Load::NinetyTen if self.random.below(10) < 9 => self.random.below(hot),
            Load::NinetyTen => hot + self.random.below(blocks - hot),
            Load::Zipf => {
                let drawn = self.random.below(u32::MAX);
                let rank = self.cumulated.partition_point(|upto| *upto <= drawn);
                (rank as u32).min(blocks - 1)
            }
        };
        self.block_of_rank[rank as usize]
    }
}

fn zipf_cumulated(blocks: u32) -> Vec<u32> {
    let weight = |rank: u32| f64::from(rank + 1).powf(-0.9);
    let all: f64 = (0..blocks).map(weight).sum();
    let mut sum = 0.0;
    (0..blocks)
        .map(|rank| {
            sum += weight(rank);
            (sum / all * f64::from(u32::MAX)) as u32
        })
        .collect()
}
