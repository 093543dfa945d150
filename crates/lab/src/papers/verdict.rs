//! The one rule by which a value that a paper prints is compared with ours.
//!
//! The rule knows nothing about papers and experiments. It must be the same for every item, so no
//! item can have a tolerance of its own.

use serde::{Deserialize, Serialize};

/// Factor within which a value counts as the printed one.
pub const FACTOR: f64 = 1.25;

/// Result of a comparison with a paper, from the best to the worst. The last two say that there was
/// nothing to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Our value is within a factor of [`FACTOR`] of each printed value.
    Reproduced,
    /// The effect has the printed sign, and its interval excludes the absence of an effect, but its
    /// size differs. An effect that is printed without a number can have no better verdict.
    SignOnly,
    /// Neither of the above.
    NotReproduced,
    /// The paper prints no value and no direction.
    NoValue,
    /// There is no run to compare with the paper.
    NotRun,
}

impl Verdict {
    /// All verdicts, in the order of the overview.
    pub const ALL: [Verdict; 5] = [
        Verdict::Reproduced,
        Verdict::SignOnly,
        Verdict::NotReproduced,
        Verdict::NoValue,
        Verdict::NotRun,
    ];

    /// Returns the verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Reproduced => "reproduced",
            Verdict::SignOnly => "sign only",
            Verdict::NotReproduced => "not reproduced",
            Verdict::NoValue => "the paper prints no value",
            Verdict::NotRun => "not run here",
        }
    }
}

/// What a paper prints about a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Printed {
    /// A value.
    Value(f64),
    /// A value between two bounds, the lower one first. Both are on the same side of 0.
    Between(f64, f64),
    /// At least a value above 0.
    AtLeast(f64),
    /// At most a value, which is 0 or more.
    AtMost(f64),
    /// More than without the effect, without a number.
    Above,
    /// Less than without the effect, without a number.
    Below,
}

/// A value with its interval. Several seeds give the mean and its 95 % interval by Student's t. A
/// value that no seed changes is its own interval. A single seed has no interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Mean over the seeds.
    pub value: f64,
    /// Lower and upper end of the interval; `None` if it is unknown.
    pub interval: Option<(f64, f64)>,
}

/// Quantiles of 97.5 % of Student's distribution, by degrees of freedom from 1.
const STUDENT: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

impl Measured {
    /// Computes the mean and its interval. `is_exact` says that seeds do not change the value.
    /// Returns `None` if there is no value, or one that is not finite.
    pub fn of(values: &[f64], is_exact: bool) -> Option<Measured> {
        let count = values.len();
        if count == 0 || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let value = values.iter().sum::<f64>() / count as f64;
        if is_exact {
            return Some(Measured {
                value,
                interval: Some((value, value)),
            });
        }
        let interval = count.checked_sub(2).map(|at| {
            let squares = values.iter().map(|of| (of - value).powi(2));
            let deviation = (squares.sum::<f64>() / (count - 1) as f64).sqrt();
            // With more seeds, the last quantile of the table is slightly too large.
            let quantile = STUDENT[at.min(STUDENT.len() - 1)];
            let half = quantile * deviation / (count as f64).sqrt();
            (value - half, value + half)
        });
        Some(Measured { value, interval })
    }
}

/// Compares a measured value with a printed one. `neutral` is the value without an effect: 0 for a
/// change, 1 for a ratio, `None` for a quantity that is no effect.
pub fn judge(printed: Printed, neutral: Option<f64>, ours: &Measured) -> Verdict {
    if is_within(printed, ours.value) {
        return Verdict::Reproduced;
    }
    let has_sign = neutral.is_some_and(|neutral| {
        let Some((low, high)) = ours.interval else {
            return false;
        };
        match sign(printed, neutral) {
            Some(true) => low > neutral,
            Some(false) => high < neutral,
            None => false,
        }
    });
    match has_sign {
        true => Verdict::SignOnly,
        false => Verdict::NotReproduced,
    }
}

