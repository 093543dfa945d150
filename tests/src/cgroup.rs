//! A memory cgroup for one test, in either version of the kernel's interface. Needs root.
//!
//! Version 1 (Documentation/admin-guide/cgroup-v1/memory.rst) has a separate hierarchy for the
//! memory controller; version 2 (admin-guide/cgroup-v2.rst) has one hierarchy, in which a group
//! enables the controller for its children.

use std::fs;
use std::path::{Path, PathBuf};

/// A cgroup with a memory limit. Processes enter it through [`MemoryGroup::wrapper`].
#[derive(Debug)]
pub struct MemoryGroup {
    dir: PathBuf,
    /// Name of the file that holds the limit. If no limit is wanted, the text `unlimited` is
    /// written to this file.
    limit_file: &'static str,
    unlimited: &'static str,
}

impl MemoryGroup {
    /// Creates a group that can use at most `limit_bytes` of memory, page cache included.
    ///
    /// # Panics
    /// If the memory controller can be used in neither version of the interface, so that the test
    /// cannot run on this machine.
    pub fn new(name: &str, limit_bytes: u64) -> Self {
        let name = format!("bimetal-{name}-{}", std::process::id());
        let group = Self::version_1(&name)
            .or_else(|| Self::version_2(&name))
            .unwrap_or_else(|| {
                panic!(
                    "no usable memory controller under /sys/fs/cgroup; the test needs root and one"
                )
            });
        group.write(group.limit_file, &limit_bytes.to_string());
        group
    }

    fn version_1(name: &str) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/memory");
        if !root.join("memory.limit_in_bytes").exists() {
            return None;
        }
        let dir = root.join(name);
        fs::create_dir(&dir).ok()?;
        Some(Self {
            dir,
            limit_file: "memory.limit_in_bytes",
            unlimited: "-1",
        })
    }

    fn version_2(name: &str) -> Option<Self> {
        let root = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = root.into_iter().find(|r| {
            fs::read_to_string(r.join("cgroup.controllers"))
                .is_ok_and(|c| c.split_whitespace().any(|word| word == "memory"))
        })?;
        // A group other than the root cannot contain processes and also enable a controller for its
        // children. So the new group is a child of the root.
        fs::write(root.join("cgroup.subtree_control"), "+memory").ok()?;
        let dir = root.join(name);
        fs::create_dir(&dir).ok()?;
        Some(Self {
            dir,
            limit_file: "memory.max",
            unlimited: "max",
        })
    }

    /// Returns the first words of a command line. The command that follows these words runs inside
    /// the group.
    pub fn wrapper(&self) -> Vec<String> {
        let script = "echo $$ > \"$0\" && exec \"$@\"";
        let procs = self.dir.join("cgroup.procs").display().to_string();
        vec!["sh".into(), "-c".into(), script.into(), procs]
    }

    /// Returns the pids of the processes in the group.
    pub fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|l| l.parse().ok()).collect()
    }

    /// Returns the number of times that the group reached its limit. A number above 0 proves that
    /// the test was under memory pressure.
    pub fn times_at_limit(&self) -> u64 {
        if let Ok(text) = fs::read_to_string(self.dir.join("memory.failcnt")) {
            return text.trim().parse().expect("memory.failcnt is a number");
        }
        let events = fs::read_to_string(self.dir.join("memory.events")).expect("memory.events");
        let max = events.lines().find_map(|l| l.strip_prefix("max "));
        max.and_then(|v| v.parse().ok())
            .expect("a line `max N` in memory.events")
    }

    /// Removes the limit of the group, which unblocks processes that wait for memory.
    pub fn lift(&self) {
        self.write(self.limit_file, self.unlimited);
    }

    fn write(&self, file: &str, value: &str) {
        let path = self.dir.join(file);
        fs::write(&path, value).unwrap_or_else(|e| panic!("{value} > {}: {e}", path.display()));
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Unless the test failed, all processes of the group have exited and the group can be
        // removed. After a failure the group stays, without a limit.
        if let Err(e) = fs::write(self.dir.join(self.limit_file), self.unlimited) {
            eprintln!("could not lift the limit of {}: {e}", self.dir.display());
        }
        if let Err(e) = fs::remove_dir(&self.dir) {
            eprintln!("could not remove {}: {e}", self.dir.display());
        }
    }
}
