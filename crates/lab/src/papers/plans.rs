//! Cells of plans of `bimetal-lab run`, and the values of their outcomes.

use std::path::Path;

use super::cell::{Cell, Raw};
use super::folder::{Missing, Runs};
use super::scope::{Scale, Scope};
use crate::outcome::Outcome;
use crate::plan::{Choice, Plan};

/// A plan of the repository.
#[derive(Clone, Copy, Debug)]
pub struct PlanText {
    /// Name of its file.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
    /// Changes of the text for the small scale: what is replaced, and by what.
    pub small: &'static [(&'static str, &'static str)],
}

/// Change of a plan whose files, transactions and memory are scaled down at the small scale.
pub const SCALED_DOWN: &[(&str, &str)] = &[("\nseed = 1\n", "\nseed = 1\nscale = 0.004\n")];

impl PlanText {
    /// Returns the text at a scale.
    pub fn at(&self, scale: Scale) -> String {
        let changes = match scale {
            Scale::Small => self.small,
            Scale::Default | Scale::Full => &[],
        };
        let change = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        changes.iter().fold(self.text.to_owned(), change)
    }
}

fn parsed(name: &str, text: &str) -> Plan {
    // The plans are part of the program, so a test finds their mistakes.
    let parsed = Plan::parse(Path::new(name), text);
    parsed.unwrap_or_else(|error| panic!("a plan of the papers: {error}"))
}

fn with_seeds(scope: &Scope, plan: &Plan, is_meant: impl Fn(&Choice) -> bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for seed in scope.seeds() {
        let meant = plan.cells.iter().filter(|cell| is_meant(&cell.choice));
        cells.extend(meant.map(|cell| Cell::Lab {
            choice: cell.choice.clone(),
            settings: Box::new(cell.settings.clone()),
            seed,
        }));
    }
    cells
}

/// Returns the cells of a plan whose choice is meant, for each seed. At the small scale, the plan
/// is scaled down.
pub fn cells(scope: &Scope, plan: &PlanText, is_meant: impl Fn(&Choice) -> bool) -> Vec<Cell> {
    with_seeds(scope, &parsed(plan.name, &plan.at(scope.scale)), is_meant)
}

/// Returns all cells of a plan that was made for the scale, for each seed.
pub fn unscaled_cells(scope: &Scope, name: &str, text: &str) -> Vec<Cell> {
    with_seeds(scope, &parsed(name, text), |_| true)
}

/// Returns true if the choice has all of these names on these axes.
pub fn has(choice: &Choice, wanted: &[(&str, &str)]) -> bool {
    let mut wanted = wanted.iter();
    wanted.all(|(axis, name)| choice.get(*axis).is_some_and(|of| of == name))
}

/// Returns a value of the outcome of each seed, for the only cell of a plan that has these choices.
///
/// # Errors
/// If a run is missing.
pub fn figures(
    scope: &Scope,
    runs: &Runs,
    plan: &PlanText,
    wanted: &[(&str, &str)],
    value: impl Fn(&Outcome) -> f64,
) -> Result<Vec<f64>, Missing> {
    let mut values = Vec::new();
    for cell in cells(scope, plan, |choice| has(choice, wanted)) {
        match runs.get(&cell)? {
            Raw::Lab(outcome) => values.push(value(outcome)),
            _ => return Err(Missing(cell.name())),
        }
    }
    Ok(values)
}
