//! What can go wrong, in words for whoever runs the program that has an index inside.

use crate::storage::StorageError;

/// Why an operation of an index did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The storage failed.
    #[error("{action} at byte {offset}: {source}")]
    Storage {
        /// What was being done.
        action: &'static str,
        /// Where, in bytes from the start of the storage.
        offset: u64,
        /// What the storage said.
        source: StorageError,
    },
    /// There is no space for more, neither in the storage nor in the log. Reads and deletes go on as
    /// far as the log has room; the write that got this has changed nothing.
    #[error("no space left: the storage cannot grow beyond {len_bytes} bytes")]
    Full {
        /// How long the storage is.
        len_bytes: u64,
    },
    /// What is there is not an index, or nothing is there.
    #[error("this is not an index: {reason}")]
    NotAnIndex {
        /// What is there instead.
        reason: String,
    },
    /// It was written by a later version of this program.
    #[error("the format has version {found}; this program knows {known}")]
    Version {
        /// The version there.
        found: u32,
        /// The highest version that is known here.
        known: u32,
    },
    /// Something is not what was written. `verify` tells what of it can be read.
    #[error("damaged: {what} at byte {offset}")]
    Damaged {
        /// What should have been there.
        what: String,
        /// Where.
        offset: u64,
    },
    /// The key is too long.
    #[error("a key of {bytes} bytes: at most {max} are possible")]
    KeyTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The batch is too long for the log.
    #[error("a batch of {bytes} bytes: with this log at most {max} are possible")]
    BatchTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// Writing has failed before, so nobody knows what is durable, or the index was opened only to be read.
    /// Reads go on. To write, open the index anew.
    #[error("read-only: {reason}")]
    ReadOnly {
        /// The error that made it so.
        reason: String,
    },
    /// A key that the transaction has read or written was written by somebody else since it began.
    #[error("another transaction was faster")]
    Conflict,
    /// The snapshot held back more than it may.
    #[error("the snapshot is too old")]
    SnapshotTooOld,
    /// An option has an impossible value.
    #[error("{option}: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The file could not be opened.
    #[error("{path}: {reason}")]
    Open {
        /// The file.
        path: String,
        /// What the operating system said.
        reason: String,
    },
}

/// Adds the place and what was done to an error of the storage.
pub(crate) trait At<T> {
    fn at(self, action: &'static str, offset: u64) -> Result<T, Error>;
}

impl<T> At<T> for Result<T, StorageError> {
    fn at(self, action: &'static str, offset: u64) -> Result<T, Error> {
        self.map_err(|source| Error::Storage {
            action,
            offset,
            source,
        })
    }
}
