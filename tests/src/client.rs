//! Runs of external programs, with a deadline and with their complete output for failure messages.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

/// One run of an external program.
#[derive(Debug)]
pub struct Client {
    program: OsString,
    args: Vec<OsString>,
    dir: Option<std::path::PathBuf>,
    deadline_s: u64,
    builds: bool,
}

/// Result of a run, with all output of the program.
#[derive(Debug)]
pub struct Outcome {
    /// Command line of the program, for failure messages.
    pub line: String,
    /// Exit status: `None` if a signal ended the program, 124 if the deadline did (timeout(1)).
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Client {
    /// Prepares a run of `program` without arguments and with a deadline of two minutes.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            dir: None,
            deadline_s: 120,
            builds: false,
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args
            .extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets the directory in which the program runs.
    pub fn in_dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Sets the deadline in seconds.
    pub fn within_s(mut self, seconds: u64) -> Self {
        self.deadline_s = seconds;
        self
    }

    /// Prepares for a program that runs cargo as a user would. The program does not inherit the
    /// variables with which cargo describes the package of this test. Build scripts watch these
    /// variables: if the program inherited them, crates such as ring and their dependents would be
    /// rebuilt, and would be rebuilt again by the next cargo that runs without the variables.
    pub fn that_builds(mut self) -> Self {
        self.builds = true;
        self
    }

    /// Runs the program to its end. At the deadline timeout(1) sends it SIGTERM, and five seconds
    /// later SIGKILL.
    ///
    /// # Panics
    /// If the program is not installed.
    pub fn run(self) -> Outcome {
        let line = std::iter::once(&self.program)
            .chain(&self.args)
            .map(|a| a.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", &self.deadline_s.to_string()]);
        command
            .arg(&self.program)
            .args(&self.args)
            .stdin(Stdio::null());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        if self.builds {
            let variables = std::env::vars_os().map(|(variable, _)| variable);
            for variable in variables.filter(|variable| is_of_a_package(variable)) {
                command.env_remove(variable);
            }
        }
        let outcome = match finish(command, self.deadline_s + 15) {
            Some(output) => Outcome {
                line,
                status: output.status.code(),
                stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            },
            None => {
                let stderr = "still there after SIGKILL: stuck in the kernel".into();
                Outcome {
                    line,
                    status: Some(124),
                    stdout: String::new(),
                    stderr,
                }
            }
        };
        // timeout(1) itself exits with 126 or 127 if the program cannot be started.
        if matches!(outcome.status, Some(126 | 127)) && outcome.stderr.starts_with("timeout:") {
            panic!("{outcome}\nnot installed? run scripts/install-test-deps.sh");
        }
        outcome
    }

    /// Runs the program and panics unless it ends with status 0.
    pub fn ok(self) -> Outcome {
        let outcome = self.run();
        assert!(outcome.status == Some(0), "{outcome}");
        outcome
    }
}

/// Runs the command to its end on a dedicated thread, and returns its output. A process in an
/// uninterruptible wait does not end even by SIGKILL, and timeout(1), which waits for the process,
/// does not end either. In that case the function returns `None` after `seconds` and leaves the
/// thread behind.
fn finish(mut command: Command, seconds: u64) -> Option<std::process::Output> {
    let (send, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let output = command.output().expect("run timeout(1)");
        // If `seconds` have passed, the receiver has been dropped and the send fails. This is not
        // an error.
        let _ = send.send(output);
    });
    done.recv_timeout(std::time::Duration::from_secs(seconds))
        .ok()
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = match self.status {
            Some(124) => "did not end before its deadline".to_owned(),
            Some(code) => format!("ended with status {code}"),
            None => "was ended by a signal".to_owned(),
        };
        let (line, stdout, stderr) = (&self.line, tail(&self.stdout), tail(&self.stderr));
        write!(
            f,
            "`{line}` {end}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"
        )
    }
}

/// Returns the last 4,000 bytes of a text, which usually contain the cause of a failure.
fn tail(text: &str) -> &str {
    let mut start = text.len().saturating_sub(4000);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// Returns whether cargo sets this variable to describe the package of the running test.
fn is_of_a_package(variable: &OsStr) -> bool {
    let name = variable.to_string_lossy();
    let is_one = ["OUT_DIR", "CARGO_CRATE_NAME", "CARGO_PRIMARY_PACKAGE"].contains(&&*name);
    let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];
    is_one || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hanging_program_is_ended_and_named() {
        let outcome = Client::new("sleep").arg("1000").within_s(1).run();
        assert_eq!(outcome.status, Some(124));
        assert!(
            outcome
                .to_string()
                .contains("`sleep 1000` did not end before its deadline")
        );
    }

    #[test]
    fn a_program_that_builds_does_not_see_what_cargo_tells_a_test() {
        let told = |outcome: Outcome| outcome.stdout.contains("CARGO_MANIFEST_DIR=");
        assert!(told(Client::new("env").ok()), "cargo tells it");
        assert!(!told(Client::new("env").that_builds().ok()));
    }

    #[test]
    #[should_panic(expected = "install-test-deps.sh")]
    fn a_missing_program_fails_and_names_the_script() {
        Client::new("no-such-program-here").run();
    }

    #[test]
    #[should_panic(expected = "ended with status 3")]
    fn a_failing_program_fails_the_test() {
        Client::new("sh").args(["-c", "echo why >&2; exit 3"]).ok();
    }
}
