//! A device on a thread of its own: the devices below have a separate ring, executor and buffer
//! pool, so that they can use another core when one core is saturated. Under a
//! [stripe](super::stripe) of several shards, a volume is distributed over as many cores.
//!
//! The contract of the crossing between the threads, in addition to that of every device:
//!
//! - **Messages.** Requests go to the shard's thread and answers return, in mailboxes whose lock is
//!   held only while a message is moved. Data is copied once on the way to the other thread
//!   ([`DetachedBuf`](bimetal_rt::DetachedBuf)); only the snapshot of statistics is shared.
//!   Messages are batched: all requests of one turn of the requester's executor, and all answers of
//!   one turn of the shard's executor.
//! - **Bounds.** At most [`REQUESTS_MAX`] requests and [`BYTES_MAX`] bytes of reads and writes are
//!   in flight to the other thread, counted from before the copy until the answer has arrived.
//!   Further requests wait in order of arrival.
//! - **Order.** Requests arrive in the order in which they were admitted, and answers can overtake
//!   each other. A flush arrives after every write that was answered before the flush was
//!   submitted, because such a write has completed by then.
//! - **State.** Each answer carries the number of interruptions below and the size of the device,
//!   both read after the answer. Both take effect on the requester's side before the answer is
//!   delivered.
//! - **Dropping.** A request that has been sent continues when its future is dropped. Its answer is
//!   discarded, and its share of the bounds is released only when the answer arrives.
//! - **Death.** When the thread panics, all pending and all later requests fail with
//!   [`IoError::Offline`], and `health` is `failed`. It is unknown which of the pending changes
//!   were made. (A program that is built to abort at a panic ends instead.)
//! - **Closing.** Closing waits for every answer. Then the thread closes the devices below from the
//!   top down and ends, with its ring, before the close completes. A shard that is dropped without
//!   a close does the same, but no caller waits for it.
//! - **Statistics.** The statistics of the devices below are a snapshot that the thread makes every
//!   [`LOOK_EVERY`]: reading them never waits for the other thread, and the snapshot is at most
//!   this interval old while the thread runs.
//!
//! In virtual time there are no threads: the device below then runs on the requester's thread, and
//! requests are forwarded unchanged. This layer must wait for the other thread only by suspending a
//! task, never by blocking, and must never touch an `Rc` that belongs to the other thread.

mod crossing;
mod far;
mod near;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bimetal_rt::Rt;
use serde::Deserialize;

use crate::device::{Device, IoFuture, LocalFuture, Statistic, StatisticVisitor};
use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::Request;
use near::Near;

/// Maximum number of requests in flight to the other thread.
pub const REQUESTS_MAX: u64 = 1024;
/// Maximum number of bytes of reads and writes in flight to the other thread, and so the maximum
/// length of a transfer.
pub const BYTES_MAX: u64 = 32 << 20;
/// Interval at which the thread makes a snapshot of the statistics of its devices.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The configuration of `type = "shard"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardConfig {
    /// Name of the device below, as in the configuration. This device and all devices below it run
    /// on the shard's thread.
    pub below: String,
}

/// The devices that are open on the thread of a shard.
pub trait Subtree {
    /// Returns the device that executes the requests sent to the shard.
    fn top(&self) -> Rc<dyn Device>;

    /// Returns the current state of each device on the thread.
    fn look(&self) -> Vec<Seen>;

    /// Records that the operator accepts the data loss of the cache `name`, if that cache is on the
    /// thread.
    fn accept_loss(&self, name: &str);

    /// Closes the devices from the top down.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>>;
}

/// One statistic of a device: the part of the device that it describes, its name, and its value.
pub type NamedStatistic = (String, String, Statistic);

/// Reported state of a device on another thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Name of the device.
    pub name: String,
    /// Name of the device type.
    pub kind: &'static str,
    /// Names of the devices below it.
    pub children: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Statistics of the device.
    pub statistics: Vec<NamedStatistic>,
}

/// A shard; see the module.
pub struct Shard(Below);

/// Location of the device below: on this thread or on another thread.
enum Below {
    Here(Rc<dyn Device>),
    Beyond(Near),
}

impl Shard {
    /// Creates a shard that forwards requests to a device of this thread, for virtual time, which
    /// has no other thread.
    pub fn here(below: Rc<dyn Device>) -> Shard {
        Shard(Below::Here(below))
    }

    /// Opens a device on a thread of its own. The thread is named after `name` in lists of threads.
    ///
    /// # Errors
    /// When the thread, its runtime or a mailbox cannot be created, or when `open` fails. The
    /// thread has then ended.
    ///
    /// # Panics
    /// In virtual time.
    pub async fn start<S: Subtree + 'static>(
        rt: &Rt,
        name: &str,
        open: impl AsyncFnOnce(&Rt) -> Result<S, OpenError> + Send + 'static,
    ) -> Result<Shard, OpenError> {
        Ok(Shard(Below::Beyond(Near::start(rt, name, open).await?)))
    }

    /// Returns the last reported state of the devices on the other thread; empty if there is no
    /// other thread.
    pub fn seen(&self) -> Arc<Vec<Seen>> {
        match &self.0 {
            Below::Here(_) => Arc::default(),
            Below::Beyond(near) => near.seen(),
        }
    }
}

impl Shard {
    /// Records that the operator accepts the data loss of the cache `name` on the other thread.
    /// This takes effect before requests that are submitted later. Returns false if the thread has
    /// no such cache, or has ended.
    pub fn accept_loss(&self, name: &str) -> bool {
        let is_it = |seen: &Seen| seen.name == name && seen.kind == "cache";
        match &self.0 {
            Below::Here(_) => false,
            Below::Beyond(near) => near.seen().iter().any(is_it) && near.accept_loss(name),
        }
    }
}

impl Device for Shard {
    fn geometry(&self) -> &Geometry {
        match &self.0 {
            Below::Here(below) => below.geometry(),
            Below::Beyond(near) => near.geometry(),
        }
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        match &self.0 {
            Below::Here(below) => below.submit(request),
            Below::Beyond(near) => match near.geometry().check(&request) {
                Ok(()) => IoFuture::new(near.cross(request)),
                Err(error) => IoFuture::ready(Err(error)),
            },
        }
    }

    fn try_answer(&self, request: Request) -> Result<crate::IoResult, Request> {
        match &self.0 {
            Below::Here(below) => below.try_answer(request),
            Below::Beyond(_) => Err(request),
        }
    }

    fn try_write(&self, write: crate::BorrowedWrite<'_>) -> Option<crate::IoResult> {
        match &self.0 {
            Below::Here(below) => below.try_write(write),
            Below::Beyond(_) => None,
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        match &self.0 {
            Below::Here(_) => Box::pin(std::future::ready(Ok(()))),
            Below::Beyond(near) => Box::pin(near.close()),
        }
    }

    fn interruptions(&self) -> Option<u64> {
        match &self.0 {
            Below::Here(below) => below.interruptions(),
            Below::Beyond(near) => near.interruptions(),
        }
    }

    fn statistics(&self, out: &mut dyn StatisticVisitor) {
        if let Below::Beyond(near) = &self.0 {
            near.statistics(out);
        }
    }
}
