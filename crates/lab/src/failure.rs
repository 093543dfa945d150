//! Errors of runs, which leave a run without an outcome.

use std::io;
use std::path::PathBuf;

use bimetal_block::IoError;
use bimetal_block::error::OpenError;

use crate::layer::LoadError;

/// Folder for the lock, the journal and the mount point of a native run.
pub(crate) const FOLDER: &str = "/run/bimetal-lab";

/// Error of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The load did not finish.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The settings are well-formed but cannot be realized.
    #[error("{0}")]
    Settings(String),
    /// The device failed a request.
    #[error("the device refused a request: {0}")]
    Device(IoError),
    /// A device of this project's stack could not be opened or closed.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// This machine cannot execute the run.
    #[error(transparent)]
    Native(#[from] NativeError),
}

/// Error of a run on devices of this project's stack.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// A device could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A device could not be closed.
    #[error("device {device}: closing failed: {error}")]
    Close {
        /// Name of the device.
        device: String,
        /// Error returned by the device.
        error: IoError,
    },
}

/// Reason why this machine cannot execute a run.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// The run is refused, because a permission, a program or a device is missing, or because the
    /// run could destroy data.
    #[error("{0}")]
    Refused(String),
    /// A system call failed.
    #[error("{what}: {error}")]
    Io {
        /// Operation that was requested.
        what: String,
        /// Error returned by the kernel.
        error: io::Error,
    },
    /// A setting was written but reads back a different value.
    #[error(
        "{} was not applied: `{wanted}` was written, but `{found}` was read back",
        path.display()
    )]
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
        "not all changes could be undone; the rest is listed in {FOLDER}/journal.json, and \
        `bimetal-lab restore` tries again: {0}"
    )]
    NotPutBack(Box<NativeError>),
}
