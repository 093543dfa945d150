//! Loop devices over the file of a mount: creates, finds and removes them with the calls of the
//! kernel's loop driver (`linux/loop.h`).
//!
//! Every function in this module waits for the driver, and the driver waits for the server of the
//! file. The functions must therefore be called only in a separate process. A server that called
//! one of them would wait for itself. If the server called it in another thread, the server could
//! not even be killed, because the kernel does not close the server's end of the file before that
//! thread has ended.
//!
//! This module is allowed to use `unsafe`, because it vouches for the driver's use of the memory
//! that it passes. It must never remove a device that this module did not create, unless the caller
//! requests it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter};

use super::ended::is_end_of_server;

const CONTROL_PATH: &str = "/dev/loop-control";
const SYSFS: &str = "/sys/block";

/// Numbers of the `LOOP_*` commands.
mod command {
    pub(super) const CLEAR: u32 = 0x4C01;
    pub(super) const STATUS: u32 = 0x4C05;
    pub(super) const CONFIGURE: u32 = 0x4C0A;
    pub(super) const FREE: u32 = 0x4C82;
}

/// Flags `LO_FLAGS_*`.
mod flag {
    pub(super) const READ_ONLY: u32 = 1;
    pub(super) const PARTITIONS: u32 = 8;
    pub(super) const DIRECT_IO: u32 = 16;
}

/// Bytes of `struct loop_info64`.
const INFO_BYTES: usize = 232;
/// Offsets of the flags and the name in `struct loop_info64`.
const FLAGS_AT: usize = 52;
const NAME_AT: usize = 56;
const NAME_BYTES: usize = 64;
/// Size in bytes of `struct loop_config`, and the offset of the `struct loop_info64` in it.
const CONFIG_BYTES: usize = 304;
const INFO_AT: usize = 8;
/// Name given to the devices that this module creates. This module is allowed to remove a device
/// with this name.
const OUR_NAME: &[u8] = b"bimetal";
/// Maximum number of attempts to configure a free device. An attempt fails if another process
/// configures the same device first.
const TRIES_MAX: usize = 64;

/// Options of a loop device.
#[derive(Clone, Copy, Debug)]
pub struct LoopOptions {
    /// Sector size in bytes: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Whether changes are refused.
    pub read_only: bool,
}

/// Encodes `struct loop_config` for the open file `fd`.
fn encode_config(fd: i32, options: LoopOptions) -> [u8; CONFIG_BYTES] {
    let read_only = if options.read_only {
        flag::READ_ONLY
    } else {
        0
    };
    let flags = flag::DIRECT_IO | flag::PARTITIONS | read_only;
    let mut out = [0; CONFIG_BYTES];
    out[0..4].copy_from_slice(&fd.to_ne_bytes());
    out[4..8].copy_from_slice(&options.block_bytes.to_ne_bytes());
    let info = &mut out[INFO_AT..INFO_AT + INFO_BYTES];
    info[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&flags.to_ne_bytes());
    info[NAME_AT..NAME_AT + OUR_NAME.len()].copy_from_slice(OUR_NAME);
    out
}

/// Whether the name in a `struct loop_info64` is the name of devices that this module creates.
fn is_our_name(info: &[u8; INFO_BYTES]) -> bool {
    let name = &info[NAME_AT..NAME_AT + NAME_BYTES];
    name.split(|byte| *byte == 0).next() == Some(OUR_NAME)
}

/// The call `LOOP_CTL_GET_FREE`, which returns the number of a free device.
struct FreeNumber;

// SAFETY: the call takes no argument, and its result is a number.
unsafe impl Ioctl for FreeNumber {
    type Output = u32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        command::FREE as Opcode
    }

    fn as_ptr(&mut self) -> *mut core::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        out: IoctlOutput,
        _: *mut core::ffi::c_void,
    ) -> rustix::io::Result<u32> {
        Ok(out as u32)
    }
}

/// Creates a loop device with direct I/O over the file at `path`, and returns the path of the
/// device. The kernel scans the device for partitions.
///
/// # Errors
/// The errors of the driver and of opening files; `Unsupported` if the driver would use the page
/// cache.
pub fn make(path: &Path, options: LoopOptions) -> io::Result<PathBuf> {
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .open(path)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open(CONTROL_PATH)
        .map_err(|error| of(&CONTROL_PATH, error))?;
    let config = encode_config(file.as_raw_fd(), options);
    for _ in 0..TRIES_MAX {
        // SAFETY: `FreeNumber` takes no argument, and its result is a number.
        let number = unsafe { rustix::ioctl::ioctl(&control, FreeNumber) }?;
        let device = PathBuf::from(format!("/dev/loop{number}"));
        let open = OpenOptions::new().read(true).write(true).open(&device);
        let open = open.map_err(|error| of(&device.display(), error))?;
        // SAFETY: the driver reads a `struct loop_config`, whose size is the length of `config`.
        let made = unsafe {
            rustix::ioctl::ioctl(
                &open,
                Setter::<{ command::CONFIGURE as Opcode }, _>::new(config),
            )
        };
        match made {
            Ok(()) if is_direct(number) => return Ok(device),
            Ok(()) => {
                clear(&open)?;
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel has no direct I/O on a loop device of that sector size",
                ));
            }
            // Another process has configured the device in the meantime.
            Err(rustix::io::Errno::BUSY) => {}
            Err(error) => return Err(of(&device.display(), error.into())),
        }
    }
    Err(io::Error::other(
        "every free loop device was taken by another process",
    ))
}