/// Returns true if the value is within [`FACTOR`] of what is printed.
fn is_within(printed: Printed, value: f64) -> bool {
    let near = |low: f64, high: f64| {
        // Of two values below 0, the one that is nearer to 0 is the smaller one.
        let (low, high, value) = match high < 0.0 {
            true => (-high, -low, -value),
            false => (low, high, value),
        };
        (low / FACTOR..=high * FACTOR).contains(&value)
    };
    match printed {
        Printed::Value(of) => near(of, of),
        Printed::Between(low, high) => near(low, high),
        Printed::AtLeast(low) => value >= low / FACTOR,
        Printed::AtMost(high) => value <= high * FACTOR,
        Printed::Above | Printed::Below => false,
    }
}

/// Returns whether the printed effect is above the value without an effect; `None` if it is neither
/// above nor below.
fn sign(printed: Printed, neutral: f64) -> Option<bool> {
    let of = |low: f64, high: f64| match (low > neutral, high < neutral) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    match printed {
        Printed::Value(value) => of(value, value),
        Printed::Between(low, high) => of(low, high),
        Printed::AtLeast(low) => of(low, low).filter(|above| *above),
        Printed::AtMost(high) => of(high, high).filter(|above| !above),
        Printed::Above => Some(true),
        Printed::Below => Some(false),
    }
}

