//! Files and block devices.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::op::Gather;
use super::{Handle, Owned, Request};
use crate::buf::{BufMut, Payload};
use crate::executor::Rt;

/// Maximum number of slices in one vectored write; the kernel's `UIO_MAXIOV`.
const VECTORS_MAX: usize = 1024;

/// Options for opening a [`File`].
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Bypass the page cache (`O_DIRECT`). Offsets, lengths and buffer addresses must then be
    /// multiples of the device's logical block size.
    pub direct: bool,
}

/// An open file or block device.
pub struct File {
    pub(super) handle: Handle,
}

impl File {
    /// Opens an existing file. Blocks, so use it at start-up only.
    ///
    /// # Errors
    /// The errors of `open(2)`; `Unsupported` in virtual time.
    pub fn open(rt: &Rt, path: &Path, options: OpenOptions) -> io::Result<File> {
        File::open_with(rt, path, options, 0)
    }

    /// Opens an existing block device and claims it (`O_EXCL`). While the handle is open, the
    /// kernel neither mounts the device nor lets another handle claim it, under any of its names.
    /// Blocks, so use it at start-up only.
    ///
    /// # Errors
    /// The errors of `open(2)`: `EBUSY` when the device, one of its partitions, or the disk of
    /// which it is a partition is mounted, is swap space, is a part of another device, or is
    /// claimed by another handle. `Unsupported` in virtual time.
    pub fn open_claimed(rt: &Rt, path: &Path, options: OpenOptions) -> io::Result<File> {
        File::open_with(rt, path, options, libc::O_EXCL)
    }

    fn open_with(rt: &Rt, path: &Path, options: OpenOptions, more: i32) -> io::Result<File> {
        let real_time = super::of(rt)?;
        let direct = if options.direct { libc::O_DIRECT } else { 0 };
        let flags = libc::O_CLOEXEC | direct | more;
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(options.write)
            .custom_flags(flags)
            .open(path)?;
        Ok(File {
            handle: Handle::of(&real_time, file.into()),
        })
    }

    /// Returns the descriptor, for calls that are not operations (size, locks).
    pub fn as_fd(&self) -> &OwnedFd {
        self.handle.fd()
    }

    /// Reads from `offset` into `buf`. Returns the number of bytes read, and the buffer in every
    /// case. The number is smaller than the length of the buffer only at the end of the file.
    ///
    /// # Errors
    /// The errors of `pread(2)`.
    pub async fn read_at(&self, offset: u64, mut buf: BufMut) -> (io::Result<usize>, BufMut) {
        let request = Request::Read {
            start: buf.start(),
            len: buf.len() as u32,
            offset,
        };
        match self.handle.ask(request, Owned::Fill(buf)).await {
            (result, Owned::Fill(buf)) => (count(result), buf),
            _ => unreachable!("an operation gives back what it owned"),
        }
    }

    /// Writes `payload` at `offset` and returns the number of bytes written. As with `pwrite(2)`,
    /// this number can be smaller than the length of the payload. With `dsync`, the written data is
    /// durable when this returns (`RWF_DSYNC`).
    ///
    /// # Errors
    /// The errors of `pwritev2(2)`.
    pub async fn write_at(&self, offset: u64, payload: Payload, dsync: bool) -> io::Result<usize> {
        let flags = if dsync { libc::RWF_DSYNC } else { 0 };
        let gather = Gather::new(payload, 0, VECTORS_MAX);
        let request = Request::Write {
            vectors: gather.vectors.as_ptr(),
            count: gather.vectors.len() as u32,
            offset,
            flags,
        };
        count(self.handle.ask(request, Owned::Gather(gather)).await.0)
    }

    /// Makes all data written so far durable (`fdatasync(2)`).
    ///
    /// # Errors
    /// The errors of `fdatasync(2)`.
    pub async fn sync_data(&self) -> io::Result<()> {
        done(self.handle.ask(Request::SyncData, Owned::Nothing).await.0)
    }

    /// Deallocates a range in the file system; the range reads as zeroes afterwards.
    ///
    /// # Errors
    /// The errors of `fallocate(2)`; `Unsupported` where the file system does not support it.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(
            offset,
            len,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        )
        .await
    }

    /// Makes a range read as zeroes and keeps its space allocated.
    ///
    /// # Errors
    /// The errors of `fallocate(2)`; `Unsupported` where the file system does not support it.
    pub async fn zero_range(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(
            offset,
            len,
            libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE,
        )
        .await
    }

    async fn fallocate(&self, offset: u64, len: u64, mode: i32) -> io::Result<()> {
        let request = Request::Allocate { offset, len, mode };
        done(self.handle.ask(request, Owned::Nothing).await.0)
    }

    /// Finds the run at `offset`: a range that is all data or all hole. Returns `(is_data, end)`.
    /// On the file systems in use, the `lseek(2)` of this function does not wait for the device,
    /// since the extent map is in memory.
    ///
    /// # Errors
    /// The errors of `lseek(2)`, except for the end of the file, which is treated as a hole.
    pub fn run_at(&self, offset: u64, size_bytes: u64) -> io::Result<(bool, u64)> {
        let data = self.seek(offset, libc::SEEK_DATA)?.unwrap_or(size_bytes);
        if data > offset {
            return Ok((false, data.min(size_bytes)));
        }
        let hole = self.seek(offset, libc::SEEK_HOLE)?.unwrap_or(size_bytes);
        Ok((true, hole.min(size_bytes)))
    }

    /// Returns the size of the file or block device in bytes.
    ///
    /// # Errors
    /// The errors of `lseek(2)`.
    pub fn size_bytes(&self) -> io::Result<u64> {
        // Operations specify their own offsets, so changing the file position does no harm.
        Ok(self.seek(0, libc::SEEK_END)?.unwrap_or(0))
    }

    fn seek(&self, offset: u64, whence: i32) -> io::Result<Option<u64>> {
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the call takes and returns integers; the descriptor is open.
        let found = unsafe { libc::lseek(self.handle.fd().as_raw_fd(), offset, whence) };
        if let Ok(found) = u64::try_from(found) {
            return Ok(Some(found));
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e => Err(e),
        }
    }

    /// Takes the exclusive advisory lock of the file without waiting. Returns false when another
    /// process, or another handle in this process, holds the lock. The lock is released when the
    /// handle is closed.
    ///
    /// # Errors
    /// The errors of `flock(2)`.
    pub fn try_lock_exclusive(&self) -> io::Result<bool> {
        // SAFETY: the call takes integers; the descriptor is open.
        if unsafe { libc::flock(self.handle.fd().as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0
        {
            return Ok(true);
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EWOULDBLOCK) => Ok(false),
            e => Err(e),
        }
    }
}

/// Converts the result of an operation to a byte count.
pub(super) fn count(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn done(result: i32) -> io::Result<()> {
    count(result).map(|_| ())
}
