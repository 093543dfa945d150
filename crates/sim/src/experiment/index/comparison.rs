//! All schemes under all loads: throughput, response time, flash operations per operation, and the
//! gains of the paper's tree over each of the other schemes.

use bimetal_rt::Rng;
use serde::Serialize;

use super::life::{Kind, LifeError, Lived, PerOperation, live};
use super::queue::{Served, serve};
use super::scheme::{Area, Scheme};
use super::setting::Setting;
use crate::experiment::parallel::{all_cores, run_all};

/// Load, in operations per second, above which the paper gives its gain of updates.
const PAST_PER_S: u64 = 900;

/// Extent of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Extent {
    /// Schemes.
    pub schemes: Vec<Scheme>,
    /// Readings of the area.
    pub areas: Vec<Area>,
    /// Number of seeds, counted from 1; results are medians over the seeds.
    pub seeds: u64,
}

/// One scheme under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The reading of the area. The index as it is takes the space that it needs in both readings.
    pub area: Area,
    /// The kind of load.
    pub kind: Kind,
    /// The scheme.
    pub scheme: Scheme,
    /// Load, in operations per second.
    pub asked_per_s: u64,
    /// Service that the clients received.
    pub served: Served,
}

/// Cost of one operation in a kind of load under a scheme.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// The reading of the area.
    pub area: Area,
    /// The kind of load.
    pub kind: Kind,
    /// The scheme.
    pub scheme: Scheme,
    /// Averages over the operations.
    pub per_operation: PerOperation,
}

/// Gain of the paper's tree over another scheme: 0.1 means 10 % more.
#[derive(Clone, Debug, Serialize)]
pub struct Gain {
    /// The reading of the area.
    pub area: Area,
    /// The other scheme.
    pub over: Scheme,
    /// Throughput of the mix at its highest load.
    pub mix: f64,
    /// Throughput of updates at the highest load.
    pub update: f64,
    /// Throughput of updates, averaged over the loads past 900/s.
    pub update_past: f64,
    /// Change of the mean response time at the load of the mix at which it improves most; negative
    /// means faster.
    pub mix_response: f64,
    /// Change of the mean response time at the load of updates at which it improves most.
    pub update_response: f64,
    /// Throughput of searches at the highest load.
    pub search: f64,
    /// Change of the mean response time of searches at the highest load.
    pub search_response: f64,
    /// Share of the other scheme's area that was in use at the end. A value above the set one means
    /// that the tree has grown.
    pub utilisation_over: f64,
}

/// All schemes under all loads.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Parameters that are the same for all schemes.
    pub setting: Setting,
    /// Extent of the comparison.
    pub extent: Extent,
    /// A row for each reading, kind, scheme and load.
    pub rows: Vec<Row>,
    /// A cost for each reading, kind and scheme.
    pub costs: Vec<Cost>,
}

/// A scheme in a reading of the area.
#[derive(Clone, Copy, Debug)]
struct Entrant {
    area: Area,
    scheme: Scheme,
}

/// Runs every scheme in every reading, on every core. After each life, calls `progress` with the
/// number of finished lives and the number of all lives.
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
            // Without an area of a fixed size, a scheme has only one reading.
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

/// Returns the median of a value.
fn median<T>(all: &[T], statistic: impl Fn(&T) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(statistic).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Comparison {
    /// Adds one kind of load of the lives of one scheme, with one life for each seed.
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

    /// Returns the service that the clients received in one reading, kind and scheme, for each
    /// load.
    pub fn served(&self, area: Area, kind: Kind, scheme: Scheme) -> Vec<(u64, Served)> {
        let rows = self.rows.iter();
        let rows = rows.filter(|r| (r.area, r.kind, r.scheme) == (area, kind, scheme));
        rows.map(|r| (r.asked_per_s, r.served)).collect()
    }

    /// Returns the average cost of an operation.
    pub fn cost(&self, area: Area, kind: Kind, scheme: Scheme) -> Option<&PerOperation> {
        let mut costs = self.costs.iter();
        let cost = costs.find(|c| (c.area, c.kind, c.scheme) == (area, kind, scheme));
        cost.map(|cost| &cost.per_operation)
    }

    /// Returns the gains of the paper's tree over the other schemes that were run.
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
            seeds: 1,
        };
        let comparison = compare(&setting, &extent, |_, _| {}).unwrap();
        // Three kinds with eight loads each, of four schemes, in two readings.
        assert_eq!(comparison.rows.len(), 3 * 8 * 4 * 2);
        for area in Area::ALL {
            let programs = |scheme| {
                let cost = comparison.cost(area, Kind::Update, scheme).unwrap();
                cost.programs
            };
            // A third of the updates program only a part of a page; cleaning makes the rest of the
            // difference.
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
