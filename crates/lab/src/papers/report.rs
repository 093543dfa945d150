//! The report: each item with what the paper prints, what the runs give, and the verdict.

use std::collections::BTreeMap;

use serde::Serialize;

use super::folder::{Made, Missing, PlanFile, Runs};
use super::item::{Claim, Drawing, Found, Item, Kind, Reading, Source, Unit};
use super::scope::Scope;
use super::verdict::{Measured, Printed, Verdict, judge, worst};

/// Version of the format of a report.
const SCHEMA: u32 = 1;

/// Our value under one reading, compared with what the paper prints.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// The reading, in words.
    pub reading: String,
    /// Values of the seeds.
    pub values: Vec<f64>,
    /// Mean with its interval; `None` if there is no value.
    pub ours: Option<Measured>,
    /// Verdict.
    pub verdict: Verdict,
    /// Mean in words.
    pub shown: String,
    /// Interval in words; empty if it is unknown or has no length.
    pub interval: String,
}

/// A value that the paper prints, beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct ClaimReport {
    /// The quantity.
    pub what: String,
    /// Its unit.
    pub unit: Unit,
    /// What the paper prints.
    pub printed: Printed,
    /// What the paper prints, in words.
    pub shown: String,
    /// Ours under each reading; the first reading decides.
    pub ours: Vec<Compared>,
}

/// An item of the report.
#[derive(Clone, Debug, Serialize)]
pub struct ItemReport {
    /// Identifier.
    pub id: String,
    /// Number of the paper.
    pub source: u8,
    /// Kind.
    pub kind: Kind,
    /// Title.
    pub title: String,
    /// Place in the paper.
    pub place: String,
    /// Form in the paper.
    pub form: String,
    /// Verdict.
    pub verdict: Verdict,
    /// The reason of the verdict, in a sentence.
    pub why: String,
    /// What the reader has to know about the comparison.
    pub note: String,
    /// The command that makes the item again; empty without runs.
    pub command: String,
    /// The command that runs the same experiment by itself; empty without runs.
    pub experiment: String,
    /// Conditions of our runs.
    pub conditions: String,
    /// The printed values.
    pub claims: Vec<ClaimReport>,
    /// Our values in the form of the paper.
    pub drawings: Vec<Drawing>,
}

/// A report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of the format.
    pub schema: u32,
    /// The plan.
    pub plan: PlanFile,
    /// Number of runs.
    pub runs: usize,
    /// Builds and machines that made the runs. They affect no value.
    pub made: Vec<Made>,
    /// Number of items by verdict.
    pub counts: BTreeMap<Verdict, usize>,
    /// The items.
    pub items: Vec<ItemReport>,
}

/// Makes the report of the items from stored runs. `cells` is the number of runs of the plan.
pub fn report(
    scope: &Scope,
    items: &[&Item],
    plan: &PlanFile,
    (runs, cells): (&Runs, usize),
) -> Report {
    let items: Vec<ItemReport> = items
        .iter()
        .map(|item| item_report(scope, item, runs))
        .collect();
    let mut counts: BTreeMap<Verdict, usize> = Verdict::ALL.map(|of| (of, 0)).into();
    for item in &items {
        *counts.entry(item.verdict).or_default() += 1;
    }
    Report {
        schema: SCHEMA,
        plan: plan.clone(),
        runs: cells,
        made: runs.made.clone(),
        counts,
        items,
    }
}

