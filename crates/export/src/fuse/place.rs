//! The folder of a mount: the checks before mounting, the mount itself, and the unmount.
//!
//! Unmounting must happen in a separate process, not in the server. An unmount tells the file
//! systems on a loop device over the file to write their data, and these writes wait for the server
//! (see [`super::loop_device`]). If the server itself unmounted, it would wait for itself.
//!
//! This module must never change a mount that it did not create.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::ended::is_end_of_server;
use super::loop_device::{self, LoopDevice};

const DEVICE_PATH: &str = "/dev/fuse";
/// The program that performs mounts for users other than root.
const FUSERMOUNT: &str = "fusermount3";
/// File system subtype by which the mounts of this module are recognized in the kernel's mount
/// table.
const SUBTYPE: &str = "bimetal";
const FILE_SYSTEM_TYPE: &str = "fuse.bimetal";
/// File in which the kernel lists the mounts in the mount namespace of this process.
const TABLE_PATH: &str = "/proc/self/mountinfo";

/// Reason why a folder cannot be mounted on, or cannot be served any longer.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE.
    #[error(
        "{DEVICE_PATH} does not exist: a kernel with FUSE is needed; load FUSE with `modprobe fuse`"
    )]
    NoDriver,
    /// The user may not mount.
    #[error(
        "no permission to mount: root (CAP_SYS_ADMIN) is needed, or the program {FUSERMOUNT} \
        (Debian package fuse3) and a folder that you own"
    )]
    NoRights,
    /// `fusermount3` failed to mount, and reported the reason.
    #[error("{FUSERMOUNT} could not mount {}: {why}", folder.display())]
    Refused {
        /// The folder.
        folder: PathBuf,
        /// The message of `fusermount3`.
        why: String,
    },
    /// The kernel's FUSE is too old.
    #[error("this kernel's FUSE is too old: Linux 5.4 or newer is needed")]
    OldKernel,
    /// The mount on the folder is dead: its server no longer runs.
    #[error(
        "{}: the server of this mount has ended; remove the mount with `bimetal unmount {}`",
        .0.display(), .0.display()
    )]
    Dead(PathBuf),
    /// The folder contains files, or a file system is mounted on it.
    #[error("{}: not empty: an empty folder is needed", .0.display())]
    NotEmpty(PathBuf),
    /// The name of the device cannot be a file name.
    #[error("`{0}` cannot be the name of a file")]
    Name(String),
    /// A file or the folder could not be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error from the kernel.
        error: io::Error,
    },
}

/// Reason why unmounting failed or was incomplete.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// The folder has no mount that `bimetal mount` has created.
    #[error("{}: this is not a mount of `bimetal mount`", .0.display())]
    Missing(PathBuf),
    /// The file is in use; nothing was changed.
    #[error("{} is in use: {by}", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
        /// Description of the process or mount that uses the file, with advice for the operator.
        by: String,
    },
    /// The folder is unmounted, but some written data has not reached the volume.
    #[error(
        "{} is unmounted, but {what} could not be flushed: the last writes to it may be lost",
        folder.display()
    )]
    NotSaved {
        /// The folder.
        folder: PathBuf,
        /// The data that could not be saved.
        what: String,
    },
    /// `fusermount3` failed to unmount, and reported the reason.
    #[error("{FUSERMOUNT} could not unmount {}: {why}", folder.display())]
    Refused {
        /// The folder.
        folder: PathBuf,
        /// The message of `fusermount3`.
        why: String,
    },
    /// Another error.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error from the kernel.
        error: io::Error,
    },
}

/// Parameters of a mount, as passed to the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct MountFacts<'a> {
    /// Name of the mount's source, as shown in the mount table.
    pub(super) source: &'a str,
    pub(super) read_only: bool,
    /// Maximum length of a read in bytes.
    pub(super) read_bytes_max: u32,
}

