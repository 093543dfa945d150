//! A block device of the machine, and the checks that it is not in use, because a run overwrites
//! the whole device.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{NativeError, io_error};

/// A device number, consisting of a major and a minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

impl DeviceNumber {
    /// Converts a device number of `stat(2)`.
    fn of_stat(number: u64) -> DeviceNumber {
        DeviceNumber {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
        }
    }

    fn parse(text: &str) -> Option<DeviceNumber> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(DeviceNumber {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }

    /// Returns the device number as the kernel's tracepoints encode it.
    pub(super) fn in_traces(self) -> u64 {
        u64::from(self.major) << 20 | u64::from(self.minor)
    }
}

/// A whole block device, not a partition.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub path: PathBuf,
    pub number: DeviceNumber,
    /// Folder of the device in sysfs.
    pub folder: PathBuf,
}

impl Disk {
    /// Returns the block device at a path. Refuses a partition.
    pub(super) fn at(path: &Path) -> Result<Disk, NativeError> {
        let refused = |why: &str| NativeError::Refused(format!("{}: {why}", path.display()));
        let metadata = fs::metadata(path).map_err(|source| io_error(path, source))?;
        if !metadata.file_type().is_block_device() {
            return Err(refused("it is not a block device"));
        }
        let number = DeviceNumber::of_stat(metadata.st_rdev());
        let link = PathBuf::from(format!("/sys/dev/block/{}:{}", number.major, number.minor));
        let folder = fs::canonicalize(&link).map_err(|source| io_error(&link, source))?;
        if folder.join("partition").exists() {
            return Err(refused(
                "it is a partition, but settings apply to whole devices; name the whole device",
            ));
        }
        Ok(Disk {
            path: path.to_owned(),
            number,
            folder,
        })
    }

    /// Returns the size of the device in bytes. The kernel reports sectors of 512 bytes, whatever
    /// the sector size of the device is.
    pub(super) fn size_bytes(&self) -> Result<u64, NativeError> {
        let path = self.folder.join("size");
        let sectors = super::sysfs::read(&path)?.parse::<u64>();
        let sectors = sectors.map_err(|error| io_error(&path, std::io::Error::other(error)))?;
        Ok(sectors.saturating_mul(512))
    }

    /// Returns an error if the device or one of its partitions is in use.
    pub(super) fn check_unused(&self) -> Result<(), NativeError> {
        let mut numbers = vec![self.number];
        let mut holders = vec![self.folder.join("holders")];
        let entries =
            fs::read_dir(&self.folder).map_err(|source| io_error(&self.folder, source))?;
        for entry in entries {
            let part = entry
                .map_err(|source| io_error(&self.folder, source))?
                .path();
            if part.join("partition").exists() {
                let text = fs::read_to_string(part.join("dev"));
                let text = text.map_err(|source| io_error(&part, source))?;
                numbers.extend(DeviceNumber::parse(&text));
                holders.push(part.join("holders"));
            }
        }
        let text = |path: &str| {
            fs::read_to_string(path).map_err(|source| io_error(Path::new(path), source))
        };
        if let Some(place) = mounted_at(&text("/proc/self/mountinfo")?, &numbers, number_of) {
            return self.in_use(&format!("it is mounted at {place}"));
        }
        // A kernel without swap support does not have this file.
        let swaps = text("/proc/swaps").unwrap_or_default();
        if let Some(path) = swap_on(&swaps, &numbers, number_of) {
            return self.in_use(&format!("{path} is swap"));
        }
        for folder in holders {
            let mut entries = fs::read_dir(&folder).into_iter().flatten();
            if let Some(Ok(holder)) = entries.next() {
                let name = holder.file_name();
                return self.in_use(&format!("{} holds it", name.to_string_lossy()));
            }
        }
        self.check_exclusive()
    }

