//! Server processes for the tests: the server under test (the built binary, in the foreground), and
//! nbdkit as a reference server, against which the checks themselves are tested.

use crate::client::Client;
use crate::deadline::{Deadline, eventually};
use crate::procfs;
use crate::scratch::Scratch;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, channel};

/// Time limit in seconds for the start of a server, until it prints `ready`, and for its stop, from
/// SIGTERM to its exit. A clean stop drains every delay queue, and the queue of a slow side can
/// hold 64 MiB.
const PATIENCE_S: u64 = 60;

/// Returns the directory of the binaries that cargo built in the profile of the running test. A
/// test runs as TARGET/PROFILE/deps/NAME-HASH.
fn profile_dir() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    let dir = test.ancestors().nth(2);
    dir.expect("TARGET/PROFILE/deps/NAME").to_owned()
}

/// Returns cargo's target directory.
///
/// # Panics
/// If cargo did not build the running test.
pub fn target_dir() -> PathBuf {
    let dir = profile_dir();
    dir.parent().expect("TARGET/PROFILE").to_owned()
}

/// Returns the path of the built binary: `BIMETAL_BIN`, or the binary beside the running test,
/// which is first rebuilt if it is out of date.
///
/// # Panics
/// If the build fails.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("BIMETAL_BIN") {
            return PathBuf::from(path);
        }
        let dir = profile_dir();
        let profile = match dir.file_name().and_then(|n| n.to_str()) {
            Some("debug") | None => "dev",
            Some(other) => other,
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        Client::new(cargo)
            .args([
                "build",
                "--quiet",
                "-p",
                "bimetal-cli",
                "-p",
                "bimetal-lab-cli",
                "--profile",
                profile,
                "--target-dir",
            ])
            .arg(target_dir())
            .in_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .within_s(1200)
            .that_builds()
            .ok();
        dir.join("bimetal")
    })
}

/// Returns the path of the built `bimetal-lab`, which is in the same directory as [`binary`].
pub fn lab_binary() -> PathBuf {
    binary().with_file_name("bimetal-lab")
}

/// First words of the error of [`Server::try_start_with`] if the server exits, or prints no line
/// for a minute, before it is ready.
pub const REFUSED: &str = "the server did not print `ready`";

/// A running server.
///
/// If dropped without [`Server::stop`], the server is killed, so that a failing test leaves no
/// process behind.
#[derive(Debug)]
pub struct Server {
    name: String,
    pid: u32,
    exit: Receiver<ExitStatus>,
    stdout: Receiver<String>,
    stderr: PathBuf,
    over: bool,
}

impl Server {
    /// Runs `bimetal serve CONFIG` and returns after the server has printed `ready`.
    ///
    /// # Panics
    /// If the server exits, prints another line first, or does not print `ready` within a minute.
    pub fn start(config: &Path) -> Self {
        Self::start_under(&[], config)
    }

    /// Does the same as [`Server::start`], with `options` after CONFIG on the command line.
    pub fn start_with(config: &Path, options: &[&str]) -> Self {
        Self::spawn(&[], "serve", config, options).ready()
    }

    /// Does the same as [`Server::start`], with the server started by the command `wrapper` (for
    /// instance a shell that enters a cgroup and then executes its arguments).
    pub fn start_under(wrapper: &[String], config: &Path) -> Self {
        Self::spawn(wrapper, "serve", config, &[]).ready()
    }

    /// Does the same as [`Server::start_with`], for a server that can refuse to start.
    ///
    /// # Errors
    /// If the server exits, prints another line, or does not print `ready` within a minute: a
    /// description that contains the server's standard error.
    pub fn try_start_with(config: &Path, options: &[&str]) -> Result<Self, String> {
        Self::spawn(&[], "serve", config, options).or_refusal()
    }

    /// Does the same as [`Server::start_under`], for a server that can refuse to start.
    ///
    /// # Errors
    /// In the same cases as [`Server::try_start_with`].
    pub fn try_start_under(wrapper: &[String], config: &Path) -> Result<Self, String> {
        Self::spawn(wrapper, "serve", config, &[]).or_refusal()
    }

    /// Runs `bimetal mount CONFIG` followed by `options`, with the server started by the command
    /// `wrapper`. Returns after the server has printed `ready`, together with the path that it
    /// printed first.
    ///
    /// # Panics
    /// In the same cases as [`Server::start`].
    pub fn mount_under(wrapper: &[String], config: &Path, options: &[&str]) -> (Self, PathBuf) {
        let mut server = Self::spawn(wrapper, "mount", config, options);
        let path = server.next_line();
        let path = path.unwrap_or_else(|| panic!("no path was printed\n{}", server.said()));
        (server.ready(), path.into())
    }

    /// Waits until the server prints `ready`; panics if [`Server::or_refusal`] returns an error.
    fn ready(self) -> Self {
        self.or_refusal().unwrap_or_else(|words| panic!("{words}"))
    }

    /// Waits until the server prints `ready`. If it prints another line, exits, or prints no line
    /// for a minute, kills it and returns a description.
    fn or_refusal(mut self) -> Result<Self, String> {
        let what = match self.next_line() {
            Some(line) if line == "ready" => return Ok(self),
            Some(line) => format!("the server printed {line:?} where `ready` was due"),
            None => REFUSED.to_owned(),
        };
        self.kill();
        Err(format!("{what}\n{}", self.said()))
    }

