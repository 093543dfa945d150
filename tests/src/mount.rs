//! From an NBD export to a mounted file system: nbdfuse, a loop device, ext4. Needs root.
//!
//! Each step is a value whose drop undoes it, so that a failing test leaves neither a mount nor a
//! loop device behind. Undo that a test relies on is called by name and checked.

use crate::client::{Client, Outcome};
use crate::deadline::{Deadline, eventually};
use crate::scratch::Scratch;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// open(2): on a block device, fails if another user, such as a file system, has claimed it.
const O_EXCL: i32 = 0o200;

/// An export as a file, by nbdfuse.
#[derive(Debug)]
pub struct Fuse {
    dir: PathBuf,
    gone: Receiver<()>,
    pid: u32,
    mounted: bool,
}

impl Fuse {
    /// Mounts the export `uri` under `scratch`.
    pub fn mount(scratch: &Scratch, uri: &str) -> Self {
        let dir = scratch.file("fuse");
        std::fs::create_dir_all(&dir).expect("a mount point");
        let pidfile = scratch.file("fuse.pid");
        // A pid file left by an earlier mount in the same directory would look like this one's.
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
        // nbdfuse writes the pid file when the mount is there (nbdfuse(1)).
        eventually(30, "nbdfuse's pid file", || {
            assert!(
                crate::procfs::alive(pid),
                "nbdfuse {uri} ended before it was mounted"
            );
            pidfile.exists().then_some(())
        });
        fuse
    }

    /// The file that holds the export's bytes.
    pub fn file(&self) -> PathBuf {
        self.dir.join("nbd")
    }

    /// The nbdfuse process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Makes the kernel fail every request on the mount, waiting ones included (the abort file
    /// of Documentation/filesystems/fuse). The one way to free processes that wait for a server
    /// that waits for them.
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

    /// The number of the FUSE connection, for [`Fuse::abort`]: the minor device number of the
    /// mount, asked while the mount still answers.
    pub fn connection(&self) -> u32 {
        let outcome = Client::new("stat")
            .args(["-c", "%d"])
            .arg(&self.dir)
            .within_s(10)
            .ok();
        let device: u64 = outcome.stdout.trim().parse().expect("a device number");
        // makedev(3): the minor number's low 8 bits, then the rest from bit 20 on.
        ((device & 0xff) | ((device >> 12) & 0xffff_ff00)) as u32
    }

    /// Unmounts and waits for nbdfuse to end, which closes its connection.
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

/// Reports on the channel when the process has ended.
fn watch(mut child: Child) -> Receiver<()> {
    let (send, gone) = channel();
    std::thread::spawn(move || {
        child.wait().expect("wait for a child");
        // The test may be over and no longer listening.
        let _ = send.send(());
    });
    gone
}

/// A loop device over (a part of) a file.
#[derive(Debug)]
pub struct Loop {
    device: PathBuf,
    attached: bool,
}

impl Loop {
    /// Attaches `file` read-write from its first byte.
    pub fn attach(file: &Path) -> Self {
        Self::losetup(file, &[])
    }

    /// Attaches `size_bytes` of `file` from `offset_bytes` on, read-only.
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

    /// The device node.
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
    /// Mounts at `dir`, which is made if need be, `device`; `options` as for `mount -o`.
    pub fn at(dir: &Path, device: &Path, options: &str) -> Self {
        Self::try_at(dir, device, options).unwrap_or_else(|outcome| panic!("{outcome}"))
    }

    /// As [`Mount::at`], for a file system that may be past mounting.
    ///
    /// # Errors
    /// What mount(8) said.
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

    /// The root of the file system.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Unmounts, which writes everything out. A child that another thread has just started holds
    /// the files that were open then until it becomes another program, and the mount is busy so
    /// long. One that has mounts of its own has this one as well, and the device belongs to the
    /// file system until it has ended.
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

/// Undoes a step after a failure; what goes wrong here is told, not raised over the failure.
fn undo(program: &str, args: &[&std::ffi::OsStr]) {
    let outcome = Client::new(program).args(args).within_s(30).run();
    if outcome.status != Some(0) {
        eprintln!("while cleaning up: {outcome}");
    }
}

/// `e2fsck -fn`: a complete check that changes nothing; panics unless it finds nothing.
pub fn assert_fsck_clean(device: &Path) {
    let outcome = fsck(device);
    assert!(outcome.status == Some(0), "{outcome}");
}

/// `e2fsck -fn`; a status of 0 says that it found nothing.
pub fn fsck(device: &Path) -> Outcome {
    Client::new("e2fsck")
        .arg("-fn")
        .arg(device)
        .within_s(300)
        .run()
}

/// The checksum, type and name of everything below `dir`, sorted by name: equal before and after
/// if and only if every file's bytes, every link's target and every name are.
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

/// The bytes of [`source_tree`] end with the crate that brings them to this.
const TREE_BYTES: u64 = 64 << 20;

/// A real source tree in `dir`: the crates that this workspace is locked to, as cargo unpacked
/// them, in the order of the lock until there are 64 MiB. What else the machine's registry holds
/// plays no part, so that the tree has one size everywhere.
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

/// The folders of the crates that the workspace's lock names, as far as cargo has unpacked them:
/// not those for other systems.
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

/// The bytes of the files under `folder`, by du(1).
fn disk_usage_bytes(folder: &Path) -> u64 {
    let said = Client::new("du").arg("-sb").arg(folder).ok().stdout;
    let number = said.split_whitespace().next().expect("a number");
    number.parse().expect("a number of bytes")
}
