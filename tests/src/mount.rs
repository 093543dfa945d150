//! Steps from an NBD export to a mounted file system: nbdfuse presents the export as a file, a loop
//! device makes the file a block device, and ext4 is mounted from the loop device. Needs root.
//!
//! Each step is a value whose drop undoes the step, so that a failing test leaves neither a mount
//! nor a loop device behind. A test that needs the undo to succeed calls the method that undoes the
//! step ([`Fuse::unmount`], [`Loop::detach`], [`Mount::unmount`]), which panics on an error.

use crate::client::{Client, Outcome};
use crate::deadline::{Deadline, eventually};
use crate::scratch::Scratch;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Flag of open(2). On a block device, the open fails if another user of the device, such as a file
/// system, has claimed it.
const O_EXCL: i32 = 0o200;

/// An export that nbdfuse presents as a file.
#[derive(Debug)]
pub struct Fuse {
    dir: PathBuf,
    gone: Receiver<()>,
    pid: u32,
    mounted: bool,
}

impl Fuse {
    /// Presents the export `uri` as a file in a FUSE mount under `scratch`.
    pub fn mount(scratch: &Scratch, uri: &str) -> Self {
        let dir = scratch.file("fuse");
        std::fs::create_dir_all(&dir).expect("a mount point");
        let pidfile = scratch.file("fuse.pid");
        // An earlier mount in the same directory can have left a pid file, which could be mistaken
        // for the pid file of this mount.
        if pidfile.exists() {
            std::fs::remove_file(&pidfile).expect("remove an old pid file");
        }
        let mut command = Command::new("nbdfuse");
        command
            .arg("-P")
            .arg(&pidfile)
            .arg(dir.join("nbd"))
            .arg(uri)
            .stdin(Stdio::null());
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("nbdfuse: {e}; run scripts/install-test-deps.sh"));
        let (pid, gone) = (child.id(), watch(child));
        let fuse = Self {
            dir,
            gone,
            pid,
            mounted: true,
        };
        // nbdfuse writes the pid file after the mount is complete (nbdfuse(1)).
        eventually(30, "nbdfuse's pid file", || {
            assert!(
                crate::procfs::alive(pid),
                "nbdfuse {uri} ended before it was mounted"
            );
            pidfile.exists().then_some(())
        });
        fuse
    }

    /// Returns the path of the file that holds the export's bytes.
    pub fn file(&self) -> PathBuf {
        self.dir.join("nbd")
    }

    /// Returns the pid of the nbdfuse process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Makes the kernel fail every request on a FUSE connection, including requests that already
    /// wait (the file `abort` of Documentation/filesystems/fuse). If processes wait for a server
    /// while the server waits for the same processes, only this call unblocks them.
    pub fn abort(connection: u32) {
        let control = Path::new("/sys/fs/fuse/connections");
        let file = control.join(connection.to_string()).join("abort");
        if !file.exists() {
            let mount = Client::new("mount")
                .args(["-t", "fusectl", "none"])
                .arg(control);
            eprintln!("to abort a FUSE connection: {}", mount.within_s(10).run());
        }
        if let Err(e) = std::fs::write(&file, "1") {
            eprintln!("could not abort {}: {e}", file.display());
        }
    }

    /// Returns the number of the FUSE connection for [`Fuse::abort`]: the minor device number of
    /// the mount. Must be called while the server of the mount still answers, because it runs
    /// stat(1) on the mount point.
    pub fn connection(&self) -> u32 {
        let outcome = Client::new("stat")
            .args(["-c", "%d"])
            .arg(&self.dir)
            .within_s(10)
            .ok();
        let device: u64 = outcome.stdout.trim().parse().expect("a device number");
        // The inverse of makedev(3): the low 8 bits of the minor number are in bits 0 to 7 of the
        // device number, and its other bits start at bit 20.
        ((device & 0xff) | ((device >> 12) & 0xffff_ff00)) as u32
    }

    /// Unmounts the file and waits until nbdfuse has exited, which closes its connection to the
    /// server.
    pub fn unmount(mut self) {
        Client::new("fusermount3").arg("-u").arg(&self.dir).ok();
        self.mounted = false;
        let ended = self.gone.recv_timeout(Deadline::in_s(30).left());
        assert!(ended.is_ok(), "nbdfuse still runs 30 s after the unmount");
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.mounted {
            undo("fusermount3", &["-uz".as_ref(), self.dir.as_ref()]);
        }
    }
}

