//! A regular file or a block device, past the page cache.
//!
//! Two descriptors of it: one whose writes are durable when they return (`O_DSYNC`), one for all else.
//! A file system without direct I/O gets ordinary descriptors, with the same promises. An exclusive
//! lock keeps a second writer out; it ends with the process, however that ends.

use super::{Aligned, BLOCK_BYTES, Storage, StorageError};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file or block device.
#[derive(Debug)]
pub struct FileStorage {
    plain: File,
    durable: File,
    len_bytes: AtomicU64,
    is_device: bool,
}

/// Whether a file may be made, or must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It must be there.
    Existing,
    /// It is made if it is not there.
    Any,
}

fn open(path: &Path, presence: Presence, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(presence == Presence::Any);
    match options.custom_flags(flags | libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            options.custom_flags(flags).open(path)
        }
        other => other,
    }
}

impl FileStorage {
    /// Opens a file or block device for this process alone.
    ///
    /// # Errors
    ///
    /// Those of opening; [`io::ErrorKind::WouldBlock`] when another process has it.
    pub fn open(path: &Path, presence: Presence) -> io::Result<FileStorage> {
        let plain = open(path, presence, 0)?;
        plain.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => io::Error::from(io::ErrorKind::WouldBlock),
            std::fs::TryLockError::Error(error) => error,
        })?;
        let durable = open(path, Presence::Existing, libc::O_DSYNC)?;
        let metadata = plain.metadata()?;
        let is_device = metadata.file_type().is_block_device();
        let len_bytes = if is_device {
            io::Seek::seek(&mut &plain, io::SeekFrom::End(0))?
        } else {
            metadata.len()
        };
        if presence == Presence::Any && !is_device {
            sync_folder(path)?;
        }
        Ok(FileStorage {
            plain,
            durable,
            len_bytes: AtomicU64::new(len_bytes),
            is_device,
        })
    }
}

impl FileStorage {
    /// Has the file system set space aside, so that a write into it never finds the disk full. One that
    /// cannot do so leaves a hole.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        match fallocate(&self.plain, FallocateFlags::empty(), offset, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(known(&error.into())),
        }
    }
}

/// Makes the name of a new file survive a power cut.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

fn known(error: &io::Error) -> StorageError {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => StorageError::Full,
        number => StorageError::Failed(number.unwrap_or(0)),
    }
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(BLOCK_BYTES) == 0
}

fn write_all(file: &File, offset: u64, data: &[u8]) -> Result<(), StorageError> {
    if is_aligned(data) {
        return file.write_all_at(data, offset).map_err(|e| known(&e));
    }
    let mut copy = Aligned::zeroed(data.len());
    copy.copy_from_slice(data);
    file.write_all_at(&copy, offset).map_err(|e| known(&e))
}

impl Storage for FileStorage {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let read = |buffer: &mut [u8]| match self.plain.read_exact_at(buffer, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(StorageError::OutOfRange)
            }
            other => other.map_err(|error| known(&error)),
        };
        if is_aligned(buffer) {
            return read(buffer);
        }
        let mut copy = Aligned::zeroed(buffer.len());
        read(&mut copy)?;
        buffer.copy_from_slice(&copy);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        write_all(&self.plain, offset, data)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        write_all(&self.durable, offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.plain.sync_data().map_err(|error| known(&error))
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        if self.is_device {
            return if len_bytes <= self.len_bytes() {
                Ok(())
            } else {
                Err(StorageError::Full)
            };
        }
        let now = self.len_bytes();
        if len_bytes > now {
            self.allocate(now, len_bytes - now)?;
        }
        self.plain.set_len(len_bytes).map_err(|e| known(&e))?;
        self.len_bytes.store(len_bytes, Ordering::Release);
        Ok(())
    }
}
