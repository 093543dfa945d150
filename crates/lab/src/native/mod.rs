//! Runs on this machine: the same loads as in virtual time, over the kernel's own schedulers and
//! file systems, on a loop device or on a given block device.
//!
//! Every setting is written, read back, and read again just before the load. A setting that reads
//! back a different value ends the run with an error that names the setting. Every change is
//! recorded in a journal first, and undone after each run. Mounts are in a mount namespace of this
//! thread, so they disappear at the latest when the thread ends. This module must never change a
//! setting that affects more than the device of the run.

mod counters;
mod disk;
mod file_system;
mod files;
mod fresh_loop;
pub mod guest;
mod journal;
mod loops;
mod memory;
mod programs;
mod run;
#[allow(unsafe_code, reason = "talks to the kernel")]
mod sys;
mod sysfs;
mod tool;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::device::{Backing, DeviceSettings, NativeDevice};
use crate::failure::{FOLDER, NativeError, RunError};
use crate::outcome::Outcome;
use crate::plan::{Choice, NO_FILE_SYSTEM, Plan};
use crate::settings::Settings;
use crate::workload::Resolved;
use disk::Disk;
use file_system::Kind;
use journal::{Change, Journal};
use memory::Groups;

fn io_error(path: &Path, source: io::Error) -> NativeError {
    NativeError::Io {
        what: path.display().to_string(),
        error: source,
    }
}

/// Checks that this machine can run a plan, without changing anything.
///
/// # Errors
/// The first requirement that is not met, or the first device in use.
pub fn check(plan: &Plan) -> Result<(), NativeError> {
    if !rustix::process::geteuid().is_root() {
        return Err(NativeError::Refused(
            "`backend = \"native\"` mounts file systems and changes settings of devices, which needs root"
                .to_owned(),
        ));
    }
    for cell in &plan.cells {
        check_settings(&cell.settings)?;
    }
    Ok(())
}

fn check_settings(settings: &Settings) -> Result<(), NativeError> {
    let path = file_system::path_of_tools();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    check_programs(settings, &folders)?;
    if settings.memory_pages > 0 {
        Groups::find()?;
    }
    match device_of(settings)? {
        NativeDevice::Block { path } => {
            let disk = Disk::at(path)?;
            disk.check_unused()?;
            check_scheduler(&settings.scheduler.name, &disk.folder)
        }
        NativeDevice::Loop { backing, .. } => {
            loops::check()?;
            check_backing(backing)?;
            // All loop devices offer the same schedulers, so `loop0` is checked in place of the
            // loop device that the run will create.
            match Path::new("/sys/block/loop0/queue/scheduler").exists() {
                true => check_scheduler(&settings.scheduler.name, Path::new("/sys/block/loop0")),
                false => Ok(()),
            }
        }
    }
}

/// Checks that the programs that a run needs are in these folders.
fn check_programs(settings: &Settings, folders: &[PathBuf]) -> Result<(), NativeError> {
    if settings.file_system != NO_FILE_SYSTEM {
        kind_of(&settings.file_system)?.check(folders)?;
    }
    match &settings.workload {
        Resolved::Tool(tool) => {
            let (program, package) = tool.program();
            file_system::check_program(program, "this load", package, folders)
        }
        _ => Ok(()),
    }
}

fn check_scheduler(name: &str, folder: &Path) -> Result<(), NativeError> {
    let path = folder.join("queue/scheduler");
    let text = std::fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
    known_scheduler(name, &text)
}

/// Checks that `list`, the content of a device's `queue/scheduler`, contains a scheduler.
fn known_scheduler(name: &str, list: &str) -> Result<(), NativeError> {
    let known = sysfs::choices(list);
    match known.contains(&name) {
        true => Ok(()),
        false => Err(NativeError::Refused(format!(
            "this kernel has no scheduler `{name}`, expected one of {}",
            known.join(", ")
        ))),
    }
}

fn check_backing(backing: &Backing) -> Result<(), NativeError> {
    match backing {
        Backing::Folder { path, size_bytes } => {
            let room = rustix::fs::statvfs(path).map_err(|source| io_error(path, source.into()))?;
            let free = room.f_bavail.saturating_mul(room.f_frsize);
            match free >= *size_bytes {
                true => Ok(()),
                false => Err(NativeError::Refused(format!(
                    "{}: only {free} bytes are free, but the file needs {size_bytes} bytes",
                    path.display()
                ))),
            }
        }
        Backing::File { path } => {
            let metadata = std::fs::metadata(path).map_err(|source| io_error(path, source))?;
            match metadata.is_file() {
                true => Ok(()),
                false => Err(NativeError::Refused(format!(
                    "{}: it is not a file",
                    path.display()
                ))),
            }
        }
    }
}

