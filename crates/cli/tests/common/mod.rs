//! Helpers that run servers with the built program, each test in a directory of its own.

mod program;

#[allow(unused_imports, reason = "every test file uses its part")]
pub use program::{Scratch, arg, assert_refused, bimetal, command, stdout_of};

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Configuration of a mirror of two files, served at a socket in the folder of the configuration.
/// The exposure bound is small enough for the logs of 4 MiB.
pub const MIRROR: &str = "[device.a]\ntype = \"file\"\npath = \"a.img\"\nsize = \"32MiB\"\n\
    [device.b]\ntype = \"file\"\npath = \"b.img\"\nsize = \"32MiB\"\n\
    [device.vol]\ntype = \"mirror\"\nsides = [\"a\", \"b\"]\n\
    exposure = { bytes = \"512KiB\" }\n\
    [export.vol]\ndevice = \"vol\"\nprotocol = \"nbd\"\nlisten = \"unix:vol.sock\"\n\
    [server]\nlock_memory = false\nmemory = \"16MiB\"\n";

/// Returns a configuration of [`MIRROR`] whose sides get homes when they are formatted.
pub fn with_homes(text: &str) -> String {
    text.replace(
        "type = \"mirror\"\n",
        "type = \"mirror\"\nlayout = \"home\"\n",
    )
}

/// A server that has printed `ready`. If it still runs when the value is dropped, it is killed.
pub struct Served(Child);

impl Served {
    /// Runs `bimetal serve CONFIG`.
    pub fn start(config: &Path) -> Served {
        Served::start_with(config, &[])
    }

    /// Runs `bimetal serve CONFIG` with additional options.
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

    /// Sends a signal to the server and waits until it has exited. Returns its exit status and its
    /// output on standard error.
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
        // The server has already exited, unless the test has failed.
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

/// An NBD client of the export `vol`, which writes the bytes of the protocol itself.
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
        // The client flags are fixed newstyle and no zeroes. The option `NBD_OPT_EXPORT_NAME` with
        // 3 bytes of data follows.
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

    /// Waits for the answer to a request. Returns the `len` bytes of its data, or an errno.
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