/// Returns the absolute path of a folder, with symbolic links resolved. This works even if the
/// mount on the folder is dead.
///
/// # Errors
/// The errors of `realpath(3)`.
fn absolute(folder: &Path) -> io::Result<PathBuf> {
    match folder.canonicalize() {
        Err(error) if is_end_of_server(&error) => {
            let whole = std::path::absolute(folder)?;
            match (whole.parent(), whole.file_name()) {
                (Some(parent), Some(name)) => Ok(parent.canonicalize()?.join(name)),
                _ => Err(error),
            }
        }
        path => path,
    }
}

/// Checks that a folder exists and is empty, and returns its absolute path.
///
/// # Errors
/// `Dead`, `NotEmpty`, or `File` with the error of reading the folder.
pub(super) fn check_folder(folder: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: io::Error| match is_end_of_server(&error) {
        true => MountError::Dead(folder.to_owned()),
        false => MountError::File {
            path: folder.to_owned(),
            error,
        },
    };
    let mut entries = std::fs::read_dir(folder).map_err(failed)?;
    match entries.next() {
        None => absolute(folder).map_err(failed),
        Some(Ok(_)) => Err(MountError::NotEmpty(folder.to_owned())),
        Some(Err(error)) => Err(failed(error)),
    }
}

/// Mounts on a folder, and returns the open `/dev/fuse` of the mount.
///
/// # Errors
/// A failure as a [`MountError`]; nothing is then mounted.
pub(super) fn mount(folder: &Path, facts: &MountFacts<'_>) -> Result<OwnedFd, MountError> {
    if !rustix::process::geteuid().is_root() {
        return mount_by_program(folder, facts);
    }
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(DEVICE_PATH)
        .map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => MountError::NoDriver,
            Some(Errno::ACCESS | Errno::PERM) => MountError::NoRights,
            _ => MountError::File {
                path: DEVICE_PATH.into(),
                error,
            },
        })?;
    let device = OwnedFd::from(device);
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,max_read={}",
        std::os::fd::AsRawFd::as_raw_fd(&device),
        user.as_raw(),
        group.as_raw(),
        facts.read_bytes_max
    );
    let data = CString::new(data).expect("numbers and words have no zero byte");
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    flags.set(MountFlags::RDONLY, facts.read_only);
    let mounted = rustix::mount::mount(facts.source, folder, FILE_SYSTEM_TYPE, flags, &*data);
    match mounted {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => Err(MountError::NoRights),
        Err(Errno::NODEV) => Err(MountError::NoDriver),
        Err(error) => Err(MountError::File {
            path: folder.to_owned(),
            error: error.into(),
        }),
    }
}

/// Mounts as [`mount`] does, but runs `fusermount3`, which can also mount for a user other than
/// root. `fusermount3` passes the open `/dev/fuse` over a socket.
fn mount_by_program(folder: &Path, facts: &MountFacts<'_>) -> Result<OwnedFd, MountError> {
    let failed = |error: io::Error| MountError::File {
        path: folder.to_owned(),
        error,
    };
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let options = format!(
        "fsname={},subtype={SUBTYPE},default_permissions,nosuid,nodev,noexec,max_read={}{}",
        facts.source.replace('\\', "\\\\").replace(',', "\\,"),
        facts.read_bytes_max,
        if facts.read_only { ",ro" } else { "" }
    );
    let run = Command::new(FUSERMOUNT)
        .args(["-o", &options, "--"])
        .arg(folder)
        // The socket is descriptor 0 of `fusermount3`.
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    let run = run.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoRights,
        _ => failed(error),
    })?;
    let refused = |why: String| MountError::Refused {
        folder: folder.to_owned(),
        why,
    };
    if !run.status.success() {
        return Err(refused(said_by(&run.stderr)));
    }
    received(&ours)
        .map_err(failed)?
        .ok_or_else(|| refused("it returned no file descriptor".to_owned()))
}

/// Returns the message of `fusermount3` without the program's name before it.
fn said_by(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim().trim_start_matches(FUSERMOUNT);
    text.trim_start_matches(':').trim().to_owned()
}

