//! The contract of a block device. This file is all that the author of a layer has to read; the
//! commented example is [`crate::layers::passthrough`].
//!
//! A device is a [`Device`] built from other devices. Requests are [`Request`] values, answers are
//! [`IoResult`]. These rules hold for every device:
//!
//! - **Order.** Requests in flight at the same time may execute in any order. A caller that needs
//!   an order waits for the first request before it submits the second.
//! - **Completion.** A write that has completed is seen by every read submitted afterwards. With
//!   FUA the write is durable at its completion. Without FUA it is durable once a flush has
//!   completed that was submitted after the write completed.
//! - **Failure.** A failed write may have changed any part of its range, in whole blocks. A failed
//!   flush has made nothing durable.
//! - **Limits.** A caller keeps to the [`Geometry`]. A device may rely on it after
//!   [`Geometry::check`], which the edges of the stack call.
//! - **Dropping.** Only edges drop a submitted future. Work that the future had started continues
//!   or is orphaned; the content of its range is then unknown until a later write.
//! - **Closing.** After [`Device::close`] has completed, no request is in flight, everything
//!   written is durable, and the device accepts no more requests. Parents close before their
//!   children: the graph calls `close` from the top down.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::IoError;
use crate::geometry::Geometry;
use crate::request::{BorrowedWrite, IoResult, Request};

/// A boxed future that a device returns.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The future of a request. A device that can answer immediately needs no allocation.
pub enum IoFuture<'a> {
    /// An answer that the first poll takes.
    Ready(Option<IoResult>),
    /// A request in progress.
    Boxed(LocalFuture<'a, IoResult>),
}

impl<'a> IoFuture<'a> {
    /// Creates a future with an answer that is already known.
    pub fn ready(result: IoResult) -> IoFuture<'a> {
        IoFuture::Ready(Some(result))
    }

    /// Creates a future for an answer that takes time.
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
    /// Returns the size, limits and abilities of the device. They are fixed while the device is
    /// open, except that the size of a mirror may grow, and with it the size of devices that
    /// forward requests to the mirror.
    fn geometry(&self) -> &Geometry;

    /// Starts a request. The request does nothing before the first poll of the future.
    fn submit(&self, request: Request) -> IoFuture<'_>;

    /// Answers and completely executes a request that needs no waiting; returns any other request
    /// untouched. Edges use this because an answer without waiting is cheaper than a task, which a
    /// waiting request needs.
    ///
    /// # Errors
    /// The request itself, which the caller then [submits](Self::submit).
    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        Err(request)
    }

    /// Writes bytes that the caller keeps, if the write needs no waiting: the write is complete
    /// when this returns, and its data was copied at most once. Returns `None`, with no effect, if
    /// the write has to wait; the caller then [submits](Self::submit) it with a payload of its own.
    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        let _ = write;
        None
    }

    /// Stops the device's own work: drains delayed requests, flushes, and stops its tasks. The
    /// children stay open until this has completed, and this does not close them.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns how often the connection to the devices below has been interrupted since the device
    /// was opened, or `None` if it cannot be interrupted. An interruption may lose writes that had
    /// completed but were not flushed, and later answers may come from an older copy of the same
    /// data. The number grows before the first such answer is given, so a layer that caches
    /// knowledge of the content checks the number with every answer. A layer returns the sum of its
    /// children's numbers.
    fn interruptions(&self) -> Option<u64> {
        None
    }

    /// Reports live statistics for `status` and metrics, in a readable order.
    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        // A device has no statistics by default.
        let _ = out;
    }
}

/// One live statistic of a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Statistic {
    /// A count that never decreases.
    Counter(u64),
    /// A current value; the end of the name gives the unit.
    Gauge(f64),
    /// A state in one word.
    State(String),
}

/// A receiver of a device's statistics. Names are in snake case and end in their unit.
pub trait StatisticVisitor {
    /// Receives one statistic. `part` names the part that it belongs to (a side), and is empty for
    /// the device itself.
    fn statistic(&mut self, part: &str, name: &str, value: Statistic);
}

impl StatisticVisitor for Vec<(String, String, Statistic)> {
    fn statistic(&mut self, part: &str, name: &str, value: Statistic) {
        self.push((part.to_owned(), name.to_owned(), value));
    }
}