/// Adds the path or the description of the failed step to an error.
fn of(place: &dyn std::fmt::Display, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{place}: {error}"))
}

/// Whether the loop device `number` bypasses the page cache.
fn is_direct(number: u32) -> bool {
    let said = std::fs::read_to_string(format!("{SYSFS}/loop{number}/loop/dio"));
    said.is_ok_and(|said| said.trim() == "1")
}

/// Makes the driver release the file of a loop device. If other processes have the device open, the
/// driver releases the file when the last of them has closed the device.
fn clear(device: &File) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    let cleared =
        unsafe { rustix::ioctl::ioctl(device, NoArg::<{ command::CLEAR as Opcode }>::new()) };
    match cleared {
        // Another process has already made the driver release the file.
        Err(rustix::io::Errno::NXIO) => Ok(()),
        cleared => cleared.map_err(io::Error::from),
    }
}

/// A loop device over a file of a mount.
#[derive(Debug)]
pub(super) struct LoopDevice {
    path: PathBuf,
    /// The open device. While it is open, the driver cannot reuse the device for another file.
    file: File,
    /// Whether the device was made by [`make`].
    pub(super) is_ours: bool,
}

impl LoopDevice {
    /// Returns the path `/dev/loopN`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the device is neither mounted nor used by another device that is built on it. A
    /// mount or such a device would have claimed this device exclusively.
    pub(super) fn is_unclaimed(&self) -> io::Result<bool> {
        let exclusive = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::EXCL.bits() as i32)
            .open(&self.path);
        match exclusive {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the device's dirty pages in the kernel's page cache to the file.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Removes the device; see [`clear`].
    pub(super) fn take_away(self) -> io::Result<()> {
        clear(&self.file)
    }
}

/// Finds the loop devices over files in `folder`.
///
/// # Errors
/// The errors of opening a device that exists.
pub(super) fn over(folder: &Path) -> io::Result<Vec<LoopDevice>> {
    let mut found = Vec::new();
    let Ok(devices) = std::fs::read_dir(SYSFS) else {
        // A machine without block devices has no loop devices.
        return Ok(found);
    };
    for device in devices {
        let device = device?;
        let backing = device.path().join("loop/backing_file");
        let is_over = || {
            let file = std::fs::read_to_string(&backing).ok()?;
            let file = file.strip_suffix('\n').unwrap_or(&file);
            Path::new(file).starts_with(folder).then_some(())
        };
        if is_over().is_none() {
            continue;
        }
        let path = Path::new("/dev").join(device.file_name());
        let file = File::open(&path).map_err(|error| of(&path.display(), error))?;
        // While `file` is open, the device cannot become a loop device of another file.
        if is_over().is_none() {
            continue;
        }
        let is_ours = is_ours(&file)?;
        found.push(LoopDevice {
            path,
            file,
            is_ours,
        });
    }
    Ok(found)
}

fn is_ours(device: &File) -> io::Result<bool> {
    // SAFETY: the driver writes a `struct loop_info64`, whose size is `INFO_BYTES`.
    let info = unsafe {
        rustix::ioctl::ioctl(
            device,
            Getter::<{ command::STATUS as Opcode }, [u8; INFO_BYTES]>::new(),
        )
    };
    match info.map_err(io::Error::from) {
        Ok(info) => Ok(is_our_name(&info)),
        // The server of the file behind the device no longer answers, so no process can use the
        // device. The device is treated as ours.
        Err(error) if is_end_of_server(&error) => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_configuration_lies_as_in_the_header() {
        let options = LoopOptions {
            block_bytes: 4096,
            read_only: false,
        };
        let config = encode_config(7, options);
        assert_eq!(config[..8], [7, 0, 0, 0, 0, 0x10, 0, 0]);
        // After fd and block_size come five numbers of 8 bytes, then lo_number, lo_encrypt_type,
        // lo_encrypt_key_size and lo_flags of 4 bytes each: lo_flags is at 8 + 40 + 12 = 60. Its
        // value is the flags for partitions (8) and direct I/O (16).
        assert!(config[8..60].iter().all(|byte| *byte == 0));
        assert_eq!(config[60..64], [24, 0, 0, 0]);
        assert_eq!(config[64..72], *b"bimetal\0");
        assert!(config[72..].iter().all(|byte| *byte == 0));
        let read_only = LoopOptions {
            read_only: true,
            ..options
        };
        assert_eq!(encode_config(7, read_only)[60..64], [25, 0, 0, 0]);
    }

    #[test]
    fn a_name_says_whose_a_device_is() {
        let mut info = [0; INFO_BYTES];
        assert!(!is_our_name(&info));
        info[56..63].copy_from_slice(b"bimetal");
        assert!(is_our_name(&info));
        info[63] = b'/';
        assert!(!is_our_name(&info));
    }
}
