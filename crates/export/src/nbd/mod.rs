//! NBD: the handshake of a client and what follows it.

mod connection;
mod directory;
mod outgoing;

pub(crate) use connection::{Transmission, handshake};
