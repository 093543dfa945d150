//! Error types. On the data path an error is one small value, like the kernel's `blk_status_t`: it
//! only tells a layer or a client how to react, and the details are logged at the place where the
//! error is handled. While a device is being opened, an error is one line for the operator.

use std::io;

use serde::Deserialize;

/// Reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoError {
    /// The medium could not read or write these blocks.
    #[error("medium error")]
    Medium,
    /// The device is absent or no longer there.
    #[error("device offline")]
    Offline,
    /// The device did not answer in time. A write might still be executed later.
    #[error("timed out")]
    Timeout,
    /// The connection to the device broke.
    #[error("transport error")]
    Transport,
    /// The device has no space left for the data.
    #[error("no space left")]
    NoSpace,
    /// The offset or the length of the request is not a multiple of the device's block size.
    #[error("misaligned request")]
    Misaligned,
    /// The range of the request extends beyond the end of the device.
    #[error("beyond the end of the device")]
    OutOfRange,
    /// The device does not accept writes.
    #[error("device is read-only")]
    ReadOnly,
    /// The device does not support this operation.
    #[error("operation not supported")]
    Unsupported,
    /// The device returned data that is known to be corrupt.
    #[error("data is corrupt")]
    Corrupt,
    /// A limit was reached, such as the available memory or the maximum length of a request.
    #[error("out of resources")]
    Resource,
    /// The device is being closed.
    #[error("device is closed")]
    Closed,
}

/// The errno values that map to and from [`IoError`], as on Linux.
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EIO: i32 = 5;
    pub(super) const ENXIO: i32 = 6;
    pub(super) const EBADMSG: i32 = 74;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ESHUTDOWN: i32 = 108;
    pub(super) const ETIMEDOUT: i32 = 110;
    pub(super) const EDQUOT: i32 = 122;
}

impl IoError {
    /// Returns the Linux errno that a client sees.
    pub fn to_errno(self) -> i32 {
        match self {
            IoError::Medium | IoError::Transport | IoError::Offline => errno::EIO,
            IoError::Corrupt => errno::EBADMSG,
            IoError::Timeout => errno::ETIMEDOUT,
            IoError::NoSpace => errno::ENOSPC,
            IoError::Misaligned | IoError::OutOfRange => errno::EINVAL,
            IoError::ReadOnly => errno::EPERM,
            IoError::Unsupported => errno::EOPNOTSUPP,
            IoError::Resource => errno::ENOMEM,
            IoError::Closed => errno::ESHUTDOWN,
        }
    }

    /// Returns true if the error concerns only the requested blocks, and says nothing about other
    /// blocks.
    pub fn is_of_a_block(self) -> bool {
        matches!(self, IoError::Corrupt | IoError::Medium)
    }

    /// Returns true if the same request might succeed on another copy (as the kernel's
    /// `blk_path_error`), because the fault lies with this device and not with the request.
    pub fn is_device_fault(self) -> bool {
        match self {
            IoError::Medium
            | IoError::Offline
            | IoError::Timeout
            | IoError::Transport
            | IoError::NoSpace
            | IoError::Corrupt
            | IoError::Resource
            | IoError::Closed => true,
            IoError::Misaligned
            | IoError::OutOfRange
            | IoError::ReadOnly
            | IoError::Unsupported => false,
        }
    }
}

impl From<io::Error> for IoError {
    /// Maps an error of the kernel to the error that tells layers how to react.
    fn from(error: io::Error) -> IoError {
        match error.raw_os_error() {
            // A file that would exceed its maximum size is reported as a lack of space.
            Some(errno::ENOSPC | errno::EDQUOT | errno::EFBIG) => IoError::NoSpace,
            Some(errno::EINVAL) => IoError::Misaligned,
            Some(errno::EPERM | errno::EROFS) => IoError::ReadOnly,
            Some(errno::EOPNOTSUPP) => IoError::Unsupported,
            Some(errno::ENOMEM) => IoError::Resource,
            Some(errno::ENODEV | errno::ENXIO) => IoError::Offline,
            Some(errno::ETIMEDOUT) => IoError::Timeout,
            Some(_) => IoError::Medium,
            None => match error.kind() {
                io::ErrorKind::Unsupported => IoError::Unsupported,
                _ => IoError::Transport,
            },
        }
    }
}

/// Reason why a device could not be opened: one line for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", device.as_ref().map(|d| format!("device {d}: ")).unwrap_or_default())]
pub struct OpenError {
    /// Name of the device in the configuration.
    pub device: Option<String>,
    /// Description of the fault and of its remedy.
    pub message: String,
}

impl OpenError {
    /// Creates an error without the name of the device, for code that does not know the name.
    pub fn new(message: impl Into<String>) -> OpenError {
        OpenError {
            device: None,
            message: message.into(),
        }
    }

    /// Adds the device name `name` to the error, unless the error already has one.
    pub fn of(self, name: &str) -> OpenError {
        OpenError {
            device: self.device.or_else(|| Some(name.to_owned())),
            ..self
        }
    }
}
