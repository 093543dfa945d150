//! The seam between the engine and whatever keeps its bytes: a flat range of blocks that can be
//! read, written, made durable and resized. A file, a block device, a device of the stack and the
//! disks of the tests are all behind it. It must never hide an error, and never call a write
//! durable that a power cut could undo.

#[cfg(feature = "device")]
pub mod device;
pub mod file;
pub mod memory;
pub mod overlay;

use crate::planted::{Bug, is_planted};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// What is read and written is a multiple of this, in place and length.
pub const BLOCK_BYTES: usize = 4096;

/// Why a storage did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// There is no space left; what was there is untouched, and it may be asked again.
    Full,
    /// The range does not exist.
    OutOfRange,
    /// It failed; the number of the operating system, or 0.
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
/// Calls block. Reads may come from many threads at once, also beside a write elsewhere; everything
/// else comes from one thread at a time. A read beside a write of the same range gives any mixture
/// of sectors, old and new.
pub trait Storage: Send + Sync {
    /// Bytes there are now.
    fn len_bytes(&self) -> u64;

    /// Fills `buffer` from `offset`.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError>;

    /// Writes. It survives a power cut once a later [`sync`](Self::sync) has succeeded; until then
    /// any of its sectors may.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError>;

    /// Writes, and it survives a power cut once this has succeeded. Says nothing of earlier writes.
    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError>;

    /// All writes that have returned survive a power cut once this has succeeded. After a failure
    /// nothing is known of any of them.
    fn sync(&self) -> Result<(), StorageError>;

    /// Makes it so long. New bytes are zeroes; bytes cut off are gone. Durable with the next
    /// [`sync`](Self::sync). A storage that cannot change its length answers
    /// [`StorageError::Full`].
    fn resize(&self, len_bytes: u64) -> Result<(), StorageError>;
}

/// A storage that somebody else has a hand on, too: to look at it, or to use it after the index.
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

/// Bytes at an address that direct I/O takes.
#[derive(Debug, Default)]
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeroes.
    pub fn zeroed(len: usize) -> Aligned {
        let bytes = vec![0; len + BLOCK_BYTES];
        let start = bytes.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        Aligned { bytes, start, len }
    }

    /// Makes it `len` long at least, as long as it was otherwise; new bytes are zeroes.
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

/// Makes all writes durable. Once, whatever comes of it: what a sync has failed for may be gone,
/// and the next one may know nothing of it.
pub(crate) fn sync(storage: &dyn Storage) -> Result<(), StorageError> {
    let synced = storage.sync();
    if synced.is_err() && is_planted(Bug::RetriesSync) {
        return storage.sync();
    }
    synced
}

/// `bytes` up to whole blocks.
pub(crate) fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}
