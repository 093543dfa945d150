//! A parsed configuration file: the devices, the exports and the options of the server.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use bimetal_block::document::{read_text, resolve};
use bimetal_block::graph::{Document, Graph, Node};
use bimetal_block::units::{Size, Time, show_size};
use bimetal_control::AskError;
use bimetal_export::{ExportConfig, Limits};
use bimetal_rt::net::Address;
use bimetal_rt::real_time::SPIN_DEFAULT;
use bimetal_rt::{DriverChoice, UringOptions};
use serde::Deserialize;
use serde_json::Value;

use crate::cgroup;
use crate::logged::Log;

/// Maximum number of connection threads, larger than the number of cores of any usual machine.
const CONNECTION_THREADS_MAX: u32 = 256;
/// Default buffer memory, without the memory for the exposure of the mirrors, which is added to it.
const POOL_BYTES: u64 = 64 << 20;
/// Buffer memory that a server has from the start, where nothing limits the memory of its process.
const POOL_BYTES_AT_START: u64 = 16 << 20;
/// Maximum heap memory that a server makes resident, unless the memory limit is too low.
const HEAP_RESERVE_BYTES: u64 = 64 << 20;
/// Memory reserved for the program, its stacks and its tables (13 MiB were measured).
const PROGRAM_BYTES: u64 = 24 << 20;
/// Minimum size of the buffer memory when the size is derived from the memory limit of the process.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Default deadline for completing requests in flight and closing the devices when the server
/// stops.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// A configuration that has been read and validated; no device is open.
pub(crate) struct Config {
    /// Path of the configuration file.
    pub(crate) path: PathBuf,
    /// The devices.
    pub(crate) graph: Graph,
    /// The exports, by name.
    pub(crate) exports: Vec<ExportConfig>,
    /// Options of the section `[server]`.
    pub(crate) server: ServerOptions,
}

/// Options of the section `[server]`; missing keys have their defaults.
pub(crate) struct ServerOptions {
    /// Path of the control socket.
    pub(crate) control: PathBuf,
    /// Size of the buffer pool.
    pub(crate) memory_bytes: u64,
    /// Part of the buffer pool that has memory from the start.
    pub(crate) memory_bytes_at_start: u64,
    /// Part of `memory_bytes` for the data of clients' requests in flight. The rest is for writes
    /// that wait for a slow side of a mirror.
    pub(crate) data_bytes: u64,
    /// Maximum heap memory that is made resident before the first request. It is used for small
    /// allocations while serving, and for the in-memory entry of each change in the logs.
    pub(crate) heap_reserve_bytes_max: u64,
    /// Warning for the operator that the memory limit of the process is too low; `None` if the
    /// limit is sufficient.
    pub(crate) memory_line: Option<String>,
    /// Whether to lock the process into memory.
    pub(crate) lock_memory: bool,
    /// Driver that executes the I/O of this process.
    pub(crate) driver: DriverChoice,
    /// Time for which a thread busy-polls before it sleeps.
    pub(crate) spin: Duration,
    /// Number of threads that carry connections. If it is 0, the server's own thread carries them.
    pub(crate) connection_threads: u32,
    /// Time after which a stopping server exits even if requests are still in flight.
    pub(crate) stop_deadline: Duration,
    /// The operator's alert command, which is run for each event of a volume.
    pub(crate) alert: Option<String>,
    /// Form of the lines on standard error.
    pub(crate) log: Log,
    /// Address at which metrics can be read.
    pub(crate) metrics: Option<Address>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerSection {
    control: Option<String>,
    memory: Option<Size>,
    lock_memory: Option<bool>,
    driver: Option<Driver>,
    spin: Option<Time>,
    connection_threads: Option<ConnectionThreads>,
    stop_deadline: Option<Time>,
    alert: Option<String>,
    metrics: Option<String>,
    log: Option<Log>,
}

/// Name of a driver in the configuration.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Driver(DriverChoice);

impl TryFrom<String> for Driver {
    type Error = String;

