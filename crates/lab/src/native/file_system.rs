//! File systems of the kernel, created by their own tools, and mounted in the mount namespace of
//! this thread.

use std::ffi::CStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{MountFlags, UnmountFlags};

use super::{NativeError, io_error};

/// A kind of file system that can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Name of the file system on the axis `file_system` of a plan, and for `mount(2)`.
    pub name: &'static str,
    tool: &'static str,
    package: &'static str,
    /// Options with which the tool prints no progress, asks no questions and, given `-K`, discards
    /// no blocks.
    arguments: &'static [&'static str],
    /// Form of the options that set the UUID.
    identity: Identity,
    /// Mount options in addition to those that every run uses.
    options: &'static CStr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// `-U UUID` and `-E hash_seed=UUID`. The hash seed fixes the order of directory entries.
    Ext,
    /// `-m uuid=UUID`.
    Xfs,
    /// `-U UUID`.
    Btrfs,
    /// `-u UUID`.
    Reiser,
}

const fn ext(name: &'static str, tool: &'static str) -> Kind {
    Kind {
        name,
        tool,
        package: "e2fsprogs",
        arguments: &["-q", "-F"],
        identity: Identity::Ext,
        options: c"",
    }
}

/// All kinds of file systems.
pub(super) const KINDS: [Kind; 6] = [
    ext("ext2", "mkfs.ext2"),
    ext("ext3", "mkfs.ext3"),
    ext("ext4", "mkfs.ext4"),
    Kind {
        name: "xfs",
        tool: "mkfs.xfs",
        package: "xfsprogs",
        arguments: &["-q", "-f", "-K"],
        identity: Identity::Xfs,
        options: c"",
    },
    Kind {
        name: "btrfs",
        tool: "mkfs.btrfs",
        package: "btrfs-progs",
        arguments: &["-q", "-f", "-K"],
        identity: Identity::Btrfs,
        // Without this option, btrfs discards freed space by itself, which is I/O that the load has
        // not requested.
        options: c"nodiscard",
    },
    Kind {
        name: "reiserfs",
        tool: "mkreiserfs",
        package: "reiserfsprogs",
        arguments: &["-q", "-f"],
        identity: Identity::Reiser,
        options: c"",
    },
];

impl Kind {
    /// Returns the kind of this name.
    pub(super) fn named(name: &str) -> Option<Kind> {
        KINDS.into_iter().find(|kind| kind.name == name)
    }

    /// Checks that the tool is installed in one of `folders`.
    pub(super) fn check(&self, folders: &[PathBuf]) -> Result<(), NativeError> {
        check_program(self.tool, self.name, self.package, folders)
    }

    /// Creates the file system on a device, and returns the command that created it.
    ///
    /// # Errors
    /// The messages of the tool, if it fails.
    pub(super) fn make(&self, device: &Path, uuid: &str) -> Result<String, NativeError> {
        let mut arguments: Vec<String> = self.arguments.iter().map(|&of| of.to_owned()).collect();
        let own = match self.identity {
            Identity::Ext => {
                let rest = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                vec![
                    "-U".to_owned(),
                    uuid.to_owned(),
                    "-E".to_owned(),
                    format!("{rest},hash_seed={uuid}"),
                ]
            }
            Identity::Xfs => vec!["-m".to_owned(), format!("uuid={uuid}")],
            Identity::Btrfs => vec!["-U".to_owned(), uuid.to_owned()],
            Identity::Reiser => vec!["-u".to_owned(), uuid.to_owned()],
        };
        arguments.extend(own);
        let shown = format!("{} {}", self.tool, arguments.join(" "));
        let mut command = Command::new(self.tool);
        command
            .args(&arguments)
            .arg(device)
            .env("PATH", path_of_tools());
        let output = command.output().map_err(|source| NativeError::Io {
            what: self.tool.to_owned(),
            error: source,
        })?;
        match output.status.success() {
            true => Ok(shown),
            false => {
                let said = String::from_utf8_lossy(&output.stderr);
                let said: Vec<&str> = said
                    .lines()
                    .map(str::trim)
                    .filter(|l| !l.is_empty())
                    .collect();
                Err(NativeError::Refused(format!(
                    "{shown}: {}",
                    said.join("; ")
                )))
            }
        }
    }

