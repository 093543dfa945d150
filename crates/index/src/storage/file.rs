//! A regular file or a block device, past the page cache.
//!
//! Two descriptors of it: one whose writes are durable when they return (`O_DSYNC`), one for all else.
//! A file system without direct I/O gets ordinary descriptors, with the same promises. An exclusive
//! lock keeps a second writer out; it ends with the process, however that ends. Whoever only reads has
//! one descriptor that cannot write and a shared lock, so that nothing changes below it.

use super::{Aligned, BLOCK_BYTES, Storage, StorageError};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file or block device.
#[derive(Debug)]
pub struct FileStorage {
    plain: File,
    /// None if it is only read.
    durable: Option<File>,
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
    open_direct(path, &mut options, flags)
}

fn open_direct(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
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
        plain.try_lock().map_err(lock_refused)?;
        let durable = open(path, Presence::Existing, libc::O_DSYNC)?;
        let storage = FileStorage::with(plain, Some(durable))?;
        if presence == Presence::Any && !storage.is_device {
            sync_folder(path)?;
        }
        Ok(storage)
    }

    /// Opens a file or block device only to read it. Others may do the same, but none may write. What
    /// would write is answered with `EROFS`.
    ///
    /// # Errors
    ///
    /// Those of opening; [`io::ErrorKind::WouldBlock`] when another process has it open to write.
    pub fn open_read_only(path: &Path) -> io::Result<FileStorage> {
        let plain = open_direct(path, OpenOptions::new().read(true), 0)?;
        plain.try_lock_shared().map_err(lock_refused)?;
        FileStorage::with(plain, None)
    }

    fn with(plain: File, durable: Option<File>) -> io::Result<FileStorage> {
        let metadata = plain.metadata()?;
        let is_device = metadata.file_type().is_block_device();
        let len_bytes = if is_device {
            io::Seek::seek(&mut &plain, io::SeekFrom::End(0))?
        } else {
            metadata.len()
        };
        Ok(FileStorage {
            plain,
            durable,
            len_bytes: AtomicU64::new(len_bytes),
            is_device,
        })
    }

    /// The descriptor whose writes are durable, for all that changes something.
    fn writable(&self) -> Result<&File, StorageError> {
        let read_only = StorageError::Failed(libc::EROFS);
        self.durable.as_ref().ok_or(read_only)
    }
}

fn lock_refused(error: TryLockError) -> io::Error {
    match error {
        TryLockError::WouldBlock => io::Error::from(io::ErrorKind::WouldBlock),
        TryLockError::Error(error) => error,
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
        self.writable()?;
        write_all(&self.plain, offset, data)
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        write_all(self.writable()?, offset, data)
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.plain.sync_data().map_err(|error| known(&error))
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.writable()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A file that is removed at the end of the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("bimetal-index-{name}-{}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            // A file left behind in the temporary directory fails no test.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn kind(opened: io::Result<FileStorage>) -> Option<io::ErrorKind> {
        opened.err().map(|error| error.kind())
    }

    #[test]
    fn a_reader_changes_nothing_and_makes_no_file() {
        let scratch = Scratch::new("read-only");
        let missing = kind(FileStorage::open_read_only(&scratch.0));
        assert_eq!(missing, Some(io::ErrorKind::NotFound));
        assert!(!scratch.0.exists());
        let content = vec![7; 2 * BLOCK_BYTES];
        std::fs::write(&scratch.0, &content).unwrap();
        let storage = FileStorage::open_read_only(&scratch.0).unwrap();
        let mut block = vec![0; BLOCK_BYTES];
        storage.read(BLOCK_BYTES as u64, &mut block).unwrap();
        assert_eq!(block, content[BLOCK_BYTES..]);
        let refused = Err(StorageError::Failed(libc::EROFS));
        assert_eq!(storage.write(0, &[0; BLOCK_BYTES]), refused);
        assert_eq!(storage.write_durable(0, &[0; BLOCK_BYTES]), refused);
        assert_eq!(storage.resize(0), refused);
        assert_eq!(std::fs::read(&scratch.0).unwrap(), content);
    }

    #[test]
    fn readers_share_a_file_and_a_writer_has_it_alone() {
        let scratch = Scratch::new("locks");
        let busy = Some(io::ErrorKind::WouldBlock);
        let writer = FileStorage::open(&scratch.0, Presence::Any).unwrap();
        assert_eq!(kind(FileStorage::open_read_only(&scratch.0)), busy);
        drop(writer);
        let readers = [(); 2].map(|()| FileStorage::open_read_only(&scratch.0).unwrap());
        assert_eq!(kind(FileStorage::open(&scratch.0, Presence::Any)), busy);
        drop(readers);
        assert_eq!(kind(FileStorage::open(&scratch.0, Presence::Any)), None);
    }
}
