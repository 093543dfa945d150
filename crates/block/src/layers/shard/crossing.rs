//! Messages in the mailboxes between the thread of the requester and the thread of the shard.

use bimetal_rt::{BufPool, DetachedBuf};

use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::{Extent, Flags, IoResult, Op, Origin, Reply, Request};

/// A message to the shard's thread.
pub(super) struct Asked {
    /// Number of the requester's slot for this request, returned with the answer.
    pub(super) key: usize,
    pub(super) what: What,
}

/// Content of a message to the shard's thread.
pub(super) enum What {
    /// A request to the device below.
    Request(Detached),
    /// The operator accepts the data loss of the cache with this name.
    AcceptLoss(String),
}

/// A copy of a request, in transfer to the shard's thread.
pub(super) struct Detached {
    op: Op,
    offset: u64,
    len: u64,
    flags: Flags,
    origin: Origin,
    extents_max: u32,
    /// Data of a write.
    data: Option<DetachedBuf>,
}

impl Detached {
    /// Copies a request with its data.
    ///
    /// # Errors
    /// `Resource` when there is no memory for the copy.
    pub(super) fn new(request: &Request) -> Result<Detached, IoError> {
        let data = match request.op {
            Op::Write => Some(request.payload.detached().ok_or(IoError::Resource)?),
            Op::Read | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => None,
        };
        Ok(Detached {
            op: request.op,
            offset: request.offset,
            len: request.len,
            flags: request.flags,
            origin: request.origin,
            extents_max: request.extents_max,
            data,
        })
    }

    /// Converts this thread-independent copy back to a request, on the shard's thread, which owns
    /// the buffer pool `pool`.
    pub(super) fn into_request(self, pool: &BufPool) -> Request {
        let mut request = match self.data {
            Some(data) => Request::write(self.offset, pool.attach(data).freeze(), self.flags),
            None => Request::without_data(self.op, self.offset, self.len, self.flags),
        };
        request.extents_max = self.extents_max;
        request.from_origin(self.origin)
    }
}

/// Successful result of a request, in transfer back to the requester.
enum Outcome {
    Done,
    Data(DetachedBuf),
    Extents(Vec<Extent>),
}

/// An answer in transfer back to the requester.
pub(super) struct Answered {
    /// Slot number from the request's message.
    pub(super) key: usize,
    /// Number of interruptions of the device below, read after that device had answered the
    /// request.
    pub(super) interruptions: Option<u64>,
    /// Size of the device below, read after the answer.
    pub(super) size_bytes: u64,
    outcome: Result<Outcome, IoError>,
}

impl Answered {
    /// Copies an answer with its data. If there is no memory for the data, the answer becomes the
    /// error `Resource`.
    pub(super) fn new(
        key: usize,
        result: IoResult,
        interruptions: Option<u64>,
        size_bytes: u64,
    ) -> Answered {
        let outcome = result.and_then(|reply| {
            Ok(match reply {
                Reply::Done => Outcome::Done,
                Reply::Data(data) => Outcome::Data(data.detached().ok_or(IoError::Resource)?),
                Reply::Extents(extents) => Outcome::Extents(extents),
            })
        });
        Answered {
            key,
            interruptions,
            size_bytes,
            outcome,
        }
    }

    /// Converts the copy to an answer on the requester's thread, which owns the buffer pool `pool`.
    pub(super) fn into_result(self, pool: &BufPool) -> IoResult {
        self.outcome.map(|outcome| match outcome {
            Outcome::Done => Reply::Done,
            Outcome::Data(data) => Reply::Data(pool.attach(data).freeze().into()),
            Outcome::Extents(extents) => Reply::Extents(extents),
        })
    }
}

/// Properties of the device below after it was opened.
pub(super) struct Opened {
    pub(super) geometry: Geometry,
    pub(super) interruptions: Option<u64>,
}

/// A message from the shard's thread: first the result of opening, then answers, and last the
/// result of closing.
pub(super) enum Told {
    Opened(Result<Opened, OpenError>),
    Answered(Answered),
    Closed(Result<(), IoError>),
}
