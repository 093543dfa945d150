//! Random numbers for the cleaning policy that draws blocks at random.
//!
//! The crate has a generator of its own, so that a seed always gives the same choices: SplitMix64
//! (Steele, Lea and Flood, OOPSLA 2014).

/// Random number generator. The same seed gives the same numbers on every platform.
#[derive(Debug, Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Draw(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniformly distributed number below `limit`, which must be greater than 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u32
    }
}
