//! Exposes a device as a file in a folder of the local machine, through the kernel's FUSE. On a
//! kernel that has neither ublk nor an NBD client, a loop device over the file makes the volume a
//! block device.
//!
//! The kernel passes every request on the file to this process through `/dev/fuse`, on the ring
//! that also serves all other I/O, in one thread. The interface is specified by the kernel's
//! `linux/fuse.h`. The folder contains one file, whose name and size never change. The file is read
//! and written past the page cache, so data is on the device when a flush has been answered.
//!
//! This module must never answer a request before the device below has answered, and never leave a
//! mount behind without reporting it.

mod abi;
mod connection;
mod ended;
#[allow(
    unsafe_code,
    reason = "vouches for what the driver does with the memory it is lent"
)]
pub mod loop_device;
mod place;
mod room;

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bimetal_block::layers::atomic::AtomicUnit;
use bimetal_block::{BLOCK_BYTES, Device, Op, StatisticVisitor};
use bimetal_rt::Rt;
use bimetal_rt::real_time::MessageFile;

use abi::{Facts, PAGE_BYTES};
use connection::{Connection, READERS};
use place::MountFacts;
pub use place::{MountError, UnmountError, abort, is_mounted, unmount};

/// Maximum length of a read or write in bytes. The kernel splits longer ones.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Divisor of the runtime's buffer memory: a quarter of the memory is for the pending reads of
/// `/dev/fuse`.
const BUFFER_SHARE: usize = 4;
/// Maximum length of a file name in bytes.
const NAME_BYTES_MAX: usize = 255;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The folder to mount on. It must exist and be empty.
    pub folder: PathBuf,
    /// Name of the file in the folder.
    pub name: String,
    /// Name of the mount's source, as shown in the mount table.
    pub source: String,
    /// Whether the file refuses changes, even if the device below is writable.
    pub read_only: bool,
}

impl MountOptions {
    /// Checks the name and the folder. A caller that opens a volume only to mount it can call this
    /// before it opens the volume.
    ///
    /// # Errors
    /// `Name`, `Dead`, `NotEmpty`, or `File` when the folder cannot be read.
    pub fn check(&self) -> Result<(), MountError> {
        check_name(&self.name)?;
        place::check_folder(&self.folder).map(|_| ())
    }
}

/// A device mounted as a file. Every `Mounted` must be closed with [`close`](Mounted::close) before
/// the runtime ends.
pub struct Mounted {
    folder: PathBuf,
    name: String,
    /// Connection to the kernel; `None` after `close` has been called.
    connection: RefCell<Option<Rc<Connection>>>,
}

impl Mounted {
    /// Mounts a device as a file. The device is wrapped in an atomic unit, a layer that makes
    /// requests of any offset and length possible.
    ///
    /// # Errors
    /// A failure as a [`MountError`]; nothing is then mounted.
    pub async fn mount(
        rt: &Rt,
        device: Rc<dyn Device>,
        options: &MountOptions,
    ) -> Result<Mounted, MountError> {
        check_name(&options.name)?;
        let folder = place::check_folder(&options.folder)?;
        let geometry = *device.geometry();
        let read_only = options.read_only || !geometry.writable;
        let transfer_bytes_max =
            transfer_bytes_max(geometry.transfer_bytes_max, rt.pool().region_bytes());
        let facts = MountFacts {
            source: &options.source,
            read_only,
            read_bytes_max: transfer_bytes_max,
        };
        let fuse = place::mount(&folder, &facts)?;
        let facts = Facts {
            name: options.name.clone(),
            size_bytes: geometry.size_bytes,
            read_only,
            preferred_bytes: geometry.preferred_bytes.max(BLOCK_BYTES as u32),
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            made_s: rt.unix_seconds(),
        };
        let unit: Rc<dyn Device> = Rc::new(AtomicUnit::new(rt, device));
        let started = async {
            let file = MessageFile::new(rt, fuse)?;
            let path = folder.join(&options.name).display().to_string();
            Connection::start(rt, file, unit, facts, transfer_bytes_max, path).await
        };
        match started.await {
            Ok(connection) => Ok(Mounted {
                folder,
                name: options.name.clone(),
                connection: RefCell::new(Some(connection)),
            }),
            Err(error) => {
                // If the unmount fails as well, only the original failure is reported.
                let _ = place::take_away(&folder, true);
                Err(match error.kind() {
                    io::ErrorKind::Unsupported => MountError::OldKernel,
                    _ => MountError::File {
                        path: folder,
                        error,
                    },
                })
            }
        }
    }

