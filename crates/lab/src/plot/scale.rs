//! Axes that map values to positions in a drawing, ticks at round numbers, and short forms of
//! numbers.
//!
//! Finite values must always give finite positions, even if all values are equal or zero, or there
//! is only one value.

/// Approximate number of ticks of an axis.
const TICKS: f64 = 5.0;
/// Minimum length of an axis, as a fraction of the largest value on it.
const LEAST_RANGE: f64 = 0.1;

/// Axis that maps values to positions in a drawing.
pub(super) struct Scale {
    from: f64,
    to: f64,
    /// Positions of both ends of the axis.
    at: (f64, f64),
    logarithmic: bool,
    step: f64,
}

impl Scale {
    /// Creates an axis between round numbers that contains all `values`. The axis starts at 0 if
    /// `from_zero` is set, or if the smallest value is less than half of the largest.
    pub(super) fn over(
        values: impl Iterator<Item = f64>,
        from_zero: bool,
        at: (f64, f64),
    ) -> Scale {
        let (least, most) = ends(values);
        let least = if from_zero || least < most * 0.5 {
            least.min(0.0)
        } else {
            least
        };
        let (least, most) = widened(least, most);
        let step = round_step((most - least) / TICKS);
        Scale {
            from: (least / step).floor() * step,
            to: (most / step - 1e-9).ceil() * step,
            at,
            logarithmic: false,
            step,
        }
    }

    /// Creates a logarithmic axis for values above 0.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>, at: (f64, f64)) -> Scale {
        let (least, most) = ends(values.map(|value| value.max(f64::MIN_POSITIVE).ln()));
        Scale {
            from: least,
            to: if most > least { most } else { least + 1.0 },
            at,
            logarithmic: true,
            step: 1.0,
        }
    }

    /// Creates an axis that extends exactly from the smallest to the largest value.
    pub(super) fn from_end_to_end(values: impl Iterator<Item = f64>, at: (f64, f64)) -> Scale {
        let (least, most) = ends(values);
        Scale {
            from: least,
            to: if most > least { most } else { least + 1.0 },
            at,
            logarithmic: false,
            step: 1.0,
        }
    }

    /// Returns the position of a value. A value outside the axis is mapped to the nearest end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = match self.logarithmic {
            true => value.max(f64::MIN_POSITIVE).ln(),
            false => value,
        };
        let share = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.at.0 + share * (self.at.1 - self.at.0)
    }

    /// Returns the round numbers at which the axis has ticks.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let count = ((self.to - self.from) / self.step).round() as u32;
        (0..=count)
            .map(|n| self.from + f64::from(n) * self.step)
            .collect()
    }

    /// Formats the number of a tick with enough digits to distinguish it from its neighbours.
    pub(super) fn show(&self, tick: f64) -> String {
        if self.to.abs() >= 1000.0 {
            return short(tick);
        }
        let digits = (-self.step.log10() - 1e-9).ceil().max(0.0) as usize;
        format!("{tick:.digits$}")
    }
}

/// Returns the smallest and the largest finite value; zeroes if there is no finite value.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let of = |ends: Option<(f64, f64)>, value: f64| match ends {
        Some((least, most)) => Some((least.min(value), most.max(value))),
        None => Some((value, value)),
    };
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, of).unwrap_or((0.0, 0.0))
}

/// Widens a range so that its length is at least a tenth of its largest absolute value. Without
/// this minimum, the drawing would exaggerate small differences.
fn widened(least: f64, most: f64) -> (f64, f64) {
    let wanted = match least.abs().max(most.abs()) {
        0.0 => 1.0,
        size => size * LEAST_RANGE,
    };
    let lacking = (wanted - (most - least)).max(0.0);
    (least - lacking / 2.0, most + lacking / 2.0)
}

/// Returns the smallest number that is at least `step` and is 1, 2 or 5 times a power of ten.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.max(1e-12).log10().floor());
    let first = [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power);
    let mut fitting = first.filter(|round| *round >= step * 0.999);
    fitting.next().unwrap_or(10.0 * power)
}

