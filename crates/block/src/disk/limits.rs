//! Limits that a device has reported to the kernel: the files below `queue` of `sysfs`
//! (`Documentation/ABI/stable/sysfs-block` of Linux).

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use super::System;
use super::place::{DeviceNumber, block_device};

/// Known limits of a device; `None` for a value that the kernel does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// True for a block device, false for a file on a block device.
    pub is_device: bool,
    /// Whether the device has moving heads.
    pub rotational: Option<bool>,
    /// Logical block size in bytes: the shortest request that bypasses the page cache.
    pub logical_bytes: Option<u64>,
    /// Physical block size in bytes.
    pub physical_bytes: Option<u64>,
    /// Preferred request size in bytes.
    pub optimal_bytes: Option<u64>,
    /// Whether the device can zero a range by a command that carries no data. Unknown (`None`) for
    /// a file, because zeroing a file is the task of the file system.
    pub can_zero: Option<bool>,
    /// Whether the device accepts discards. Unknown for a file, because discarding a part of a file
    /// is the task of the file system.
    pub can_discard: Option<bool>,
    /// Zone model of a zoned device: `host-aware` or `host-managed`.
    pub zoned: Option<String>,
}

impl Limits {
    /// Returns the limits for a file found by `stat(2)`. For a block device, these are its own
    /// limits. For a regular file, they are the limits of the device that holds its file system, if
    /// that is a single device.
    pub fn of_found(found: &Metadata, system: &System) -> Limits {
        match block_device(found) {
            Some(number) => Limits::of_device(number, system),
            None => {
                let below = Limits::of_device(DeviceNumber::of_dev(found.dev()), system);
                Limits {
                    is_device: false,
                    can_zero: None,
                    can_discard: None,
                    // The file system handles the write order of zones, so a file has no zone
                    // model.
                    zoned: None,
                    ..below
                }
            }
        }
    }

    fn of_device(number: DeviceNumber, system: &System) -> Limits {
        // The kernel keeps the limits of a partition with its disk.
        let number = system.disk_of(number).unwrap_or(number);
        let value = |name: &str| system.number(number, &format!("queue/{name}"));
        let is_more_than_zero = |bytes: u64| bytes > 0;
        let zoned = system.attribute(number, "queue/zoned");
        Limits {
            is_device: true,
            rotational: value("rotational").map(|word| word != 0),
            logical_bytes: value("logical_block_size").filter(|bytes| *bytes > 0),
            physical_bytes: value("physical_block_size").filter(|bytes| *bytes > 0),
            optimal_bytes: value("optimal_io_size").filter(|bytes| *bytes > 0),
            can_zero: value("write_zeroes_max_bytes").map(is_more_than_zero),
            can_discard: value("discard_max_bytes").map(is_more_than_zero),
            zoned: zoned.filter(|model| model != "none"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::usage::fixture::Fixture;
    use super::*;

    #[test]
    fn the_queue_of_a_disk_counts_for_its_partitions() {
        let fixture = Fixture::new("limits");
        fixture.disk("sda", "8:0");
        fixture.partition("sda", "sda1", "8:1", (2048, 4096));
        for (key, value) in [
            ("rotational", "1"),
            ("logical_block_size", "512"),
            ("physical_block_size", "4096"),
            ("optimal_io_size", "0"),
            ("write_zeroes_max_bytes", "0"),
            ("discard_max_bytes", "0"),
            ("zoned", "host-managed"),
        ] {
            fixture.text(&format!("sys/block/sda/queue/{key}"), &format!("{value}\n"));
        }
        let expected = Limits {
            is_device: true,
            rotational: Some(true),
            logical_bytes: Some(512),
            physical_bytes: Some(4096),
            optimal_bytes: None,
            can_zero: Some(false),
            can_discard: Some(false),
            zoned: Some("host-managed".to_owned()),
        };
        let of = |minor| {
            let number = DeviceNumber { major: 8, minor };
            Limits::of_device(number, &fixture.system())
        };
        assert_eq!(of(0), expected);
        assert_eq!(of(1), expected);
        // A device for which the kernel has no queue folder has no known limits.
        let unknown = Limits {
            is_device: true,
            ..Limits::default()
        };
        assert_eq!(of(9), unknown);
    }
}
