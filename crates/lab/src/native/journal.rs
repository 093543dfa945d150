//! What has been changed on the machine, written down before it is changed, so that it can be put
//! back: at the end of a run, after an error, and by the next program when this one was killed.
//!
//! One file in `/run`, which is as old as the settings of the kernel are: both are gone when the
//! machine starts again. A lock beside it lets one program at a time change things. Nothing may be
//! changed that is not in the file first.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bimetal_rt::{Rt, UringOptions};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{NativeError, io_error, loops, sysfs};

/// How long the kernel is given to let go of what a killed program held.
const LET_GO_MOST: Duration = Duration::from_secs(60);
const LET_GO_STEP: Duration = Duration::from_millis(20);

/// One thing that was changed or made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A setting of the kernel, and what it was.
    Setting {
        /// Its file.
        path: PathBuf,
        /// What it read.
        old: String,
    },
    /// A loop device that was made, and the file below it.
    Loop {
        /// Its number.
        number: u32,
        /// The file.
        file: PathBuf,
    },
    /// A file that was made.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// A group of processes that was made, and the one from which this process came into it.
    Group {
        /// Its folder.
        path: PathBuf,
        /// The folder of the other.
        from: PathBuf,
    },
}

impl Change {
    /// Puts it back. What is as it was already is left alone.
    fn undo(&self) -> Result<(), NativeError> {
        match self {
            Change::Setting { path, old } => put_back(path, old),
            Change::Loop { number, file } => until_free(|| loops::remove(*number, file)),
            Change::File { path } => gone(fs::remove_file(path), path),
            Change::Group { path, from } => leave_group(path, from),
        }
    }

    /// In words.
    fn name(&self) -> String {
        match self {
            Change::Setting { path, old } => format!("{} (was {old})", path.display()),
            Change::Loop { number, .. } => format!("/dev/loop{number}"),
            Change::File { path } | Change::Group { path, .. } => path.display().to_string(),
        }
    }
}

/// Writes a setting back, unless its device is gone.
fn put_back(path: &Path, old: &str) -> Result<(), NativeError> {
    match sysfs::read(path) {
        Ok(now) if now == old => return Ok(()),
        Ok(_) => {}
        Err(_) if !path.exists() => return Ok(()),
        Err(error) => return Err(error),
    }
    sysfs::set(path, old)
}

fn leave_group(path: &Path, from: &Path) -> Result<(), NativeError> {
    let inside = path.join("cgroup.procs");
    let me = std::process::id().to_string();
    // A group that is gone has nobody in it.
    let members = fs::read_to_string(&inside).unwrap_or_default();
    if members.lines().any(|member| member == me) {
        let back = from.join("cgroup.procs");
        fs::write(&back, &me).map_err(|source| io_error(&back, source))?;
    }
    until_free(|| gone(fs::remove_dir(path), path))
}

/// That something is gone, whoever took it away.
fn gone(result: io::Result<()>, path: &Path) -> Result<(), NativeError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(path, source)),
        _ => Ok(()),
    }
}

/// Tries until the kernel says something else than that it is busy, as it does while it takes a
/// killed program apart.
fn until_free(attempt: impl Fn() -> Result<(), NativeError>) -> Result<(), NativeError> {
    let first = attempt();
    if !is_busy(&first) {
        return first;
    }
    let options = UringOptions {
        pool_bytes: 1 << 20,
        register: false,
        ..UringOptions::default()
    };
    let rt = Rt::real_time(options).map_err(|source| NativeError::Io {
        what: "the runtime".to_owned(),
        error: source,
    })?;
    let until = rt.now() + LET_GO_MOST;
    rt.block_on(async {
        loop {
            let outcome = attempt();
            if !is_busy(&outcome) || rt.now() >= until {
                return outcome;
            }
            rt.sleep(LET_GO_STEP).await;
        }
    })
}

fn is_busy(outcome: &Result<(), NativeError>) -> bool {
    matches!(outcome, Err(NativeError::Io { error, .. }) if error.kind() == io::ErrorKind::ResourceBusy)
}

/// The changes that have not been put back, and the right to make some.
pub struct Journal {
    path: PathBuf,
    changes: Vec<Change>,
    /// Locked as long as it is open.
    _lock: File,
}

impl Journal {
    /// Takes the lock, and reads what a program has left that was killed.
    ///
    /// # Errors
    /// When another program holds the lock, or the folder cannot be used.
    pub fn open(folder: &Path) -> Result<Journal, NativeError> {
        fs::create_dir_all(folder).map_err(|source| io_error(folder, source))?;
        let lock_path = folder.join("lock");
        let lock = File::create(&lock_path).map_err(|source| io_error(&lock_path, source))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(NativeError::Refused(format!(
                "{}: another `bimetal-lab` is changing this machine; let it end first",
                lock_path.display()
            )));
        }
        let path = folder.join("journal.json");
        let changes = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                let path = path.display();
                NativeError::Refused(format!("{path}: not a journal of changes ({error}); put back by hand what it names, and remove it"))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(io_error(&path, source)),
        };
        Ok(Journal {
            path,
            changes,
            _lock: lock,
        })
    }

    /// True when a program that was killed has left something in `folder`, as far as this user may
    /// see.
    pub fn is_left(folder: &Path) -> bool {
        folder.join("journal.json").exists()
    }

    /// True while a program has the lock: what is in `folder` then is its own.
    pub fn is_held(folder: &Path) -> bool {
        let lock = File::open(folder.join("lock"));
        let asks = FlockOperation::NonBlockingLockShared;
        lock.is_ok_and(|lock| rustix::fs::flock(&lock, asks).is_err())
    }

    /// Changes that have not been put back.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True if a change is written down already.
    pub(super) fn has(&self, change: &Change) -> bool {
        self.changes.contains(change)
    }

    /// Writes down what is about to be changed.
    ///
    /// # Errors
    /// When it cannot be written; then it must not be changed.
    pub fn record(&mut self, change: Change) -> Result<(), NativeError> {
        self.changes.push(change);
        self.write()
    }

    /// Strikes out the last change, which was not made after all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn forget_last(&mut self) -> Result<(), NativeError> {
        self.changes.pop();
        self.write()
    }

    /// Puts back all but the first `keep` changes, the last first, and gives their names. What
    /// cannot be put back stays in the journal, and the rest is put back nevertheless.
    ///
    /// # Errors
    /// The first failure.
    pub fn undo_to(&mut self, keep: usize) -> Result<Vec<String>, NativeError> {
        let mut names = Vec::new();
        let mut left = Vec::new();
        let mut failed = None;
        while self.changes.len() > keep {
            let change = self.changes.pop().expect("there are more than are kept");
            match change.undo() {
                Ok(()) => names.push(change.name()),
                Err(error) => {
                    left.push(change);
                    failed.get_or_insert(error);
                }
            }
        }
        self.changes.extend(left.into_iter().rev());
        self.write()?;
        match failed {
            Some(error) => Err(NativeError::NotPutBack(Box::new(error))),
            None => Ok(names),
        }
    }

    fn write(&self) -> Result<(), NativeError> {
        if self.changes.is_empty() {
            return gone(fs::remove_file(&self.path), &self.path);
        }
        let text = serde_json::to_string_pretty(&self.changes).expect("changes are plain data");
        // In one step, so that a program that is killed leaves the old list or the new one.
        let begun = self.path.with_extension("part");
        fs::write(&begun, text).map_err(|source| io_error(&begun, source))?;
        fs::rename(&begun, &self.path).map_err(|source| io_error(&self.path, source))
    }
}
