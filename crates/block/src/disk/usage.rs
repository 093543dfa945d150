//! Current uses of a device: it can be mounted, be swap space, or be part of another device.
//!
//! This module finds the uses that the kernel's tables list. Whether another process has claimed a
//! block device is known only to the kernel, which reports it when the device is
//! [claimed](super::claim).

use std::fmt;
use std::path::{Path, PathBuf};

use super::System;
use super::place::{DeviceNumber, Place, block_device};

/// One use of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    /// Name of the partition or loop device through which the device is used; `None` if it is used
    /// directly.
    pub through: Option<String>,
    /// Kind of the use.
    pub kind: UseKind,
}

/// The kind of a use of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UseKind {
    /// A file system on the device is mounted at this path.
    Mounted(PathBuf),
    /// The kernel swaps to the device.
    Swap,
    /// The device is part of the named device: a volume of the device mapper, an array of md, and
    /// the like.
    PartOf(String),
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            UseKind::Mounted(on) => write!(f, "mounted on {}", on.display())?,
            UseKind::Swap => f.write_str("in use as swap space")?,
            UseKind::PartOf(device) => write!(f, "part of {device}")?,
        }
        match &self.through {
            Some(name) => write!(f, " (as /dev/{name})"),
            None => Ok(()),
        }
    }
}

/// Returns the visible uses of a device or file: mounts of this mount namespace, swap spaces, and
/// devices built on it. The list includes uses of its partitions, of the disk to which it belongs,
/// and of loop devices over it.
///
/// # Errors
/// The errors of `stat(2)` for the path.
pub fn of(path: &Path, system: &System) -> std::io::Result<Vec<Use>> {
    let found = std::fs::metadata(path)?;
    let (own, place) = (block_device(&found), Place::of_found(&found, system));
    let mut uses = Vec::new();
    for (name, number) in system.concerned(own, &place) {
        let through = (Some(number) != own).then_some(name);
        let kinds = system.mounts_of(number).into_iter();
        let kinds = kinds.chain(system.parts_of(number));
        uses.extend(kinds.map(|kind| Use {
            through: through.clone(),
            kind,
        }));
    }
    uses.extend(system.swaps_on(own, &place));
    uses.sort();
    uses.dedup();
    Ok(uses)
}

/// Returns the uses as a list for a message, or `None` if there are none.
pub fn in_words(uses: &[Use]) -> Option<String> {
    let words: Vec<String> = uses.iter().map(Use::to_string).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

impl System {
    /// Returns the block devices that contain bytes of `place`. These are the device `own` itself,
    /// its partitions or its disk, and the loop devices over it with their partitions.
    fn concerned(&self, own: Option<DeviceNumber>, place: &Place) -> Vec<(String, DeviceNumber)> {
        let mut numbers: Vec<DeviceNumber> = Vec::new();
        if let Some(own) = own {
            numbers.push(own);
            numbers.extend(self.disk_of(own));
            numbers.extend(self.partitions(own));
        }
        for (_, number) in self.loops() {
            let parts = self.partitions(number).into_iter().chain([number]);
            numbers.extend(parts.filter(|part| Place::of_device(*part, self).overlaps(place)));
        }
        numbers.sort();
        numbers.dedup();
        let named = numbers
            .into_iter()
            .map(|number| (self.name(number), number));
        named.collect()
    }

    /// Returns the loop devices that contain bytes of `place`, except the device `own` and its
    /// disk.
    pub(super) fn loops_over(&self, own: Option<DeviceNumber>, place: &Place) -> Vec<PathBuf> {
        let own = [own, own.and_then(|own| self.disk_of(own))];
        let others = self.loops().into_iter();
        let others = others.filter(|(_, number)| !own.contains(&Some(*number)));
        let over = others.filter(|(_, n)| Place::of_device(*n, self).overlaps(place));
        over.map(|(name, _)| self.dev.join(name)).collect()
    }

    /// Returns the mounts of a device (`proc_pid_mountinfo(5)`).
    fn mounts_of(&self, number: DeviceNumber) -> Vec<UseKind> {
        let table = std::fs::read(self.proc.join("self/mountinfo")).unwrap_or_default();
        let table = String::from_utf8_lossy(&table).into_owned();
        let mut mounts = Vec::new();
        for line in table.lines() {
            let Some((fields, rest)) = line.split_once(" - ") else {
                continue;
            };
            let fields: Vec<&str> = fields.split(' ').collect();
            let &[_, _, device, _, on, ..] = &fields[..] else {
                continue;
            };
            // A file system on several devices has a device number of its own, which differs from
            // `number`. So the source in the mount table is compared too. But the source is only
            // one of the devices, so the mount is not found for the others.
            let source = rest.split(' ').nth(1).unwrap_or_default();
            let is_mounted = device.parse() == Ok(number) || self.is_node_of(source, number);
            if is_mounted {
                mounts.push(UseKind::Mounted(unescaped(on).into()));
            }
        }
        mounts
    }

    fn is_node_of(&self, path: &str, number: DeviceNumber) -> bool {
        let path = unescaped(path);
        let found = path.starts_with('/').then(|| std::fs::metadata(&path));
        found.is_some_and(|found| found.is_ok_and(|found| block_device(&found) == Some(number)))
    }

    /// Returns the devices that are built on the device `number`.
    fn parts_of(&self, number: DeviceNumber) -> Vec<UseKind> {
        let entries = std::fs::read_dir(self.folder(number).join("holders"));
        let entries = entries.into_iter().flatten().flatten();
        let named = entries.map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            // A volume of the device mapper has a second name, which administrators use.
            let known = std::fs::read_to_string(entry.path().join("dm/name")).ok();
            UseKind::PartOf(match known {
                Some(known) => format!("{} ({name})", known.trim()),
                None => name,
            })
        });
        named.collect()
    }

    /// Returns the swap spaces that contain bytes of `place` (`proc_swaps(5)`).
    fn swaps_on(&self, own: Option<DeviceNumber>, place: &Place) -> Vec<Use> {
        let table = std::fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        let mut uses = Vec::new();
        for line in table.lines().skip(1) {
            let path = unescaped(line.split_whitespace().next().unwrap_or_default());
            let Ok(found) = std::fs::metadata(&path) else {
                continue;
            };
            if !Place::of_found(&found, self).overlaps(place) {
                continue;
            }
            let number = block_device(&found);
            let other = number.filter(|number| Some(*number) != own);
            uses.push(Use {
                through: other.map(|number| self.name(number)),
                kind: UseKind::Swap,
            });
        }
        uses
    }
}

