//! What is in the mailboxes between the two threads.

use bimetal_rt::{BufPool, DetachedBuf};

use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::{Extent, Flags, IoResult, Op, Origin, Reply, Request};

/// What the shard's thread is asked for.
pub(super) struct Asked {
    /// The asker's place for the answer.
    pub(super) key: usize,
    pub(super) what: What,
}

/// What there is to do.
pub(super) enum What {
    /// A request to the device below.
    Request(Detached),
    /// The operator knows of what this cache has lost.
    AcceptLoss(String),
}

/// A request on its way to the shard's thread.
pub(super) struct Detached {
    op: Op,
    offset: u64,
    len: u64,
    flags: Flags,
    origin: Origin,
    extents_max: u32,
    /// The data of a write.
    data: Option<DetachedBuf>,
}

impl Detached {
    /// Copies the data of a request.
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

    /// The request on the shard's thread, whose pool this is.
    pub(super) fn into_request(self, pool: &BufPool) -> Request {
        let mut request = match self.data {
            Some(data) => Request::write(self.offset, pool.attach(data).freeze(), self.flags),
            None => Request::without_data(self.op, self.offset, self.len, self.flags),
        };
        request.extents_max = self.extents_max;
        request.from_origin(self.origin)
    }
}

/// What a request has come to, on its way back.
enum Outcome {
    Done,
    Data(DetachedBuf),
    Extents(Vec<Extent>),
}

/// An answer on its way to who asked.
pub(super) struct Answered {
    /// As of the request.
    pub(super) key: usize,
    /// As the device below says, after the answer.
    pub(super) interruptions: Option<u64>,
    /// Of the device below, after the answer.
    pub(super) size_bytes: u64,
    outcome: Result<Outcome, IoError>,
}

impl Answered {
    /// Copies the data of an answer. Where there is no memory for it, the answer is `Resource`.
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

    /// The answer on the asker's thread, whose pool this is.
    pub(super) fn into_result(self, pool: &BufPool) -> IoResult {
        self.outcome.map(|outcome| match outcome {
            Outcome::Done => Reply::Done,
            Outcome::Data(data) => Reply::Data(pool.attach(data).freeze().into()),
            Outcome::Extents(extents) => Reply::Extents(extents),
        })
    }
}

/// What the device below is when it has been opened.
pub(super) struct Opened {
    pub(super) geometry: Geometry,
    pub(super) interruptions: Option<u64>,
}

/// What the shard's thread says: first how opening went, then answers, and at last how closing
/// went.
pub(super) enum Told {
    Opened(Result<Opened, OpenError>),
    Answered(Answered),
    Closed(Result<(), IoError>),
}
