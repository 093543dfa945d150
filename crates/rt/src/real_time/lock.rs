//! Locks on ranges of a file, and claims of block devices. Locks and claims belong to an open
//! handle, not to a process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a block device for reading and claims it as
/// [`File::open_claimed`](super::File::open_claimed) does; returns `None` when the device is in use
/// and cannot be claimed. Blocks, so use it at start-up only.
///
/// # Errors
/// The errors of `open(2)`.
pub fn try_claim(path: &Path) -> io::Result<Option<File>> {
    let mut options = File::options();
    options
        .read(true)
        .custom_flags(libc::O_EXCL | libc::O_NONBLOCK);
    match options.open(path) {
        Ok(claimed) => Ok(Some(claimed)),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Takes the exclusive advisory lock on a range of bytes (`F_OFD_SETLK` of `fcntl_locking(2)`)
/// without waiting. Returns false if another handle has a lock on a byte of the range. The lock is
/// released when the handle is closed. A range that ends at `u64::MAX` includes all bytes from its
/// start on.
///
/// # Errors
/// The errors of `fcntl(2)`: `EBADF` if the file is not open for writing; `InvalidInput` if the
/// range is empty or begins beyond the maximum of `off_t`.
pub fn try_lock_range(file: &File, range: &Range<u64>) -> io::Result<bool> {
    let start = i64::try_from(range.start).map_err(|_| io::ErrorKind::InvalidInput)?;
    if range.is_empty() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // For the kernel, a length of zero includes every byte up to the largest possible offset.
    let len = i64::try_from(range.end - range.start).unwrap_or(0);
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: if start.checked_add(len).is_some() {
            len
        } else {
            0
        },
        // The kernel requires a process ID of zero for locks of this kind.
        l_pid: 0,
    };
    // SAFETY: the call reads one `struct flock`, which lives until the call returns; the descriptor
    // is open.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if taken == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        // POSIX permits either error.
        e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        e => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_exclude_each_other() {
        let name = format!("bimetal-lock-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(&path).expect("a file in the temporary folder")
        };
        let (one, other, third) = (open(), open(), open());
        let taken = |file: &File, range| try_lock_range(file, &range).expect("a range");
        assert!(taken(&one, 4096..8192));
        assert!(!taken(&other, 8191..9000));
        assert!(!taken(&other, 0..u64::MAX));
        assert!(taken(&other, 8192..u64::MAX));
        assert!(taken(&third, 0..4096));
        assert!(!taken(&third, 1 << 62..u64::MAX));
        drop(other);
        assert!(taken(&third, 8192..9000));
        let refused = |range| try_lock_range(&one, &range).map_err(|error| error.kind());
        assert_eq!(refused(5..5), Err(io::ErrorKind::InvalidInput));
        assert_eq!(
            refused(u64::MAX - 1..u64::MAX),
            Err(io::ErrorKind::InvalidInput)
        );
        std::fs::remove_file(path).expect("it was made above");
    }
}
