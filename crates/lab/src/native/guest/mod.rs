//! Runs in User-Mode Linux: a kernel that runs as a program, with drivers that the kernel of this
//! machine possibly lacks, such as ReiserFS and the original driver of ext2.
//!
//! Each run boots a guest with a disk of its own. The guest starts this program as its first
//! program, which executes the run with the code of the native backend. The guest sees the files of
//! this machine with the rights of the user who started it, and changes only files in the folder of
//! its run. Root is not needed. A system call in a guest costs at least ten times as much as on the
//! machine itself, so times measured in a guest must never be compared with other times.

mod inside;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::file_system::{check_program, path_of_tools};
use super::tool::{self, Scene};
use super::{NativeError, check_programs, io_error};
use crate::device::{DeviceSettings, GuestDisk};
use crate::failure::RunError;
use crate::outcome::Outcome;
use crate::plan::{Choice, Plan};
use crate::settings::{Settings, run_id};
use crate::workload::tool::Step;

pub use inside::run_inside;

/// Name of the program that is the kernel of a guest.
const PROGRAM: &str = "linux.uml";
/// Names of the files in the folder of a run.
const DISK: &str = "disk";
const ORDER: &str = "order.json";
const ANSWER: &str = "answer.json";
/// Text that a kernel prints when it panics.
const PANIC: &str = "Kernel panic";
/// Number of lines that the error message quotes from the end of a guest's console, if the guest
/// has not answered.
const LAST_LINES: usize = 2;

/// Run that a guest must execute.
#[derive(Serialize, Deserialize)]
struct Order {
    choice: Choice,
    settings: Settings,
    seed: u64,
}

/// Answer of a guest to an order.
#[derive(Serialize, Deserialize)]
enum Answer {
    Made(Box<Outcome>),
    /// Description of the reason why the run has failed.
    Failed(String),
}

/// Checks that a plan can run in guests on this machine, without changing anything. `program` is
/// the path of this program.
///
/// # Errors
/// The first requirement that is not met.
pub fn check(plan: &Plan, program: &Path) -> Result<(), NativeError> {
    let path = path_of_tools();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    check_program(PROGRAM, "guests", "user-mode-linux", &folders)?;
    check_path(program)?;
    for cell in &plan.cells {
        check_programs(&cell.settings, &folders)?;
        full_folder(disk_of(&cell.settings)?)?;
    }
    Ok(())
}

/// Returns the release of the kernel of the guests.
///
/// # Errors
/// If the kernel program does not print its release.
pub fn kernel_release() -> Result<String, NativeError> {
    let output = std::process::Command::new(PROGRAM)
        .arg("--version")
        .env("PATH", path_of_tools())
        .output()
        .map_err(|source| io_error(Path::new(PROGRAM), source))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next().map(str::trim) {
        Some(release) if !release.is_empty() => Ok(release.to_owned()),
        _ => Err(NativeError::Refused(format!(
            "{PROGRAM} does not print its version"
        ))),
    }
}

/// Runs a cell with a seed in a guest. `program` is the path of this program, which becomes the
/// first program of the guest. The guest is killed when `stop` is set.
///
/// # Errors
/// If the guest cannot execute the run, or the load fails.
pub fn run(
    choice: &Choice,
    settings: &Settings,
    seed: u64,
    program: &Path,
    stop: &AtomicBool,
) -> Result<Outcome, RunError> {
    let disk = disk_of(settings)?;
    let folder = Folder::make(disk, &run_id(settings, seed))?;
    let order = Order {
        choice: choice.clone(),
        settings: settings.clone(),
        seed,
    };
    let text = serde_json::to_vec(&order).expect("an order is plain data");
    let path = folder.0.join(ORDER);
    fs::write(&path, text).map_err(|source| io_error(&path, source))?;
    let step = Step {
        program: PROGRAM,
        arguments: arguments(program, &folder.0, settings),
        input: String::new(),
    };
    let scene = Scene {
        folder: &folder.0,
        stop,
        now_ns: &|| 0,
    };
    let ended = tool::run_to_end(&step, &scene)?;
    match folder.answer()? {
        Some(Answer::Made(outcome)) => Ok(*outcome),
        Some(Answer::Failed(why)) => {
            Err(NativeError::Refused(format!("in the guest: {why}")).into())
        }
        None => {
            let why = why_no_answer(&ended.status.to_string(), &ended.printed.text);
            Err(NativeError::Refused(why).into())
        }
    }
}

/// Returns the command line of the kernel of a guest. The words after `--` are arguments of the
/// first program of the guest.
fn arguments(program: &Path, folder: &Path, settings: &Settings) -> Vec<String> {
    let memory_kib = u64::from(settings.memory_pages) * 4;
    let (program, folder) = (program.display(), folder.display());
    let kernel = [
        format!("ubdb={DISK}"),
        "root=/dev/root rootfstype=hostfs rw".to_owned(),
        format!("mem={memory_kib}K"),
        format!("init={program}"),
        // The guest reads no console input, and its console output is recorded. Without a named
        // console, the kernel would add a word to the arguments of the first program.
        "con=null con0=null,fd:1 console=tty0".to_owned(),
        format!("uml_dir={folder}"),
        format!("-- guest {folder}"),
    ];
    let words = kernel.iter().flat_map(|part| part.split(' '));
    words.map(str::to_owned).collect()
}

fn disk_of(settings: &Settings) -> Result<&GuestDisk, NativeError> {
    match &settings.device {
        DeviceSettings::Guest(disk) => Ok(disk),
        _ => Err(NativeError::Refused(
            "the device is not a device of a guest".to_owned(),
        )),
    }
}

