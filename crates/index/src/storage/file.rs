//! A regular file or a block device, accessed with direct I/O.
//!
//! The file is opened only once, because its path can name another file a moment later. Each
//! durable write requests durability for itself (`RWF_DSYNC`). On a file system without direct I/O
//! the file is opened without it, with the same promises. An exclusive lock keeps a second writer
//! out, and ends with the process, even after a crash. A block device is opened exclusively, so
//! that it is neither mounted nor served meanwhile. A read-only user has a descriptor that cannot
//! write and a shared lock, so that no writer changes the file meanwhile.

use super::{Aligned, BLOCK_BYTES, Storage, StorageError};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// An open file or block device.
#[derive(Debug)]
pub struct FileStorage {
    file: File,
    is_writable: bool,
    len_bytes: AtomicU64,
    is_device: bool,
}

/// Whether a file may be created or must exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The file must exist.
    Existing,
    /// The file is created if it does not exist.
    Any,
}

/// Opens the file at a path, for reading, and, if `is_writable` is true, for writing. For writing,
/// a block device is opened exclusively, and the open is refused if the path becomes a block device
/// during the call.
fn open(path: &Path, options: &mut OpenOptions, is_writable: bool) -> io::Result<File> {
    let was_device = path
        .metadata()
        .is_ok_and(|found| found.file_type().is_block_device());
    let flags = match was_device && is_writable {
        true => {
            // `O_EXCL` opens a block device exclusively. The flag `O_CREAT` is removed, because
            // with both flags the open would fail if the path exists.
            options.create(false);
            libc::O_EXCL
        }
        false => 0,
    };
    let file = match options.custom_flags(flags | libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            options.custom_flags(flags).open(path)?
        }
        other => other?,
    };
    let is_device = file.metadata()?.file_type().is_block_device();
    match is_device && !was_device && is_writable {
        true => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
        false => Ok(file),
    }
}

impl FileStorage {
    /// Opens a file or block device for this process alone.
    ///
    /// # Errors
    ///
    /// Errors of opening. [`io::ErrorKind::WouldBlock`] if another process has locked the file; the
    /// message names that process if the kernel tells it. [`io::ErrorKind::ResourceBusy`] if a
    /// device is mounted or in use.
    pub fn open(path: &Path, presence: Presence) -> io::Result<FileStorage> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(presence == Presence::Any);
        let file = open(path, &mut options, true)?;
        file.try_lock().map_err(|error| refused(error, &file))?;
        let storage = FileStorage::with(file, true)?;
        if presence == Presence::Any && !storage.is_device {
            sync_folder(path)?;
        }
        Ok(storage)
    }

    /// Opens a file or block device for reading only. Other processes are allowed to read it at the
    /// same time, but not to write. Calls that would write fail with `EROFS`.
    ///
    /// # Errors
    ///
    /// Errors of opening. [`io::ErrorKind::WouldBlock`] if another process has the file open for
    /// writing, as for [`open`](Self::open).
    pub fn open_read_only(path: &Path) -> io::Result<FileStorage> {
        let file = open(path, OpenOptions::new().read(true), false)?;
        file.try_lock_shared()
            .map_err(|error| refused(error, &file))?;
        FileStorage::with(file, false)
    }

    fn with(file: File, is_writable: bool) -> io::Result<FileStorage> {
        let metadata = file.metadata()?;
        let is_device = metadata.file_type().is_block_device();
        let len_bytes = if is_device {
            io::Seek::seek(&mut &file, io::SeekFrom::End(0))?
        } else {
            metadata.len()
        };
        Ok(FileStorage {
            file,
            is_writable,
            len_bytes: AtomicU64::new(len_bytes),
            is_device,
        })
    }

    /// Returns true for a block device.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    fn check_writable(&self) -> Result<(), StorageError> {
        match self.is_writable {
            true => Ok(()),
            false => Err(StorageError::Failed(libc::EROFS)),
        }
    }
}

