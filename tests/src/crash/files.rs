//! Crashes under a mounted ext4: files that are replaced atomically, as careful programs do, and a
//! check of the files after the crash. Needs root, FUSE and loop devices.
//!
//! To replace a file, a program writes the new version to a temporary file, syncs it, renames it
//! over the old version, and syncs the folder. Once the last of these calls has returned, the
//! complete new version must exist after any crash. Before that, either the complete old version or
//! the complete new version must exist.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::client::Client;
use crate::mount::{Fuse, Loop, Mount, fsck};
use crate::random::Random;
use crate::scratch::Scratch;

/// Number of file names. A later version replaces an earlier version that has the same name.
const NAMES: u64 = 24;
/// Upper bound of the random part of a file's length in bytes. It is low because the file system is
/// small.
const LENGTH_MAX: u64 = 40_000;

/// The versions that each file can have after a crash.
#[derive(Debug, Default)]
pub struct Files {
    /// For each name: the version that is certainly durable (`None` if the file is possibly
    /// missing), and the newest version whose replacement has begun.
    versions: BTreeMap<u64, (Option<u64>, u64)>,
    next_version: u64,
}

/// Returns the bytes of a version: its number, then bytes that are unique to this version.
fn content(version: u64) -> Vec<u8> {
    let mut random = Random::new(version);
    let length = 8 + random.below(LENGTH_MAX) as usize;
    let mut bytes = version.to_le_bytes().to_vec();
    while bytes.len() < length {
        bytes.extend(random.draw().to_le_bytes());
    }
    bytes
}

impl Files {
    /// Replaces up to `most` files, and stops early if the file system fails. Returns the number of
    /// completed replacements.
    pub fn replace(&mut self, root: &Path, random: &mut Random, most: u64) -> u64 {
        for count in 0..most {
            self.next_version += 1;
            let (name, version) = (random.below(NAMES), self.next_version);
            self.versions.entry(name).or_insert((None, 0)).1 = version;
            if replace(root, name, &content(version)).is_err() {
                return count;
            }
            self.versions.insert(name, (Some(version), version));
        }
        most
    }

    /// Compares every file with its possible versions. After that, the version found is recorded as
    /// durable, because the file system has replayed its journal.
    ///
    /// # Errors
    /// A description of the first file that is missing, incomplete, or of an impossible version.
    pub fn check(&mut self, root: &Path) -> Result<(), String> {
        for (name, (certain, newest)) in &mut self.versions {
            let found = match fs::read(root.join(name.to_string())) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::NotFound && certain.is_none() => continue,
                Err(e) => return Err(format!("file {name}, version {certain:?}: {e}")),
            };
            let stamp = found.first_chunk().map(|b| u64::from_le_bytes(*b));
            let possible = |v: &u64| (certain.unwrap_or(1)..=*newest).contains(v);
            let version = stamp.filter(possible).filter(|v| found == content(*v));
            if version.is_none() {
                return Err(format!(
                    "file {name} has {} bytes and says version {stamp:?}; {certain:?} was synced, \
                     {newest} begun",
                    found.len()
                ));
            }
            (*certain, *newest) = (version, version.unwrap_or_default());
        }
        Ok(())
    }
}

/// Replaces a file atomically with a new version.
fn replace(root: &Path, name: u64, bytes: &[u8]) -> io::Result<()> {
    let beside = root.join(format!("{name}.new"));
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(beside, root.join(name.to_string()))?;
    File::open(root)?.sync_all()
}

/// A mounted ext4 on an export, with the loop device and the nbdfuse mount below it.
#[derive(Debug)]
pub struct Mounted {
    // Fields are dropped in this order: the mount is undone first.
    mount: Mount,
    disk: Loop,
    fuse: Fuse,
}

impl Mounted {
    /// Makes a file system on the export at `uri`.
    pub fn make(dir: &Scratch, uri: &str) {
        let fuse = Fuse::mount(dir, uri);
        let disk = Loop::attach(&fuse.file());
        Client::new("mkfs.ext4")
            .args(["-q", "-F"])
            .arg(disk.device())
            .ok();
        disk.detach();
        fuse.unmount();
    }

    /// Mounts the file system, which replays its journal.
    ///
    /// # Errors
    /// The message of mount(8) if the file system cannot be mounted.
    pub fn mount(dir: &Scratch, uri: &str) -> Result<Self, String> {
        let fuse = Fuse::mount(dir, uri);
        let disk = Loop::attach(&fuse.file());
        let mount = mount(dir, &disk)?;
        Ok(Self { mount, disk, fuse })
    }

    /// Returns the path of the root of the file system.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Unmounts the file system, detaches the loop device, and unmounts nbdfuse. Works even if the
    /// export is dead.
    pub fn unmount(self) {
        self.mount.unmount();
        self.disk.detach();
        self.fuse.unmount();
    }

    /// Unmounts the file system, checks it completely with e2fsck(8), and mounts it again.
    ///
    /// # Errors
    /// The message of e2fsck(8) or mount(8).
    pub fn checked(self, dir: &Scratch) -> Result<Self, String> {
        let Self {
            mount: before,
            disk,
            fuse,
        } = self;
        before.unmount();
        let outcome = fsck(disk.device());
        if outcome.status != Some(0) {
            return Err(outcome.to_string());
        }
        let mount = mount(dir, &disk)?;
        Ok(Self { mount, disk, fuse })
    }
}

fn mount(dir: &Scratch, disk: &Loop) -> Result<Mount, String> {
    let mounted = Mount::try_at(&dir.file("mnt"), disk.device(), "noatime");
    mounted.map_err(|outcome| outcome.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checker_finds_what_a_crash_must_not_leave() {
        let dir = Scratch::new("files");
        let mut files = Files::default();
        let count = files.replace(dir.path(), &mut Random::new(1), 100);
        assert_eq!(count, 100);
        files.check(dir.path()).expect("nothing was lost");
        let (&name, &(version, _)) = files.versions.first_key_value().expect("a file");
        let path = dir.file(&name.to_string());
        let bytes = content(version.expect("it was synced"));
        let mut flipped = bytes.clone();
        *flipped.last_mut().expect("a byte") ^= 1;
        for damage in [&bytes[..bytes.len() - 1], &[], &flipped, &content(1_000)] {
            fs::write(&path, damage).expect("damage the file");
            assert!(files.check(dir.path()).is_err());
        }
        fs::remove_file(&path).expect("remove the file");
        assert!(files.check(dir.path()).is_err());
        fs::write(&path, bytes).expect("mend the file");
        files.check(dir.path()).expect("it is whole again");
    }
}
