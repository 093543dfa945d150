//! The single request type that every layer accepts, and its replies.

use std::ops::Range;

use bimetal_policy::scheduler::Priority;
use bimetal_rt::Payload;
use serde::Deserialize;

use crate::error::IoError;

/// Atomic unit of every volume, in bytes: a block of this size is either written entirely or
/// remains unchanged. Only one layer, [`crate::layers::atomic`], converts smaller requests to whole
/// blocks.
pub const BLOCK_BYTES: u64 = 4096;

/// Maximum number of extents in an answer to [`Op::Extents`].
pub const EXTENTS_MAX: u32 = 1024;

/// The operation of a request. When an operation is added, every layer fails to compile until it
/// handles the new operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Returns the bytes of the range.
    Read,
    /// Stores the payload. The write is durable after a flush, or at its completion with
    /// [`Flags::FUA`].
    Write,
    /// Makes durable every write that completed before the flush was submitted. The range is empty.
    Flush,
    /// Declares that the content of the range is no longer needed. If
    /// [`Geometry::discard_zeroes`](crate::Geometry) is set, the range reads as zeroes afterwards;
    /// otherwise it reads as arbitrary data.
    Discard,
    /// Makes the range read as zeroes.
    WriteZeroes,
    /// Reports which parts of the range hold data and which parts read as zeroes. The answer covers
    /// a prefix of the range: at least one block of the range, unless it is empty, in at most
    /// [`Request::extents_max`] extents. A device ends the answer early if continuing would take
    /// long; the caller continues with another request at the end of the answer.
    Extents,
}

impl Op {
    /// Every operation, for tables.
    pub const ALL: [Op; 6] = [
        Op::Read,
        Op::Write,
        Op::Flush,
        Op::Discard,
        Op::WriteZeroes,
        Op::Extents,
    ];

    /// Returns the name in configurations, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
            Op::Extents => "extents",
        }
    }

    /// Returns true if the operation changes the content of its range.
    pub fn changes_content(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }
}

/// One value for each operation.
#[derive(Clone, Debug, Default)]
pub struct PerOp<T>([T; Op::ALL.len()]);

impl<T> std::ops::Index<Op> for PerOp<T> {
    type Output = T;
    fn index(&self, op: Op) -> &T {
        &self.0[op as usize]
    }
}

impl<T> std::ops::IndexMut<Op> for PerOp<T> {
    fn index_mut(&mut self, op: Op) -> &mut T {
        &mut self.0[op as usize]
    }
}

/// Modifiers of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Force unit access: the change is durable when the request completes.
    pub fua: bool,
    /// Makes a write-zeroes keep the space of its range allocated (NBD's `NO_HOLE`).
    pub keep_allocated: bool,
    /// Makes a discard a piece of advice: whether it succeeds or fails, nothing relies on what the
    /// range reads as before it is written again, even if the range should read as zeroes. A device
    /// that cannot free the range does nothing, or fails; it writes no zeroes instead.
    pub advisory: bool,
}

impl Flags {
    /// No modifier.
    pub const NONE: Flags = Flags {
        fua: false,
        keep_allocated: false,
        advisory: false,
    };
    /// Force unit access.
    pub const FUA: Flags = Flags {
        fua: true,
        ..Flags::NONE
    };
    /// A discard on whose outcome nothing relies.
    pub const ADVISORY: Flags = Flags {
        advisory: true,
        ..Flags::NONE
    };
}

/// Task that a request belongs to, and its priority. A layer that splits a request, or that makes
/// other requests on its behalf, copies the origin to these requests. Requests that a layer makes
/// on behalf of no task have the origin [`Origin::NONE`]. Only a scheduler evaluates the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Number of the task; 0 means no particular task. The numbers of concurrent tasks are small
    /// and have few gaps.
    pub task: u32,
    /// Priority of the request; best effort by default.
    pub priority: Priority,
}

impl Origin {
    /// The origin of requests that belong to no particular task, at normal priority.
    pub const NONE: Origin = Origin::of_task(0);

    /// Returns the origin of a task at normal priority.
    pub const fn of_task(task: u32) -> Origin {
        Origin {
            task,
            priority: Priority::NORMAL,
        }
    }
}

/// One request to a device. Offsets and lengths are in bytes.
#[derive(Clone, Debug)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range; the payload of a write has exactly this length.
    pub len: u64,
    /// Modifiers of the operation.
    pub flags: Flags,
    /// Task and priority; [`Origin::NONE`] in a new request.
    pub origin: Origin,
    /// The data of a write; empty otherwise.
    pub payload: Payload,
    /// Maximum number of extents in the answer to [`Op::Extents`], from 1 to [`EXTENTS_MAX`];
    /// ignored by other operations.
    pub extents_max: u32,
}

