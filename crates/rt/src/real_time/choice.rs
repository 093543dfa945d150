//! Chooses the driver that executes operations, and explains to the operator why `io_uring` cannot
//! be used.

use std::io;
use std::str::FromStr;

use super::UringOptions;
use super::driver::Driver;
use super::limits::ProcessLimit;
use super::ring::Ring;
use super::threads::{THREADS_MAX, Threads};
use crate::buf::BufPool;

/// Environment variable that names the driver when [`DriverChoice::Auto`] is requested: `auto`,
/// `uring` or `threads`.
const VARIABLE: &str = "BIMETAL_DRIVER";

/// A requested driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// `io_uring` where it is usable, threads otherwise. The environment variable `BIMETAL_DRIVER`,
    /// if it is set, decides instead.
    #[default]
    Auto,
    /// `io_uring`, or an error that says why it cannot be used.
    Uring,
    /// Threads, even where `io_uring` is usable.
    Threads,
}

impl FromStr for DriverChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DriverChoice, String> {
        match text {
            "auto" => Ok(DriverChoice::Auto),
            "uring" => Ok(DriverChoice::Uring),
            "threads" => Ok(DriverChoice::Threads),
            _ => Err(format!(
                "\"{text}\" is no driver, expected \"auto\", \"uring\" or \"threads\""
            )),
        }
    }
}

/// A driver that executes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// One `io_uring` for each runtime.
    Uring,
    /// `epoll(7)`, and threads for files.
    Threads,
}

impl DriverKind {
    /// Returns the driver's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Uring => "uring",
            DriverKind::Threads => "threads",
        }
    }
}

impl From<DriverKind> for DriverChoice {
    fn from(kind: DriverKind) -> DriverChoice {
        match kind {
            DriverKind::Uring => DriverChoice::Uring,
            DriverKind::Threads => DriverChoice::Threads,
        }
    }
}

/// The driver in use, and the reasons for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driven {
    /// The kind of the driver.
    pub kind: DriverKind,
    /// Reason why `io_uring` cannot be used, if [`DriverChoice::Auto`] selected threads for that
    /// reason.
    pub refused: Option<String>,
    /// Reason why buffers and files could not be registered with the ring; `None` if there was no
    /// obstacle.
    pub unregistered: Option<String>,
}

impl Driven {
    /// Returns one line for the operator if the runtime is less efficient than it could be. The
    /// line states the reason and the cost.
    pub fn warning(&self) -> Option<String> {
        if let Some(refused) = &self.refused {
            return Some(format!(
                "io_uring cannot be used ({refused}); going on with the driver \"threads\": at most \
                 {THREADS_MAX} operations on files at a time, each of which wakes two threads, and \
                 no ublk (`driver` in [server])"
            ));
        }
        let unregistered = self.unregistered.as_ref()?;
        Some(format!(
            "buffers are not registered with io_uring ({unregistered}), which costs about a fifth \
             more processor time for each operation on a file"
        ))
    }
}

/// Creates the requested driver.
pub(super) fn choose(
    options: &UringOptions,
    pool: &BufPool,
) -> io::Result<(Box<dyn Driver>, Driven)> {
    let threads = |refused| -> io::Result<(Box<dyn Driver>, Driven)> {
        let driven = Driven {
            kind: DriverKind::Threads,
            refused,
            unregistered: None,
        };
        Ok((Box::new(Threads::new()?), driven))
    };
    let choice = match options.driver {
        DriverChoice::Auto => of_environment()?,
        choice => choice,
    };
    if choice == DriverChoice::Threads {
        return threads(None);
    }
    match Ring::new(options, pool) {
        Ok((ring, limit)) => {
            let driven = Driven {
                kind: DriverKind::Uring,
                refused: None,
                unregistered: limit.map(|limit| Surroundings::now().words(&limit)),
            };
            Ok((Box::new(ring), driven))
        }
        Err(error) => {
            let words = Surroundings::now().words(&error);
            match choice == DriverChoice::Auto && is_refusal(&error) {
                true => threads(Some(words)),
                false => Err(io::Error::new(error.kind(), format!("io_uring: {words}"))),
            }
        }
    }
}

fn of_environment() -> io::Result<DriverChoice> {
    match std::env::var(VARIABLE) {
        Ok(text) => text.parse().map_err(|why| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{VARIABLE}: {why}"))
        }),
        Err(std::env::VarError::NotPresent) => Ok(DriverChoice::Auto),
        Err(error) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{VARIABLE}: {error}"),
        )),
    }
}

/// Returns true for an error that means that `io_uring` is unavailable to this process. Other
/// errors, such as a lack of descriptors, would also affect the driver of threads.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(
            error.raw_os_error(),
            Some(libc::ENOSYS | libc::EPERM | libc::EACCES | libc::ENOMEM)
        )
}

