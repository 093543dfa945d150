//! All schemes under all loads: what is done in a second, how long an answer takes, what an
//! operation asks of the flash, and what the paper's tree gains over each of the others.

use bimetal_rt::Rng;
use serde::Serialize;

use super::life::{Kind, LifeError, Lived, PerOperation, live};
use super::queue::{Served, serve};
use super::scheme::{Area, Scheme};
use super::setting::Setting;
use crate::experiment::parallel::{all_cores, run_all};

/// Loads beyond this, in operations a second, are those at which the paper gives its gain of
/// updates.
const PAST_PER_S: u64 = 900;

/// How much is run.
#[derive(Clone, Debug, Serialize)]
pub struct Extent {
    /// Which schemes.
    pub schemes: Vec<Scheme>,
    /// Which readings of the area.
    pub areas: Vec<Area>,
    /// Seeds 1 to this; figures are their medians.
    pub seeds: u64,
}

/// One scheme under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The reading of the area. The index as it is takes what it needs in both.
    pub area: Area,
    /// The kind of load.
    pub kind: Kind,
    /// The scheme.
    pub scheme: Scheme,
    /// The load.
    pub asked_per_s: u64,
    /// What the clients saw.
    pub served: Served,
}

/// What one operation of a kind of load came to under a scheme.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The reading of the area.
    pub area: Area,
    /// The kind of load.
    pub kind: Kind,
    /// The scheme.
    pub scheme: Scheme,
    /// On average over the operations.
    pub per_operation: PerOperation,
}

/// What the paper's tree gains over another scheme: 0.1 is 10 % more.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// The reading of the area.
    pub area: Area,
    /// The other.
    pub over: Scheme,
    /// Throughput of the mix at its highest load.
    pub mix: f64,
    /// Throughput of updates at the highest load.
    pub update: f64,
    /// Throughput of updates, averaged over the loads past 900/s.
    pub update_past: f64,
    /// The largest change of the mean response downwards at any load of the mix.
    pub mix_response: f64,
    /// The same of updates.
    pub update_response: f64,
    /// Throughput of searches at the highest load.
    pub search: f64,
    /// Mean response of searches there.
    pub search_response: f64,
    /// How much of the other's area was in use in the end. More than was set: it has grown.
    pub utilisation_over: f64,
}

/// All schemes under all loads.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What is the same for all.
    pub setting: Setting,
    /// How much was run.
    pub extent: Extent,
    /// A row for each reading, kind, scheme and load.
    pub rows: Vec<Row>,
    /// For each reading, kind and scheme.
    pub costs: Vec<Cost>,
}

/// A scheme in a reading of the area.
#[derive(Clone, Copy, Debug)]
struct Entrant {
    area: Area,
    scheme: Scheme,
}

/// Runs every scheme in every reading on every core, telling how many of how many lives are over.
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
            // Without an area of a fixed size there is one reading.
            if scheme.is_papers() || extent.areas.first() == Some(&area) {
                let seeds = 1..=extent.seeds;
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

/// The median of a figure.
fn median<T>(all: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(figure).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Comparison {
    /// One kind of load of the lives of one scheme, a life for each seed.
    fn add(&mut self, area: Area, kind: Kind, scheme: Scheme, lived: &[&Lived]) {
        for asked_per_s in kind.loads_per_s() {
            let serve_one = |(number, lived): (usize, &&Lived)| {
                let mut rng = Rng::labelled(number as u64 + 1, "thinking");
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
        let of = |figure: fn(&PerOperation) -> f64| median(lived, |l| figure(&l.per_operation));
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

    /// What was served in one reading, of one kind, under one scheme, by load.
    pub fn served(&self, area: Area, kind: Kind, scheme: Scheme) -> Vec<(u64, Served)> {
        let rows = self.rows.iter();
        let rows = rows.filter(|r| (r.area, r.kind, r.scheme) == (area, kind, scheme));
        rows.map(|r| (r.asked_per_s, r.served)).collect()
    }

    /// What an operation came to.
    pub fn cost(&self, area: Area, kind: Kind, scheme: Scheme) -> Option<&PerOperation> {
        let mut costs = self.costs.iter();
        let cost = costs.find(|c| (c.area, c.kind, c.scheme) == (area, kind, scheme));
        cost.map(|cost| &cost.per_operation)
    }

    /// What the paper's tree gains over the others that were run.
    pub fn gains(&self) -> Vec<Gain> {
        let mut gains = Vec::new();
        for &area in &self.extent.areas {
            let others = self.extent.schemes.iter().filter(|s| **s != Scheme::Chctr);
            gains.extend(others.filter_map(|&over| self.gain(area, over)));
        }
        gains
    }

    fn gain(&self, area: Area, over: Scheme) -> Option<Gain> {
        let changes = |kind, figure: fn(&Served) -> f64| -> Vec<(u64, f64)> {
            let ours = self.served(area, kind, Scheme::Chctr);
            let theirs = self.served(area, kind, over);
            let pairs = ours.iter().zip(&theirs);
            pairs
                .map(|((load, ours), (_, theirs))| (*load, figure(ours) / figure(theirs) - 1.0))
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
            seeds: 1,
        };
        let comparison = compare(&setting, &extent, |_, _| {}).unwrap();
        // Three kinds of eight loads, of four schemes, in two readings.
        assert_eq!(comparison.rows.len(), 3 * 8 * 4 * 2);
        for area in Area::ALL {
            let programs = |scheme| {
                let cost = comparison.cost(area, Kind::Update, scheme).unwrap();
                cost.programs
            };
            // A third of the updates programs a part of a page only; the rest is cleaning.
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
