//! Records that the examples write.

/// A generator of random numbers from a seed (SplitMix64; Steele, Lea and Flood 2014).
pub struct Draw(u64);

impl Draw {
    /// Creates a generator from the given seed.
    pub fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }
}

/// Maps numbers to scattered numbers, one to one (a bijection).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns the key of the record `id`: the id in eight bytes, or, for a long key, eight random
/// bytes followed by the id.
pub fn key(id: u64, long: bool) -> Vec<u8> {
    let mut key = Vec::with_capacity(16);
    if long {
        key.extend_from_slice(&mix(id).to_be_bytes());
    }
    key.extend_from_slice(&id.to_be_bytes());
    key
}
