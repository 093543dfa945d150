//! The memory limit of this process's cgroup, in both versions of the kernel's interface
//! (`Documentation/admin-guide/cgroup-v1/memory.rst` and `cgroup-v2.rst`).
//!
//! A process that exceeds the limit is killed without a message, so a server by default uses less
//! memory than the limit.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Smallest value in a limit file that means "no limit". If no limit is set, version 1 of the
/// kernel's interface shows the largest multiple of the page size that fits into a signed 64-bit
/// number.
const UNLIMITED_MIN: u64 = 1 << 60;

/// Returns the lowest memory limit, in bytes, among the cgroups that contain this process; `None`
/// if no limit is set or the kernel reports none.
pub(crate) fn memory_limit_bytes() -> Option<u64> {
    limit_below(Path::new("/"))
}

/// Returns the lowest memory limit for a system whose `/proc` and `/sys` are in the folder `root`.
fn limit_below(root: &Path) -> Option<u64> {
    let groups = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounted = root.join("sys/fs/cgroup");
    let limits = groups.lines().filter_map(|line| {
        // The line has the form HIERARCHY:CONTROLLERS:PATH. In version 2 the controllers are empty.
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        if controllers.is_empty() {
            let unified = [mounted.clone(), mounted.join("unified")];
            let of_mount = |mount: PathBuf| least_on_the_way(&mount, path, "memory.max");
            return unified.into_iter().filter_map(of_mount).min();
        }
        let has_memory = controllers.split(',').any(|name| name == "memory");
        let mount = mounted.join("memory");
        has_memory.then(|| least_on_the_way(&mount, path, "memory.limit_in_bytes"))?
    });
    limits.min()
}

/// Returns the lowest limit in the files called `name` of the cgroup at `path` and of all its
/// ancestors. In a container, `path` can be a path on the host, which does not exist in the
/// container. In this case only the root of `mount` is read. It is the container's own cgroup.
fn least_on_the_way(mount: &Path, path: &str, name: &str) -> Option<u64> {
    let group = mount.join(path.trim_start_matches('/'));
    let inside = group.ancestors().take_while(|dir| dir.starts_with(mount));
    let limits = inside.filter_map(|dir| read_to_string(dir.join(name)).ok());
    let numbers = limits.filter_map(|text| text.trim().parse().ok());
    numbers.filter(|limit| *limit < UNLIMITED_MIN).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the memory limit for a system that has only these files.
    fn limit(name: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = format!("bimetal-cgroup-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(root);
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let limit = limit_below(&root);
        std::fs::remove_dir_all(root).expect("it was made above");
        limit
    }

    #[test]
    fn version_2_counts_the_group_and_those_above_it() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let of = |own, above| {
            let files = [
                group,
                ("sys/fs/cgroup/a/b/memory.max", own),
                ("sys/fs/cgroup/a/memory.max", above),
            ];
            limit("v2", &files)
        };
        assert_eq!(of("134217728\n", "max\n"), Some(128 << 20));
        assert_eq!(of("max\n", "268435456\n"), Some(256 << 20));
        assert_eq!(of("268435456\n", "134217728\n"), Some(128 << 20));
        assert_eq!(of("max\n", "max\n"), None);
    }

    #[test]
    fn version_1_has_a_hierarchy_for_memory() {
        let groups = "9:name=systemd:/\n4:cpu,memory:/a\n0::/\n";
        let of = |bytes| {
            let file = "sys/fs/cgroup/memory/a/memory.limit_in_bytes";
            limit("v1", &[("proc/self/cgroup", groups), (file, bytes)])
        };
        assert_eq!(of("134217728\n"), Some(128 << 20));
        // If no limit was set, the kernel shows `LONG_MAX` rounded down to whole pages.
        assert_eq!(of("9223372036854771712\n"), None);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let hosts = ("proc/self/cgroup", "0::/docker/0123\n");
        let own = ("sys/fs/cgroup/memory.max", "67108864\n");
        assert_eq!(limit("container", &[hosts, own]), Some(64 << 20));
        assert_eq!(limit("none", &[hosts]), None);
        assert_eq!(limit("no-proc", &[own]), None);
    }
}
