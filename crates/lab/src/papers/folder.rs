//! The folder of a report: one file for each run, and the plan.
//!
//! The name of a file is a hash of everything that its run depends on, so an interrupted report
//! continues, and parts from several machines can be put together. A file states the hash of its
//! own text. A file that was edited by hand is refused, never used.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cell::{Cell, Raw, SCHEMA};
use crate::settings::content_hash;

/// Where and by which build a run was made. It does not affect the values of a run in virtual time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Version of the program.
    pub version: String,
    /// Commit of the program, if known.
    pub commit: Option<String>,
    /// Kernel, processor and number of cores of the machine.
    pub host: String,
}

/// What is run: the settings that all parts of a report share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanFile {
    /// Version of the format.
    pub schema: u32,
    /// Name of the scale.
    pub scale: String,
    /// First seed.
    pub seed: u64,
    /// Number of seeds.
    pub seeds: u64,
    /// Identifiers of the items.
    pub items: Vec<String>,
    /// Hash over the identities of all runs.
    pub id: String,
}

/// Error of a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file has unexpected content.
    #[error("{}: {why}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
}

/// A run without an outcome: its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub String);

/// Outcomes by the identity of the cell.
#[derive(Debug, Default)]
pub struct Runs {
    outcomes: BTreeMap<String, Raw>,
    /// Builds and machines that made the runs.
    pub made: Vec<Made>,
}

impl Runs {
    /// Returns the outcome of a cell.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn get(&self, cell: &Cell) -> Result<&Raw, Missing> {
        let outcome = self.outcomes.get(&cell.id());
        outcome.ok_or_else(|| Missing(cell.name()))
    }
}

#[derive(Serialize)]
struct Stored<'a> {
    cell: &'a Cell,
    made: &'a Made,
    outcome: &'a Raw,
}

#[derive(Deserialize)]
struct Read {
    made: Made,
    outcome: Raw,
}

/// Text between which the hash and the run stand in a file.
const BEFORE_RUN: &str = "\",\n\"run\":";
const END: &str = "}\n";

/// Folder of a report.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates the folder if it does not exist, and writes the plan into it.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn create(path: &Path, plan: &PlanFile) -> Result<Folder, FolderError> {
        let runs = path.join("runs");
        fs::create_dir_all(&runs).map_err(|source| io_error(&runs, source))?;
        let folder = Folder {
            path: path.to_owned(),
        };
        let text = serde_json::to_string_pretty(plan).expect("a plan is plain data");
        folder.write("plan.json", &(text + "\n"))?;
        Ok(folder)
    }

    /// Opens an existing folder, and reads its plan.
    ///
    /// # Errors
    /// If the plan cannot be read.
    pub fn open(path: &Path) -> Result<(Folder, PlanFile), FolderError> {
        let file = path.join("plan.json");
        let text = fs::read_to_string(&file).map_err(|source| io_error(&file, source))?;
        let plan: PlanFile = serde_json::from_str(&text).map_err(|error| FolderError::Content {
            path: file.clone(),
            why: format!("not the plan of a report on the papers: {error}"),
        })?;
        let folder = Folder {
            path: path.to_owned(),
        };
        Ok((folder, plan))
    }

    /// Returns the path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file into the folder. An interruption leaves the complete file or none.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<(), FolderError> {
        let path = self.path(name);
        let begun = path.with_extension("part");
        fs::write(&begun, text).map_err(|source| io_error(&begun, source))?;
        fs::rename(&begun, &path).map_err(|source| io_error(&path, source))
    }

    /// Stores the outcome of a cell.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(&self, cell: &Cell, outcome: &Raw, made: &Made) -> Result<(), FolderError> {
        let stored = Stored {
            cell,
            made,
            outcome,
        };
        let run = serde_json::to_string(&stored).expect("an outcome is plain data");
        let hash = content_hash(&run);
        let text = format!("{}{hash}{BEFORE_RUN}{run}{END}", before_hash());
        self.write(&name_of(cell), &text)
    }

    /// Returns true if the outcome of a cell is stored.
    pub fn has(&self, cell: &Cell) -> bool {
        self.path(&name_of(cell)).is_file()
    }

    /// Reads the outcomes of all cells that are stored.
    ///
    /// # Errors
    /// If a file cannot be read, or was edited or damaged.
    pub fn runs<'c>(&self, cells: impl IntoIterator<Item = &'c Cell>) -> Result<Runs, FolderError> {
        let mut runs = Runs::default();
        for cell in cells {
            let Some(read) = self.read(cell)? else {
                continue;
            };
            if !runs.made.contains(&read.made) {
                runs.made.push(read.made);
            }
            runs.outcomes.insert(cell.id(), read.outcome);
        }
        runs.made.sort_by(|a, b| a.host.cmp(&b.host));
        Ok(runs)
    }

    /// Copies the stored run of a cell from another folder, unless this folder has it. Returns
    /// whether one of the folders has it.
    ///
    /// # Errors
    /// If a file cannot be read or written, or was edited or damaged.
    pub fn take(&self, from: &Folder, cell: &Cell) -> Result<bool, FolderError> {
        if self.read(cell)?.is_some() {
            return Ok(true);
        }
        if from.read(cell)?.is_none() {
            return Ok(false);
        }
        let path = from.path(&name_of(cell));
        let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        self.write(&name_of(cell), &text)?;
        Ok(true)
    }

    fn read(&self, cell: &Cell) -> Result<Option<Read>, FolderError> {
        let path = self.path(&name_of(cell));
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io_error(&path, source)),
        };
        let content = |why: &str| FolderError::Content {
            path: path.clone(),
            why: format!("{why}; remove it to repeat the run"),
        };
        let run = verified(&text).ok_or_else(|| content("edited or damaged"))?;
        let read = serde_json::from_str(run).map_err(|error| content(&error.to_string()))?;
        Ok(Some(read))
    }
}

fn before_hash() -> String {
    format!("{{\"schema\":{SCHEMA},\n\"hash\":\"")
}

/// Returns the text of the run in the text of its file; `None` if it is not the text that was
/// written.
fn verified(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(&before_hash())?;
    let (hash, rest) = rest.split_once(BEFORE_RUN)?;
    let run = rest.strip_suffix(END)?;
    (content_hash(&run) == hash).then_some(run)
}

/// Returns the name of the file of a cell, inside the folder.
fn name_of(cell: &Cell) -> String {
    format!("runs/{}.json", cell.id())
}

fn io_error(path: &Path, source: io::Error) -> FolderError {
    FolderError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_run_is_found_out() {
        let run = "{\"value\":1}";
        let hash = content_hash(&run);
        let text = format!("{}{hash}{BEFORE_RUN}{run}{END}", before_hash());
        assert_eq!(verified(&text), Some(run));
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
        assert_eq!(verified(&text.replace("1}", "2}")), None);
        assert_eq!(
            verified(&text.replace("\"schema\":1", "\"schema\":2")),
            None
        );
        assert_eq!(verified(""), None);
    }
}
