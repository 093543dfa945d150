//! The life of one index under one scheme, and the flash operations that each operation of the
//! index causes. The index is loaded and aged by updates. Then it serves three loads: searches,
//! mixed operations, and updates.
//!
//! For the schemes of the paper, only the I/O of nodes is charged: pages read for operations and
//! cleaning, pages programmed with nodes, and one erase for each segment that is begun. The log,
//! superblocks and checkpoints of the engine are not charged, because the schemes of the paper do
//! not have them. For the index with its own rules, all flash operations are charged. A wrong
//! answer ends the experiment with an error.

use bimetal_index::storage::BLOCK_BYTES;
use bimetal_index::{Batch, Db, Durability, Error, Statistics};
use bimetal_rt::Rng;
use serde::{Deserialize, Serialize};

use super::flash::Flash;
use super::population::{Asked, Population};
use super::scheme::{Area, Scheme};
use super::setting::Setting;
use crate::cache::{Costs, Work};

/// Times of the operations of the paper's flash.
const COSTS: Costs = Costs {
    read_us: 16.0,
    program_us: 250.0,
    erase_us: 2000.0,
};
/// Number of keys loaded in one batch.
const LOAD_KEYS: usize = 5_000;
/// Identifier of the index. Each life has only one index, so a constant is sufficient.
const INDEX_ID: u64 = 1;

/// A kind of load, which determines the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Searches.
    Search,
    /// Half searches and half updates.
    Mix,
    /// Insertions and deletions.
    Update,
}

impl Kind {
    /// All kinds, in the order in which an index serves them.
    pub const ALL: [Kind; 3] = [Kind::Search, Kind::Mix, Kind::Update];

    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Search => "search",
            Kind::Mix => "mix",
            Kind::Update => "update",
        }
    }

    /// Returns the offered rates of requests, in operations per second, that the CHC-Tree paper
    /// uses for this kind of load.
    pub fn loads_per_s(self) -> impl Iterator<Item = u64> {
        let (first, last, step) = match self {
            Kind::Search => (1500, 5000, 500),
            Kind::Mix | Kind::Update => (300, 2400, 300),
        };
        (first..=last).step_by(step)
    }
}

/// Error of an experiment.
#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    /// The index returned an error.
    #[error("{scheme}: {source}")]
    Index {
        /// Name of the scheme.
        scheme: &'static str,
        /// Error of the index.
        source: Error,
    },
    /// The index returned a wrong answer, which is a bug of the index.
    #[error("{scheme}: the key {key} was not found as it was written")]
    Wrong {
        /// Name of the scheme.
        scheme: &'static str,
        /// Number of the key that was searched.
        key: u64,
    },
    /// The setting has too few keys for its number of operations.
    #[error("there are too few keys for so many operations")]
    TooFewKeys,
}

/// Averages over the operations of one kind of load, and the state of the index after the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOperation {
    /// Number of pages read.
    pub reads: f64,
    /// Number of pages programmed.
    pub programs: f64,
    /// Number of segments erased.
    pub erases: f64,
    /// Time of the charged flash operations, in microseconds.
    pub service_us: f64,
    /// Number of leaves that were split.
    pub splits: f64,
    /// After the load: live bytes divided by the size of the area. If the area has no fixed size,
    /// live bytes divided by the size of the segments in use.
    pub utilisation: f64,
    /// Number of segments with nodes after the load, divided by the fixed number of segments of the
    /// area; 0 for an area without a fixed size.
    pub area_share: f64,
    /// Among the segments that hold nodes, the fraction that belongs to the hot cluster.
    pub hot_share: f64,
    /// Average number of keys per node after the load.
    pub keys_per_node: f64,
}

/// Result of one kind of load in a life.
#[derive(Clone, Debug, PartialEq)]
pub struct Lived {
    /// Time of the flash operations of each index operation in microseconds, in the order of the
    /// operations.
    pub service_us: Vec<f64>,
    /// Averages over the operations.
    pub per_operation: PerOperation,
}

struct Life {
    scheme: Scheme,
    setting: Setting,
    db: Db,
    flash: Flash,
    population: Population,
    rng: Rng,
    area_segments: Option<u32>,
}

