//! Runs external programs on the device of a run, and reads their output.
//!
//! The programs are children of this thread, in its cgroup and its mount namespace. Each program
//! must end before the run does: a program that still runs when the run must stop is killed.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use super::NativeError;
use super::file_system::path_of_tools;
use crate::failure::RunError;
use crate::layer::LoadError;
use crate::workload::tool::{Printed, Step};

/// Interval at which the stop flag is checked.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of bytes that a program can print; no supported program prints a hundredth of
/// this.
const PRINTED_BYTES_MAX: usize = 16 << 20;

/// Environment in which external programs run.
pub(super) struct Scene<'s> {
    /// Working directory of the programs.
    pub folder: &'s Path,
    /// Flag that is set when the run must stop.
    pub stop: &'s AtomicBool,
    /// Function that returns the present time in ns.
    pub now_ns: &'s dyn Fn() -> u64,
}

/// Runs the steps in order, and returns the output of each step.
///
/// # Errors
/// If a program cannot be started or fails; `Interrupted` when `stop` is set.
pub(super) fn run(steps: &[Step], scene: &Scene<'_>) -> Result<Vec<Printed>, RunError> {
    steps.iter().map(|step| run_step(step, scene)).collect()
}

fn run_step(step: &Step, scene: &Scene<'_>) -> Result<Printed, RunError> {
    let Ended {
        status,
        printed,
        complaint,
    } = run_to_end(step, scene)?;
    if status.success() {
        return Ok(printed);
    }
    let last = |text: &str| {
        let line = text.lines().rfind(|line| !line.trim().is_empty())?;
        Some(line.trim().to_owned())
    };
    let said = last(&complaint).or_else(|| last(&printed.text));
    Err(RunError::Native(NativeError::Refused(format!(
        "{} ended with {status}: {}",
        step.program,
        said.unwrap_or_else(|| "it printed nothing".to_owned())
    ))))
}

/// Result of a program that has ended.
pub(super) struct Ended {
    /// Exit code, or the signal that ended the program.
    pub status: ExitStatus,
    /// Standard output.
    pub printed: Printed,
    /// Standard error.
    pub complaint: String,
}

/// Runs a step until its program ends, whether it succeeds or fails.
///
/// # Errors
/// If the program cannot be started or prints too much; `Interrupted` when `stop` is set.
pub(super) fn run_to_end(step: &Step, scene: &Scene<'_>) -> Result<Ended, RunError> {
    let failed = |error: io::Error| {
        RunError::Native(NativeError::Io {
            what: step.program.to_owned(),
            error,
        })
    };
    let child = Command::new(step.program)
        .args(&step.arguments)
        .env("PATH", path_of_tools())
        // The parser of the output expects numbers in the format of the C locale.
        .env("LC_ALL", "C")
        .current_dir(scene.folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // The program can start children, which must be killed together with it.
        .process_group(0)
        .spawn();
    let mut child = Killed(child.map_err(failed)?);
    if let Some(mut input) = child.0.stdin.take() {
        // A write error is ignored, because a program that does not read its input reports the
        // reason when it ends.
        let _ = input.write_all(step.input.as_bytes());
    }
    let (printed, complaint) = read_all(&mut child.0, scene).map_err(|error| match error {
        Stopped::Interrupted => RunError::Load(LoadError::Interrupted),
        Stopped::Failed(error) => failed(error),
    })?;
    let status = child.0.wait().map_err(failed)?;
    Ok(Ended {
        status,
        printed,
        complaint,
    })
}

/// A child process that is killed, with its own children, when this value is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // A child that has already ended need not be killed.
        if matches!(self.0.try_wait(), Ok(None)) {
            kill_with_its_own(&self.0);
            let _ = self.0.wait();
        }
    }
}

/// Kills all remaining processes in the process group of a child. The number of the group is the
/// process number of the child.
fn kill_with_its_own(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // An error is ignored, because the group can be empty.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

enum Stopped {
    Interrupted,
    Failed(io::Error),
}

/// Output of a pipe, read until its end.
#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    seen: Vec<(usize, u64)>,
    ended: bool,
}

