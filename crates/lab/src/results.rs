//! Runs on disk: one file for each, named by what it depends on, so that an interrupted plan goes
//! on where it was, and a changed one runs only what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bimetal_rt::Rng;

use crate::cell::run;
use crate::failure::RunError;
use crate::outcome::Outcome;
use crate::plan::{Cell, Choice, Plan};
use crate::settings::{SCHEMA, run_id};
use crate::statistics::estimate;

/// Why a folder of results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of results holds something else.
    #[error("{}: {why}; remove it to have that run made again", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A run could not be made.
    #[error("{cell}: {source}")]
    Run {
        /// Its cell.
        cell: String,
        /// Why.
        source: RunError,
    },
    /// A plan without results.
    #[error("{}: {why}", path.display())]
    Nothing {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
}

/// A run that is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Job<'p> {
    /// Of this cell.
    pub cell: &'p Cell,
    /// With this seed.
    pub seed: u64,
}

/// The runs that a plan asks for, as far as can be said with these made: round by round, each cell
/// once in a round, in an order of its own. After the rounds that every cell has come those of the
/// cells whose intervals are not narrow enough yet, with their baselines, so that ratios have all
/// pairs; and none after a round of which a run is missing.
pub fn jobs<'p>(plan: &'p Plan, made: &[Outcome]) -> Vec<Job<'p>> {
    let mut all = Vec::new();
    for repeat in 0..plan.repeats {
        all.extend(round(plan, repeat, plan.cells.iter().collect()));
    }
    for repeat in plan.repeats..plan.repeats_max {
        let cells = match missing(&all, made).is_empty() {
            true => wide_cells(plan, made, repeat),
            false => Vec::new(),
        };
        if cells.is_empty() {
            break;
        }
        all.extend(round(plan, repeat, cells));
    }
    all
}

/// The jobs that are not among the runs made.
pub fn missing<'p>(all: &[Job<'p>], made: &[Outcome]) -> Vec<Job<'p>> {
    let made: BTreeSet<(u64, &Choice)> = made.iter().map(|run| (run.seed, &run.choice)).collect();
    let is_missing = |job: &&Job<'_>| !made.contains(&(job.seed, &job.cell.choice));
    all.iter().filter(is_missing).copied().collect()
}

/// One run of each of these cells.
fn round<'p>(plan: &Plan, repeat: u64, mut cells: Vec<&'p Cell>) -> Vec<Job<'p>> {
    let seed = plan.seed.wrapping_add(repeat);
    shuffle(&mut cells, seed);
    cells.into_iter().map(|cell| Job { cell, seed }).collect()
}

/// The cells whose intervals are not narrow enough by the runs of the rounds before `repeat`, and
/// the cells that they are compared with.
fn wide_cells<'p>(plan: &'p Plan, made: &[Outcome], repeat: u64) -> Vec<&'p Cell> {
    let mut values: BTreeMap<&Choice, Vec<f64>> = BTreeMap::new();
    for run in made {
        if run.seed.wrapping_sub(plan.seed) < repeat {
            let own = values.entry(&run.choice).or_default();
            own.push(run.measured.value);
        }
    }
    let mut asked: BTreeSet<Choice> = BTreeSet::new();
    for (choice, values) in values {
        if estimate(&values).is_some_and(|of| !of.is_within(plan.within)) {
            asked.extend(plan.baseline_of(choice));
            asked.insert(choice.clone());
        }
    }
    let cells = plan.cells.iter();
    cells.filter(|cell| asked.contains(&cell.choice)).collect()
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut rng = Rng::labelled(seed, "order of runs");
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

/// A folder of results.
pub struct Results {
    folder: PathBuf,
}

