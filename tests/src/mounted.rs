//! A volume that `bimetal mount` has mounted, for the tests of that command.

use crate::client::Client;
use crate::deadline::eventually;
use crate::server::{Server, binary};
use crate::volume::Volume;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A mounted volume. Dropping it unmounts the volume.
pub struct Mounted {
    /// The folder on which the volume is mounted.
    pub folder: PathBuf,
    /// Path that the server printed when it mounted the volume: the path of the volume's file or,
    /// if the volume is served as a loop device, the path of that device.
    pub path: PathBuf,
    server: Option<Server>,
}

impl Mounted {
    /// Mounts a volume on a folder beside its configuration.
    ///
    /// # Panics
    /// If the volume cannot be mounted.
    pub fn new(volume: &Volume, options: &[&str]) -> Mounted {
        let folder = volume.dir().file("m");
        std::fs::create_dir_all(&folder).expect("a folder");
        let place = folder.to_str().expect("a path in UTF-8");
        let words = [&["vol", place], options].concat();
        let (server, path) = Server::mount_under(&[], volume.config(), &words);
        Mounted {
            folder,
            path,
            server: Some(server),
        }
    }

    /// Returns the path of the volume's file.
    pub fn file(&self) -> PathBuf {
        self.folder.join("vol")
    }

    /// Opens the volume's file for reads and writes, with the given flags of open(2).
    ///
    /// # Panics
    /// If the file cannot be opened.
    pub fn open(&self, flags: i32) -> File {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(self.file());
        file.expect("the file of a mounted volume")
    }

    /// Returns the command that unmounts the volume; the caller runs it.
    ///
    /// # Panics
    /// If the binary does not build.
    pub fn unmount(&self) -> Client {
        unmount(&self.folder)
    }

    /// Removes the server from this value and returns it, so that the caller can stop or kill it.
    ///
    /// # Panics
    /// If the server has already been removed.
    pub fn server(&mut self) -> Server {
        self.server.take().expect("the server was not taken yet")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mounted(&self.folder) {
            let outcome = self.unmount().arg("--force").within_s(30).run();
            if outcome.status != Some(0) {
                eprintln!("while cleaning up: {outcome}");
            }
        }
    }
}

/// Returns the command that unmounts a folder; the caller runs it.
pub fn unmount(folder: &Path) -> Client {
    Client::new(binary())
        .arg("unmount")
        .arg(folder)
        .within_s(60)
}

/// Returns whether a file system of `bimetal mount` is mounted on a folder.
///
/// # Panics
/// If the table of mounts cannot be read.
pub fn is_mounted(folder: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").expect("the table of mounts");
    let place = format!(" {} fuse.bimetal ", folder.display());
    table.contains(&place)
}

/// Returns the backing file that the loop driver reports for a device; `None` if the device is not
/// an attached loop device.
pub fn behind(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let file = format!("/sys/block/{name}/loop/backing_file");
    Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
}

/// Waits until a loop device is detached. The driver releases the backing file when the last
/// process that has the device open closes it.
///
/// # Panics
/// If the device is still attached after 30 s.
pub fn wait_until_gone(device: &Path) {
    eventually(30, "the loop device is gone", || {
        behind(device).is_none().then_some(())
    });
}
