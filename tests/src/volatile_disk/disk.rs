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

/// Time limit in seconds for the answer to a command. It is longer than the longest wait of the
/// disk process itself, which is 60 s.
const PATIENCE_S: u64 = 90;

/// A running disk process. Dropping the value kills the process, which loses the cache as a power
/// cut with [`Keep::Nothing`] does.
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
    /// Standard input of the process, and the lines of its standard output. The mutex is held from
    /// a command to its answer, so that commands do not interleave.
    control: Mutex<(ChildStdin, Receiver<String>)>,
}

/// Returns the path of the program `volatile-disk`, which cargo builds with every test of this
/// package into TARGET/PROFILE. The test itself runs as TARGET/PROFILE/deps/NAME-HASH.
fn program() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the running test");
    let dir = test.ancestors().nth(2).expect("TARGET/PROFILE/deps/NAME");
    dir.join("volatile-disk")
}

impl VolatileDisk {
    /// Starts the disk `name`. The existing file `NAME.img` in `dir` holds its durable content, and
    /// the disk listens on the socket `NAME.sock` in `dir`.
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

    /// Removes the disk and its cache: kills the process, so that no process listens on the socket.
    /// No command may be sent before [`VolatileDisk::bring_back`] is called.
    pub fn take_away(&mut self) {
        self.process.end();
    }

    /// Starts a removed disk again with its durable content. The disk is then fast (no delay, no
    /// limit) and honest (flushes make data durable).
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

    /// Cuts the power: closes the connections, discards the operations in flight, and loses the
    /// unflushed writes except for the part that `keep` selects. When this call returns, the disk
    /// has power again and is not frozen.
    pub fn cut(&self, keep: Keep) {
        self.tell(&match keep {
            Keep::Nothing => "cut nothing".to_owned(),
            Keep::Everything => "cut everything".to_owned(),
            Keep::Blocks(seed) => format!("cut blocks {seed}"),
            Keep::Sectors(seed) => format!("cut sectors {seed}"),
        });
    }

    /// Freezes the disk: from now on it performs no operation and sends no reply.
    pub fn freeze(&self) {
        self.tell("freeze");
    }

    /// Ends a freeze.
    pub fn thaw(&self) {
        self.tell("thaw");
    }

    /// Sets the delay that is added to every later operation. The delays of queued operations
    /// elapse concurrently.
    pub fn delay(&self, delay_ms: u64) {
        self.tell(&format!("delay {delay_ms}"));
    }

    /// Limits the disk from now on to the given number of operations a second; 0 means no limit.
    pub fn limit(&self, operations_per_s: u64) {
        self.tell(&format!("limit {operations_per_s}"));
    }

    /// Makes the disk lie: from now on it reports flushes and FUA as done although no data become
    /// durable.
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

    /// Waits until the disk has completed `more` further writes.
    pub fn await_more_writes(&self, more: u64) {
        let goal = self.counts().writes + more;
        self.tell(&format!("await {goal}"));
    }
}

impl Process {
    fn start(file: &Path, socket: &Path) -> Self {
        // A killed disk process leaves its socket file behind.
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
        // An error means that the process had already exited. The test's next command to the
        // process would have reported that, so the error is ignored here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
