//! Attempts to execute operations without waiting, by one system call each.

use std::io;
use std::os::fd::RawFd;

use crate::real_time::driver::Request;

/// Executes the request if that is possible without waiting. Returns the result, or `None` if the
/// operation must wait until the kernel reports a change of the file.
pub(super) fn attempt(fd: RawFd, request: &Request) -> Option<i32> {
    let mut watched = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        match call(fd, request, &mut watched) {
            0 if matches!(request, Request::Readable) => return None,
            1.. if matches!(request, Request::Readable) => return Some(watched.revents.into()),
            // The kernel moves less than 2 GiB at a time.
            result @ 0.. => return Some(result as i32),
            _ => match (io::Error::last_os_error().raw_os_error(), request) {
                (Some(libc::EINTR), _) => {}
                (Some(libc::EINPROGRESS | libc::EALREADY), Request::Connect { .. }) => return None,
                (Some(libc::EISCONN), Request::Connect { .. }) => return Some(0),
                // The backlog of the UNIX listener is full, and no event on this file reports that
                // there is room again.
                (Some(libc::EAGAIN), Request::Connect { .. }) => return Some(-libc::EAGAIN),
                (Some(libc::EAGAIN), _) => return None,
                (error, _) => return Some(-error.unwrap_or(libc::EIO)),
            },
        }
    }
}

fn call(fd: RawFd, request: &Request, watched: &mut libc::pollfd) -> isize {
    // SAFETY: the slot of the operation owns the memory that the request refers to. The slot keeps
    // this memory until the completion is reported, which has not happened. `watched` lives through
    // the call.
    unsafe {
        match *request {
            Request::Receive { start, len } => {
                libc::recv(fd, start.cast(), len as usize, libc::MSG_DONTWAIT)
            }
            Request::Send { message } => {
                libc::sendmsg(fd, message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            }
            Request::ReadMessage { vectors, count } => libc::readv(fd, vectors, count as i32),
            Request::WriteMessage { vectors, count } => libc::writev(fd, vectors, count as i32),
            Request::Connect { address, len } => libc::connect(fd, address, len) as isize,
            Request::Accept => {
                let (nobody, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
                libc::accept4(fd, nobody, nothing, libc::SOCK_CLOEXEC) as isize
            }
            Request::Readable => libc::poll(watched, 1, 0) as isize,
            Request::Read { .. }
            | Request::Write { .. }
            | Request::SyncData
            | Request::Allocate { .. }
            | Request::Command { .. } => unreachable!("these wait, and threads do that"),
        }
    }
}
