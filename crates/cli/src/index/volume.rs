//! An index on a device of a configuration. A dedicated thread opens the device and the devices
//! below it, and runs them while the index is open.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use bimetal_block::graph::{OpenOptions, Stack};
use bimetal_index::storage::Storage;
use bimetal_index::storage::device::{DeviceStorage, Opened};
use bimetal_index::storage::file::FileStorage;
use bimetal_rt::Rt;

use super::unopened;
use crate::config::Config;
use bimetal_console::stderr::say;

/// Location of an index.
#[derive(clap::Args)]
pub(super) struct WhereArgs {
    /// Take INDEX as the name of a device in this configuration; no server may use the device at
    /// the same time
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

impl WhereArgs {
    /// Opens the storage of an index for reading only.
    pub(super) fn storage_to_read(&self, index: &Path) -> Result<Arc<dyn Storage>> {
        if let Some(config) = &self.config {
            return Ok(Arc::new(open_device(config, index)?));
        }
        let storage = FileStorage::open_read_only(index);
        Ok(Arc::new(storage.map_err(|error| unopened(index, &error))?))
    }
}

/// Opens the device `name` of a configuration.
pub(super) fn open_device(config: &Path, name: &Path) -> Result<DeviceStorage> {
    let config = Config::load(config)?;
    let device = name.to_str();
    let device = device.ok_or_else(|| anyhow!("{}: no device has this name", name.display()))?;
    let device = config.device(device)?.to_owned();
    let options = config.server.runtime(0);
    let path = config.path.display().to_string();
    let graph = config.graph;
    let open = async move |rt: &Rt| {
        let stack = Stack::open(rt, &graph, &[&device], &OpenOptions::default()).await;
        let stack = stack.map_err(|error| error.to_string())?;
        let top = stack.get(&device).expect("the root of a stack is open");
        Ok(Opened {
            device: Rc::clone(top),
            close: Box::pin(close(stack)),
        })
    };
    DeviceStorage::start(options, open).map_err(|why| anyhow!("{path}: {why}"))
}

async fn close(stack: Stack) {
    if let Err((device, error)) = stack.close().await {
        say(format_args!(
            "bimetal: device {device}: closing failed: {error}"
        ));
    }
}
