//! Interface between the engine and the storage of its bytes: a flat range of blocks that can be
//! read, written, made durable and resized. Its implementations are a file, a block device, a
//! device of the stack, and the disks of the tests. An implementation must never hide an error, and
//! never report a write as durable that a power cut could undo.

#[cfg(feature = "device")]
pub mod device;
pub mod file;
pub mod memory;
pub mod overlay;

use crate::planted::{Bug, is_planted};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Length of a block in bytes. Offsets and lengths of reads and writes are multiples of this
/// length.
pub const BLOCK_BYTES: usize = 4096;

/// Error of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// There is no space left. The existing content is unchanged, and the request can be retried.
    Full,
    /// The range does not exist.
    OutOfRange,
    /// The request failed, with this error number of the operating system. The number is 0 if there
    /// is no error number.
    Failed(i32),
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StorageError::Full => f.write_str("no space left"),
            StorageError::OutOfRange => f.write_str("beyond the end"),
            StorageError::Failed(0) => f.write_str("it failed"),
            StorageError::Failed(number) => std::io::Error::from_raw_os_error(*number).fmt(f),
        }
    }
}

impl std::error::Error for StorageError {}

/// A flat range of bytes. Offsets and lengths are multiples of [`BLOCK_BYTES`].
///
/// Calls block the calling thread. Several threads can read at the same time, also while a write to
/// another range is in progress. All other calls come from one thread at a time. A read during a
/// write of the same range returns any mixture of old and new sectors.
pub trait Storage: Send + Sync {
    /// Returns the current length in bytes.
    fn len_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError>;

    /// Writes data. The write survives a power cut once a later [`sync`](Self::sync) has succeeded;
    /// until then any subset of its sectors may survive.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError>;

    /// Writes data durably: the write survives a power cut once this call has succeeded. The call
    /// does not make earlier writes durable.
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError>;

    /// Makes all completed writes durable: they survive a power cut once this call has succeeded.
    /// After a failure the state of each of those writes is unknown.
    fn sync(&self) -> Result<(), StorageError>;

    /// Sets the length. New bytes are zeroes, and bytes that are cut off are lost. The length
    /// becomes durable with the next [`sync`](Self::sync). A storage of a fixed length returns
    /// [`StorageError::Full`] if it is too short.
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError>;
}

/// Lets a storage have a second owner. The second owner can inspect the storage while the index is
/// open, or use the storage after the index is dropped.
impl<S: Storage + ?Sized> Storage for Arc<S> {
    fn len_bytes(&self) -> u64 {
        (**self).len_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        (**self).read(offset, buffer)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        (**self).write(offset, data)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        (**self).write_durable(offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        (**self).sync()
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        (**self).resize(len_bytes)
    }
}

/// A buffer at an address that is aligned for direct I/O.
#[derive(Debug, Default)]
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Returns a buffer of `len` zeroes.
    pub fn zeroed(len: usize) -> Aligned {
        let bytes = vec![0; len + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Aligned { bytes, start, len }
    }

    /// Grows the buffer to at least `len` bytes and keeps its content; new bytes are zeroes. A
    /// buffer that is long enough stays unchanged.
    pub fn reserve(&mut self, len: usize) {
        if len > self.len {
            let mut longer = Aligned::zeroed(len.next_power_of_two());
            longer[..self.len].copy_from_slice(self);
            *self = longer;
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// Makes all writes durable. A failed sync is never retried: content that the failed sync did not
/// write can be lost, and the next sync can succeed without writing that content.
pub(crate) fn sync(storage: &dyn Storage) -> Result<(), StorageError> {
    let synced = storage.sync();
    if synced.is_err() && is_planted(Bug::RetriesSync) {
        return storage.sync();
    }
    synced
}

/// Rounds a number of bytes up to whole blocks.
pub(crate) fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}
