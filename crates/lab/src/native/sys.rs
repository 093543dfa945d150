//! System calls that the libraries in use do not provide: for loop devices, for counters of
//! tracepoints, and for a private mount namespace.
//!
//! Each call passes integers, or a structure that lives as long as the call. This module must never
//! make a decision.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `LOOP_CONFIGURE` and related commands of `linux/loop.h`.
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_ADD: libc::Ioctl = 0x4C80;
const LOOP_CTL_REMOVE: libc::Ioctl = 0x4C81;
/// Flag: the last close of the device detaches the backing file.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_config`, including its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// The fields `lo_device`, `lo_inode`, `lo_rdevice`, `lo_offset` and `lo_sizelimit`.
    numbers: [u64; 5],
    /// `lo_number`, `lo_encrypt_type` and `lo_encrypt_key_size`.
    more_numbers: [u32; 3],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
    reserved: [u64; 8],
}

/// `PERF_TYPE_TRACEPOINT`, `PERF_FLAG_FD_CLOEXEC` and the commands of `linux/perf_event.h`.
const PERF_TYPE_TRACEPOINT: u64 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: libc::Ioctl = 0x2400;
const PERF_EVENT_IOC_SET_FILTER: libc::Ioctl = 0x4008_2406;
/// Number of 8-byte words of `struct perf_event_attr` in its first version. Every kernel accepts
/// this version.
const PERF_ATTR_WORDS: usize = 8;

fn answer(result: libc::c_int) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates the loop device with this number, through `/dev/loop-control`.
pub(super) fn loop_add(control: &File, number: u32) -> io::Result<()> {
    // SAFETY: takes integers; the descriptor is open.
    answer(unsafe {
        libc::ioctl(
            control.as_raw_fd(),
            LOOP_CTL_ADD,
            libc::c_ulong::from(number),
        )
    })
}

/// Removes the loop device with this number. The device must not be in use.
pub(super) fn loop_remove(control: &File, number: u32) -> io::Result<()> {
    let number = libc::c_ulong::from(number);
    // SAFETY: takes integers; the descriptor is open.
    answer(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_REMOVE, number) })
}

/// Attaches a backing file to a loop device. The device accesses the file without the page cache.
/// The file stays attached until the last user closes the device.
pub(super) fn loop_configure(device: &File, backing: &File) -> io::Result<()> {
    let config = LoopConfig {
        fd: backing.as_raw_fd() as u32,
        block_size: 0,
        numbers: [0; 5],
        more_numbers: [0; 3],
        flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        names: [0; 160],
        init: [0; 2],
        reserved: [0; 8],
    };
    // SAFETY: the structure is the one that the command reads, and lives until the call returns.
    answer(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) })
}

/// Makes the kernel detach the backing file from a loop device as soon as no program has the device
/// open.
pub(super) fn loop_clear(device: &File) -> io::Result<()> {
    // SAFETY: takes integers; the descriptor is open.
    answer(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD, 0) })
}

/// Gives this thread a private mount namespace. Later mounts are visible only to this thread and
/// its children, and disappear when the last of these has ended.
pub(super) fn own_mounts() -> io::Result<()> {
    // SAFETY: takes flags; descriptors stay shared.
    answer(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    let private = rustix::mount::MountPropagationFlags::PRIVATE;
    let all = rustix::mount::MountPropagationFlags::REC;
    Ok(rustix::mount::mount_change("/", private | all)?)
}

/// Opens and starts a counter of a tracepoint on one processor. Reading the file returns the count
/// as eight bytes.
pub(super) fn count_events(tracepoint: u64, filter: &CStr, processor: u32) -> io::Result<File> {
    let mut words = [0_u64; PERF_ATTR_WORDS];
    words[0] = PERF_TYPE_TRACEPOINT | (size_of_val(&words) as u64) << 32;
    words[1] = tracepoint;
    // The flag `disabled`: the counter does not count until its filter is set.
    words[5] = 1;
    // SAFETY: the structure has the length that it states, and lives until the call returns. The
    // first -1 selects every process, and the second -1 means that there is no group.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            words.as_ptr(),
            -1,
            processor as libc::c_int,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
    // SAFETY: the text ends in a zero and lives until the call returns.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), PERF_EVENT_IOC_SET_FILTER, filter.as_ptr()) })?;
    // SAFETY: takes integers; the descriptor is open.
    answer(unsafe { libc::ioctl(fd.as_raw_fd(), PERF_EVENT_IOC_ENABLE, 0) })?;
    Ok(File::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structure `loop_config` in `linux/loop.h` consists of two numbers of 4 bytes, a
    /// `loop_info64` of 232 bytes, and 64 reserved bytes. The flags are at offset 52 of
    /// `loop_info64`, directly before the names.
    #[test]
    fn the_structure_is_that_of_the_kernel() {
        assert_eq!(size_of::<LoopConfig>(), 4 + 4 + 232 + 64);
        assert_eq!(std::mem::offset_of!(LoopConfig, flags), 8 + 52);
    }
}