/// Decodes a path from the kernel's tables, in which spaces, tabs, newlines and backslashes are
/// written as three octal digits after a backslash.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
pub(super) mod fixture {
    //! Imitation of the kernel's folders for tests.

    use super::*;

    /// A temporary folder that imitates the kernel's folders; removed on drop.
    pub(in super::super) struct Fixture(PathBuf);

    impl Fixture {
        pub(in super::super) fn new(name: &str) -> Fixture {
            let name = format!("bimetal-disk-{name}-{}", std::process::id());
            let root = std::env::temp_dir().join(name);
            // An earlier run might have left the folder behind.
            let _ = std::fs::remove_dir_all(&root);
            for folder in ["sys/block", "sys/dev/block", "proc/self", "dev"] {
                std::fs::create_dir_all(root.join(folder)).expect("a folder");
            }
            Fixture(root)
        }

        pub(in super::super) fn system(&self) -> System {
            System::under(&self.0)
        }

        pub(in super::super) fn text(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }

        pub(in super::super) fn file(&self, name: &str) -> PathBuf {
            self.text(name, "");
            self.0.join(name)
        }

        pub(in super::super) fn disk(&self, name: &str, number: &str) {
            self.text(&format!("sys/block/{name}/dev"), &format!("{number}\n"));
            self.link(&format!("block/{name}"), number);
        }

        fn link(&self, device: &str, number: &str) {
            let node = self.0.join("sys/dev/block").join(number);
            std::os::unix::fs::symlink(format!("../../{device}"), node).expect("a link");
        }

        /// Adds a partition of `disk` with its first sector and its number of sectors.
        pub(in super::super) fn partition(
            &self,
            disk: &str,
            name: &str,
            number: &str,
            (start, size): (u64, u64),
        ) {
            let attributes = [
                ("dev", number.to_owned()),
                ("partition", "1".to_owned()),
                ("start", start.to_string()),
                ("size", size.to_string()),
            ];
            for (key, value) in attributes {
                let path = format!("sys/block/{disk}/{name}/{key}");
                self.text(&path, &format!("{value}\n"));
            }
            self.link(&format!("block/{disk}/{name}"), number);
        }

        /// Adds a loop device over `file`, with the offset in the file and a size limit.
        pub(in super::super) fn loop_device(
            &self,
            name: &str,
            number: &str,
            file: &Path,
            (offset, limit): (u64, u64),
        ) {
            self.disk(name, number);
            let attributes = [
                ("backing_file", file.display().to_string()),
                ("offset", offset.to_string()),
                ("sizelimit", limit.to_string()),
            ];
            for (key, value) in attributes {
                let path = format!("sys/block/{name}/loop/{key}");
                self.text(&path, &format!("{value}\n"));
            }
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            // An error leaves only a temporary folder behind.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::Fixture;
    use super::*;

    #[test]
    fn uses_are_named() {
        let fixture = Fixture::new("usage");
        let (system, file) = (fixture.system(), fixture.file("disk.img"));
        let free = fixture.file("free.img");
        let swap = fixture.file("swap file");
        fixture.loop_device("loop4", "7:4", &file, (0, 0));
        fixture.partition("loop4", "loop4p1", "259:4", (2048, 2048));
        fixture.text("sys/block/loop4/loop4p1/holders/dm-0/dm/name", "vg-lv\n");
        let escaped = swap.display().to_string().replace(' ', "\\040");
        let table = format!("Filename\tType\tSize\tUsed\tPriority\n{escaped}\tfile\t1024\t0\t-2\n");
        fixture.text("proc/swaps", &table);
        fixture.text(
            "proc/self/mountinfo",
            "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
             40 22 7:4 / /mnt/with\\040space rw,relatime - xfs /dev/loop4 rw\n\
             torn line\n",
        );
        let words = |path: &Path| in_words(&of(path, &system).expect("it is there"));
        let expected = "mounted on /mnt/with space (as /dev/loop4), \
                        part of vg-lv (dm-0) (as /dev/loop4p1)";
        assert_eq!(words(&file).as_deref(), Some(expected));
        assert_eq!(words(&swap).as_deref(), Some("in use as swap space"));
        assert_eq!(words(&free), None);
    }

    #[test]
    fn tables_of_the_kernel_are_unescaped() {
        for (text, expected) in [
            ("/a\\040b\\134c", "/a b\\c"),
            ("/plain", "/plain"),
            ("\\04", "\\04"),
            ("\\999", "\\999"),
            ("", ""),
        ] {
            assert_eq!(unescaped(text), expected);
        }
    }
}
