//! Random numbers, all of them from one seed. A named algorithm (xoshiro256++), so that a seed
//! means the same on every version of every library.

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A deterministic generator. Streams are split off by label, so that a new consumer does not
/// shift the numbers of the others.
#[derive(Clone, Debug)]
pub struct Rng {
    state: Xoshiro256PlusPlus,
}

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Rng {
        Rng {
            state: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// An independent generator for the consumer `label` of the same seed.
    pub fn labelled(seed: u64, label: &str) -> Rng {
        // FNV-1a: enough to tell labels apart, and fixed for ever.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in label.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Rng::new(seed ^ hash.rotate_left(17))
    }

    /// Any 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state.next_u64()
    }

    /// A number below `bound`, without bias worth speaking of (multiply-shift).
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random member");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range has no random member");
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.next_u64(),
        }
    }

    /// A number in `0.0..1.0`.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit_f64() < probability
    }

    /// An exponentially distributed number with the given mean: the gap of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit_f64()).ln() * mean
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_labels_differ() {
        let draw = |mut r: Rng| (0..8).map(|_| r.next_u64()).collect::<Vec<_>>();
        assert_eq!(
            draw(Rng::labelled(7, "disk")),
            draw(Rng::labelled(7, "disk"))
        );
        assert_ne!(
            draw(Rng::labelled(7, "disk")),
            draw(Rng::labelled(7, "load"))
        );
        assert_ne!(
            draw(Rng::labelled(7, "disk")),
            draw(Rng::labelled(8, "disk"))
        );
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut rng = Rng::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[rng.below(10) as usize] += 1;
        }
        // Binomial(100_000, 0.1): mean 10_000, standard deviation 95; six of them are 570.
        assert!(
            counts.iter().all(|&c| (9_430..=10_570).contains(&c)),
            "{counts:?}"
        );
    }
}
