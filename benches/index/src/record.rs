//! The records and ids of the workloads, which are the same for every engine.
//!
//! The load writes N records, with the even ids of a universe of 2N ids. A key of 8 bytes is the
//! id. A key of 16 bytes is a hash of the id followed by the id, so that the keys of neighboring
//! ids are far apart. Values are random, so that they cannot be compressed. The draws must never
//! differ between engines.

use std::ops::Range;

/// Multiplier that spreads the ranks of a Zipf draw over all ids. It is odd and not a multiple of
/// 5, so that it is coprime to every count that is a product of twos and fives.
const SPREAD: u64 = 2_862_933_555_777_941_757;
const ZIPF_THETA: f64 = 0.99;

/// Lengths of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Shape {
    /// Keys and values of 8 bytes.
    #[value(name = "8+8")]
    Short,
    /// Keys of 16 bytes, values of 100 bytes.
    #[value(name = "16+100")]
    Long,
    /// Keys of 8 bytes, values of 1,000 bytes.
    #[value(name = "8+1000")]
    Wide,
}

impl Shape {
    /// Returns the length of a key in bytes.
    pub fn key_bytes(self) -> usize {
        match self {
            Shape::Short | Shape::Wide => 8,
            Shape::Long => 16,
        }
    }

    /// Returns the length of a value in bytes.
    pub fn value_bytes(self) -> usize {
        match self {
            Shape::Short => 8,
            Shape::Long => 100,
            Shape::Wide => 1000,
        }
    }

    /// Returns the length of a record in bytes.
    pub fn record_bytes(self) -> u64 {
        (self.key_bytes() + self.value_bytes()) as u64
    }

    /// Returns the key of an id.
    pub fn key(self, id: u64) -> Key {
        let mut key = Key {
            bytes: [0; 16],
            len: self.key_bytes(),
        };
        if self == Shape::Long {
            key.bytes[..8].copy_from_slice(&mix(id).to_be_bytes());
        }
        key.bytes[key.len - 8..key.len].copy_from_slice(&id.to_be_bytes());
        key
    }
}

/// A key of 8 or 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    bytes: [u8; 16],
    len: usize,
}

impl Key {
    /// Returns the bytes of the key.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Applies the finalizer of splitmix64, a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Generator of random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Creates a generator. Each seed has a different sequence of numbers.
    pub fn new(seed: u64) -> Draw {
        Draw(mix(seed ^ 0x6A09_E667_F3BC_C908))
    }

    /// Returns a random number, uniform over all 64-bit numbers.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a random number below `bound`. All of these numbers have about the same probability.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.number().to_le_bytes()[..chunk.len()]);
        }
    }

    fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Zipf generator of YCSB with theta 0.99. The ranks are spread over all numbers below `count`, so
/// that frequent numbers are not neighbors.
#[derive(Clone, Debug)]
pub struct Zipf {
    count: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Creates a generator of numbers below `count`. This takes time proportional to `count`.
    pub fn new(count: u64) -> Zipf {
        let zeta = |count: u64| -> f64 {
            (1..=count)
                .map(|rank| (rank as f64).powf(-ZIPF_THETA))
                .sum()
        };
        let all = zeta(count);
        let share = (2.0 / count as f64).powf(1.0 - ZIPF_THETA);
        Zipf {
            count,
            zeta: all,
            eta: (1.0 - share) / (1.0 - zeta(2) / all),
        }
    }

    /// Returns a random number below `count` from a Zipf distribution. The frequent numbers are not
    /// next to each other but spread over the whole range.
    pub fn draw(&self, draw: &mut Draw) -> u64 {
        let u = draw.unit();
        let scaled = u * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(ZIPF_THETA) {
            1
        } else {
            let base = self.eta * u - self.eta + 1.0;
            (self.count as f64 * base.powf(1.0 / (1.0 - ZIPF_THETA))) as u64
        };
        let rank = rank.min(self.count - 1);
        (u128::from(rank) * u128::from(SPREAD) % u128::from(self.count)) as u64
    }
}

/// A batch of puts and deletes.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    bytes: Vec<u8>,
    items: Vec<(Range<usize>, Option<Range<usize>>)>,
}

impl Changes {
    /// Empties the batch.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
    }

    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// Adds a put of a random value under the key of an id.
    pub fn put(&mut self, shape: Shape, id: u64, draw: &mut Draw) {
        let key = self.push(shape.key(id).bytes());
        let start = self.bytes.len();
        self.bytes.resize(start + shape.value_bytes(), 0);
        draw.fill(&mut self.bytes[start..]);
        let value = start..self.bytes.len();
        self.items.push((key, Some(value)));
    }

    /// Adds a delete of the key of an id.
    pub fn delete(&mut self, shape: Shape, id: u64) {
        let key = self.push(shape.key(id).bytes());
        self.items.push((key, None));
    }

    /// Returns each key with its new value, or with `None` for a delete.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let item = |(key, value): &(Range<usize>, Option<Range<usize>>)| {
            let value = value.clone().map(|range| &self.bytes[range]);
            (&self.bytes[key.clone()], value)
        };
        self.items.iter().map(item)
    }

    /// Returns all keys and values of the batch, concatenated.
    pub fn user_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn zipf_draws_are_skewed_as_said_and_reach_all() {
        let count = 1000;
        let zipf = Zipf::new(count);
        let mut draw = Draw::new(1);
        let mut hits = vec![0_u64; count as usize];
        let draws = 1_000_000;
        for _ in 0..draws {
            hits[zipf.draw(&mut draw) as usize] += 1;
        }
        // In a Zipf distribution the most frequent rank has the share 1 / zeta(n, theta) of all
        // draws, which is 0.1278 in this test.
        let first = hits[0] as f64 / f64::from(draws);
        let zeta: f64 = (1..=count).map(|rank| (rank as f64).powf(-0.99)).sum();
        assert!((first * zeta - 1.0).abs() < 0.02, "{first}");
        assert!(hits.iter().all(|hits| *hits > 0));
    }

    #[test]
    fn keys_of_all_shapes_are_as_many_as_ids() {
        for shape in [Shape::Short, Shape::Long, Shape::Wide] {
            let keys: BTreeSet<Vec<u8>> =
                (0..1000).map(|id| shape.key(id).bytes().to_vec()).collect();
            assert_eq!(keys.len(), 1000);
            assert!(keys.iter().all(|key| key.len() == shape.key_bytes()));
        }
    }

    #[test]
    fn changes_give_back_what_was_put() {
        let mut changes = Changes::default();
        let mut draw = Draw::new(7);
        changes.put(Shape::Long, 4, &mut draw);
        changes.delete(Shape::Long, 6);
        let all: Vec<_> = changes.iter().collect();
        assert_eq!(all[0].0, Shape::Long.key(4).bytes());
        assert_eq!(all[0].1.map(<[u8]>::len), Some(100));
        assert_eq!(all[1], (Shape::Long.key(6).bytes(), None));
    }
}
