//! Statistics over several runs: the median, its confidence interval, and the significance of a
//! difference.
//!
//! Intervals are percentile bootstraps of the median with a fixed seed, so the same runs always
//! give the same interval. No value is dropped as an outlier.

use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

/// Number of random samples of a bootstrap.
const DRAWS: usize = 2_000;

/// A median with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
}

impl Estimate {
    /// Returns true if neither end of the interval is further from the median than the fraction
    /// `part` of the median.
    pub fn is_within(&self, part: f64) -> bool {
        let most = self.median.abs() * part;
        self.median - self.low <= most && self.high - self.median <= most
    }
}

/// Number of rounds at the end of a measurement. The results of these rounds decide whether the
/// device is steady.
pub const STEADY_ROUNDS: usize = 5;
/// Limits for a steady device, as fractions of the mean of the last rounds: the maximum difference
/// between two of these rounds, and the maximum rise or fall of the line fitted to them.
const STEADY_RANGE: f64 = 0.2;
const STEADY_SLOPE: f64 = 0.1;

/// Variation of the last rounds of a measurement, as in SNIA's Solid State Storage Performance Test
/// Specification.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steadiness {
    /// Mean of the rounds.
    pub mean: f64,
    /// Difference between the largest and the smallest round, divided by the mean.
    pub range: f64,
    /// Absolute difference between both ends of the fitted line, divided by the mean.
    pub slope: f64,
}

impl Steadiness {
    /// Returns the variation of the last [`STEADY_ROUNDS`] rounds; `None` if there are fewer
    /// rounds.
    pub fn of(rounds: &[f64]) -> Option<Steadiness> {
        let window = &rounds[rounds.len().checked_sub(STEADY_ROUNDS)?..];
        let count = STEADY_ROUNDS as f64;
        let mean = window.iter().sum::<f64>() / count;
        let least = window.iter().copied().fold(f64::INFINITY, f64::min);
        let most = window.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let middle = (count - 1.0) / 2.0;
        let places = (0..STEADY_ROUNDS).map(|at| at as f64 - middle);
        let squares: f64 = places.clone().map(|x| x * x).sum();
        let products: f64 = places.zip(window).map(|(x, y)| x * y).sum();
        Some(Steadiness {
            mean,
            range: (most - least) / mean,
            slope: (products / squares * (count - 1.0)).abs() / mean,
        })
    }

    /// Returns true if the variation is so small that the device is considered steady.
    pub fn is_steady(&self) -> bool {
        self.range <= STEADY_RANGE && self.slope <= STEADY_SLOPE
    }
}

/// Returns the median; `None` if there are no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Returns the median of the values with its interval; `None` if there are no values.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let of = median(values)?;
    let mut rng = Rng::labelled(1, "bootstrap");
    let mut medians: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let draw = |_| values[rng.below(values.len() as u64) as usize];
            let again: Vec<f64> = (0..values.len()).map(draw).collect();
            median(&again).expect("as many as there were")
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let at = |share: f64| medians[((DRAWS - 1) as f64 * share).round() as usize];
    Some(Estimate {
        median: of,
        low: at(0.025),
        high: at(0.975),
    })
}

/// Ratio of a metric to the baseline, from pairs of runs with the same seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the ratios of the pairs, with its interval.
    pub estimate: Estimate,
    /// Whether there are at least five pairs and the ratios of all pairs are on the same side of 1,
    /// so that the interval does not contain 1.
    pub is_significant: bool,
}

/// Minimum number of pairs for a significant ratio. By chance, the ratios of five pairs are all on
/// the same side of 1 with a probability of 1 in 16.
const PAIRS_MIN: usize = 5;

/// Returns the ratio of `values` to `base`. A pair is an element of `values` and the element of
/// `base` at the same place. The ratio is estimated from the ratios of all pairs. Returns `None` if
/// there are no pairs or an element of `base` is 0.
pub fn paired_ratio(values: &[f64], base: &[f64]) -> Option<Ratio> {
    if base.contains(&0.0) {
        return None;
    }
    let ratios: Vec<f64> = values.iter().zip(base).map(|(v, b)| v / b).collect();
    let estimate = estimate(&ratios)?;
    let to_one_side =
        ratios.iter().all(|ratio| *ratio > 1.0) || ratios.iter().all(|ratio| *ratio < 1.0);
    Some(Ratio {
        estimate,
        is_significant: ratios.len() >= PAIRS_MIN && to_one_side,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_steady_within_a_fifth_and_a_tenth() {
        let of = |rounds: &[f64]| Steadiness::of(rounds);
        assert_eq!(of(&[1.0; 4]), None);
        // Over the last five rounds, the sum of the products of position and value is -190 - 100 +
        // 100 + 200 = 10, and the sum of the squares of the positions is 10. So the slope is 1 per
        // round, and the rise over all five rounds is 4.
        let steady = of(&[700.0, 95.0, 100.0, 105.0, 100.0, 100.0]).expect("six");
        assert_eq!(
            (steady.mean, steady.range, steady.slope),
            (100.0, 0.1, 0.04)
        );
        assert!(steady.is_steady());
        // The slope is -5 per round, so the values fall by 20 over the five rounds. This fall of
        // 0.2 of the mean exceeds the limit of 0.1, although the range of 0.2 is within its own
        // limit of 0.2.
        let falling = of(&[110.0, 105.0, 100.0, 95.0, 90.0]).expect("five");
        assert_eq!((falling.range, falling.slope), (0.2, 0.2));
        assert!(!falling.is_steady());
        let wide = of(&[89.0, 111.0, 100.0, 111.0, 89.0]).expect("five");
        assert!(wide.slope == 0.0 && !wide.is_steady());
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    /// In a bootstrap sample of five values, the median is the smallest value with a probability of
    /// 0.058, and one of the two smallest values with 0.317. So the 2.5 % quantile of the medians
    /// is the smallest value, and the 97.5 % quantile is the largest value.
    #[test]
    fn an_interval_holds_the_medians_that_could_have_been() {
        let of = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert_eq!((of.median, of.low, of.high), (3.0, 1.0, 5.0));
        let same = estimate(&[7.0; 5]).unwrap();
        assert_eq!((same.low, same.high), (7.0, 7.0));
    }

    #[test]
    fn an_interval_is_within_a_part_of_its_median() {
        let of = |low, high| Estimate {
            median: 100.0,
            low,
            high,
        };
        assert!(of(95.0, 105.0).is_within(0.05));
        assert!(!of(94.0, 100.0).is_within(0.05));
        assert!(!of(100.0, 106.0).is_within(0.05));
        let nothing = estimate(&[0.0; 5]).unwrap();
        assert!(nothing.is_within(0.05));
    }

    #[test]
    fn a_difference_is_one_when_every_pair_has_it() {
        let base = [100.0, 200.0, 300.0, 400.0, 500.0];
        let up: Vec<f64> = base.iter().map(|value| value * 1.1).collect();
        let ratio = paired_ratio(&up, &base).unwrap();
        assert!((ratio.estimate.median - 1.1).abs() < 1e-12 && ratio.is_significant);
        let mut mixed = up.clone();
        mixed[0] = 90.0;
        assert!(!paired_ratio(&mixed, &base).unwrap().is_significant);
        assert!(!paired_ratio(&up[..4], &base[..4]).unwrap().is_significant);
        assert_eq!(paired_ratio(&up, &[0.0; 5]), None);
    }
}