impl Results {
    /// The folder, made if it is not there, with the plan in it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(folder: &Path, plan: &Plan) -> Result<Results, ResultsError> {
        let runs = folder.join("runs");
        fs::create_dir_all(&runs).map_err(|source| io_error(&runs, source))?;
        let results = Results {
            folder: folder.to_owned(),
        };
        results.write("plan.toml", &plan.text)?;
        Ok(results)
    }

    /// A folder that is there, and its plan.
    ///
    /// # Errors
    /// When it has none.
    pub fn open(folder: &Path) -> Result<(Results, Plan), ResultsError> {
        let path = folder.join("plan.toml");
        let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        let plan = Plan::parse(&path, &text).map_err(|error| ResultsError::Nothing {
            path: folder.to_owned(),
            why: error.to_string(),
        })?;
        let results = Results {
            folder: folder.to_owned(),
        };
        Ok((results, plan))
    }

    /// The run of a job if it has been made.
    ///
    /// # Errors
    /// When its file cannot be read or holds something else.
    pub fn find(&self, job: &Job<'_>) -> Result<Option<Outcome>, ResultsError> {
        let path = self.path_of(job);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io_error(&path, source)),
        };
        let content = |why: String| ResultsError::Content {
            path: path.clone(),
            why,
        };
        let mut outcome: Outcome =
            serde_json::from_str(&text).map_err(|error| content(error.to_string()))?;
        if outcome.schema != SCHEMA || outcome.settings != job.cell.settings {
            return Err(content(
                "it is of other settings than its name says".to_owned(),
            ));
        }
        // The same settings may have had other names when the run was made.
        outcome.choice = job.cell.choice.clone();
        Ok(Some(outcome))
    }

    /// Makes the run of a job, and keeps it.
    ///
    /// # Errors
    /// When the run cannot be made, or not be written.
    pub fn make(&self, job: &Job<'_>) -> Result<Outcome, ResultsError> {
        let outcome = run(&job.cell.choice, &job.cell.settings, job.seed).map_err(|source| {
            ResultsError::Run {
                cell: name_of(&job.cell.choice),
                source,
            }
        })?;
        self.keep(job, &outcome)?;
        Ok(outcome)
    }

    /// Keeps what came of the run of a job.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep(&self, job: &Job<'_>, outcome: &Outcome) -> Result<(), ResultsError> {
        let text = serde_json::to_string_pretty(outcome).expect("an outcome is plain data");
        let path = self.path_of(job);
        // In one step, so that an interruption leaves a whole file or none.
        let begun = path.with_extension("part");
        fs::write(&begun, text).map_err(|source| io_error(&begun, source))?;
        fs::rename(&begun, &path).map_err(|source| io_error(&path, source))
    }

    /// All runs of the plan that have been made, in the plan's order.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn made(&self, plan: &Plan) -> Result<Vec<Outcome>, ResultsError> {
        let mut all = Vec::new();
        for cell in &plan.cells {
            for repeat in 0..plan.repeats_max {
                let seed = plan.seed.wrapping_add(repeat);
                all.extend(self.find(&Job { cell, seed })?);
            }
        }
        Ok(all)
    }

    /// The same, where there must be one.
    ///
    /// # Errors
    /// When there is none, or one cannot be read.
    pub fn outcomes(&self, plan: &Plan) -> Result<Vec<Outcome>, ResultsError> {
        let all = self.made(plan)?;
        if all.is_empty() {
            return Err(ResultsError::Nothing {
                path: self.folder.clone(),
                why: "no run of the plan has been made; `bimetal-lab run` makes them".to_owned(),
            });
        }
        Ok(all)
    }

    /// Writes a file into the folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, ResultsError> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(|source| io_error(&path, source))?;
        Ok(path)
    }

    fn path_of(&self, job: &Job<'_>) -> PathBuf {
        let id = run_id(&job.cell.settings, job.seed);
        self.folder.join("runs").join(format!("{id}.json"))
    }
}

fn io_error(path: &Path, source: io::Error) -> ResultsError {
    ResultsError::Io {
        path: path.to_owned(),
        source,
    }
}

/// A cell in words.
pub fn name_of(choice: &crate::plan::Choice) -> String {
    let words = crate::plan::AXES
        .iter()
        .filter_map(|axis| choice.get(*axis));
    words.cloned().collect::<Vec<_>>().join(" ")
}
