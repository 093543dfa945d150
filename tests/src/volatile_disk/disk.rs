//! A test's handle to a disk: a child process, and the commands to it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use super::cache::Keep;
use super::device::DiskCounters;
use crate::deadline::Deadline;
use crate::scratch::Scratch;

/// Maximum time of a command in seconds; longer than the disk itself waits.
const PATIENCE_S: u64 = 90;

/// A running disk. Dropping it kills the process and loses the cache, as a power cut that keeps
/// nothing does.
#[derive(Debug)]
pub struct VolatileDisk {
    name: String,
    file: PathBuf,
    socket: PathBuf,
    process: Process,
}

#[derive(Debug)]
struct Process {
    child: Child,
    /// Standard input and output of the process. The mutex makes commands sequential, each with its
    /// answer.
    control: Mutex<(ChildStdin, Receiver<String>)>,
}

/// Returns the path of the program, which cargo builds with every test of this package into
/// TARGET/PROFILE; the test itself runs as TARGET/PROFILE/deps/NAME-HASH.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    let dir = test.ancestors().nth(2).expect("TARGET/PROFILE/deps/NAME");
    dir.join("volatile-disk")
}

impl VolatileDisk {
    /// Starts the disk `name`. Its durable bytes are the existing file `NAME.img` in `dir`, and its
    /// socket is `NAME.sock`.
    ///
    /// # Panics
    /// If the disk does not start.
    pub fn start(dir: &Scratch, name: &str) -> Self {
        let (file, socket) = (
            dir.file(&format!("{name}.img")),
            dir.file(&format!("{name}.sock")),
        );
        Self {
            name: name.to_owned(),
            process: Process::start(&file, &socket),
            file,
            socket,
        }
    }

    /// Removes the disk, with its cache: no process listens at its socket any more. Send no command
    /// before [`VolatileDisk::bring_back`].
    pub fn take_away(&mut self) {
        self.process.end();
    }

    /// Brings a removed disk back with its durable content; it is fast and honest.
    pub fn bring_back(&mut self) {
        self.process = Process::start(&self.file, &self.socket);
    }

    /// Returns the path of the socket on which the disk listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn ask(&self, command: &str) -> String {
        let mut control = self.process.control.lock().expect("no command panicked");
        let (stdin, lines) = &mut *control;
        writeln!(stdin, "{command}")
            .unwrap_or_else(|e| panic!("disk {} is gone at `{command}`: {e}", self.name));
        let answer = lines.recv_timeout(Deadline::in_s(PATIENCE_S).left());
        answer.unwrap_or_else(|e| panic!("disk {} on `{command}`: {e}", self.name))
    }

    fn tell(&self, command: &str) {
        let answer = self.ask(command);
        assert_eq!(answer, "ok", "disk {} on `{command}`", self.name);
    }

    /// Cuts the power: connections are closed, no operation in flight is done later, and only the
    /// part of the cache that `keep` says survives. When this returns the disk is on again, and
    /// thawed.
    pub fn cut(&self, keep: Keep) {
        self.tell(&match keep {
            Keep::Nothing => "cut nothing".to_owned(),
            Keep::Everything => "cut everything".to_owned(),
            Keep::Blocks(seed) => format!("cut blocks {seed}"),
            Keep::Sectors(seed) => format!("cut sectors {seed}"),
        });
    }

    /// Freezes the disk: from now on it answers nothing.
    pub fn freeze(&self) {
        self.tell("freeze");
    }

    /// Ends a freeze.
    pub fn thaw(&self) {
        self.tell("thaw");
    }

    /// Delays every operation from now on by `delay_ms`; operations are delayed in parallel.
    pub fn delay(&self, delay_ms: u64) {
        self.tell(&format!("delay {delay_ms}"));
    }

    /// Limits the disk from now on to the given number of operations a second; 0 means no limit.
    pub fn limit(&self, operations_per_s: u64) {
        self.tell(&format!("limit {operations_per_s}"));
    }

    /// Makes the disk lie: from now on flush and FUA make nothing durable.
    pub fn lie(&self) {
        self.tell("lie");
    }

    /// Returns the counters of the disk.
    pub fn counts(&self) -> DiskCounters {
        let answer = self.ask("counts");
        let numbers: Result<Vec<u64>, _> = answer.split(' ').map(str::parse).collect();
        let Ok(
            [
                reads,
                writes,
                durable_writes,
                flushes,
                unflushed_blocks,
                waiting,
            ],
        ) = numbers.as_deref()
        else {
            panic!("disk {} counts {answer:?}", self.name)
        };
        DiskCounters {
            reads: *reads,
            writes: *writes,
            durable_writes: *durable_writes,
            flushes: *flushes,
            unflushed_blocks: *unflushed_blocks,
            waiting: *waiting,
        }
    }

    /// Waits until the disk has completed `more` writes from now on.
    pub fn await_more_writes(&self, more: u64) {
        let goal = self.counts().writes + more;
        self.tell(&format!("await {goal}"));
    }
}

impl Process {
    fn start(file: &Path, socket: &Path) -> Self {
        // A process that was killed leaves its socket behind.
        if socket.exists() {
            std::fs::remove_file(socket).expect("remove an old socket");
        }
        let mut child = Command::new(program())
            .args([file, socket])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("start {}: {e}", program().display()));
        let stdin = child.stdin.take().expect("the disk's stdin");
        let stdout = BufReader::new(child.stdout.take().expect("the disk's stdout"));
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // Sending fails if the test is over.
                let _ = send.send(line);
            }
        });
        let ready = lines.recv_timeout(Deadline::in_s(PATIENCE_S).left());
        let at = socket.display();
        assert_eq!(ready.as_deref(), Ok("ready"), "no disk at {at}");
        let control = Mutex::new((stdin, lines));
        Self { child, control }
    }

    fn end(&mut self) {
        // The process may have ended by itself, which the test's next command to it would have
        // shown.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