fn item_report(scope: &Scope, item: &Item, runs: &Runs) -> ItemReport {
    let of_item = |found: Found, verdict: Verdict, claims: Vec<ClaimReport>, why: String| {
        let is_run = matches!(item.source, Source::Run(_));
        let command = format!(
            "bimetal-lab papers --only {} --scale {} --seed {}",
            item.id,
            scope.scale.name(),
            scope.first_seed
        );
        let experiment = match item.source {
            Source::Run(experiment) => experiment.command,
            _ => "",
        };
        ItemReport {
            id: item.id.to_owned(),
            source: item.source_number(),
            kind: item.kind,
            title: item.title.to_owned(),
            place: item.place.to_owned(),
            form: item.form.to_owned(),
            verdict,
            why,
            note: item.note.to_owned(),
            command: if is_run { command } else { String::new() },
            experiment: experiment.to_owned(),
            conditions: found.conditions,
            claims,
            drawings: found.drawings,
        }
    };
    let found = match item.source {
        Source::Nothing(what) => {
            return of_item(
                Found::default(),
                Verdict::NoValue,
                Vec::new(),
                what.to_owned(),
            );
        }
        Source::NotRun(why) => {
            let claims = claims(item, &[]);
            return of_item(Found::default(), Verdict::NotRun, claims, why.to_owned());
        }
        Source::Run(experiment) => (experiment.find)(scope, runs),
    };
    match found {
        Err(Missing(run)) => {
            let why = format!("A run is missing: {run}.");
            of_item(Found::default(), Verdict::NotRun, claims(item, &[]), why)
        }
        Ok(found) => {
            let claims = claims(item, &found.readings);
            let verdict = worst(
                claims
                    .iter()
                    .filter_map(|of| Some(of.ours.first()?.verdict)),
            );
            let why = reason(&claims);
            of_item(found, verdict, claims, why)
        }
    }
}

fn claims(item: &Item, readings: &[Reading]) -> Vec<ClaimReport> {
    let report = |claim: &Claim| ClaimReport {
        what: claim.what.to_owned(),
        unit: claim.unit,
        printed: claim.printed,
        shown: claim.unit.show_printed(claim.printed),
        ours: readings.iter().map(|of| compared(claim, of)).collect(),
    };
    item.claims.iter().map(report).collect()
}

fn compared(claim: &Claim, reading: &Reading) -> Compared {
    let values = reading.values.get(claim.key).cloned().unwrap_or_default();
    let ours = measured(claim.unit, &values, reading.is_exact);
    let verdict = match &ours {
        Some(ours) => judge(claim.printed, claim.unit.neutral(), ours),
        None => Verdict::NotReproduced,
    };
    let shown = match &ours {
        None => "no value".to_owned(),
        Some(ours) => claim.unit.show(ours.value),
    };
    let interval = match ours.as_ref().and_then(|of| of.interval) {
        Some((low, high)) if low < high => {
            let (low, high) = (claim.unit.show(low), claim.unit.show(high));
            format!("{low} to {high}")
        }
        _ => String::new(),
    };
    Compared {
        reading: reading.name.clone(),
        values,
        ours,
        verdict,
        shown,
        interval,
    }
}

/// Computes the mean and the interval of the values. For ratios, both are those of the logarithms,
/// since a ratio of 2 and one of 1/2 are equally far from 1.
fn measured(unit: Unit, values: &[f64], is_exact: bool) -> Option<Measured> {
    if unit != Unit::Times || values.iter().any(|value| *value <= 0.0) {
        return Measured::of(values, is_exact);
    }
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let of = Measured::of(&logs, is_exact)?;
    let ends = |(low, high): (f64, f64)| (low.exp(), high.exp());
    Some(Measured {
        value: of.value.exp(),
        interval: of.interval.map(ends),
    })
}

/// Returns the reason of a verdict: how many of the values have which verdict, and the first value
/// with the worst one.
fn reason(claims: &[ClaimReport]) -> String {
    let decided: Vec<(&ClaimReport, &Compared)> = claims
        .iter()
        .filter_map(|claim| Some((claim, claim.ours.first()?)))
        .collect();
    let Some((worst, ours)) = decided.iter().max_by_key(|(_, ours)| (ours.verdict, true)) else {
        return "The paper shows no number, so our values stand without a verdict.".to_owned();
    };
    let (worst, ours) = decided
        .iter()
        .find(|(_, of)| of.verdict == ours.verdict)
        .copied()
        .unwrap_or((worst, ours));
    let of = |verdict| {
        decided
            .iter()
            .filter(|(_, ours)| ours.verdict == verdict)
            .count()
    };
    let value = match &ours.ours {
        Some(measured) => worst.unit.show(measured.value),
        None => "without a value".to_owned(),
    };
    let pair = format!("{}: {value} here, {} in the paper", worst.what, worst.shown);
    if decided.len() == 1 {
        return match ours.verdict {
            Verdict::Reproduced => format!("It is within a factor of 1.25: {pair}."),
            Verdict::SignOnly if matches!(worst.printed, Printed::Above | Printed::Below) => {
                format!("The direction is the printed one: {pair}.")
            }
            Verdict::SignOnly => format!("The sign is the same, the size is not: {pair}."),
            _ => format!("Neither the size nor a certain sign is the same: {pair}."),
        };
    }
    if ours.verdict == Verdict::Reproduced {
        return format!(
            "All {} printed values are within a factor of 1.25.",
            decided.len()
        );
    }
    format!(
        "Of {} printed values: {} within a factor of 1.25, {} with the same sign only, {} with \
         neither. The first of the worst is {pair}.",
        decided.len(),
        of(Verdict::Reproduced),
        of(Verdict::SignOnly),
        of(Verdict::NotReproduced)
    )
}