/// Receives the open `/dev/fuse` from `fusermount3`, which has already exited.
fn received(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [io::IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    Ok(files.next().and_then(|mut files| files.next()))
}

/// Removes the mount that `bimetal mount` has created on a folder, and the loop devices that it has
/// created over the file.
///
/// With `force`, the mount and the loop devices are removed even if they are in use. File systems
/// on loop devices over the file first write their data, and `warn` gets a line about each of these
/// file systems. Processes that have the file open can use it until the server ends; then all their
/// accesses fail. If the server of the mount no longer runs, the mount is removed even without
/// `force`.
///
/// This function waits for the server, possibly forever, and no signal interrupts the wait. Call it
/// only in a separate process, not in the server. The parent of that process can end the wait by
/// calling [`abort`] for the folder.
///
/// # Errors
/// A failure as an [`UnmountError`]. After `InUse` everything is unchanged; after `NotSaved`
/// everything has been removed.
pub fn unmount(
    folder: &Path,
    force: bool,
    warn: &mut dyn FnMut(String),
) -> Result<(), UnmountError> {
    let failed = |path: &Path, error: io::Error| UnmountError::File {
        path: path.to_owned(),
        error,
    };
    let whole = mounted_at(folder)?;
    let table = std::fs::read(TABLE_PATH).map_err(|e| failed(TABLE_PATH.as_ref(), e))?;
    // The kernel answers this call from its attribute cache, without a request to the server.
    let dead = rustix::fs::statfs(&whole).is_err_and(|errno| is_end_of_server(&errno.into()));
    let loops = loop_device::over(&whole).map_err(|error| failed(folder, error))?;
    if !force {
        refuse_in_use(folder, &table, &loops, dead)?;
    }
    let mut unsaved = Vec::new();
    for device in loops.iter().filter(|_| !dead) {
        unsaved.extend(save(device, &table, warn));
    }
    for device in loops {
        let path = device.path().to_owned();
        if dead || device.is_ours {
            device.take_away().map_err(|error| failed(&path, error))?;
        }
    }
    take_away(&whole, force || dead)?;
    if unsaved.is_empty() {
        return Ok(());
    }
    Err(UnmountError::NotSaved {
        folder: folder.to_owned(),
        what: unsaved.join(", "),
    })
}

/// Makes the kernel fail every unanswered and every future request on the mount that
/// `bimetal mount` has created on a folder. Processes that wait for the server then stop waiting.
/// If the mount is not in use, it is unmounted as well. No request is sent to the server.
///
/// # Errors
/// A failure as an [`UnmountError`]; `Missing` if there is no such mount.
pub fn abort(folder: &Path) -> Result<(), UnmountError> {
    let whole = mounted_at(folder)?;
    if !rustix::process::geteuid().is_root() {
        // Users other than root need `fusermount3`, which cannot abort a mount. Such users cannot
        // create loop devices, so no loop device waits for the server, and detaching the mount is
        // enough.
        return take_away(&whole, true);
    }
    match rustix::mount::unmount(&whole, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        // If a process still has the mount open, the mount remains, but all requests to it fail.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(error) => Err(UnmountError::File {
            path: whole,
            error: error.into(),
        }),
    }
}

/// Returns true if the topmost mount on the folder was created by `bimetal mount`. Sends no request
/// to the server.
pub fn is_mounted(folder: &Path) -> bool {
    mounted_at(folder).is_ok()
}

/// Returns the absolute path of the folder, if a mount that `bimetal mount` has created is on it.
fn mounted_at(folder: &Path) -> Result<PathBuf, UnmountError> {
    let failed = |path: &Path, error: io::Error| UnmountError::File {
        path: path.to_owned(),
        error,
    };
    let whole = absolute(folder).map_err(|error| failed(folder, error))?;
    let table = std::fs::read(TABLE_PATH).map_err(|e| failed(TABLE_PATH.as_ref(), e))?;
    match is_ours(&table, &whole) {
        true => Ok(whole),
        false => Err(UnmountError::Missing(folder.to_owned())),
    }
}

