//! Pseudorandom numbers that a seed determines, so that a test can repeat its draws.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a
/// generator with one 64-bit state. Every state is a good seed.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates the generator of the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number, uniform over all 64-bit numbers.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`. The remainder makes some numbers more likely than others, by
    /// less than 2^-32 for bounds up to 2^32.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw() % bound
    }

    /// Returns true with a probability of `count` in `of`.
    pub fn chance(&mut self, count: u64, of: u64) -> bool {
        self.below(of) < count
    }

    /// Returns a random element of `values`.
    ///
    /// # Panics
    /// If `values` is empty.
    pub fn pick<'v, T>(&mut self, values: &'v [T]) -> &'v T {
        &values[self.below(values.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the first numbers for the seed 1234567 with the numbers that other implementations
    /// of SplitMix64 produce (rosettacode.org, "Pseudo-random numbers/Splitmix64").
    #[test]
    fn it_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let found = [(); 3].map(|()| random.draw());
        let listed = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(found, listed);
    }
}
