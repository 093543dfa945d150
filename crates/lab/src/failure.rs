//! Reasons why a run has no outcome.

use std::io;
use std::path::PathBuf;

use bimetal_block::IoError;
use bimetal_block::error::OpenError;

use crate::layer::LoadError;

/// The folder of the lock, the journal and the mount point.
pub(crate) const FOLDER: &str = "/run/bimetal-lab";

/// Why a run has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The load did not finish.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The settings were parsed but cannot be realized.
    #[error("{0}")]
    Settings(String),
    /// The device refused something.
    #[error("the device refused a request: {0}")]
    Device(IoError),
    /// Devices of our stack do not open or close.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The machine does not support the run.
    #[error(transparent)]
    Native(#[from] NativeError),
}

/// Reason why devices of our stack made no run.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// One could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// One could not be closed.
    #[error("device {device}: closing failed: {error}")]
    Close {
        /// Its name.
        device: String,
        /// What it answered.
        error: IoError,
    },
}

/// Reason why this machine cannot execute a run.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// The run is refused: a permission, program or device is missing, or the run could destroy
    /// data.
    #[error("{0}")]
    Refused(String),
    /// The kernel refused.
    #[error("{what}: {error}")]
    Io {
        /// Requested operation.
        what: String,
        /// Error returned by the kernel.
        error: io::Error,
    },
    /// A setting was written but reads back a different value.
    #[error("{} did not take: `{wanted}` was wanted, and it reads `{found}`", path.display())]
    NotTaken {
        /// File of the setting.
        path: PathBuf,
        /// Value written.
        wanted: String,
        /// Value read.
        found: String,
    },
    /// A setting could not be restored.
    #[error(
        "not everything could be put back; what is left stands in {FOLDER}/journal.json, and `bimetal-lab restore` tries again: {0}"
    )]
    NotPutBack(Box<NativeError>),
}
