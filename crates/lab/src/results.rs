//! Stored results, with one file for each run. The name of the file is a hash of the run's settings
//! and seed. So an interrupted plan can be resumed, and after a change of the plan only the changed
//! runs are executed.

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

/// Error of a folder of results or of a run.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file of results has unexpected content.
    #[error("{}: {why}; remove it to repeat the run", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
    /// A run has failed.
    #[error("{cell}: {source}")]
    Run {
        /// Name of the cell.
        cell: String,
        /// Cause of the failure.
        source: RunError,
    },
    /// The folder contains no valid plan, or no results.
    #[error("{}: {why}", path.display())]
    Nothing {
        /// Path of the folder.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
}

/// A run of a cell, identified by its seed.
#[derive(Clone, Copy, Debug)]
pub struct Job<'p> {
    /// Cell of the run.
    pub cell: &'p Cell,
    /// Seed of the run.
    pub seed: u64,
}

/// Returns the runs that a plan requires, as far as the completed runs in `made` determine them.
/// Runs are grouped in rounds, and a round has one run of each of its cells, in its own random
/// order. The first `repeats` rounds contain all cells. A later round contains the cells whose
/// intervals are not narrow enough yet, and the baseline cells with which these cells are compared,
/// so that ratios have complete pairs. A later round is added only when no run of an earlier round
/// is missing.
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

/// Returns the jobs that have no completed run in `made`.
pub fn missing<'p>(all: &[Job<'p>], made: &[Outcome]) -> Vec<Job<'p>> {
    let made: BTreeSet<(u64, &Choice)> = made.iter().map(|run| (run.seed, &run.choice)).collect();
    let is_missing = |job: &&Job<'_>| !made.contains(&(job.seed, &job.cell.choice));
    all.iter().filter(is_missing).copied().collect()
}

/// Returns one run of each of `cells`, in a random order that depends on `repeat`, the number of
/// the round.
fn round<'p>(plan: &Plan, repeat: u64, mut cells: Vec<&'p Cell>) -> Vec<Job<'p>> {
    let seed = plan.seed.wrapping_add(repeat);
    shuffle(&mut cells, seed);
    cells.into_iter().map(|cell| Job { cell, seed }).collect()
}

/// Returns the cells that need another run: the cells whose intervals are not narrow enough after
/// the first `repeat` rounds, and the baseline cells with which these cells are compared.
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

/// Folder with the results of a plan.
pub struct Results {
    folder: PathBuf,
}

impl Results {
    /// Creates the folder if it does not exist, and writes the plan into it.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(folder: &Path, plan: &Plan) -> Result<Results, ResultsError> {
        let runs = folder.join("runs");
        fs::create_dir_all(&runs).map_err(|source| io_error(&runs, source))?;
        let results = Results {
            folder: folder.to_owned(),
        };
        results.write("plan.toml", &plan.text)?;
        Ok(results)
    }

    /// Opens an existing folder, and reads its plan.
    ///
    /// # Errors
    /// If the folder has no valid plan.
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

    /// Returns the stored outcome of a job; `None` if the run has not been made.
    ///
    /// # Errors
    /// If the file of the run cannot be read, or has unexpected content.
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
                "its settings differ from those in its name".to_owned(),
            ));
        }
        // When the run was made, the plan possibly had other names for the same settings. Use the
        // present names.
        outcome.choice = job.cell.choice.clone();
        Ok(Some(outcome))
    }

    /// Executes the run of a job in virtual time, and stores its outcome.
    ///
    /// # Errors
    /// If the run fails, or its outcome cannot be written.
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

    /// Stores the outcome of a job.
    ///
    /// # Errors
    /// If the outcome cannot be written.
    pub fn keep(&self, job: &Job<'_>, outcome: &Outcome) -> Result<(), ResultsError> {
        let text = serde_json::to_string_pretty(outcome).expect("an outcome is plain data");
        let path = self.path_of(job);
        // Create the file atomically, so that an interruption leaves either the complete file or no
        // file.
        let begun = path.with_extension("part");
        fs::write(&begun, text).map_err(|source| io_error(&begun, source))?;
        fs::rename(&begun, &path).map_err(|source| io_error(&path, source))
    }

    /// Returns the outcomes of all runs of the plan that have been made, in the order of the plan.
    ///
    /// # Errors
    /// If an outcome cannot be read.
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

    /// Returns the outcomes of [`made`](Self::made), but an error if there are none.
    ///
    /// # Errors
    /// If there is no outcome, or an outcome cannot be read.
    pub fn outcomes(&self, plan: &Plan) -> Result<Vec<Outcome>, ResultsError> {
        let all = self.made(plan)?;
        if all.is_empty() {
            return Err(ResultsError::Nothing {
                path: self.folder.clone(),
                why: "no run of the plan has been executed; `bimetal-lab run` executes them"
                    .to_owned(),
            });
        }
        Ok(all)
    }

    /// Writes a file into the folder, and returns its path.
    ///
    /// # Errors
    /// If the file cannot be written.
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

/// Returns the name of a cell, which consists of its choices in the order of the axes.
pub fn name_of(choice: &crate::plan::Choice) -> String {
    let words = crate::plan::AXES
        .iter()
        .filter_map(|axis| choice.get(*axis));
    words.cloned().collect::<Vec<_>>().join(" ")
}
