//! A configuration file as the verbs need it: devices, exports and the options of the server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bimetal_block::document::{read_text, resolve};
use bimetal_block::graph::{Document, Graph, Node};
use bimetal_block::units::{Size, Time};
use bimetal_export::{ExportConfig, Limits};
use bimetal_rt::real_time::SPIN_DEFAULT;
use bimetal_rt::{DriverChoice, UringOptions};
use serde::Deserialize;

/// Threads of connections, at most: more than machines have cores for.
const CONNECTION_THREADS_MAX: u32 = 256;
/// Memory for buffers besides what delayed writes may hold.
const POOL_BYTES: u64 = 64 << 20;
/// How long a stop may drain.
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// A configuration that has been read and checked; nothing is open.
pub(crate) struct Config {
    /// The file.
    pub(crate) path: PathBuf,
    /// The devices.
    pub(crate) graph: Graph,
    /// The exports, by name.
    pub(crate) exports: Vec<ExportConfig>,
    /// `[server]`.
    pub(crate) server: ServerOptions,
}

/// The section `[server]`, with its defaults filled in.
pub(crate) struct ServerOptions {
    /// Path of the control socket.
    pub(crate) control: PathBuf,
    /// Size of the buffer pool.
    pub(crate) memory_bytes: u64,
    /// How much of it is for the data of clients' requests in flight; the rest is for what waits
    /// for a late side of a mirror.
    pub(crate) data_bytes: u64,
    /// Whether to lock the process into memory.
    pub(crate) lock_memory: bool,
    /// Who carries operations of the kernel out.
    pub(crate) driver: DriverChoice,
    /// How long a thread looks for something to do before it sleeps.
    pub(crate) spin: Duration,
    /// Threads that carry the connections; with none, that of the server does.
    pub(crate) connection_threads: u32,
    /// How long a stop may drain before it gives up.
    pub(crate) stop_deadline: Duration,
    /// The command that is told what happens to volumes.
    pub(crate) alert: Option<String>,
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
}

/// The word for a driver.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Driver(DriverChoice);

impl TryFrom<String> for Driver {
    type Error = String;

    fn try_from(word: String) -> Result<Driver, String> {
        word.parse().map(Driver)
    }
}

/// A number of threads that some machine may have cores for.
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
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// The first mistake in it, with its place.
    pub(crate) fn load(path: &Path) -> Result<Config> {
        Config::read(path, &read_text(path)?)
    }

    /// Reads `text` as the content of the file at `path`.
    pub(crate) fn read(path: &Path, text: &str) -> Result<Config> {
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
        let server = ServerOptions::read(&document, &graph)?;
        Ok(Config {
            path: path.to_owned(),
            graph,
            exports,
            server,
        })
    }

    /// The device `name`.
    ///
    /// # Errors
    /// When there is none; the message names those that exist.
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
    /// The runtime that these ask for, with random numbers from `seed`.
    pub(crate) fn runtime(&self, seed: u64) -> UringOptions {
        UringOptions {
            pool_bytes: self.memory_bytes as usize,
            seed,
            driver: self.driver,
            spin: self.spin,
            ..UringOptions::default()
        }
    }

    /// What the server of the exports may use.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connection_threads: self.connection_threads,
            data_bytes: Some(self.data_bytes),
        }
    }

    fn read(document: &Document<'_>, graph: &Graph) -> Result<ServerOptions> {
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
        let exposure_bytes = exposure_bytes(graph);
        let default_bytes = POOL_BYTES.saturating_add(exposure_bytes);
        let memory_bytes = section.memory.map_or(default_bytes, |size| size.0);
        Ok(ServerOptions {
            control,
            memory_bytes,
            // With less than the exposure bounds both take from the same half.
            data_bytes: memory_bytes
                .saturating_sub(exposure_bytes)
                .max(memory_bytes / 2),
            lock_memory: section.lock_memory.unwrap_or(true),
            driver: section.driver.map_or(DriverChoice::Auto, |word| word.0),
            spin: section.spin.map_or(SPIN_DEFAULT, |time| time.0),
            connection_threads: section.connection_threads.map_or(0, |threads| threads.0),
            stop_deadline: section.stop_deadline.map_or(STOP_DEADLINE, |time| time.0),
            alert: section.alert,
        })
    }
}

/// What the delay queues of all mirrors together may hold. The experimental policies have no bound
/// of their own; they get what the others have by default, and the heap beyond.
fn exposure_bytes(graph: &Graph) -> u64 {
    let mirrors = graph.nodes().values().filter_map(|node| match node {
        Node::Mirror(mirror) => Some(mirror.exposure.bytes.0),
        _ => None,
    });
    mirrors.fold(0, u64::saturating_add)
}

/// The path in `unix:PATH`.
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
    fn memory_covers_the_delay_queues() {
        let text = "[device.b]\ntype = \"memory\"\nsize = \"1MiB\"\n[device.m]\ntype = \"mirror\"\n\
                    sides = [\"a\", \"b\"]\nexposure = { bytes = \"16MiB\" }\n";
        // 64 MiB for requests and 16 MiB of exposure.
        let server = read(text).unwrap().server;
        assert_eq!(server.memory_bytes, 80 << 20);
        // What waits for a late side is not for the data of requests in flight.
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