    fn try_from(word: String) -> Result<Driver, String> {
        word.parse().map(Driver)
    }
}

/// Number of connection threads, at most [`CONNECTION_THREADS_MAX`].
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "i64")]
struct ConnectionThreads(u32);

impl TryFrom<i64> for ConnectionThreads {
    type Error = String;

    fn try_from(count: i64) -> Result<ConnectionThreads, String> {
        match u32::try_from(count) {
            Ok(count) if count <= CONNECTION_THREADS_MAX => Ok(ConnectionThreads(count)),
            _ => Err(format!(
                "{count} threads, expected 0 to {CONNECTION_THREADS_MAX}"
            )),
        }
    }
}

impl Config {
    /// Reads the configuration file at `path`.
    ///
    /// # Errors
    /// The first mistake in the file, with its position.
    pub(crate) fn load(path: &Path) -> Result<Config> {
        Config::read_within(path, &read_text(path)?, cgroup::memory_limit_bytes())
    }

    /// Parses `text` as the content of the configuration file at `path`, for a process without a
    /// memory limit.
    pub(crate) fn read(path: &Path, text: &str) -> Result<Config> {
        Config::read_within(path, text, None)
    }

    /// Parses a configuration as [`Config::read`] does, for a process with a memory limit of
    /// `process_bytes_max` bytes.
    fn read_within(path: &Path, text: &str, process_bytes_max: Option<u64>) -> Result<Config> {
        let document = Document::parse(path, text)?;
        let graph = Graph::read(&document)?;
        let mut exports = ExportConfig::read(&document)?;
        for export in &mut exports {
            if !graph.nodes().contains_key(&export.device) {
                let sections = document.named("export");
                let mut sections = sections.filter(|(name, _)| *name == export.name);
                let section = sections.next().expect("the export was read from it").1;
                let message = format!("there is no device `{}`", export.device);
                return Err(section.error(message).into());
            }
            export.persistence = graph.persistence(&export.device);
        }
        let server = ServerOptions::read(&document, &graph, process_bytes_max)?;
        Ok(Config {
            path: path.to_owned(),
            graph,
            exports,
            server,
        })
    }

    /// Asks the running server.
    ///
    /// # Errors
    /// One line with the path of the control socket, if no server answers, or it refuses.
    pub(crate) fn ask(&self, request: &Value) -> Result<Value> {
        let answer = bimetal_control::ask(&self.server.control, request);
        answer.map_err(|error| self.not_answered(&error))
    }

    /// Has the running server carry out an operation, and waits for its end.
    ///
    /// # Errors
    /// One line with the path of the control socket, if no server answers, or it refuses or fails.
    pub(crate) fn carry_out(&self, request: &Value) -> Result<Value> {
        let outcome = bimetal_control::carry_out(&self.server.control, request);
        outcome.map_err(|error| self.not_answered(&error))
    }

    fn not_answered(&self, error: &AskError) -> anyhow::Error {
        let socket = self.server.control.display();
        match error {
            AskError::NotConnected(why) if why.kind() == ErrorKind::PermissionDenied => {
                anyhow!("the server at {socket} cannot be asked: {why}; ask as its user")
            }
            AskError::NotConnected(why) => anyhow!(
                "no server answers at {socket}: {why}; start it with `bimetal serve {}`",
                self.path.display()
            ),
            // What the server says names the volume, or whatever it is about.
            AskError::Refused(_) | AskError::OperationFailed { .. } => anyhow!("{error}"),
            _ => anyhow!("the server at {socket}: {error}"),
        }
    }

    /// Checks that the device `name` is in the configuration, and returns the name as stored there.
    ///
    /// # Errors
    /// If there is no such device. The message lists the existing devices.
    pub(crate) fn device(&self, name: &str) -> Result<&str> {
        match self.graph.nodes().get_key_value(name) {
            Some((name, _)) => Ok(name),
            None => {
                let names: Vec<&str> = self.graph.nodes().keys().map(String::as_str).collect();
                bail!(
                    "{}: no device `{name}`; there are: {}",
                    self.path.display(),
                    names.join(", ")
                )
            }
        }
    }
}

