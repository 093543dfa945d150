//! The server side of NBD: the handshake of a client and the transmission phase.

mod connection;
mod directory;
mod outgoing;

pub(crate) use connection::{Transmission, handshake};
