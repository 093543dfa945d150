//! Checks the process's resource limits before any device is opened. For each limit that is too
//! low, a message names the limit, the required value, and how to raise the limit.

use std::fs::metadata;

use anyhow::{Result, bail};
use bimetal_block::graph::Node;
use bimetal_rt::Rt;
use bimetal_rt::real_time::{ProcessLimit, raise_open_files};

use crate::config::Config;
use crate::{logged, runtime};
use bimetal_console::stderr::say;

/// Number of descriptors of a server that are neither for devices nor for clients: standard
/// streams, the ring, the control socket and its connections, threads and signals.
const FILES_BESIDES: u64 = 48;
/// Number of descriptors assumed for each device. This is only an estimate: a stripe of files needs
/// one descriptor for each file, and a remote medium needs up to 16.
const FILES_OF_DEVICE: u64 = 4;

/// Checks the limits of the process, and creates the runtime of a server.
///
/// # Errors
/// If a limit makes serving impossible, or the runtime cannot be created.
pub(crate) fn start_server(config: &Config) -> Result<Rt> {
    logged::start(config.server.log);
    check_file_sizes(config)?;
    if let Err(error) = raise_open_files() {
        say(format_args!(
            "bimetal: warning: the limit of open files cannot be raised: {error}"
        ));
    }
    let files = ProcessLimit::OpenFiles.value();
    let lines = [
        too_few_files(config, files),
        config.server.memory_line.clone(),
    ];
    for line in lines.into_iter().flatten() {
        say(format_args!("bimetal: warning: {line}"));
    }
    runtime::start(config.server.runtime_of_server())
}

/// Refuses a configuration with a writable file larger than the file size limit of this process
/// (`RLIMIT_FSIZE`).
///
/// # Errors
/// The first file that exceeds the limit.
pub(crate) fn check_file_sizes(config: &Config) -> Result<()> {
    let Some(limit) = ProcessLimit::FileBytes.value() else {
        return Ok(());
    };
    for (name, node) in config.graph.nodes() {
        let Node::File(file) = node else { continue };
        // The limit does not apply to block devices. For a missing file, the size in the
        // configuration is compared with the limit.
        let bytes = match metadata(&file.path) {
            Ok(found) if !found.is_file() => continue,
            Ok(found) => found.len(),
            Err(_) => file.size.map_or(0, |size| size.0),
        };
        if bytes > limit && !file.read_only {
            bail!(
                "device {name}: {}: {}; {} KiB are needed",
                file.path.display(),
                ProcessLimit::FileBytes.words(limit),
                bytes.div_ceil(1024)
            );
        }
    }
    Ok(())
}

/// Returns a warning if the server may need more descriptors than its limit, given the maximum
/// number of clients of its exports.
fn too_few_files(config: &Config, limit: Option<u64>) -> Option<String> {
    let clients = config.exports.iter().map(|e| u64::from(e.connections_max));
    let devices = FILES_OF_DEVICE * config.graph.nodes().len() as u64;
    let needed = FILES_BESIDES + devices + clients.sum::<u64>();
    let limit = limit.filter(|limit| *limit < needed)?;
    Some(format!(
        "{}; {needed} may be needed with all clients that the exports allow, and further clients \
        are refused",
        ProcessLimit::OpenFiles.words(limit)
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn descriptors_are_counted_with_the_clients() {
        let text = "[device.a]\ntype = \"memory\"\nsize = \"1MiB\"\n[export.a]\ndevice = \"a\"\n\
                    protocol = \"nbd\"\nlisten = \"unix:a.sock\"\nconnections_max = 100\n";
        let config = Config::read(Path::new("vol.toml"), text).expect("it is right");
        // The server needs 48 descriptors for the process, 4 for the device and 100 for the
        // clients.
        let line = too_few_files(&config, Some(151)).expect("one too few");
        assert!(
            line.contains("RLIMIT_NOFILE, is 151") && line.contains("152"),
            "{line}"
        );
        assert_eq!(too_few_files(&config, Some(152)), None);
        assert_eq!(too_few_files(&config, None), None);
    }
}
