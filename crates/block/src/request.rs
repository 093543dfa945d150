//! The one request type that every layer takes, and its answers.

use std::ops::Range;

use bimetal_policy::scheduler::Priority;
use bimetal_rt::Payload;
use serde::Deserialize;

use crate::error::IoError;

/// The atomic unit of every volume in bytes: a block of this size is written whole or not at all,
/// and smaller requests are made of whole ones at one place, [`crate::layers::atomic`].
pub const BLOCK_BYTES: u64 = 4096;

/// Extents that an answer to [`Op::Extents`] holds, at most.
pub const EXTENTS_MAX: u32 = 1024;

/// What a request does. A new operation is a compile error in every layer until it is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// Gives the bytes of the range.
    Read,
    /// Stores the payload. Not durable before a flush, or with [`Flags::FUA`] when it completes.
    Write,
    /// Makes every write that completed before durable. The range is empty.
    Flush,
    /// The content of the range is no longer needed. Afterwards it reads as zeroes where
    /// [`Geometry::discard_zeroes`](crate::Geometry) says so, else as anything.
    Discard,
    /// Makes the range read as zeroes.
    WriteZeroes,
    /// Says which parts of the range hold data and which read as zeroes. The answer covers a prefix
    /// of the range: at least one block of it, unless the range is empty, in at most
    /// [`Request::extents_max`] extents. A device ends it where going on would take long; who wants
    /// to know more asks again from there.
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

    /// The name in configurations, logs and metrics.
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

    /// True when the operation changes the content of its range.
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

/// What is asked of a request besides its operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags {
    /// Force unit access: the change is durable when the request completes.
    pub fua: bool,
    /// Write-zeroes must keep the space allocated (NBD's `NO_HOLE`).
    pub keep_allocated: bool,
}

impl Flags {
    /// Nothing special.
    pub const NONE: Flags = Flags {
        fua: false,
        keep_allocated: false,
    };
    /// Force unit access.
    pub const FUA: Flags = Flags {
        fua: true,
        keep_allocated: false,
    };
}

/// Whose request it is, and how urgent he is. Layers that cut a request or make others on its
/// behalf hand it down; what a layer does for nobody in particular has none. Only a scheduler looks
/// at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Who asks: a small number, dense among those that ask at a time. 0 is nobody in particular.
    pub task: u32,
    /// How urgent it is; best effort if nobody said.
    pub priority: Priority,
}

impl Origin {
    /// Nobody in particular, at normal priority.
    pub const NONE: Origin = Origin::of_task(0);

    /// A task at normal priority.
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
    /// What to do.
    pub op: Op,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range; the payload of a write has exactly this length.
    pub len: u64,
    /// How to do it.
    pub flags: Flags,
    /// Whose it is; nobody's as it is made.
    pub origin: Origin,
    /// The data of a write; empty otherwise.
    pub payload: Payload,
    /// Extents in the answer of [`Op::Extents`], from 1 to [`EXTENTS_MAX`]; nothing to other
    /// operations.
    pub extents_max: u32,
}

impl Request {
    /// A read of `len` bytes.
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

    /// A write of the payload.
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

    /// A flush.
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

    /// Asks for at most `extents_max` extents of a range.
    pub fn extents(offset: u64, len: u64, extents_max: u32) -> Request {
        Request {
            extents_max: extents_max.clamp(1, EXTENTS_MAX),
            ..Request::without_data(Op::Extents, offset, len, Flags::NONE)
        }
    }

    /// An operation on a range that carries no data.
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

    /// The same as somebody's.
    pub fn from_origin(mut self, origin: Origin) -> Request {
        self.origin = origin;
        self
    }

    /// The byte after the range.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The part of this request from `start` to `end` (positions on the device), moved to
    /// `new_offset`.
    ///
    /// # Panics
    /// When the part leaves the request.
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

/// A write of bytes that belong to whoever asks, for a device that is done with them before it
/// answers.
#[derive(Clone, Copy, Debug)]
pub struct BorrowedWrite<'a> {
    /// First byte of the range.
    pub offset: u64,
    /// What is written, at any address.
    pub bytes: &'a [u8],
    /// How to do it.
    pub flags: Flags,
}

impl BorrowedWrite<'_> {
    /// The range on the device. Its end is that of the device at most, once the write has been
    /// checked.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.bytes.len() as u64)
    }
}

/// A run of blocks of one kind, the answer to [`Op::Extents`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// True when the run holds data; false when it is a hole that reads as zeroes.
    pub data: bool,
}

/// What a request answers.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Done, without data.
    Done,
    /// The bytes of a read, exactly as many as were asked for.
    Data(Payload),
    /// Runs that together cover a prefix of the range of an extents request.
    Extents(Vec<Extent>),
}

impl Reply {
    /// The bytes of a read.
    ///
    /// # Panics
    /// When the request was not a read.
    pub fn into_data(self) -> Payload {
        match self {
            Reply::Data(payload) => payload,
            other => panic!("a read answers with data, not {other:?}"),
        }
    }

    /// The runs of an extents request.
    ///
    /// # Panics
    /// When the request did not ask for extents.
    pub fn into_extents(self) -> Vec<Extent> {
        match self {
            Reply::Extents(extents) => extents,
            other => panic!("an extents request answers with extents, not {other:?}"),
        }
    }
}

/// The outcome of a request.
pub type IoResult = Result<Reply, IoError>;
