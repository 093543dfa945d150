//! Why a run has no outcome, wherever it happens.

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
    /// The load did not come to its end.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Settings that cannot be made, though they were read.
    #[error("{0}")]
    Settings(String),
    /// The device refused something.
    #[error("the device refused a request: {0}")]
    Device(IoError),
    /// Devices of our stack do not open or close.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The machine does not do what the run needs.
    #[error(transparent)]
    Native(#[from] NativeError),
}

/// Why devices of our stack made no run.
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

/// Why this machine cannot make a run.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// It is not wanted, or not to be had.
    #[error("{0}")]
    Refused(String),
    /// The kernel refused.
    #[error("{what}: {error}")]
    Io {
        /// What was asked.
        what: String,
        /// The answer.
        error: io::Error,
    },
    /// A setting was written and reads something else.
    #[error("{} did not take: `{wanted}` was wanted, and it reads `{found}`", path.display())]
    NotTaken {
        /// Its file.
        path: PathBuf,
        /// What was written.
        wanted: String,
        /// What it reads.
        found: String,
    },
    /// Something is not as it was before.
    #[error(
        "not everything could be put back; what is left stands in {FOLDER}/journal.json, and `bimetal lab restore` tries again: {0}"
    )]
    NotPutBack(Box<NativeError>),
}