fn device_of(settings: &Settings) -> Result<&NativeDevice, NativeError> {
    match &settings.device {
        DeviceSettings::Native(device) => Ok(device),
        _ => Err(NativeError::Refused(
            "the device is not a device of this machine".to_owned(),
        )),
    }
}

fn kind_of(name: &str) -> Result<Kind, NativeError> {
    Kind::named(name).ok_or_else(|| NativeError::Refused(format!("no file system `{name}`")))
}

/// Returns the release of the running kernel.
///
/// # Errors
/// If the kernel does not report its release.
pub fn kernel_release() -> Result<String, NativeError> {
    sysfs::read(Path::new("/proc/sys/kernel/osrelease"))
}

/// Returns true if a killed program did not undo its changes, and this user has the right to undo
/// them. Ignores the changes of a running program.
pub fn is_left_to_us() -> bool {
    let folder = Path::new(FOLDER);
    rustix::process::geteuid().is_root() && Journal::is_left(folder) && !Journal::is_held(folder)
}

/// Undoes the changes that a killed program has left, and returns descriptions of the changes.
///
/// # Errors
/// If another program is changing this machine, or a change cannot be undone.
pub fn restore() -> Result<Vec<String>, NativeError> {
    let folder = Path::new(FOLDER);
    match Journal::is_left(folder) {
        true => Journal::open(folder)?.undo_to(0),
        false => Ok(Vec::new()),
    }
}

/// Exclusive right of this program to change the machine while it executes runs. A session belongs
/// to the thread that creates it.
pub struct Session {
    journal: Journal,
    stop: Arc<AtomicBool>,
    kernel: String,
}

impl Session {
    /// Takes the lock, undoes the changes that a killed program has left, and gives this thread a
    /// private mount namespace. When `stop` is set, a run ends at the next call of its load.
    ///
    /// # Errors
    /// If another program is changing this machine.
    pub fn begin(stop: Arc<AtomicBool>) -> Result<Session, NativeError> {
        let mut journal = Journal::open(Path::new(FOLDER))?;
        journal.undo_to(0)?;
        sys::own_mounts().map_err(|source| NativeError::Io {
            what: "a table of mounts of its own".to_owned(),
            error: source,
        })?;
        run::mount_tracing();
        Ok(Session {
            journal,
            stop,
            kernel: kernel_release()?,
        })
    }

    /// Runs a cell with a seed, and then undoes all changes of the run.
    ///
    /// # Errors
    /// If the machine cannot execute the run, or the load fails.
    pub fn run(
        &mut self,
        choice: &Choice,
        settings: &Settings,
        seed: u64,
    ) -> Result<Outcome, RunError> {
        let backing = self.backing(settings)?;
        let kept = self.journal.len();
        let outcome = run::run(
            &mut run::Bench {
                journal: &mut self.journal,
                stop: &self.stop,
                kernel: &self.kernel,
                backing,
            },
            choice,
            settings,
            seed,
        );
        let undone = self.journal.undo_to(kept);
        let outcome = outcome?;
        undone?;
        Ok(outcome)
    }

    /// Returns the backing file of a loop device; `None` for another device. If the plan names a
    /// folder, the file is created in the folder at the first run, and is used by all runs.
    fn backing(&mut self, settings: &Settings) -> Result<Option<PathBuf>, NativeError> {
        let NativeDevice::Loop { backing, .. } = device_of(settings)? else {
            return Ok(None);
        };
        let (folder, size_bytes) = match backing {
            Backing::File { path } => {
                let full = path.canonicalize();
                return Ok(Some(full.map_err(|source| io_error(path, source))?));
            }
            Backing::Folder { path, size_bytes } => (path, *size_bytes),
        };
        // The kernel reports the backing file of a loop device by its absolute path.
        let full = folder
            .canonicalize()
            .map_err(|source| io_error(folder, source))?;
        let path = full.join(format!("bimetal-lab-{size_bytes}.img"));
        let change = Change::File { path: path.clone() };
        if !self.journal.has(&change) {
            check_backing(backing)?;
            if path.exists() {
                return Err(NativeError::Refused(format!(
                    "{}: it exists already, and was not created by this run",
                    path.display()
                )));
            }
            self.journal.record(change)?;
            run::make_file(&path, size_bytes)?;
        }
        Ok(Some(path))
    }

    /// Undoes all changes of the session.
    ///
    /// # Errors
    /// If a change cannot be undone.
    pub fn end(mut self) -> Result<(), NativeError> {
        self.journal.undo_to(0).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_scheduler_is_refused_with_those_there_are() {
        let list = "[none] mq-deadline kyber bfq \n";
        assert!(known_scheduler("none", list).is_ok());
        assert_eq!(
            known_scheduler("cfq", list).unwrap_err().to_string(),
            "this kernel has no scheduler `cfq`, expected one of none, mq-deadline, kyber, bfq"
        );
    }
}