impl Drop for FileStorage {
    /// Releases the lock explicitly. Closing the descriptor releases the lock only when no other
    /// process holds a copy of that descriptor. A child process that another thread is just
    /// starting holds a copy until the child executes its own program.
    fn drop(&mut self) {
        // If the unlock fails, the lock ends with the descriptor.
        let _ = self.file.unlock();
    }
}

/// Returns the error for a refused lock, with the process that holds the lock.
fn refused(error: TryLockError, file: &File) -> io::Error {
    match error {
        TryLockError::WouldBlock => {
            let holder = holder(file).unwrap_or_else(|| "another process".to_owned());
            io::Error::new(io::ErrorKind::WouldBlock, format!("{holder} has it open"))
        }
        TryLockError::Error(error) => error,
    }
}

/// Returns the process that has locked a file, if the kernel lists it in `/proc/locks` (proc(5)).
fn holder(file: &File) -> Option<String> {
    let inode = file.metadata().ok()?.ino();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // An example of a line of `/proc/locks`: `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`
    let pid = locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (kind, pid, place) = (words.get(1)?, words.get(4)?, words.get(5)?);
        let is_it = *kind == "FLOCK" && place.rsplit(':').next()? == inode.to_string();
        is_it.then(|| (*pid).to_owned())
    })?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    // The name of a program may contain any bytes, so it is escaped.
    let name = name.map(|name| format!(" ({})", name.trim().escape_debug()));
    Some(format!("process {pid}{}", name.unwrap_or_default()))
}

impl FileStorage {
    /// Reserves space on the file system, so that a write into the range never finds the disk full.
    /// If the file system cannot reserve space, the range remains a hole.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        match fallocate(&self.file, FallocateFlags::empty(), offset, len) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(error) => Err(known(&error.into())),
        }
    }
}

/// Makes the directory entry of a new file durable.
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

/// Calls `act` with the data at an address that is aligned for direct I/O.
fn aligned<T>(data: &[u8], act: impl FnOnce(&[u8]) -> T) -> T {
    if is_aligned(data) {
        return act(data);
    }
    let mut copy = Aligned::zeroed(data.len());
    copy.copy_from_slice(data);
    act(&copy)
}

/// Writes all data durably. Returns false if the kernel or the file system does not support a write
/// that is durable by itself.
fn write_all_durable(file: &File, mut offset: u64, mut data: &[u8]) -> io::Result<bool> {
    while !data.is_empty() {
        let part = [io::IoSlice::new(data)];
        match pwritev2(file, &part, offset, ReadWriteFlags::DSYNC) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                data = &data[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

impl Storage for FileStorage {
    fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Acquire)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), StorageError> {
        let read = |buffer: &mut [u8]| match self.file.read_exact_at(buffer, offset) {
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
        self.check_writable()?;
        let written = aligned(data, |data| self.file.write_all_at(data, offset));
        written.map_err(|error| known(&error))
    }

    fn write_durable(&self, offset: u64, data: &[u8]) -> Result<(), StorageError> {
        self.check_writable()?;
        let written = aligned(data, |data| write_all_durable(&self.file, offset, data));
        match written.map_err(|error| known(&error))? {
            true => Ok(()),
            false => {
                self.write(offset, data)?;
                self.sync()
            }
        }
    }

    fn sync(&self) -> Result<(), StorageError> {
        self.file.sync_data().map_err(|error| known(&error))
    }

    fn resize(&self, len_bytes: u64) -> Result<(), StorageError> {
        self.check_writable()?;
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
        self.file.set_len(len_bytes).map_err(|e| known(&e))?;
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

    #[test]
    fn a_descriptor_that_a_child_has_inherited_keeps_nobody_out() {
        let scratch = Scratch::new("inherited");
        let storage = FileStorage::open(&scratch.0, Presence::Any).unwrap();
        // The duplicate is the same open file, as in a child process between `fork` and `exec`.
        let inherited = storage.file.try_clone().unwrap();
        drop(storage);
        assert_eq!(kind(FileStorage::open(&scratch.0, Presence::Any)), None);
        drop(inherited);
    }
}