/// Returns a channel that receives a message when the child process has exited.
fn watch(mut child: Child) -> Receiver<()> {
    let (send, gone) = channel();
    std::thread::spawn(move || {
        child.wait().expect("wait for a child");
        // If the test is over, the receiver has been dropped and the send fails. This is not an
        // error.
        let _ = send.send(());
    });
    gone
}

/// A loop device over a file or a part of a file.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
    attached: bool,
}

impl Loop {
    /// Attaches a loop device to all of `file`, for reads and writes.
    pub fn attach(file: &Path) -> Self {
        Self::losetup(file, &[])
    }

    /// Attaches a read-only loop device to the `size_bytes` of `file` that start at `offset_bytes`.
    pub fn attach_part_read_only(file: &Path, offset_bytes: u64, size_bytes: u64) -> Self {
        let (offset, size) = (offset_bytes.to_string(), size_bytes.to_string());
        Self::losetup(
            file,
            &["--read-only", "--offset", &offset, "--sizelimit", &size],
        )
    }

    fn losetup(file: &Path, options: &[&str]) -> Self {
        let run = Client::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file)
            .ok();
        Self {
            device: run.stdout.trim().into(),
            attached: true,
        }
    }

    /// Returns the path of the device node.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Detaches the device.
    pub fn detach(mut self) {
        Client::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .ok();
        self.attached = false;
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.attached {
            undo("losetup", &["--detach".as_ref(), self.device.as_ref()]);
        }
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mount {
    device: PathBuf,
    dir: PathBuf,
    mounted: bool,
}

impl Mount {
    /// Mounts `device` at `dir`, which is created if it is missing; `options` are those of
    /// `mount -o`.
    pub fn at(dir: &Path, device: &Path, options: &str) -> Self {
        Self::try_at(dir, device, options).unwrap_or_else(|outcome| panic!("{outcome}"))
    }

    /// Does the same as [`Mount::at`], for a file system that may be too damaged to mount.
    ///
    /// # Errors
    /// The outcome of mount(8), with its message.
    pub fn try_at(dir: &Path, device: &Path, options: &str) -> Result<Self, Outcome> {
        std::fs::create_dir_all(dir).expect("a mount point");
        let mount = Client::new("mount").args(["-o", options]);
        let outcome = mount.arg(device).arg(dir).run();
        match outcome.status {
            Some(0) => Ok(Self {
                device: device.to_owned(),
                dir: dir.to_owned(),
                mounted: true,
            }),
            _ => Err(outcome),
        }
    }

    /// Returns the path of the root of the file system.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Unmounts the file system, which writes out all dirty data, and waits until the device is
    /// released.
    ///
    /// While the mount is busy the unmount is retried: a child process that another thread has just
    /// forked keeps the open files of its parent until it calls exec. After the unmount the device
    /// can still be claimed for some time: a process in another mount namespace can have a copy of
    /// the mount, and the copy claims the device until that process has exited.
    pub fn unmount(mut self) {
        eventually(60, "the mount is not busy", || {
            let outcome = Client::new("umount").arg(&self.dir).within_s(300).run();
            let busy = outcome.status == Some(32) && outcome.stderr.contains("busy");
            assert!(busy || outcome.status == Some(0), "{outcome}");
            (!busy).then_some(())
        });
        self.mounted = false;
        eventually(60, "the device is nobody's any more", || {
            let mut exclusive = std::fs::OpenOptions::new();
            let exclusive = exclusive.read(true).custom_flags(O_EXCL);
            let opened = exclusive.open(&self.device);
            let is_claimed = opened.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy);
            (!is_claimed).then_some(())
        });
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            undo("umount", &["-l".as_ref(), self.dir.as_ref()]);
        }
    }
}

