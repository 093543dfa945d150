//! A device on a thread of its own: what is below has a ring, an executor and a buffer pool to
//! itself, so that it takes a core of its own when one is full. Under a [stripe](super::stripe) of
//! several, a volume is cut over as many cores.
//!
//! The contract of the crossing, besides that of every device:
//!
//! - **What crosses.** Requests one way, answers the other, in mailboxes that take a lock for the
//!   time of a move. Data is copied once where it crosses
//!   ([`DetachedBuf`](bimetal_rt::DetachedBuf)); nothing is shared but the snapshot of figures.
//!   What belongs together goes together: requests of one turn of this executor, and answers of one
//!   turn of the other.
//! - **Bounds.** At most [`REQUESTS_MAX`] requests and [`BYTES_MAX`] bytes of reads and writes are
//!   over there at a time, from before the copy until the answer is here. What comes beyond waits,
//!   in order of arrival.
//! - **Order.** Requests arrive in the order in which they found room, and answers may overtake
//!   each other. A flush arrives after every write that was answered before it was submitted, as
//!   these are done by then.
//! - **Knowledge.** Each answer carries how often the way below was interrupted and how large the
//!   device is, as known when it was made, and both count here before anybody sees the answer.
//! - **Dropping.** A request that crossed goes on; its answer is dropped, and its room is free only
//!   then.
//! - **Death.** When the thread panics, all that was asked and all that is asked later fails with
//!   [`IoError::Offline`], and `health` is `failed`. Which of the changes were made is not known.
//!   (A program that is built to abort at a panic ends instead.)
//! - **Closing.** Waits for every answer, then the thread closes what is below from the top down
//!   and ends, with its ring, before the closing does. Dropped without that, it does the same with
//!   nobody waiting.
//! - **Figures.** Those of the devices below are a snapshot that the thread makes every
//!   [`LOOK_EVERY`]: asking for them never waits for the other thread, and what is shown is that
//!   old at most, as long as that runs.
//!
//! In virtual time there are no threads: the device below is then on this one, and requests are
//! passed on as they are. This layer must never wait for the other thread but as a task, nor touch
//! what is `Rc` on it.

mod crossing;
mod far;
mod near;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bimetal_rt::Rt;
use serde::Deserialize;

use crate::device::{Device, Figure, FigureVisitor, IoFuture, LocalFuture};
use crate::error::{IoError, OpenError};
use crate::geometry::Geometry;
use crate::request::Request;
use near::Near;

/// Requests that are with the other thread, at most.
pub const REQUESTS_MAX: u64 = 1024;
/// Bytes of reads and writes that are with the other thread, at most; no transfer is longer.
pub const BYTES_MAX: u64 = 32 << 20;
/// How often the thread makes a snapshot of the figures of its devices.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The configuration of `type = "shard"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardConfig {
    /// The device below, by its name in the file; it and all below it are on the thread.
    pub below: String,
}

/// What is open on the thread of a shard.
pub trait Subtree {
    /// The device that answers requests.
    fn top(&self) -> Rc<dyn Device>;

    /// What can be seen of each of its devices now.
    fn look(&self) -> Vec<Seen>;

    /// The operator knows of what the cache `name`, if it has one, has lost.
    fn accept_loss(&self, name: &str);

    /// Closes its devices from the top down.
    fn close(&self) -> LocalFuture<'_, Result<(), IoError>>;
}

/// One figure: the part it belongs to, its name, its value.
pub type NamedFigure = (String, String, Figure);

/// What is known of a device on another thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// The name of its type.
    pub kind: &'static str,
    /// The devices below it, by their names.
    pub children: Vec<String>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Its figures.
    pub figures: Vec<NamedFigure>,
}

/// See the module.
pub struct Shard(Place);

/// Where the device below is.
enum Place {
    Here(Rc<dyn Device>),
    Beyond(Near),
}

impl Shard {
    /// Passes requests on to a device of this thread, as there is no other one in virtual time.
    pub fn here(below: Rc<dyn Device>) -> Shard {
        Shard(Place::Here(below))
    }

    /// Opens a device on a thread of its own; `name` is for lists of threads.
    ///
    /// # Errors
    /// Why there is no thread, runtime or mailbox, or why `open` fails. Then the thread has ended.
    ///
    /// # Panics
    /// In virtual time.
    pub async fn start<S: Subtree + 'static>(
        rt: &Rt,
        name: &str,
        open: impl AsyncFnOnce(&Rt) -> Result<S, OpenError> + Send + 'static,
    ) -> Result<Shard, OpenError> {
        Ok(Shard(Place::Beyond(Near::start(rt, name, open).await?)))
    }

    /// What was last seen of the devices on the thread; of none where they are on this one.
    pub fn seen(&self) -> Arc<Vec<Seen>> {
        match &self.0 {
            Place::Here(_) => Arc::default(),
            Place::Beyond(near) => near.seen(),
        }
    }
}

impl Shard {
    /// Tells the cache `name` on the thread that the operator knows of what it has lost; requests
    /// that are submitted later find that done. False when there is no such cache, or no thread any
    /// more.
    pub fn accept_loss(&self, name: &str) -> bool {
        let is_it = |seen: &Seen| seen.name == name && seen.kind == "cache";
        match &self.0 {
            Place::Here(_) => false,
            Place::Beyond(near) => near.seen().iter().any(is_it) && near.accept_loss(name),
        }
    }
}

impl Device for Shard {
    fn geometry(&self) -> &Geometry {
        match &self.0 {
            Place::Here(below) => below.geometry(),
            Place::Beyond(near) => near.geometry(),
        }
    }

    fn submit(&self, request: Request) -> IoFuture<'_> {
        match &self.0 {
            Place::Here(below) => below.submit(request),
            Place::Beyond(near) => match near.geometry().check(&request) {
                Ok(()) => IoFuture::new(near.cross(request)),
                Err(error) => IoFuture::ready(Err(error)),
            },
        }
    }

    fn try_answer(&self, request: Request) -> Result<crate::IoResult, Request> {
        match &self.0 {
            Place::Here(below) => below.try_answer(request),
            Place::Beyond(_) => Err(request),
        }
    }

    fn try_write(&self, write: crate::BorrowedWrite<'_>) -> Option<crate::IoResult> {
        match &self.0 {
            Place::Here(below) => below.try_write(write),
            Place::Beyond(_) => None,
        }
    }

    fn close(&self) -> LocalFuture<'_, Result<(), IoError>> {
        match &self.0 {
            Place::Here(_) => Box::pin(std::future::ready(Ok(()))),
            Place::Beyond(near) => Box::pin(near.close()),
        }
    }

    fn interruptions(&self) -> Option<u64> {
        match &self.0 {
            Place::Here(below) => below.interruptions(),
            Place::Beyond(near) => near.interruptions(),
        }
    }

    fn figures(&self, out: &mut dyn FigureVisitor) {
        if let Place::Beyond(near) = &self.0 {
            near.figures(out);
        }
    }
}