    /// Returns an error if the kernel refuses to open the device exclusively (`O_EXCL`).
    fn check_exclusive(&self) -> Result<(), NativeError> {
        let exclusive = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_EXCL)
            .open(&self.path);
        match exclusive {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                self.in_use("it is in exclusive use (EBUSY)")
            }
            Err(source) => Err(io_error(&self.path, source)),
        }
    }

    fn in_use(&self, why: &str) -> Result<(), NativeError> {
        let path = self.path.display();
        Err(NativeError::Refused(format!(
            "{path}: {why}; a run would overwrite it"
        )))
    }
}

/// Returns the device number of the block device at a path; `None` if there is no block device.
fn number_of(path: &str) -> Option<DeviceNumber> {
    let metadata = fs::metadata(path).ok()?;
    let is_device = metadata.file_type().is_block_device();
    is_device.then(|| DeviceNumber::of_stat(metadata.st_rdev()))
}

/// Returns the mount point of a file system on one of the devices in `numbers`, from `mountinfo`
/// (proc(5)). The third field of a line is the device number of the file system, which for btrfs is
/// not the number of a disk. The second field after ` - ` is the path of the device.
fn mounted_at(
    mountinfo: &str,
    numbers: &[DeviceNumber],
    number_of: impl Fn(&str) -> Option<DeviceNumber>,
) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(2);
        let number = DeviceNumber::parse(front.next()?);
        let place = front.nth(1)?;
        let source = back.split(' ').nth(1).and_then(&number_of);
        let is_ours = |number: Option<DeviceNumber>| number.is_some_and(|n| numbers.contains(&n));
        (is_ours(number) || is_ours(source)).then(|| place.to_owned())
    })
}

/// Returns the path of the first swap device in `swaps` (the text of `/proc/swaps`) whose device
/// number is in `numbers`.
fn swap_on(
    swaps: &str,
    numbers: &[DeviceNumber],
    number_of: impl Fn(&str) -> Option<DeviceNumber>,
) -> Option<String> {
    let paths = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    let mut ours = paths.filter(|path| number_of(path).is_some_and(|n| numbers.contains(&n)));
    ours.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDB: DeviceNumber = DeviceNumber {
        major: 8,
        minor: 16,
    };
    const SDB1: DeviceNumber = DeviceNumber {
        major: 8,
        minor: 17,
    };

    fn number_of(path: &str) -> Option<DeviceNumber> {
        match path {
            "/dev/sdb" => Some(SDB),
            "/dev/sdb1" => Some(SDB1),
            _ => None,
        }
    }

    #[test]
    fn a_mount_is_found_by_number_and_by_path() {
        let ext4 = "36 35 8:17 / /mnt/data rw,noatime shared:1 - ext4 /dev/root rw\n";
        let btrfs = "40 35 0:33 /sub /srv rw - btrfs /dev/sdb rw,subvol=/sub\n";
        let other = "41 35 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n";
        let at = |text: &str, numbers: &[DeviceNumber]| mounted_at(text, numbers, number_of);
        assert_eq!(at(ext4, &[SDB, SDB1]), Some("/mnt/data".to_owned()));
        assert_eq!(at(ext4, &[SDB]), None);
        assert_eq!(
            at(&format!("{other}{btrfs}"), &[SDB]),
            Some("/srv".to_owned())
        );
        assert_eq!(at(other, &[SDB, SDB1]), None);
    }

    #[test]
    fn swap_is_found_behind_the_headline() {
        let text =
            "Filename Type Size Used Priority\n/swap file 1 0 -2\n/dev/sdb1 partition 8 0 -3\n";
        assert_eq!(
            swap_on(text, &[SDB, SDB1], number_of),
            Some("/dev/sdb1".to_owned())
        );
        assert_eq!(swap_on(text, &[SDB], number_of), None);
    }

    #[test]
    fn what_is_no_whole_device_is_refused() {
        let refused = |path: &str| Disk::at(Path::new(path)).unwrap_err().to_string();
        assert_eq!(refused("/dev/null"), "/dev/null: it is not a block device");
        assert_eq!(
            refused("/dev/no-such-device"),
            "/dev/no-such-device: No such file or directory (os error 2)"
        );
    }
}