impl Request {
    /// Creates a read of `len` bytes.
    pub fn read(offset: u64, len: u64) -> Request {
        Request {
            op: Op::Read,
            offset,
            len,
            flags: Flags::NONE,
            origin: Origin::NONE,
            payload: Payload::empty(),
            extents_max: EXTENTS_MAX,
        }
    }

    /// Creates a write of the payload.
    pub fn write(offset: u64, payload: impl Into<Payload>, flags: Flags) -> Request {
        let payload = payload.into();
        Request {
            op: Op::Write,
            offset,
            len: payload.len() as u64,
            flags,
            origin: Origin::NONE,
            payload,
            extents_max: EXTENTS_MAX,
        }
    }

    /// Creates a flush.
    pub fn flush() -> Request {
        Request {
            op: Op::Flush,
            offset: 0,
            len: 0,
            flags: Flags::NONE,
            origin: Origin::NONE,
            payload: Payload::empty(),
            extents_max: EXTENTS_MAX,
        }
    }

    /// Creates a request for at most `extents_max` extents of a range.
    pub fn extents(offset: u64, len: u64, extents_max: u32) -> Request {
        Request {
            extents_max: extents_max.clamp(1, EXTENTS_MAX),
            ..Request::without_data(Op::Extents, offset, len, Flags::NONE)
        }
    }

    /// Creates a request on a range for an operation other than a write. The request carries no
    /// data.
    pub fn without_data(op: Op, offset: u64, len: u64, flags: Flags) -> Request {
        assert!(op != Op::Write, "a write carries data");
        Request {
            op,
            offset,
            len,
            flags,
            origin: Origin::NONE,
            payload: Payload::empty(),
            extents_max: EXTENTS_MAX,
        }
    }

    /// Returns the request with its origin replaced by `origin`.
    pub fn from_origin(mut self, origin: Origin) -> Request {
        self.origin = origin;
        self
    }

    /// Returns the offset of the first byte after the range.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Returns a request for the part of this request between the offsets `start` and `end`. The
    /// returned request begins at `new_offset`.
    ///
    /// # Panics
    /// When the part extends beyond the request.
    pub fn part(&self, start: u64, end: u64, new_offset: u64) -> Request {
        assert!(self.offset <= start && start <= end && end <= self.end());
        let payload = if self.op == Op::Write {
            let from = (start - self.offset) as usize;
            self.payload.slice(from..from + (end - start) as usize)
        } else {
            Payload::empty()
        };
        Request {
            op: self.op,
            offset: new_offset,
            len: end - start,
            flags: self.flags,
            origin: self.origin,
            payload,
            extents_max: self.extents_max,
        }
    }
}

/// A write of bytes that belong to the caller. The device must not use the bytes after it has
/// answered.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedWrite<'a> {
    /// First byte of the range.
    pub offset: u64,
    /// Data to write, at any alignment in memory.
    pub bytes: &'a [u8],
    /// Modifiers of the write.
    pub flags: Flags,
}

impl BorrowedWrite<'_> {
    /// Returns the byte range on the device. If the write has not been checked, the end of the
    /// range can lie beyond the end of the device.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes.len() as u64)
    }
}

/// A run of blocks that all hold data or all read as zeroes; one element of the answer to
/// [`Op::Extents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// True when the run holds data; false when it is a hole that reads as zeroes.
    pub data: bool,
}

/// Successful answer to a request.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Completion without data.
    Done,
    /// Bytes of a read, exactly the requested number.
    Data(Payload),
    /// Extents that together cover a prefix of the range of an extents request.
    Extents(Vec<Extent>),
}

impl Reply {
    /// Returns the bytes of a read.
    ///
    /// # Panics
    /// When the request was not a read.
    pub fn into_data(self) -> Payload {
        match self {
            Reply::Data(payload) => payload,
            other => panic!("a read answers with data, not {other:?}"),
        }
    }

    /// Returns the extents of an extents request.
    ///
    /// # Panics
    /// When the request was not an extents request.
    pub fn into_extents(self) -> Vec<Extent> {
        match self {
            Reply::Extents(extents) => extents,
            other => panic!("an extents request answers with extents, not {other:?}"),
        }
    }
}

/// The outcome of a request.
pub type IoResult = Result<Reply, IoError>;