/// If the file is in use, returns an error that names the process or the mount that uses it.
fn refuse_in_use(
    folder: &Path,
    table: &[u8],
    loops: &[LoopDevice],
    dead: bool,
) -> Result<(), UnmountError> {
    for device in loops {
        let path = device.path().display();
        let mounts = mounts_of(table, device.path());
        let unclaimed = device.is_unclaimed().map_err(|error| UnmountError::File {
            path: device.path().to_owned(),
            error,
        })?;
        let by = match mounts.first() {
            Some(place) => format!("{path} is mounted on {place}; run `umount {place}` first"),
            None if !unclaimed => format!("{path} is part of another device"),
            None if !device.is_ours && !dead => {
                format!("{path} is a loop device over it; run `losetup -d {path}` first")
            }
            None => continue,
        };
        let folder = folder.to_owned();
        return Err(UnmountError::InUse { folder, by });
    }
    Ok(())
}

/// Makes each mounted file system on a loop device write its dirty data, and then writes the dirty
/// pages of the loop device itself. Failures are reported to `warn` and do not stop the unmount.
/// Returns descriptions of the data that could not be saved.
fn save(device: &LoopDevice, table: &[u8], warn: &mut dyn FnMut(String)) -> Vec<String> {
    let mut unsaved = Vec::new();
    let path = device.path().display();
    for place in mounts_of(table, device.path()) {
        warn(format!(
            "{path} is still mounted on {place}: the data written there is flushed now, and every \
            access fails after the server has ended; run `umount {place}`"
        ));
        let folder = PathBuf::from(std::ffi::OsString::from_vec(unescaped(place.as_bytes())));
        let synced = std::fs::File::open(&folder).and_then(|open| Ok(rustix::fs::syncfs(&open)?));
        if let Err(error) = synced {
            warn(format!("{place} could not be flushed: {error}"));
            unsaved.push(place.clone());
        }
    }
    if let Err(error) = device.sync() {
        warn(format!("{path} could not be flushed: {error}"));
        unsaved.push(path.to_string());
    }
    unsaved
}

/// Unmounts a folder. With `detach`, the folder is unmounted immediately, even if files are open.
/// No request is sent to the server.
///
/// # Errors
/// A failure as an [`UnmountError`].
pub(super) fn take_away(folder: &Path, detach: bool) -> Result<(), UnmountError> {
    if !rustix::process::geteuid().is_root() {
        return take_away_by_program(folder, detach);
    }
    let flags = if detach {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::NOFOLLOW
    };
    match rustix::mount::unmount(folder, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(files_are_open(folder)),
        // Another process has unmounted the folder in the meantime.
        Err(Errno::INVAL) if !is_mounted(folder) => Ok(()),
        Err(error) => Err(UnmountError::File {
            path: folder.to_owned(),
            error: error.into(),
        }),
    }
}

fn files_are_open(folder: &Path) -> UnmountError {
    UnmountError::InUse {
        folder: folder.to_owned(),
        by: format!(
            "a process has the file or the folder open; `fuser -vm {}` shows which",
            folder.display()
        ),
    }
}

fn take_away_by_program(folder: &Path, detach: bool) -> Result<(), UnmountError> {
    let run = Command::new(FUSERMOUNT)
        .arg(if detach { "-uz" } else { "-u" })
        .arg("--")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| UnmountError::File {
            path: FUSERMOUNT.into(),
            error,
        })?;
    let why = said_by(&run.stderr);
    match run.status.success() {
        true => Ok(()),
        false if why.contains("busy") => Err(files_are_open(folder)),
        false => Err(UnmountError::Refused {
            folder: folder.to_owned(),
            why,
        }),
    }
}

/// One line of the kernel's mount table. Special characters are escaped; for example, a blank in a
/// path is `\040`.
struct MountLine<'a> {
    place: &'a [u8],
    kind: &'a [u8],
    source: &'a [u8],
}

/// Parses the lines of a mount table in the format of `mountinfo` in `proc(5)`.
fn lines(table: &[u8]) -> impl Iterator<Item = MountLine<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let place = words.nth(4)?;
        // Optional words can follow the mount options. The word `-` ends the optional words.
        words.find(|word| *word == b"-")?;
        let (kind, source) = (words.next()?, words.next()?);
        Some(MountLine {
            place,
            kind,
            source,
        })
    })
}

