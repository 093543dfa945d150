//! A file or block device as seen from outside: its bytes, its content, its users, and its limits
//! in the kernel.
//!
//! Opening, formatting and `check` all use this module before they open, overwrite or describe a
//! device, so that they see and report the same facts:
//!
//! - [`place`]: the bytes to which a path leads, whatever the path is;
//! - [`signature`]: the formats that have left their signature on the device;
//! - [`usage`]: the mounts, swap spaces and other devices that use the device;
//! - [`claim`]: exclusive use of the device while it is open;
//! - `failure`: errors of a failing device, and their remedies;
//! - `locker`: the process that has locked a file;
//! - [`limits`]: the limits that the device has reported to the kernel.
//!
//! This module never writes to a device. It only reads, except that a claim also takes locks.

pub mod claim;
pub(crate) mod failure;
pub mod limits;
pub(crate) mod locker;
pub mod place;
pub mod signature;
pub mod usage;

use std::path::{Path, PathBuf};

use place::DeviceNumber;

/// Folders under which the kernel's `sysfs`, `proc` and the device nodes are found. Tests use
/// folders that imitate them.
#[derive(Clone, Debug)]
pub struct System {
    sys: PathBuf,
    proc: PathBuf,
    dev: PathBuf,
}

impl Default for System {
    fn default() -> System {
        System::under(Path::new("/"))
    }
}

impl System {
    /// Creates a system whose `sys`, `proc` and `dev` are subfolders of `root`.
    pub fn under(root: &Path) -> System {
        System {
            sys: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
        }
    }

    /// Returns the `sysfs` folder of a block device: a disk or a partition.
    fn folder(&self, of: DeviceNumber) -> PathBuf {
        self.sys.join(format!("dev/block/{of}"))
    }

    /// Returns the text of a `sysfs` attribute of a block device, without the newline at its end,
    /// or `None` if there is no such attribute.
    fn attribute(&self, of: DeviceNumber, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.folder(of).join(name)).ok()?;
        Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    fn number(&self, of: DeviceNumber, name: &str) -> Option<u64> {
        self.attribute(of, name)?.trim().parse().ok()
    }

    /// Returns the name of a block device, such as `sda1`.
    fn name(&self, of: DeviceNumber) -> String {
        let folder = std::fs::canonicalize(self.folder(of));
        let name = folder.ok().and_then(|folder| {
            let name = folder.file_name()?;
            Some(name.to_string_lossy().into_owned())
        });
        name.unwrap_or_else(|| of.to_string())
    }

    /// Returns the disk to which a partition belongs, or `None` if the device is no partition.
    fn disk_of(&self, partition: DeviceNumber) -> Option<DeviceNumber> {
        self.attribute(partition, "partition")?;
        let disk = self.attribute(partition, "../dev")?;
        disk.trim().parse().ok()
    }

    /// Returns the partitions of a disk.
    fn partitions(&self, disk: DeviceNumber) -> Vec<DeviceNumber> {
        let entries = std::fs::read_dir(self.folder(disk));
        let entries = entries.into_iter().flatten().flatten();
        let numbers = entries.filter(|entry| entry.path().join("partition").exists());
        let numbers = numbers.filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path().join("dev")).ok()?;
            text.trim().parse().ok()
        });
        numbers.collect()
    }

    /// Returns the names and numbers of all loop devices that have a backing file.
    fn loops(&self) -> Vec<(String, DeviceNumber)> {
        let entries = std::fs::read_dir(self.sys.join("block"));
        let entries = entries.into_iter().flatten().flatten();
        let bound = entries.filter(|entry| entry.path().join("loop/backing_file").exists());
        let bound = bound.filter_map(|entry| {
            let number = std::fs::read_to_string(entry.path().join("dev")).ok()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Some((name, number.trim().parse().ok()?))
        });
        bound.collect()
    }
}
