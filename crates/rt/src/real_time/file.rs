//! Files and block devices.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::op::Gather;
use super::{Handle, Owned, Request};
use crate::buf::{BufMut, Payload};
use crate::executor::Rt;

/// Slices in one vectored write; the kernel's `UIO_MAXIOV`.
const VECTORS_MAX: usize = 1024;

/// How to open a [`File`].
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Open for writing too.
    pub write: bool,
    /// Bypass the page cache (`O_DIRECT`): offsets, lengths and buffers are then multiples of the
    /// device's logical block.
    pub direct: bool,
}

/// An open file or block device.
pub struct File {
    pub(super) handle: Handle,
}

impl File {
    /// Opens an existing file. Blocks; for start-up only.
    ///
    /// # Errors
    /// Those of `open(2)`; `Unsupported` in virtual time.
    pub fn open(rt: &Rt, path: &Path, options: OpenOptions) -> io::Result<File> {
        File::open_with(rt, path, options, 0)
    }

    /// Opens an existing block device and claims it (`O_EXCL`): as long as the handle is open, the
    /// kernel neither mounts the device nor lets another claim it, under any of its names. Blocks;
    /// for start-up only.
    ///
    /// # Errors
    /// Those of `open(2)`: `EBUSY` when the device is mounted, is swap space, is a part of another
    /// device, or is claimed by another handle; so it is when that is true of one of its partitions
    /// or of the disk it is a partition of. `Unsupported` in virtual time.
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

    /// The descriptor, for calls that are not operations (size, locks).
    pub fn as_fd(&self) -> &OwnedFd {
        self.handle.fd()
    }

    /// Reads into `buf` from `offset`; the count is smaller than the buffer only at the end.
    ///
    /// # Errors
    /// Those of `pread(2)`. The buffer comes back either way.
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

    /// Writes `payload` at `offset`; the count may be smaller, as with `pwrite(2)`. With `dsync`
    /// the data is durable when this returns (`RWF_DSYNC`).
    ///
    /// # Errors
    /// Those of `pwritev2(2)`.
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

    /// Makes everything written so far durable (`fdatasync(2)`).
    ///
    /// # Errors
    /// Those of `fdatasync(2)`.
    pub async fn sync_data(&self) -> io::Result<()> {
        done(self.handle.ask(Request::SyncData, Owned::Nothing).await.0)
    }

    /// Gives a range back to the file system; it reads as zeroes afterwards.
    ///
    /// # Errors
    /// Those of `fallocate(2)`; `Unsupported` where the file system cannot do it.
    pub async fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.fallocate(
            offset,
            len,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        )
        .await
    }

    /// Makes a range read as zeroes, keeping its space.
    ///
    /// # Errors
    /// Those of `fallocate(2)`; `Unsupported` where the file system cannot do it.
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

    /// The next change between data and hole at or after `offset`: `(is_data, end)` of the run
    /// that starts at `offset`, by `lseek(2)`. Does not wait for the device on the file systems
    /// in use, since the extent map is in memory.
    ///
    /// # Errors
    /// Those of `lseek(2)`, except for the end of the file, which counts as a hole.
    pub fn run_at(&self, offset: u64, size_bytes: u64) -> io::Result<(bool, u64)> {
        let data = self.seek(offset, libc::SEEK_DATA)?.unwrap_or(size_bytes);
        if data > offset {
            return Ok((false, data.min(size_bytes)));
        }
        let hole = self.seek(offset, libc::SEEK_HOLE)?.unwrap_or(size_bytes);
        Ok((true, hole.min(size_bytes)))
    }

    /// The size of the file or block device in bytes.
    ///
    /// # Errors
    /// Those of `lseek(2)`.
    pub fn size_bytes(&self) -> io::Result<u64> {
        // Operations name their offsets, so the position this leaves behind means nothing.
        Ok(self.seek(0, libc::SEEK_END)?.unwrap_or(0))
    }

    fn seek(&self, offset: u64, whence: i32) -> io::Result<Option<u64>> {
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: takes and returns integers; the descriptor is open.
        let found = unsafe { libc::lseek(self.handle.fd().as_raw_fd(), offset, whence) };
        if let Ok(found) = u64::try_from(found) {
            return Ok(Some(found));
        }
        match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e => Err(e),
        }
    }

    /// Takes the exclusive advisory lock of the file, without waiting: false when another process
    /// (or another handle of this one) has it. It goes with the handle.
    ///
    /// # Errors
    /// Those of `flock(2)`.
    pub fn try_lock_exclusive(&self) -> io::Result<bool> {
        // SAFETY: takes integers; the descriptor is open.
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

/// The result of an operation as a byte count.
pub(super) fn count(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn done(result: i32) -> io::Result<()> {
    count(result).map(|_| ())
}
