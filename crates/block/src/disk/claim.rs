//! Exclusive use of a device while it is open.
//!
//! - A regular file is locked as a whole (`flock`).
//! - A block device is claimed (`O_EXCL`). The kernel enforces the claim against mounts, swap,
//!   other claims, and claims of its partitions and its disk, through whichever node; `mkfs` and
//!   similar tools claim in the same way. The device node is locked too, which keeps udev from
//!   probing it.
//! - The file behind a loop device is locked too, because another loop device over it, or the file
//!   itself, gives access to the same bytes. The file gets a shared lock, which excludes a lock of
//!   the whole file, and a lock on the range of the loop device, so that devices over different
//!   parts can be open together.
//!
//! The kernel releases all of this when the process ends, so a claim never has to be removed by
//! hand.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use bimetal_rt::real_time;

use super::System;
use super::place::{Backing, DeviceNumber, Place, block_device};

/// Locks and claims behind a device, besides the device's own handle; they are released on drop.
#[derive(Debug, Default)]
pub struct Claim {
    held: Vec<File>,
}

impl Claim {
    /// Claims the storage behind a file or block device. Returns `None` if another process uses a
    /// part of it. The device itself is claimed by the way it is opened: see
    /// [`real_time::File::open_claimed`].
    ///
    /// # Errors
    /// Those of `stat(2)` of the path, of locks and of opening devices.
    pub fn behind(path: &Path, system: &System) -> io::Result<Option<Claim>> {
        let found = std::fs::metadata(path)?;
        let (own, place) = (block_device(&found), Place::of_found(&found, system));
        for other in system.loops_over(own, &place) {
            // This claim is released at once: it only tests for another user of the loop device.
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

    /// Locks or claims the storage behind a loop device; of a regular file, only this range.
    fn hold(&mut self, backing: &Backing, range: &Range<u64>) -> io::Result<Held> {
        let Ok(found) = std::fs::metadata(&backing.path) else {
            // The file was removed or is in another mount namespace, so no process here can open it
            // by this name.
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
            // A file that this process cannot write needs no lock against a second writer.
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

/// Result of holding storage: refused, or held, with its number if it is a block device.
enum Held {
    No,
    Yes(Option<DeviceNumber>),
}
