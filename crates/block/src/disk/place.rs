//! Determines the bytes to which a path leads.
//!
//! The same byte can be reached under many names: links, several nodes of one device, a disk and
//! its partitions, a file and the loop devices over it. A [`Place`] is found by following these
//! names down to the file or disk that holds the bytes.

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::System;

/// Size of a sector in the kernel's `sysfs` files, which does not depend on the device.
const SECTOR_BYTES: u64 = 512;
/// Maximum depth of nested loop devices and partitions that is followed.
const DEPTH_MAX: usize = 16;

/// The number of a block device, `MAJOR:MINOR` as the kernel writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// Major number, which usually identifies the driver.
    pub major: u32,
    /// Minor number, which identifies one of the driver's devices.
    pub minor: u32,
}

impl DeviceNumber {
    /// Decodes the number from a `dev_t` as `stat(2)` returns it (`gnu_dev_major` of
    /// `sys/sysmacros.h`): bits 0 to 7 hold the low 8 bits of the minor number, bits 8 to 19 the
    /// low 12 bits of the major number, bits 20 to 43 the rest of the minor number, and bits 44 to
    /// 63 the rest of the major number.
    pub fn of_dev(dev: u64) -> DeviceNumber {
        let major = (dev >> 8) & 0xfff | (dev >> 32) & 0xffff_f000;
        let minor = dev & 0xff | (dev >> 12) & 0xffff_ff00;
        DeviceNumber {
            major: major as u32,
            minor: minor as u32,
        }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = ();

    fn from_str(text: &str) -> Result<DeviceNumber, ()> {
        let (major, minor) = text.split_once(':').ok_or(())?;
        Ok(DeviceNumber {
            major: major.parse().map_err(|_| ())?,
            minor: minor.parse().map_err(|_| ())?,
        })
    }
}

/// The file or disk that holds the bytes of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A regular file, identified by the device number of its file system and its inode number.
    File(u64, u64),
    /// A whole disk, or any other block device that is not a partition.
    Disk(DeviceNumber),
}

/// A byte range of a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File or disk that holds the bytes.
    pub holder: Holder,
    /// Range of the bytes, as offsets in the holder. The range ends at `u64::MAX` if its end is not
    /// limited.
    pub range: Range<u64>,
}

impl Place {
    /// Returns the place of the bytes to which a path leads.
    ///
    /// # Errors
    /// The errors of `stat(2)`.
    pub fn of(path: &Path, system: &System) -> io::Result<Place> {
        Ok(Place::of_found(&std::fs::metadata(path)?, system))
    }

    /// Returns the place of the bytes of a file or device found by `stat(2)`.
    pub fn of_found(found: &Metadata, system: &System) -> Place {
        match block_device(found) {
            Some(number) => Place::of_device(number, system),
            None => Place {
                holder: Holder::File(found.dev(), found.ino()),
                range: 0..u64::MAX,
            },
        }
    }

    /// Returns the place of the bytes of a block device.
    pub fn of_device(number: DeviceNumber, system: &System) -> Place {
        let (mut number, mut range) = (number, 0..u64::MAX);
        for _ in 0..DEPTH_MAX {
            if let Some(disk) = system.disk_of(number) {
                let sectors = |name| system.number(number, name).unwrap_or(0);
                let (start, len) = (sectors("start"), sectors("size"));
                range = within(&range, start * SECTOR_BYTES, len * SECTOR_BYTES);
                number = disk;
                continue;
            }
            let Some(backing) = Backing::of(number, system) else {
                break;
            };
            let Ok(found) = std::fs::metadata(&backing.path) else {
                // The backing file was removed or is in another mount namespace, so the search ends
                // at this device.
                break;
            };
            range = within(&range, backing.offset, backing.len);
            match block_device(&found) {
                Some(below) => number = below,
                None => {
                    let holder = Holder::File(found.dev(), found.ino());
                    return Place { holder, range };
                }
            }
        }
        Place {
            holder: Holder::Disk(number),
            range,
        }
    }

    /// Returns true if at least one byte belongs to both places.
    pub fn overlaps(&self, other: &Place) -> bool {
        let (one, two) = (&self.range, &other.range);
        self.holder == other.holder && one.start.max(two.start) < one.end.min(two.end)
    }
}

