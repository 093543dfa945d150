//! A thread that carries connections. It makes the system calls of their sockets and runs the
//! layers put on top of them, such as encryption, while another thread holds the ends that the
//! protocols use. Protocols, sessions and devices therefore stay on one thread without locks, and
//! most of the cost of a connection is on another core. The carrier must never interpret a
//! protocol.
//!
//! The contract, besides that of every stream:
//!
//! - **Crossing threads.** Orders travel one way and reports the other, in mailboxes; the messages
//!   of one turn are sent in one batch. Data is copied once in each direction ([`DetachedBuf`]).
//! - **Receiving** is by order, of at most the bytes that the receiver has room for, until the
//!   receiver allows [read-ahead](Carried::read_ahead). From then on up to [`AHEAD_MAX`] pieces of
//!   [`PIECE_BYTES`] are received before they are requested. So no byte is taken from a socket
//!   beyond those that a handshake requested.
//! - **Sending** completes when the socket has accepted all bytes. At most [`SENDS_MAX`] pieces of
//!   [`SEND_BYTES`] of one payload are copied at a time.
//! - **Bounds.** A connection therefore uses no more memory on the thread than those pieces, and
//!   puts no more messages in a mailbox than there are pieces and calls of its two tasks.
//! - **Raising** puts a layer on the connection, on the carrier's thread, between two receives.
//!   Bytes that were received before and not consumed would be lost to the layer, so there must be
//!   none.
//! - **Shutdown** takes effect when its order arrives, also on a send in progress.
//! - **Death.** When the thread dies of a panic, its connections are broken, and it accepts no more
//!   connections.
//! - **Closing** waits for the end of the thread, which comes when its connections have been
//!   dropped.
//!
//! In virtual time there are no threads, and no connection is carried.

mod far;
mod near;

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use super::Stream;
use crate::buf::DetachedBuf;
use crate::executor::Rt;
pub use near::{Carried, Carrier};

/// Maximum number of bytes received at a time.
pub const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of pieces that are received before they are requested.
pub const AHEAD_MAX: usize = 4;
/// Maximum number of bytes sent at a time.
pub const SEND_BYTES: usize = 1 << 20;
/// Maximum number of pieces of a payload that are copied and not yet sent.
pub const SENDS_MAX: usize = 2;

/// The identifier of a connection of a carrier. Numbers are never reused, so a report about a
/// dropped connection is never taken for one about another.
type Number = u64;

/// An order to the carrier's thread.
enum Order {
    /// Adds a connection, given by its descriptor.
    Carry(OwnedFd),
    /// Receives once, at most the given number of bytes.
    Receive(usize),
    Send(DetachedBuf),
    Raise(Raising),
    Shutdown,
    /// Removes the connection; its near end has been dropped.
    Release,
}

/// A function that puts a layer on a stream.
type Raising = Box<dyn FnOnce(Rt, Stream) -> Raised + Send>;
/// The result of a [`Raising`]: the stream with its layer.
type Raised = Pin<Box<dyn Future<Output = io::Result<Stream>>>>;

/// A message of the carrier's thread: first the result of its start, then the results of orders.
enum Told {
    Began(io::Result<()>),
    Of(Number, Report),
}

/// The result of an order.
enum Report {
    /// The data of a receive; empty at the end of the stream.
    Received(io::Result<DetachedBuf>),
    Sent(io::Result<()>),
    Raised(io::Result<()>),
}
