//! Items of the papers (tables, figures and printed claims) and what an experiment finds for them.
//!
//! An item is data: what the paper prints is typed in, with its place. An item without an
//! experiment states the reason, and is never left out.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cell::Cell;
use super::folder::{Missing, Runs};
use super::scope::Scope;
use super::verdict::Printed;

/// Kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A figure. Its identifier is `SOURCE.NUMBER`.
    Figure,
    /// A table. Its identifier is `SOURCE.tNUMBER`.
    Table,
    /// A claim with a value or a direction that belongs to no figure or table. Its identifier is
    /// `SOURCE.cNUMBER`.
    Claim,
}

/// Unit of a printed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Relative change: 0.1 is shown as +10 %.
    Change,
    /// Ratio: 2 is shown as x 2.
    Times,
    /// Share of a whole: 0.8 is shown as 80 %.
    Share,
    /// Events per second.
    PerSecond,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Seconds.
    Seconds,
    /// Millions of bytes.
    Megabytes,
    /// Millions of bytes per second.
    MegabytesPerSecond,
    /// A number of things.
    Count,
}

impl Unit {
    /// Returns the value without an effect; `None` if the unit is not that of an effect.
    pub fn neutral(self) -> Option<f64> {
        match self {
            Unit::Change => Some(0.0),
            Unit::Times => Some(1.0),
            _ => None,
        }
    }

    /// Formats a value.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Change => format!("{:+.1} %", value * 100.0),
            Unit::Share => format!("{:.1} %", value * 100.0),
            Unit::Times => format!("x {}", digits(value)),
            Unit::PerSecond => format!("{}/s", digits(value)),
            Unit::Milliseconds => format!("{} ms", digits(value)),
            Unit::Microseconds => format!("{} us", digits(value)),
            Unit::Seconds => format!("{} s", digits(value)),
            Unit::Megabytes => format!("{} MB", digits(value)),
            Unit::MegabytesPerSecond => format!("{} MB/s", digits(value)),
            Unit::Count => digits(value),
        }
    }

    /// Formats what a paper prints.
    pub fn show_printed(self, printed: Printed) -> String {
        match printed {
            Printed::Value(value) => self.show(value),
            Printed::Between(low, high) => format!("{} to {}", self.show(low), self.show(high)),
            Printed::AtLeast(low) => format!("at least {}", self.show(low)),
            Printed::AtMost(high) => format!("at most {}", self.show(high)),
            Printed::Above => "more, no number".to_owned(),
            Printed::Below => "less, no number".to_owned(),
        }
    }
}

/// Formats a number with three digits, or as a whole number if it has more.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 99.95 => format!("{value:.0}"),
        middle if middle >= 9.995 => format!("{value:.1}"),
        small if small >= 0.1 || small == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A value or a direction that a paper prints.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Name of our value in [`Reading::values`].
    pub key: &'static str,
    /// The quantity, in words.
    pub what: &'static str,
    /// What the paper prints about it.
    pub printed: Printed,
    /// Unit of the quantity.
    pub unit: Unit,
}

/// Returns an item of a figure that is a diagram, and so has nothing to compare.
pub const fn diagram(id: &'static str, title: &'static str, place: &'static str) -> Item {
    Item {
        id,
        kind: Kind::Figure,
        title,
        place,
        form: "diagram",
        claims: &[],
        note: "",
        source: Source::Nothing("The figure is a diagram."),
    }
}

/// Returns a claim.
pub const fn claim(key: &'static str, what: &'static str, printed: Printed, unit: Unit) -> Claim {
    Claim {
        key,
        what,
        printed,
        unit,
    }
}