    /// Returns the absolute path of the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the absolute path of the file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Waits until the service of the file has ended without a call of [`close`](Mounted::close).
    /// This happens if another process unmounts the folder, or if an error occurs.
    pub async fn ended(&self) {
        let connection = self.connection.borrow().clone();
        if let Some(connection) = connection {
            connection.ended().await;
        }
    }

    /// Returns true when the file is no longer served: either it was unmounted and no process has
    /// it open, or an error occurred.
    pub fn has_ended(&self) -> bool {
        let connection = self.connection.borrow();
        connection.as_ref().is_none_or(|it| it.has_ended())
    }

    /// Stops serving the file. Requests in flight are answered, and the kernel fails all later
    /// requests. The mount itself is not removed. Call [`unmount`] before this function; otherwise,
    /// the mount remains and every request on it fails.
    ///
    /// # Errors
    /// The error that had stopped the service before this call, if there was one.
    pub async fn close(&self) -> Result<(), MountError> {
        let Some(connection) = self.connection.take() else {
            return Ok(());
        };
        connection.finish().await;
        let failure = connection.failure().map(|error| MountError::File {
            path: self.path(),
            error,
        });
        failure.map_or(Ok(()), Err)
    }

    /// Reports the live counters of the file.
    pub fn statistics(&self, out: &mut dyn StatisticVisitor) {
        let connection = self.connection.borrow();
        if let Some(connection) = connection.as_ref() {
            let part = self.path().display().to_string();
            connection.counters.statistics(&part, &Op::ALL, out);
        }
    }
}

/// Checks that the name of a device can be a file name.
fn check_name(name: &str) -> Result<(), MountError> {
    let is_special = matches!(name, "" | "." | "..");
    if is_special || name.contains(['/', '\0']) || name.len() > NAME_BYTES_MAX {
        return Err(MountError::Name(name.to_owned()));
    }
    Ok(())
}

/// Returns the maximum length of a read or write in bytes: a multiple of the page size, at most the
/// device's maximum. It is also small enough that the buffers of all readers together fit in their
/// share of a buffer region of `region_bytes` bytes.
fn transfer_bytes_max(device_bytes_max: u32, region_bytes: usize) -> u32 {
    let share = match region_bytes {
        // Without a region, all buffers are allocated from the heap.
        0 => u32::MAX,
        bytes => u32::try_from(bytes / BUFFER_SHARE / READERS).unwrap_or(u32::MAX),
    };
    let bytes = TRANSFER_BYTES_MAX.min(device_bytes_max).min(share);
    (bytes / PAGE_BYTES * PAGE_BYTES).max(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_a_file() {
        assert!(check_name("vol").is_ok());
        assert!(check_name("a b").is_ok());
        assert!(check_name(&"x".repeat(255)).is_ok());
        for wrong in ["", ".", "..", "a/b", "a\0b", &"x".repeat(256)] {
            assert!(check_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_transfer_fits_the_device_and_the_buffers() {
        let mib = 1 << 20;
        for (device, region, expected) in [
            (32 * mib, 64 << 20, mib),
            (32 * mib, 0, mib),
            (128 << 10, 64 << 20, 128 << 10),
            // A quarter of the 4 MiB of buffers is divided among four readers, which gives 256 KiB
            // for a transfer.
            (32 * mib, 4 << 20, 256 << 10),
            (5000, 64 << 20, 4096),
            (512, 64 << 20, 4096),
        ] {
            assert_eq!(
                transfer_bytes_max(device, region),
                expected,
                "{device} {region}"
            );
        }
    }
}