/// Formats a number in about five characters or fewer: `0.531`, `12.4`, `8.2k`, `3.1M`.
pub fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        size if size >= 999.5e6 => (value / 1e9, "G"),
        size if size >= 999.5e3 => (value / 1e6, "M"),
        size if size >= 999.5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        size if size == size.round() => 0,
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ if unit.is_empty() => 3,
        _ => 2,
    };
    let text = format!("{scaled:.digits$}");
    let text = match text.contains('.') && !unit.is_empty() {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{unit}")
}

/// Moves positions apart, as little as possible, so that neighbours have at least the distance
/// `gap` and all positions are in the range `within`. If the range is too short, the distance is
/// smaller.
pub(super) fn spread(places: &[f64], gap: f64, within: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    let gaps = places.len().saturating_sub(1).max(1) as f64;
    let gap = gap.min((within.1 - within.0) / gaps);
    let mut at = vec![0.0; places.len()];
    let mut least = within.0;
    for n in &order {
        at[*n] = places[*n].max(least);
        least = at[*n] + gap;
    }
    let mut most = within.1;
    for n in order.iter().rev() {
        at[*n] = at[*n].min(most);
        most = at[*n] - gap;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_hold_the_values() {
        let scale = Scale::over([0.2, 0.62].into_iter(), false, (100.0, 0.0));
        let shown: Vec<String> = scale.ticks().iter().map(|t| scale.show(*t)).collect();
        assert_eq!(shown, ["0.0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!((scale.at(0.0), scale.at(0.8)), (100.0, 0.0));
        assert!((scale.at(0.4) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn what_hardly_differs_is_drawn_close() {
        // The axis is at least 0.1 long (a tenth of the largest value, 1), and is drawn with 100
        // units. So a difference of 0.001 is drawn with at most 1 unit.
        let scale = Scale::over([0.999, 1.0].into_iter(), false, (0.0, 100.0));
        let apart = scale.at(1.0) - scale.at(0.999);
        assert!(apart > 0.0 && apart <= 1.0, "{apart}");
        let erases = Scale::over([293.0, 298.0].into_iter(), false, (0.0, 100.0));
        assert_eq!(erases.show(295.0), "295");
    }

    #[test]
    fn equal_values_and_none_have_places() {
        for values in [vec![], vec![0.0], vec![7.0, 7.0], vec![f64::NAN, -1.0]] {
            let scale = Scale::over(values.iter().copied(), false, (10.0, 0.0));
            assert!(scale.ticks().len() < 20, "{values:?}");
            assert!((0.0..=10.0).contains(&scale.at(3.0)), "{values:?}");
        }
        let scale = Scale::logarithmic([5.0].into_iter(), (0.0, 10.0));
        assert_eq!(scale.at(5.0), 0.0);
    }

    #[test]
    fn differences_are_equally_long_from_end_to_end() {
        let scale = Scale::from_end_to_end([5.0, 25.0, 15.0].into_iter(), (0.0, 10.0));
        assert_eq!(
            (scale.at(5.0), scale.at(10.0), scale.at(25.0)),
            (0.0, 2.5, 10.0)
        );
    }

    #[test]
    fn factors_are_equally_long_on_a_logarithmic_axis() {
        let scale = Scale::logarithmic([10.0, 1000.0].into_iter(), (0.0, 10.0));
        assert!((scale.at(100.0) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn numbers_are_short() {
        let shown: Vec<String> = [0.0, 0.5314, 12.44, 640.0, 999.7, 8200.0, 3.14e6, 2e9]
            .into_iter()
            .map(short)
            .collect();
        assert_eq!(
            shown,
            ["0", "0.531", "12.4", "640", "1k", "8.2k", "3.14M", "2G"]
        );
    }

    #[test]
    fn places_are_spread_as_little_as_it_takes() {
        // The positions 10 and 11 are closer than the distance of 5, so the second one is moved
        // to 15. The position 50 is not affected. The position 99 is moved into the range of 0
        // to 95.
        assert_eq!(
            spread(&[11.0, 50.0, 10.0, 99.0], 5.0, (0.0, 95.0)),
            [15.0, 50.0, 10.0, 95.0]
        );
        // The range from 0 to 20 has room for only three positions at the distance of 10. So the
        // five positions have a smaller distance of 5.
        let tight = spread(&[0.0; 5], 10.0, (0.0, 20.0));
        assert_eq!(tight, [0.0, 5.0, 10.0, 15.0, 20.0]);
    }
}
