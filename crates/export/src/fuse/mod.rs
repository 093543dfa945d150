//! A device as a file in a folder of this machine, by the kernel's FUSE: on kernels that have
//! neither ublk nor an NBD client, a loop device over it is the volume as a block device.
//!
//! The kernel hands every request on the file to this process through `/dev/fuse`, by the ring that
//! also serves everything else: one thread. Its contract is the kernel's `linux/fuse.h`. There is
//! one file, whose name and size never change, and it is read and written past the page cache, so
//! that what a flush has answered is what the device has.
//!
//! It must never answer a request before the device below has, and never leave a mount behind
//! without saying so.

mod abi;
mod connection;
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
use bimetal_block::{BLOCK_BYTES, Device, FigureVisitor, Op};
use bimetal_rt::Rt;
use bimetal_rt::real_time::MessageFile;

use abi::{Facts, PAGE_BYTES};
use connection::{Connection, READERS};
use place::MountFacts;
pub use place::{MountError, UnmountError, abort, is_mounted, unmount};

/// The longest read or write; the kernel cuts what is longer.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// What the reads that wait for messages may hold of the runtime's buffers: one part in so many.
const BUFFER_SHARE: usize = 4;
/// The longest name of a file.
const NAME_BYTES_MAX: usize = 255;

/// How a device is mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The folder: there, and empty.
    pub folder: PathBuf,
    /// The name of the file in it.
    pub name: String,
    /// What the table of mounts shows as the source.
    pub source: String,
    /// Whether changes are refused, also where the device would take them.
    pub read_only: bool,
}

impl MountOptions {
    /// Checks the name and the folder: whoever opens a volume only to mount it need not begin
    /// otherwise.
    ///
    /// # Errors
    /// `Name`, `Dead`, `NotEmpty`, or `File` when the folder cannot be read.
    pub fn check(&self) -> Result<(), MountError> {
        check_name(&self.name)?;
        place::check_folder(&self.folder).map(|_| ())
    }
}

/// A device as a file. It must be [closed](Mounted::close) before the runtime ends.
pub struct Mounted {
    folder: PathBuf,
    name: String,
    /// `None` once it was closed.
    connection: RefCell<Option<Rc<Connection>>>,
}

impl Mounted {
    /// Makes a device a file. It is put behind an atomic unit, so that requests of any offset and
    /// length are taken.
    ///
    /// # Errors
    /// As [`MountError`] says; nothing is mounted then.
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
                // What led here is the failure to report.
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

    /// The folder, from the root.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file, from the root.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Waits until the file is served no more although nobody has called [`close`](Mounted::close):
    /// somebody has unmounted it, or something is wrong.
    pub async fn ended(&self) {
        let connection = self.connection.borrow().clone();
        if let Some(connection) = connection {
            connection.ended().await;
        }
    }

    /// The file is served no more: it was unmounted, and nobody has it open.
    pub fn has_ended(&self) -> bool {
        let connection = self.connection.borrow();
        connection.as_ref().is_none_or(|it| it.has_ended())
    }

    /// Ends serving the file: requests that are under way are answered, and the kernel fails all
    /// others. What is mounted stays, and is dead: [`unmount`] it before.
    ///
    /// # Errors
    /// Why it could not be served any longer before, if so.
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

    /// Gives the live figures of the file.
    pub fn figures(&self, out: &mut dyn FigureVisitor) {
        let connection = self.connection.borrow();
        if let Some(connection) = connection.as_ref() {
            let part = self.path().display().to_string();
            connection.counters.figures(&part, &Op::ALL, out);
        }
    }
}

/// A name of a device may be something that is no name of a file.
fn check_name(name: &str) -> Result<(), MountError> {
    let is_special = matches!(name, "" | "." | "..");
    if is_special || name.contains(['/', '\0']) || name.len() > NAME_BYTES_MAX {
        return Err(MountError::Name(name.to_owned()));
    }
    Ok(())
}

/// The longest read or write: whole pages, as much as the device takes, and not so much that what
/// the readers hold leaves too little of a region of buffers of this size.
fn transfer_bytes_max(device_bytes_max: u32, region_bytes: usize) -> u32 {
    let share = match region_bytes {
        // Without a region, all is from the heap.
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
            // 4 MiB of buffers: a quarter for four readers.
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
