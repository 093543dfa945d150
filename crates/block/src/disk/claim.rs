//! Exclusive use of a device while it is open.
//!
//! - A regular file is locked as a whole (`flock`).
//! - A block device is claimed (`O_EXCL`). The kernel enforces the claim against mounts, swap,
//!   other claims, and claims of its partitions and its disk, through any device node; `mkfs` and
//!   similar tools claim in the same way. The device node is locked too, which keeps udev from
//!   probing the device.
//! - The file behind a loop device is locked too, because the same bytes are accessible through
//!   another loop device over the file, or through the file itself. The file gets a shared lock,
//!   which excludes a lock of the whole file, and a lock on the range of the loop device, so that
//!   loop devices over different parts can be open together.
//!
//! The kernel releases all these locks and claims when the process ends, so they never have to be
//! removed by hand.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use bimetal_rt::real_time;

use super::System;
use super::place::{Backing, DeviceNumber, Place, block_device};

/// Locks and claims of the storage behind a device, without the handle of the device itself. They
/// are released on drop.
#[derive(Debug, Default)]
pub struct Claim {
    held: Vec<File>,
}

impl Claim {
    /// Claims the storage behind a file or block device. Returns `None` if another process uses a
    /// part of this storage. The device itself is claimed when it is opened with
    /// [`real_time::File::open_claimed`].
    ///
    /// # Errors
    /// The errors of `stat(2)` for the path, of locks, and of opening devices.
    pub fn behind(path: &Path, system: &System) -> io::Result<Option<Claim>> {
        let found = std::fs::metadata(path)?;
        let (own, place) = (block_device(&found), Place::of_found(&found, system));
        for other in system.loops_over(own, &place) {
            // The claim of the loop device is released immediately; it only tests whether the loop
            // device has another user.
            if let Ok(None) = real_time::try_claim(&other) {
                return Ok(None);
            }
        }
        let mut claim = Claim::default();
        let mut next = own;
        while let Some(number) = next {
            let disk = system.disk_of(number).unwrap_or(number);
            let Some(backing) = Backing::of(disk, system) else {
                break;
            };
            match claim.hold(&backing, &place.range)? {
                Held::No => return Ok(None),
                Held::Yes(below) => next = below,
            }
        }
        Ok(Some(claim))
    }

    /// Claims the storage behind a loop device. A block device is claimed as a whole; of a regular
    /// file, only `range` is locked against other writers.
    fn hold(&mut self, backing: &Backing, range: &Range<u64>) -> io::Result<Held> {
        let Ok(found) = std::fs::metadata(&backing.path) else {
            // The file was removed or is in another mount namespace, so no process of this
            // namespace can open it by this path.
            return Ok(Held::Yes(None));
        };
        if block_device(&found).is_some() {
            return Ok(match real_time::try_claim(&backing.path)? {
                None => Held::No,
                Some(file) => {
                    self.held.push(file);
                    Held::Yes(block_device(&found))
                }
            });
        }
        let opened = File::options().read(true).write(true).open(&backing.path);
        let (file, writable) = match opened {
            Ok(file) => (file, true),
            // If this process cannot write the file, no lock against a second writer is needed.
            Err(_) => match File::open(&backing.path) {
                Ok(file) => (file, false),
                Err(_) => return Ok(Held::Yes(None)),
            },
        };
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(Held::No),
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
        if writable && !real_time::try_lock_range(&file, range)? {
            return Ok(Held::No);
        }
        self.held.push(file);
        Ok(Held::Yes(None))
    }
}

/// Result of an attempt to hold storage: refused, or held. If the held storage is a block device,
/// its number is included.
enum Held {
    No,
    Yes(Option<DeviceNumber>),
}
