//! Random numbers, keys, values, batches and options from a seed: always the same for the same
//! seed.

use super::Change;
use crate::options::Options;
use crate::paper::{Clusters, PaperRules};

/// Random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Creates the generator for a seed.
    pub fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// Returns true once in `n` times on average.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of several values.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// Returns a number below a random power of two. The powers 2^0 to 2^(`bits_max` - 1) are
    /// equally likely.
    pub fn magnitude(&mut self, bits_max: u64) -> u64 {
        let bits = self.below(bits_max);
        self.below(1 << bits)
    }
}

/// Kinds of the keys and values that are drawn, and whether range deletions are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Number of different keys.
    pub keys: u64,
    /// True if keys are integers of eight bytes; otherwise they are text, some of it long.
    pub integers: bool,
    /// True if some values are too long to be stored inline.
    pub long_values: bool,
    /// True if there are range deletions.
    pub ranges: bool,
}

impl Shape {
    /// Returns a random shape.
    pub fn draw(draw: &mut Draw) -> Shape {
        Shape {
            keys: [20, 300, 3000][draw.below(3) as usize],
            integers: draw.once_in(2),
            long_values: draw.once_in(2),
            ranges: draw.once_in(2),
        }
    }

    /// Returns a random key.
    pub fn key(&self, draw: &mut Draw) -> Vec<u8> {
        let number = draw.below(self.keys);
        if self.integers {
            return (number * 3).to_be_bytes().to_vec();
        }
        let mut key = format!("key/{:03}", number / 7).into_bytes();
        key.extend(std::iter::repeat_n(b'x', (number % 7 * 5) as usize));
        if number.is_multiple_of(97) {
            key.resize(2000, b'k');
        }
        key
    }

    /// Returns a random value.
    pub fn value(&self, draw: &mut Draw) -> Vec<u8> {
        let len = match draw.below(20) {
            0 => 0,
            1..=12 => 8,
            13..=17 => draw.below(100),
            18 => draw.below(600),
            _ if self.long_values => draw.below(6000),
            _ => 300,
        };
        let first = draw.number();
        (0..len)
            .map(|index| (first >> (index % 8 * 8)) as u8 ^ index as u8)
            .collect()
    }

    /// Returns the changes of a batch: mostly one, sometimes many.
    pub fn batch(&self, draw: &mut Draw) -> Vec<Change> {
        let count = match draw.below(10) {
            0..=5 => 1,
            6..=8 => 1 + draw.below(8),
            _ => 1 + draw.below(60),
        };
        (0..count).map(|_| self.change(draw)).collect()
    }

    fn change(&self, draw: &mut Draw) -> Change {
        match draw.below(40) {
            0..=24 => Change::Put(self.key(draw), self.value(draw)),
            39 if self.ranges => {
                let (a, b) = (self.key(draw), self.key(draw));
                let end = (!draw.once_in(8)).then(|| a.clone().max(b.clone()));
                Change::DeleteRange(a.min(b), end)
            }
            _ => Change::Delete(self.key(draw)),
        }
    }
}

/// Returns options of a very small index, in which all kinds of maintenance happen often.
pub fn small_options(draw: &mut Draw) -> Options {
    let memory_bytes = [256 << 10, 1 << 20][draw.below(2) as usize];
    let buffer_bytes = [4 << 10, 64 << 10, 400 << 10][draw.below(3) as usize];
    Options {
        memory_bytes,
        buffer_bytes: buffer_bytes.min(memory_bytes / 2),
        log_bytes: [256 << 10, 1 << 20][draw.below(2) as usize],
        segment_bytes: 64 << 10,
        node_bytes: [512, 1024, 4096][draw.below(3) as usize],
        inline_value_bytes: [100, 1024][draw.below(2) as usize],
        utilisation: [0.5, 0.85][draw.below(2) as usize],
        ..Options::default()
    }
}

/// Returns the options of [`small_options`], but with a log that starts below its maximum length
/// and can grow.
pub fn small_growing_options(draw: &mut Draw) -> Options {
    Options {
        log_bytes: 4 << 20,
        ..small_options(draw)
    }
}

/// Returns the options of [`small_options`] with the paper's rules.
pub fn small_paper_options(draw: &mut Draw) -> Options {
    let paper = Some(small_paper_rules(draw));
    Options {
        paper,
        ..small_options(draw)
    }
}

fn small_paper_rules(draw: &mut Draw) -> PaperRules {
    let one = Clusters::One {
        segments: 4 + draw.below(12) as u32,
    };
    let two = Clusters::HotAndCold {
        hot_segments: 4 + draw.below(4) as u32,
        cold_segments: 4 + draw.below(8) as u32,
    };
    PaperRules {
        clusters: if draw.once_in(2) { one } else { two },
        fill: [0.69, 0.97][draw.below(2) as usize],
    }
}
