//! Random durations that are bit-identical on every platform.
//!
//! The standard library's `ln` and `exp` come from the platform's libm and can differ in the last
//! bit between platforms. One bit is enough to change the run that a simulation seed produces. The
//! functions `ln` and `exp` of this module use only IEEE 754 basic operations, whose results the
//! standard fixes exactly.

use std::f64::consts::{LN_2, LOG2_E};

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

/// A lognormal distribution of durations with a cap.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lognormal {
    /// Median of the draws, in ns.
    pub median_ns: u64,
    /// Standard deviation of the logarithm, without unit.
    pub sigma: f64,
    /// Maximum duration in ns, to which longer draws are reduced.
    pub cap_ns: u64,
}

/// The source of a model's random numbers.
#[derive(Debug, Clone)]
pub(super) struct Draws {
    rng: Xoshiro256PlusPlus,
    /// The second deviate of a pair, not yet returned: the polar method generates normal deviates
    /// in pairs.
    spare: Option<f64>,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Self {
        Draws {
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            spare: None,
        }
    }

    /// Returns a uniform number in [0, 1), a multiple of 2^-53.
    pub(super) fn unit(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Returns a uniformly distributed integer from `low` to `high`, both included, up to the
    /// resolution of [`unit`](Self::unit).
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "an interval runs upwards");
        low + (self.unit() * (high - low + 1) as f64) as u64
    }

    /// Returns true with the given probability. Draws no random number if the probability is 0, so
    /// that a parameter of 0 does not change the random sequence of a model.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.unit() < probability
    }

    /// Returns a random duration from the given distribution, in ns.
    pub(super) fn lognormal(&mut self, distribution: &Lognormal) -> u64 {
        let factor = exp(distribution.sigma * self.normal());
        // The cast saturates, so an enormous factor is also cut to the cap.
        ((distribution.median_ns as f64 * factor) as u64).min(distribution.cap_ns)
    }

    /// Returns a standard normal deviate by Marsaglia's polar method (Knuth, TAOCP 2, 3.4.1 P).
    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let x = 2.0 * self.unit() - 1.0;
            let y = 2.0 * self.unit() - 1.0;
            let s = x * x + y * y;
            if s > 0.0 && s < 1.0 {
                let scale = (-2.0 * ln(s) / s).sqrt();
                self.spare = Some(y * scale);
                return x * scale;
            }
        }
    }
}

/// Returns the natural logarithm of a positive normal number; relative error below 1e-14.
pub(super) fn ln(x: f64) -> f64 {
    assert!(x >= f64::MIN_POSITIVE && x.is_finite(), "ln of {x}");
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa > std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 atanh t = 2 (t + t^3/3 + ...), with |t| <= 0.172. The terms from t^21/21 on are left
    // out, because they are below 1e-17.
    let t = (mantissa - 1.0) / (mantissa + 1.0);
    let square = t * t;
    let mut sum = 0.0;
    for divisor in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        sum = (sum + 1.0 / divisor) * square;
    }
    exponent as f64 * LN_2 + 2.0 * t * (1.0 + sum)
}

/// Returns e^x, with a relative error below 1e-13 for |x| < 700. An x outside this range is clamped
/// to it.
pub(super) fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let power = (x * LOG2_E).round();
    let rest = x - power * LN_2;
    // |rest| <= 0.347: the term rest^14/14! is below 1e-17.
    let mut sum = 1.0;
    for divisor in [
        13.0, 12.0, 11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0,
    ] {
        sum = 1.0 + sum * rest / divisor;
    }
    sum * f64::from_bits(((power as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ln_and_exp_agree_with_the_standard_library() {
        for step in 1..20_000u32 {
            let x = f64::from(step) * 0.037;
            assert!(
                (ln(x) - x.ln()).abs() <= 1e-14 * (1.0 + x.ln().abs()),
                "ln {x}"
            );
            let y = x * 0.5 - 180.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-13, "exp {y}");
        }
    }

    /// With 200,000 draws, the share below a true quantile has a standard error of at most
    /// sqrt(0.25 / 200,000) = 0.0011. The test permits five standard errors, which are 0.0056.
    #[test]
    fn lognormal_quantiles_are_the_distributions() {
        let freeze = Lognormal {
            median_ns: 400_000_000,
            sigma: 0.8,
            cap_ns: 4_000_000_000,
        };
        let mut draws = Draws::new(7);
        let all: Vec<u64> = (0..200_000).map(|_| draws.lognormal(&freeze)).collect();
        let share_below = |limit: f64| {
            all.iter().filter(|ns| (**ns as f64) < limit).count() as f64 / all.len() as f64
        };
        // Standard normal quantiles: P(Z < -1.2816) = 0.1, P(Z < 1.2816) = 0.9.
        for (z, share) in [(-1.2816, 0.1), (0.0, 0.5), (1.0, 0.8413), (1.2816, 0.9)] {
            let limit = 4.0e8 * (0.8f64 * z).exp();
            assert!(
                (share_below(limit) - share).abs() < 0.0056,
                "quantile {share}"
            );
        }
        // The cap is 10 medians, so its logarithm is ln 10 / 0.8 = 2.878 standard deviations above
        // the mean of the logarithms. So 0.2 % of the draws reach the cap.
        assert!(all.iter().all(|ns| *ns <= 4_000_000_000));
        assert!((share_below(3.999_999_9e9) - 0.998).abs() < 0.0006);
    }

    #[test]
    fn certain_chances_draw_nothing() {
        let mut draws = Draws::new(1);
        assert!(!draws.chance(0.0));
        assert_eq!(draws.unit(), Draws::new(1).unit());
        assert!(draws.chance(1.0));
    }
}
