//! Journal of changes to the machine. Each change is recorded before it is made, so that it can be
//! undone: at the end of a run, after an error, or by the next program if this program is killed.
//!
//! The journal is one file in `/run`, which lives as long as the kernel's settings: a restart of
//! the machine discards both. A lock file beside the journal ensures that only one program makes
//! changes at a time. A change must never be made before it is in the journal.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bimetal_rt::{Rt, UringOptions};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::{NativeError, io_error, loops, sysfs};

/// Maximum time to wait until the kernel has released the resources of a killed program.
/// `LET_GO_STEP` is the interval between two attempts.
const LET_GO_MOST: Duration = Duration::from_secs(60);
const LET_GO_STEP: Duration = Duration::from_millis(20);

/// A change to the machine that can be undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A changed setting of the kernel.
    Setting {
        /// File of the setting.
        path: PathBuf,
        /// Value before the change.
        old: String,
    },
    /// A loop device that was created.
    Loop {
        /// Number of the loop device.
        number: u32,
        /// File that backs the loop device.
        file: PathBuf,
    },
    /// A file that was created.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// A cgroup that was created, into which this process moved.
    Group {
        /// Folder of the created cgroup.
        path: PathBuf,
        /// Folder of the cgroup to which this process belonged before the change.
        from: PathBuf,
    },
}

impl Change {
    /// Undoes the change. Succeeds without effect if the change has already been undone.
    fn undo(&self) -> Result<(), NativeError> {
        match self {
            Change::Setting { path, old } => put_back(path, old),
            Change::Loop { number, file } => until_free(|| loops::remove(*number, file)),
            Change::File { path } => gone(fs::remove_file(path), path),
            Change::Group { path, from } => leave_group(path, from),
        }
    }

    /// Returns a description of the change.
    fn name(&self) -> String {
        match self {
            Change::Setting { path, old } => format!("{} (was {old})", path.display()),
            Change::Loop { number, .. } => format!("/dev/loop{number}"),
            Change::File { path } | Change::Group { path, .. } => path.display().to_string(),
        }
    }
}

/// Restores the old value of a setting, unless its device no longer exists.
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
    // A cgroup that no longer exists has no members, so a read error needs no handling.
    let members = fs::read_to_string(&inside).unwrap_or_default();
    if members.lines().any(|member| member == me) {
        let back = from.join("cgroup.procs");
        fs::write(&back, &me).map_err(|source| io_error(&back, source))?;
    }
    until_free(|| gone(fs::remove_dir(path), path))
}

/// Converts the result of a removal: if the file does not exist, the removal is treated as
/// successful.
fn gone(result: io::Result<()>, path: &Path) -> Result<(), NativeError> {
    match result {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error(path, source)),
        _ => Ok(()),
    }
}

/// Retries `attempt` while the kernel returns `EBUSY`. The kernel can return this error until it
/// has released the resources of a killed program.
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

/// The journal of the changes that have not been undone, and the lock that permits new changes.
pub struct Journal {
    path: PathBuf,
    changes: Vec<Change>,
    /// Lock file. The lock is held as long as this file is open.
    _lock: File,
}

impl Journal {
    /// Takes the lock, and reads the changes that a killed program has not undone.
    ///
    /// # Errors
    /// If another program holds the lock, or the folder cannot be used.
    pub fn open(folder: &Path) -> Result<Journal, NativeError> {
        fs::create_dir_all(folder).map_err(|source| io_error(folder, source))?;
        let lock_path = folder.join("lock");
        let lock = File::create(&lock_path).map_err(|source| io_error(&lock_path, source))?;
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(NativeError::Refused(format!(
                "{}: another `bimetal-lab` is changing this machine; wait until it has ended",
                lock_path.display()
            )));
        }
        let path = folder.join("journal.json");
        let changes = match fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).map_err(|error| {
                let path = path.display();
                NativeError::Refused(format!(
                    "{path}: not a journal of changes ({error}); undo the changes that it names by \
                    hand, and remove it"
                ))
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

    /// Returns true if `folder` contains a journal, and this user can see it.
    pub fn is_left(folder: &Path) -> bool {
        folder.join("journal.json").exists()
    }

    /// Returns true if a running program holds the lock, so that the changes in the journal in
    /// `folder` belong to that program.
    pub fn is_held(folder: &Path) -> bool {
        let lock = File::open(folder.join("lock"));
        let asks = FlockOperation::NonBlockingLockShared;
        lock.is_ok_and(|lock| rustix::fs::flock(&lock, asks).is_err())
    }

    /// Returns the number of changes that have not been undone.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns true if a change is recorded already.
    pub(super) fn has(&self, change: &Change) -> bool {
        self.changes.contains(change)
    }

    /// Records a change before it is made.
    ///
    /// # Errors
    /// If the journal cannot be written. The change must not be made in that case.
    pub fn record(&mut self, change: Change) -> Result<(), NativeError> {
        self.changes.push(change);
        self.write()
    }

    /// Removes the record of the last change, which was not made.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub(super) fn forget_last(&mut self) -> Result<(), NativeError> {
        self.changes.pop();
        self.write()
    }

    /// Undoes all changes except the first `keep`, starting with the newest, and returns
    /// descriptions of the undone changes. A change that cannot be undone stays in the journal, and
    /// the remaining changes are still undone.
    ///
    /// # Errors
    /// The first error of a change that cannot be undone.
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
        // Replace the file atomically, so that a killed program leaves either the old or the new
        // list of changes.
        let begun = self.path.with_extension("part");
        fs::write(&begun, text).map_err(|source| io_error(&begun, source))?;
        fs::rename(&begun, &self.path).map_err(|source| io_error(&self.path, source))
    }
}