/// Translates `range`, which is relative to a part of a device, to the device itself. The part
/// begins at `start` and has `len` bytes.
fn within(range: &Range<u64>, start: u64, len: u64) -> Range<u64> {
    let end = start.saturating_add(len);
    let moved = |at: u64| at.saturating_add(start).min(end);
    moved(range.start)..moved(range.end)
}

/// Returns the device number of a file found by `stat(2)`, or `None` if the file is no block
/// device.
pub fn block_device(found: &Metadata) -> Option<DeviceNumber> {
    let is_device = found.file_type().is_block_device();
    is_device.then(|| DeviceNumber::of_dev(found.rdev()))
}

/// The file behind a loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// Path that was given to the loop driver.
    pub path: PathBuf,
    /// Offset in the file at which the loop device begins.
    pub offset: u64,
    /// Length of the loop device in the file; `u64::MAX` if it is not limited.
    pub len: u64,
}

impl Backing {
    /// Returns the file behind a loop device, or `None` for any other device.
    pub fn of(number: DeviceNumber, system: &System) -> Option<Backing> {
        let path = system.attribute(number, "loop/backing_file")?;
        let part = |name| system.number(number, name).unwrap_or(0);
        let limit = part("loop/sizelimit");
        Some(Backing {
            path: path.into(),
            offset: part("loop/offset"),
            len: if limit == 0 { u64::MAX } else { limit },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::fixture::Fixture;
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn device_numbers_are_those_of_the_c_library() {
        // makedev(8, 17), makedev(259, 300) and makedev(0x12345, 0x6789a) of glibc 2.36, computed
        // by hand: minor & 0xff | (major & 0xfff) << 8 | (minor & ~0xff) << 12 | (major & ~0xfff)
        // << 32.
        for (dev, text) in [
            (0x811, "8:17"),
            (0x11_032c, "259:300"),
            (0x0001_2000_6783_459a, "74565:424090"),
        ] {
            let number = DeviceNumber::of_dev(dev);
            assert_eq!(number.to_string(), text);
            assert_eq!(text.parse(), Ok(number));
        }
        assert_eq!("8".parse::<DeviceNumber>(), Err(()));
    }

    #[test]
    fn names_lead_to_the_bytes() {
        let fixture = Fixture::new("place");
        let (system, file) = (fixture.system(), fixture.file("disk.img"));
        fixture.disk("sda", "8:0");
        fixture.partition("sda", "sda1", "8:1", (2048, 4096));
        fixture.partition("sda", "sda2", "8:2", (6144, 4096));
        fixture.loop_device("loop0", "7:0", &file, (0, 0));
        fixture.loop_device("loop1", "7:1", &file, (0, 4 * MIB));
        fixture.loop_device("loop2", "7:2", &file, (4 * MIB, 0));
        fixture.partition("loop2", "loop2p1", "259:0", (2048, 2048));
        fixture.loop_device("loop3", "7:3", Path::new("/removed (deleted)"), (0, 0));
        let of = |number: &str| Place::of_device(number.parse().expect("a number"), &system);
        let direct = Place::of(&file, &system).expect("it is there");
        assert_eq!(of("8:1").range, MIB..3 * MIB);
        assert_eq!(of("259:0").range, 5 * MIB..6 * MIB);
        assert_eq!(of("259:0").holder, direct.holder);
        let overlap = |one: &Place, others: &[&str]| {
            let all = ["8:0", "8:1", "8:2", "7:0", "7:1", "7:2", "259:0", "7:3"];
            let found: Vec<&str> = all.into_iter().filter(|o| of(o).overlaps(one)).collect();
            assert_eq!(found, others, "{one:?}");
        };
        overlap(&direct, &["7:0", "7:1", "7:2", "259:0"]);
        overlap(&of("7:1"), &["7:0", "7:1"]);
        overlap(&of("259:0"), &["7:0", "7:2", "259:0"]);
        overlap(&of("8:0"), &["8:0", "8:1", "8:2"]);
        overlap(&of("8:2"), &["8:0", "8:2"]);
        overlap(&of("7:3"), &["7:3"]);
    }
}