/// Settings of the system that can prevent the creation of an `io_uring`, as far as the kernel
/// reports them.
#[derive(Clone, Debug, Default)]
struct Surroundings {
    /// `kernel.io_uring_disabled`; `None` when the kernel lacks this setting (before Linux 6.6).
    disabled: Option<u32>,
    /// True when the process is under a system call filter.
    has_filter: bool,
    /// `RLIMIT_MEMLOCK` in bytes; `None` when there is no limit.
    locked_bytes_max: Option<u64>,
    /// `RLIMIT_NOFILE`.
    files_max: Option<u64>,
}

impl Surroundings {
    fn now() -> Surroundings {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let filtered = |line: &str| line.split_whitespace().eq(["Seccomp:", "2"]);
        Surroundings {
            disabled: disabled.ok().and_then(|text| text.trim().parse().ok()),
            has_filter: status.lines().any(filtered),
            locked_bytes_max: ProcessLimit::LockedBytes.value(),
            files_max: ProcessLimit::OpenFiles.value(),
        }
    }

    /// Describes the likely cause of an error of an `io_uring` system call.
    fn words(&self, error: &io::Error) -> String {
        if error.kind() == io::ErrorKind::Unsupported && error.raw_os_error().is_none() {
            return "the kernel lacks operations that are needed, Linux 5.6 has them".to_owned();
        }
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => self.forbidden(error),
            Some(libc::ENOSYS) if self.has_filter => format!(
                "{error}: the kernel is built without it, or a seccomp filter, as of a container, \
                 hides it"
            ),
            Some(libc::ENOSYS) => format!("{error}: the kernel is built without it"),
            Some(libc::ENOMEM) => match self.locked_bytes_max {
                Some(bytes) => format!("{error}: {}", ProcessLimit::LockedBytes.words(bytes)),
                None => error.to_string(),
            },
            Some(libc::EMFILE) => match self.files_max {
                Some(files) => format!("{error}: {}", ProcessLimit::OpenFiles.words(files)),
                None => error.to_string(),
            },
            _ => error.to_string(),
        }
    }

    /// Describes the settings that forbid `io_uring`.
    fn forbidden(&self, error: &io::Error) -> String {
        let mut reasons = Vec::new();
        match self.disabled {
            Some(2) => reasons.push("kernel.io_uring_disabled is 2, which forbids it to everybody"),
            Some(1) => reasons.push(
                "kernel.io_uring_disabled is 1, which forbids it to who is neither in the group \
                 kernel.io_uring_group nor has CAP_SYS_ADMIN",
            ),
            _ => {}
        }
        if self.has_filter {
            reasons.push("a seccomp filter, as of a container, forbids it");
        }
        if reasons.is_empty() {
            reasons.push("a security module of the kernel may forbid it");
        }
        format!("{error}: {}", reasons.join(", or "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(error: i32, surroundings: &Surroundings) -> String {
        surroundings.words(&io::Error::from_raw_os_error(error))
    }

    #[test]
    fn who_forbids_it_is_named_and_nobody_else() {
        let named = |disabled, has_filter| {
            let surroundings = Surroundings {
                disabled,
                has_filter,
                ..Surroundings::default()
            };
            let words = words(libc::EPERM, &surroundings);
            (
                words.contains("kernel.io_uring_disabled"),
                words.contains("seccomp"),
                words.contains("security module"),
            )
        };
        assert_eq!(named(Some(2), false), (true, false, false));
        assert_eq!(named(Some(1), true), (true, true, false));
        assert_eq!(named(Some(0), true), (false, true, false));
        assert_eq!(named(None, true), (false, true, false));
        assert_eq!(named(Some(0), false), (false, false, true));
    }

    #[test]
    fn a_limit_is_named_with_its_value_and_what_raises_it() {
        let surroundings = Surroundings {
            locked_bytes_max: Some(256 << 10),
            files_max: Some(128),
            ..Surroundings::default()
        };
        let memory = words(libc::ENOMEM, &surroundings);
        assert!(memory.contains("RLIMIT_MEMLOCK, is 256 KiB") && memory.contains("`ulimit -l`"));
        let files = words(libc::EMFILE, &surroundings);
        assert!(files.contains("RLIMIT_NOFILE, is 128") && files.contains("`ulimit -n`"));
        let unlimited = words(libc::ENOMEM, &Surroundings::default());
        assert!(!unlimited.contains("RLIMIT"), "{unlimited}");
    }

    #[test]
    fn only_a_refusal_is_gone_around() {
        for error in [libc::ENOSYS, libc::EPERM, libc::EACCES, libc::ENOMEM] {
            assert!(is_refusal(&io::Error::from_raw_os_error(error)), "{error}");
        }
        assert!(is_refusal(&io::ErrorKind::Unsupported.into()));
        for error in [libc::EMFILE, libc::ENFILE, libc::EINVAL] {
            assert!(!is_refusal(&io::Error::from_raw_os_error(error)), "{error}");
        }
    }

    #[test]
    fn choices_are_read() {
        assert_eq!("auto".parse(), Ok(DriverChoice::Auto));
        assert_eq!("uring".parse(), Ok(DriverChoice::Uring));
        assert_eq!("threads".parse(), Ok(DriverChoice::Threads));
        let why = "io_uring".parse::<DriverChoice>().unwrap_err();
        assert!(why.contains("\"threads\""), "{why}");
    }
}