/// Returns the verdict on an item from those on its values: the worst one. An item without values
/// has [`Verdict::NoValue`].
pub fn worst(of: impl IntoIterator<Item = Verdict>) -> Verdict {
    of.into_iter().max().unwrap_or(Verdict::NoValue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(value: f64) -> Measured {
        Measured::of(&[value], true).unwrap()
    }

    fn between(low: f64, high: f64) -> Measured {
        Measured {
            value: (low + high) / 2.0,
            interval: Some((low, high)),
        }
    }

    /// 100 / 1.25 = 80 and 100 x 1.25 = 125.
    #[test]
    fn a_level_is_reproduced_within_the_factor_and_has_no_sign() {
        let of = |value| judge(Printed::Value(100.0), None, &exact(value));
        for value in [80.0, 100.0, 125.0] {
            assert_eq!(of(value), Verdict::Reproduced, "{value}");
        }
        for value in [0.0, 79.9, 125.1, -100.0] {
            assert_eq!(of(value), Verdict::NotReproduced, "{value}");
        }
    }

    /// A paper prints +20 % over the old scheme. +16 % to +25 % is the same effect. +40 % is a
    /// larger one of the same sign, if its interval excludes 0.
    #[test]
    fn an_effect_of_another_size_has_only_its_sign() {
        let of = |ours: Measured| judge(Printed::Value(0.2), Some(0.0), &ours);
        assert_eq!(of(exact(0.17)), Verdict::Reproduced);
        assert_eq!(of(exact(0.4)), Verdict::SignOnly);
        assert_eq!(of(between(0.3, 0.5)), Verdict::SignOnly);
        assert_eq!(of(between(-0.1, 0.9)), Verdict::NotReproduced);
        assert_eq!(of(exact(-0.2)), Verdict::NotReproduced);
        let unknown = Measured::of(&[0.4], false).unwrap();
        assert_eq!(of(unknown), Verdict::NotReproduced, "one seed shows little");
    }

    /// A paper prints -38 %. -38 / 1.25 = -30.4 and -38 x 1.25 = -47.5.
    #[test]
    fn an_effect_below_zero_has_the_same_factor() {
        let of = |value| judge(Printed::Value(-0.38), Some(0.0), &exact(value));
        assert_eq!(of(-0.31), Verdict::Reproduced);
        assert_eq!(of(-0.47), Verdict::Reproduced);
        assert_eq!(of(-0.50), Verdict::SignOnly);
        assert_eq!(of(-0.10), Verdict::SignOnly);
        assert_eq!(of(0.38), Verdict::NotReproduced);
    }

    /// "2 to 3 times" is 1.6 to 3.75 with the factor, and more than once is its sign. "Over 80 %"
    /// is 64 % with the factor. "Never" has no factor.
    #[test]
    fn ranges_and_bounds_have_the_same_factor() {
        let times = |value| judge(Printed::Between(2.0, 3.0), Some(1.0), &exact(value));
        assert_eq!(times(1.6), Verdict::Reproduced);
        assert_eq!(times(3.75), Verdict::Reproduced);
        assert_eq!(times(3.8), Verdict::SignOnly);
        assert_eq!(times(0.9), Verdict::NotReproduced);
        let least = |value| judge(Printed::AtLeast(0.8), None, &exact(value));
        assert_eq!(least(0.64), Verdict::Reproduced);
        assert_eq!(least(0.63), Verdict::NotReproduced);
        let never = |value| judge(Printed::AtMost(0.0), None, &exact(value));
        assert_eq!(never(0.0), Verdict::Reproduced);
        assert_eq!(never(1.0), Verdict::NotReproduced);
    }

    #[test]
    fn a_direction_without_a_number_is_at_best_a_sign() {
        let of = |printed, ours: Measured| judge(printed, Some(1.0), &ours);
        assert_eq!(of(Printed::Above, exact(1.2)), Verdict::SignOnly);
        assert_eq!(of(Printed::Above, exact(1.0)), Verdict::NotReproduced);
        assert_eq!(of(Printed::Below, between(0.8, 0.9)), Verdict::SignOnly);
        assert_eq!(
            of(Printed::Below, between(0.8, 1.1)),
            Verdict::NotReproduced
        );
    }

    /// "The same" is a printed ratio of 1, which has no sign.
    #[test]
    fn an_equality_is_reproduced_or_not() {
        let of = |value| judge(Printed::Value(1.0), Some(1.0), &exact(value));
        assert_eq!(of(0.81), Verdict::Reproduced);
        assert_eq!(of(1.3), Verdict::NotReproduced);
    }

    /// Of 10 and 12, the mean is 11 and the deviation 1.414. 12.706 x 1.414 / 1.414 = 12.706. Of 9,
    /// 10 and 11, the deviation is 1, and 4.303 / 1.732 = 2.484.
    #[test]
    fn an_interval_is_that_of_student() {
        let near = |of: Measured, low: f64, high: f64| {
            let (l, h) = of.interval.unwrap();
            (l - low).abs() < 1e-3 && (h - high).abs() < 1e-3
        };
        let two = Measured::of(&[10.0, 12.0], false).unwrap();
        assert!(two.value == 11.0 && near(two, -1.706, 23.706), "{two:?}");
        let three = Measured::of(&[9.0, 10.0, 11.0], false).unwrap();
        assert!(near(three, 7.516, 12.484), "{three:?}");
        assert_eq!(Measured::of(&[3.0], false).unwrap().interval, None);
        assert_eq!(
            Measured::of(&[3.0], true).unwrap().interval,
            Some((3.0, 3.0))
        );
        assert_eq!(Measured::of(&[], true), None);
        assert_eq!(Measured::of(&[f64::NAN], true), None);
    }

    #[test]
    fn an_item_has_the_worst_verdict_of_its_values() {
        use Verdict::{NoValue, NotReproduced, NotRun, Reproduced, SignOnly};
        assert_eq!(worst([]), NoValue);
        assert_eq!(worst([Reproduced, Reproduced]), Reproduced);
        assert_eq!(worst([Reproduced, SignOnly]), SignOnly);
        assert_eq!(worst([NotReproduced, Reproduced, SignOnly]), NotReproduced);
        assert_eq!(worst([NotReproduced, NotRun]), NotRun, "it is incomplete");
    }
}