/// Undoes a step after a failure. If the undo fails, its error is only printed, so that it does not
/// hide the failure.
fn undo(program: &str, args: &[&std::ffi::OsStr]) {
    let outcome = Client::new(program).args(args).within_s(30).run();
    if outcome.status != Some(0) {
        eprintln!("while cleaning up: {outcome}");
    }
}

/// Runs `e2fsck -fn`, a complete check that changes nothing; panics unless the file system is
/// clean.
pub fn assert_fsck_clean(device: &Path) {
    let outcome = fsck(device);
    assert!(outcome.status == Some(0), "{outcome}");
}

/// Runs `e2fsck -fn`, a complete check that changes nothing, and returns its outcome. Exit status 0
/// means that the file system is clean.
pub fn fsck(device: &Path) -> Outcome {
    Client::new("e2fsck")
        .arg("-fn")
        .arg(device)
        .within_s(300)
        .run()
}

/// Returns the checksums and names of all files below `dir`, followed by the types, names and link
/// targets of all other entries. Two results are equal if and only if every file's bytes, every
/// link's target and every name are equal.
pub fn tree_checksums(dir: &Path) -> String {
    let script = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum && \
                  find . ! -type f -printf '%y %p -> %l\\n' | LC_ALL=C sort";
    let sums = Client::new("sh")
        .args(["-c", script])
        .in_dir(dir)
        .within_s(300)
        .ok()
        .stdout;
    assert!(
        sums.lines().count() > 100,
        "too small to be a real tree: {}",
        dir.display()
    );
    sums
}

/// Total size of the copied crates, in bytes, after which [`source_tree`] copies no further crate.
/// The total can be larger by a part of the last crate.
const TREE_BYTES: u64 = 64 << 20;

/// Copies a real source tree into `dir` and returns its path. The tree holds the crates of this
/// workspace's Cargo.lock, as cargo unpacked them, in the order of the lock file up to 64 MiB.
/// Other crates in the machine's registry are not used, so that the tree has the same size on every
/// machine.
///
/// # Panics
/// If cargo keeps no unpacked sources (a vendored build).
pub fn source_tree(dir: &Scratch) -> PathBuf {
    let tree = dir.file("sources");
    std::fs::create_dir(&tree).expect("a folder for the sources");
    let mut bytes = 0;
    for source in locked_sources() {
        if bytes >= TREE_BYTES {
            break;
        }
        Client::new("cp").arg("-a").arg(&source).arg(&tree).ok();
        bytes += disk_usage_bytes(&source);
    }
    assert!(bytes > 1 << 20, "cargo keeps no unpacked sources");
    tree
}

/// Returns the folders of the unpacked crates that the workspace's lock file names. Cargo does not
/// unpack crates that only other systems need.
fn locked_sources() -> Vec<PathBuf> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cargo");
    let registries = cargo.unwrap_or_else(home).join("registry/src");
    let registries: Vec<PathBuf> = std::fs::read_dir(&registries)
        .unwrap_or_else(|e| panic!("no sources of crates in {}: {e}", registries.display()))
        .map(|entry| entry.expect("an entry of the registry's folder").path())
        .collect();
    let lock = include_str!("../../Cargo.lock");
    let lock: toml::Table = lock.parse().expect("cargo's own lock file");
    let packages = lock["package"].as_array().expect("packages");
    let text = |package: &toml::Value, key: &str| package[key].as_str().expect("text").to_owned();
    packages
        .iter()
        .map(|p| format!("{}-{}", text(p, "name"), text(p, "version")))
        .flat_map(|name| registries.iter().map(move |r| r.join(&name)))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// Returns the size of the files under `folder` in bytes, by du(1).
fn disk_usage_bytes(folder: &Path) -> u64 {
    let said = Client::new("du").arg("-sb").arg(folder).ok().stdout;
    let number = said.split_whitespace().next().expect("a number");
    number.parse().expect("a number of bytes")
}
