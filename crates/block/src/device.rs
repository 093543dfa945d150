//! The contract of a block device. The author of a layer has to read only this file; the commented
//! example is [`crate::layers::passthrough`].
//!
//! A device is a [`Device`] built from other devices. Requests are [`Request`] values, answers are
//! [`IoResult`]. An edge of a stack is code outside of the stack that sends requests to its top
//! device, such as an export. These rules hold for every device:
//!
//! - **Order.** Requests in flight at the same time can execute in any order. A caller that needs
//!   an order waits for the first request before it submits the second.
//! - **Completion.** A write that has completed is seen by every read submitted afterwards. With
//!   FUA, the write is durable when it completes. Without FUA, the write is durable when a later
//!   flush completes. A flush is later if it was submitted after the write had completed.
//! - **Failure.** A failed write can have changed any part of its range, in whole blocks. A failed
//!   flush has made nothing durable.
//! - **Limits.** A caller submits only requests that the [`Geometry`] permits. The edges of the
//!   stack check each request with [`Geometry::check`], and a device can rely on the check.
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
use crate::latency::{Meter, OpLatency, Timed};
use crate::request::{BorrowedWrite, IoResult, Op, Request};

/// A boxed future that a device returns.
pub type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The future of a request. A device that can answer immediately needs no allocation.
pub enum IoFuture<'a> {
    /// An answer that is already known; the first poll returns it.
    Ready(Option<IoResult>),
    /// A request in progress.
    Boxed(LocalFuture<'a, IoResult>),
    /// A request in progress whose latency is measured.
    Timed(Timed<'a>),
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
            IoFuture::Timed(timed) => Pin::new(timed).poll(context),
        }
    }
}

/// A block device: a medium, or a layer over other devices. A device belongs to one thread and is
/// not `Send`.
pub trait Device {
    /// Returns the size, limits and abilities of the device. They are fixed while the device is
    /// open, with one exception: the size of a mirror can grow, and with it the size of the devices
    /// that forward requests to the mirror.
    fn geometry(&self) -> &Geometry;

    /// Starts a request. A device can execute the request before this function returns, or only
    /// when the returned future is polled.
    fn submit(&self, request: Request) -> IoFuture<'_>;

    /// Executes a request completely and returns its answer, if the request can be executed without
    /// waiting. Returns any other request unchanged. The edges of a stack, such as exports, try
    /// this function first, because a submitted request can need a task of its own, which costs
    /// more.
    ///
    /// # Errors
    /// The request itself, which the caller then [submits](Self::submit).
    fn try_answer(&self, request: Request) -> Result<IoResult, Request> {
        Err(request)
    }

    /// Writes bytes that the caller keeps, if the write can be executed without waiting. The write
    /// is then complete when this function returns, and its data was copied at most once. Returns
    /// `None`, with no effect, if the write has to wait; the caller then [submits](Self::submit)
    /// the write with its own payload.
    fn try_write(&self, write: BorrowedWrite<'_>) -> Option<IoResult> {
        let _ = write;
        None
    }

    /// Ends the device's own work: executes delayed requests, flushes, and stops its tasks. The
    /// children stay open until this function has completed, and it does not close them.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Returns the number of interruptions of the connection to the devices below since the device
    /// was opened, or `None` if the connection cannot be interrupted. An interruption can lose
    /// writes that had completed but were not flushed. After an interruption, answers can come from
    /// an older copy of the same data. The number grows before the first such answer is given, so a
    /// layer that caches knowledge of the content checks the number with every answer. A layer over
    /// several children returns the sum of the numbers of its children.
    fn interruptions(&self) -> Option<u64> {
        None
    }

    /// Reports live statistics for `status` and metrics, in an order that suits readers.
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
    /// A current value; the end of the statistic's name gives the unit.
    Gauge(f64),
    /// A state in one word.
    State(String),
    /// Latencies of an operation.
    Latency(Box<OpLatency>),
}

/// A receiver of a device's statistics. Names are in snake case and end in their unit.
pub trait StatisticVisitor {
    /// Receives one statistic. `part` names the part of the device that the statistic describes
    /// (for example a side), and is empty for the device itself.
    fn statistic(&mut self, part: &str, name: &str, value: Statistic);

    /// Receives the latencies of the operations that occurred, each under the name of the
    /// operation.
    fn latencies(&mut self, part: &str, meter: &Meter) {
        for op in Op::ALL {
            if let Some(report) = meter.report(op) {
                self.statistic(part, op.name(), Statistic::Latency(Box::new(report)));
            }
        }
    }
}

impl StatisticVisitor for Vec<(String, String, Statistic)> {
    fn statistic(&mut self, part: &str, name: &str, value: Statistic) {
        self.push((part.to_owned(), name.to_owned(), value));
    }
}
