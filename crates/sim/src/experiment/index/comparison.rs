//! Comparison of all index schemes under all loads: throughput, response time, flash operations per
//! operation of the index, and the gains of the paper's tree over each of the other schemes.

use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

use super::life::{Kind, LifeError, Lived, PerOperation, live};
use super::queue::{Served, serve};
use super::scheme::{Area, Scheme};
use super::setting::Setting;
use crate::experiment::parallel::{all_cores, run_all};

/// The paper averages the gain of its tree for updates over the loads above this value, in
/// operations per second.
const PAST_PER_S: u64 = 900;

/// Schemes, area rules and seeds of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Extent {
    /// Schemes to compare.
    pub schemes: Vec<Scheme>,
    /// Rules that determine how much flash a scheme gets. The text of the paper allows either rule
    /// of [`Area::ALL`].
    pub areas: Vec<Area>,
    /// First seed.
    pub first_seed: u64,
    /// Number of seeds, counted from the first one; results are medians over the seeds.
    pub seeds: u64,
}

/// Result of one scheme under one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Rule for the amount of flash. The rule does not affect [`Scheme::Ours`], which uses the
    /// space that it needs.
    pub area: Area,
    /// Kind of operations.
    pub kind: Kind,
    /// The scheme.
    pub scheme: Scheme,
    /// Load, in operations per second.
    pub asked_per_s: u64,
    /// Throughput and response time that the clients received.
    pub served: Served,
}

/// Average cost of one operation, for one scheme and one kind of operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// Rule for the amount of flash.
    pub area: Area,
    /// Kind of operations.
    pub kind: Kind,
    /// The scheme.
    pub scheme: Scheme,
    /// Averages over the operations of the load.
    pub per_operation: PerOperation,
}

/// Differences between the paper's tree and another scheme, as fractions. A gain of 0.1 means that
/// the paper's tree has 10 % more throughput.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// Rule for the amount of flash.
    pub area: Area,
    /// Scheme with which the paper's tree is compared.
    pub over: Scheme,
    /// Gain in the throughput of mixed operations at the highest load.
    pub mix: f64,
    /// Gain in the throughput of updates at the highest load.
    pub update: f64,
    /// Gain in the throughput of updates, averaged over the loads above 900 operations per second.
    pub update_past: f64,
    /// Change of the mean response time of mixed operations, at the load with the largest
    /// improvement; negative means faster.
    pub mix_response: f64,
    /// Change of the mean response time of updates, at the load with the largest improvement;
    /// negative means faster.
    pub update_response: f64,
    /// Gain in the throughput of searches at the highest load.
    pub search: f64,
    /// Change of the mean response time of searches at the highest load; negative means faster.
    pub search_response: f64,
    /// Utilisation of the area of the compared scheme after the updates. A value above
    /// [`Setting::utilisation`] means that the tree of this scheme has grown.
    pub utilisation_over: f64,
}

/// Results of all schemes under all loads.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Parameters that are the same for all schemes.
    pub setting: Setting,
    /// Schemes, area rules and seeds.
    pub extent: Extent,
    /// One row for each area rule, kind of load, scheme and load.
    pub rows: Vec<Row>,
    /// One cost for each area rule, kind of load and scheme.
    pub costs: Vec<Cost>,
}

/// A scheme with a rule for its amount of flash.
#[derive(Clone, Copy, Debug)]
struct Entrant {
    area: Area,
    scheme: Scheme,
}

/// Runs every scheme with every area rule, on all cores. A life is the run of one scheme with one
/// area rule and one seed. After each life, calls `progress` with the number of finished lives and
/// the total number of lives.
///
/// # Errors
/// [`LifeError`].
pub fn compare(
    setting: &Setting,
    extent: &Extent,
    progress: impl Fn(u64, u64) + Sync,
) -> Result<Comparison, LifeError> {
    let mut jobs = Vec::new();
    for &area in &extent.areas {
        for &scheme in &extent.schemes {
            // The area rule does not affect a scheme whose area has no fixed size, so such a scheme
            // runs only with the first rule.
            if scheme.is_papers() || extent.areas.first() == Some(&area) {
                let seeds = 0..extent.seeds;
                let seeds = seeds.map(|seed| extent.first_seed + seed);
                jobs.extend(seeds.map(|seed| (Entrant { area, scheme }, seed)));
            }
        }
    }
    let run = |(entrant, seed): &(Entrant, u64)| live(entrant.scheme, entrant.area, setting, *seed);
    let lives = run_all(&jobs, all_cores(), run, progress)?;
    let mut comparison = Comparison {
        setting: setting.clone(),
        extent: extent.clone(),
        rows: Vec::new(),
        costs: Vec::new(),
    };
    let seeds = extent.seeds as usize;
    for &area in &extent.areas {
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            for &scheme in &extent.schemes {
                let is_meant = |job: &(Entrant, u64)| {
                    job.0.scheme == scheme && (job.0.area == area || !scheme.is_papers())
                };
                let first = jobs
                    .iter()
                    .position(is_meant)
                    .expect("every scheme has lived");
                let lives = &lives[first..first + seeds];
                let lived: Vec<&Lived> = lives.iter().map(|life| &life[number]).collect();
                comparison.add(area, kind, scheme, &lived);
            }
        }
    }
    Ok(comparison)
}

