//! The control side of ublk: adds, starts, stops and deletes block devices through
//! `/dev/ublk-control`.
//!
//! This module must never process the requests of a device, and never decide when a device ends.

use std::io;
use std::path::{Path, PathBuf};

use bimetal_rt::real_time::{CommandFile, LONG_COMMAND_BYTES};
use bimetal_rt::{DriverKind, Rt};

use super::abi::{
    CONTROL_ADDRESS_AT, CONTROL_COMMAND_BYTES, Control, ControlCommand, DEVICE_INFO_BYTES,
    DeviceInfo, Parameters, part,
};

const CONTROL_PATH: &str = "/dev/ublk-control";

/// Error numbers (`errno(3)`) that this module distinguishes.
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const ENXIO: i32 = 6;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const EOPNOTSUPP: i32 = 95;
    /// `ENOTSUPP`, an error number that is internal to the kernel and has no name in user space.
    pub(super) const NO_SUCH_COMMAND: i32 = 524;
}

/// Reason why a device cannot be attached, detached, or served any longer.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The driver is not loaded.
    #[error(
        "{CONTROL_PATH} does not exist: the driver ublk_drv of Linux 6.4 or newer is needed; load \
        it with `modprobe ublk_drv`"
    )]
    NoDriver,
    /// The user has no permission.
    #[error("no permission for {CONTROL_PATH}: creating a block device needs root (CAP_SYS_ADMIN)")]
    NoRights,
    /// `io_uring` lacks the commands that the driver needs.
    #[error(
        "this kernel's io_uring does not support commands for drivers: Linux 6.4 or newer is needed"
    )]
    NoCommands,
    /// The runtime does not use `io_uring`.
    #[error(
        "ublk needs io_uring, but the driver in use is \"threads\": export the device by NBD, or \
        mount it"
    )]
    NoRing,
    /// The driver is too old for our commands.
    #[error("the driver ublk_drv is too old: Linux 6.4 or newer is needed")]
    OldDriver,
    /// Another device already has the number.
    #[error("{0} exists already")]
    Exists(String),
    /// No device has the number.
    #[error("there is no {0}")]
    Missing(String),
    /// The size of the volume is zero or not a multiple of the sector size.
    #[error(
        "a volume of {0} bytes cannot be a block device: the size must be a multiple of 512 bytes"
    )]
    Size(u64),
    /// A file of the device could not be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error from the kernel.
        error: io::Error,
    },
    /// The driver refused a command for another reason.
    #[error("{device}: {step}: {error}")]
    Refused {
        /// The block device.
        device: String,
        /// The step that was attempted.
        step: &'static str,
        /// The error from the driver.
        error: io::Error,
    },
}

/// Returns the path of the block device with this number.
pub(super) fn block_path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// Returns the path of the file through which the block device with this number is served.
pub(super) fn queue_path(number: u32) -> String {
    format!("/dev/ublkc{number}")
}

fn is_driven_by_threads(rt: &Rt) -> bool {
    rt.driven()
        .is_some_and(|driven| driven.kind == DriverKind::Threads)
}

/// An open `/dev/ublk-control`.
pub(super) struct ControlFile(CommandFile);

impl ControlFile {
    pub(super) fn open(rt: &Rt) -> Result<ControlFile, AttachError> {
        let opened = CommandFile::open(rt, Path::new(CONTROL_PATH));
        opened.map(ControlFile).map_err(|error| {
            match (error.kind(), error.raw_os_error()) {
                // No driver is behind the file, or the driver has been unloaded.
                (_, Some(errno::ENOENT | errno::ENXIO | errno::ENODEV)) => AttachError::NoDriver,
                (_, Some(errno::EACCES | errno::EPERM)) => AttachError::NoRights,
                (io::ErrorKind::Unsupported, _) if is_driven_by_threads(rt) => AttachError::NoRing,
                (io::ErrorKind::Unsupported, _) => AttachError::NoCommands,
                _ => AttachError::File {
                    path: CONTROL_PATH.into(),
                    error,
                },
            }
        })
    }

    /// Adds a device without starting it. The returned information contains the number that the
    /// driver has assigned.
    pub(super) async fn add(&self, info: &DeviceInfo) -> Result<DeviceInfo, AttachError> {
        let data = Box::from(info.encode());
        let data = self
            .send(Control::AddDevice, info.number, 0, 0, data)
            .await?;
        Ok(DeviceInfo::decode(&part(&data, 0)))
    }

