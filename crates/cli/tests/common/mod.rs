//! Helpers that run the built program in a scratch directory.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A mirror of two files, served at a socket beside its configuration. Its exposure bound is small
/// enough for its logs of 4 MiB.
pub const MIRROR: &str = "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"32MiB\"\n\
    [device.b]\ntype = \"file\"\npath = \"b.img\"\nsize = \"32MiB\"\n\
    [device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\
    exposure = { bytes = \"512KiB\" }\n\
    [export.vol]\ndevice = \"vol\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n\
    [server]\nlock_memory = false\nmemory = \"16MiB\"\n";

/// A directory that is removed at the end of the test.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory; `name` distinguishes the tests.
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("bimetal-cli-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    /// Returns the path of a file in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a text file and returns its path.
    pub fn text(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Creates a file of zeroes and returns its path.
    pub fn zeroes(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        std::fs::File::create_new(&path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
        path
    }

    /// Returns the names of the files in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A failed removal leaves files in the temporary directory, and fails no test.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a command that runs the program with these arguments.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bimetal"));
    command.args(args);
    command
}

/// Runs the program to its end.
pub fn bimetal(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Returns the standard output of the program, which must exit with status 0 and print nothing on
/// standard error.
pub fn stdout_of(args: &[&str]) -> String {
    let output = bimetal(args);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}\n{out}\n{err}");
    assert_eq!(err, "", "{args:?}");
    out
}

/// Asserts that the program refuses with this exit status and with one line that contains all of
/// `words`. A list of ranges may follow the line.
pub fn assert_refused(args: &[&str], status: i32, words: &[&str]) {
    let output = bimetal(args);
    let (out, err) = texts(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}\n{out}\n{err}");
    assert_eq!(out, "", "a refusal prints nothing on standard output");
    let mut list = err.lines().skip(1);
    let is_item = |line: &str| line.starts_with("  ") && line.contains('+');
    assert!(
        err.starts_with("bimetal: ") && err.ends_with('\n') && list.all(is_item),
        "a refusal is one line and a list: {err:?}"
    );
    for word in words {
        assert!(err.contains(word), "{word:?} is not in {err:?}");
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

/// Returns a path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server that has printed `ready`; it is killed on drop if it still runs.
pub struct Served(Child);

impl Served {
    /// Runs `bimetal serve CONFIG`.
    pub fn start(config: &Path) -> Served {
        Served::start_with(config, &[])
    }

    /// Runs `bimetal serve CONFIG` with further options.
    pub fn start_with(config: &Path, options: &[&str]) -> Served {
        Served::run(&[&["serve", arg(config)], options].concat())
    }

    /// Runs `bimetal` with a verb that prints `ready`, and waits for that line.
    pub fn run(args: &[&str]) -> Served {
        let mut child = command(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.as_mut().unwrap());
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Served(child)
    }

    /// Returns the names of the server's threads, as the kernel shows them.
    pub fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
            name.unwrap().trim_end().to_owned()
        };
        tasks.map(name).collect()
    }

    /// Sends a signal and waits for the end of the server. Returns its exit status and its output
    /// on standard error.
    pub fn end(mut self, signal: &str) -> (Option<i32>, String) {
        let pid = self.0.id().to_string();
        let kill = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(kill.unwrap().success());
        let status = self.0.wait().unwrap();
        let mut said = String::new();
        let pipe = self.0.stderr.as_mut().unwrap();
        pipe.read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // The server has ended already, unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `NBD_CMD_READ`.
pub const READ: u16 = 0;
/// `NBD_CMD_WRITE`.
pub const WRITE: u16 = 1;
/// `NBD_CMD_FLUSH`.
pub const FLUSH: u16 = 3;

/// A client of the export `vol`, which writes the bytes of the NBD protocol itself.
pub struct Client {
    stream: UnixStream,
    /// Size of the export, as told by the server.
    pub size_bytes: u64,
}

impl Client {
    /// Connects with `NBD_OPT_EXPORT_NAME`.
    pub fn connect(socket: &Path) -> Client {
        let mut stream = UnixStream::connect(socket).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        // The client flags are fixed newstyle and no zeroes. The option with 3 bytes of data
        // follows.
        stream.write_all(&[0, 0, 0, 3]).unwrap();
        let option = b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol";
        stream.write_all(option).unwrap();
        let mut export = [0; 10];
        stream.read_exact(&mut export).unwrap();
        let size_bytes = u64::from_be_bytes(export[..8].try_into().unwrap());
        Client { stream, size_bytes }
    }

    /// Sends a request without waiting for the answer.
    pub fn ask(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) {
        let mut request = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
        request.extend(command.to_be_bytes());
        // The cookie.
        request.extend(1u64.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request).unwrap();
    }

    /// Waits for the answer to a request that returns `len` bytes; returns these bytes, or an
    /// errno.
    pub fn answer(&mut self, len: usize) -> Result<Vec<u8>, u32> {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98]);
        match u32::from_be_bytes(reply[4..8].try_into().unwrap()) {
            0 => {}
            errno => return Err(errno),
        }
        let mut data = vec![0; len];
        self.stream.read_exact(&mut data).unwrap();
        Ok(data)
    }

    /// Reads a block of 4 KiB.
    pub fn read(&mut self, offset: u64) -> Result<Vec<u8>, u32> {
        self.ask(READ, offset, 4096, &[]);
        self.answer(4096)
    }

    /// Writes a block of 4 KiB, durably.
    pub fn write(&mut self, offset: u64, byte: u8) -> Result<(), u32> {
        self.ask(WRITE, offset, 4096, &[byte; 4096]);
        self.answer(0)?;
        self.ask(FLUSH, 0, 0, &[]);
        self.answer(0).map(|_nothing| ())
    }
}
