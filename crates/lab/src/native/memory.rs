//! Limits the memory of a run to less than the memory of the machine. A cgroup limits the memory
//! itself, and a separate limit applies to the dirty pages of one device. The limit on dirty pages
//! is the same fraction of memory as in Linux 2.6.26. This module must never change a setting of
//! the whole machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::journal::{Change, Journal};
use super::{NativeError, io_error, sysfs};

/// Name of the cgroup of a run.
const NAME: &str = "bimetal-lab";
/// Divisor of the memory limit. The quotient is the limit on dirty pages: a tenth of the memory, as
/// in Linux 2.6.26 (`dirty_ratio`).
pub(super) const DIRTY_PART: u64 = 10;

/// Paths of the memory cgroups of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    /// Folder in which the cgroup of a run is created.
    top: PathBuf,
    /// Folder of the cgroup of this process.
    own: PathBuf,
    /// Name of the file with the memory limit of a cgroup.
    limit: &'static str,
}

impl Groups {
    /// Finds the memory cgroups of this machine.
    ///
    /// # Errors
    /// If memory cannot be limited on this machine.
    pub(super) fn find() -> Result<Groups, NativeError> {
        let text = |path: &str| {
            fs::read_to_string(path).map_err(|source| io_error(Path::new(path), source))
        };
        let groups = Groups::of(&text("/proc/self/mountinfo")?, &text("/proc/self/cgroup")?);
        let missing = || {
            NativeError::Refused(
                "`memory` needs control groups with the memory controller, which are not mounted \
                here; omit `memory`"
                    .to_owned(),
            )
        };
        let groups = groups.ok_or_else(missing)?;
        if groups.limit == "memory.max" {
            let path = groups.top.join("cgroup.subtree_control");
            let on = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
            if !on.split_whitespace().any(|name| name == "memory") {
                return Err(missing());
            }
        }
        Ok(groups)
    }

    /// Finds the memory cgroups from the texts of `mountinfo` and `cgroup` (proc(5), cgroups(7)).
    /// Version 1 of cgroups has a separate mount for the memory controller; version 2 has one mount
    /// for all controllers.
    fn of(mountinfo: &str, cgroup: &str) -> Option<Groups> {
        let mount = |kind: &str, option: &str| {
            mountinfo.lines().find_map(|line| {
                let (front, back) = line.split_once(" - ")?;
                let mut back = back.split(' ');
                let is_kind = back.next() == Some(kind);
                let options = back.nth(1)?;
                let fits = option.is_empty() || options.split(',').any(|own| own == option);
                let place = front.split(' ').nth(4)?;
                (is_kind && fits).then(|| PathBuf::from(place))
            })
        };
        let own = |controller: &str| {
            cgroup.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let named = fields.next()?.split(',').any(|own| own == controller);
                named
                    .then(|| fields.next())?
                    .map(|path| path.trim_start_matches('/').to_owned())
            })
        };
        let (top, own, limit) = match mount("cgroup", "memory") {
            Some(top) => (top, own("memory")?, "memory.limit_in_bytes"),
            None => (mount("cgroup2", "")?, own("")?, "memory.max"),
        };
        Some(Groups {
            own: top.join(own),
            top,
            limit,
        })
    }

    /// Moves this process to a new cgroup with a limit of `bytes` bytes of memory. Returns the path
    /// of the file with the limit.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn enter(&self, bytes: u64, journal: &mut Journal) -> Result<PathBuf, NativeError> {
        let path = self.top.join(NAME);
        // A process in a container possibly cannot see its own cgroup. The process then moves to
        // the top cgroup after the run.
        let from = if self.own.exists() {
            &self.own
        } else {
            &self.top
        };
        journal.record(Change::Group {
            path: path.clone(),
            from: from.clone(),
        })?;
        fs::create_dir_all(&path).map_err(|source| io_error(&path, source))?;
        sysfs::set(&path.join(self.limit), &bytes.to_string())?;
        let members = path.join("cgroup.procs");
        let me = std::process::id().to_string();
        fs::write(&members, me).map_err(|source| io_error(&members, source))?;
        Ok(path.join(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_groups_are_found() {
        let first = "30 20 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            31 20 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
            32 20 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let of = Groups::of(first, "4:memory:/user/x\n0::/\n").unwrap();
        assert_eq!(of.top, Path::new("/sys/fs/cgroup/memory"));
        assert_eq!(of.own, Path::new("/sys/fs/cgroup/memory/user/x"));
        assert_eq!(of.limit, "memory.limit_in_bytes");
        let second = "32 20 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let of = Groups::of(second, "0::/user.slice\n").unwrap();
        assert_eq!(of.own, Path::new("/sys/fs/cgroup/user.slice"));
        assert_eq!(of.limit, "memory.max");
        assert_eq!(Groups::of("", "0::/\n"), None);
    }
}
