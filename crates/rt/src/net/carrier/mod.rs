//! A thread that carries connections: it makes the system calls of their sockets, and runs what is
//! put on top of them, as encryption is, while another thread holds the ends that conversations
//! use. So the protocols, the sessions and the devices stay on one thread without locks, and most
//! of what a connection costs is on another core. It must never be the place where a protocol is
//! understood.
//!
//! The contract, besides that of every stream:
//!
//! - **What crosses.** Orders one way and reports the other, in mailboxes; those of one turn go
//!   together. Data is copied once each way ([`DetachedBuf`]).
//! - **Receiving** is by order, of as many bytes as the receiver has room for, until it allows to
//!   [read ahead](Carried::read_ahead): from then on up to [`AHEAD_MAX`] pieces of [`PIECE_BYTES`]
//!   are received before anybody asks for them. So nothing is taken from a socket behind what a
//!   handshake has asked for.
//! - **Sending** is over when the socket has taken all. At most [`SENDS_MAX`] pieces of
//!   [`SEND_BYTES`] of one payload are copied at a time.
//! - **Bounds.** So a connection takes no more memory on the thread than those pieces, and puts no
//!   more letters in a mailbox than there are pieces and calls of its two tasks.
//! - **Raising** puts a layer on the connection over there, between a receive and the next. Bytes
//!   that were received before and not taken would be lost to the layer, so there must be none.
//! - **Shutdown** takes effect when it arrives, also on what is being sent.
//! - **Death.** When the thread dies of a panic, its connections are broken, and it takes no more
//!   of them.
//! - **Closing** waits for the thread's end, which comes when its connections have been dropped.
//!
//! In virtual time there are no threads, and nothing is carried.

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

/// Bytes that are received at a time, at most.
pub const PIECE_BYTES: usize = 64 << 10;
/// Pieces that are received before anybody asks for them, at most.
pub const AHEAD_MAX: usize = 4;
/// Bytes that are sent at a time, at most.
pub const SEND_BYTES: usize = 1 << 20;
/// Pieces of a payload that are copied and not sent, at most.
pub const SENDS_MAX: usize = 2;

/// A connection of a carrier. Numbers are never used again, so what is said of a connection that is
/// gone means no other.
type Number = u64;

/// What the carrier's thread is told to do.
enum Order {
    /// From now on the connection is there.
    Carry(OwnedFd),
    /// Receive once, so many bytes at most.
    Receive(usize),
    Send(DetachedBuf),
    Raise(Raising),
    Shutdown,
    /// The near end is gone.
    Release,
}

/// Puts a layer on a stream.
type Raising = Box<dyn FnOnce(Rt, Stream) -> Raised + Send>;
/// The stream with its layer.
type Raised = Pin<Box<dyn Future<Output = io::Result<Stream>>>>;

/// What the carrier's thread says: first how it began, then what has come of orders.
enum Told {
    Began(io::Result<()>),
    Of(Number, Report),
}

/// What has come of an order.
enum Report {
    /// Of a receive; empty at the end of the stream.
    Received(io::Result<DetachedBuf>),
    Sent(io::Result<()>),
    Raised(io::Result<()>),
}