    /// Starts the server process, and returns without waiting until the server is ready.
    fn spawn(wrapper: &[String], verb: &str, config: &Path, options: &[&str]) -> Self {
        let stderr = config.with_extension("stderr");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&stderr);
        let mut words = wrapper
            .iter()
            .map(std::ffi::OsString::from)
            .collect::<Vec<_>>();
        words.extend([binary().into(), verb.into(), config.into()]);
        words.extend(options.iter().map(Into::into));
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("a file for the server's messages"))
            .spawn()
            .unwrap_or_else(|e| panic!("start {words:?}: {e}"));
        let (pid, pipe) = (
            child.id(),
            child.stdout.take().expect("the server's stdout"),
        );
        let (send_line, stdout) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // Sending fails once the test is over. Continue to read, so that the server does
                // not block on a full pipe.
                let _ = send_line.send(line);
            }
        });
        let (send_exit, exit) = channel();
        std::thread::spawn(move || {
            let status = child.wait().expect("wait for the server");
            // Sending fails once the test is over.
            let _ = send_exit.send(status);
        });
        Self {
            name: config.display().to_string(),
            pid,
            exit,
            stdout,
            stderr,
            over: false,
        }
    }

    /// Returns the next line of the server's standard output, or `None` at the end of the output or
    /// after a minute without a line.
    fn next_line(&mut self) -> Option<String> {
        let wait = Deadline::in_s(PATIENCE_S).left();
        self.stdout.recv_timeout(wait).ok()
    }

    /// Returns the pid of the server.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the server's standard error so far, for failure messages.
    pub fn said(&self) -> String {
        let text = std::fs::read_to_string(&self.stderr).unwrap_or_else(|e| e.to_string());
        format!("--- stderr of serve {}\n{text}", self.name)
    }

    /// Asserts that the server process still runs.
    pub fn assert_alive(&self) {
        assert!(
            procfs::alive(self.pid),
            "the server is gone\n{}",
            self.said()
        );
    }

    /// Waits until the server has exited by itself. Returns its exit status, or `None` if a signal
    /// ended it.
    ///
    /// # Panics
    /// If the server still runs after a minute.
    pub fn ended(mut self) -> Option<i32> {
        let Ok(status) = self.exit.recv_timeout(Deadline::in_s(PATIENCE_S).left()) else {
            panic!(
                "the server still runs after {PATIENCE_S} s\n{}",
                self.said()
            );
        };
        self.over = true;
        status.code()
    }

    /// Sends SIGTERM to the server and asserts a clean stop: exit status 0 within a minute.
    pub fn stop(self) {
        self.stop_by("TERM");
    }

    /// Does the same as [`Server::stop`], with another signal.
    pub fn stop_by(mut self, signal: &str) {
        self.assert_alive();
        send_signal(self.pid, signal);
        match self.exit.recv_timeout(Deadline::in_s(PATIENCE_S).left()) {
            Ok(status) => {
                self.over = true;
                assert!(
                    status.code() == Some(0),
                    "SIG{signal} must end with status 0, was {status}\n{}",
                    self.said()
                );
            }
            Err(_) => panic!(
                "no clean stop within {PATIENCE_S} s of SIG{signal}\n{}{}",
                procfs::where_it_waits(self.pid),
                self.said()
            ),
        }
    }

    /// Kills the server with SIGKILL, which acts like a crash of the server.
    pub fn kill(&mut self) {
        if !self.over {
            send_signal(self.pid, "KILL");
            // Wait for the server's exit, so that the next server finds the sides unused. If the
            // process is stuck in the kernel, it is left behind, because a longer wait would let
            // the test hang.
            self.over = self
                .exit
                .recv_timeout(Deadline::in_s(PATIENCE_S).left())
                .is_ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal with the program kill(1), because the standard library has no call that sends
/// one.
pub fn send_signal(pid: u32, signal: &str) {
    let outcome = Client::new("sh").args(["-c", "kill -s \"$0\" \"$1\"", signal]);
    let outcome = outcome.arg(pid.to_string()).within_s(10).run();
    // kill(1) also fails if the process has just exited by itself, which is not an error of the
    // test.
    if outcome.status != Some(0) && procfs::alive(pid) {
        panic!("{outcome}");
    }
}

/// An nbdkit server on a UNIX socket, against which the checks of the tests are themselves tested.
/// With the plugin `memory` it is a known good server; with the plugin `null`, which discards every
/// write, it is a known bad one.
#[derive(Debug)]
pub struct Peer {
    dir: Scratch,
    pid: u32,
}

impl Peer {
    /// Starts nbdkit; `plugin` holds the name of the plugin, followed by its parameters.
    pub fn nbdkit(plugin: &[&str]) -> Self {
        let dir = Scratch::new("peer");
        let pidfile = dir.file("pid");
        // nbdkit moves into the background after it listens and has written the pid file.
        Client::new("nbdkit")
            .arg("-U")
            .arg(dir.file("s"))
            .arg("-P")
            .arg(&pidfile)
            .args(plugin)
            .ok();
        let pid = eventually(10, "nbdkit's pid file", || {
            std::fs::read_to_string(&pidfile).ok()?.trim().parse().ok()
        });
        Self { dir, pid }
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.file("s")
    }

    /// Returns the URI of an export of this server.
    pub fn uri(&self, export: &str) -> String {
        uri(&self.socket(), export)
    }

    /// Returns the pid of nbdkit.
    pub fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        send_signal(self.pid, "KILL");
    }
}

/// Returns the NBD URI of an export on a UNIX socket (the NBD URI specification).
pub fn uri(socket: &Path, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", socket.display())
}