/// Runs a whole life of an index under one scheme, and returns the result of each kind of load.
///
/// # Errors
/// [`LifeError`].
pub fn live(
    scheme: Scheme,
    area: Area,
    setting: &Setting,
    seed: u64,
) -> Result<Vec<Lived>, LifeError> {
    let mut life = Life::load(scheme, area, setting, seed)?;
    for _ in 0..setting.warm_up {
        life.update()?;
    }
    Kind::ALL
        .map(|kind| life.go_through(kind))
        .into_iter()
        .collect()
}

impl Life {
    fn load(scheme: Scheme, area: Area, setting: &Setting, seed: u64) -> Result<Life, LifeError> {
        let failed = |source| LifeError::Index {
            scheme: scheme.name(),
            source,
        };
        let flash = Flash::new(setting.segment_bytes as usize);
        let population = Population::new(setting);
        let mut options = scheme.to_load(setting);
        let mut db = Db::create(flash.clone(), INDEX_ID, &options).map_err(failed)?;
        load(&db, &population).map_err(failed)?;
        if scheme.is_papers() {
            db.checkpoint().map_err(failed)?;
            options = scheme.to_run(setting, area, &db.statistics());
            drop(db);
            db = Db::open(flash.clone(), &options).map_err(failed)?;
        }
        Ok(Life {
            scheme,
            setting: setting.clone(),
            db,
            flash,
            population,
            rng: Rng::labelled(seed, "operations"),
            area_segments: Scheme::area_segments(&options),
        })
    }

    fn go_through(&mut self, kind: Kind) -> Result<Lived, LifeError> {
        let before = self.db.statistics();
        let mut sum = Work::default();
        let mut service_us = Vec::with_capacity(self.setting.operations as usize);
        for _ in 0..self.setting.operations {
            let is_search = match kind {
                Kind::Search => true,
                Kind::Mix => self.rng.chance(0.5),
                Kind::Update => false,
            };
            let work = if is_search {
                self.search()?
            } else {
                self.update()?
            };
            service_us.push(COSTS.time_us(work));
            sum += work;
        }
        let after = self.db.statistics();
        let per = |count: u64| count as f64 / self.setting.operations as f64;
        let space = after.space;
        let area = f64::from(self.area_segments.unwrap_or(space.used_segments));
        let used = f64::from(space.used_segments);
        Ok(Lived {
            per_operation: PerOperation {
                reads: per(sum.reads),
                programs: per(sum.programs),
                erases: per(sum.erases),
                service_us: COSTS.time_us(sum) / self.setting.operations as f64,
                splits: per(after.maintenance.splits - before.maintenance.splits),
                utilisation: space.live_bytes as f64 / (area * f64::from(space.segment_bytes)),
                area_share: self.area_segments.map_or(0.0, |_| used / area),
                hot_share: f64::from(space.hot_segments) / used,
                keys_per_node: self.setting.keys as f64 / f64::from(after.nodes),
            },
            service_us,
        })
    }

    fn search(&mut self) -> Result<Work, LifeError> {
        let asked = self.population.search(&mut self.rng);
        self.carry_out(asked.ok_or(LifeError::TooFewKeys)?)
    }

    fn update(&mut self) -> Result<Work, LifeError> {
        let asked = self.population.update(&mut self.rng);
        self.carry_out(asked.ok_or(LifeError::TooFewKeys)?)
    }

    /// Executes one operation, and returns the flash operations that are charged for it.
    fn carry_out(&self, asked: Asked) -> Result<Work, LifeError> {
        let failed = |source| LifeError::Index {
            scheme: self.scheme.name(),
            source,
        };
        let before = (self.db.statistics(), self.flash.work());
        match asked {
            Asked::Search(number) => {
                let found = self.db.get(&self.population.key(number)).map_err(failed)?;
                if found.as_deref() != Some(&self.population.value(number)) {
                    return Err(LifeError::Wrong {
                        scheme: self.scheme.name(),
                        key: number,
                    });
                }
            }
            Asked::Insert(number) => {
                let mut batch = Batch::new();
                batch.put(&self.population.key(number), &self.population.value(number));
                self.db.write(&batch, self.durability()).map_err(failed)?;
            }
            Asked::Delete(number) => {
                let mut batch = Batch::new();
                batch.delete(&self.population.key(number));
                self.db.write(&batch, self.durability()).map_err(failed)?;
            }
        }
        Ok(self.charged(&before.0, before.1))
    }

    /// Returns the durability with which changes are written. The trees of the paper have no log,
    /// so their changes are not written durably.
    fn durability(&self) -> Durability {
        if self.scheme.is_papers() {
            Durability::Relaxed
        } else {
            Durability::Durable
        }
    }

