//! Random numbers, all derived from one seed. The algorithm is fixed (xoshiro256++), so a seed
//! yields the same numbers with every version of every library.

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A deterministic generator of random numbers. Each consumer has its own generator, derived from
/// the seed by a label, so a new consumer does not change the numbers of the other consumers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: Xoshiro256PlusPlus,
}

impl Rng {
    /// Returns the generator for a seed.
    pub fn new(seed: u64) -> Rng {
        Rng {
            state: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    /// Returns the generator for the consumer `label`, independent of the generators of other
    /// labels for the same seed.
    pub fn labelled(seed: u64, label: &str) -> Rng {
        // FNV-1a is a hash function that distinguishes labels well enough, and its definition never
        // changes, so a seed and a label always give the same generator.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in label.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Rng::new(seed ^ hash.rotate_left(17))
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state.next_u64()
    }

    /// Returns a number below `bound`, with negligible bias (multiply-shift).
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random member");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an empty range has no random member");
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.next_u64(),
        }
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns true with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit_f64() < probability
    }

    /// Returns an exponentially distributed number with the given mean: the gap between two events
    /// of a Poisson process.
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
        // Binomial(100_000, 0.1): mean 10_000, standard deviation 95. The bounds are six standard
        // deviations (570) from the mean.
        assert!(
            counts.iter().all(|&c| (9_430..=10_570).contains(&c)),
            "{counts:?}"
        );
    }
}
