//! Finds the process that has locked a file, as far as the kernel reports that process in
//! `/proc/locks` and `/proc/PID/comm` (proc(5)).

use std::fs::{Metadata, read_to_string};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::System;
use super::place::DeviceNumber;

/// A process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Locker {
    pid: u32,
    /// Name of the program; empty if the process is gone.
    name: String,
    /// False if the process has ended, in which case the kernel will soon release its locks.
    pub(crate) is_running: bool,
}

/// Returns the process that has locked the file `found`, or `None` if the kernel does not report
/// the process.
pub(crate) fn of_lock(found: &Metadata, system: &System) -> Option<Locker> {
    let locks = read_to_string(system.proc.join("locks")).ok()?;
    let pid = locker(&locks, DeviceNumber::of_dev(found.dev()), found.ino())?;
    Some(Locker::of(pid, &system.proc))
}

/// Finds in the table `locks` the process that has locked a file as a whole (`flock(2)`).
fn locker(locks: &str, device: DeviceNumber, inode: u64) -> Option<u32> {
    let file = format!("{:02x}:{:02x}:{inode}", device.major, device.minor);
    // Fields of a row: NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END. The row of a
    // waiting process has an arrow after the number.
    let mut rows = locks.lines().map(|row| row.split_whitespace().skip(1));
    rows.find_map(|mut row| {
        let (kind, _, _, pid, place) = (
            row.next()?,
            row.next()?,
            row.next()?,
            row.next()?,
            row.next()?,
        );
        (kind == "FLOCK" && place == file).then(|| pid.parse().ok())?
    })
}

impl Locker {
    fn of(pid: u32, proc: &Path) -> Locker {
        let dir = proc.join(pid.to_string());
        let read = |file: &str| read_to_string(dir.join(file)).unwrap_or_default();
        // In `stat`, the state follows the name, which is in brackets and can hold any character.
        // The state Z is that of a process that has ended but has not yet been reaped by its
        // parent.
        let stat = read("stat");
        let state = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .chars()
            .next();
        Locker {
            pid,
            name: read("comm").trim_end().to_owned(),
            is_running: state.is_some_and(|state| !matches!(state, 'Z' | 'X')),
        }
    }
}

/// Describes the process that holds the lock, as a part of a sentence. The program name is escaped
/// because it can hold any character.
pub(crate) fn in_words(locker: Option<&Locker>) -> String {
    match locker {
        Some(locker) if locker.is_running => {
            format!(
                "process {} ({})",
                locker.pid,
                bimetal_proto::Escaped(&locker.name)
            )
        }
        Some(locker) => format!(
            "process {}, which has ended, but whose last requests the kernel has not completed yet",
            locker.pid
        ),
        None => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_locks_names_the_process() {
        // Rows as in proc(5), section "/proc/locks", with the row of a waiting process.
        let locks = "1: POSIX  ADVISORY  READ  5433 08:01:7864448 128 128\n\
                     2: FLOCK  ADVISORY  WRITE 2001 08:01:7864554 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 2002 08:01:7864554 0 EOF\n\
                     3: OFDLCK ADVISORY  WRITE -1 08:01:7864555 0 EOF\n";
        let disk = |minor| DeviceNumber { major: 8, minor };
        let device = disk(1);
        assert_eq!(locker(locks, device, 7_864_554), Some(2001));
        assert_eq!(locker(locks, device, 7_864_448), None);
        assert_eq!(locker(locks, device, 7_864_555), None);
        assert_eq!(locker(locks, disk(2), 7_864_554), None);
    }

    #[test]
    fn a_process_runs_or_has_ended() {
        let own = Locker::of(std::process::id(), Path::new("/proc"));
        assert!(own.is_running && !own.name.is_empty());
        let gone = Locker::of(std::process::id(), Path::new("/no-proc"));
        assert!(!gone.is_running);
        assert!(in_words(Some(&gone)).contains("has ended"));
    }
}
