//! How a device is kept from everybody else while it is open.
//!
//! - A regular file is locked as a whole (`flock`).
//! - A block device is claimed (`O_EXCL`), which the kernel holds against mounts, swap, other
//!   claims, and claims of its partitions and its disk, by whatever node; `mkfs` and its like ask
//!   in the same way. Its node is locked besides, which keeps udev from probing it.
//! - Of a loop device the file behind it is held, too: another loop device over it, or the file
//!   itself, is the same bytes. The file has a shared lock, which a lock of the whole excludes, and
//!   a lock on the range that the device has, so that devices of different parts go together.
//!
//! Nothing of this outlives the process, so a claim never has to be taken away by hand.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use bimetal_rt::real_time;

use super::System;
use super::place::{Backing, DeviceNumber, Place, block_device};

/// What is held of a device besides its own handle; it goes with this.
#[derive(Debug, Default)]
pub struct Claim {
    held: Vec<File>,
}

impl Claim {
    /// Claims what is behind a file or block device. `None` when another process has a part of it.
    /// The device itself is claimed by opening it so: see
    /// [`real_time::File::open_claimed`].
    ///
    /// # Errors
    /// Those of `stat(2)` of the path, of locks and of opening devices.
    pub fn behind(path: &Path, system: &System) -> io::Result<Option<Claim>> {
        let found = std::fs::metadata(path)?;
        let (own, place) = (block_device(&found), Place::of_found(&found, system));
        for other in system.loops_over(own, &place) {
            // Asked and let go at once: the loop device is not ours to keep from anybody.
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

    /// Holds what is behind a loop device; of a regular file, this range.
    fn hold(&mut self, backing: &Backing, range: &Range<u64>) -> io::Result<Held> {
        let Ok(found) = std::fs::metadata(&backing.path) else {
            // Removed, or in another mount namespace: nobody reaches it by this name either.
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
            // A file that nobody here may write needs no lock against a second writer.
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

/// Whether something could be held, and the block device that it is.
enum Held {
    No,
    Yes(Option<DeviceNumber>),
}
