//! A request as a C program writes it, and the validated request that is made from it.
//!
//! This module must reject every request that would violate the protocol at the target, or would
//! make this library access memory outside of the program's buffer.

use std::ffi::c_void;

use bimetal_client::{Call, Op, Welcome};

use crate::failure::Failure;
use crate::memory::{Buffer, User};

pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;
pub(crate) const FLUSH: u8 = 3;
pub(crate) const DISCARD: u8 = 4;
pub(crate) const WRITE_ZEROES: u8 = 5;

const FUA: u8 = 1;
const KEEP_ALLOCATED: u8 = 2;

/// `struct brp_request`.
#[repr(C)]
pub struct RawRequest {
    user: *mut c_void,
    data: *mut c_void,
    offset_bytes: u64,
    length_bytes: u32,
    op: u8,
    flags: u8,
    reserved: u16,
}

/// A validated request.
pub(crate) struct Request {
    pub(crate) user: User,
    /// Buffer of a read or a write.
    pub(crate) buffer: Buffer,
    pub(crate) call: Checked,
}

/// Operation, range and flags of a validated request.
#[derive(Clone, Copy)]
pub(crate) struct Checked {
    op: Op,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
    keep_allocated: bool,
}

impl Checked {
    pub(crate) fn to_call(self) -> Call {
        Call {
            fua: self.fua,
            keep_allocated: self.keep_allocated,
            ..Call::new(self.op, self.offset_bytes, self.length_bytes)
        }
    }
}

impl RawRequest {
    /// Creates a request for a function that waits for the result, such as `brp_read`.
    pub(crate) fn new(
        op: u8,
        data: *mut c_void,
        offset_bytes: u64,
        length_bytes: u32,
        flags: u32,
    ) -> RawRequest {
        RawRequest {
            user: std::ptr::null_mut(),
            data,
            offset_bytes,
            length_bytes,
            op,
            // If the flags do not fit into the field, all bits of the field are set. The request is
            // then rejected, since it has unknown flags.
            flags: u8::try_from(flags).unwrap_or(u8::MAX),
            reserved: 0,
        }
    }

    /// Validates the request against the limits of the volume.
    pub(crate) fn checked(&self, export: &Welcome) -> Result<Request, Failure> {
        let (op, flags, bytes_max) = match self.op {
            READ => (Op::Read, 0, export.transfer_bytes_max),
            WRITE => (Op::Write, FUA, export.transfer_bytes_max),
            FLUSH => (Op::Flush, 0, 0),
            DISCARD => (Op::Discard, FUA, export.range_bytes_max),
            WRITE_ZEROES => (
                Op::WriteZeroes,
                FUA | KEEP_ALLOCATED,
                export.range_bytes_max,
            ),
            other => return Err(Failure::invalid(format!("there is no operation {other}"))),
        };
        if self.flags & !flags != 0 {
            return Err(Failure::invalid("the operation does not take these flags"));
        }
        if self.reserved != 0 {
            return Err(Failure::invalid("a reserved field is not zero"));
        }
        self.check_range(op, bytes_max, export)?;
        let buffer = match op {
            Op::Read | Op::Write => Buffer::new(self.data, self.length_bytes)
                .ok_or_else(|| Failure::invalid("data is NULL"))?,
            _ => Buffer::none(),
        };
        Ok(Request {
            user: User::new(self.user),
            buffer,
            call: Checked {
                op,
                offset_bytes: self.offset_bytes,
                length_bytes: self.length_bytes,
                fua: self.flags & FUA != 0,
                keep_allocated: self.flags & KEEP_ALLOCATED != 0,
            },
        })
    }

    fn check_range(&self, op: Op, bytes_max: u32, export: &Welcome) -> Result<(), Failure> {
        let (offset, length) = (self.offset_bytes, self.length_bytes);
        if op == Op::Flush {
            return match (offset, length) {
                (0, 0) => Ok(()),
                _ => Err(Failure::invalid("a flush has no range")),
            };
        }
        if length == 0 || length > bytes_max {
            let words = format!("a length of {length} bytes is not within 1 to {bytes_max}");
            return Err(Failure::invalid(words));
        }
        let block = export.block_bytes;
        if !offset.is_multiple_of(block.into()) || !length.is_multiple_of(block) {
            let words = format!("{length} bytes at {offset} are no whole blocks of {block}");
            return Err(Failure::invalid(words));
        }
        let size = export.size_bytes;
        if offset > size || u64::from(length) > size - offset {
            let words = format!("{length} bytes at {offset} leave the volume of {size} bytes");
            return Err(Failure::invalid(words));
        }
        Ok(())
    }
}

// The sizes must match the structures in the header, since a different size would change the
// meaning of the later fields.
const _: () = assert!(size_of::<RawRequest>() == 32 || size_of::<usize>() != 8);
const _: () = assert!(size_of::<crate::RawCompletion>() == 16 || size_of::<usize>() != 8);
const _: () = assert!(size_of::<crate::RawVolume>() == 32);