/// Our values of each seed, by item, reading and quantity.
pub type Values = BTreeMap<String, BTreeMap<String, BTreeMap<String, Vec<f64>>>>;

impl Report {
    /// Returns our values only, which depend on nothing but the code, the scale and the seeds.
    pub fn values(&self) -> Values {
        let mut all = Values::new();
        for item in &self.items {
            for claim in &item.claims {
                for ours in &claim.ours {
                    let of_item = all.entry(item.id.clone()).or_default();
                    let of_reading = of_item.entry(ours.reading.clone()).or_default();
                    of_reading.insert(claim.what.clone(), ours.values.clone());
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::item::claim;

    const CLAIMS: &[Claim] = &[
        claim("a", "gain", Printed::Value(0.2), Unit::Change),
        claim("b", "peak", Printed::Value(100.0), Unit::PerSecond),
    ];

    fn item(claims: &'static [Claim]) -> Item {
        Item {
            id: "1.7",
            kind: Kind::Figure,
            title: "",
            place: "",
            form: "",
            claims,
            note: "",
            source: Source::NotRun("Never."),
        }
    }

    fn reading(gain: f64, peak: f64) -> Reading {
        let mut reading = Reading::new("read so");
        reading.is_exact = true;
        reading.push("a", gain);
        reading.push("b", peak);
        reading
    }

    /// A gain of +50 % where +20 % is printed has its sign only, and a peak of 110 is within 1.25
    /// of 100. The second reading, which would reproduce both, does not decide.
    #[test]
    fn the_first_reading_decides_and_the_reason_names_the_worst() {
        let readings = [reading(0.5, 110.0), reading(0.2, 100.0)];
        let of = claims(&item(CLAIMS), &readings);
        let verdicts: Vec<Verdict> = of.iter().map(|of| of.ours[0].verdict).collect();
        assert_eq!(verdicts, [Verdict::SignOnly, Verdict::Reproduced]);
        assert_eq!(of[0].ours[1].verdict, Verdict::Reproduced);
        let why = reason(&of);
        assert!(why.starts_with("Of 2 printed values: 1 within"), "{why}");
        assert!(
            why.contains("gain: +50.0 % here, +20.0 % in the paper"),
            "{why}"
        );
    }

    /// The geometric mean of 1 and 4 is 2. Their logarithms are 0 and 1.386, with a deviation of
    /// 0.980. The interval of the mean of 0.693 is 12.706 x 0.980 / 1.414 = 8.808 on either side:
    /// -8.115 to 9.501.
    #[test]
    fn the_mean_of_ratios_is_that_of_their_logarithms() {
        let of = measured(Unit::Times, &[1.0, 4.0], false).unwrap();
        let (low, high) = of.interval.unwrap();
        assert!((of.value - 2.0).abs() < 1e-12);
        assert!((low.ln() + 8.115).abs() < 1e-2, "{low}");
        assert!((high.ln() - 9.501).abs() < 1e-2, "{high}");
        let plain = measured(Unit::Change, &[1.0, 4.0], true).unwrap();
        assert_eq!(plain.value, 2.5);
    }

    #[test]
    fn a_value_that_an_experiment_does_not_give_is_not_reproduced() {
        let of = claims(&item(CLAIMS), &[Reading::new("empty")]);
        assert!(
            of.iter()
                .all(|of| of.ours[0].verdict == Verdict::NotReproduced)
        );
        assert_eq!(of[0].ours[0].shown, "no value");
        assert!(reason(&claims(&item(&CLAIMS[..1]), &[])).contains("no number"));
    }
}
