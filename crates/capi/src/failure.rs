//! Failures as C programs see them: an errno(3) number, and a message that the thread can query.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use bimetal_client::{ConnectError, Error, OptionsError, RefusalCode, Status};

thread_local! {
    /// Message of the last failure that was reported to this thread.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Reason why a call or a request failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Error number, above 0.
    errno: c_int,
    words: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, words: impl Into<String>) -> Failure {
        let words = words.into();
        Failure { errno, words }
    }

    /// Creates the failure of an invalid argument.
    pub(crate) fn invalid(words: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, words)
    }

    /// Creates the failure of a bug in this library.
    pub(crate) fn panicked() -> Failure {
        Failure::new(libc::EIO, "the library has a fault: it panicked")
    }

    /// Stores the message of this failure as the last message of the thread. Returns the negative
    /// error number that the program gets.
    pub(crate) fn remember(self) -> c_int {
        // A message from a target can contain a NUL, which would end the C string early.
        let words = CString::new(self.words.replace('\0', " ")).unwrap_or_default();
        LAST.set(words);
        -self.errno
    }
}

/// Returns the message of the calling thread's last failure. The pointer is valid until the
/// thread's next failure.
pub(crate) fn last_words() -> *const c_char {
    LAST.with_borrow(|words| words.as_ptr())
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let errno = match &error {
            Error::Target(status) => of_status(*status),
            Error::Lost => libc::EREMOTEIO,
            Error::Broken => libc::ECONNABORTED,
            Error::Unreachable(_) => libc::EHOSTUNREACH,
            Error::Unusable(_) => libc::ESTALE,
            Error::TooLong => libc::EINVAL,
            Error::Closed => libc::ESHUTDOWN,
        };
        Failure::new(errno, error.to_string())
    }
}

fn of_status(status: Status) -> c_int {
    match status {
        // A target that reports a failure with the status `Ok` violates the protocol. This is
        // reported as an I/O error.
        Status::Ok | Status::Medium => libc::EIO,
        Status::NoSpace => libc::ENOSPC,
        Status::Invalid | Status::OutOfRange => libc::EINVAL,
        Status::ReadOnly => libc::EROFS,
        Status::Unsupported => libc::EOPNOTSUPP,
        Status::Resource => libc::ENOMEM,
        Status::Corrupt => libc::EBADMSG,
        Status::Offline => libc::ENODEV,
        Status::Timeout => libc::ETIMEDOUT,
        Status::Shutdown => libc::ESHUTDOWN,
    }
}

fn of_refusal(code: RefusalCode) -> c_int {
    match code {
        RefusalCode::Version => libc::EPROTONOSUPPORT,
        RefusalCode::UnknownExport => libc::ENOENT,
        RefusalCode::Full => libc::EBUSY,
        RefusalCode::StalePath => libc::EPROTO,
        RefusalCode::Shutdown => libc::ESHUTDOWN,
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        let errno = match &error {
            ConnectError::Io(cause) => cause.raw_os_error().unwrap_or(libc::EIO),
            ConnectError::Protocol(_) => libc::EPROTO,
            ConnectError::Refused(refusal) => of_refusal(refusal.code),
            ConnectError::Unusable(_) => libc::ESTALE,
            ConnectError::Silent => libc::ETIMEDOUT,
        };
        Failure::new(errno, error.to_string())
    }
}

impl From<OptionsError> for Failure {
    fn from(error: OptionsError) -> Failure {
        Failure::invalid(error.to_string())
    }
}
