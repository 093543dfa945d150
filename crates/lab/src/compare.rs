//! Comparison of two folders of results, cell by cell, with rules for the changes that are not
//! allowed in the second folder.
//!
//! A rule is the name of a metric, `<` or `>`, and a change in percent: `value<-5%` fails if the
//! main metric is lower by more than 5 %. For the main metric, a rule fails only if the change also
//! exceeds the noise: the confidence intervals of both medians must not overlap.

use std::str::FromStr;

use crate::report::{CellSummary, Summary};

/// A change of a metric that is not allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    figure: String,
    is_below: bool,
    percent: f64,
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let expected = "expected a figure, < or >, and a percentage, such as \"value<-5%\"";
        let at = text.find(['<', '>']).ok_or(expected)?;
        let (figure, rest) = text.split_at(at);
        let number = rest[1..].trim().strip_suffix('%').ok_or(expected)?;
        let percent: f64 = number.trim().parse().map_err(|_| expected)?;
        let figure = figure.trim();
        if figure.is_empty() || !percent.is_finite() {
            return Err(expected.to_owned());
        }
        Ok(Rule {
            figure: figure.to_owned(),
            is_below: rest.starts_with('<'),
            percent,
        })
    }
}

/// Comparison of one metric of a cell that both folders contain.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Name of the cell, which consists of its choices.
    pub cell: String,
    /// Name of the metric.
    pub figure: String,
    /// Median in the first folder.
    pub before: f64,
    /// Median in the second folder.
    pub after: f64,
    /// Change from the first to the second median, in percent.
    pub percent: f64,
    /// Whether the change exceeds the noise.
    pub is_beyond_noise: bool,
    /// Whether a rule forbids the change.
    pub fails: bool,
}

/// Compares the cells that both folders contain, in the order of the first folder. Compares the
/// main metric and every metric that a rule names.
///
/// # Errors
/// Returns a message if the folders have no cell in common, or if a rule names a metric that no
/// common cell has.
pub fn compare(a: &Summary, b: &Summary, rules: &[Rule]) -> Result<Vec<Compared>, String> {
    let mut figures = vec!["value".to_owned()];
    for rule in rules {
        if !figures.contains(&rule.figure) {
            figures.push(rule.figure.clone());
        }
    }
    let mut all = Vec::new();
    for before in &a.cells {
        let Some(after) = b.cells.iter().find(|cell| cell.choice == before.choice) else {
            continue;
        };
        for figure in &figures {
            all.extend(compared(before, after, figure, rules));
        }
    }
    if all.is_empty() {
        return Err("the two folders have no cell in common".to_owned());
    }
    let unknown = figures
        .iter()
        .find(|figure| !all.iter().any(|of| of.figure == **figure));
    match unknown {
        Some(figure) => Err(format!(
            "unknown figure `{figure}`, expected value, bios, issued, flushes, seeks or a figure \
            of the load"
        )),
        None => Ok(all),
    }
}

fn compared(
    before: &CellSummary,
    after: &CellSummary,
    figure: &str,
    rules: &[Rule],
) -> Option<Compared> {
    let (was, is) = (value_of(before, figure)?, value_of(after, figure)?);
    if was == 0.0 && is != 0.0 {
        return None;
    }
    let percent = if was == is {
        0.0
    } else {
        (is / was - 1.0) * 100.0
    };
    let (old, new) = (&before.value, &after.value);
    let is_beyond_noise = match figure {
        "value" => new.high < old.low || new.low > old.high,
        // A summary has a confidence interval only for the main metric. For another metric, every
        // change is treated as larger than the noise.
        _ => was != is,
    };
    let is_forbidden = |rule: &Rule| {
        rule.figure == figure
            && match rule.is_below {
                true => percent < rule.percent,
                false => percent > rule.percent,
            }
    };
    Some(Compared {
        cell: crate::results::name_of(&before.choice),
        figure: figure.to_owned(),
        before: was,
        after: is,
        percent,
        is_beyond_noise,
        fails: is_beyond_noise && rules.iter().any(is_forbidden),
    })
}

/// Returns a metric of a cell by its name.
fn value_of(cell: &CellSummary, figure: &str) -> Option<f64> {
    Some(match figure {
        "value" => cell.value.median,
        "bios" => (cell.reads.bios + cell.writes.bios) as f64,
        "issued" => (cell.reads.issued + cell.writes.issued) as f64,
        "flushes" => cell.flushes as f64,
        "seeks" => cell.seeks as f64,
        other => *cell.figures.get(other)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Direction;
    use crate::statistics::Estimate;
    use std::collections::BTreeMap;

    fn summary(median: f64, low: f64, high: f64, bios: u64) -> Summary {
        let cell = CellSummary {
            choice: [("device".to_owned(), "ssd".to_owned())].into(),
            runs: 5,
            unit: "x/s".to_owned(),
            value: Estimate { median, low, high },
            is_narrow: true,
            values: Vec::new(),
            ratio: None,
            figures: BTreeMap::new(),
            curves: BTreeMap::new(),
            reads: Direction {
                bios,
                ..Direction::default()
            },
            writes: Direction::default(),
            flushes: 0,
            seeks: 0,
            elapsed_ns: 0,
            latency: None,
            cpu_ns_per_request: None,
            lateness: None,
        };
        Summary {
            schema: 1,
            name: String::new(),
            id: String::new(),
            backend: crate::device::Backend::Virtual,
            kernel: None,
            runs: (5, 5),
            axes: BTreeMap::new(),
            baseline: BTreeMap::new(),
            cells: vec![cell],
            checks: Vec::new(),
        }
    }

    #[test]
    fn rules_are_read_or_refused() {
        let rule: Rule = "value<-5%".parse().unwrap();
        assert_eq!(
            (rule.figure.as_str(), rule.is_below, rule.percent),
            ("value", true, -5.0)
        );
        assert!(!"issued > 10 %".parse::<Rule>().unwrap().is_below);
        for wrong in ["", "value", "value<5", "<5%", "value<x%", "value=5%"] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }

    /// A median drops from 100 (interval 95 to 105) to 90. With a new interval of 88 to 94, the
    /// drop exceeds the noise and fails the rule. With a new interval of 80 to 96, the drop is
    /// possibly noise.
    #[test]
    fn a_rule_fails_beyond_noise_only() {
        let rules = ["value<-5%".parse().unwrap()];
        let before = summary(100.0, 95.0, 105.0, 10);
        let fails = |after: &Summary| compare(&before, after, &rules).unwrap()[0].fails;
        assert!(fails(&summary(90.0, 88.0, 94.0, 10)));
        assert!(!fails(&summary(90.0, 80.0, 96.0, 10)));
        assert!(!fails(&summary(120.0, 118.0, 122.0, 10)));
        let more: Vec<Rule> = vec!["bios>5%".parse().unwrap()];
        let of = compare(&before, &summary(100.0, 95.0, 105.0, 11), &more).unwrap();
        assert_eq!(of.iter().filter(|of| of.fails).count(), 1);
        assert!(compare(&before, &before, &["nothing<1%".parse().unwrap()]).is_err());
    }
}