impl ServerOptions {
    /// Returns the options of the runtime of a server, whose pool begins small and
    /// [grows](bimetal_rt::growth).
    pub(crate) fn runtime_of_server(&self) -> UringOptions {
        UringOptions {
            pool_bytes_at_start: self.memory_bytes_at_start as usize,
            ..self.runtime(0)
        }
    }

    /// Returns the options of the runtime. Its random numbers are generated from `seed`.
    pub(crate) fn runtime(&self, seed: u64) -> UringOptions {
        UringOptions {
            pool_bytes: self.memory_bytes as usize,
            seed,
            driver: self.driver,
            spin: self.spin,
            ..UringOptions::default()
        }
    }

    /// Returns the maximum number of heap bytes that the server makes resident when it locks itself
    /// into memory; `None` if the server does not lock itself.
    pub(crate) fn memory_to_lock(&self) -> Option<u64> {
        self.lock_memory.then_some(self.heap_reserve_bytes_max)
    }

    /// Returns the resource limits for the server of the exports, whose mirrors have an exposure of
    /// at most `exposure_bytes` together.
    pub(crate) fn limits(&self, exposure_bytes: u64) -> Limits {
        Limits {
            connection_threads: self.connection_threads,
            data_bytes: Some(self.data_bytes),
            deferred_bytes: exposure_bytes,
        }
    }

    fn read(
        document: &Document<'_>,
        graph: &Graph,
        process_bytes_max: Option<u64>,
    ) -> Result<ServerOptions> {
        let section: ServerSection = match document.single("server") {
            Some(section) => section.clone().read()?,
            None => ServerSection::default(),
        };
        let control = match &section.control {
            Some(address) => {
                let path = unix_path(address).with_context(|| {
                    format!("{}: `control` in [server]", document.path().display())
                })?;
                resolve(document.path(), &path)
            }
            None => document.path().with_extension("ctl"),
        };
        let metrics = section.metrics.as_deref();
        let metrics = metrics.map(|address| {
            let address = metrics_address(document.path(), address);
            address.map_err(|why| {
                anyhow!(
                    "{}: `metrics` in [server]: {why}",
                    document.path().display()
                )
            })
        });
        let exposure_bytes = exposure_bytes(graph);
        let default_bytes = POOL_BYTES.saturating_add(exposure_bytes);
        let asked_for = section.memory.map(|size| size.0);
        let Fitted {
            memory_bytes,
            heap_bytes,
            line,
        } = fit(asked_for, default_bytes, process_bytes_max);
        // A pool that grows under a limit of the process could have the kernel kill the process, so
        // it has all of its memory from the start there.
        let at_start = process_bytes_max.map_or(POOL_BYTES_AT_START, |_| memory_bytes);
        Ok(ServerOptions {
            control,
            memory_bytes,
            memory_bytes_at_start: at_start.min(memory_bytes),
            heap_reserve_bytes_max: heap_bytes,
            memory_line: line,
            // If the memory is too small for the exposure bounds, the requests in flight still get
            // half of it.
            data_bytes: memory_bytes
                .saturating_sub(exposure_bytes)
                .max(memory_bytes / 2),
            lock_memory: section.lock_memory.unwrap_or(true),
            driver: section.driver.map_or(DriverChoice::Auto, |word| word.0),
            spin: section.spin.map_or(SPIN_DEFAULT, |time| time.0),
            connection_threads: section.connection_threads.map_or(0, |threads| threads.0),
            stop_deadline: section.stop_deadline.map_or(STOP_DEADLINE, |time| time.0),
            alert: section.alert,
            log: section.log.unwrap_or_default(),
            metrics: metrics.transpose()?,
        })
    }
}

