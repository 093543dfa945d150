//! The kernel's loop devices, identified by number: creation, configuration with a backing file,
//! and removal.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::{NativeError, io_error, sys};

const CONTROL: &str = "/dev/loop-control";

/// A loop device with a backing file.
pub(super) struct Loop {
    pub(super) path: PathBuf,
    /// Open loop device. It must stay open as long as the device is needed, because the last close
    /// detaches the backing file.
    pub(super) file: File,
}

/// Opens the control device, through which loop devices are created and removed.
pub(super) fn control() -> Result<File, NativeError> {
    let path = Path::new(CONTROL);
    File::open(path).map_err(|source| io_error(path, source))
}

fn node(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

fn block_folder(number: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{number}"))
}

/// Checks that the kernel supports loop devices.
pub(super) fn check() -> Result<(), NativeError> {
    control().map(|_| ())
}

/// Returns true if a loop device with this number exists.
pub(super) fn exists(number: u32) -> bool {
    block_folder(number).exists()
}

/// Creates the loop device with this number. Returns false if the device already exists.
pub(super) fn add(control: &File, number: u32) -> Result<bool, NativeError> {
    match sys::loop_add(control, number) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(source) => Err(io_error(&node(number), source)),
    }
}

/// Configures a loop device with the backing file `backing`. The device accesses the file without
/// the page cache.
pub(super) fn configure(number: u32, backing: &Path) -> Result<Loop, NativeError> {
    let path = node(number);
    let file = open(&path)?;
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(backing)
        .map_err(|source| NativeError::Io {
            what: format!("{}, bypassing the page cache", backing.display()),
            error: source,
        })?;
    sys::loop_configure(&file, &direct).map_err(|source| io_error(&path, source))?;
    super::sysfs::verify(&block_folder(number).join("loop/dio"), "1")?;
    Ok(Loop { path, file })
}

fn open(path: &Path) -> Result<File, NativeError> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|source| io_error(path, source))
}

/// Removes a loop device. Does nothing if the device has another backing file, because it then
/// belongs to another program.
///
/// # Errors
/// `ResourceBusy` while any program has the device open.
pub(super) fn remove(number: u32, backing: &Path) -> Result<(), NativeError> {
    let path = node(number);
    if !block_folder(number).exists() {
        return Ok(());
    }
    match fs::read_to_string(block_folder(number).join("loop/backing_file")) {
        Ok(file) if Path::new(file.trim_end()) != backing => return Ok(()),
        // After `loop_clear`, the kernel detaches the backing file when the last user closes the
        // device. Unless another program has the device open, this is when the file opened here is
        // dropped.
        Ok(_) => sys::loop_clear(&open(&path)?).map_err(|source| io_error(&path, source))?,
        Err(_) => {}
    }
    match sys::loop_remove(&control()?, number) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(|source| io_error(&path, source)),
    }
}
