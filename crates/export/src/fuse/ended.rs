//! The errors by which the kernel reports that a mount, or the server of a mount, has ended. There
//! are several, because a request that is under way at that moment fails with another error than a
//! later one. This module exists so that all callers agree on them.
//!
//! An end must never be reported as a failure: nothing is wrong when a mount ends.

use std::io;

use rustix::io::Errno;

/// Returns true if the error of a read or a write of `/dev/fuse` means that the mount has ended. A
/// read fails with `ECONNABORTED` if it had already taken a message when the mount ended.
pub(super) fn is_end_of_mount(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::NODEV, Errno::CONNABORTED])
}

/// Returns true if the error of an access to a file or folder of a mount, or to a loop device over
/// such a file, means that the server of the mount no longer runs. An access that waits for the
/// server when it ends fails with `ECONNABORTED`, and every later one with `ENOTCONN`.
pub(super) fn is_end_of_server(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::NOTCONN, Errno::CONNABORTED])
}

fn is_one_of(error: &io::Error, errors: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errors.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers are those of the kernel's `asm-generic/errno.h`: 2 `ENOENT`, 5 `EIO`, 19
    /// `ENODEV`, 103 `ECONNABORTED`, 107 `ENOTCONN`.
    #[test]
    fn an_end_is_known_by_its_error() {
        for (errno, of_mount, of_server) in [
            (2, false, false),
            (5, false, false),
            (19, true, false),
            (103, true, true),
            (107, false, true),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(is_end_of_mount(&error), of_mount, "{errno}");
            assert_eq!(is_end_of_server(&error), of_server, "{errno}");
        }
        assert!(!is_end_of_mount(&io::ErrorKind::InvalidData.into()));
        assert!(!is_end_of_server(&io::ErrorKind::InvalidData.into()));
    }
}