    pub(super) async fn set_parameters(
        &self,
        number: u32,
        parameters: &Parameters,
    ) -> Result<(), AttachError> {
        let data = Box::from(parameters.encode());
        self.send(Control::SetParameters, number, 0, 0, data)
            .await?;
        Ok(())
    }

    /// Starts the block device. During the start the kernel scans the device for partitions, so the
    /// queue must already be served.
    pub(super) async fn start(&self, number: u32) -> Result<(), AttachError> {
        let server = u64::from(std::process::id());
        self.without_data(Control::StartDevice, number, server)
            .await
    }

    /// Removes the block device. A file system that is mounted on the device writes its data first,
    /// so the queue must be served until this function returns. Afterwards the driver sends no more
    /// requests.
    pub(super) async fn stop(&self, number: u32) -> Result<(), AttachError> {
        self.without_data(Control::StopDevice, number, 0).await
    }

    /// Deletes the device and frees its number. If the driver supports it, the call does not wait
    /// for processes that have the device open, because a mount of the dead device can persist for
    /// a long time.
    pub(super) async fn delete(&self, number: u32) -> Result<(), AttachError> {
        let deleted = self
            .without_data(Control::DeleteDeviceAsync, number, 0)
            .await;
        match deleted {
            Err(AttachError::OldDriver) => {
                self.without_data(Control::DeleteDevice, number, 0).await
            }
            deleted => deleted,
        }
    }

    /// Returns the driver's information about a device.
    pub(super) async fn info(&self, number: u32) -> Result<DeviceInfo, AttachError> {
        // The driver requires the path of the device's file, and checks the caller's permissions on
        // that file.
        let mut data = queue_path(number).into_bytes();
        let path_bytes = data.len();
        data.resize(path_bytes + DEVICE_INFO_BYTES, 0);
        let data = data.into_boxed_slice();
        let data = self
            .send(Control::DeviceInfo, number, 0, path_bytes as u16, data)
            .await?;
        Ok(DeviceInfo::decode(&part(&data, path_bytes)))
    }

    async fn without_data(
        &self,
        control: Control,
        number: u32,
        argument: u64,
    ) -> Result<(), AttachError> {
        let nothing = Box::default();
        self.send(control, number, argument, 0, nothing).await?;
        Ok(())
    }

    async fn send(
        &self,
        control: Control,
        number: u32,
        argument: u64,
        path_bytes: u16,
        data: Box<[u8]>,
    ) -> Result<Box<[u8]>, AttachError> {
        let command = ControlCommand {
            number,
            data_bytes: u16::try_from(data.len()).expect("what is sent is short"),
            argument,
            path_bytes,
        };
        let mut long = [0; LONG_COMMAND_BYTES];
        long[..CONTROL_COMMAND_BYTES].copy_from_slice(&command.encode());
        // SAFETY: for every command that `Control` names, the driver accesses at most the number of
        // bytes stated in the command, at the address in the command, and only before the command
        // completes.
        let sent = unsafe {
            self.0
                .command(control.op(), long, CONTROL_ADDRESS_AT, data)
                .await
        };
        sent.map_err(|error| refused(control, number, error))
    }
}

/// Converts the error of a command to an [`AttachError`].
fn refused(control: Control, number: u32, error: io::Error) -> AttachError {
    let device = || block_path(number);
    match (control, error.raw_os_error()) {
        (_, Some(errno::EPERM | errno::EACCES)) => AttachError::NoRights,
        (_, Some(errno::EOPNOTSUPP | errno::NO_SUCH_COMMAND)) => AttachError::OldDriver,
        // A driver that predates the encoded command numbers returns `EINVAL` for an encoded
        // command.
        (Control::DeleteDeviceAsync, Some(errno::EINVAL)) => AttachError::OldDriver,
        (Control::AddDevice, Some(errno::EEXIST)) => AttachError::Exists(device()),
        (Control::AddDevice, _) => AttachError::Refused {
            device: "a new block device".to_owned(),
            step: control.name(),
            error,
        },
        (_, Some(errno::ENODEV)) => AttachError::Missing(device()),
        _ => AttachError::Refused {
            device: device(),
            step: control.name(),
            error,
        },
    }
}