/// Memory that a server uses at most, given the memory limit of its process.
#[derive(Debug, PartialEq, Eq)]
struct Fitted {
    memory_bytes: u64,
    heap_bytes: u64,
    line: Option<String>,
}

/// Fits a server's memory to the process's memory limit, `limit` bytes. A configured size is never
/// changed; if it does not fit, the result contains a warning.
fn fit(asked_for: Option<u64>, default_bytes: u64, limit: Option<u64>) -> Fitted {
    let wanted = asked_for.unwrap_or(default_bytes);
    let heap_bytes = limit.map_or(HEAP_RESERVE_BYTES, |all| HEAP_RESERVE_BYTES.min(all / 4));
    let room = limit.map_or(u64::MAX, |all| {
        all.saturating_sub(heap_bytes + PROGRAM_BYTES)
    });
    let whole = Fitted {
        memory_bytes: wanted,
        heap_bytes,
        line: None,
    };
    let Some(all) = limit.filter(|_| wanted > room) else {
        return whole;
    };
    let (all, wanted) = (show_size(all), show_size(wanted));
    if asked_for.is_some() {
        let line = format!(
            "`memory` in [server] is {wanted}, but the memory cgroup of this process allows {all} \
            in total, so the kernel may kill the server; set at most {}, or raise memory.max",
            show_size(room)
        );
        return Fitted {
            line: Some(line),
            ..whole
        };
    }
    // A quarter is left for the page cache and for unforeseen use.
    let memory_bytes = (((room / 4 * 3) >> 20) << 20).max(MEMORY_BYTES_MIN);
    let line = format!(
        "the memory cgroup of this process allows {all} in total, so `memory` is {} instead of \
        {wanted}; raise memory.max to use more",
        show_size(memory_bytes)
    );
    Fitted {
        memory_bytes,
        heap_bytes,
        line: Some(line),
    }
}

/// Returns the sum of the exposure bounds of all mirrors (the exposure of a mirror is the
/// acknowledged bytes that are not on every side yet). The sum bounds the memory of their delay
/// queues. A mirror with an experimental policy has no exposure bound. For such a mirror the
/// default bound is added, and its memory beyond this bound comes from the heap.
fn exposure_bytes(graph: &Graph) -> u64 {
    let mirrors = graph.nodes().values().filter_map(|node| match node {
        Node::Mirror(mirror) => Some(mirror.exposure.bytes.0),
        _ => None,
    });
    mirrors.fold(0, u64::saturating_add)
}

/// Returns the path in an address of the form `unix:PATH`.
/// Returns the address at which metrics can be read. They name devices and paths, and nothing
/// identifies who reads them, so other machines cannot be allowed to.
///
/// # Errors
/// Why the text is not such an address.
fn metrics_address(of_file: &Path, address: &str) -> Result<Address, String> {
    match address.parse()? {
        Address::Unix(path) => Ok(Address::Unix(resolve(of_file, &path))),
        Address::Tcp(address) if address.ip().is_loopback() => Ok(Address::Tcp(address)),
        Address::Tcp(address) => Err(format!(
            "{address} can be reached from other machines, and metrics are not protected; use \
            \"tcp:127.0.0.1:{}\" or a UNIX socket, and a proxy with TLS",
            address.port()
        )),
        Address::Rdma(_) => Err("metrics are served over TCP and UNIX sockets".to_owned()),
    }
}