impl Output {
    fn take(&mut self, from: &mut impl Read, now_ns: u64) -> io::Result<()> {
        let mut piece = [0; 4096];
        let count = from.read(&mut piece)?;
        self.ended = count == 0;
        self.bytes.extend_from_slice(&piece[..count]);
        self.seen.push((self.bytes.len(), now_ns));
        match self.bytes.len() > PRINTED_BYTES_MAX {
            true => Err(io::Error::other("it prints too much")),
            false => Ok(()),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Reads the child's standard output and standard error until both end.
fn read_all(child: &mut Child, scene: &Scene<'_>) -> Result<(Printed, String), Stopped> {
    let (Some(mut out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(Stopped::Failed(io::ErrorKind::BrokenPipe.into()));
    };
    let began_ns = (scene.now_ns)();
    let (mut printed, mut complaint) = (Output::default(), Output::default());
    let look = Timespec::try_from(LOOK)
        .map_err(|_| Stopped::Failed(io::ErrorKind::InvalidInput.into()))?;
    while !printed.ended || !complaint.ended {
        if scene.stop.load(Ordering::Relaxed) {
            return Err(Stopped::Interrupted);
        }
        let wanted = |output: &Output| match output.ended {
            true => PollFlags::empty(),
            false => PollFlags::IN,
        };
        let mut fds = [
            PollFd::new(&out, wanted(&printed)),
            PollFd::new(&err, wanted(&complaint)),
        ];
        let ready = poll(&mut fds, Some(&look)).map_err(|error| Stopped::Failed(error.into()))?;
        if ready == 0 && child.try_wait().map_err(Stopped::Failed)?.is_some() {
            // The child has ended, but its own children can still run and keep the pipes open
            // without printing. Kill them, so that the read ends.
            kill_with_its_own(child);
        }
        let [to_read, to_hear] = fds.each_ref().map(|fd| !fd.revents().is_empty());
        let now_ns = (scene.now_ns)() - began_ns;
        if to_read && !printed.ended {
            printed.take(&mut out, now_ns).map_err(Stopped::Failed)?;
        }
        if to_hear && !complaint.ended {
            complaint.take(&mut err, now_ns).map_err(Stopped::Failed)?;
        }
    }
    let text = printed.text();
    Ok((
        Printed {
            text,
            seen: printed.seen,
        },
        complaint.text(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Step {
        Step {
            program: "sh",
            arguments: vec!["-c".to_owned(), script.to_owned()],
            input: "word\n".to_owned(),
        }
    }

    /// Runs a shell script, with a clock that advances by 1 ns at each call, and with a stop flag
    /// that has the value `stop`.
    fn ran_until(script: &str, stop: bool) -> Result<Printed, RunError> {
        let looks = std::cell::Cell::new(0);
        let now_ns = || {
            looks.set(looks.get() + 1);
            looks.get()
        };
        let scene = Scene {
            folder: Path::new("/"),
            stop: &AtomicBool::new(stop),
            now_ns: &now_ns,
        };
        run_step(&shell(script), &scene)
    }

    fn ran(script: &str) -> Result<Printed, RunError> {
        ran_until(script, false)
    }

    #[test]
    fn what_is_printed_is_all_there_with_its_times() {
        let printed = ran("read first; echo \"$first\"; pwd; echo aside >&2").unwrap();
        assert_eq!(printed.text, "word\n/\n");
        assert!(printed.seen.is_sorted() && printed.seen[0].1 > 0);
        assert_eq!(printed.seen.last().unwrap().0, printed.text.len());
    }

    #[test]
    fn more_than_a_pipe_holds_on_both_ways_does_not_stand_still() {
        let printed = ran("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero").unwrap();
        assert_eq!(printed.text.len(), 300_000);
    }

    #[test]
    fn a_program_that_fails_ends_the_run_with_its_last_words() {
        let error = ran("echo started; echo first >&2; echo no room >&2; exit 3").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("exit status: 3") && error.contains("no room"),
            "{error}"
        );
    }

    #[test]
    fn what_a_program_leaves_behind_is_not_waited_for() {
        // The background process keeps the pipe open, prints nothing, and does not end by itself.
        let printed = ran("(trap '' HUP; exec sleep infinity) & echo gone").unwrap();
        assert_eq!(printed.text, "gone\n");
    }

    #[test]
    fn a_program_is_killed_when_the_run_stops() {
        // The command would never end by itself.
        let error = ran_until("cat /dev/zero | cat >/dev/null", true).unwrap_err();
        assert!(matches!(error, RunError::Load(LoadError::Interrupted)));
    }
}
