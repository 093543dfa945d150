//! Requests as entries of the submission queue.

use std::os::fd::RawFd;

use io_uring::{opcode, squeue, types};

use super::Ring;
use crate::real_time::driver::{Descriptor, Request};

/// Operation codes that a ring must support. `IORING_OP_URING_CMD` is not among them, since only
/// ublk exports need it.
pub(super) const NEEDED: [u8; 14] = [
    opcode::Nop::CODE,
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Readv::CODE,
    opcode::WriteFixed::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Recv::CODE,
    opcode::SendMsg::CODE,
    opcode::Accept::CODE,
    opcode::Connect::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];

/// Offset that makes the kernel use the file's own position. It is used to read and write files
/// that carry messages, whose drivers ignore the position.
const NO_OFFSET: u64 = u64::MAX;

impl Ring {
    /// Returns the submission entry for `request`.
    pub(super) fn entry(&self, file: &Descriptor, request: &Request) -> squeue::Entry {
        match file.fixed() {
            // The same field of an entry holds a descriptor or an index into the table of
            // registered files; with `FIXED_FILE` it is an index.
            Some(place) => self
                .entry_of(types::Fd(place as RawFd), request)
                .flags(squeue::Flags::FIXED_FILE),
            None => self.entry_of(types::Fd(file.raw()), request),
        }
    }

    fn entry_of(&self, file: types::Fd, request: &Request) -> squeue::Entry {
        match *request {
            Request::Read { start, len, offset } => {
                if let Some(buffer) = self.registered(start, len as usize) {
                    let read = opcode::ReadFixed::new(file, start, len, buffer);
                    return read.offset(offset).build();
                }
                opcode::Read::new(file, start, len).offset(offset).build()
            }
            Request::Write {
                vectors,
                count,
                offset,
                flags,
            } => self.write_entry(file, vectors, count, offset, flags),
            Request::SyncData => opcode::Fsync::new(file)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
            Request::Allocate { offset, len, mode } => opcode::Fallocate::new(file, len)
                .offset(offset)
                .mode(mode)
                .build(),
            Request::ReadMessage { vectors, count } => opcode::Readv::new(file, vectors, count)
                .offset(NO_OFFSET)
                .build(),
            Request::WriteMessage { vectors, count } => opcode::Writev::new(file, vectors, count)
                .offset(NO_OFFSET)
                .build(),
            Request::Receive { start, len } => opcode::Recv::new(file, start, len).build(),
            Request::Send { message } => opcode::SendMsg::new(file, message)
                .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
                .build(),
            Request::Connect { address, len } => opcode::Connect::new(file, address, len).build(),
            Request::Accept => {
                let (nobody, nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
                opcode::Accept::new(file, nobody, nothing)
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            Request::Readable => opcode::PollAdd::new(file, libc::POLLIN as u32).build(),
            Request::Command { op, bytes } => opcode::UringCmd16::new(file, op).cmd(bytes).build(),
        }
    }

    fn write_entry(
        &self,
        file: types::Fd,
        vectors: *const libc::iovec,
        count: u32,
        offset: u64,
        flags: i32,
    ) -> squeue::Entry {
        if count == 1 {
            // SAFETY: the slot owns the vectors, and `count` says that there is one.
            let vector = unsafe { *vectors };
            let start = vector.iov_base.cast_const().cast::<u8>();
            if let Some(buffer) = self.registered(start, vector.iov_len) {
                return opcode::WriteFixed::new(file, start, vector.iov_len as u32, buffer)
                    .offset(offset)
                    .rw_flags(flags)
                    .build();
            }
        }
        opcode::Writev::new(file, vectors, count)
            .offset(offset)
            .rw_flags(flags)
            .build()
    }
}
