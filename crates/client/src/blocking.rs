//! A session for ordinary threads. Each call waits for its answer, and the requests of all threads
//! are sent together.

use std::sync::mpsc::{SyncSender, sync_channel};

use bimetal_proto::brp::{Op, Welcome};

use crate::error::{ConnectError, Error};
use crate::options::Options;
use crate::session::Call;
use crate::shared::Answer;
use crate::thread::{Ended, Job, SessionThread};

/// A request in flight. Each thread waits for the answer to its request, so there are never more
/// requests than threads.
struct Request {
    op: Op,
    offset_bytes: u64,
    length_bytes: u32,
    fua: bool,
    data: Vec<u8>,
    answer: SyncSender<Result<Vec<u8>, Error>>,
}

impl Job for Request {
    fn call(&self) -> Call {
        Call {
            fua: self.fua,
            ..Call::new(self.op, self.offset_bytes, self.length_bytes)
        }
    }

    fn fill(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.data);
    }
}

/// Sends the answers to the waiting threads.
fn deliver(ended: Vec<Ended<Request>>) {
    for (request, result) in ended {
        let data = result.map(|answer| match answer {
            Answer::Data(data) => data.to_vec(),
            Answer::Done | Answer::Runs(_) => Vec::new(),
        });
        // A thread that no longer waits needs no answer.
        let _ = request.answer.send(data);
    }
}

/// A session for ordinary threads. Each call waits for its answer. Dropping the session waits for
/// the requests in flight and then ends the session without a flush.
pub struct BlockingSession(SessionThread<Request>);

impl BlockingSession {
    /// Connects to a target.
    ///
    /// # Errors
    /// The errors of [`Session::connect`](crate::Session::connect), and errors that prevent a
    /// thread or a runtime from starting.
    ///
    /// # Panics
    /// If the options were not [checked](Options::check).
    pub fn connect(options: Options) -> Result<BlockingSession, ConnectError> {
        SessionThread::connect(options, deliver).map(BlockingSession)
    }

    /// Returns the target's description of the export at the beginning of the session.
    pub fn export(&self) -> &Welcome {
        self.0.export()
    }

    /// Reads a range.
    ///
    /// # Errors
    /// The reason why the request failed.
    pub fn read(&self, offset_bytes: u64, length_bytes: u32) -> Result<Vec<u8>, Error> {
        self.run(Op::Read, offset_bytes, length_bytes, false, Vec::new())
    }

    /// Writes data. The data is durable after a flush, or with `fua` when this returns.
    ///
    /// # Errors
    /// The reason why the request failed; [`Error::TooLong`] for more data than the target accepts
    /// in one request.
    pub fn write(&self, offset_bytes: u64, data: Vec<u8>, fua: bool) -> Result<(), Error> {
        let length = u32::try_from(data.len()).map_err(|_| Error::TooLong)?;
        self.run(Op::Write, offset_bytes, length, fua, data)
            .map(|_| ())
    }

    /// Makes all answered changes durable.
    ///
    /// # Errors
    /// The reason why the request failed; [`Error::Lost`], once, when the target has lost any of
    /// the answered changes.
    pub fn flush(&self) -> Result<(), Error> {
        self.run(Op::Flush, 0, 0, false, Vec::new()).map(|_| ())
    }

    /// Discards a range.
    ///
    /// # Errors
    /// The reason why the request failed.
    pub fn discard(&self, offset_bytes: u64, length_bytes: u32) -> Result<(), Error> {
        self.run(Op::Discard, offset_bytes, length_bytes, false, Vec::new())
            .map(|_| ())
    }

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// The reason why the request failed.
    pub fn write_zeroes(
        &self,
        offset_bytes: u64,
        length_bytes: u32,
        fua: bool,
    ) -> Result<(), Error> {
        self.run(Op::WriteZeroes, offset_bytes, length_bytes, fua, Vec::new())
            .map(|_| ())
    }

    fn run(
        &self,
        op: Op,
        offset_bytes: u64,
        length_bytes: u32,
        fua: bool,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let (answer, answered) = sync_channel(1);
        self.0.submit([Request {
            op,
            offset_bytes,
            length_bytes,
            fua,
            data,
            answer,
        }])?;
        answered.recv().unwrap_or(Err(Error::Closed))
    }
}
