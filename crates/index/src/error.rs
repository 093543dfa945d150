//! Errors of an index. Each has a message for the user of the program that embeds the index, and a
//! kind for that program.

use crate::storage::StorageError;

/// Reason why an operation of an index did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The storage failed.
    #[error("{action} at byte {offset}: {source}")]
    Storage {
        /// Action that failed.
        action: &'static str,
        /// Place of the failure, in bytes from the start of the storage.
        offset: u64,
        /// Error of the storage.
        source: StorageError,
    },
    /// Neither the storage nor the log has space for the write. The write has changed nothing.
    /// Reads continue, and deletions continue as long as the log has room.
    #[error("no space left: the storage cannot grow beyond {len_bytes} bytes")]
    Full {
        /// Length of the storage.
        len_bytes: u64,
    },
    /// The storage is empty or its content is not an index.
    #[error("this is not an index: {reason}")]
    NotAnIndex {
        /// Description of the content that was found.
        reason: String,
    },
    /// The index was written by a later version of this program.
    #[error("the format has version {found}, but this program supports version {known}")]
    Version {
        /// Version of the format that was found.
        found: u32,
        /// Highest version that this program knows.
        known: u32,
    },
    /// The storage is corrupt: it does not hold the written content. `verify` reports the parts
    /// that can be read.
    #[error("damaged: {what} at byte {offset}")]
    Damaged {
        /// Expected content.
        what: String,
        /// Place of the damage, in bytes from the start of the storage.
        offset: u64,
    },
    /// The key is too long ([`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX)).
    #[error("the key has {bytes} bytes, but at most {max} are possible")]
    KeyTooLong {
        /// Length of the key.
        bytes: usize,
        /// Maximum length.
        max: usize,
    },
    /// The value is too long for the segments of this index ([`Limits`](crate::Limits)).
    #[error(
        "the value has {bytes} bytes, but at most {max} are possible with the segments of this \
        index"
    )]
    ValueTooLong {
        /// Length of the value.
        bytes: usize,
        /// Maximum length.
        max: usize,
    },
    /// The batch is too long for the log of this index ([`Limits`](crate::Limits)).
    #[error(
        "the batch has {bytes} bytes, but at most {max} are possible with the log of this index"
    )]
    BatchTooLong {
        /// Length of the batch.
        bytes: usize,
        /// Maximum length.
        max: usize,
    },
    /// The index accepts no writes: writing has failed before, so that it is not known which writes
    /// are durable, or the index was opened for reading only, or it was closed. Reads continue. To
    /// write, open the index anew.
    #[error("read-only: {reason}")]
    ReadOnly {
        /// Reason why the index accepts no writes.
        reason: String,
    },
    /// A thread panicked while it changed the index, so the index's data in memory may be
    /// inconsistent. Reads and writes are refused. The content of the storage is as after a crash.
    /// Open the index anew.
    #[error("a thread panicked while it changed the index, which must be reopened: {reason}")]
    Poisoned {
        /// Message of the panic.
        reason: String,
    },
    /// A key that the transaction has written, or has read for update, was written by another
    /// transaction or batch since the transaction began.
    #[error("another transaction has changed the same keys")]
    Conflict,
    /// The snapshot is older than allowed, or versions that it needs have been dropped because
    /// their keys have too many versions.
    #[error("the snapshot is too old")]
    SnapshotTooOld,
    /// An option has an impossible value.
    #[error("{option}: {reason}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Reason why the value is impossible.
        reason: String,
    },
    /// The file could not be opened.
    #[error("{path}: {reason}")]
    Open {
        /// Path of the file.
        path: String,
        /// Kind of the error.
        kind: ErrorKind,
        /// Error text of the operating system.
        reason: String,
    },
}

/// Kind of an error, by which a program can decide how to proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another process has the index open: try again when it has ended.
    Busy,
    /// There is no such file.
    Missing,
    /// The operating system does not permit the access.
    Denied,
    /// The content of the storage is not an index.
    NotAnIndex,
    /// A later version of this program wrote the index.
    Version,
    /// The storage is corrupt: it does not hold the written content.
    Damaged,
    /// There is no space left.
    Full,
    /// A key, a value or a batch is too long.
    TooLong,
    /// The index accepts no writes.
    ReadOnly,
    /// A panic has left the index unusable.
    Poisoned,
    /// Another transaction or batch wrote the same keys first: begin this transaction again.
    Conflict,
    /// The snapshot or the transaction is older than allowed: begin a new one.
    TooOld,
    /// An option has an impossible value.
    Option,
    /// The storage failed.
    Storage,
}

impl Error {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Storage { .. } => ErrorKind::Storage,
            Error::Full { .. } => ErrorKind::Full,
            Error::NotAnIndex { .. } => ErrorKind::NotAnIndex,
            Error::Version { .. } => ErrorKind::Version,
            Error::Damaged { .. } => ErrorKind::Damaged,
            Error::KeyTooLong { .. } | Error::ValueTooLong { .. } | Error::BatchTooLong { .. } => {
                ErrorKind::TooLong
            }
            Error::ReadOnly { .. } => ErrorKind::ReadOnly,
            Error::Poisoned { .. } => ErrorKind::Poisoned,
            Error::Conflict => ErrorKind::Conflict,
            Error::SnapshotTooOld => ErrorKind::TooOld,
            Error::Option { .. } => ErrorKind::Option,
            Error::Open { kind, .. } => *kind,
        }
    }
}

impl From<std::io::ErrorKind> for ErrorKind {
    fn from(kind: std::io::ErrorKind) -> ErrorKind {
        use std::io::ErrorKind as Io;
        match kind {
            Io::WouldBlock | Io::ResourceBusy => ErrorKind::Busy,
            Io::NotFound => ErrorKind::Missing,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => ErrorKind::Denied,
            Io::StorageFull | Io::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Storage,
        }
    }
}

/// Adds the place and the action to an error of the storage.
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
