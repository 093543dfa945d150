//! System calls that are not operations of a driver, such as reading the clock, closing a
//! descriptor, and locking memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Instant as Monotonic;

use super::limits::ProcessLimit;

/// Reads the monotonic clock; no other code reads it.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the seam through which real time enters"
)]
pub(super) fn monotonic_now() -> Monotonic {
    Monotonic::now()
}

/// Returns the time of day in seconds since 1970, for labels.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the seam through which real time enters"
)]
pub(crate) fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 has no label worth showing.
    since.map_or(0, |duration| duration.as_secs())
}

/// Makes reads and writes of a descriptor return an error where they would otherwise wait.
///
/// # Errors
/// The errors of `fcntl(2)`.
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let fd = fd.as_raw_fd();
    // SAFETY: the call takes and returns integers; the descriptor is open.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        flags >= 0 && libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) >= 0
    };
    match set {
        true => Ok(()),
        false => Err(io::Error::last_os_error()),
    }
}

/// Fills `out` with random bytes of the operating system.
pub(crate) fn random_bytes(out: &mut [u8]) -> io::Result<()> {
    use std::io::Read as _;
    std::fs::File::open("/dev/urandom")?.read_exact(out)
}

/// Returns the kernel's identifier of the current boot, which differs after each start of the
/// machine.
pub(crate) fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits = text.chars().filter_map(|c| c.to_digit(16));
    let mut id = [0; 16];
    let mut count = 0;
    for digit in digits {
        let byte = id.get_mut(count / 2).ok_or(io::ErrorKind::InvalidData)?;
        *byte = *byte << 4 | digit as u8;
        count += 1;
    }
    if count == 32 {
        Ok(id)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Returns the effective user of this process.
pub(super) fn effective_user() -> libc::uid_t {
    // SAFETY: the call takes no argument and cannot fail.
    unsafe { libc::geteuid() }
}

/// Closes a descriptor that has no owner yet.
pub(super) fn close(fd: i32) {
    // SAFETY: the descriptor came from a completion that no other code has seen.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) });
}

/// `PR_SET_IO_FLUSHER` of the kernel's `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Blocks the signals of a thread other than the main thread, which handles them.
pub(crate) fn block_signals() {
    // SAFETY: the set is initialised by `sigfillset` before it is read; both calls use their
    // pointer to the set only until they return.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut set);
        // The only possible error is an invalid first argument.
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
}

/// Prepares a thread other than the main thread. Blocks the signals of the thread, and marks the
/// thread as part of the I/O path (`PR_SET_IO_FLUSHER` applies to a single thread).
pub(crate) fn begin_thread() {
    block_signals();
    // SAFETY: this option of `prctl` takes four integers and no pointers.
    unsafe {
        // An error is ignored here. Either all threads have the needed capability or none of them
        // has it, and `keep_memory_resident` reports that it is missing.
        libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
    }
}

/// The result of [`keep_memory_resident`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLock {
    /// Reason why memory could not be locked; `None` if it was locked.
    pub lock_error: Option<String>,
    /// Reason why the kernel refused to treat the process as part of the I/O path; `None` if it
    /// accepted.
    pub flusher_error: Option<String>,
}

/// Prepares the process to serve the machine that it runs on, under memory pressure.
///
/// The kernel might be waiting for this very process to clean dirty pages, so serving a write must
/// never need memory that only cleaning can free: - `PR_SET_IO_FLUSHER` tells the kernel that the
/// process is part of the I/O path: allocations of the process then never wait for write-back
/// (Linux 5.6, needs `CAP_SYS_RESOURCE`). - The heap is grown by `heap_reserve_bytes` and touched,
/// so that the small allocations of a request find resident memory. The heap is configured never to
/// shrink, not to serve requests below 64 MiB by fresh mappings, and not to give threads heaps of
/// their own. - The stack of the calling thread, which must be the thread that serves requests, is
/// grown: only the main thread's stack grows by faults, which `mlockall` cannot foresee
/// (mlockall(2), notes). - `mlockall` keeps all present and future memory resident.
///
/// A step that the limits of the process forbid is reported in the result and is not an error: the
/// server works without the step. Only if its own machine mounts its devices is every step needed.
pub fn keep_memory_resident(heap_reserve_bytes: usize) -> MemoryLock {
    let mut outcome = MemoryLock::default();
    // SAFETY: this option takes four integers and no pointers.
    let flusher = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if flusher != 0 {
        outcome.flusher_error = Some(io::Error::last_os_error().to_string());
    }
    grow_heap(heap_reserve_bytes);
    grow_stack();
    // SAFETY: the call takes flags only.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        outcome.lock_error = Some(cannot_lock(&io::Error::last_os_error()));
    }
    outcome
}

/// Describes why memory cannot be locked, with the limit and the amount of memory needed.
fn cannot_lock(error: &io::Error) -> String {
    match (error.raw_os_error(), ProcessLimit::LockedBytes.value()) {
        (Some(libc::ENOMEM | libc::EPERM), Some(bytes)) => {
            let needed_kib =
                mapped_kib().map_or(String::new(), |kib| format!("; {kib} KiB are needed"));
            format!(
                "{error}: {}{needed_kib}",
                ProcessLimit::LockedBytes.words(bytes)
            )
        }
        _ => error.to_string(),
    }
}

/// Returns the size of this process's mappings in KiB, which is the amount of memory that must be
/// locked.
fn mapped_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("VmSize:"))?;
    size.split_whitespace().next()?.parse().ok()
}

/// Grows the heap by `bytes` and configures it never to shrink.
#[cfg(target_env = "gnu")]
fn grow_heap(bytes: usize) {
    const LARGEST_FROM_HEAP_BYTES: i32 = 64 << 20;
    // SAFETY: these options take an integer each and change only the allocator's thresholds.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST_FROM_HEAP_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    // Allocate `bytes` in pieces of 1 MiB, which are too small to get mappings of their own. All
    // pieces are held at the same time, so that the heap grows by their total size. Then the pieces
    // return to the heap.
    let pieces: Vec<Vec<u8>> = (0..bytes.div_ceil(1 << 20))
        .map(|_| std::hint::black_box(vec![1; 1 << 20]))
        .collect();
    drop(pieces);
}

/// Grows the stack by touching 1 MiB of it. The deepest chain of calls was seen to use 240 KiB
/// without optimisation. The kernel never reclaims memory by which a stack has grown.
#[inline(never)]
fn grow_stack() {
    const DEEPEST_BYTES: usize = 1 << 20;
    std::hint::black_box(&mut [1_u8; DEEPEST_BYTES]);
}

#[cfg(not(target_env = "gnu"))]
fn grow_heap(_bytes: usize) {}