/// Returns the median of a statistic over all elements.
fn median<T>(all: &[T], statistic: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(statistic).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Comparison {
    /// Adds the results of one scheme for one kind of load. `lived` has the result of each seed.
    fn add(&mut self, area: Area, kind: Kind, scheme: Scheme, lived: &[&Lived]) {
        for asked_per_s in kind.loads_per_s() {
            let serve_one = |(number, lived): (usize, &&Lived)| {
                let seed = self.extent.first_seed + number as u64;
                let mut rng = Rng::labelled(seed, "thinking");
                serve(
                    &lived.service_us,
                    self.setting.clients,
                    asked_per_s,
                    &mut rng,
                )
            };
            let served: Vec<Served> = lived.iter().enumerate().map(serve_one).collect();
            self.rows.push(Row {
                area,
                kind,
                scheme,
                asked_per_s,
                served: Served {
                    done_per_s: median(&served, |s| s.done_per_s),
                    mean_ms: median(&served, |s| s.mean_ms),
                },
            });
        }
        let of =
            |statistic: fn(&PerOperation) -> f64| median(lived, |l| statistic(&l.per_operation));
        self.costs.push(Cost {
            area,
            kind,
            scheme,
            per_operation: PerOperation {
                reads: of(|p| p.reads),
                programs: of(|p| p.programs),
                erases: of(|p| p.erases),
                service_us: of(|p| p.service_us),
                splits: of(|p| p.splits),
                utilisation: of(|p| p.utilisation),
                area_share: of(|p| p.area_share),
                hot_share: of(|p| p.hot_share),
                keys_per_node: of(|p| p.keys_per_node),
            },
        });
    }

    /// Returns one entry for each load. An entry consists of the load in operations per second, and
    /// of the throughput and response time that the clients received from the scheme under this
    /// area rule and this kind of load.
    pub fn served(&self, area: Area, kind: Kind, scheme: Scheme) -> Vec<(u64, Served)> {
        let rows = self.rows.iter();
        let rows = rows.filter(|r| (r.area, r.kind, r.scheme) == (area, kind, scheme));
        rows.map(|r| (r.asked_per_s, r.served)).collect()
    }

    /// Returns the average cost of an operation, if the scheme was run with this area rule.
    pub fn cost(&self, area: Area, kind: Kind, scheme: Scheme) -> Option<&PerOperation> {
        let mut costs = self.costs.iter();
        let cost = costs.find(|c| (c.area, c.kind, c.scheme) == (area, kind, scheme));
        cost.map(|cost| &cost.per_operation)
    }

    /// Returns, for every other scheme that was run, the gain of the paper's tree over that scheme.
    pub fn gains(&self) -> Vec<Gain> {
        let mut gains = Vec::new();
        for &area in &self.extent.areas {
            let others = self.extent.schemes.iter().filter(|s| **s != Scheme::Chctr);
            gains.extend(others.filter_map(|&over| self.gain(area, over)));
        }
        gains
    }

    fn gain(&self, area: Area, over: Scheme) -> Option<Gain> {
        let changes = |kind, statistic: fn(&Served) -> f64| -> Vec<(u64, f64)> {
            let ours = self.served(area, kind, Scheme::Chctr);
            let theirs = self.served(area, kind, over);
            let pairs = ours.iter().zip(&theirs);
            pairs
                .map(|((load, ours), (_, theirs))| {
                    (*load, statistic(ours) / statistic(theirs) - 1.0)
                })
                .collect()
        };
        let last = |changes: &[(u64, f64)]| changes.last().map(|(_, change)| *change);
        let least = |changes: &[(u64, f64)]| {
            let changes = changes.iter().map(|(_, change)| *change);
            changes.fold(f64::MAX, f64::min)
        };
        let done = |served: &Served| served.done_per_s;
        let response = |served: &Served| served.mean_ms;
        let updates = changes(Kind::Update, done);
        let past: Vec<f64> = updates
            .iter()
            .filter(|(load, _)| *load > PAST_PER_S)
            .map(|(_, change)| *change)
            .collect();
        Some(Gain {
            area,
            over,
            mix: last(&changes(Kind::Mix, done))?,
            update: last(&updates)?,
            update_past: past.iter().sum::<f64>() / past.len() as f64,
            mix_response: least(&changes(Kind::Mix, response)),
            update_response: least(&changes(Kind::Update, response)),
            search: last(&changes(Kind::Search, done))?,
            search_response: last(&changes(Kind::Search, response))?,
            utilisation_over: self.cost(area, Kind::Update, over)?.utilisation,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_cold_nodes_make_updates_cheaper_than_in_a_tree_without_them() {
        let setting = Setting {
            keys: 100_000,
            warm_up: 6_000,
            operations: 4_000,
            ..Setting::default()
        };
        let extent = Extent {
            schemes: Scheme::ALL.to_vec(),
            areas: Area::ALL.to_vec(),
            first_seed: 1,
            seeds: 1,
        };
        let comparison = compare(&setting, &extent, |_, _| {}).unwrap();
        // There is one row for each combination of three kinds of load, eight loads, four schemes
        // and two area rules.
        assert_eq!(comparison.rows.len(), 3 * 8 * 4 * 2);
        for area in Area::ALL {
            let programs = |scheme| {
                let cost = comparison.cost(area, Kind::Update, scheme).unwrap();
                cost.programs
            };
            // In a third of its updates, the paper's tree programs only a part of a page. The rest
            // of its advantage over the ordinary B+-tree comes from cleaning.
            assert!(
                programs(Scheme::Chctr) < programs(Scheme::BtrN) * 0.9,
                "{area:?}"
            );
            let gain = comparison.gain(area, Scheme::BtrN).unwrap();
            assert!(gain.update > 0.0 && gain.update_response < 0.0, "{gain:?}");
            let served = comparison.served(area, Kind::Mix, Scheme::BtrN);
            assert!(
                served
                    .iter()
                    .all(|(load, s)| s.done_per_s < *load as f64 * 1.05)
            );
        }
        let ours = |area| comparison.served(area, Kind::Mix, Scheme::Ours);
        assert_eq!(ours(Area::Same), ours(Area::Own), "it has one reading");
    }
}