    fn charged(&self, before: &Statistics, work_before: Work) -> Work {
        let (now, work) = (self.db.statistics(), self.flash.work());
        let reads = work.reads - work_before.reads;
        if self.scheme.is_papers() {
            let bytes = now.segment_written_bytes - before.segment_written_bytes;
            return Work {
                reads,
                programs: bytes / BLOCK_BYTES as u64,
                erases: now.segments_begun - before.segments_begun,
            };
        }
        Work {
            reads,
            programs: work.programs - work_before.programs,
            erases: work.erases - work_before.erases,
        }
    }
}

fn load(db: &Db, population: &Population) -> Result<(), Error> {
    let numbers: Vec<u64> = population.loaded().collect();
    for some in numbers.chunks(LOAD_KEYS) {
        let mut batch = Batch::new();
        for number in some {
            batch.put(&population.key(*number), &population.value(*number));
        }
        db.write(&batch, Durability::Relaxed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Setting {
        Setting {
            keys: 60_000,
            warm_up: 3_000,
            operations: 2_000,
            ..Setting::default()
        }
    }

    fn life(scheme: Scheme) -> Life {
        Life::load(scheme, Area::Same, &small(), 1).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_life_and_another_one_another() {
        let lived = |seed| live(Scheme::Chctr, Area::Same, &small(), seed).unwrap();
        let first = lived(1);
        assert_eq!(first, lived(1));
        assert_ne!(first, lived(2));
    }

    #[test]
    fn a_search_of_a_plain_tree_reads_a_page_on_each_level_and_does_nothing_else() {
        // In the first tree, the 60,000 keys fill 345 leaves of 174 keys. A root can have at most
        // 336 children, so the first tree has three levels. In the second tree, the keys fill 246
        // leaves of 244 keys, so the second tree has two levels.
        for (scheme, levels) in [(Scheme::BtrN, 3), (Scheme::BtrF, 2)] {
            let mut life = life(scheme);
            let expected = Work {
                reads: levels,
                ..Work::default()
            };
            for _ in 0..100 {
                assert_eq!(life.search().unwrap(), expected, "{scheme:?}");
            }
        }
    }

    #[test]
    fn an_update_of_a_plain_tree_programs_its_leaf_and_more_only_to_cut_or_to_clean() {
        let mut life = life(Scheme::BtrN);
        let mut alone = 0;
        for _ in 0..500 {
            let before = life.db.statistics().maintenance;
            let work = life.update().unwrap();
            let maintenance = life.db.statistics().maintenance;
            assert!(work.reads >= 3 && work.programs >= 1);
            if (maintenance.splits, maintenance.moved_bytes) == (before.splits, before.moved_bytes)
            {
                assert_eq!((work.reads, work.programs), (3, 1));
                alone += 1;
            }
        }
        assert!(alone > 100, "{alone}");
    }

    #[test]
    fn what_is_charged_adds_up_to_what_the_flash_did() {
        for scheme in [Scheme::Chctr, Scheme::BtrN, Scheme::Ours] {
            let mut life = life(scheme);
            let (statistics, work) = (life.db.statistics(), life.flash.work());
            let mut charged = Work::default();
            for _ in 0..3_000 {
                charged += life.update().unwrap();
            }
            let (now, done) = (life.db.statistics(), life.flash.work());
            let programs = done.programs - work.programs;
            assert_eq!(charged.reads, done.reads - work.reads, "{scheme:?}");
            if scheme.is_papers() {
                // The programs of the device also include checkpoints, and the log, which is
                // written in whole pages. The charged programs include only nodes.
                let nodes = now.segment_written_bytes - statistics.segment_written_bytes;
                assert_eq!(charged.programs, nodes / BLOCK_BYTES as u64, "{scheme:?}");
                assert!(charged.programs <= programs, "{scheme:?}");
                assert!(
                    programs < charged.programs * 11 / 10,
                    "{scheme:?}: {programs}"
                );
            } else {
                // Each commit is durable and therefore writes at least one page of the log.
                assert_eq!(charged.programs, programs, "{scheme:?}");
                assert!(charged.programs >= 3_000, "{scheme:?}");
                assert_eq!(charged.erases, done.erases - work.erases, "{scheme:?}");
            }
        }
    }
}