/// How our values of an item are made.
#[derive(Clone, Copy)]
pub enum Source {
    /// An experiment that runs.
    Run(Experiment),
    /// No run, for this reason: a sentence.
    NotRun(&'static str),
    /// A picture or a definition, which has nothing to run: a sentence that says what it shows.
    Nothing(&'static str),
}

/// An experiment: the runs that it needs, and what it finds in their outcomes.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Returns the runs.
    pub cells: fn(&Scope) -> Vec<Cell>,
    /// Computes our values.
    pub find: fn(&Scope, &Runs) -> Result<Found, Missing>,
    /// The command that runs the same experiment by itself.
    pub command: &'static str,
}

/// An item of a paper.
#[derive(Clone, Copy)]
pub struct Item {
    /// Identifier, such as `1.7`.
    pub id: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Title, in words of this project.
    pub title: &'static str,
    /// Place in the paper.
    pub place: &'static str,
    /// Form in which the paper shows the item.
    pub form: &'static str,
    /// What the paper prints.
    pub claims: &'static [Claim],
    /// Known cause of a difference, or what the reader has to know about the comparison; one or two
    /// sentences, or empty.
    pub note: &'static str,
    /// How our values are made.
    pub source: Source,
}

impl Item {
    /// Returns the number of the paper.
    pub fn source_number(&self) -> u8 {
        let number = self.id.split('.').next();
        number.and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Our values of an item under one reading of what the paper leaves open.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reading {
    /// The reading, in words.
    pub name: String,
    /// Values by the key of the claim, one for each seed.
    pub values: BTreeMap<String, Vec<f64>>,
    /// Whether no seed changes the values.
    pub is_exact: bool,
}

impl Reading {
    /// Creates a reading without values.
    pub fn new(name: impl Into<String>) -> Reading {
        Reading {
            name: name.into(),
            ..Reading::default()
        }
    }

    /// Adds the value of one seed.
    pub fn push(&mut self, key: &str, value: f64) {
        self.values.entry(key.to_owned()).or_default().push(value);
    }
}

/// A line of a drawing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Name.
    pub name: String,
    /// Number of its colour; the same scheme has the same number in all drawings of a source.
    pub style: usize,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A value that a bar shows, with the lower and the upper end of its range over the seeds.
pub type BarValue = (f64, f64, f64);

/// Our values in the form of the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum Drawing {
    /// Lines over a quantity.
    Lines {
        /// What the drawing shows.
        title: String,
        /// Quantity along the horizontal axis, with its unit.
        x: String,
        /// Quantity along the vertical axis, with its unit.
        y: String,
        /// The lines.
        lines: Vec<Line>,
    },
    /// Groups of bars.
    Bars {
        /// What the drawing shows.
        title: String,
        /// Quantity along the vertical axis, with its unit.
        y: String,
        /// Names of the groups.
        groups: Vec<String>,
        /// Names of the bars of a group.
        names: Vec<String>,
        /// Values by group and bar; `None` for a bar without runs.
        values: Vec<Vec<Option<BarValue>>>,
    },
    /// Horizontal bars of one or several parts.
    Rows {
        /// What the drawing shows.
        title: String,
        /// Measured quantity, with its unit.
        label: String,
        /// Names of the parts.
        parts: Vec<String>,
        /// Names of the bars, and the lengths of their parts.
        rows: Vec<(String, Vec<f64>)>,
    },
    /// Values above and below a line, one for each event in the order of the events.
    Spikes {
        /// What the drawing shows.
        title: String,
        /// Quantity along the horizontal axis.
        x: String,
        /// Quantity along the vertical axis, with its unit.
        y: String,
        /// Values.
        values: Vec<f64>,
    },
    /// A table.
    Table {
        /// What the table shows.
        title: String,
        /// Headings.
        head: Vec<String>,
        /// Rows.
        rows: Vec<Vec<String>>,
    },
}

/// What an experiment finds for an item.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Found {
    /// The conditions of our runs, in a sentence.
    pub conditions: String,
    /// The readings. The first one was chosen for a stated reason, not by its result, and decides
    /// the verdict.
    pub readings: Vec<Reading>,
    /// Our values in the form of the paper.
    pub drawings: Vec<Drawing>,
}

/// Returns the mean of the values with the least and the largest of them, for a bar; `None` without
/// values.
pub fn bar(values: &[f64]) -> Option<BarValue> {
    let count = values.len();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (count > 0).then(|| (values.iter().sum::<f64>() / count as f64, least, most))
}

/// Returns the mean over the seeds of each point of a curve. `curves` has a curve for each seed,
/// all with the same horizontal values.
pub fn mean_curve(curves: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let Some(first) = curves.first() else {
        return Vec::new();
    };
    let mean = |at: usize| {
        let values: Vec<f64> = curves
            .iter()
            .filter_map(|curve| Some(curve.get(at)?.1))
            .collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    let points = first.iter().enumerate();
    points.map(|(at, (x, _))| (*x, mean(at))).collect()
}
