//! What can go wrong, in words for the person who runs the program that has an index inside, and in
//! kinds for that program.

use crate::storage::StorageError;

/// Why an operation of an index did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
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
    /// There is no space for more, neither in the storage nor in the log. Reads and deletes go on
    /// as far as the log has room; the write that got this has changed nothing.
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
    /// The key is too long ([`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX)).
    #[error("a key of {bytes} bytes: at most {max} are possible")]
    KeyTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The value is too long for the segments of this index ([`Limits`](crate::Limits)).
    #[error("a value of {bytes} bytes: with the segments of this index at most {max} are possible")]
    ValueTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// The batch is too long for the log of this index ([`Limits`](crate::Limits)).
    #[error("a batch of {bytes} bytes: with the log of this index at most {max} are possible")]
    BatchTooLong {
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// Writing has failed before, so that it is not known what is durable, or the index was opened
    /// only to be read, or it was closed. Reads go on. To write, open the index anew.
    #[error("read-only: {reason}")]
    ReadOnly {
        /// Why it is so.
        reason: String,
    },
    /// A thread panicked while it changed the index, so its memory may be in any state. Neither
    /// reads nor writes go on; what is on the storage is as after a crash. Open the index anew.
    #[error("a thread panicked while it changed the index, which must be opened anew: {reason}")]
    Poisoned {
        /// What the thread said when it panicked.
        reason: String,
    },
    /// A key that the transaction has read or written was written by another transaction or batch
    /// since it began.
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
        /// What kind of obstacle it is.
        kind: ErrorKind,
        /// What the operating system said.
        reason: String,
    },
}

/// The kinds of errors, for a program that decides by them what to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another process has the index open: try again when it has ended.
    Busy,
    /// There is no such file.
    Missing,
    /// The operating system does not permit it.
    Denied,
    /// What is there is not an index.
    NotAnIndex,
    /// A later version of this program wrote it.
    Version,
    /// Something is not what was written.
    Damaged,
    /// There is no space left.
    Full,
    /// A key, a value or a batch is longer than it may be.
    TooLong,
    /// The index takes no writes.
    ReadOnly,
    /// A panic has left the index unusable.
    Poisoned,
    /// Another transaction was faster: begin this one again.
    Conflict,
    /// The snapshot or the transaction is older than it may be: begin anew.
    TooOld,
    /// An option has an impossible value.
    Option,
    /// The storage failed.
    Storage,
}

impl Error {
    /// What kind of error it is.
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