    /// Mounts the file system at a path.
    ///
    /// # Errors
    /// The errors of `mount(2)`.
    pub(super) fn mount(
        &self,
        device: &Path,
        place: &Path,
        is_sync: bool,
    ) -> Result<Mounted, NativeError> {
        fs::create_dir_all(place).map_err(|source| io_error(place, source))?;
        let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC;
        if is_sync {
            flags |= MountFlags::SYNCHRONOUS;
        }
        rustix::mount::mount(device, place, self.name, flags, self.options).map_err(|source| {
            NativeError::Io {
                what: format!("mounting {} on {}", self.name, device.display()),
                error: source.into(),
            }
        })?;
        Ok(Mounted {
            place: place.to_owned(),
            is_mounted: true,
        })
    }
}

/// Formats 32 hexadecimal digits as a UUID.
pub(super) fn uuid(digits: &str) -> String {
    let part = |range: std::ops::Range<usize>| digits.get(range).unwrap_or("");
    [
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32),
    ]
    .join("-")
}

/// Checks that `program` is in one of `folders`. `what` is the thing that needs the program, and
/// `package` the package that contains it, for the error message.
pub(super) fn check_program(
    program: &str,
    what: &str,
    package: &str,
    folders: &[PathBuf],
) -> Result<(), NativeError> {
    match folders.iter().any(|folder| folder.join(program).is_file()) {
        true => Ok(()),
        false => Err(NativeError::Refused(format!(
            "{program}, which creates {what}, is missing; install the package {package}"
        ))),
    }
}

/// Returns the search path for programs, including the folders with programs for system
/// administration.
pub(super) fn path_of_tools() -> std::ffi::OsString {
    // In a guest, the environment of the first program does not contain `PATH`.
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":/usr/sbin:/sbin");
    path
}

/// A mounted file system, which is unmounted when this value is dropped.
pub(super) struct Mounted {
    place: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// Returns the path at which the file system is mounted.
    pub(super) fn root(&self) -> &Path {
        &self.place
    }

    /// Returns the options that the kernel reports: the options of the mount, and the options of
    /// the file system.
    ///
    /// # Errors
    /// If the file system is not in the mount table.
    pub(super) fn options(&self) -> Result<String, NativeError> {
        let path = Path::new("/proc/thread-self/mountinfo");
        let text = fs::read_to_string(path).map_err(|source| io_error(path, source))?;
        let of = |line: &str| {
            let (front, back) = line.split_once(" - ")?;
            let mut front = front.split(' ').skip(4);
            let is_ours = Path::new(front.next()?) == self.place;
            let options = format!("{};{}", front.next()?, back.split(' ').nth(2)?);
            is_ours.then_some(options)
        };
        text.lines().rev().find_map(of).ok_or_else(|| {
            NativeError::Refused(format!("{}: it is not mounted", self.place.display()))
        })
    }

    /// Unmounts the file system, which writes all remaining dirty data.
    ///
    /// # Errors
    /// The errors of `umount(2)`.
    pub(super) fn unmount(mut self) -> Result<(), NativeError> {
        self.is_mounted = false;
        rustix::mount::unmount(&self.place, UnmountFlags::empty()).map_err(|source| {
            NativeError::Io {
                what: format!("unmounting {}", self.place.display()),
                error: source.into(),
            }
        })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            // The value is dropped after a failure that has already been reported. Detach the
            // mount, so that the kernel releases the device when the mount is no longer in use.
            let _ = rustix::mount::unmount(&self.place, UnmountFlags::DETACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let kind = Kind::named("xfs").unwrap();
        let error = kind
            .check(&[PathBuf::from("/proc/self/fdinfo")])
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "mkfs.xfs, which creates xfs, is missing; install the package xfsprogs"
        );
    }

    #[test]
    fn an_identity_has_its_dashes() {
        assert_eq!(
            uuid("0123456789abcdef0123456789abcdef"),
            "01234567-89ab-cdef-0123-456789abcdef"
        );
    }
}
