//! A thread that carries connections. The thread makes the system calls of their sockets and runs
//! the layers put on top of them, such as encryption, while another thread holds the near ends that
//! the protocols use. Protocols, sessions and devices therefore stay on one thread without locks,
//! and most of the processor time of a connection is spent on another core. The carrier must never
//! interpret a protocol.
//!
//! The contract, in addition to the contract of every stream:
//!
//! - **Crossing threads.** The near end sends orders to the carrier's thread and gets reports from
//!   it, both through mailboxes; the messages of one turn are sent in one batch. Data is copied
//!   once in each direction ([`DetachedBuf`]).
//! - **Receiving** needs an order of the near end. An order asks for at most as many bytes as the
//!   receiver has room for. A handshake that requests only its own bytes therefore takes no later
//!   byte from the socket. When the receiver has allowed [read-ahead](Carried::read_ahead), up to
//!   [`AHEAD_MAX`] pieces of [`PIECE_BYTES`] are received before they are requested.
//! - **Sending** completes when the socket has accepted all bytes. At most [`SENDS_MAX`] pieces of
//!   [`SEND_BYTES`] of one payload are copied at a time.
//! - **Bounds.** A connection therefore uses no more memory on the carrier's thread than these
//!   pieces. The number of its messages in a mailbox is bounded by the number of these pieces and
//!   of the calls that its two tasks have in progress.
//! - **Raising** puts a layer on the connection, on the carrier's thread, between two receives. All
//!   bytes received before must have been consumed, since the layer would not see them.
//! - **Shutdown** takes effect when its order arrives, also on a send in progress.
//! - **Panic.** When the carrier's thread panics, its connections fail, and the carrier accepts no
//!   more connections.
//! - **Closing** waits until the connections have been dropped and the thread has ended.
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
/// Maximum number of pieces of [`PIECE_BYTES`] each that a connection receives before the protocol
/// requests their data.
pub const AHEAD_MAX: usize = 4;
/// Maximum number of bytes sent at a time.
pub const SEND_BYTES: usize = 1 << 20;
/// Maximum number of pieces of one payload in flight to the carrier's thread: pieces that were
/// copied for the thread and are not sent completely.
pub const SENDS_MAX: usize = 2;

/// Identifier of a connection of a carrier. Identifiers are never reused, so a report about a
/// dropped connection is never mistaken for a report about another connection.
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
    /// Removes the connection, since its near end (the handle on the protocol's thread) has been
    /// dropped.
    Release,
}

/// A function that puts a layer on a stream.
type Raising = Box<dyn FnOnce(Rt, Stream) -> Raised + Send>;
/// The result of a [`Raising`]: the stream with its layer.
type Raised = Pin<Box<dyn Future<Output = io::Result<Stream>>>>;

/// Message from the carrier's thread. The first message is the result of the thread's start; the
/// later messages are results of orders.
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