fn unix_path(address: &str) -> Result<PathBuf> {
    match address.strip_prefix("unix:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => bail!("`{address}` is not a UNIX socket, expected as in \"unix:vol.ctl\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: &str = "[device.a]\ntype = \"memory\"\nsize = \"1MiB\"\n";

    fn read(server: &str) -> Result<Config> {
        Config::read(Path::new("dir/vol.toml"), &format!("{DEVICE}{server}"))
    }

    #[test]
    fn server_options_have_defaults() {
        let server = read("").unwrap().server;
        assert_eq!(server.control, Path::new("dir/vol.ctl"));
        assert_eq!(server.memory_bytes, 64 << 20);
        assert!(server.lock_memory);
        assert_eq!(server.stop_deadline, Duration::from_secs(60));
        assert_eq!(server.connection_threads, 0);
        assert_eq!(server.driver, DriverChoice::Auto);
    }

    #[test]
    fn memory_is_fitted_to_the_cgroup() {
        const MIB: u64 = 1 << 20;
        let fitted = |asked_for, limit| fit(asked_for, 128 * MIB, limit);
        let whole = Fitted {
            memory_bytes: 128 * MIB,
            heap_bytes: 64 * MIB,
            line: None,
        };
        assert_eq!(fitted(None, None), whole);
        // With a limit of 256 MiB nothing is reduced: 128 MiB of buffers, 64 MiB of heap and 24 MiB
        // for the program fit.
        assert_eq!(fitted(None, Some(256 * MIB)), whole);
        let half = fitted(None, Some(128 * MIB));
        // A quarter of the limit of 128 MiB is heap, and 24 MiB are for the program. The buffers
        // get three quarters of the remaining 72 MiB.
        assert_eq!((half.memory_bytes, half.heap_bytes), (54 * MIB, 32 * MIB));
        let line = half.line.expect("it is said");
        assert!(
            line.contains("allows 128 MiB") && line.contains("is 54 MiB"),
            "{line}"
        );
        let tiny = fitted(None, Some(16 * MIB));
        assert_eq!((tiny.memory_bytes, tiny.heap_bytes), (4 * MIB, 4 * MIB));
        // A configured size is not changed.
        let asked = fitted(Some(96 * MIB), Some(128 * MIB));
        assert_eq!(asked.memory_bytes, 96 * MIB);
        assert!(asked.line.is_some_and(|line| line.contains("at most 72")));
        assert_eq!(fitted(Some(72 * MIB), Some(128 * MIB)).line, None);
    }

    #[test]
    fn memory_covers_the_delay_queues() {
        let text = "[device.b]\ntype = \"memory\"\nsize = \"1MiB\"\n[device.m]\ntype = \"mirror\"\n\
                    sides = [\"a\", \"b\"]\nexposure = { bytes = \"16MiB\" }\n";
        // The memory is the sum of 64 MiB for requests and 16 MiB for the exposure (writes that are
        // not on every side yet).
        let server = read(text).unwrap().server;
        assert_eq!(server.memory_bytes, 80 << 20);
        // Memory for writes that wait for a slow side is not available to requests in flight.
        assert_eq!(server.data_bytes, 64 << 20);
    }

    #[test]
    fn server_options_are_read_and_checked() {
        let text = "[server]\ncontrol = \"unix:/run/x\"\nmemory = \"1MiB\"\nlock_memory = false\n\
                    stop_deadline = \"5s\"\nspin = \"0s\"\nconnection_threads = 3\ndriver = \"threads\"\n";
        let server = read(text).unwrap().server;
        assert_eq!(server.connection_threads, 3);
        assert_eq!(server.driver, DriverChoice::Threads);
        assert_eq!(server.spin, Duration::ZERO);
        assert_eq!(server.control, Path::new("/run/x"));
        assert_eq!((server.memory_bytes, server.lock_memory), (1 << 20, false));
        assert_eq!(server.stop_deadline, Duration::from_secs(5));
        for (bad, word) in [
            ("[server]\ncontrol = \"tcp:1\"\n", "unix:vol.ctl"),
            ("[server]\ncontrole = \"unix:x\"\n", "controle"),
            ("[server]\nmemory = 5\n", "dir/vol.toml:5:10"),
            ("[server]\nconnection_threads = -1\n", "expected 0 to 256"),
            ("[server]\nconnection_threads = 257\n", "dir/vol.toml:5:22"),
            ("[server]\ndriver = \"epoll\"\n", "expected \"auto\""),
        ] {
            let message = format!("{:#}", read(bad).err().unwrap());
            assert!(message.contains(word), "{message}");
        }
    }
}
