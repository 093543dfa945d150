//! A directory for one test, removed when the test passes and kept when it fails.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A fresh directory, removed on drop unless the thread is panicking.
///
/// The directory is created under `BIMETAL_TEST_DIR` or `/var/tmp`, on a file system on a disk:
/// `/tmp` can be a tmpfs, which has no direct I/O on older kernels. The path is short because the
/// name of a UNIX socket is limited to 107 bytes (unix(7)).
#[derive(Debug)]
pub struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    /// Creates the directory. `name` is a part of the directory's name, so that a person can
    /// recognize it.
    pub fn new(name: &str) -> Self {
        let base = std::env::var_os("BIMETAL_TEST_DIR").unwrap_or_else(|| "/var/tmp".into());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            PathBuf::from(base).join(format!("bimetal-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("mkdir {}: {e}", dir.display()));
        Self { dir }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the path of a file inside the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Creates a sparse file of `size_bytes` and returns its path.
    pub fn sparse(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.file(name);
        let file = std::fs::File::create(&path).expect("create a sparse file");
        file.set_len(size_bytes).expect("size a sparse file");
        path
    }

    /// Writes a text file and returns its path.
    pub fn text(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, text).expect("write a text file");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.dir.display());
        } else if let Err(e) = std::fs::remove_dir_all(&self.dir) {
            eprintln!("could not remove {}: {e}", self.dir.display());
        }
    }
}
