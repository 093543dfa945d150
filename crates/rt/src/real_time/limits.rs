//! Limits of the process, described for the operator: the name of a limit, its value, and the
//! settings that raise it.

use std::io;

/// A limit that the kernel enforces on a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessLimit {
    /// Number of descriptors that can be open at a time: `RLIMIT_NOFILE`.
    OpenFiles,
    /// Number of bytes that can be locked into memory: `RLIMIT_MEMLOCK`.
    LockedBytes,
    /// Maximum size in bytes of a file that the process writes to: `RLIMIT_FSIZE`.
    FileBytes,
}

impl ProcessLimit {
    /// Returns the current limit; `None` when there is none.
    pub fn value(self) -> Option<u64> {
        let resource = match self {
            ProcessLimit::OpenFiles => libc::RLIMIT_NOFILE,
            ProcessLimit::LockedBytes => libc::RLIMIT_MEMLOCK,
            ProcessLimit::FileBytes => libc::RLIMIT_FSIZE,
        };
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the pointer is to `limit`, which lives through the call.
        let result = unsafe { libc::getrlimit(resource, &raw mut limit) };
        (result == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    }

    /// Returns the process limit that made a system call fail with `error`; `None` if the error has
    /// another cause.
    pub fn behind(error: &io::Error) -> Option<ProcessLimit> {
        match error.raw_os_error()? {
            libc::EMFILE => Some(ProcessLimit::OpenFiles),
            libc::EFBIG => Some(ProcessLimit::FileBytes),
            _ => None,
        }
    }

    /// Returns the end of a sentence for the operator: the limit, its value `value` and the
    /// settings that raise it.
    pub fn words(self, value: u64) -> String {
        match self {
            ProcessLimit::OpenFiles => format!(
                "the limit of open files, RLIMIT_NOFILE, is {value}; `ulimit -n` or `LimitNOFILE` \
                 raise it"
            ),
            ProcessLimit::LockedBytes => format!(
                "the limit of locked memory, RLIMIT_MEMLOCK, is {} KiB; `ulimit -l` or \
                 `LimitMEMLOCK` raise it",
                value >> 10
            ),
            ProcessLimit::FileBytes => format!(
                "the limit of file sizes, RLIMIT_FSIZE, is {} KiB; `ulimit -f` or `LimitFSIZE` \
                 raise it",
                value >> 10
            ),
        }
    }
}

/// Raises the soft limit of open files to the hard limit. The soft limit is low by default only to
/// protect programs that use `select(2)`. Call this before other threads are started.
///
/// # Errors
/// The errors of `setrlimit(2)`.
pub fn raise_open_files() -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both pointers are to `limit`, which lives through the calls.
    let result = unsafe {
        match libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) {
            0 => {
                limit.rlim_cur = limit.rlim_max;
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
            }
            failed => failed,
        }
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the text of `error`, followed by the limit that caused it, if any:
/// `ERROR: the limit of ...`.
pub fn limit_in_words(error: &io::Error) -> String {
    let limit = ProcessLimit::behind(error);
    match limit.and_then(|limit| Some((limit, limit.value()?))) {
        Some((limit, value)) => format!("{error}: {}", limit.words(value)),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_limit_behind_it() {
        let behind = |error| ProcessLimit::behind(&io::Error::from_raw_os_error(error));
        assert_eq!(behind(libc::EMFILE), Some(ProcessLimit::OpenFiles));
        assert_eq!(behind(libc::EFBIG), Some(ProcessLimit::FileBytes));
        assert_eq!(behind(libc::ENFILE), None);
        let words = ProcessLimit::FileBytes.words(4 << 20);
        assert!(words.contains("RLIMIT_FSIZE, is 4096 KiB"), "{words}");
    }

    #[test]
    fn the_kernel_says_the_same_of_this_process() {
        let text = std::fs::read_to_string("/proc/self/limits").expect("limits of this process");
        let row = text.lines().find(|line| line.starts_with("Max open files"));
        let soft = row.and_then(|row| row.split_whitespace().nth(3));
        let soft = soft.expect("a row of open files").parse().ok();
        assert_eq!(ProcessLimit::OpenFiles.value(), soft);
    }
}
