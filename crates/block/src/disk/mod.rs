//! A file or block device as its neighbours know it: which bytes a path leads to, what is on it,
//! who uses it, and what the kernel knows of it.
//!
//! Whoever is about to open, overwrite or describe a device asks here, so that opening, formatting
//! and `check` see the same and say the same:
//!
//! - [`place`]: which bytes a path leads to, whatever it is called;
//! - [`signature`]: which formats have left their mark on it;
//! - [`usage`]: which mounts, swap spaces and other devices it is a part of;
//! - [`claim`]: how it is kept from everybody else while it is open;
//! - `failure`: what it has failed with, and what to do about it;
//! - `locker`: which process keeps it from us;
//! - [`limits`]: what the kernel has been told by the device.
//!
//! Everything but a claim only reads. Nothing here writes to a device.

pub mod claim;
pub(crate) mod failure;
pub mod limits;
pub(crate) mod locker;
pub mod place;
pub mod signature;
pub mod usage;

use std::path::{Path, PathBuf};

use place::DeviceNumber;

/// Where the kernel describes itself, and devices have their nodes. In tests, folders that look
/// like these.
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
    /// A system whose `sys`, `proc` and `dev` are folders of `root`.
    pub fn under(root: &Path) -> System {
        System {
            sys: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
        }
    }

    /// The folder of a block device: a disk or a partition.
    fn folder(&self, of: DeviceNumber) -> PathBuf {
        self.sys.join(format!("dev/block/{of}"))
    }

    /// The text of an attribute without its newline; `None` where there is no such attribute.
    fn attribute(&self, of: DeviceNumber, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.folder(of).join(name)).ok()?;
        Some(text.strip_suffix('\n').unwrap_or(&text).to_owned())
    }

    fn number(&self, of: DeviceNumber, name: &str) -> Option<u64> {
        self.attribute(of, name)?.trim().parse().ok()
    }

    /// The name of a block device, such as `sda1`.
    fn name(&self, of: DeviceNumber) -> String {
        let folder = std::fs::canonicalize(self.folder(of));
        let name = folder.ok().and_then(|folder| {
            let name = folder.file_name()?;
            Some(name.to_string_lossy().into_owned())
        });
        name.unwrap_or_else(|| of.to_string())
    }

    /// The disk that a partition is a part of; `None` for a device that is no partition.
    fn disk_of(&self, partition: DeviceNumber) -> Option<DeviceNumber> {
        self.attribute(partition, "partition")?;
        let disk = self.attribute(partition, "../dev")?;
        disk.trim().parse().ok()
    }

    /// The partitions of a disk.
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

    /// The names and numbers of all loop devices that have a file.
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
