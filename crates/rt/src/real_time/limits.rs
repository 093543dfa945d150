//! Limits of the process, in words for the operator: which one it is, its value, what raises it.

use std::io;

/// A limit that the kernel holds a process to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessLimit {
    /// Descriptors that can be open at a time: `RLIMIT_NOFILE`.
    OpenFiles,
    /// Bytes that can be locked into memory: `RLIMIT_MEMLOCK`.
    LockedBytes,
    /// Where a file must end that the process writes to: `RLIMIT_FSIZE`, in bytes.
    FileBytes,
}

impl ProcessLimit {
    /// The limit now; `None` when there is none.
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

    /// The limit that a system call has met which failed with `error`, if it was one.
    pub fn behind(error: &io::Error) -> Option<ProcessLimit> {
        match error.raw_os_error()? {
            libc::EMFILE => Some(ProcessLimit::OpenFiles),
            libc::EFBIG => Some(ProcessLimit::FileBytes),
            _ => None,
        }
    }

    /// The limit, its value `value` and what raises it, as the end of a sentence.
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

/// Lets this process open as many files as it may, where it has asked for fewer so far: the lower
/// of the two limits is there for programs that use `select(2)`. To be called before other threads
/// are started.
///
/// # Errors
/// Those of `setrlimit(2)`.
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

/// What failed, with the limit that was met if the error is of one: `ERROR: the limit of ...`.
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