/// Returns the absolute path of the folder of a disk.
fn full_folder(disk: &GuestDisk) -> Result<PathBuf, NativeError> {
    let full = disk.folder.canonicalize();
    let full = full.map_err(|source| io_error(&disk.folder, source))?;
    match full.is_dir() {
        true => check_path(&full).map(|()| full),
        false => Err(io_error(&disk.folder, Errno::NOTDIR.into())),
    }
}

/// Returns an error for a path that a kernel command line cannot contain, such as a path with a
/// space or a comma.
fn check_path(path: &Path) -> Result<(), NativeError> {
    let shown = path.display().to_string();
    let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !",\"'".contains(c);
    match path.to_str().is_some_and(|text| text.chars().all(is_plain)) {
        true => Ok(()),
        false => Err(NativeError::Refused(format!(
            "{shown}: User-Mode Linux accepts no path with a space, a comma or a quotation mark"
        ))),
    }
}

/// Folder of a run. It contains all files that the guest of the run can change. The folder is
/// removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    /// Creates the folder of a run. First removes a folder that remains from an earlier, killed
    /// attempt at the same run.
    fn make(disk: &GuestDisk, run: &str) -> Result<Folder, NativeError> {
        let path = full_folder(disk)?.join(format!("bimetal-lab-{run}"));
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io_error(&path, error));
            }
            _ => {}
        }
        fs::create_dir(&path).map_err(|source| io_error(&path, source))?;
        let folder = Folder(path);
        let disk_path = folder.0.join(DISK);
        let file = File::create_new(&disk_path).map_err(|source| io_error(&disk_path, source))?;
        file.set_len(disk.disk_bytes)
            .map_err(|source| io_error(&disk_path, source))?;
        Ok(folder)
    }

    /// Returns the answer of the guest, if there is one.
    fn answer(&self) -> Result<Option<Answer>, NativeError> {
        let path = self.0.join(ANSWER);
        match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error(&path, error)),
            Ok(text) => {
                let answer = serde_json::from_slice(&text);
                answer.map_err(|error| io_error(&path, error.into()))
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // If this removal fails, the next attempt at the same run removes the folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the last non-empty lines of the console. Omits all lines after a kernel panic, because
/// the kernel then prints only a stack trace.
fn last_words(console: &str) -> String {
    let mut lines: Vec<&str> = console
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if let Some(panic) = lines.iter().position(|line| line.contains(PANIC)) {
        lines.truncate(panic + 1);
    }
    let from = lines.len().saturating_sub(LAST_LINES);
    lines[from..].join("; ")
}

/// Message that a guest's kernel prints if the host's kernel refuses to restore the guest's
/// registers.
const REGISTERS_REFUSED: &str = "ptrace set fp regs failed";

/// Returns the reason why a guest wrote no answer. `status` is the exit status of the guest, and
/// `console` is its console output.
fn why_no_answer(status: &str, console: &str) -> String {
    if console.contains(REGISTERS_REFUSED) {
        return format!(
            "User-Mode Linux cannot run on this processor: the state of its registers (with AMX, 11 KB) is larger than \
             this build of `{PROGRAM}` saves, and the host refuses a part of it; use a newer `{PROGRAM}`, or a \
             processor or virtual machine without AMX"
        );
    }
    let said = last_words(console);
    format!("the guest gave no answer ({status}); its last output: {said}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_with_too_many_registers_is_named_and_another_panic_is_not_taken_for_it() {
        let refused = "userspace - ptrace set fp regs failed, errno = 14\n\
                       Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b";
        let said = why_no_answer("signal: 6 (SIGABRT)", refused);
        assert!(said.contains("cannot run on this processor"), "{said}");
        let said = why_no_answer("signal: 6 (SIGABRT)", "Kernel panic - not syncing: VFS");
        assert!(said.contains("SIGABRT") && said.contains("VFS"), "{said}");
    }

    #[test]
    fn a_path_that_a_command_line_cannot_say_is_refused() {
        assert!(check_path(Path::new("/var/tmp/a-b_c.d")).is_ok());
        for bad in ["/tmp/a b", "/tmp/a,b", "/tmp/a\"b", "/tmp/a\nb"] {
            let error = check_path(Path::new(bad)).unwrap_err().to_string();
            assert!(error.contains("accepts no path"), "{error}");
        }
    }

    #[test]
    fn the_last_words_are_the_last_that_say_something() {
        assert_eq!(last_words("one\n\ntwo\r\n three \n\n"), "two; three");
        assert_eq!(
            last_words("bimetal: no\nKernel panic - x\nCall Trace:\n a"),
            "bimetal: no; Kernel panic - x"
        );
        assert_eq!(last_words(""), "");
    }

    #[test]
    fn a_folder_of_a_killed_run_is_made_anew_and_goes_away() {
        let own = std::env::temp_dir().join(format!("bimetal-guest-{}", std::process::id()));
        fs::create_dir(&own).unwrap();
        let disk = GuestDisk {
            folder: own.clone(),
            disk_bytes: 1 << 24,
        };
        let left = own.join("bimetal-lab-17");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(ANSWER), "{}").unwrap();
        let folder = Folder::make(&disk, "17").unwrap();
        assert_eq!(fs::metadata(left.join(DISK)).unwrap().len(), 1 << 24);
        assert!(folder.answer().unwrap().is_none());
        drop(folder);
        assert!(!left.exists());
        fs::remove_dir(&own).unwrap();
    }
}
