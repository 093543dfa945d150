//! A volume that `bimetal mount` has mounted, for the tests of that.

use crate::client::Client;
use crate::deadline::eventually;
use crate::server::{Server, binary};
use crate::volume::Volume;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A mounted volume. What is left of it goes with the value.
pub struct Mounted {
    /// The folder.
    pub folder: PathBuf,
    /// The file, or the loop device over it.
    pub path: PathBuf,
    server: Option<Server>,
}

impl Mounted {
    /// Mounts a volume on a folder beside its configuration.
    ///
    /// # Panics
    /// When that fails.
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

    /// The file of the volume.
    ///
    /// # Panics
    /// When that fails.
    pub fn file(&self) -> PathBuf {
        self.folder.join("vol")
    }

    /// Opens the file with these flags for reads and writes.
    ///
    /// # Panics
    /// When that fails.
    pub fn open(&self, flags: i32) -> File {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(self.file());
        file.expect("the file of a mounted volume")
    }

    /// The command that unmounts it.
    ///
    /// # Panics
    /// When that fails.
    pub fn unmount(&self) -> Client {
        unmount(&self.folder)
    }

    /// Takes the server out.
    ///
    /// # Panics
    /// When that fails.
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

/// The command that unmounts a folder.
pub fn unmount(folder: &Path) -> Client {
    Client::new(binary())
        .arg("unmount")
        .arg(folder)
        .within_s(60)
}

/// Whether `bimetal mount` has something mounted on a folder.
///
/// # Panics
/// Without a table of mounts.
pub fn is_mounted(folder: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").expect("the table of mounts");
    let place = format!(" {} fuse.bimetal ", folder.display());
    table.contains(&place)
}

/// The file that the driver says is behind a loop device, if it is one.
pub fn behind(device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let file = format!("/sys/block/{name}/loop/backing_file");
    Some(std::fs::read_to_string(file).ok()?.trim().to_owned())
}

/// A loop device is gone: the driver lets a file go when the last who has it open is gone.
///
/// # Panics
/// When it stays.
pub fn wait_until_gone(device: &Path) {
    eventually(30, "the loop device is gone", || {
        behind(device).is_none().then_some(())
    });
}