/// Whether `bimetal mount` has created the topmost mount on a folder.
fn is_ours(table: &[u8], folder: &Path) -> bool {
    let on_it = lines(table).filter(|line| unescaped(line.place) == folder.as_os_str().as_bytes());
    let last = on_it.last();
    last.is_some_and(|line| line.kind == FILE_SYSTEM_TYPE.as_bytes())
}

/// Returns the mount points of a block device and its partitions, as written in the mount table.
fn mounts_of(table: &[u8], device: &Path) -> Vec<String> {
    let is_of = |source: &[u8]| {
        let Some(rest) = source.strip_prefix(device.as_os_str().as_bytes()) else {
            return false;
        };
        let is_partition = rest
            .strip_prefix(b"p")
            .is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit));
        rest.is_empty() || is_partition
    };
    let places = lines(table).filter(|line| is_of(line.source));
    places
        .map(|line| String::from_utf8_lossy(line.place).into_owned())
        .collect()
}

/// Decodes the escapes in a word of the mount table: replaces `\040` and similar escapes by their
/// characters.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let octal = |digit: &u8| (b'0'..=b'7').contains(digit);
        match behind.get(..3) {
            Some(digits) if *first == b'\\' && digits.iter().all(octal) => {
                let value = digits
                    .iter()
                    .fold(0_u32, |sum, digit| sum * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        40 22 0:45 / /mnt/vol rw,nosuid shared:7 - fuse.bimetal /etc/vol.ctl rw,user_id=0\n\
        41 22 0:46 / /mnt/a\\040b rw,nosuid - fuse.bimetal /etc/x.ctl rw\n\
        42 22 0:47 / /mnt/other rw - fuse.sshfs box: rw\n\
        43 22 0:48 / /mnt/twice rw - fuse.bimetal /etc/y.ctl rw\n\
        44 43 0:49 / /mnt/twice rw - tmpfs tmpfs rw\n\
        45 22 7:1 / /mnt/fs\\040here rw - ext4 /dev/loop1 rw\n\
        46 22 259:1 / /mnt/part rw - ext4 /dev/loop1p2 rw\n\
        47 22 7:10 / /mnt/ten rw - ext4 /dev/loop10 rw\n";

    #[test]
    fn mounts_of_ours_are_known_by_their_type() {
        for (folder, ours) in [
            ("/mnt/vol", true),
            ("/mnt/a b", true),
            ("/mnt/other", false),
            ("/mnt/vo", false),
            ("/", false),
            // Another file system is mounted over it.
            ("/mnt/twice", false),
        ] {
            assert_eq!(is_ours(TABLE, Path::new(folder)), ours, "{folder}");
        }
    }

    #[test]
    fn mounts_of_a_device_and_of_its_partitions_are_found() {
        let places = mounts_of(TABLE, Path::new("/dev/loop1"));
        assert_eq!(places, ["/mnt/fs\\040here", "/mnt/part"]);
        assert_eq!(mounts_of(TABLE, Path::new("/dev/loop10")), ["/mnt/ten"]);
        assert!(mounts_of(TABLE, Path::new("/dev/loop")).is_empty());
    }

    #[test]
    fn words_of_the_table_are_unescaped() {
        assert_eq!(unescaped(b"a\\040b\\134c\\"), b"a b\\c\\");
        assert_eq!(unescaped(b"\\04"), b"\\04");
        assert_eq!(unescaped(b"\\089"), b"\\089");
    }

    #[test]
    fn a_folder_with_something_in_it_is_refused() {
        let folder = std::env::temp_dir().join(format!("bimetal-place-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let checked = check_folder(&folder);
        std::fs::write(folder.join("x"), b"").unwrap();
        let full = check_folder(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(checked.is_ok(), "{checked:?}");
        assert!(matches!(full, Err(MountError::NotEmpty(_))), "{full:?}");
        let missing = check_folder(&folder);
        assert!(
            matches!(missing, Err(MountError::File { .. })),
            "{missing:?}"
        );
    }

    #[test]
    fn what_the_program_says_is_a_line() {
        let said = b"fusermount3: mounting over filesystem type 0x9fa0 is forbidden\n";
        assert_eq!(
            said_by(said),
            "mounting over filesystem type 0x9fa0 is forbidden"
        );
    }
}
