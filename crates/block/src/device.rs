//! The contract of a block device. Whoever has read this file can write a layer; the commented
//! example is [`crate::layers::passthrough`].
//!
//! A device is a [`Device`] made of devices. Requests are [`Request`] values, answers are
//! [`IoResult`]. What holds for every device:
//!
//! - **Order.** Requests in flight at the same time may happen in any order. A caller that wants an
//!   order waits for the first before it submits the second.
//! - **Completion.** A write that has completed is seen by every read submitted afterwards. It is
//!   durable after a flush that was submitted after its completion has completed, or at once with
//!   FUA.
//! - **Failure.** A write that failed may have changed any part of its range, whole blocks each.
//!   A flush that failed has made nothing durable.
//! - **Limits.** A caller keeps to the [`Geometry`]; a device may rely on it after
//!   [`Geometry::check`], which the edges call.
//! - **Dropping.** Only edges drop a submitted future. What it had started goes on or is orphaned;
//!   its range is then unknown until a later write.
//! - **Closing.** After [`Device::close`] has completed nothing is in flight, everything written is
//!   durable, and the device takes no more requests. Parents close before their children: the
//!   graph calls `close` from the top down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{BorrowedWrite, IoResult, Request};

/// A future that a device returns.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The future of a request. A device that can answer at once does so without an allocation.
pub enum IoFuture<'a> {
    /// The answer, taken by the first poll.
    Ready(Option<IoResult>),
    /// Work in progress.
    Boxed(LocalFuture<'a, IoResult>),
}

impl<'a> IoFuture<'a> {
    /// An answer that is known already.
    pub fn ready(result: IoResult) -> IoFuture<'a> {
        IoFuture::Ready(Some(result))
    }

    /// An answer that takes time.
    pub fn new(future: impl Future<Output = IoResult> + 'a) -> IoFuture<'a> {
        IoFuture::Boxed(Box::pin(future))
    }
}

impl Future for IoFuture<'_> {
    type Output = IoResult;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<IoResult> {
        match self.get_mut() {
            IoFuture::Ready(result) => Poll::Ready(
                result
                    .take()
                    .expect("a future is not polled after it has ended"),
            ),
            IoFuture::Boxed(future) => future.as_mut().poll(context),
        }
    }
}

/// A block device: a medium, or a layer over other devices. It belongs to one shard and is not
/// `Send`.
pub trait Device {
    /// What the device is and can do. Fixed while it is open, except that the size of a mirror, and
    /// of what passes requests on to one, may grow.
    fn geometry(&self) -> &Geometry;

    /// Starts a request. Nothing happens before the first poll of the future.
    fn submit(&self, request: Request) -> IoFuture<'_>;

    /// Answers a request that needs no waiting, with all that follows from it; gives back any other
    /// one as if it had never been seen. For edges, which start a task for what has to wait, and a
    /// task costs more than such an answer.
    ///
    /// # Errors
    /// The request, to be [submitted](Self::submit).
    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        Err(request)
    }

    /// Writes bytes that stay the caller's, if that needs no waiting: all of it is done when this
    /// returns, and what had to be copied was copied once. `None` as if nothing had been asked: the
    /// write is then to be [submitted](Self::submit) with a payload of its own.
    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        let _ = write;
        None
    }

    /// Ends the device's own work: drains what it has delayed, flushes, stops its tasks. Its
    /// children are open until this has completed and are not closed by it.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// How often the way to what is below has been interrupted since the device was opened; `None`
    /// when it cannot be. What had completed before an interruption and was not flushed may be
    /// gone, and answers after it may come from an older copy of the same thing. The number has
    /// grown before the first such answer is given, so whoever keeps knowledge of its own about the
    /// content looks at it with every answer. A layer passes on the sum of its children.
    fn interruptions(&self) -> Option<u64> {
        None
    }

    /// Live figures for `status` and metrics, in the order in which they read best.
    fn figures(&self, out: &mut dyn FigureVisitor) {
        // A device without figures of its own shows none.
        let _ = out;
    }
}

/// One live figure of a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Figure {
    /// A count that only grows.
    Counter(u64),
    /// A measurement now; the unit is the end of the name.
    Gauge(f64),
    /// A state in one word.
    State(String),
}

/// Takes the figures of a device. Names are in snake case and end in their unit.
pub trait FigureVisitor {
    /// Takes one figure. `part` names the part it belongs to (a side), empty for the device itself.
    fn figure(&mut self, part: &str, name: &str, value: Figure);
}

impl FigureVisitor for Vec<(String, String, Figure)> {
    fn figure(&mut self, part: &str, name: &str, value: Figure) {
        self.push((part.to_owned(), name.to_owned(), value));
    }
}
